"""Values of ours as GitHub takes them."""

from __future__ import annotations

from datetime import UTC, datetime

from services.forges.values import Annotation, CheckReport, ReviewComment


def check(report: CheckReport) -> dict[str, object]:
    """A check, without what never changes: the commit that it is of."""
    written: dict[str, object] = {
        "name": report.name,
        "external_id": report.external_id,
        "status": report.status,
        "conclusion": report.conclusion,
        "details_url": report.details_url,
        "started_at": timestamp(report.started_at) if report.started_at is not None else None,
        "completed_at": timestamp(report.completed_at) if report.completed_at is not None else None,
    }
    if report.output is not None:
        output: dict[str, object] = {"title": report.output.title, "summary": report.output.summary}
        if report.output.text:
            output["text"] = report.output.text
        if report.output.annotations:
            output["annotations"] = [_annotation(annotation) for annotation in report.output.annotations]
        written["output"] = output
    if report.actions:
        written["actions"] = [
            {"identifier": action.identifier, "label": action.label, "description": action.description}
            for action in report.actions
        ]
    return {key: value for key, value in written.items() if value is not None}


def _annotation(annotation: Annotation) -> dict[str, object]:
    written: dict[str, object] = {
        "path": annotation.path,
        "start_line": annotation.start_line,
        "end_line": annotation.end_line,
        "annotation_level": annotation.level,
        "title": annotation.title,
        "message": annotation.message,
    }
    if annotation.raw_details:
        written["raw_details"] = annotation.raw_details
    if annotation.start_column is not None and annotation.start_line == annotation.end_line:
        written["start_column"] = annotation.start_column
        written["end_column"] = annotation.end_column or annotation.start_column
    return written


def review_comment(comment: ReviewComment) -> dict[str, object]:
    """A comment at lines of the new side."""
    written: dict[str, object] = {"path": comment.path, "line": comment.line, "side": "RIGHT", "body": comment.body}
    if comment.start_line is not None and comment.start_line < comment.line:
        written |= {"start_line": comment.start_line, "start_side": "RIGHT"}
    return written


def timestamp(moment: datetime) -> str:
    """A moment to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
