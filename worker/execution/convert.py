"""Validated messages of the probe as the values that are stored and reported. Pure."""

from __future__ import annotations

from services.reports.document import CheckInfo, Diagnosis, Harness, HarnessVariant
from worker.execution.messages import CheckReply, HarnessReply


def harness_info(reply: HarnessReply) -> Harness:
    """How a target was built and called."""
    return Harness(
        source=reply.source,
        grade=reply.grade,
        constructor=reply.constructor,
        inputs=list(reply.inputs),
        provenance=reply.provenance,
        reason=reply.reason,
        found_by=reply.found_by,
        variants=[
            HarnessVariant(constructor=item.constructor, inputs=list(item.inputs), option=item.option)
            for item in reply.variants
        ],
        code=reply.code,
    )


def check_info(reply: CheckReply) -> CheckInfo:
    """The result of one check."""
    diagnosis = reply.diagnosis
    return CheckInfo(
        check=reply.check,
        verdict=reply.verdict,
        device=reply.device,
        summary=reply.summary,
        diagnosis=None
        if diagnosis is None
        else Diagnosis(cause=diagnosis.cause, text=diagnosis.text, numbers=diagnosis.numbers),
        path=reply.path,
        line=reply.line,
        evidence=reply.evidence,
        repro=reply.repro,
        duration_s=reply.duration_s,
    )
