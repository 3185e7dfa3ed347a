"""Broadcast inputs: the gradient is not summed back over the right dimensions."""

from __future__ import annotations

import torch
from torch.autograd import Function


def unbroadcast(grad, shape):
    while grad.dim() > len(shape):
        grad = grad.sum(0)
    for axis, size in enumerate(shape):
        if size == 1:
            grad = grad.mean(axis, keepdim=True)
    return grad


class Scale1(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = unbroadcast(grad * x, factor.shape)
        return grad_x, grad_factor


class Scale2(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = grad * factor
        if grad_x.shape != x.shape:
            grad_x = grad_x[: x.shape[0]].clone() if x.dim() == grad_x.dim() else grad_x[0]
            grad_x = grad_x.sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class Scale3(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        lead = grad.dim() - factor.dim()
        axes = tuple(range(lead)) + tuple(i + lead for i, n in enumerate(factor.shape[:-1]) if n == 1)
        total = (grad * x).sum(axes, keepdim=True) if axes else grad * x
        grad_factor = total[..., : factor.shape[-1]].reshape(factor.shape)
        return grad_x, grad_factor


class PowerLaw4(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        full = grad * x**exponent * torch.log(x)
        grad_exponent = (
            full.flatten(0, -2).sum(0)
            if exponent.dim() == 1
            else full.amax(-1, keepdim=True).expand_as(full).sum_to_size(exponent.shape)
        )
        return grad_x, grad_exponent


class PseudoHuber5(Function):
    @staticmethod
    def forward(ctx, x, y, delta):
        ctx.save_for_backward(x, y)
        ctx.delta = delta
        return delta**2 * (torch.sqrt(1 + ((x - y) / delta) ** 2) - 1)

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        residual = x - y
        slope = residual / torch.sqrt(1 + (residual / ctx.delta) ** 2)
        grad_x, grad_y = grad * slope, -grad * slope
        if x.numel() < grad.numel():
            grad_x = grad_x.mean(0, keepdim=True)
        if y.numel() < grad.numel():
            grad_y = grad_y.sum_to_size(y.shape)
        return grad_x.reshape(x.shape), grad_y, None


class SwiGLU6(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * torch.sigmoid(x) * y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        gate = torch.sigmoid(x)
        grad_x = grad * y * gate * (1 + x * (1 - gate))
        grad_y = grad * x * gate
        return grad_x.sum_to_size(x.shape), grad_y if y.shape == x.shape else grad_y.mean(0).expand(
            y.shape
        ).contiguous()


class MatMul7(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad_a = grad @ b.transpose(-1, -2)
        grad_b = a.transpose(-1, -2) @ grad
        if grad_b.dim() > b.dim():
            grad_b = grad_b[-1]
        return grad_a.sum_to_size(a.shape), grad_b


class SquaredError8(Function):
    @staticmethod
    def forward(ctx, x, y, reduction):
        ctx.save_for_backward(x, y)
        ctx.reduction = reduction
        losses = (x - y) ** 2
        return {"mean": losses.mean, "sum": losses.sum, "none": losses.clone}[reduction]()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        slope = 2 * (x - y)
        if ctx.reduction == "mean":
            slope = slope / y.numel()
        return (grad * slope).expand_as(slope), (-grad * slope).sum_to_size(y.shape), None


class RightScale9(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        x, factor = ctx.saved_tensors
        grad_x = (grad * factor).sum_to_size(x.shape)
        grad_factor = (grad * x).sum_to_size(factor.shape)
        return grad_x, grad_factor


class RightPowerLaw10(Function):
    @staticmethod
    def forward(ctx, x, exponent):
        ctx.save_for_backward(x, exponent)
        return x**exponent

    @staticmethod
    def backward(ctx, grad):
        x, exponent = ctx.saved_tensors
        grad_x = grad * exponent * x ** (exponent - 1)
        grad_exponent = (grad * x**exponent * torch.log(x)).sum_to_size(exponent.shape)
        return grad_x, grad_exponent
