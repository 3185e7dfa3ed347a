"""Plain values to build reports from: a small repository with one fault of each kind, and a hostile one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from analyzer.findings import (
    Confidence,
    Edit,
    Finding,
    Fix,
    FixSafety,
    Region,
    Related,
    Severity,
    Suppression,
    TargetDeclaration,
    TargetKind,
)
from services.findings.model import SettledFinding, TargetResult
from services.findings.settle import settle
from services.gates import GatePolicy, evaluate
from services.reports.build import build_report
from services.reports.document import (
    AnalysisInfo,
    AnalysisStatus,
    CheckInfo,
    Diagnosis,
    Harness,
    Report,
    SnapshotInfo,
    Source,
    Tool,
)

SOURCE = """\
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x, None


class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.norm()
"""


def finding(**changes: Any) -> Finding:
    """A finding at the division in `Norm.forward`, settled by nan_gradient and gradcheck."""
    values: dict[str, Any] = {
        "fingerprint": "f" * 32,
        "rule": "GP102",
        "name": "hand-normalisation",
        "severity": Severity.WARNING,
        "confidence": Confidence.HIGH,
        "region": Region("pkg/a.py", 18, 16, 18, 28),
        "symbol": "pkg.a.Norm.forward",
        "message": "`x / x.norm()` is NaN where the row is zero",
        "settled_by": ("nan_gradient",),
    }
    return Finding(**values | changes)


def arity(**changes: Any) -> Finding:
    """A finding at the return of `Square.backward`, settled by gradcheck."""
    values: dict[str, Any] = {
        "fingerprint": "a" * 32,
        "rule": "GP303",
        "name": "backward-arity",
        "severity": Severity.ERROR,
        "region": Region("pkg/a.py", 13, 16, 13, 30),
        "symbol": "pkg.a.Square.backward",
        "message": "`backward` returns 2 gradients for 1 input",
        "settled_by": ("gradcheck",),
    }
    return finding(**values | changes)


def check(**changes: Any) -> CheckInfo:
    """A passing gradcheck on the CPU."""
    values: dict[str, Any] = {
        "check": "gradcheck",
        "verdict": "pass",
        "device": "cpu",
        "summary": "1 output against 1 input in float64",
        "duration_s": 0.012,
    }
    return CheckInfo(**values | changes)


def failing(**changes: Any) -> CheckInfo:
    """A gradcheck that failed, with its diagnosis and no place."""
    values: dict[str, Any] = {
        "verdict": "fail",
        "summary": "the backward raises RuntimeError: 2 gradients for 1 input",
        "diagnosis": Diagnosis(
            cause="backward_raises", text="returned 2 gradients, expected 1", numbers={"ratio": 0.5}
        ),
        "repro": "import torch\nprint(torch.ones(1))\n",
        "evidence": {"worst": [0, 1], "analytic": 1.0, "numeric": 2.0},
    }
    return check(**values | changes)


def wrong_gradient(**changes: Any) -> CheckInfo:
    """A gradcheck that failed for a transposed incoming gradient only, with all the evidence there can be."""
    evidence: dict[str, Any] = {
        "situation": "for a transposed incoming gradient",
        "worst": {"variable": "x", "index": [0, 1], "analytic": 1.0, "reference": 2.0, "error": 1.5e-9},
        "look_at": "line 13: `grad * x` lacks the factor 2",
        "unexecuted_lines": [9, 10, 12],
        "jacobians": {
            "variable": "x",
            "output": "y",
            "rows": 2,
            "columns": 2,
            "analytic": [[1.0, 0.0], [0.0, "nan"]],
            "reference": [[2.0, 0.0], [0.0, -3.0]],
        },
        "probes": 3,
    }
    values: dict[str, Any] = {
        "summary": "for a transposed incoming gradient, the gradient for x is 0.5 times the derivative",
        "diagnosis": Diagnosis(cause="grad_output_layout", text="backward misreads strides", numbers={"ratio": 0.5}),
        "path": "pkg/a.py",
        "line": 13,
        "evidence": evidence,
    }
    return failing(**values | changes)


def target(
    name: str = "pkg.a:Square",
    kind: TargetKind = TargetKind.AUTOGRAD_FUNCTION,
    line: int = 4,
    end_line: int = 13,
    **changes: Any,
) -> TargetResult:
    """A target of pkg/a.py that was run with a synthesised harness."""
    module, _, qualname = name.partition(":")
    values: dict[str, Any] = {
        "declaration": TargetDeclaration(name, kind, "pkg/a.py", line, end_line, "", module, qualname),
        "harness": Harness(
            source="synthesised",
            grade="C",
            constructor=None,
            inputs=["float64[2, 8]"],
            provenance="from the signature",
        ),
        "checks": (check(),),
    }
    return TargetResult(**values | changes)


def norm(**changes: Any) -> TargetResult:
    """`Norm`, a module in which `finding()` lies."""
    return target(**{"name": "pkg.a:Norm", "kind": TargetKind.MODULE, "line": 16, "end_line": 18} | changes)


def report_of(
    findings: tuple[Finding, ...] = (),
    targets: tuple[TargetResult, ...] = (),
    *,
    suppressed: tuple[Suppression, ...] = (),
    status: AnalysisStatus = "finished",
    reason: str | None = None,
    policy: GatePolicy | None = None,
    public_url: str | None = None,
    source: Source | None = None,
    settled: tuple[SettledFinding, ...] | None = None,
) -> Report:
    """The report of these findings and targets, settled and gated."""
    settled = settle(findings, targets) if settled is None else settled
    moment = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
    return build_report(
        tool=Tool(version="0.1.0", torch="2.13.0", devices=["cpu"], sandbox="bwrap-user"),
        analysis=AnalysisInfo(
            id="01jc0000000000000000000000",
            created_at=moment,
            finished_at=moment,
            status=status,
            duration_s=1.25,
            reason=reason,
        ),
        snapshot=SnapshotInfo(
            digest="sha256:" + "0" * 64, source=source or Source(kind="directory"), files=1, lines=18
        ),
        gate=evaluate(settled, targets, policy or GatePolicy(), status=status, status_reason=reason),
        findings=settled,
        suppressed=suppressed,
        targets=targets,
        public_url=public_url,
    )


def rich_report(**changes: Any) -> Report:
    """Two findings with a fix and a related place, a failing, a passing and a skipped check, one target not run."""
    division = finding(
        fix=Fix(FixSafety.SAFE, (Edit(Region("pkg/a.py", 18, 16, 18, 28), "torch.nn.functional.normalize(x)"),)),
        related=(Related(Region("pkg/a.py", 17, 23, 17, 24), "x may be a row of zeros"),),
    )
    targets = (
        target(checks=(failing(), check(check="compile_equivalence"))),
        norm(checks=(check(), check(check="device_compare", verdict="skipped", summary="no CUDA device"))),
        target(
            name="pkg.a:Lonely",
            line=1,
            end_line=1,
            harness=None,
            not_run_reason="constructor unsolved",
            not_run_detail="`size` has no default",
            checks=(),
        ),
    )
    return report_of(
        (division, arity()),
        targets,
        suppressed=(Suppression(finding(fingerprint="5" * 32), "rows are never zero: see Norm.forward"),),
        **changes,
    )


HOSTILE_TEXTS = (
    '<script>alert(1)</script><img src=x onerror="alert(2)">',
    "]]> & </pre></code></testcase> ' \"",
    "@everyone #1 fixes #2 GH-3 owner/repo#4 <!-- gradproof-comment -->",
    "![track](https://evil.example/x.png) [click](javascript:alert(1)) www.evil.example https://evil.example",
    "``` ```` ` | a | b |",
    "\u202egnp.elif\u202c \u2066hidden\u2069 \u200bzero",
    "\x1b[2J\x1b]0;owned\x07 \x00 \x08",
    "line\r\n\r\n# heading\n- [ ] task\n> quote",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
)


def hostile_report() -> Report:
    """Every text that submitted code can influence holds every attack."""
    text = " ".join(HOSTILE_TEXTS)
    path = "pkg/<img src=x>@me`\u202e|.py"
    bad = finding(
        message=text,
        symbol=text,
        region=Region(path, 1, 1, 1, 5),
        related=(Related(Region(path, 1, 1, 1, 2), text),),
        fix=Fix(FixSafety.UNSAFE, (Edit(Region(path, 1, 1, 1, 5), text),)),
        settled_by=("gradcheck",),
    )
    broken = failing(
        summary=text,
        diagnosis=Diagnosis(cause=text, text=text, numbers={text: text}),
        evidence={
            text: [text],
            "situation": text,
            "look_at": text,
            "by_design": text,
            "input": {text: text},
            "birth": {"path": text, "operation": text},
            "worst": {"variable": text, "index": [text, 1], "analytic": 1.0, "reference": 2.0},
            "jacobians": {"variable": text, "output": text, "analytic": [[1.0]], "reference": [[2.0]]},
        },
        repro=text,
        path=path,
        line=1,
    )
    harness = Harness(source="mined", grade="B", constructor=text, inputs=[text], provenance=text, reason=text)
    declaration = TargetDeclaration(f"pkg.a:{text}", TargetKind.FUNCTION, path, 1, 5, "", "pkg.a", text)
    unrun = TargetDeclaration(f"pkg.b:{text}", TargetKind.FUNCTION, path, 1, 5, "", "pkg.b", text)
    return report_of(
        (bad,),
        (
            TargetResult(declaration, harness=harness, checks=(broken, check(verdict="error", summary=text))),
            TargetResult(unrun, not_run_reason=text, not_run_detail=text),
        ),
        suppressed=(Suppression(bad, text),),
        status="partial",
        reason=text,
        source=Source(kind="git", url="https://example.org/" + text, commit=text),
    )
