"""The examples of the OpenAPI document, made by the product's own code: they can't drift from what it answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from analyzer.findings import Confidence, Finding, Region, Severity, TargetDeclaration, TargetKind
from analyzer.registry import all_rules
from api.presentation import rule_out
from api.schemas import EXAMPLE_ID, EXAMPLE_STATUS, CheckOut, TargetOut
from services.findings.model import TargetResult
from services.findings.settle import settle
from services.gates import GatePolicy, evaluate
from services.reports.build import build_report
from services.reports.compare import compare
from services.reports.document import (
    AnalysisInfo,
    CheckInfo,
    Diagnosis,
    Harness,
    Report,
    SnapshotInfo,
    Source,
    Tool,
)
from services.reports.formats import FORMATS, Rendering

_MOMENT = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def _report(findings: tuple[Finding, ...]) -> Report:
    declaration = TargetDeclaration(
        "vision.ops:Square", TargetKind.AUTOGRAD_FUNCTION, "vision/ops.py", 8, 18, "", "vision.ops", "Square"
    )
    target = TargetResult(
        declaration,
        harness=Harness(
            source="synthesised", grade="C", constructor=None, inputs=["float64[2, 8]"], provenance="the signature"
        ),
        checks=(
            CheckInfo(
                check="gradcheck",
                verdict="fail",
                device="cpu",
                summary="the backward raises RuntimeError: returned an incorrect number of gradients",
                diagnosis=Diagnosis(
                    cause="backward_raises", text="returned an incorrect number of gradients (expected 1, got 2)"
                ),
                path="vision/ops.py",
                line=17,
                repro="import torch\n…",
                duration_s=0.012,
            ),
        ),
    )
    settled = settle(findings, (target,))
    return build_report(
        tool=Tool(version="0.1.0", torch="2.13.0", devices=["cpu"], sandbox="bwrap-user"),
        analysis=AnalysisInfo(
            id=EXAMPLE_ID, created_at=_MOMENT, finished_at=_MOMENT, status="finished", duration_s=6.4
        ),
        snapshot=SnapshotInfo(
            digest="sha256:" + "3f" * 32,
            source=Source(kind="git", url="https://github.com/example/vision", commit="9f" * 20),
            files=12,
            lines=3456,
        ),
        gate=evaluate(settled, (target,), GatePolicy()),
        findings=settled,
        targets=(target,),
        public_url="http://127.0.0.1:8000",
    )


_FINDING = Finding(
    fingerprint="0b5f1c7e9a3d2468",
    rule="GP303",
    name="backward-arity",
    severity=Severity.ERROR,
    confidence=Confidence.HIGH,
    region=Region("vision/ops.py", 17, 16, 17, 30),
    symbol="vision.ops.Square.backward",
    message="`backward` returns 2 gradients for 1 input",
    settled_by=("gradcheck",),
)

REPORT = _report((_FINDING,))
REPORTS: dict[str, Any] = {
    name: json.loads(each.render(REPORT, Rendering()))
    if each.media_type.endswith("json")
    else each.render(REPORT, Rendering())[:800]
    for name, each in FORMATS.items()
}
SUBMITTED = {"id": EXAMPLE_ID, "status": "queued", "links": EXAMPLE_STATUS["links"]}
ANALYSES = {"items": [EXAMPLE_STATUS], "next_cursor": None}
CANCELLED = {**EXAMPLE_STATUS, "status": "cancelled", "reason": "cancelled on request"}
FINDINGS = {"items": [REPORT.findings[0].model_dump(mode="json")], "next_cursor": "1"}
CHECKS = {
    "items": [
        CheckOut(target=REPORT.targets[0].name, **dict(REPORT.targets[0].checks[0])).model_dump(mode="json"),
    ],
    "next_cursor": None,
}
TARGETS = {
    "items": [
        TargetOut(
            **REPORT.targets[0].model_dump(exclude={"checks"}),
            checks={"fail": 1},
        ).model_dump(mode="json")
    ],
    "next_cursor": None,
}
COMPARISON = compare(_report(()), REPORT).model_dump(mode="json")
RULE = rule_out(all_rules()[0]).model_dump(mode="json")
CHECK_DOCUMENTATION = {
    "name": "gradcheck",
    "summary": "Compares gradients with finite differences.",
    "what_it_does": "…",
    "how_it_decides": "…",
}
READINESS = {
    "ready": True,
    "components": [
        {"name": "database", "ok": True, "detail": "postgresql"},
        {"name": "broker", "ok": True, "detail": "redis"},
        {"name": "reconciler", "ok": True, "detail": "the last round was 1.2 s ago"},
        {"name": "devices", "ok": True, "detail": "2 of 2 workers for GPUs serve"},
    ],
}
METRICS = (
    "# HELP gradproof_queue_waiting Jobs that wait in a queue.\n"
    "# TYPE gradproof_queue_waiting gauge\n"
    'gradproof_queue_waiting{queue="cpu"} 3.0\n'
)
