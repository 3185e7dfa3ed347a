"""Rules in a project: how each has done by the team's own decisions, what it may do, and which ones are new."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Response

from analyzer.registry import all_rules
from api.pages.team.desk import Acting, Desk, Looking
from api.pages.team.project_settings import Fields, configurable
from api.pages.team.settings_forms import mode_of, with_known_rules, with_modes
from services.accounts.access import Permission
from services.checks.documentation import all_checks
from services.gates.policy import RuleMode
from services.problems import GradproofError
from services.projects.service import ProjectView
from services.triage.model import RulePrecision

router = APIRouter()

_NONE: Final = (0, 0, 0, 0, 0, 0, 0, 0)
_MODES: Final = (
    ("", "default"),
    (RuleMode.OFF.value, "off"),
    (RuleMode.MONITOR.value, "monitor"),
    (RuleMode.COMMENT.value, "comment"),
    (RuleMode.BLOCK.value, "block"),
)


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule, what it may do here, and what became of its findings."""

    id: str
    name: str
    mode: str
    is_new: bool
    done: RulePrecision


@router.get("/projects/{project_id}/rules")
def rules_page(desk: Looking, project_id: str) -> Response:
    """All rules, with precision and mode."""
    return _rules(desk, desk.context.projects.get(desk.subject, project_id))


@router.post("/projects/{project_id}/rules")
def change_modes(desk: Acting, project_id: str, fields: Fields) -> Response:
    """Give rules other modes."""
    project = configurable(desk, project_id)
    try:
        desk.context.projects.update(desk.subject, project.id, settings=with_modes(project.settings, fields))
    except GradproofError as error:
        return _rules(desk, project, error)
    return desk.done(f"/projects/{project.id}/rules", "Saved. The modes hold from the next analysis on.")


@router.post("/projects/{project_id}/rules/adopt")
def adopt(desk: Acting, project_id: str) -> Response:
    """Take note of all rules that there are."""
    project = configurable(desk, project_id)
    known = with_known_rules(project.settings, tuple(rule.id for rule in all_rules()))
    desk.context.projects.update(desk.subject, project.id, settings=known)
    return desk.done(f"/projects/{project.id}/rules", "Adopted. They may do what their modes say from now on.")


def _rules(desk: Desk, project: ProjectView, problem: GradproofError | None = None) -> Response:
    lines = _lines(desk, project)
    shown = {key for line in lines for key in (line.id, line.name)}
    return desk.page(
        "rules.html",
        section="projects",
        project=project,
        problem=problem,
        may_configure=Permission.CONFIGURE in project.permissions,
        active=[line for line in lines if line.done.total or line.mode],
        quiet=[line for line in lines if not line.done.total and not line.mode],
        new_rules=[line for line in lines if line.is_new],
        modes=_MODES,
        other_modes=[(key, mode.value) for key, mode in sorted(project.settings.modes.items()) if key not in shown],
        checks=all_checks(),
    )


def _lines(desk: Desk, project: ProjectView) -> list[RuleLine]:
    """All rules that there are, and those of earlier versions that have found something here."""
    known = project.settings.known_rules
    found = {item.rule: item for item in desk.context.inbox.precision(desk.subject, project.id)}
    names = {item.rule: item.name for item in found.values()} | {rule.id: rule.name for rule in all_rules()}
    present = {rule.id for rule in all_rules()}
    return [
        RuleLine(
            id=rule,
            name=name,
            mode=mode_of(project.settings, rule, name) or "",
            is_new=known is not None and rule in present and rule not in known,
            done=found.get(rule) or RulePrecision(rule, name, *_NONE),
        )
        for rule, name in sorted(names.items())
    ]
