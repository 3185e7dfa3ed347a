"""Lines of a backward that were not executed are told, and whoever is tracing already is left alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe.gradients.coverage import LineCoverage


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.long = x.numel() > 10
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        """Text.

        More text.
        """

        def doubled(value: torch.Tensor) -> torch.Tensor:
            return value * 2

        if g.dim() > 9:
            raise ValueError(
                "too many",
            )
        if ctx.long:
            g = g + 0  # LONG
            g = (  # SUM
                g - 0
            )
        if g.dim() == 2:
            return doubled(g)
        return g * 2


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(mark))


def pull(*shape: int) -> None:
    Branching.apply(torch.ones(shape, requires_grad=True)).sum().backward()


@pytest.fixture(autouse=True)
def untraced() -> Any:
    before = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(before)


def test_lines_that_never_ran_are_missing_and_refusals_are_not() -> None:
    coverage = LineCoverage([Branching.backward])
    with coverage.watching():
        pull(3)
    assert coverage.missing() == (
        line_of("return value * 2"),
        line_of("# LONG"),
        line_of("# SUM"),
        line_of("return doubled(g)"),
    )


def test_what_was_seen_stays_seen_and_watching_ends_when_nothing_is_missing() -> None:
    coverage = LineCoverage([Branching.backward])
    with coverage.watching():
        pull(3)
    with coverage.watching():
        pull(4, 5)
        assert coverage.missing() == ()
        assert sys.gettrace() is None
    assert coverage.missing() == ()
    with coverage.watching():
        assert sys.gettrace() is None


def test_tracing_ends_with_the_block_even_after_an_error() -> None:
    coverage = LineCoverage([Branching.backward])
    with pytest.raises(KeyError), coverage.watching():
        raise KeyError
    assert sys.gettrace() is None
    assert len(coverage.missing()) > 4


@pytest.mark.skipif(hasattr(sys, "monitoring"), reason="from Python 3.12 on, lines are watched without tracing")
def test_a_tracer_that_is_there_already_is_left_alone() -> None:
    def tracer(*_: Any) -> None:
        return None

    coverage = LineCoverage([Branching.backward])
    sys.settrace(tracer)
    with coverage.watching():
        pull(3)
        assert sys.gettrace() is tracer
    found = sys.gettrace()
    sys.settrace(None)
    assert found is tracer
    assert coverage.missing() == ()
    assert coverage.reason == "another tool is tracing"


def test_code_without_source_is_watched_by_its_bytecode() -> None:
    scope: dict[str, Any] = {}
    text = "def f(x):\n    if x > 3:\n        raise ValueError\n    if x > 2:\n        x = x + 1\n    return x\n"
    exec(compile(text, "<no such file>", "exec"), scope)
    coverage = LineCoverage([scope["f"]])
    with coverage.watching():
        scope["f"](1)
    assert coverage.missing() == (5,)


def test_what_is_no_python_code_is_not_watched() -> None:
    coverage = LineCoverage([len])
    with coverage.watching():
        assert sys.gettrace() is None
    assert coverage.missing() == ()
    assert coverage.reason == "there is no Python code to watch"
