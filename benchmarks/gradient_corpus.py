"""Right autograd.Functions and wrong copies of them, for measuring gradient checks.

Each operation is written once, forward and gradient formulas; each mutation spoils the gradients in one way that is
known from real reports (checks facts, section 2.4). `mutants()` leaves out combinations that change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Tensor]
Backward = Callable[..., tuple[Tensor, ...]]
Spoil = Callable[[tuple[Tensor, ...], Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Operation:
    """`backward(grad_output, *inputs)` gives one gradient an input; `shapes(n)`: input shapes of about n elements."""

    name: str
    forward: Forward
    backward: Backward
    shapes: Callable[[int], list[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A Function with a wrong gradient, or a right one when `kind` is `right`."""

    operation: Operation
    kind: str
    function: type[torch.autograd.Function]

    def inputs(self, elements: int, seed: int = 0) -> tuple[Tensor, ...]:
        """float64 leaves of about this many elements each."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
            for shape in self.operation.shapes(elements)
        )


def _square(n: int) -> tuple[int, int]:
    side = max(2, round(n**0.5))
    return side, side + 1


def _norm_backward(grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    length = (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    y = x / length
    return ((grad - y * (grad * y).sum(-1, keepdim=True)) / length,)


def _softmax_backward(grad: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    y = x.softmax(-1)
    return (y * (grad - (grad * y).sum(-1, keepdim=True)),)


def _layer_norm_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    normal = centred * scale
    inner = grad * weight
    grad_x = scale * (inner - inner.mean(-1, keepdim=True) - normal * (inner * normal).mean(-1, keepdim=True))
    return grad_x, (grad * normal).sum(0)


def _layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:]) * weight


OPERATIONS = (
    Operation("square", lambda x: x * x, lambda g, x: (2 * g * x,), lambda n: [_square(n)]),
    Operation("tanh", torch.tanh, lambda g, x: (g * (1 - torch.tanh(x) ** 2),), lambda n: [_square(n)]),
    Operation("swish", lambda x: x * x.sigmoid(),
              lambda g, x: (g * (x.sigmoid() + x * x.sigmoid() * (1 - x.sigmoid())),), lambda n: [_square(n)]),
    Operation("product", lambda a, b: a * b, lambda g, a, b: (g * b, g * a), lambda n: [_square(n), _square(n)]),
    Operation("matmul", lambda a, b: a @ b, lambda g, a, b: (g @ b.mT, a.mT @ g),
              lambda n: [_square(n), _square(n)[::-1]]),
    Operation("normalise", lambda x: x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt(), _norm_backward,
              lambda n: [_square(n)]),
    Operation("softmax", lambda x: x.softmax(-1), _softmax_backward, lambda n: [_square(n)]),
    Operation("layer_norm", _layer_norm, _layer_norm_backward, lambda n: [_square(n), _square(n)[1:]]),
)  # fmt: skip


def _first(change: Callable[[Tensor], Tensor]) -> Spoil:
    return lambda grads, _grad, _inputs: (change(grads[0]), *grads[1:])


def _one_coordinate(grad: Tensor) -> Tensor:
    spoiled = grad.clone()
    spoiled.view(-1)[grad.numel() // 2] *= 1.5
    return spoiled


def _tail(grad: Tensor) -> Tensor:
    spoiled = grad.clone()
    spoiled.view(-1)[256:] = 0
    return spoiled


def _layout(grads: tuple[Tensor, ...], grad: Tensor, _inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a kernel that ignores strides would do: right for a contiguous incoming gradient only."""
    return grads if grad.is_contiguous() else tuple(-each for each in grads)


SPOILS: dict[str, Spoil] = {
    "factor 2": _first(lambda grad: 2 * grad),
    "sign": _first(lambda grad: -grad),
    "zero": _first(torch.zeros_like),
    "small error 5e-4": _first(lambda grad: grad * (1 + 5e-4)),
    "one coordinate": _first(_one_coordinate),
    "only beyond 256 elements": _first(_tail),
    "rounded to bfloat16": _first(lambda grad: grad.bfloat16().to(grad.dtype)),
    "layout of grad_output": _layout,
    "last input's gradient zero": lambda grads, _g, _i: (*grads[:-1], torch.zeros_like(grads[-1])),
}


def _function(operation: Operation, kind: str, spoil: Spoil | None) -> type[torch.autograd.Function]:
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return operation.forward(*inputs)

    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, ...]:
        inputs = ctx.saved_tensors
        grads = operation.backward(grad_output, *inputs)
        return grads if spoil is None else spoil(grads, grad_output, inputs)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"{operation.name}_{kind}".replace(" ", "_"), (torch.autograd.Function,), members)


def right() -> Iterator[Mutant]:
    """Every operation as it should be."""
    for operation in OPERATIONS:
        yield Mutant(operation, "right", _function(operation, "right", None))


def mutants() -> Iterator[Mutant]:
    """Every operation spoiled in every way that changes something."""
    for operation in OPERATIONS:
        for kind, spoil in SPOILS.items():
            if kind == "last input's gradient zero" and len(operation.shapes(16)) == 1:
                continue  # the same as `zero`
            yield Mutant(operation, kind, _function(operation, kind, spoil))
