"""A fix of a confirmed suspicion is run, in the place of the source and without writing anything."""

from __future__ import annotations

from typing import Any

import pytest
from gradproof_probe.fixed_source import UnusableFixError, fixed, read_edits

from tests.probe.conftest import entry, speak

SOURCE = '''import torch


def ratio(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Both (n, d)."""
    return x / y.norm(dim=-1, keepdim=True)
'''
FIXES = {
    "mends": "(y.square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()",
    "mends nothing": "y.square().sum(dim=-1, keepdim=True).sqrt()",
    "changes values": "(y.norm(dim=-1, keepdim=True) + 0.5)",
    "breaks the module": "y.norm(",
}


def edit(replacement: str, **changes: Any) -> dict[str, Any]:
    place = {"path": "ratio.py", "start_line": 6, "start_column": 16, "end_line": 6, "end_column": 44}
    return {**place, "replacement": replacement, **changes}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    source = tmp_path_factory.mktemp("fixes")
    (source / "ratio.py").write_text(SOURCE, encoding="utf-8")
    batch = []
    for name, replacement in FIXES.items():
        item = entry("function", "ratio:ratio", inputs=["torch.randn(3, 4)"] * 2, checks=("nan_gradient",), job=name)
        suspicion = {"rule": "GP101", "fingerprint": name, "path": "ratio.py", "line": 6, "singular_set": "= 0"}
        batch.append({**item, "hypotheses": [{**suspicion, "fix": [edit(replacement)]}]})
    spoken = speak(source, batch)
    assert (source / "ratio.py").read_text(encoding="utf-8") == SOURCE
    return {name: spoken.result(name, "nan_gradient")["evidence"]["hypotheses"][0] for name in FIXES}


def test_only_a_fix_that_mends_and_changes_nothing_else_is_verified(outcomes: dict[str, dict[str, Any]]) -> None:
    assert {name: outcome["outcome"] for name, outcome in outcomes.items()} == dict.fromkeys(FIXES, "confirmed")
    assert {name: outcome["fix"]["verified"] for name, outcome in outcomes.items()} == {
        "mends": True,
        "mends nothing": False,
        "changes values": False,
        "breaks the module": False,
    }


def test_each_that_is_not_says_why(outcomes: dict[str, dict[str, Any]]) -> None:
    assert "not finite" in outcomes["mends nothing"]["fix"]["reason"]
    assert "another at ordinary inputs" in outcomes["changes values"]["fix"]["reason"]
    assert "SyntaxError" in outcomes["breaks the module"]["fix"]["reason"]


def test_several_edits_are_made_at_once_whatever_their_order() -> None:
    text = "a = 1\nb = 2\nc = ä3\n"
    edits = [edit("30", start_line=3, start_column=6, end_line=3, end_column=7),
             edit("x", start_line=1, start_column=1, end_line=2, end_column=1)]  # fmt: skip
    assert fixed(text, read_edits(edits)["ratio.py"]) == "xb = 2\nc = ä30\n"


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [{"path": "ratio.py"}],
        [edit("x", start_line=9)],
        [edit("x", start_column=0)],
        [edit("x", end_line=3, end_column=1)],
        [edit("x"), edit("y")],
    ],
)
def test_edits_that_do_not_fit_are_refused(edits: list[dict[str, Any]]) -> None:
    with pytest.raises(UnusableFixError):
        fixed(SOURCE, read_edits(edits)["ratio.py"])
