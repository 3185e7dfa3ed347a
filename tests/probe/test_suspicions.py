"""Each static finding is settled at its own place: shown with what happened there, held, or not reached."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.suspicions.instrument import watching
from gradproof_probe.suspicions.suspect import read_suspects

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

SOURCE = (FIXTURES / "suspected.py").read_text(encoding="utf-8").splitlines()
_MARK = re.compile(r"# SUSPECT (GP\d+) (\w+)(?: (\w+))?$")
SEQUENCE = ("torch.randn(3, 5, 4)",)
INPUTS: dict[str, tuple[str, ...]] = {
    "MixedState": SEQUENCE,
    "ApartState": SEQUENCE,
    "decided_only": ("torch.randn(3, 4)", "torch.rand(4)"),
}


def suspicions() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """By name of what is run: its kind, the outcome that is right, and the record that the service sends."""
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    name = kind = ""
    for number, line in enumerate(SOURCE, 1):
        if top := re.match(r"(class|def) (\w+)(\(torch\.autograd\.Function\))?", line):
            name = top[2]
            kind = "function" if top[1] == "def" else "autograd_function" if top[3] else "module"
        if mark := _MARK.search(line):
            code = line[: mark.start()].rstrip()
            start = len(code) - len(code.lstrip()) + 1
            found[name] = (
                kind,
                mark[2],
                {
                    "rule": mark[1],
                    "fingerprint": f"print-{name}",
                    "path": "suspected.py",
                    "symbol": f"suspected.{name}.forward",
                    "severity": "warning",
                    "line": number,
                    "end_line": number,
                    "start_column": start,
                    "end_column": len(code) + 1,
                    **({"attribute": mark[3]} if mark[3] else {}),
                },
            )
    return found


SUSPECTED = suspicions()


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    batch = []
    for name, (kind, _, record) in SUSPECTED.items():
        inputs = INPUTS.get(name, ("torch.randn(3, 4)",))
        job = entry(kind, f"suspected:{name}", inputs=inputs, checks=["finding_search"])
        batch.append(job | {"hypotheses": [record]})
    batch.append(
        entry("module", "suspected:Used", inputs=INPUTS["MixedState"], checks=["finding_search"], job="nobody")
    )
    noted = entry("module", "suspected:Branching", inputs=("torch.randn(3, 4)",), checks=["finding_search"], job="note")
    batch.append(noted | {"hypotheses": [SUSPECTED["Branching"][2] | {"severity": "note"}]})
    for job, records in (("cut", [SUSPECTED["decided_only"][2]]), ("unsuspected", [])):
        guessed = entry("function", "suspected:decided_only", checks=["finding_search"], job=job)
        batch.append(guessed | {"hypotheses": records})
    return speak(FIXTURES, batch)


@pytest.mark.parametrize("name", SUSPECTED)
def test_a_finding_comes_out_as_it_is(spoken: Spoken, name: str) -> None:
    result = spoken.result(name, "finding_search")
    (answer,) = result["evidence"]["hypotheses"]
    assert answer["outcome"] == SUSPECTED[name][1], answer
    assert answer["text"]


@pytest.mark.parametrize("name", [name for name, (_, outcome, _) in SUSPECTED.items() if outcome == "confirmed"])
def test_what_is_confirmed_fails_at_its_own_line(spoken: Spoken, name: str) -> None:
    result = spoken.result(name, "finding_search")
    assert result["verdict"] == "fail"
    assert (result["path"], result["line"]) == ("suspected.py", SUSPECTED[name][2]["line"])
    assert result["evidence"]["source"]["text"] == SOURCE[result["line"] - 1].strip()


@pytest.mark.parametrize("name", ["LoggedScale", "harmless_write", "DroppingInTraining", "SameMask", "Used"])
def test_what_was_searched_and_held_passes(spoken: Spoken, name: str) -> None:
    assert spoken.result(name, "finding_search")["verdict"] == "pass"


def test_a_line_that_no_call_comes_to_is_not_decided(spoken: Spoken) -> None:
    result = spoken.result("Skipped", "finding_search")
    assert result["verdict"] == "inconclusive"
    assert result["evidence"]["hypotheses"][0]["text"] == "no call came to this line"


def test_without_a_finding_the_check_is_skipped(spoken: Spoken) -> None:
    assert spoken.result("nobody", "finding_search")["verdict"] == "skipped"


def test_a_note_that_is_so_fails_nothing(spoken: Spoken) -> None:
    result = spoken.result("note", "finding_search")
    assert result["evidence"]["hypotheses"][0]["outcome"] == "confirmed"
    assert result["verdict"] == "pass"


def test_a_function_whose_gradient_is_cut_everywhere_is_run_where_that_is_suspected(spoken: Spoken) -> None:
    assert spoken.result("cut", "finding_search")["evidence"]["hypotheses"][0]["outcome"] == "confirmed"
    (line,) = [line for line in spoken.lines if line.get("job") == "unsuspected" and line["type"] == "harness"]
    assert line["not_run"]["reason"] == "no differentiable output"


def test_the_numbers_behind_a_cut_say_whose_gradient_is_lost(spoken: Spoken) -> None:
    (answer,) = spoken.result("CutScale", "finding_search")["evidence"]["hypotheses"]
    assert answer["numbers"]["without_gradient"] == ["scale"]
    assert answer["numbers"]["output_moved_by"] > 0


@pytest.mark.parametrize("name", ["CutScale", "refused_write", "Carried", "OtherMask", "StayingTable", "Branching"])
def test_a_script_shows_it_with_torch_and_the_repository_alone(spoken: Spoken, name: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(spoken.result(name, "finding_search")["repro"], encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), str(FIXTURES)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr


def test_the_watch_is_gone_afterwards_and_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIXTURES))
    suspected: Any = importlib.import_module("suspected")
    (suspect,) = read_suspects([SUSPECTED["CutScale"][2]])
    before = suspected.CutScale.forward.__code__
    seen: list[tuple[str, Any]] = []
    module = suspected.CutScale()

    def watch(role: str, value: Any) -> Any:
        seen.append((role, value))
        return 5.0 if role == "result" else value

    with watching(FIXTURES, suspect, watch):
        inside = suspected.CutScale.forward.__code__
        assert inside is not before
        assert {line for _, _, line in inside.co_lines() if line} == {line for _, _, line in before.co_lines() if line}
        assert module.forward(2.0) == 10.0
    assert suspected.CutScale.forward.__code__ is before
    assert "__gradproof_watch__" not in vars(suspected)
    assert module.forward(2.0) == pytest.approx(2.4)
    roles = [role for role, _ in seen]
    assert roles[0] == "before"
    assert roles[-1] == "after"
