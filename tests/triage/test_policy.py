"""What a project has set goes before what the repository says, in reading and at the gate."""

from __future__ import annotations

from pathlib import Path

from services.analyses.model import AnalysisOptions
from services.analyses.models import AnalysisRow
from services.analyses.reading import read_snapshot
from services.gates import GatePolicy, RuleMode
from services.projects.settings import ProjectSettings, read_project_settings
from services.triage.policy import effective_policy, project_modes
from tests.triage.line import Line

DIVIDES = "import torch\n\n\nclass Norm(torch.nn.Module):\n    def forward(self, x):\n        return x / x.norm()\n"


def test_a_project_without_settings_changes_nothing() -> None:
    policy = GatePolicy(no_new_warning=False, modes={"GP1": RuleMode.MONITOR})
    assert effective_policy(policy, ProjectSettings()) == policy
    assert project_modes(ProjectSettings()) == {}


def test_the_modes_of_a_project_go_before_those_of_the_repository() -> None:
    repository = GatePolicy(modes={"GP101": RuleMode.OFF, "GP102": RuleMode.OFF, "GP2": RuleMode.COMMENT})
    settings = read_project_settings({"modes": {"GP1": "block", "gradcheck": "monitor"}})
    policy = effective_policy(repository, settings)
    assert policy.mode("GP101", "") is RuleMode.BLOCK
    assert policy.mode("GP102", "") is RuleMode.BLOCK
    assert policy.mode("GP201", "") is RuleMode.COMMENT
    assert policy.mode("gradcheck", "wrong-gradient") is RuleMode.MONITOR


def test_a_rule_that_the_team_has_not_taken_note_of_is_only_monitored() -> None:
    settings = read_project_settings({"known_rules": ["GP101"], "modes": {"GP103": "block"}})
    policy = effective_policy(GatePolicy(modes={"GP102": RuleMode.BLOCK}), settings)
    assert policy.mode("GP101", "") is RuleMode.BLOCK
    assert policy.mode("GP102", "") is RuleMode.MONITOR
    assert policy.mode("GP103", "") is RuleMode.BLOCK
    assert policy.mode("gradcheck", "") is RuleMode.BLOCK  # a check is no rule


def test_the_conditions_of_a_project_go_before_those_of_the_repository() -> None:
    repository = GatePolicy(no_failing_check=False, no_new_error=False)
    policy = effective_policy(
        repository, read_project_settings({"gate": {"no_failing_check": True, "complete": False}})
    )
    assert (policy.no_failing_check, policy.no_new_error, policy.complete) == (True, False, False)


def test_a_change_can_not_switch_a_rule_off_that_the_project_asks_for(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(DIVIDES, encoding="utf-8")
    found = {finding.rule for finding in read_snapshot(tmp_path, AnalysisOptions()).analysis.findings}
    assert found
    off = "\n".join(f'{rule} = "off"' for rule in found)
    (tmp_path / "gradproof.toml").write_text(f"[rules]\n{off}\n", encoding="utf-8")
    assert read_snapshot(tmp_path, AnalysisOptions()).analysis.findings == ()
    asked = AnalysisOptions(modes=dict.fromkeys(found, RuleMode.BLOCK))
    assert {finding.rule for finding in read_snapshot(tmp_path, asked).analysis.findings} == found


LENIENT = GatePolicy(no_new_error=False, no_new_warning=False, modes={"GP": RuleMode.OFF})


def test_a_change_is_judged_by_what_its_base_says(line: Line) -> None:
    base = line.analysed()
    proposal = line.submit(base=base)
    (claim,) = line.bench.claim()
    work = line.bench.results.static_work(claim)
    assert set(work.options.modes.values()) == {RuleMode.BLOCK}  # whatever its own file says, nothing is left out
    line.settle((1,), policy=LENIENT, claim=claim)
    report = line.bench.analyses.report(proposal)
    assert [finding.fingerprint for finding in report.findings] == ["fingerprint-1"]
    assert not report.gate.passed
    merged = line.analysed(1, 2, policy=LENIENT)
    assert line.bench.analyses.report(merged).gate.passed
    after = line.submit(base=merged)
    line.settle((3,))
    report = line.bench.analyses.report(after)
    assert (report.findings, report.gate.passed) == ([], True)


def test_a_change_is_judged_by_what_it_says_itself_where_its_base_was_not_read(line: Line) -> None:
    base = line.analysed()
    with line.bench.database.unit_of_work() as uow:
        uow.session.get_one(AnalysisRow, base).configuration = None
    proposal = line.submit(base=base)
    line.settle((1,), policy=GatePolicy(no_new_error=False, no_new_warning=False))
    assert line.bench.analyses.report(proposal).gate.passed
