"""What is noted of a run's operations: which of them draw random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradproof_probe.gradients.precision import PrecisionTrace
from torch.nn import functional

ROWS = torch.randn(2, 2, 4, 8)


def drawn(call: Callable[[], object]) -> bool:
    trace = PrecisionTrace()
    with trace:
        call()
    return bool(trace.narrow.random)


@pytest.mark.parametrize(
    ("call", "draws"),
    [
        (lambda: functional.scaled_dot_product_attention(ROWS, ROWS, ROWS), False),
        (lambda: functional.scaled_dot_product_attention(ROWS, ROWS, ROWS, is_causal=True), False),
        (lambda: functional.scaled_dot_product_attention(ROWS, ROWS, ROWS, dropout_p=0.3), True),
        (lambda: functional.dropout(ROWS, 0.5), True),
        (lambda: torch.rand(3), True),
        (lambda: ROWS.softmax(-1) @ ROWS.mT, False),
    ],
)
def test_attention_draws_only_where_it_drops(call: Callable[[], object], *, draws: bool) -> None:
    assert drawn(call) == draws
