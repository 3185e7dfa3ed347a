"""Results are found again only where nothing that they rest on has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analyzer.findings import TargetDeclaration, TargetKind
from services.reports.document import CheckInfo, Harness
from services.reuse.keys import Circumstances, Surroundings, content_key, is_lasting, run_key

TARGET = TargetDeclaration(
    name="layers:Norm",
    kind=TargetKind.MODULE,
    path="layers.py",
    line=4,
    end_line=9,
    import_root="",
    module="layers",
    qualname="Norm",
)
CIRCUMSTANCES = Circumstances(Surroundings(probe="p", environment="e"), bounds={"check_s": 60.0})
HARNESS = Harness(source="synthesised", grade="C", constructor="Norm()", inputs=["torch.randn(2)"], provenance="")


def key(**changes: Any) -> str | None:
    run = {"mined": (), "device": "cpu", "checks": ("gradcheck",)}
    run |= {name: changes.pop(name) for name in tuple(changes) if name in run}
    known: dict[str, Any] = {"declared": None, "hypotheses": (), "circumstances": CIRCUMSTANCES}
    content = content_key(changes.pop("target", TARGET), changes.pop("closure", "c"), **{**known, **changes})
    return None if content is None else run_key(content, **run)


@pytest.mark.parametrize(
    "change",
    [
        {"closure": "another source"},
        {"target": replace(TARGET, line=5)},
        {"declared": {"constructor": "Norm(2)"}},
        {"mined": [{"constructor": "Norm(3)", "inputs": []}]},
        {"hypotheses": [{"rule": "GP101"}]},
        {"circumstances": replace(CIRCUMSTANCES, surroundings=Surroundings("q", "e"))},
        {"circumstances": replace(CIRCUMSTANCES, surroundings=Surroundings("p", "f"))},
        {"circumstances": replace(CIRCUMSTANCES, seed=1)},
        {"circumstances": replace(CIRCUMSTANCES, tolerances={"gradcheck_rtol": 0.1})},
        {"circumstances": replace(CIRCUMSTANCES, bounds={"check_s": 1.0})},
        {"device": "cuda"},
        {"checks": ()},
    ],
)
def test_whatever_results_rest_on_is_in_the_key(change: dict[str, Any]) -> None:
    assert key() == key()
    assert key(**change) != key()


def test_a_target_whose_imports_can_not_be_told_is_always_run() -> None:
    assert key(closure=None) is None


def check(verdict: str) -> CheckInfo:
    return CheckInfo.model_validate(
        {"check": "gradcheck", "verdict": verdict, "device": "cpu", "summary": "", "duration_s": 0.1}
    )


@pytest.mark.parametrize("verdict", ["pass", "fail", "inconclusive", "skipped"])
def test_a_verdict_lasts(verdict: str) -> None:
    assert is_lasting(HARNESS, None, [check(verdict)], asked=["gradcheck"])


def test_an_error_and_a_missing_check_do_not_last() -> None:
    assert not is_lasting(HARNESS, None, [check("error")], asked=["gradcheck"])
    assert not is_lasting(HARNESS, None, [], asked=["gradcheck"])


def test_what_was_said_for_want_of_a_device_does_not_last() -> None:
    skipped = check("skipped").model_copy(update={"evidence": {"without_device": "cuda"}})
    assert not is_lasting(HARNESS, None, [skipped], asked=["gradcheck"])


@pytest.mark.parametrize(
    ("reason", "lasts"), [("inputs unsolved", True), ("abstract", True), ("timed out", False), (None, False)]
)
def test_a_reason_lasts_unless_time_or_memory_is_the_reason(reason: str | None, *, lasts: bool) -> None:
    assert is_lasting(None, reason, [], asked=["gradcheck"]) is lasts


@pytest.mark.parametrize(
    ("value", "lasts"),
    [
        ("__import__('types').SimpleNamespace(a=1)", True),
        ('__import__("torch.distributions", fromlist=["_"]).Normal(0, 1)', True),
        ("__import__('pkg.parts', fromlist=['_']).Inner()", False),
        ("__import__('importlib').import_module('pkg.parts').Inner()", False),
    ],
)
def test_a_harness_that_takes_something_from_another_file_does_not_last(value: str, *, lasts: bool) -> None:
    built = HARNESS.model_copy(update={"constructor": f"Norm({value})"})
    called = HARNESS.model_copy(update={"inputs": ["torch.randn(2)", value]})
    for harness in (built, called):
        assert is_lasting(harness, None, [check("pass")], asked=["gradcheck"]) is lasts
