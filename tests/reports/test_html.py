"""The HTML report is one file without scripts, in which hostile text stays text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from services.reports.document import PlanInfo, Report
from services.reports.formats import Rendering, report_format
from services.reports.formats.html import prose
from services.reports.sources import DirectorySources
from services.reports.untrusted import visible
from tests.reports.samples import HOSTILE_TEXTS, SOURCE, check, hostile_report, report_of, rich_report, target

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "footer", "div", "p"),
    *("h1", "h2", "h3", "h4", "ul", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td"),
    *("a", "span", "strong", "code", "pre", "mark", "details", "summary", "br", "wbr"),
    *("svg", "desc", "rect", "text"),
}


class Reader(HTMLParser):
    """Collects elements, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        self.ids += [value for key, value in attrs if key == "id" and value]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(report: Report, rendering: Rendering | None = None) -> Reader:
    reader = Reader()
    reader.feed(report_format("html").render(report, rendering or Rendering()))
    return reader


def test_hostile_text_adds_no_element_no_attribute_and_no_link() -> None:
    for report in (hostile_report(), rich_report()):
        reader = read(report)
        assert set(reader.elements) <= ALLOWED
        names = {name for name, _ in reader.attributes}
        assert not {name for name in names if name.startswith("on")}
        assert "src" not in names
        assert "style" not in names
        links = [value or "" for name, value in reader.attributes if name == "href"]
        assert all(link.startswith(("#", "docs/rules/")) for link in links)


def test_hostile_text_is_shown_in_full_with_what_it_hides() -> None:
    shown = " ".join(read(hostile_report()).text.split())
    for hostile in HOSTILE_TEXTS:
        assert " ".join(visible(hostile).split()) in shown
    assert "[U+202E]gnp.elif[U+202C]" in shown
    for hidden in "\u202e\u2066\u200b\x1b\x00\x07":
        assert hidden not in shown


def test_the_page_needs_nothing_from_anywhere() -> None:
    page = report_format("html").render(rich_report(), Rendering())
    assert "<script" not in page
    assert "<link" not in page
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page


def test_every_link_within_the_page_leads_somewhere_and_every_id_is_unique() -> None:
    reader = read(rich_report())
    assert len(reader.ids) == len(set(reader.ids))
    inner = {value[1:] for name, value in reader.attributes if name == "href" and value and value.startswith("#")}
    assert inner <= set(reader.ids)


def test_it_quotes_the_source_marks_the_place_and_shows_the_evidence(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_text(SOURCE, encoding="utf-8")
    page = report_format("html").render(rich_report(), Rendering(DirectorySources(tmp_path)))
    assert "<mark>x / x.norm()</mark>" in page
    text = " ".join(read(rich_report()).text.split())
    assert "backward raises: returned 2 gradients, expected 1" in text
    assert "constructor unsolved (1)" in text
    assert "rows are never zero: see Norm.forward" in text


def test_of_a_target_comes_first_what_somebody_has_to_look_at() -> None:
    checks = tuple(check(check=name, verdict=name) for name in ("skipped", "pass", "inconclusive", "fail", "error"))
    text = read(report_of(targets=(target(checks=checks),))).text
    places = [text.rindex(f"{name} on cpu") for name in ("fail", "error", "inconclusive", "pass", "skipped")]
    assert places == sorted(places)


def test_a_report_says_what_its_budget_left_out() -> None:
    plan = PlanInfo(budget_s=120.0, planned=5000, run=16, left_out={"budget spent": 4984}, checks=["gradcheck"])
    text = " ".join(read(report_of().model_copy(update={"plan": plan})).text.split())
    assert "4984 budget spent (120 s)" in text
    assert "left out" not in read(report_of()).text


def test_a_report_says_which_checks_the_time_of_targets_did_not_suffice_for() -> None:
    plan = PlanInfo(budget_s=None, planned=3, run=3, checks=["gradcheck", "hvp"], checks_left_out={"hvp": 2})
    text = " ".join(read(report_of().model_copy(update={"plan": plan})).text.split())
    assert "hvp of 2 targets: their time did not suffice" in text
    assert "checks left out" not in read(report_of()).text


def test_an_empty_report_says_so() -> None:
    text = " ".join(read(report_of()).text.split())
    assert "Reading found nothing to object to." in text
    assert "No target was run: there is no module, autograd function or tensor function that could be." in text


def test_what_stands_between_back_ticks_is_set_as_code_and_a_lone_one_stays() -> None:
    assert prose("`a < b` is") == "<code>a &lt; b</code> is"
    assert prose("a ` b") == "a ` b"
    assert prose("`x` and ` <i>") == "<code>x</code> and ` &lt;i&gt;"
    assert prose("\u202e") == "[U+202E]"
