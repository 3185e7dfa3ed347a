"""Turns what use cases answer into the bodies of the API. Decides nothing."""

from __future__ import annotations

from analyzer.rules.base import Rule
from api.schemas import AnalysisOut, Links, OptionsOut, RuleOut, StageOut
from services.analyses.model import AnalysisView
from services.documentation import rule_page

API = "/api/v1"


def links_of(analysis_id: str, *, base: str | None = None) -> Links:
    """Where to go on from an analysis."""
    here = f"{API}/analyses/{analysis_id}"
    return Links(
        self=here,
        events=f"{here}/events",
        report=f"{here}/report",
        page=f"/analyses/{analysis_id}",
        base=f"{API}/analyses/{base}" if base else None,
    )


def analysis_out(view: AnalysisView) -> AnalysisOut:
    """An analysis as the API shows it."""
    return AnalysisOut(
        id=view.id,
        status=view.status,
        reason=view.reason,
        project=view.project,
        base=view.base_id,
        snapshot=view.snapshot_digest,
        source=view.source,
        options=OptionsOut(
            static_only=view.options.static_only,
            checks=list(view.options.checks),
            rules=list(view.options.rules),
            ignore=list(view.options.ignore),
        ),
        created_at=view.created_at,
        started_at=view.started_at,
        static_finished_at=view.static_finished_at,
        finished_at=view.finished_at,
        progress=[StageOut(name=stage.name, done=stage.done, total=stage.total) for stage in view.progress],
        gate=view.gate,
        links=links_of(view.id, base=view.base_id),
    )


def rule_out(rule: Rule) -> RuleOut:
    """A rule as the API shows it."""
    documentation = rule.documentation
    return RuleOut(
        id=rule.id,
        name=rule.name,
        severity=rule.severity,
        confidence=rule.confidence,
        settled_by=list(rule.settled_by),
        torch_versions=rule.torch_versions,
        what_it_does=documentation.what_it_does,
        why_is_this_bad=documentation.why_is_this_bad,
        faulty_example=documentation.faulty_example,
        right_example=documentation.right_example,
        fix_safety=documentation.fix_safety,
        page=rule_page(rule),
    )
