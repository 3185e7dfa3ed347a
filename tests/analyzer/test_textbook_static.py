"""Textbook snippets, read only: what a tutorial or a generated answer may contain."""

import torch

from analyzer.engine import analyze_source
from analyzer.findings import Severity

CUSTOM_GRAD = """\
import torch


@torch.custom_grad
def swish(x):
    return x * torch.sigmoid(x)


def swish_backward(grad, x):
    s = torch.sigmoid(x)
    return grad * (s + x * s * (1 - s))
"""

QUADRATIC = """\
import torch
from torch.autograd import Function


class Quadratic(Function):
    @staticmethod
    def forward(ctx, x, a, b):
        ctx.save_for_backward(x, a, b)
        return a * x ** 2 + b * x

    @staticmethod
    def backward(ctx, grad_output):
        x, a, b = ctx.saved_tensors
        return grad_output * (2 * a * x + b), (grad_output * x ** 2).sum(), (grad_output * x).sum()
"""


def test_torch_custom_grad_is_flagged_as_nonexistent() -> None:
    assert not hasattr(torch, "custom_grad")
    (finding,) = analyze_source(CUSTOM_GRAD, "layers.py").findings
    assert (finding.rule, finding.name) == ("GP901", "nonexistent-torch-name")
    assert finding.severity is Severity.ERROR
    assert finding.region.start_line == 4
    assert "torch.custom_grad does not exist in torch 2.13" in finding.message
    assert finding.settled_by == ()


def test_the_quadratic_function_is_left_alone() -> None:
    assert analyze_source(QUADRATIC, "layers.py").findings == ()
