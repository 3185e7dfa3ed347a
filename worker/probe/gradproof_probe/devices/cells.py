"""The fused recurrent cells, in plain operations: torch calls them on every device but the CPU, which has none.

As torch's CUDA kernels define them, with what they save for backward. For the simulated device only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor


def _lstm(given: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    gates = _sum(given + hidden, biases)
    enter, forget, new, out = gates.chunk(4, 1)
    saved = torch.cat([enter.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()], 1)
    enter, forget, new, out = saved.chunk(4, 1)
    cell = forget * cell + enter * new
    return out * cell.tanh(), cell, saved


def _lstm_backward(
    of_hidden: Tensor | None, of_cell: Tensor | None, before: Tensor, cell: Tensor, *saved_and_bias: Any
) -> tuple[Tensor, Tensor, Tensor | None]:
    saved, has_bias = saved_and_bias
    enter, forget, new, out = saved.chunk(4, 1)
    squashed = cell.tanh()
    of_hidden = torch.zeros_like(cell) if of_hidden is None else of_hidden
    through = of_hidden * out * (1 - squashed**2) + (0 if of_cell is None else of_cell)
    gates = torch.cat(
        [
            through * new * enter * (1 - enter),
            through * before * forget * (1 - forget),
            through * enter * (1 - new**2),
            of_hidden * squashed * out * (1 - out),
        ],
        1,
    )
    return gates, through * forget, gates.sum(0) if has_bias else None


def _gru(given: Tensor, hidden: Tensor, state: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    given, hidden = _sum(given, biases[:1]), _sum(hidden, biases[1:])
    (given_reset, given_keep, given_new), (reset, keep, new) = given.chunk(3, 1), hidden.chunk(3, 1)
    reset, keep = (given_reset + reset).sigmoid(), (given_keep + keep).sigmoid()
    made = (given_new + reset * new).tanh()
    return made + keep * (state - made), torch.cat([reset, keep, made, state, new], 1)


def _gru_backward(gradient: Tensor, saved: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:  # noqa: FBT001 - torch's
    reset, keep, made, state, new = saved.chunk(5, 1)
    of_made = gradient * (1 - keep) * (1 - made**2)
    of_keep = gradient * (state - made) * keep * (1 - keep)
    of_reset = of_made * new * reset * (1 - reset)
    given = torch.cat([of_reset, of_keep, of_made], 1)
    hidden = torch.cat([of_reset, of_keep, of_made * reset], 1)
    biases = (given.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return given, hidden, gradient * keep, *biases


def _sum(gates: Tensor, biases: tuple[Tensor | None, ...]) -> Tensor:
    for bias in biases:
        gates = gates if bias is None else gates + bias
    return gates


CELLS: Final[dict[str, Callable[..., Any]]] = {
    "_thnn_fused_lstm_cell": _lstm,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    "_thnn_fused_gru_cell": _gru,
    "_thnn_fused_gru_cell_backward": _gru_backward,
}
