"""A prediction and a target to one number (or one a sample), with arguments that are no tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from benchmarks.mutants.draws import Draw
from benchmarks.mutants.register import Slip, right

SCALED = ("scaled_gradient",)
MISSING = ("missing_term",)
REGION = ("wrong_region", "wrong_coordinates")


def prediction_and_target(draw: Draw) -> tuple[Tensor, Tensor]:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.tensor(rows, columns)


def classes(draw: Draw) -> tuple[Tensor, Tensor]:
    rows, columns = draw.matrix()
    return draw.tensor(rows, columns), draw.indices(columns, rows)


@right(
    lambda draw: (*prediction_and_target(draw), "mean"),
    Slip("forgets the mean", '2 / x.numel() if ctx.reduction == "mean" else 2', "2", SCALED),
    Slip("divides by the batch only", "2 / x.numel()", "2 / x.shape[0]", SCALED),
    Slip("forgets the target's sign", "slope, -slope", "slope, slope", ("wrong_sign",)),
)
class MeanSquaredError(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, reduction: str) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.reduction = reduction
        error = (x - target).pow(2)
        return error.mean() if reduction == "mean" else error.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        x, target = ctx.saved_tensors
        factor = 2 / x.numel() if ctx.reduction == "mean" else 2
        slope = grad_output * factor * (x - target)
        return slope, -slope, None


@right(
    lambda draw: (*classes(draw), "mean"),
    Slip("forgets to subtract the target", "probability - chosen", "probability", MISSING),
    Slip("forgets the mean over the batch", ' / len(x) if ctx.reduction == "mean" else grad_output', "", SCALED),
    Slip("has the sign wrong", "probability - chosen", "chosen - probability", ("wrong_sign",)),
)
class CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, reduction: str) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.reduction = reduction
        picked = -x.log_softmax(-1).gather(1, target[:, None])
        return picked.mean() if reduction == "mean" else picked.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        probability = x.softmax(-1)
        chosen = torch.nn.functional.one_hot(target, x.shape[1]).to(x.dtype)
        factor = grad_output / len(x) if ctx.reduction == "mean" else grad_output
        return factor * (probability - chosen), None, None


@right(
    lambda draw: (*classes(draw), 0.1),
    Slip("smooths the wrong way", "ctx.smoothing / x.shape[1]", "ctx.smoothing", MISSING),
    Slip("forgets the smoothing", "(1 - ctx.smoothing) * chosen + ctx.smoothing / x.shape[1]", "chosen", ()),
)
class SmoothedCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, smoothing: float) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.smoothing = smoothing
        logarithms = x.log_softmax(-1)
        picked = -logarithms.gather(1, target[:, None])[:, 0]
        return (1 - smoothing) * picked - smoothing * logarithms.mean(-1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        chosen = torch.nn.functional.one_hot(target, x.shape[1]).to(x.dtype)
        wanted = (1 - ctx.smoothing) * chosen + ctx.smoothing / x.shape[1]
        return grad_output[:, None] * (x.softmax(-1) - wanted), None, None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.mask(*draw.matrix()).double(), 2.0),
    Slip(
        "takes the focal weight for a constant",
        "focus * slope_of_loss + loss * slope_of_focus",
        "focus * slope_of_loss",
        MISSING,
    ),
    Slip("forgets gamma in front", "-ctx.gamma * (1 - chance).pow(ctx.gamma - 1)", "-(1 - chance).pow(ctx.gamma - 1)"),
    without=["large", "float32"],
)
class FocalLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, gamma: float) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.gamma = gamma
        chance = torch.sigmoid(x * (2 * target - 1))
        return -((1 - chance).pow(gamma) * chance.log()).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        side = 2 * target - 1
        chance = torch.sigmoid(x * side)
        loss = -chance.log()
        focus = (1 - chance).pow(ctx.gamma)
        slope_of_loss = -1 / chance
        slope_of_focus = -ctx.gamma * (1 - chance).pow(ctx.gamma - 1)
        slope = (focus * slope_of_loss + loss * slope_of_focus) * chance * (1 - chance) * side
        return grad_output[:, None] * slope, None, None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.probabilities(*draw.matrix())),
    Slip("forgets that the target's entropy depends on it", "target.log() + 1 - logarithms", "-logarithms", MISSING),
    Slip("forgets the softmax", "x.softmax(-1) * target.sum(-1, keepdim=True) - target", "-target", MISSING),
)
class KullbackLeibler(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor) -> Tensor:
        ctx.save_for_backward(x, target)
        return (target * (target.log() - x.log_softmax(-1))).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        x, target = ctx.saved_tensors
        logarithms = x.log_softmax(-1)
        grad_x = x.softmax(-1) * target.sum(-1, keepdim=True) - target
        return grad_output * grad_x, grad_output * (target.log() + 1 - logarithms)


@right(
    lambda draw: (*prediction_and_target(draw), 1.0, "mean"),
    Slip(
        "forgets delta in the linear part", "ctx.delta * difference.sign()", "2 * ctx.delta * difference.sign()", REGION
    ),
    Slip(
        "never leaves the square",
        "torch.where(difference.abs() < ctx.delta, difference, ctx.delta * difference.sign())",
        "difference",
        REGION,
    ),
    Slip(
        "forgets the mean",
        'grad_output / difference.numel() if ctx.reduction == "mean" else grad_output',
        "grad_output",
        SCALED,
    ),
)
class HuberLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, delta: float, reduction: str) -> Tensor:
        difference = x - target
        ctx.save_for_backward(x, target)
        ctx.delta, ctx.reduction = delta, reduction
        size = difference.abs()
        loss = torch.where(size < delta, 0.5 * difference * difference, delta * (size - 0.5 * delta))
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, target = ctx.saved_tensors
        difference = x - target
        slope = torch.where(difference.abs() < ctx.delta, difference, ctx.delta * difference.sign())
        grad = (grad_output / difference.numel() if ctx.reduction == "mean" else grad_output) * slope
        return grad, -grad, None, None


@right(
    lambda draw: (*prediction_and_target(draw), 1e-8),
    Slip("takes the lengths for constants", " - cosine * a / (a.pow(2).sum(-1, keepdim=True) + ctx.eps)", "", MISSING),
    Slip("forgets the length", "b / lengths - cosine * a", "b - cosine * a"),
    without=["tiny"],
)
class CosineSimilarity(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.eps = eps
        lengths = ((a.pow(2).sum(-1) + eps) * (b.pow(2).sum(-1) + eps)).sqrt()
        return (a * b).sum(-1) / lengths

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        squares = (a.pow(2).sum(-1, keepdim=True) + ctx.eps) * (b.pow(2).sum(-1, keepdim=True) + ctx.eps)
        lengths = squares.sqrt()
        cosine = (a * b).sum(-1, keepdim=True) / lengths
        grad = grad_output[:, None]
        grad_a = grad * (b / lengths - cosine * a / (a.pow(2).sum(-1, keepdim=True) + ctx.eps))
        return grad_a, grad * (a / lengths - cosine * b / (b.pow(2).sum(-1, keepdim=True) + ctx.eps)), None


@right(
    lambda draw: (*prediction_and_target(draw), draw.mask(draw.matrix()[0]), 4.0),
    Slip("forgets to divide by the distance", " / distance", "", REGION),
    Slip(
        "pushes same pairs apart",
        "torch.where(same[:, None], 2 * apart",
        "torch.where(same[:, None], -2 * apart",
        (*REGION, "wrong_sign"),
    ),
    without=["grid", "tiny"],
)
class ContrastiveLoss(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, same: Tensor, margin: float) -> Tensor:
        ctx.save_for_backward(a, b, same)
        ctx.margin = margin
        distance = (a - b).pow(2).sum(-1).sqrt()
        return torch.where(same, distance * distance, (margin - distance).clamp(min=0).pow(2)).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None, None]:
        a, b, same = ctx.saved_tensors
        apart = a - b
        distance = apart.pow(2).sum(-1, keepdim=True).sqrt()
        push = -2 * (ctx.margin - distance).clamp(min=0) * apart / distance
        grad = grad_output * torch.where(same[:, None], 2 * apart, push)
        return grad, -grad, None, None


@right(
    lambda draw: (draw.tensor(*draw.matrix()), draw.mask(*draw.matrix()).double(), 3.0),
    Slip(
        "forgets the weight of the positives",
        "ctx.weight * target * (probability - 1)",
        "target * (probability - 1)",
        REGION,
    ),
    Slip("takes the target's side for both", "(1 - target) * probability", "target * probability"),
)
class WeightedBinaryCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, weight: float) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.weight = weight
        zero = torch.zeros_like(x)
        return weight * target * torch.logaddexp(-x, zero) + (1 - target) * torch.logaddexp(x, zero)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        probability = x.sigmoid()
        slope = ctx.weight * target * (probability - 1) + (1 - target) * probability
        return grad_output * slope, None, None


@right(
    lambda draw: (draw.positive(*draw.matrix()), draw.mask(*draw.matrix()).double(), 1.0),
    Slip("takes the denominator for a constant", " + (2 * overlap + ctx.smooth) / total.pow(2)", "", MISSING),
    Slip("forgets the 2", "-2 * target / total", "-target / total", MISSING),
    without=["float32"],
)
class DiceLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, smooth: float) -> Tensor:
        ctx.save_for_backward(x, target)
        ctx.smooth = smooth
        overlap = (x * target).sum(-1)
        return 1 - (2 * overlap + smooth) / (x.sum(-1) + target.sum(-1) + smooth)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None]:
        x, target = ctx.saved_tensors
        overlap = (x * target).sum(-1, keepdim=True)
        total = (x + target).sum(-1, keepdim=True) + ctx.smooth
        slope = -2 * target / total + (2 * overlap + ctx.smooth) / total.pow(2)
        return grad_output[:, None] * slope, None, None


@right(
    lambda draw: (*prediction_and_target(draw), 0.5),
    Slip("forgets the temperature", " / (len(a) * ctx.temperature)", " / len(a)", SCALED),
    Slip(
        "forgets the pairs themselves",
        "scores.softmax(-1) - torch.eye(len(a), dtype=a.dtype)",
        "scores.softmax(-1)",
        MISSING,
    ),
    Slip("forgets to transpose", "grad_scores.mT @ a", "grad_scores @ a"),
)
class NoiseContrastive(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.temperature = temperature
        return -(a @ b.mT / temperature).log_softmax(-1).diagonal().mean()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        scores = a @ b.mT / ctx.temperature
        difference = scores.softmax(-1) - torch.eye(len(a), dtype=a.dtype)
        grad_scores = grad_output * difference / (len(a) * ctx.temperature)
        return grad_scores @ b, grad_scores.mT @ a, None


@right(
    lambda draw: (*prediction_and_target(draw), draw.tensor(*draw.matrix()), 1.0),
    Slip(
        "forgets the negative",
        "2 * open_ * (anchor - positive) - 2 * open_ * (anchor - negative)",
        "2 * open_ * (anchor - positive)",
        MISSING,
    ),
    Slip("ignores the margin's condition", "(gap > 0)", "(gap == gap)", (*REGION, "wrong_tail")),
)
class TripletLoss(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
        ctx.save_for_backward(anchor, positive, negative)
        ctx.margin = margin
        gap = (anchor - positive).pow(2).sum(-1) - (anchor - negative).pow(2).sum(-1) + margin
        return gap.clamp(min=0).sum()

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        anchor, positive, negative = ctx.saved_tensors
        gap = (anchor - positive).pow(2).sum(-1) - (anchor - negative).pow(2).sum(-1) + ctx.margin
        open_ = grad_output * (gap > 0)[:, None]
        grad_anchor = 2 * open_ * (anchor - positive) - 2 * open_ * (anchor - negative)
        return grad_anchor, -2 * open_ * (anchor - positive), 2 * open_ * (anchor - negative), None
