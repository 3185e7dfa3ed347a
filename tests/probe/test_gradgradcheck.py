"""The check of second derivatives, run as the worker runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

KINDS = {
    "SineOfExponential": "autograd_function",
    "SavesAnIntermediate": "autograd_function",
    "Once": "autograd_function",
    "WrongAlready": "autograd_function",
    "MisreadsStrides": "autograd_function",
    "Layer": "module",
    "WrongLayer": "module",
    "PlainLayer": "module",
    "wrapped": "function",
}
WRONG = ("SavesAnIntermediate", "WrongLayer", "wrapped")


def fault_line() -> int:
    lines = (FIXTURES / "twice.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("# FAULT SavesAnIntermediate"))


@pytest.fixture(scope="module")
def twice() -> Spoken:
    return speak(FIXTURES, [entry(kind, f"twice:{name}", checks=["gradgradcheck"]) for name, kind in KINDS.items()])


@pytest.mark.parametrize("name", WRONG)
def test_a_second_derivative_that_is_silently_wrong_fails_where_the_intermediate_is_saved(
    twice: Spoken, name: str
) -> None:
    result = twice.result(name, "gradgradcheck")
    assert result["verdict"] == "fail", result
    assert result["diagnosis"]["cause"] == "wrong_second_order"
    assert (result["path"], result["line"]) == ("twice.py", fault_line())
    assert result["evidence"]["function"] == "SavesAnIntermediate"
    numbers = result["diagnosis"]["numbers"]
    assert abs(numbers["analytic"] - numbers["numeric"]) > 1e3 * numbers["error_estimate"]


@pytest.mark.parametrize("name", ["WrongLayer"])
def test_the_repro_shows_the_second_derivative_without_gradproof(twice: Spoken, name: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(twice.result(name, "gradgradcheck")["repro"], encoding="utf-8")
    assert "gradproof" not in script.read_text(encoding="utf-8")
    shown = subprocess.run(
        [sys.executable, "-I", str(script), str(FIXTURES)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert shown.returncode == 1, shown.stdout + shown.stderr
    assert "expected:" in shown.stdout
    assert "got:" in shown.stdout


@pytest.mark.parametrize("name", ["SineOfExponential", "MisreadsStrides", "Layer"])
def test_what_can_be_differentiated_twice_passes(twice: Spoken, name: str) -> None:
    result = twice.result(name, "gradgradcheck")
    assert result["verdict"] == "pass", result
    assert "the second derivative is right" in result["summary"]
    assert result["repro"] is None


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("Once", "skipped", "once_differentiable"),
        ("PlainLayer", "skipped", "calls no custom autograd.Function"),
        ("WrongAlready", "inconclusive", "the first-order gradient is wrong already"),
    ],
)
def test_where_there_is_no_second_derivative_to_check_it_says_why(
    twice: Spoken, name: str, verdict: str, said: str
) -> None:
    result = twice.result(name, "gradgradcheck")
    assert result["verdict"] == verdict, result
    assert said in result["summary"]
