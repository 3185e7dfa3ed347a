"""Recordings at other inputs than they were made from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.export_equivalence import ExportEquivalence

from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

TRACED = FIXTURES / "recorded" / "traced.py"
EAGER = FIXTURES / "unrecorded" / "eager.py"


def load(path: Path) -> Any:
    """A fixture as a module that can be found by its name."""
    name = f"fixture_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def checked(name: str, inputs: str, path: Path = TRACED) -> CheckResult:
    return run_check(ExportEquivalence(), getattr(load(path), name), (inputs,))


def line_of(name: str, path: Path = TRACED) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# LINE {name}"))


@pytest.mark.parametrize("name", ["Branching", "Looping", "Numbered"])
def test_what_python_decided_for_the_example_fails_at_its_line(name: str) -> None:
    result = checked(name, "torch.randn(3, 4, 4)" if name == "Looping" else "torch.randn(3, 4)")
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause, result.line) == ("fail", "baked_in", line_of(name)), result
    if name != "Looping":  # the tracer is silent about a loop as long as a size
        assert f"traced.py:{line_of(name)}" in [item["line"] for item in result.evidence["baked_in"]]
    assert result.evidence["recorded_at"]


@pytest.mark.parametrize("name", ["Selecting", "Scaled", "Sized", "Checked"])
def test_what_a_trace_can_follow_passes(name: str) -> None:
    result = checked(name, "torch.randn(3, 4)")
    assert result.verdict == "pass", result
    assert "values with the other sign" in result.evidence["compared_at"]


def test_a_check_of_arguments_is_listed_and_no_fault() -> None:
    result = checked("Checked", "torch.randn(3, 4)")
    assert result.verdict == "pass", result
    assert len(result.evidence["baked_in"]) == 1


def test_sizes_are_meant_to_be_fixed_for_onnx_without_dynamic_axes() -> None:
    result = checked("FixedLooping", "torch.randn(3, 4, 4)")
    assert result.verdict == "pass", result
    assert result.evidence["recorded_at"]
    assert "twice the length" not in result.evidence["compared_at"]


def test_code_that_nobody_records_may_branch() -> None:
    result = checked("Eager", "torch.randn(3, 4)", EAGER)
    assert result.verdict == "skipped", result
    assert result.evidence["recorded_at"] == []
    assert [item["line"] for item in result.evidence["baked_in"]] == [f"eager.py:{line_of('Eager', EAGER)}"]
    assert result.evidence["differs"]["inputs"]


def test_noise_is_no_difference() -> None:
    # The same seed gives eager and the recording the same numbers.
    assert checked("Noisy", "torch.randn(3, 4)").verdict in ("pass", "inconclusive")
