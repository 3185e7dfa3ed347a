"""The compliance record as a page to print and as a file that proves itself."""

from __future__ import annotations

import html
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from services.accounts.access import SYSTEM
from services.database import Database
from services.projects.models import ProjectRow
from services.reports.compliance import verify
from services.settings import Settings
from services.triage.inbox import Inbox
from services.triage.model import FindingFilter
from services.triage.service import TriageService
from tests.pages.looks import LOOKS, NO_SCRIPT, assert_well_made, follow, open_as, signed_in
from tests.reports.samples import check, failing
from tests.serving import RunningServer, Workshop, upload
from tests.team_rows import Rows

HOSTILE = "\u202e<script>alert(1)</script> **bold**"


@pytest.fixture
def rows(embedded_settings: Settings) -> Iterator[Rows]:
    database = Database.open(embedded_settings, lambda _queue: None)
    yield Rows(database)
    database.close()


@pytest.fixture
def analysis(client: httpx.Client, workshop: Workshop, rows: Rows) -> str:
    """An analysis of a project, with a finding that somebody accepted."""
    identity = client.post("/api/v1/analyses", files=upload(), data={"project": "vision"}).json()["id"]
    workshop.read()
    workshop.probe(failing(path="pkg/a.py", line=6), check(check="compile_equivalence"))
    (finding, *_) = Inbox(rows.database).findings(SYSTEM, "vision", FindingFilter()).items
    TriageService(rows.database).accept(SYSTEM, "vision", finding.fingerprint, HOSTILE)
    return str(identity)


@pytest.mark.parametrize("options", [*LOOKS.values(), NO_SCRIPT], ids=[*LOOKS, "no script"])
def test_the_page_says_what_was_checked_with_what_and_who_accepted_what(
    open_window: Any, server: RunningServer, analysis: str, options: dict[str, Any]
) -> None:
    window = open_as(open_window, server, **options)
    page = window.page
    window.open(f"/analyses/{analysis}")
    page.get_by_text("Download report").click()
    follow(page.get_by_role("link", name="Compliance record"))
    page.wait_for_url("**/compliance")
    text = page.locator("main").inner_text()
    for told in (
        "sha256:",
        "torch",
        "2.13.0",
        "seed",
        "vision",
        "Gradproof",
        "[U+202E]<script>",
        "compile_equivalence",
    ):
        assert told in text, told
    expect(page.locator("main script, main b")).to_have_count(0)
    if options is not NO_SCRIPT:
        assert_well_made(page)


def test_it_is_printed_without_what_only_a_screen_has(open_window: Any, server: RunningServer, analysis: str) -> None:
    window = open_as(open_window, server)
    window.open(f"/analyses/{analysis}/compliance")
    window.page.emulate_media(media="print")
    expect(window.page.get_by_role("navigation", name="Main")).to_be_hidden()
    expect(window.page.get_by_text("How to verify a record")).to_be_hidden()
    expect(window.page.get_by_role("heading", name="Findings, and who accepted what")).to_be_visible()
    assert window.page.pdf().startswith(b"%PDF")


def test_the_file_proves_itself_by_the_command_that_the_page_names(
    server: RunningServer, analysis: str, tmp_path: Path
) -> None:
    session = signed_in(server)
    answer = session.get(f"/analyses/{analysis}/compliance.json")
    name = answer.headers["content-disposition"].partition('filename="')[2].rstrip('"')
    record = answer.json()
    assert verify(record)
    page = session.get(f"/analyses/{analysis}/compliance").text
    assert record["digest"] in page
    command = (
        page.partition('aria-label="command to verify a record"')[2].partition("<code>")[2].partition("</code>")[0]
    )
    command = html.unescape(command).replace("python3", sys.executable)
    (tmp_path / name).write_bytes(answer.content)
    assert said(command, tmp_path) == "as it was written\n"
    record["gate"]["passed"] = not record["gate"]["passed"]
    (tmp_path / name).write_text(json.dumps(record))
    assert said(command, tmp_path) == "ALTERED\n"


def said(command: str, directory: Path) -> str:
    """What a command of a page prints, run as a person would in a terminal."""
    return subprocess.run(shlex.split(command), cwd=directory, capture_output=True, text=True, check=True).stdout


def test_whose_analysis_it_is_not_gets_none(server: RunningServer, rows: Rows, analysis: str) -> None:
    stranger = signed_in(server, user=rows.user("max"))
    for path in (f"/analyses/{analysis}/compliance", f"/analyses/{analysis}/compliance.json", "/analyses/x/compliance"):
        assert stranger.get(path).status_code == 404
    with rows.database.reading() as session:
        project = session.scalars(select(ProjectRow.id)).one()
    viewer = signed_in(server, user=rows.user("eve", "viewer", project=project))
    assert viewer.get(f"/analyses/{analysis}/compliance").status_code == 200
