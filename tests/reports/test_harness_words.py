"""What a harness is worth, how it was called and what would mend what was not run is said in every format alike."""

from __future__ import annotations

import json
import tomllib
from typing import Any
from xml.etree import ElementTree

import pytest

from analyzer.findings import TargetKind
from services.findings.model import TargetResult
from services.reports.document import ExampleInfo, Harness, HarnessVariant, PlanInfo, Report
from services.reports.formats import Rendering, report_format
from services.reports.harnesses import examples, not_eligible, not_run, snippet
from tests.reports.samples import arity, check, failing, norm, report_of, target

CODE = "import torch\nfrom pkg.a import Square\n\nx = torch.randn(2, 8).requires_grad_()\n"


def harness(**changes: Any) -> Harness:
    values: dict[str, Any] = {
        "source": "synthesised",
        "grade": "B",
        "constructor": None,
        "inputs": ["torch.randn(2, 8)"],
        "provenance": "shape from the layers",
        "found_by": "layers",
        "variants": [HarnessVariant(constructor=None, inputs=[], option="reduction='sum'")],
        "code": CODE,
    }
    return Harness(**values | changes)


def unrun(name: str, reason: str, detail: str = "", kind: TargetKind = TargetKind.MODULE) -> TargetResult:
    return target(name, kind, harness=None, not_run_reason=reason, not_run_detail=detail, checks=())


@pytest.fixture
def report() -> Report:
    targets = (
        target(harness=harness(), checks=(failing(), check(check="compile_equivalence"))),
        norm(harness=harness(grade="A", source="mined", provenance="README.md:12"), checks=(check(),)),
        unrun("pkg.a:Lonely", "inputs unsolved", "last try: RuntimeError: shapes differ"),
        unrun("pkg.a:Odd", "crashed", "exited with SIGSEGV"),
        unrun("pkg.a:Counter", "no differentiable output"),
    )
    made = report_of((arity(),), targets)
    items = [
        ExampleInfo(place="README.md:12", kind="readme", outcome="ran", captured=2),
        ExampleInfo(place="pkg/a.py:3", kind="docstring", outcome="raised", detail="NameError: name 'img'"),
    ]
    plan = PlanInfo(budget_s=None, planned=4, run=4, checks=["gradcheck"], examples="a budget of 60 s was spent")
    return made.model_copy(update={"examples": items, "plan": plan})


@pytest.mark.parametrize("name", ["text", "markdown", "html", "junit", "sarif", "github"])
def test_the_grade_of_a_failing_check_stands_beside_it_with_what_it_means(report: Report, name: str) -> None:
    written = report_format(name).render(report, Rendering(width=400))
    if name == "sarif":
        results = json.loads(written)["runs"][1]["results"]
        assert results[0]["properties"]["harness"]["grade"] == "B"
        assert results[0]["properties"]["harness"]["meaning"] == "inferred, and independent routes agree on it"
        assert results[0]["properties"]["harness"]["code"] == CODE
    else:
        assert "arness grade" in written
        assert "inferred, and independent routes agree on it" in written


@pytest.mark.parametrize("name", ["text", "markdown", "html", "junit", "sarif"])
def test_a_verdict_of_a_finding_tells_what_its_harness_is_worth(report: Report, name: str) -> None:
    (settled,) = report.findings
    assert settled.verdict == "confirmed"
    written = report_format(name).render(
        report.model_copy(update={"targets": report.targets[:1]}), Rendering(width=400)
    )
    if name == "sarif":
        assert json.loads(written)["runs"][0]["results"][0]["properties"]["harness"]["grade"] == "B"
    elif name == "junit":
        said = ElementTree.fromstring(written).find("testsuite/testcase/failure")
        assert said is not None
        assert "harness grade B" in str(said.text)
    else:
        assert written.count("arness grade") >= 2


def test_passing_checks_are_graded_too(report: Report) -> None:
    text = report_format("text").render(report, Rendering(width=400))
    assert "pkg.a:Norm    A" in text
    assert "  A: the repository itself calls it so" in text
    suites = ElementTree.fromstring(report_format("junit").render(report, Rendering())).findall("testsuite")
    graded = {suite.get("name"): suite.find("properties/property") for suite in suites}
    said = graded["pkg.a:Norm"]
    assert said is not None
    assert said.get("value") == "A: the repository itself calls it so"


def test_what_was_not_run_is_told_by_reason_with_the_next_step(report: Report) -> None:
    first, second = not_run(report)
    assert (first.reason, [target.name for target in first.targets]) == ("inputs unsolved", ["pkg.a:Lonely"])
    assert second.next_step.startswith("Run it by itself")
    assert [group.reason for group in not_eligible(report)] == ["no differentiable output"]
    for name in ("text", "markdown", "html"):
        written = report_format(name).render(report, Rendering(width=400))
        assert "Declare how it is built and called" in written
        assert "Counter" in written or "1 x no differentiable output" in written or "1 no differentiable" in written


def test_what_was_tried_last_is_told(report: Report) -> None:
    for name in ("text", "html"):
        assert "last try: RuntimeError: shapes differ" in report_format(name).render(report, Rendering(width=400))


@pytest.mark.parametrize("name", ["pkg.a:Lonely", 'pkg.a:La"st', "pkg.a:B\\ack", "pkg.ä:Ünique"])
def test_a_snippet_is_the_configuration_that_declares_the_target(name: str) -> None:
    (info,) = report_of((), (unrun(name, "inputs unsolved"),)).targets
    (declared,) = tomllib.loads(snippet(info))["tool"]["gradproof"]["targets"]
    assert declared["target"] == name
    assert declared["inputs"] == ["torch.randn(2, 8)"]
    assert declared["constructor"] == f"{name.rpartition(':')[2]}(…)"


def test_examples_are_counted_by_what_came_of_them(report: Report) -> None:
    told = examples(report)
    assert told is not None
    assert told.outcomes == (("ran to its end", 1), ("raised", 1))
    assert told.captured == 2
    text = report_format("text").render(report, Rendering(width=400))
    assert "1 ran to its end, 1 raised; 2 calls of targets taken from them" in text
    assert "a budget of 60 s was spent" in text
    page = report_format("html").render(report, Rendering())
    assert "NameError: name &#39;img&#39;" in page
    assert examples(report_of()) is None


def test_the_page_shows_code_options_and_where_the_harness_comes_from(report: Report) -> None:
    page = report_format("html").render(report, Rendering())
    assert "from pkg.a import Square" in page
    assert "reduction=&#39;sum&#39;" in page
    assert "README.md:12" in page


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        ((), "there is no module, autograd function or tensor function that could be"),
        ((unrun("pkg.a:Lonely", "inputs unsolved"),), "what was found and why it was not run stands below"),
        ((unrun("pkg.a:Lonely", "no differentiable output"),), "what was found is counted apart, as told below"),
    ],
)
def test_where_nothing_ran_the_page_says_why(targets: tuple[TargetResult, ...], words: str) -> None:
    assert words in report_format("html").render(report_of((), targets), Rendering())
