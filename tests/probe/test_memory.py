"""Memory that grows with each call: what holds it fails at its line, caches and what callers empty stay silent."""

from __future__ import annotations

from typing import Any

import pytest
from gradproof_probe.checks.memory import Memory

from tests.fixtures.probe import keeping
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(6, 4)",)


def keeping_line(name: str) -> int:
    lines = (FIXTURES / "keeping.py").read_text(encoding="utf-8").splitlines()
    start = next(number for number, text in enumerate(lines) if text.startswith(f"class {name}("))
    return next(number + 1 for number in range(start, len(lines)) if lines[number].endswith("# keeps"))


@pytest.mark.parametrize(
    ("value", "holder", "label"),
    [
        (keeping.RunningMean, "RunningMean", "self.center"),
        (keeping.LossList, "LossList", "self.losses"),
        (keeping.CarriedState, "CarriedState", "self.state"),
        (keeping.Globally, "Globally", "HISTORY"),
    ],
)
def test_a_name_that_keeps_the_graphs_of_earlier_calls_fails_where_it_is_set(
    value: Any, holder: str, label: str
) -> None:
    keeping.HISTORY.clear()
    result = run_check(Memory(), value, X)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", "graph_kept_by_history"), result
    assert (result.path, result.line) == ("keeping.py", keeping_line(holder))
    assert result.diagnosis.numbers["name"] == label
    assert result.diagnosis.numbers["nodes"] >= 1


def test_an_output_on_ctx_fails_where_it_is_set() -> None:
    result = run_check(Memory(), keeping.Gate, X)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", "reference_cycle"), result
    assert result.line == keeping_line("OwnOutput")
    assert result.diagnosis.numbers["attribute"] == "out"
    assert result.diagnosis.numbers["tensors"] >= 1


@pytest.mark.parametrize(
    "value",
    [
        keeping.DetachedMean,
        keeping.ValueLog,
        keeping.LastOutput,
        keeping.Ring,
        keeping.ShapeCache,
        keeping.Policy,
        keeping.Spiking,
        keeping.Recursive,
    ],
)
def test_caches_logs_and_what_the_caller_empties_pass(value: Any) -> None:
    result = run_check(Memory(), value, X)
    assert result.verdict == "pass", result


def test_a_function_passes_and_says_what_it_saves() -> None:
    result = run_check(Memory(), keeping.plain, ("torch.randn(6, 4)", "torch.randn(4, 5)"))
    assert result.verdict == "pass", result
    saved = result.evidence["saved"]
    (tanh,) = [item for item in saved["by_operation"] if item["operation"] == "tanh"]
    assert tanh["bytes"] == 6 * 5 * 4
    assert tanh["place"].startswith("keeping.py:")
