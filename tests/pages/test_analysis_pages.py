"""The pages on which a report is read, in a browser: the overview, findings, targets, what was left out, the list."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from playwright.sync_api import expect
from sqlalchemy import insert

from services.analyses.models import AnalysisRow
from services.analyses.totals import count_totals
from services.checks.models import CheckResultRow, TargetRow
from services.database import Database
from services.jobs.models import JobRow
from services.reports.document import HarnessVariant
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, open_as, reads, shows, signed_in
from tests.reports.samples import HOSTILE_TEXTS, check, failing, wrong_gradient
from tests.serving import HARNESS, MODULE, RunningServer, Workshop, upload

SIX_FILES = {"pkg/__init__.py": ""} | {f"pkg/part{number}.py": MODULE for number in range(6)}
HOSTILE_MODULE = """\
import torch


class Norm(torch.nn.Module):
    '''<script>alert(1)</script> \u202egnp.elif\u202c <img src=x onerror=alert(2)>'''

    def forward(self, x):
        return x / x.norm()  # \u2066</code></pre><script>alert(3)</script>
"""
HOSTILE_PATH = "pkg/<img src=x onerror=alert(4)>&amp;'`a`.py"
LONG = "x" * 400


def analysed(
    client: httpx.Client, workshop: Workshop, *results: Any, files: dict[str, str] | None = None, **probe: Any
) -> str:
    """The id of an analysis; without results of a failing, a passing and a skipped check."""
    sent = upload(files or {"pkg/__init__.py": "", "pkg/a.py": MODULE})
    identity = client.post("/api/v1/analyses", files=sent).json()["id"]
    workshop.read()
    usual = (
        failing(path="pkg/a.py", line=6),
        check(check="compile_equivalence"),
        check(check="device_compare", verdict="skipped", summary="no CUDA device"),
    )
    workshop.probe(*(results or usual), **probe)
    return str(identity)


def fingerprints(client: httpx.Client, identity: str) -> list[str]:
    """Those of all findings, in the order of the report."""
    return [item["fingerprint"] for item in client.get(f"/api/v1/analyses/{identity}/findings").json()["items"]]


# ---------------------------------------------------------------------------------------------------- the overview


def test_the_overview_shows_gate_figures_findings_and_the_grid(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    identity = analysed(client, workshop)
    window = open_window()
    window.open(f"/analyses/{identity}")
    page = window.page
    reads(page.get_by_role("heading", level=1), "Failed")
    assert page.title().startswith("Failed")
    assert page.locator(".conditions li.failed").first.inner_text().startswith("no check fails")
    tiles = page.get_by_role("list", name="Figures of the analysis").inner_text()
    assert "of 3 results" in tiles
    assert "1 error, 1 warning" in tiles
    findings = page.get_by_role("list", name="Findings").get_by_role("listitem")
    expect(findings).to_have_count(2)
    grid = page.get_by_role("table", name="Targets and checks")
    assert [head.inner_text() for head in grid.get_by_role("columnheader").all()] == [
        "target",
        "gradcheck",
        "compile equivalence",
        "device compare",
    ]
    # The words are in the page, whatever sign the style sheet shows for them.
    assert [cell.text_content() for cell in grid.get_by_role("cell").all()] == ["fail", "pass", "skipped"]
    expect(grid.get_by_role("cell").first).to_have_attribute("title", "gradcheck: fail")
    follow(grid.get_by_role("link", name="fail"))
    told = page.locator("article:target")
    shows(told, "backward raises")
    told.get_by_text("Script that shows it").click()
    expect(told.get_by_text("print(torch.ones(1))")).to_be_visible()


def test_progress_moves_by_itself_and_the_report_appears_when_the_analysis_ends(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    identity = client.post("/api/v1/analyses", files=upload()).json()["id"]
    window = open_window()
    window.open(f"/analyses/{identity}")
    page = window.page
    reads(page.get_by_role("heading", level=1), "Queued")
    expect(page.get_by_text("It waits for a worker.")).to_be_visible()
    workshop.read()
    page.get_by_role("list", name="Findings").first.wait_for()
    reads(page.get_by_role("heading", level=1), "Running")
    expect(page.locator("#progress").get_by_text("0 of 1").first).to_be_visible()
    workshop.probe(failing())
    page.get_by_role("heading", level=1, name="Failed").wait_for()
    expect(page.locator("#progress progress")).to_have_count(0)


def test_an_analysis_is_cancelled_and_run_again_from_its_page(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    identity = client.post("/api/v1/analyses", files=upload()).json()["id"]
    workshop.read()
    window = open_as(open_window, server, **NO_SCRIPT)
    window.open(f"/analyses/{identity}")
    page = window.page
    page.get_by_text("Cancel", exact=True).click()
    follow(page.get_by_role("button", name="Cancel the analysis"))
    page.get_by_text("The analysis is cancelled: cancelled on request.").wait_for()
    page.get_by_text("Run again", exact=True).click()
    follow(page.get_by_role("button", name="Run it again"))
    page.get_by_role("heading", level=1, name="Queued").wait_for()
    assert identity not in page.url


def test_who_may_only_read_is_offered_neither(
    open_window: Any, client: httpx.Client, workshop: Workshop, server: RunningServer
) -> None:
    identity = analysed(client, workshop)
    page = signed_in(server, scope="read").get(f"/analyses/{identity}").text
    assert "Download report" in page
    assert "Run again" not in page


def test_reports_are_downloaded_from_the_page(open_window: Any, client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop)
    window = open_window()
    window.open(f"/analyses/{identity}")
    window.page.get_by_text("Download report").click()
    with window.page.expect_download() as download:
        window.page.get_by_role("link", name="SARIF 2.1.0").click()
    assert download.value.suggested_filename == f"gradproof-{identity}.sarif"


def test_what_was_left_out_is_told_with_what_would_mend_it(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    identity = client.post("/api/v1/analyses", files=upload()).json()["id"]
    workshop.read()
    workshop.probe()
    window = open_window()
    window.open(f"/analyses/{identity}")
    follow(window.page.get_by_role("link", name="What would mend it"))
    group = window.page.get_by_role("article")
    reads(group.get_by_role("heading"), "1 target: inputs unsolved")
    shows(group, "no shape fits")
    shows(group.get_by_label("how to declare pkg.a:Norm", exact=True), 'target = "pkg.a:Norm"')
    follow(group.get_by_role("link", name="1 target"))
    row = window.page.get_by_role("table", name="Targets and checks").get_by_role("row").nth(1)
    reads(row.get_by_role("cell"), "not run: inputs unsolved")
    follow(row.get_by_role("link"))
    expect(window.page.get_by_role("heading", name="Not run: inputs unsolved")).to_be_visible()


def test_checks_that_say_nothing_are_grouped_by_their_reason(
    client: httpx.Client, workshop: Workshop, server: RunningServer
) -> None:
    identity = analysed(
        client, workshop, check(check="hvp", verdict="skipped", summary="it is linear"), files=SIX_FILES
    )
    page = signed_in(server).get(f"/analyses/{identity}/left-out").text
    assert page.count("it is linear") == 1
    assert ">6</td>" in page


# ---------------------------------------------------------------------------------------------------- findings


def test_findings_are_filtered_and_read_one_after_the_other(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    identity = analysed(client, workshop, check(), files=SIX_FILES)
    window = open_as(open_window, server, **NO_SCRIPT)
    window.open(f"/analyses/{identity}/findings")
    page = window.page
    expect(page.get_by_text("6 findings, in the order of path and line")).to_be_visible()
    reads(page.get_by_role("list", name="Findings").locator("mark").first, "x / x.norm()")
    page.get_by_label("File or directory/").fill("pkg/part3.py")
    follow(page.get_by_role("button", name="Apply"))
    expect(page.get_by_text("1 finding of these kinds")).to_be_visible()
    follow(page.get_by_role("link", name="Clear"))
    page.get_by_label("Text").fill("PART")
    follow(page.get_by_role("button", name="Apply"))
    follow(page.get_by_role("list", name="Findings").get_by_role("link").first)
    expect(page.get_by_text("1 of 6 that were filtered")).to_be_visible()
    expect(page.get_by_role("link", name="Previous")).to_have_count(0)
    follow(page.get_by_role("link", name="Next"))
    shows(page.locator("main .kicker"), "pkg/part1.py:6")
    assert "text=PART" in page.url
    follow(page.get_by_role("link", name="Permanent link"))
    assert page.url.endswith(f"/analyses/{identity}/findings/{fingerprints(client, identity)[1]}")
    window.open(f"/analyses/{identity}/findings?severity=note&verdict=confirmed")
    page.get_by_text("No finding is of these kinds").wait_for()


def test_a_list_of_findings_has_pages(client: httpx.Client, workshop: Workshop, server: RunningServer) -> None:
    files = {"pkg/__init__.py": ""} | {f"pkg/p{number:02}.py": MODULE for number in range(30)}
    identity = analysed(client, workshop, check(), files=files)
    visitor = signed_in(server)
    first = visitor.get(f"/analyses/{identity}/findings").text
    assert first.count('class="finding-row"') == 25
    assert 'href="/analyses/' + identity + '/findings?after=25" rel="next"' in first
    second = visitor.get(f"/analyses/{identity}/findings?after=25").text
    assert second.count('class="finding-row"') == 5
    assert "pkg/p29.py" in second.replace("<wbr>", "")
    assert visitor.get(f"/analyses/{identity}/findings?after=x").status_code == 422
    assert visitor.get(f"/analyses/{identity}/findings?severity=huge").status_code == 422


def test_a_finding_shows_the_way_there_its_evidence_and_its_fix(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    shown = failing(
        check="nan_gradient",
        path="pkg/a.py",
        line=6,
        summary="the gradient of `x` is NaN",
        evidence={
            "input": "`x`: a first row of zeros",
            "birth": {"operation": "div", "path": "pkg/a.py", "line": 6, "phase": "backward", "value": "nan"},
        },
    )
    identity = analysed(client, workshop, shown, check(check="hvp"))
    fingerprint = next(iter(fingerprints(client, identity)))
    window = open_window()
    window.open(f"/analyses/{identity}/findings/{fingerprint}")
    page = window.page
    place = page.get_by_role("region", name="Where")
    assert "x / x.norm()" in place.locator("mark").all_inner_texts()
    assert place.get_by_role("list", name="Places that lead to the finding").get_by_role("listitem").count() >= 1
    told = page.get_by_role("region", name="What running it showed")
    shows(told, "nan in the backward of div, pkg/a.py:6")
    shows(told, "x: a first row of zeros")
    told.get_by_text("Script that shows it").click()
    with page.expect_download() as download:
        told.get_by_role("link", name="Download the file").click()
    assert download.value.suggested_filename == "repro.py"
    assert download.value.path().read_text() == "import torch\nprint(torch.ones(1))\n"
    lines = page.get_by_label("fix as a diff").locator(".line").all_inner_texts()
    assert lines[0].rstrip() == "--- a/pkg/a.py"
    assert any(line.startswith("-        return x / x.norm()") for line in lines)
    assert any(line.startswith("+        return x / ") for line in lines)
    assert page.get_by_role("link", name="Why GP").get_attribute("href").startswith("/rules/GP")


def test_there_is_no_other_file_to_fetch_and_no_other_finding(
    client: httpx.Client, workshop: Workshop, server: RunningServer
) -> None:
    identity = analysed(client, workshop, check())
    visitor = signed_in(server)
    address = f"/analyses/{identity}/findings/{fingerprints(client, identity)[0]}"
    assert visitor.get(f"{address}?download=repro.py").status_code == 404  # nothing failed: there is no script
    assert visitor.get(f"{address}?download=../../etc/passwd").status_code == 404
    for nothing in (f"/analyses/{identity}/findings/<script>", f"/analyses/{identity}/targets/99"):
        response = visitor.get(nothing)
        assert response.status_code == 404
        assert "<script>&" not in response.text
        assert "Signed in as" in response.text


# ---------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize("options", [*LOOKS.values(), NO_SCRIPT], ids=[*LOOKS, "no script"])
def test_a_wrong_gradient_is_drawn_with_its_numbers_and_told_in_words(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    identity = analysed(client, workshop, wrong_gradient(line=6))
    window = open_as(open_window, server, **options)
    for path in (f"/analyses/{identity}/targets/0", f"/analyses/{identity}/targets/pkg.a:Norm"):
        window.open(path)
        page = window.page
        picture = page.get_by_role("img", name="Jacobian of y by x: autograd against the reference")
        expect(picture).to_be_visible()
        assert picture.locator("rect title").all_text_contents().count("row 1, column 1: nan") == 2
        expect(page.get_by_text("x[0, 1]: autograd returns 1, the reference is 2 ± 1.5e-09")).to_be_visible()
        expect(page.get_by_text("for a transposed incoming gradient", exact=True)).to_be_visible()
    if options is not NO_SCRIPT:  # axe is a script
        assert_well_made(page)


def test_a_harness_shows_what_it_is_worth_and_its_code_to_copy(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    code = "import torch\nfrom pkg.a import Norm\n\nmodel = Norm()\n"
    more = {"grade": "B", "code": code, "variants": [HarnessVariant(constructor=None, inputs=[], option="p=2")]}
    identity = analysed(client, workshop, harness=HARNESS.model_copy(update=more))
    window = open_window()
    window.open(f"/analyses/{identity}/targets/0")
    page = window.page
    expect(page.get_by_text("Harness grade B: inferred, and independent routes agree")).to_be_visible()
    expect(page.get_by_text("p=2", exact=True)).to_be_visible()
    page.get_by_text("Harness as code").click()
    listing = page.get_by_label("harness of pkg.a:Norm", exact=True)
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    listing.get_by_role("button", name="Copy harness of pkg.a:Norm").click()
    listing.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == code


def test_errors_by_type_and_device_stand_in_a_table_with_what_rounding_explains(
    open_window: Any, client: httpx.Client, workshop: Workshop
) -> None:
    rows = [
        {"dtype": "bfloat16", "inputs": "float32", "of": "output", "worst": "output", "error": 0.5,
         "rounding_alone": 0.003, "not_finite": []},
        {"dtype": "float16", "inputs": "float16", "of": "output", "worst": "output", "error": 0.0,
         "rounding_alone": None, "not_finite": ["output"]},
        {"dtype": "float16", "error": "a lie", "of": [1]},
        "no row",
    ]  # fmt: skip
    tensors = [{"tensor": "gradient x", "device_error": 1e-7, "cpu_error": 9e-8, "ratio": 1.1}]
    identity = analysed(
        client,
        workshop,
        failing(check="autocast", path="pkg/a.py", line=6, evidence={"errors": rows}),
        check(check="device_compare", device="cuda", evidence={"tensors": tensors, "format": "float32"}),
    )
    window = open_window()
    window.open(f"/analyses/{identity}/targets/0")
    table = window.page.get_by_role("table", name="Errors by type and device")
    said = [" | ".join(row.locator("th, td").all_inner_texts()[:-1]) for row in table.get_by_role("row").all()[1:]]
    assert said == [
        "autocast | output | bfloat16, inputs in float32 | cpu | 0.5 ! beyond | 0.003",
        "autocast | output | float16 | cpu | not finite: output ! beyond | not known",
        "autocast |  | float16 | cpu | not known | not known",
        "device_compare | gradient x | float32 | cuda | 1e-07 | 9e-08",
    ]


def units_apart(**changes: Any) -> dict[str, Any]:
    """What a check counted: rounding, and three numbers of 4,096 that are not."""
    ends = [(0, 2048), (1, 1200), (2, 500), (4, 240), (8, 80), (16, 20), (32, 5)]
    buckets = [{"up_to": end, "elements": number, "beyond": 0} for end, number in ends]
    wrong = [{"up_to": 4096, "elements": 2, "beyond": 2}, {"up_to": None, "elements": 1, "beyond": 1}]
    told = {"compared": "compiled (inductor)", "against": "eager", "dtype": "float32", "buckets": [*buckets, *wrong]}
    return told | {"largest": 9_000_000, "worst": "gradient weight", "not_finite": 0, "left_out": 0} | changes


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_units_in_the_last_place_are_drawn_said_and_told_in_a_table(
    open_window: Any, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    same = units_apart(compared="compiled (aot_eager)", buckets=[{"up_to": 0, "elements": 4096, "beyond": 0}])
    rounding = units_apart(compared="cuda", against="the CPU", buckets=units_apart()["buckets"][:-2], largest=30)
    hostile = units_apart(compared="\u202e<img src=x onerror=alert(1)>", dtype="bfloat16", worst=LONG)
    identity = analysed(
        client,
        workshop,
        failing(check="compile_equivalence", path="pkg/a.py", line=6,
                evidence={"units_apart": [same, units_apart(), hostile]}),
        check(check="device_compare", device="cuda", evidence={"units_apart": [rounding, "no record"]}),
    )  # fmt: skip
    window = open_window(**options)
    window.open(f"/analyses/{identity}/targets/0")
    page = window.page
    charts = page.locator(".unit-chart")
    assert [head.split(", ")[-1] for head in charts.locator("figcaption").all_inner_texts()] == [
        "compiled (aot_eager) against eager compile_equivalence",
        "compiled (inductor) against eager compile_equivalence",
        "[U+202E]<img src=x onerror=alert(1)> against eager compile_equivalence",
        "cuda against the CPU device_compare",
    ]
    shows(charts.nth(0), "All 4,096 numbers are the same.")
    expect(charts.nth(0).locator("svg")).to_have_count(0)
    wrong = charts.nth(1)
    said = (
        "50 % of the 4,096 numbers agree exactly; 3 are further off than the check allows, by more than 1,024 units: "
    )
    shows(wrong, f"{said}that is not rounding.")
    assert (wrong.locator(".unit-bar").count(), wrong.locator(".unit-beyond").count()) == (9, 2)
    assert (charts.nth(3).locator(".unit-bar").count(), charts.nth(3).locator(".unit-beyond").count()) == (7, 0)
    for details in charts.get_by_text("The figures as a table").all():
        details.click()
    table = page.get_by_role("table", name="float32 on cpu, compiled (inductor) against eager, by units")
    rows = [" | ".join(row.locator("th, td").all_inner_texts()) for row in table.get_by_role("row").all()]
    assert rows[:2] == ["units apart | numbers | beyond", "0 | 2,048 | 0"]
    assert rows[-2:] == ["2,049 to 4,096 | 2 | 2", "more than 8,388,608 | 1 | 1"]
    for drawn in charts.locator("svg").all():
        box = drawn.bounding_box()
        assert box is not None
        assert 250 < box["width"] < 500
    assert_well_made(page)
    items = client.get(f"/api/v1/analyses/{identity}/findings").json()["items"]
    rested = next(item for item in items if item["rule"] == "compile_equivalence")
    window.open(f"/analyses/{identity}/findings/{rested['fingerprint']}")
    expect(charts).to_have_count(4)
    expect(charts.nth(1)).to_be_visible()  # open, since it is what the finding is about
    assert_well_made(page)


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_the_graph_of_a_call_shows_what_was_found_on_it_and_leads_there(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    node = {"kind": "operation", "label": "div", "from": [0], "lines": [[0, 6, 6]], "shape": [2, 3]}
    graph = {
        "nodes": [{"kind": "input", "label": "x", "from": [], "lines": []}, node],
        "files": ["pkg/a.py"],
        "operations": 1,
        "whole": True,
    }
    module = {"name": "norm<b>", "class": "Norm", "calls": 1, "own_forward_ms": 0.5, "own_saved_bytes": 48}
    profile = {"forward_ms": 0.5, "backward_ms": 0.7, "saved_bytes": 48, "modules": [module], "modules_in_all": 1}
    drawn = check(check="portrait", evidence={"graph": graph, "profile": profile})
    identity = analysed(client, workshop, failing(path="pkg/a.py", line=6), drawn)
    window = open_as(open_window, server, **options)
    window.open(f"/analyses/{identity}/targets/0")
    page = window.page
    picture = page.get_by_role("group", name="Graph of pkg.a:Norm")
    expect(picture.locator("svg")).to_be_visible()
    expect(picture.locator("[class*=hit-]")).to_have_count(1)
    page.get_by_text("Costs: forward 0.5 ms").click()
    shows(page.get_by_role("table", name="Costs of the modules of pkg.a:Norm"), "norm<b>")
    assert_well_made(page)
    follow(page.get_by_role("link", name="gradcheck: backward raises"))
    assert page.locator("article:target").get_by_role("heading").first.inner_text().startswith("✗ fail gradcheck")
    follow(page.locator("p", has_text="Coloured on it").get_by_role("link", name="GP").first)
    page.get_by_role("region", name="Where").wait_for()
    expect(page.get_by_role("group", name="Graph of pkg.a:Norm").locator("svg")).to_be_visible()


def test_the_grid_of_a_large_analysis_is_filtered_and_has_pages(
    client: httpx.Client, workshop: Workshop, server: RunningServer
) -> None:
    identity = analysed(client, workshop)
    _grow(server, identity, targets=5_000)
    visitor = signed_in(server)
    overview = visitor.get(f"/analyses/{identity}")
    grid = visitor.get(f"/analyses/{identity}/targets")
    for page in (overview, grid):
        assert page.status_code == 200
        assert len(page.content) < 300_000
    assert grid.text.count('<th scope="row"><a href="/analyses/') == 100
    second = visitor.get(f"/analyses/{identity}/targets?after=100").text
    assert "pkg.large:Target150" in second.replace("<wbr>", "")
    failing_only = visitor.get(f"/analyses/{identity}/targets?verdict=fail&text=target4").text
    rows = failing_only.partition("<tbody>")[2].split("<tr>")[1:]
    assert len(rows) == 44  # of 4, 40 to 49, 400 to 499 and 4000 to 4999 those that 25 divides
    assert all('class="v-fail"' in row for row in rows)
    assert "Targets with a failing check, the first 60" in overview.text


def _grow(server: RunningServer, identity: str, *, targets: int) -> None:
    """Rows as reading and running would leave them: every 25th target has a failing check."""
    database = Database.open(server.settings, lambda _queue: None)
    with database.unit_of_work() as uow:
        session = uow.session
        common = {"analysis_id": identity, "kind": "module", "path": "pkg/large.py", "line": 1, "end_line": 2}
        common |= {"import_root": "", "module": "pkg.large"}
        session.execute(
            insert(TargetRow),
            [
                common
                | {"id": f"t{number:025}", "position": number, "name": f"pkg.large:Target{number}",
                   "qualname": f"Target{number}"}
                for number in range(1, targets)
            ],
        )  # fmt: skip
        session.execute(
            insert(JobRow),
            [
                {"id": f"j{number:025}", "analysis_id": identity, "target_id": f"t{number:025}", "kind": "probe",
                 "queue": "cpu", "idempotency_key": f"{identity}:{number}", "state": "succeeded", "max_attempts": 3}
                for number in range(1, targets)
            ],
        )  # fmt: skip
        told = {"analysis_id": identity, "device": "cpu", "summary": "s", "evidence": {}, "duration_s": 0.1}
        session.execute(
            insert(CheckResultRow),
            [
                told
                | {"id": f"c{number:021}{place:04}", "target_id": f"t{number:025}", "job_id": f"j{number:025}",
                   "check_name": name, "verdict": "fail" if number % 25 == 0 and not place else "pass"}
                for number in range(1, targets)
                for place, name in enumerate(("gradcheck", "nan_gradient", "memory", "hvp"))
            ],
        )  # fmt: skip
        session.get_one(AnalysisRow, identity).totals = count_totals(session, identity).stored()
    database.close()


# ---------------------------------------------------------------------------------------------------- all of them


def paths_of(identity: str, client: httpx.Client) -> list[str]:
    """Every page of an analysis."""
    base = f"/analyses/{identity}"
    several = [f"{base}/findings/{fingerprint}" for fingerprint in fingerprints(client, identity)]
    return [
        base,
        f"{base}/findings",
        f"{base}/targets",
        f"{base}/targets/0",
        f"{base}/left-out",
        f"{base}/about",
        *several,
    ]


@pytest.mark.parametrize("options", LOOKS.values(), ids=LOOKS)
def test_every_page_is_well_made_and_hostile_text_does_nothing_on_it(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop, options: dict[str, Any]
) -> None:
    text = f"{' '.join(HOSTILE_TEXTS)} {LONG}"
    harness = HARNESS.model_copy(
        update={"constructor": text, "inputs": [text], "provenance": text, "reason": text, "code": text}
    )
    hostile = failing(
        summary=text,
        repro=text,
        evidence={"<b>": text, "errors": [{"dtype": text, "of": text, "error": 1.0, "rounding_alone": 0.1}]},
        path=HOSTILE_PATH,
        line=8,
        device="<i>cpu</i>",
    )
    wrong = wrong_gradient(check="gradgradcheck", path=HOSTILE_PATH, line=8)
    skipped = check(check="hvp", verdict="skipped", summary=text)
    files = {"pkg/__init__.py": "", HOSTILE_PATH: HOSTILE_MODULE}
    identity = analysed(client, workshop, hostile, wrong, skipped, files=files, harness=harness)
    running = client.post("/api/v1/analyses", files=upload()).json()["id"]
    failed = client.post("/api/v1/analyses", json={"git_url": "https://github.com/example/vision"}).json()["id"]
    workshop.fail("control", text)
    window = open_as(open_window, server, **options)
    dialogs: list[str] = []

    def dismiss(dialog: Any) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    window.page.on("dialog", dismiss)
    shown = ""
    odd = f"/analyses/{identity}/findings?text=%3Cscript%3E%E2%80%AE"
    for path in ["/analyses", *paths_of(identity, client), odd, f"/analyses/{running}", f"/analyses/{failed}"]:
        window.open(path)
        expect(window.page.locator("main script, main img, main b, main i")).to_have_count(0)
        expect(window.page.get_by_role("heading", level=1)).to_have_count(1)
        assert not set("\u202e\u2066\u200b\x1b") & set(window.page.content())
        assert_well_made(window.page)
        shown += window.page.locator("main").inner_text()
    assert dialogs == []
    assert "</code></pre><script>alert(3)</script>" in shown
    assert "[U+2066]" in shown
    assert "[U+001B]" in shown


def test_everything_can_be_read_without_javascript(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    identity = analysed(client, workshop)
    running = client.post("/api/v1/analyses", files=upload()).json()["id"]
    window = open_as(open_window, server, **NO_SCRIPT)
    window.open(f"/analyses/{identity}/targets/0")
    assert "backward raises" in window.page.content()
    window.open(f"/analyses/{running}")
    reads(window.page.get_by_role("heading", level=1), "Queued")
    workshop.read()
    workshop.probe(failing())
    follow(window.page.get_by_role("link", name="Reload the page"))
    window.page.get_by_role("heading", level=1, name="Failed").wait_for()


def test_light_or_dark_is_chosen_once_and_kept(open_window: Any, server: RunningServer) -> None:
    window = open_as(open_window, server, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    window.open("/analyses")
    page = window.page
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light", exact=True).click()
    light = page.evaluate(ground)
    assert light != dark
    expect(page.get_by_role("button", name="Light", exact=True)).to_have_attribute("aria-pressed", "true")
    window.open("/rules")
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="System", exact=True).click()
    assert page.evaluate(ground) == dark


def test_the_keyboard_alone_leads_through_the_page(open_window: Any, client: httpx.Client, workshop: Workshop) -> None:
    identity = analysed(client, workshop)
    window = open_window()
    window.open(f"/analyses/{identity}")
    page = window.page
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        element = page.evaluate("document.activeElement.tagName")
        if element == "BODY":  # behind the last element comes the browser itself
            break
        reached.add(element)
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", element
    assert {"A", "DIV", "SUMMARY"} <= reached


def test_a_page_that_is_printed_is_dark_on_white_whatever_was_chosen(
    open_window: Any, server: RunningServer, client: httpx.Client, workshop: Workshop
) -> None:
    identity = analysed(client, workshop)
    window = open_as(open_window, server, color_scheme="dark")
    window.open(f"/analyses/{identity}")
    window.page.emulate_media(media="print")
    assert window.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.page.evaluate("getComputedStyle(document.querySelector('main h1')).color") == "rgb(163, 22, 28)"
    expect(window.page.locator("header.site")).to_be_hidden()
    expect(window.page.get_by_role("table", name="Targets and checks")).to_be_visible()
