"""Uploads findings to code scanning, once for each head, where a project wants that."""

from __future__ import annotations

from services.forges.models import PullRequestRow
from services.forges.publication import SARIF, Publication
from services.forges.values import SarifUpload
from services.reports.formats import Rendering, report_format


def upload_sarif(publication: Publication) -> None:
    """Upload the report of the head. Raises `StaleHeadError`, `ForgeError`, `LeaseLostError`.

    Done twice it does no harm: a forge overwrites what has the same tool, category and commit.
    """
    known, review, analysis = publication.known, publication.review, publication.analysis
    if review is None or analysis is None or not publication.bot.sarif or known.sarif_sha == known.head_sha:
        publication.told(SARIF)
        return
    if not publication.client.features.sarif:
        publication.silent(SARIF, "this forge takes no SARIF; its report formats have Code Quality")
        return
    text = report_format("sarif").render(review.report, Rendering(sources=review.sources))
    publication.require_present_head()
    publication.client.upload_sarif(
        publication.place.full_name,
        SarifUpload(
            commit_sha=known.head_sha,
            ref=f"refs/pull/{publication.place.number}/head",
            sarif=text.encode(),
            started_at=analysis.started_at,
        ),
    )

    def change(row: PullRequestRow) -> None:
        row.sarif_sha = known.head_sha

    publication.remember(change)
    publication.told(SARIF)
