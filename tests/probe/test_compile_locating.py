"""Faults put into a backend are followed to their operation, submodule and line; another order of sums is none."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.explaining import located
from gradproof_probe.compiling.stages import after_capture
from gradproof_probe.equivalence.observation import ROUNDING
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.importing import import_target
from gradproof_probe.request import Target
from torch.nn import functional

from tests.probe.conftest import FIXTURES

SOURCE = (FIXTURES / "compiled.py").read_text(encoding="utf-8").splitlines()
Replacement = Callable[..., torch.Tensor]


def backend_with(**replacements: Replacement) -> Callable[..., Any]:
    """Interprets graphs, with other functions in the place of the named operations."""

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        changed = copy.deepcopy(graph.graph)
        for node in changed.nodes:
            name = getattr(node.target, "__name__", node.target)
            if node.op.startswith("call") and name in replacements:
                node.op, node.target = "call_function", replacements[name]
        return torch.fx.GraphModule(graph, changed).forward

    return backend


def norm_with_wrong_backward(x: torch.Tensor, *args: Any) -> torch.Tensor:
    shape, weight, bias, _ = args
    other = functional.layer_norm(x, shape, weight, bias, 1e-2)
    return functional.layer_norm(x, shape, weight, bias).detach() + other - other.detach()


def half_softmax(x: torch.Tensor, *_args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.softmax(x.half(), dim=kwargs["dim"]).float()


def tanh_gelu(x: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def reordered_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return bias + (weight @ x.mT).mT


@pytest.fixture
def context() -> CheckContext:
    target = Target("compiled:Block", "module", "compiled.py", 1, "", "compiled", "Block")
    return CheckContext(
        resolved=import_target(FIXTURES, target),
        recipe=Recipe("declared", "A", "Block()", ("torch.randn(2, 3, 8)",), "test"),
        source_root=FIXTURES,
        device="cpu",
        seed=0,
        deadline=time.monotonic() + 60,
    )


@pytest.mark.parametrize(
    ("name", "replacement", "module", "text"),
    [
        ("gelu", tanh_gelu, "active (GELU)", "x = self.active(x)"),
        ("layer_norm", norm_with_wrong_backward, "norm (LayerNorm)", "x = self.norm(x)"),
        ("softmax", half_softmax, None, "torch.softmax("),
    ],
)
def test_the_first_wrong_operation_is_named(
    context: CheckContext, name: str, replacement: Replacement, module: str | None, text: str
) -> None:
    answer = located(context, "train", backend_with(**{name: replacement}), "it differs", limit=ROUNDING)
    assert answer.numbers.get("operation") == name, answer
    assert answer.numbers.get("module") == module
    assert answer.place is not None
    assert text in SOURCE[answer.place.line - 1]


def test_another_order_of_the_same_sums_has_no_first_wrong_operation(context: CheckContext) -> None:
    answer = located(context, "train", backend_with(linear=reordered_linear), "it differs", limit=ROUNDING)
    assert answer.place is None


def test_what_only_comes_after_the_capture_is_no_fault_of_the_code() -> None:
    told = after_capture(Answer("fail", "compile_raises", "it raises"))
    assert (told.verdict, told.cause) == ("inconclusive", "refused_after_capture")
    overlapping = Answer("fail", "overlapping_write", "it writes")
    assert after_capture(overlapping) is overlapping
