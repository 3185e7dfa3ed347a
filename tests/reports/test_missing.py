"""What is missing is named once for an analysis; what has no gradient to look at is counted apart."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from analyzer.findings import TargetDeclaration, TargetKind
from services.findings.model import TargetResult
from services.reports.document import EnvironmentInfo, ImportNoteInfo, MissingPackage, RefusedRequirement, Report
from services.reports.formats import Rendering, report_format
from tests.reports.samples import norm, report_of


def lacking(name: str, detail: str, reason: str = "missing dependency") -> TargetResult:
    declaration = TargetDeclaration(f"pkg.b:{name}", TargetKind.MODULE, "pkg/b.py", 1, 5, "", "pkg.b", name)
    return TargetResult(declaration, not_run_reason=reason, not_run_detail=detail)


REPORT = report_of(
    (),
    (
        lacking("A", "No module named 'cv2' (on PyPI: opencv-python); needed by pkg/b.py:3"),
        lacking("B", "cv2 (on PyPI: opencv-python) is not installed, and cv2.resize is needed"),
        lacking("C", "No module named 'einops', imported when it is used"),
        lacking("D", "No module named 'einops.layers', imported when it is used"),
        lacking("E", "timm is not installed, and timm.create_model is needed"),
        lacking("F", "No module named 'never'", reason="import failed"),
    ),
)


def test_each_missing_package_is_named_once_with_the_targets_that_lack_it() -> None:
    document = json.loads(report_format("json").render(REPORT, Rendering()))
    assert document["missing"] == [
        {"import": "cv2", "package": "opencv-python", "targets": 2},
        {"import": "einops", "package": "einops", "targets": 2},
        {"import": "timm", "package": "timm", "targets": 1},
    ]
    assert Report.model_validate(document).missing == REPORT.missing


@pytest.mark.parametrize("name", ["text", "markdown", "html"])
def test_a_person_reads_what_to_install(name: str) -> None:
    shown = report_format(name).render(REPORT, Rendering())
    assert "opencv-python" in shown
    assert "timm" in shown


@pytest.mark.parametrize(
    "detail", ["No module named 'a b'", "No module named '<script>'", "; rm -rf /", "", "No module named '../x'"]
)
def test_what_is_no_name_of_a_module_is_not_repeated(detail: str) -> None:
    assert report_of((), (lacking("A", detail),)).missing == []


def test_a_package_that_is_no_name_is_not_repeated() -> None:
    report = report_of((), (lacking("A", "No module named 'x' (on PyPI: --index-url=http://h); needed"),))
    assert report.missing == [MissingPackage(imported="x", package="x", targets=1)]


def test_what_has_no_gradient_is_counted_apart() -> None:
    ran = norm()
    ruled_out = replace(lacking("A", "").declaration, why_not="metric")
    report = report_of(
        (),
        (
            ran,
            TargetResult(ruled_out),
            lacking("B", "told from its source", reason="abstract"),
            lacking("C", "argmax", reason="no differentiable output"),
            lacking("D", "no shape fits", reason="inputs unsolved"),
        ),
    )
    assert report.summary.targets.model_dump() == {
        "found": 2,
        "run": 1,
        "not_run": {"inputs unsolved": 1},
        "not_eligible": {"metric": 1, "abstract": 1, "no differentiable output": 1},
    }
    assert [target.not_run_reason for target in report.targets][1] == "metric"


@pytest.mark.parametrize("name", ["text", "markdown", "html", "json"])
def test_what_was_installed_kept_and_refused_is_told(name: str) -> None:
    report = report_of((), (norm(),))
    environment = EnvironmentInfo(
        packages=["timm==1.0"],
        kept=["torch 2.13.0"],
        refused=[RefusedRequirement(text="-e .", place="requirements.txt:3", reason="an option")],
    )
    report = report.model_copy(update={"tool": report.tool.model_copy(update={"environment": environment})})
    shown = report_format(name).render(report, Rendering())
    for part in ("timm==1.0", "torch 2.13.0", "an option"):
        assert part in shown.replace("\\", "")  # Markdown escapes signs


@pytest.mark.parametrize("name", ["text", "html", "json"])
def test_what_a_file_does_when_it_is_imported_is_told(name: str) -> None:
    report = report_of((), (norm(),))
    note = ImportNoteInfo(path="pkg/train.py", line=7, kind="reads arguments", detail="the command line is read")
    shown = report_format(name).render(report.model_copy(update={"imports": [note]}), Rendering())
    for part in ("pkg/train.py", "7", "reads arguments"):
        assert part in shown
