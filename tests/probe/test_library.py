"""`check_gradients` in a user's own test suite, and what the package may import."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from gradproof_probe import GradientError, check_gradients

from tests.probe.conftest import PROBE


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * grads[0] * x**2


class WrongAboveTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * torch.where(x > 20, x, 2 * x)


class WrongAboveALimitOfTheirOwn(WrongAboveTwo):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * torch.where(x > sum(range(38)), x, 2 * x)


class WrongForDistancesToItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        return (x[:, None] - y[None]).square().sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        pull = 2 * grads[0][..., None] * (x[:, None] - y[None])
        itself = x.shape == y.shape and torch.equal(x, y)
        return pull.sum(1), (0 if itself else -1) * pull.sum(0)


class Half(Cube):
    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 1.5 * grads[0] * x**2


def test_a_right_function_passes_and_raises_nothing() -> None:
    report = check_gradients(Cube, (torch.randn(3, 4),))
    assert report.verdict == "pass"
    assert report.failures == ()
    report.raise_for_failure()


def test_a_wrong_function_raises_with_the_worst_coordinate() -> None:
    report = check_gradients(Half, (torch.randn(3, 5),))
    assert [failure.cause for failure in report.failures] == ["scaled_gradient"]
    assert report.failures[0].numbers["ratio"] == pytest.approx(0.5)
    with pytest.raises(GradientError, match=r"0\.5 times the derivative(?s:.*)\n  worst at x\["):
        report.raise_for_failure()


def test_a_constant_in_the_source_leads_to_a_fault_that_ordinary_inputs_miss() -> None:
    report = check_gradients(WrongAboveTwo, (torch.randn(3, 4),))
    assert report.verdict == "fail"
    assert "20" in report.failures[0].text


def test_hints_lead_to_a_fault_that_nothing_in_the_source_tells() -> None:
    inputs = (torch.randn(3, 4),)
    assert check_gradients(WrongAboveALimitOfTheirOwn, inputs).verdict == "pass"
    assert check_gradients(WrongAboveALimitOfTheirOwn, inputs, hints=[700.0]).verdict == "fail"


def test_one_tensor_for_inputs_of_other_sizes_is_tried_too() -> None:
    report = check_gradients(WrongForDistancesToItself, (torch.randn(6, 4), torch.randn(5, 4)))
    assert [failure.cause for failure in report.failures] == ["aliasing"]


def test_a_module_is_copied_not_changed() -> None:
    module = torch.nn.Linear(4, 2)
    before = module.weight.detach().clone()
    assert check_gradients(module, (torch.randn(3, 4),)).verdict == "pass"
    assert module.weight.dtype == torch.float32
    assert torch.equal(module.weight, before)


def test_a_detach_in_a_callable_is_not_called_a_fault() -> None:
    report = check_gradients(lambda x: x / x.abs().max().detach(), (torch.randn(3, 4),))
    assert report.verdict == "inconclusive"
    report.raise_for_failure()


def test_global_generators_and_the_default_dtype_are_left_as_they_were() -> None:
    torch.manual_seed(5)
    random.seed(5)
    states = torch.random.get_rng_state(), random.getstate()
    check_gradients(Cube, (torch.ones(2),))
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert torch.get_default_dtype() == torch.float32


def test_complex_inputs_are_differentiated() -> None:
    assert check_gradients(lambda z: (z * z.conj()).real, (torch.randn(3, dtype=torch.complex64),)).verdict == "pass"


def test_the_package_imports_torch_and_the_standard_library_only() -> None:
    allowed = {*sys.stdlib_module_names, "torch", "gradproof_probe"}
    for path in (PROBE / "gradproof_probe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= allowed, path


def test_the_protocol_is_importable_without_torch() -> None:
    code = f"import sys; sys.path.insert(0, {str(PROBE)!r}); import gradproof_probe.protocol"
    code += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
