"""Complex numbers: the gradient is the conjugate Wirtinger derivative, and a conjugate is easily forgotten."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.register import Slip, right


@right(
    lambda draw: (draw.complex(*draw.matrix()), draw.complex(*draw.matrix())),
    Slip(
        "forgets the conjugates",
        "grad_output * b.conj(), grad_output * a.conj()",
        "grad_output * b, grad_output * a",
        ("missing_conjugate",),
    ),
    Slip(
        "exchanges the factors",
        "grad_output * b.conj(), grad_output * a.conj()",
        "grad_output * a.conj(), grad_output * b.conj()",
        ("swapped_gradients",),
    ),
)
class ComplexProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        return grad_output * b.conj(), grad_output * a.conj()


@right(
    lambda draw: (draw.complex(*draw.matrix()),),
    Slip("forgets the 2", "2 * grad_output * z", "grad_output * z", ("scaled_gradient",)),
    Slip("returns the conjugate", "2 * grad_output * z", "2 * grad_output * z.conj()", ("missing_conjugate",)),
)
class Intensity(Function):
    """|z|², a real number."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.real * z.real + z.imag * z.imag

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return 2 * grad_output * z


@right(
    lambda draw: (draw.complex(*draw.matrix()),),
    Slip("forgets the conjugate", "grad_output * y.conj()", "grad_output * y", ("missing_conjugate",)),
    without=["large"],
)
class ComplexExponential(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        y = z.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad_output * y.conj()


@right(
    lambda draw: (draw.positive(*draw.matrix()), draw.tensor(*draw.matrix())),
    Slip("has the angle's sign wrong", "-x_part * sin + y_part * cos", "x_part * sin + y_part * cos"),
    Slip("forgets the length", "length * (-x_part", "1 * (-x_part", ("missing_factor",)),
)
class FromPolar(Function):
    """Real length and angle to a complex number."""

    @staticmethod
    def forward(ctx: Any, length: Tensor, angle: Tensor) -> Tensor:
        ctx.save_for_backward(length, angle)
        return torch.complex(length * angle.cos(), length * angle.sin())

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        length, angle = ctx.saved_tensors
        cos, sin = angle.cos(), angle.sin()
        x_part, y_part = grad_output.real, grad_output.imag
        return x_part * cos + y_part * sin, length * (-x_part * sin + y_part * cos)
