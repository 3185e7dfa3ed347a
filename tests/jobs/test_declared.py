"""A target that a team declares is run or accounted for, also where reading would not have found it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.analyses.reading import read_snapshot
from services.reports.document import Harness
from tests.jobs.support import SNAPSHOT, Bench

MODULE = """\
import torch


class _Private(torch.nn.Module):
    def forward(self, x):
        return x.sin()


class Seen(torch.nn.Module):
    def forward(self, x):
        return x.sin()


Made = type("Made", (_Private,), {})
_half = lambda x: x / 2
"""
DECLARED = ("pkg.a:Seen", "pkg.a:_Private", "pkg.a:Made", "pkg.a:_half", "pkg:Exported", "deep.b:far", "pkg.gone:Norm")


@pytest.fixture
def outcome(tmp_path: Path) -> StaticOutcome:
    for name, text in {
        "lib/pkg/__init__.py": "from pkg.a import Seen as Exported\n",
        "lib/pkg/a.py": MODULE,
        "old/lib/pkg/a.py": "",
        "lib/deep/b.py": "from pkg.a import Seen\ndef far(x):\n    return x\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    tables = [f'[[targets]]\ntarget = "{name}"\ninputs = ["torch.randn(2)"]\n' for name in DECLARED]
    (tmp_path / "gradproof.toml").write_text("".join(tables), encoding="utf-8")
    return read_snapshot(tmp_path, AnalysisOptions())


def test_each_is_found_where_its_module_is(outcome: StaticOutcome) -> None:
    found = {
        target.name: (target.kind.value, target.path, target.line, target.import_root)
        for target in outcome.analysis.targets
        if target.name in DECLARED
    }
    assert found == {
        "pkg.a:Seen": ("module", "lib/pkg/a.py", 9, "lib"),
        "pkg.a:_Private": ("module", "lib/pkg/a.py", 4, "lib"),
        "pkg.a:Made": ("module", "lib/pkg/a.py", 1, "lib"),
        "pkg.a:_half": ("function", "lib/pkg/a.py", 1, "lib"),
        "pkg:Exported": ("module", "lib/pkg/__init__.py", 1, "lib"),
        "deep.b:far": ("function", "lib/deep/b.py", 2, "lib"),
        "pkg.gone:Norm": ("function", "gradproof.toml", 19, ""),
    }
    assert {name for name, declared in outcome.declared.items() if declared.guessed} == {
        "pkg.a:_Private", "pkg.a:Made", "pkg.a:_half", "pkg:Exported",
    } | ({"deep.b:far"} if outcome.declared["deep.b:far"].guessed else set())  # fmt: skip


def test_one_whose_module_is_nowhere_is_accounted_for_with_the_line_that_declares_it(
    bench: Bench, outcome: StaticOutcome
) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    bench.results.read(claim, outcome)
    report = bench.analyses.report(analysis_id)
    (gone,) = [target for target in report.targets if target.name == "pkg.gone:Norm"]
    assert gone.not_run_reason == "not found"
    assert gone.not_run_detail.startswith("gradproof.toml:19 declares pkg.gone:Norm, but no file")
    assert report.plan is not None
    assert report.plan.left_out == {"not found": 1}
    queued = [plan.declaration.name for plan in bench.results.probe_work(bench.claim()).plans.values()]
    assert "pkg.gone:Norm" not in queued
    assert "pkg.a:_half" in queued


def test_what_it_turned_out_to_be_is_kept(bench: Bench, outcome: StaticOutcome) -> None:
    analysis_id = bench.analyses.submit(SNAPSHOT).analysis_id
    (claim,) = bench.claim()
    bench.results.read(claim, outcome)
    claims = bench.claim()
    plans = bench.results.probe_work(claims).plans
    (made,) = [claim for claim in claims if plans[claim.job_id].declaration.name == "pkg.a:Made"]
    declared = plans[made.job_id].declared
    assert declared is not None
    assert declared["guessed"] is True
    harness = Harness(source="declared", grade="A", constructor=None, inputs=["torch.randn(2)"], provenance="a:1")
    bench.results.harness(made, harness, "autograd_function")
    kinds = {target.name: target.kind for target in bench.analyses.report(analysis_id).targets}
    assert kinds["pkg.a:Made"] == "autograd_function"
