"""What a target's process says is rebuilt before the supervisor passes it on: no line of it can stop the probe."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gradproof_probe.lines import clean_harness, clean_result
from gradproof_probe.processes import LINE_LIMIT

RESULT = {"check": "gradcheck", "verdict": "pass", "device": "cpu", "summary": "", "duration_s": 0.1}
HARNESS = {"source": "declared", "grade": "A", "constructor": None, "inputs": [], "provenance": "", "reason": None}
WIDE = "\U0001f600" * 100_000  # twelve bytes of JSON a character


@pytest.mark.parametrize(
    "harness",
    [
        {**HARNESS, "inputs": [WIDE] * 64},
        {**HARNESS, "source": ["declared"]},
        {**HARNESS, "grade": {"A": 1}},
    ],
)
def test_a_harness_that_is_none_is_dropped(harness: dict[str, Any]) -> None:
    assert clean_harness({"type": "harness", "harness": harness}) is None


@pytest.mark.parametrize("reason", [["crashed"], {"crashed": 1}, None, 1, "no such reason"])
def test_a_reason_that_is_none_is_dropped(reason: object) -> None:
    assert clean_harness({"type": "harness", "not_run": {"reason": reason}}) is None


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(("summary", "device", "path", "repro"), WIDE),
        {"diagnosis": {"cause": WIDE, "text": WIDE, "numbers": {WIDE: WIDE}}, "evidence": {"a": [WIDE] * 500}},
        {"line": 10**4000, "duration_s": 10**4000, "evidence": {"a": 10**4000, "b": [[[[[[[[[[[1]]]]]]]]]]]}},
        {"diagnosis": [], "evidence": [], "path": [], "repro": {}, "summary": 1, "device": None, "line": True},
    ],
)
def test_whatever_a_result_holds_it_fits_into_a_line(changes: dict[str, Any]) -> None:
    result = clean_result({**RESULT, **changes}, ["gradcheck"])
    assert result is not None
    assert len(json.dumps(result, allow_nan=False)) < LINE_LIMIT


@pytest.mark.parametrize(
    "changes", [{"check": ["gradcheck"]}, {"check": "other"}, {"verdict": {}}, {"verdict": "good"}]
)
def test_a_result_that_was_not_asked_for_is_dropped(changes: dict[str, Any]) -> None:
    assert clean_result({**RESULT, **changes}, ["gradcheck"]) is None
