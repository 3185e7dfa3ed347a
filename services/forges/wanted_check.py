"""How the check of a head should read, as the analysis stands: waiting, running, ended, or not begun and why. Pure."""

from __future__ import annotations

from typing import Final

from services.forges.check_output import actions, check_output, conclusion
from services.forges.markdown import plain
from services.forges.publication import AnalysisStand, Publication
from services.forges.publishing_check import WantedCheck
from services.forges.values import CheckAction, CheckStatus, Conclusion

_BUTTON: Final = CheckAction("rerun", "Re-run", "Analyse this commit once more")


def wanted_check(publication: Publication) -> WantedCheck | None:
    """The check of the present head; None if there is to be none."""
    analysis = publication.analysis
    if analysis is None:
        return _paused(publication)
    if not analysis.has_ended:
        status: CheckStatus = "queued" if analysis.started_at is None else "in_progress"
        return WantedCheck(
            _external_id(publication, analysis.id),
            status,
            details_url=publication.page_url,
            started_at=analysis.started_at,
        )
    if publication.review is None:
        return _without_results(publication, analysis)
    review = publication.review
    features = publication.client.features
    output = check_output(review, annotate=features.annotations and publication.bot.annotations)
    return WantedCheck(
        _external_id(publication, analysis.id),
        "completed",
        conclusion(review),
        title=output.title,
        summary=output.summary,
        text=output.text,
        annotations=output.annotations,
        actions=actions(review) if features.actions else (),
        details_url=publication.page_url,
        started_at=analysis.started_at,
        completed_at=analysis.finished_at,
    )


def _paused(publication: Publication) -> WantedCheck | None:
    """A head that is not looked at says so: else a check that a branch needs would be waited for without an end."""
    if publication.known.paused is None:
        return None
    return WantedCheck(
        _external_id(publication, "paused"),
        "completed",
        "skipped",
        title="Paused",
        summary=f"This commit was not analysed: {plain(publication.known.paused)}.",
        actions=(_BUTTON,) if publication.client.features.actions else (),
        details_url=publication.why_silent_url,
    )


def _without_results(publication: Publication, analysis: AnalysisStand) -> WantedCheck:
    """A failure of ours, or of the fetch, keeps nobody from merging."""
    concluded: Conclusion = "cancelled" if analysis.status == "cancelled" else "neutral"
    done = "was cancelled" if analysis.status == "cancelled" else "could not be finished"
    reason = plain(analysis.reason or "no reason is known", 1_000)
    return WantedCheck(
        _external_id(publication, analysis.id),
        "completed",
        concluded,
        title=f"The analysis {done}",
        summary=f"{reason}.",
        actions=(_BUTTON,) if publication.client.features.actions else (),
        details_url=publication.page_url,
        started_at=analysis.started_at,
        completed_at=analysis.finished_at,
    )


def _external_id(publication: Publication, run: str) -> str:
    """Our own name of a check: of one pull request, one head, one run of it."""
    return f"{publication.pull_request_id}:{publication.known.head_sha}:{run}"
