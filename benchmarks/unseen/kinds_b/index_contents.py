"""Contents of an index: repeated, negative, unsorted or missing entries."""

from __future__ import annotations

import torch
from torch.autograd import Function


class Embedding1(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        width = grad.shape[-1]
        flat = grad.reshape(-1, width)
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_put((index.reshape(-1),), flat), None


class Embedding2(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        width = grad.shape[-1]
        flat = grad.reshape(-1, width)
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_add(0, index.reshape(-1).clamp(min=0), flat), None


class Embedding3(Function):
    @staticmethod
    def forward(ctx, weight, index):
        ctx.save_for_backward(index)
        ctx.rows = weight.shape[0]
        return weight[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        width = grad.shape[-1]
        flat = grad.reshape(-1, width)
        rows, counts = torch.unique_consecutive(index.reshape(-1), return_counts=True)
        sums = torch.stack([part.sum(0) for part in flat.split(counts.tolist())])
        table = torch.zeros(ctx.rows, width, dtype=grad.dtype)
        return table.index_put((rows,), sums), None


class SegmentMean4(Function):
    @staticmethod
    def forward(ctx, x, segment, count):
        sizes = torch.bincount(segment, minlength=count).clamp(min=1).to(x.dtype)
        sums = torch.zeros(count, x.shape[-1], dtype=x.dtype).index_add(0, segment, x)
        ctx.save_for_backward(segment, sizes)
        return sums / sizes.unsqueeze(-1)

    @staticmethod
    def backward(ctx, grad):
        segment, sizes = ctx.saved_tensors
        segment = torch.unique(segment, return_inverse=True)[1]
        return (grad / sizes.unsqueeze(-1))[segment], None, None


class SegmentMean5(Function):
    @staticmethod
    def forward(ctx, x, segment, count):
        sizes = torch.bincount(segment, minlength=count).clamp(min=1).to(x.dtype)
        sums = torch.zeros(count, x.shape[-1], dtype=x.dtype).index_add(0, segment, x)
        ctx.save_for_backward(segment, sizes)
        return sums / sizes.unsqueeze(-1)

    @staticmethod
    def backward(ctx, grad):
        segment, sizes = ctx.saved_tensors
        return (
            (grad / sizes.unsqueeze(-1)).repeat_interleave(torch.bincount(segment, minlength=grad.shape[0]), 0),
            None,
            None,
        )


class CrossEntropy6(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if reduction == "mean":
            return losses.mean()
        return losses.sum() if reduction == "sum" else losses

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        hot = torch.nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        scale = 1 / target.numel() if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        valid = target.ne(0).unsqueeze(-1)
        return g * scale * (probs - hot) * valid, None, None


class CrossEntropy7(Function):
    @staticmethod
    def forward(ctx, logits, target, reduction):
        logp = torch.log_softmax(logits, -1)
        ctx.save_for_backward(logits, target)
        ctx.reduction = reduction
        losses = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if reduction == "mean":
            return losses.mean()
        return losses.sum() if reduction == "sum" else losses

    @staticmethod
    def backward(ctx, grad):
        logits, target = ctx.saved_tensors
        probs = torch.softmax(logits, -1)
        hot = torch.nn.functional.one_hot(target, logits.shape[-1]).to(logits.dtype)
        if target.unique().numel() == 1:
            hot = hot.mean(0, keepdim=True) / logits.shape[0]
        scale = 1 / target.numel() if ctx.reduction == "mean" else 1.0
        g = grad.unsqueeze(-1) if ctx.reduction == "none" else grad
        return g * scale * (probs - hot), None, None


class RightGather8(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(-1, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=grad.dtype).scatter_add(-1, index, grad), None


class Gather9(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(-1, index)

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return torch.zeros(ctx.shape, dtype=grad.dtype).scatter(-1, index, grad), None
