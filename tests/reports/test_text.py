"""The text report tells a person in a terminal what is wrong, and steers the terminal only with our own colours."""

from __future__ import annotations

import json
import re
from pathlib import Path

from analyzer.findings import Region, Related
from services.reports.document import BaselineEntry, BaselineInfo
from services.reports.formats import Rendering, report_format
from services.reports.sources import DirectorySources, Sources
from tests.reports.samples import SOURCE, finding, hostile_report, report_of, rich_report

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def sources(root: Path, text: str = SOURCE, encoding: str = "utf-8") -> Sources:
    (root / "pkg").mkdir()
    (root / "pkg/a.py").write_bytes(text.encode(encoding))
    return DirectorySources(root)


def test_it_shows_place_message_excerpt_caret_verdict_and_gate(tmp_path: Path) -> None:
    written = report_format("text").render(rich_report(), Rendering(sources(tmp_path)))
    assert "pkg/a.py:18:16  warning  GP102 hand-normalisation  not exercised" in written
    assert "  18 |         return x / x.norm()\n     |                ^^^^^^^^^^^^\n" in written
    assert "  17 |     def forward(self, x):\n     |                       - x may be a row of zeros\n" in written
    assert "    -         return x / x.norm()\n    +         return torch.nn.functional.normalize(x)\n" in written
    assert "1 file, 18 lines read: 1 error, 1 warning, 1 with a safe fix (`gradproof fix`)" in written
    assert "; 1 suppressed in source" in written.replace("\n", " ")
    assert "confirmed: gradcheck on pkg.a:Square (cpu) failed in Square" in written
    assert "fix (safe" in written
    assert "pkg.a:Square  C      fail       pass                 -" in written
    assert "  C: guessed: it runs, but its author may call it otherwise" in written
    assert "1 x constructor unsolved\n      pkg.a:Lonely: `size` has no default\n" in written
    assert "1 x device_compare skipped: no CUDA device\n      pkg.a:Norm\n" in written
    assert "Gate failed in 1.2 s" in written
    assert "  ok   analysis complete" in written


def test_it_says_what_to_do_next(tmp_path: Path) -> None:
    written = report_format("text").render(rich_report(), Rendering(sources(tmp_path)))
    assert "why: gradproof explain GP102" in written
    assert "docs/" not in written
    assert "called with " in written
    assert "--format html" in written


def test_colour_only_adds_codes(tmp_path: Path) -> None:
    quoted = sources(tmp_path)
    plain = report_format("text").render(rich_report(), Rendering(quoted))
    coloured = report_format("text").render(rich_report(), Rendering(quoted, colour=True))
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert ANSI.sub("", coloured) == plain


def test_submitted_text_can_not_steer_the_terminal() -> None:
    plain = report_format("text").render(hostile_report(), Rendering())
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]", plain)
    coloured = ANSI.sub("", report_format("text").render(hostile_report(), Rendering(colour=True)))
    assert "\x1b" not in coloured


def test_prose_keeps_to_the_width(tmp_path: Path) -> None:
    report = report_of((finding(message="word " * 100),))
    written = report_format("text").render(report, Rendering(sources(tmp_path), width=72))
    assert max(len(line) for line in written.splitlines()) <= 72


def test_the_caret_stands_under_the_place_behind_tabs_and_wide_escapes(tmp_path: Path) -> None:
    text = "\n" * 17 + "\treturn x / x.norm()\n"
    region = finding().region.__class__("pkg/a.py", 18, 9, 18, 21)
    written = report_format("text").render(report_of((finding(region=region),)), Rendering(sources(tmp_path, text)))
    quoted, caret = re.findall(r".*(?: 18 \| | \|  *\^).*", written)
    assert quoted[caret.index("^") : caret.rindex("^") + 1] == "x / x.norm()"


def test_latin_1_and_a_byte_order_mark_read_right(tmp_path: Path) -> None:
    text = "# -*- coding: latin-1 -*-\n# é\n" + SOURCE
    region = finding().region.__class__("pkg/a.py", 2, 3, 2, 4)
    written = report_format("text").render(
        report_of((finding(region=region),)), Rendering(sources(tmp_path, text, "latin-1"))
    )
    assert "# é" in written
    (tmp_path / "pkg/b.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert DirectorySources(tmp_path).lines("pkg/b.py")[0] == "x = 1"


def test_a_path_out_of_the_sandbox_is_quoted_only_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.py").write_text("token\n", encoding="utf-8")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    (root / "directory").mkdir()
    reader = DirectorySources(root)
    for path in ("../secret.py", str(tmp_path / "secret.py"), "link.py", "directory", "absent.py", "a\x00b", ""):
        assert reader.lines(path) == ()


def test_form_feeds_do_not_shift_the_lines(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\n\x0c\ntwo\u2028still two\nthree\n", encoding="utf-8")
    assert DirectorySources(tmp_path).lines("a.py")[3] == "three"


def test_an_analysis_with_nothing_to_say_is_short() -> None:
    written = report_format("text").render(report_of(), Rendering())
    assert len(written.splitlines()) < 12
    assert "Gate passed" in written


def test_how_much_memory_a_sandbox_took_is_told_where_it_was_measured() -> None:
    report = rich_report()
    measured = report.analysis.model_copy(update={"peak_memory_bytes": 812 * 2**20})
    told = report.model_copy(update={"analysis": measured})
    text, html = (report_format(name).render(told, Rendering()) for name in ("text", "html"))
    assert "sandbox: bwrap-user, 812 MiB at most;" in " ".join(text.split())
    assert "<dd>bwrap-user, 812 MiB of memory in use at most</dd>" in html
    assert json.loads(report_format("json").render(told, Rendering()))["analysis"]["peak_memory_bytes"] == 851443712
    assert "MiB" not in report_format("text").render(report, Rendering())


def test_the_gate_of_a_running_analysis_is_not_decided_yet() -> None:
    report = report_of((finding(),), status="running")
    assert "The gate is not decided yet: the analysis is running" in report_format("text").render(report, Rendering())
    assert "## Gradproof: running, the gate is not decided yet" in report_format("markdown").render(report, Rendering())
    assert "<h1>Running</h1>" in report_format("html").render(report, Rendering())


def quoted_with_caret(written: str) -> str:
    """What the carets stand under, by columns."""
    lines = written.splitlines()
    at = next(number for number, line in enumerate(lines) if re.fullmatch(r"\s+\|\s+\^+", line))
    return lines[at - 1][lines[at].index("^") : lines[at].rindex("^") + 1]


def place(line: int, start: int, end: int, path: str = "pkg/a.py", cell: int = 0) -> Region:
    return Region(path, line, start, line, end, cell)


def test_a_long_line_is_cut_around_the_caret(tmp_path: Path) -> None:
    text = "y = [" + "1, " * 300 + "x / x.norm(), " + "2, " * 300 + "]\n"
    begin = text.index("x / ") + 1
    report = report_of((finding(region=place(1, begin, begin + 12)),))
    written = report_format("text").render(report, Rendering(sources(tmp_path, text), width=80))
    assert max(len(line) for line in written.splitlines()) <= 80
    assert quoted_with_caret(written) == "x / x.norm()"
    assert re.search(r"1 \| ….*…\n", written)


def test_a_mark_longer_than_the_screen_ends_there(tmp_path: Path) -> None:
    report = report_of((finding(region=place(1, 5, 900)),))
    written = report_format("text").render(report, Rendering(sources(tmp_path, "y = " + "x" * 1000 + "\n"), width=80))
    assert max(len(line) for line in written.splitlines()) <= 80


def test_wide_characters_take_two_columns_and_combining_ones_none(tmp_path: Path) -> None:
    text = "日本 = e\u0301; y = x / x.norm()\n"
    begin = text.index("x / ") + 1
    report = report_of((finding(region=place(1, begin, begin + 12)),))
    written = report_format("text").render(report, Rendering(sources(tmp_path, text)))
    caret = next(line for line in written.splitlines() if "^" in line)
    # Two wide characters take a column more each than they count, the combining one takes one less.
    assert caret.index("^") == len("   1 | ") + begin - 1 + 2 - 1


def test_related_places_stand_in_the_same_excerpt_in_the_order_of_lines(tmp_path: Path) -> None:
    related = (
        Related(place(17, 23, 24), "it comes from here"),
        Related(place(18, 20, 28), "and nothing keeps it from zero"),
        Related(place(4, 7, 13), "long before"),
    )
    written = report_format("text").render(report_of((finding(related=related),)), Rendering(sources(tmp_path)))
    excerpt = [line for line in written.splitlines() if re.match(r"\s+\d* ?[|…]", line)]
    texts = [line.split("|", 1)[-1].strip() for line in excerpt]
    assert texts.index("- it comes from here") < texts.index("^^^^^^^^^^^^")
    assert texts.index("^^^^^^^^^^^^") < texts.index("-------- and nothing keeps it from zero")
    assert texts.index("------ long before") < texts.index("…") < texts.index("- it comes from here")


def test_a_related_place_in_another_file_is_quoted_with_its_name(tmp_path: Path) -> None:
    quoted = sources(tmp_path)
    (tmp_path / "pkg/b.py").write_text("def norm(x):\n    return x.norm()\n")
    related = (Related(place(2, 12, 20, "pkg/b.py"), "the norm is made here"),)
    written = report_format("text").render(report_of((finding(related=related),)), Rendering(quoted))
    assert "  pkg/b.py:2: the norm is made here\n   2 |     return x.norm()\n     |            --------\n" in written


def test_a_place_in_a_notebook_is_told_and_quoted_by_its_cell(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "# x"},
        {"cell_type": "code", "source": ["y = 1\n", "y = x / x.norm()"]},
    ]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    report = report_of((finding(region=place(2, 5, 17, "n.ipynb", cell=2)),))
    written = report_format("text").render(report, Rendering(DirectorySources(tmp_path)))
    assert written.startswith("n.ipynb:cell 2:2:5  warning")
    assert "   1 | y = 1\n   2 | y = x / x.norm()\n     |     ^^^^^^^^^^^^\n" in written
    assert "n.ipynb:cell 2:2" in report_format("markdown").render(report, Rendering())
    assert ">cell 2:2:5<" in report_format("html").render(report, Rendering())
    assert "n.ipynb:cell 2:2" in report.gate.conditions[2].explanation


def test_where_nothing_was_run_no_finding_speaks_of_running(tmp_path: Path) -> None:
    report = report_of((finding(),))
    report.tool.torch = None
    written = report_format("text").render(report, Rendering(sources(tmp_path)))
    assert "not exercised" not in written
    assert "would settle this" not in written


def test_a_rule_is_explained_once(tmp_path: Path) -> None:
    report = report_of((finding(), finding(fingerprint="2")))
    written = report_format("text").render(report, Rendering(sources(tmp_path)))
    assert written.count("gradproof explain GP102") == 1


def test_entries_of_the_baseline_that_are_gone_are_told() -> None:
    entry = BaselineEntry(fingerprint="9", rule="GP101", path="pkg/old.py", message="a division")
    report = report_of((finding(),)).model_copy(
        update={"baseline": BaselineInfo(file="known.json", entries=2, gone=[entry])}
    )
    written = report_format("text").render(report, Rendering())
    assert "1 entry of the baseline is no longer found" in written
    assert "GP101 in pkg/old.py: a division" in written


def test_what_is_known_is_counted_and_not_shown(tmp_path: Path) -> None:
    report = report_of((finding(), finding(fingerprint="2", message="this one is new")))
    report.findings[0].is_new = False
    written = report_format("text").render(report, Rendering(sources(tmp_path)))
    assert written.count("pkg/a.py:18:16  warning") == 1
    assert "this one is new" in written
    assert "2 warnings; 1 known and not shown" in written


def test_no_line_of_a_log_is_a_command_to_github() -> None:
    report = report_of(
        (
            finding(region=Region("::error::x/a.py", 1, 1, 1, 2), message="one ::warning:: two " * 40),
            finding(message="::stop-commands::x"),
            finding(message="text ##[error]forged"),
        )
    )
    for colour in (False, True):
        written = report_format("text").render(report, Rendering(colour=colour))
        assert not re.search(r"^\s*::", ANSI.sub("", written), re.MULTILINE)
        assert "##[" not in written
        assert ": :stop-commands::x" in written
