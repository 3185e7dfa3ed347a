"""One number in, one number out: activations and powers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw, Inputs
from benchmarks.mutants.register import Slip, right


def one(draw: Draw) -> Inputs:
    return (draw.tensor(*draw.matrix()),)


def one_positive(draw: Draw) -> Inputs:
    return (draw.positive(*draw.matrix()),)


@right(
    one,
    Slip("forgets the 2", "2 * x * grad_output", "x * grad_output", ("scaled_gradient",)),
    Slip("forgets grad_output", "2 * x * grad_output", "2 * x", ("not_linear",)),
)
class Square(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


@right(
    one, Slip("takes the cosine for its own derivative", "* x.cos()", "* x.sin()", ("wrong_factor",)), without=["large"]
)
class Sine(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * x.cos()


@right(
    one,
    Slip(
        "takes the output for the input", "grad_output * y", "grad_output * y.exp()", ("wrong_factor", "extra_factor")
    ),
    without=["large"],
)
class Exponential(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad_output * y


@right(
    one_positive,
    Slip(
        "adds an epsilon to the divisor",
        "grad_output / x",
        "grad_output / (x + 1e-3)",
        ("different_epsilon", "wrong_factor"),
    ),
)
class Logarithm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output / x


@right(
    one,
    Slip("has the wrong inner sign", "y * (1 - y)", "y * (1 + y)", ("wrong_factor",)),
    Slip("forgets the factor y", "y * (1 - y)", "(1 - y)", ("missing_factor",)),
)
class Sigmoid(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad_output * y * (1 - y)


@right(
    one,
    Slip("forgets the square", "1 - y * y", "1 - y", ("wrong_factor",)),
    Slip("squares the input instead of the output", "1 - y * y", "1 - x * x", ("wrong_factor",)),
)
class HyperbolicTangent(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        x, y = ctx.saved_tensors  # noqa: RUF059 -- a slip uses x
        return grad_output * (1 - y * y)


@right(
    one,
    Slip("forgets the gate's own gradient", "gate + x * gate * (1 - gate)", "gate", ("missing_term",)),
    Slip("forgets the factor x", "x * gate * (1 - gate)", "gate * (1 - gate)"),
)
class Swish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad_output * (gate + x * gate * (1 - gate))


@right(
    one,
    Slip("forgets the density's factor x", "cumulative + x * density", "cumulative + density"),
    Slip("forgets the density", "cumulative + x * density", "cumulative", ("missing_term",)),
)
class GaussianErrorUnit(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        cumulative = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad_output * (cumulative + x * density)


@right(
    one,
    Slip("forgets the inner derivative of the cubic term", "1 + 3 * 0.044715 * x * x", "1"),
    Slip("has 2 for 3 in the cubic term", "3 * 0.044715", "2 * 0.044715"),
)
class GaussianErrorUnitByTanh(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inner = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad_output * (0.5 * (1 + inner) + 0.5 * x * (1 - inner * inner) * slope)


@right(
    lambda draw: (*one(draw), 1.5),
    Slip("forgets beta inside", "torch.sigmoid(ctx.beta * x)", "torch.sigmoid(x)", ("wrong_factor",)),
    Slip(
        "divides by beta", "torch.sigmoid(ctx.beta * x)", "torch.sigmoid(ctx.beta * x) / ctx.beta", ("scaled_gradient",)
    ),
)
class Softplus(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, beta: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.beta = beta
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(ctx.beta * x), None


@right(
    lambda draw: (*one(draw), 0.2),
    Slip(
        "passes nothing below zero",
        "ctx.slope * grad_output)",
        "torch.zeros_like(grad_output))",
        ("wrong_region", "wrong_coordinates"),
    ),
    Slip("has the sides exchanged", "torch.where(x > 0, grad_output", "torch.where(x < 0, grad_output"),
)
class LeakyRectifier(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad_output, ctx.slope * grad_output), None


@right(
    lambda draw: (*one(draw), 1.3),
    Slip(
        "forgets alpha below zero",
        "ctx.alpha * x.clamp(max=0).exp()",
        "x.clamp(max=0).exp()",
        ("wrong_region", "wrong_coordinates"),
    ),
    Slip(
        "returns the output below zero",
        "ctx.alpha * x.clamp(max=0).exp()",
        "ctx.alpha * (x.clamp(max=0).exp() - 1)",
        ("wrong_region", "wrong_coordinates"),
    ),
)
class ExponentialLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        slope = torch.where(x > 0, torch.ones_like(x), ctx.alpha * x.clamp(max=0).exp())
        return grad_output * slope, None


@right(
    one,
    Slip("forgets the softplus inside", "inner + x * (1 - inner * inner) * x.sigmoid()", "inner", ("missing_term",)),
    Slip("forgets the sigmoid", "(1 - inner * inner) * x.sigmoid()", "(1 - inner * inner)"),
)
class Mish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        inner = torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
        return grad_output * (inner + x * (1 - inner * inner) * x.sigmoid())


@right(
    one_positive,
    Slip("forgets the sign", "-grad_output * y * y", "grad_output * y * y", ("wrong_sign",)),
    Slip("forgets the square", "-grad_output * y * y", "-grad_output * y", ("missing_factor",)),
)
class Reciprocal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = 1 / x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return -grad_output * y * y


@right(
    one_positive,
    Slip("forgets the half", "-0.5 * grad_output", "-grad_output", ("scaled_gradient",)),
    Slip("has the square for the cube", "y * y * y", "y * y", ("missing_factor",)),
)
class ReciprocalRoot(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.rsqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return -0.5 * grad_output * y * y * y


@right(
    lambda draw: (*one_positive(draw), 2.5),
    Slip("forgets the exponent in front", "ctx.exponent * x.pow", "x.pow", ("scaled_gradient",)),
    Slip("forgets to lower the exponent", "ctx.exponent - 1", "ctx.exponent", ("extra_factor",)),
)
class Power(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exponent: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.exponent = exponent
        return x.pow(exponent)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad_output * (ctx.exponent * x.pow(ctx.exponent - 1)), None


@right(
    lambda draw: (*one(draw), -0.8, 1.2),
    Slip(
        "lets everything through above",
        "(x > ctx.low) & (x < ctx.high)",
        "x > ctx.low",
        ("wrong_region", "wrong_coordinates"),
    ),
    Slip("lets everything through", "(x > ctx.low) & (x < ctx.high)", "x == x", ("wrong_region", "wrong_coordinates")),
)
class Limited(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        inside = (x > ctx.low) & (x < ctx.high)
        return grad_output * inside, None, None


@right(
    one,
    Slip("takes 2x + 3 for x + 3", "(2 * x + 3) / 6", "(x + 3) / 6", ("wrong_region", "wrong_coordinates")),
)
class HardSwish(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * (x + 3).clamp(0, 6) / 6

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        middle = torch.where(x >= 3, torch.ones_like(x), (2 * x + 3) / 6)
        return grad_output * torch.where(x <= -3, torch.zeros_like(x), middle)


@right(
    one,
    Slip("forgets the sign function", "grad_output * x.sign()", "grad_output * x", ("wrong_factor", "extra_factor")),
)
class Absolute(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad_output * x.sign()
