"""The unseen kinds know their answers: wrong Functions are wrong where they say so, right ones are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch.autograd import Function

from benchmarks.unseen import functions
from benchmarks.unseen.__main__ import main, report
from benchmarks.unseen.cases import Case, Cases
from benchmarks.unseen.children import in_child
from benchmarks.unseen.sets import SETS, cases_of

# What docs/benchmark-unseen.md counts: kinds, wrong and right Functions. A set never changes once it has been measured.
COUNTED = {"a": (20, 163, 69), "b": (20, 156, 55)}
WRONG = [case for label in SETS for case in cases_of(label).all_wrong]
RIGHT = {case.function: case for label in SETS for case in cases_of(label).all_right}


def named(case: Case) -> str:
    return f"{case.kind}.{case.name}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What torch loads at a first backward is loaded before the children fork, not in each of them."""
    for case in RIGHT.values():
        if case.function in {functions.RowProduct, functions.Tanh}:
            case.error(case.inputs())


@pytest.mark.parametrize("label", SETS)
def test_a_set_has_the_cases_that_were_measured(label: str) -> None:
    chosen = cases_of(label)
    kinds = Counter(case.kind for case in chosen.all_wrong)
    assert (len(kinds), len(chosen.all_wrong), len(chosen.all_right)) == COUNTED[label]
    assert min(kinds.values()) >= 6


@pytest.mark.parametrize("label", SETS)
def test_every_function_of_a_kind_is_in_the_table(label: str) -> None:
    cases = [*SETS[label].all_wrong, *SETS[label].all_right]
    modules = {case.function.__module__ for case in cases}
    listed = {case.function for case in cases}
    assert {written for written in Function.__subclasses__() if written.__module__ in modules} == listed


@pytest.mark.parametrize("case", WRONG[::8], ids=named)
def test_a_wrong_function_is_right_at_ordinary_inputs_and_wrong_in_its_situation(case: Case) -> None:
    error, shown = in_child(lambda: [case.error(case.inputs()), case.shows_fault()])
    assert error < 1e-9
    assert shown is True


@pytest.mark.parametrize("case", RIGHT.values(), ids=named)
def test_right_functions_agree_with_plain_torch_code(case: Case) -> None:
    inputs = case.inputs()
    tolerance = 1e-6 if inputs[0].dtype == torch.float32 else 1e-9
    assert case.error(inputs) < tolerance


def test_a_right_function_shows_no_fault_in_the_situation_of_a_wrong_one() -> None:
    cases = Cases()
    wrong = next(case for case in WRONG if named(case) == "size_one.BatchNorm1")
    cases.right(functions.BatchNorm, trigger=wrong.trigger)
    assert wrong.shows_fault()
    assert not cases.all_right[0].shows_fault()


def test_a_child_that_raises_or_takes_too_long_gives_no_verdict() -> None:
    def waits() -> None:
        while True:
            pass

    assert in_child(lambda: 1 / 0) == {"raised": "ZeroDivisionError: division by zero"}
    assert in_child(waits, limit_s=0.2) is None


def test_the_report_counts_what_was_found_and_who_was_accused(capsys: pytest.CaptureFixture[str]) -> None:
    def row(name: str, verdict: str, *, right: bool = False) -> dict[str, object]:
        answer = {"verdict": verdict, "reason": "why", "failures": [], "seconds": 0.1}
        return {"kind": "rank", "name": name, "right": right, "indirect": False, "gradproof": answer}

    report([row("A1", "fail"), row("A2", "pass"), row("RightA3", "fail", right=True)], ["gradproof"], verbose=True)
    said = capsys.readouterr().out
    assert "1 of 2 (50.0 %)" in said
    assert "1 of 1 (100.0 %)" in said
    assert "MISSED      rank.A2" in said
    assert "FALSE ALARM rank.RightA3" in said


def test_an_unknown_kind_is_refused_with_the_names_of_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["a", "--only", "parity"])
    assert "tail_block" in capsys.readouterr().err
