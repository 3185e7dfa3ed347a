"""The engine reads any bytes without raising, and says what it could not read."""

import random
from pathlib import Path

import pytest

from analyzer import file_analysis
from analyzer.engine import AnalyzerOptions, analyze_files, analyze_source
from analyzer.findings import Finding, Severity, StaticAnalysis
from analyzer.rules.division import HandNormalisation

CASES = Path(__file__).parents[1] / "cases"
FAULTY = "import torch\n\n\ndef unit(x):\n    return x / x.norm(dim=-1, keepdim=True)\n"


def rules(analysis: StaticAnalysis) -> list[str]:
    return [finding.rule for finding in analysis.findings]


def only(analysis: StaticAnalysis) -> Finding:
    assert len(analysis.findings) == 1, analysis.findings
    return analysis.findings[0]


def test_a_finding_says_where_in_characters() -> None:
    finding = only(analyze_source("import torch\ndef f(x):\n    return 'é€😀', x / x.norm()\n", "a.py"))
    assert (finding.region.start_line, finding.region.start_column) == (3, 19)
    assert finding.region.end_column == 19 + len("x / x.norm()")


def test_a_finding_in_a_format_string_has_its_exact_place() -> None:
    source = "import torch\ndef f(x):\n    y = f'é {x!r} and {(x / x.norm()):.3f}'\n    return y\n"
    findings = [finding for finding in analyze_source(source, "a.py").findings if finding.rule == "GP102"]
    line = source.split("\n")[2]
    assert [line[finding.region.start_column - 1 : finding.region.end_column - 1] for finding in findings] == [
        "x / x.norm()"
    ]


def test_a_finding_over_several_lines_spans_them() -> None:
    finding = only(analyze_source("import torch\ndef f(x):\n    return (\n        x\n        / x.norm()\n    )\n"))
    assert (finding.region.start_line, finding.region.end_line) == (4, 5)
    assert (finding.region.start_column, finding.region.end_column) == (9, 9 + len("/ x.norm()"))


def test_a_finding_names_its_symbol_by_module_and_definition(tmp_path: Path) -> None:
    package = tmp_path / "src" / "pkg" / "layers"
    package.mkdir(parents=True)
    for directory in (package, package.parent):
        (directory / "__init__.py").touch()
    (package / "norms.py").write_text(
        "import torch\nclass Unit(torch.nn.Module):\n    def forward(self, x):\n        return x / x.norm()\n"
    )
    paths = ["src/pkg/__init__.py", "src/pkg/layers/__init__.py", "src/pkg/layers/norms.py"]
    analysis = analyze_files(tmp_path, paths)
    finding = only(analysis)
    assert finding.symbol == "pkg.layers.norms.Unit.forward"
    assert finding.region.path == "src/pkg/layers/norms.py"
    assert (analysis.files, analysis.lines) == (3, 4)
    assert [target.name for target in analysis.targets] == ["pkg.layers.norms:Unit"]


def test_a_numerical_finding_carries_its_hypothesis_and_its_path() -> None:
    source = "import torch\ndef f(x, y):\n    n = x.norm()\n    z = n * 2\n    return y / z\n"
    finding = only(analyze_source(source, "a.py"))
    assert finding.settled_by == ("nan_gradient",)
    assert finding.hypothesis == {
        "operand": "z",
        "singular_set": "== 0",
        "operation": "division",
        "symbol": "a.f",
        "line": 5,
    }
    assert [related.region.start_line for related in finding.related] == [3, 4, 5]


def test_a_syntax_error_is_a_note_with_its_line_and_the_other_files_go_on(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\n\ndef f(:\n")
    (tmp_path / "good.py").write_text(FAULTY)
    analysis = analyze_files(tmp_path, ["good.py", "broken.py"])
    assert [(f.rule, f.region.path, f.region.start_line, f.severity) for f in analysis.findings] == [
        ("GP001", "broken.py", 3, Severity.NOTE),
        ("GP102", "good.py", 5, Severity.WARNING),
    ]
    assert "line 3" in analysis.findings[0].message


def test_a_latin_1_file_with_a_cookie_is_read_right() -> None:
    source = "# -*- coding: latin-1 -*-\n" + FAULTY.replace("def unit", "# caf\xe9\ndef unit")
    assert rules(analyze_source(source.encode("latin-1"), "a.py")) == ["GP102"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_byte_order_mark_and_any_line_end_are_read_right(line_end: str) -> None:
    data = b"\xef\xbb\xbf" + FAULTY.replace("\n", line_end).encode()
    finding = only(analyze_source(data, "a.py"))
    assert (finding.rule, finding.region.start_line, finding.region.start_column) == ("GP102", 5, 12)


def test_bytes_in_no_declared_encoding_are_named_by_their_offset() -> None:
    finding = only(analyze_source(b"import torch\nname = 'caf\xe9'\n", "a.py"))
    assert (finding.rule, finding.region.start_line) == ("GP002", 2)
    assert "0xe9 at offset 24" in finding.message
    assert "utf-8" in finding.message


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("x = " + "(" * 10_000 + "1" + ")" * 10_000, id="parentheses"),
        pytest.param("x = " + "[" * 10_000, id="open-brackets"),
        pytest.param("x = " + "-" * 10_000 + "1", id="signs"),
        pytest.param("x = " + "not " * 10_000 + "1", id="not"),
        pytest.param("x = a" + ".b" * 10_000, id="attributes"),
        pytest.param("x = a" + "()" * 10_000, id="calls"),
        pytest.param("x = 1" + " + 1" * 10_000, id="sum"),
        pytest.param("x = " + "lambda: " * 10_000 + "1", id="lambdas"),
        pytest.param("x = " + "1 if 1 else " * 10_000 + "1", id="conditionals"),
        pytest.param("if 1: pass\n" + "elif 1: pass\n" * 10_000, id="elif"),
        pytest.param("".join(" " * i + "if 1:\n" for i in range(200)) + " " * 200 + "1", id="indentation"),
    ],
)
def test_nesting_that_overflows_a_parser_is_a_note(source: str) -> None:
    finding = only(analyze_source("import torch\n" + source + "\n", "a.py"))
    assert finding.rule == "GP002"
    assert "nested too deeply" in finding.message


@pytest.mark.parametrize("depth", [50, 150, 800])
def test_nesting_that_a_parser_stands_does_not_overflow_the_analysis(depth: int) -> None:
    """Also with a hit inside, whose place is looked for: libcst would not survive some of these."""
    source = f"import torch\ndef f(x):\n    y = {'-' * depth}(x / x.norm())\n    return y{'.t()' * (depth // 4)}\n"
    assert rules(analyze_source(source, "a.py")) in (["GP102"], ["GP002"])


def test_a_file_over_the_limit_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "huge.py").open("wb") as stream:
        stream.truncate(50 * 1024 * 1024)
    finding = only(analyze_files(tmp_path, ["huge.py"]))
    assert finding.rule == "GP002"
    assert "50.0 MiB; the limit is 4.0 MiB" in finding.message


def test_a_file_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    finding = only(analyze_files(tmp_path, ["gone.py"]))
    assert finding.rule == "GP002"
    assert "can't be opened" in finding.message


def test_a_file_that_takes_too_long_is_given_up() -> None:
    finding = only(analyze_source(FAULTY, "a.py", options=AnalyzerOptions(max_seconds_per_file=0.0)))
    assert finding.rule == "GP002"
    assert "longer than 0 s" in finding.message


def test_a_mistake_in_a_rule_costs_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise KeyError("broken table")

    monkeypatch.setattr(HandNormalisation, "check", fail)
    (tmp_path / "a.py").write_text(FAULTY)
    (tmp_path / "b.py").write_text("x = 1\n")
    finding = only(analyze_files(tmp_path, ["a.py", "b.py"]))
    assert (finding.rule, finding.region.path) == ("GP002", "a.py")
    assert "GP102" in finding.message


def test_only_the_chosen_rules_run() -> None:
    assert rules(analyze_source(FAULTY, options=AnalyzerOptions(rules=frozenset({"GP101"})))) == []
    assert rules(analyze_source(FAULTY, options=AnalyzerOptions(rules=frozenset({"GP102"})))) == ["GP102"]


def test_a_file_without_torch_is_parsed_and_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected() -> None:
        raise AssertionError("rules were asked for")

    monkeypatch.setattr(file_analysis, "all_rules", unexpected)
    assert rules(analyze_source("def unit(x):\n    return x / x.norm()\n")) == []


@pytest.mark.parametrize(
    "cookie", ["punycode", "idna", "rot13", "hex", "utf-7", "unicode_escape", "utf-16", "\xff", "no-such"]
)
def test_strange_encodings_do_not_crash(cookie: str) -> None:
    data = f"# coding: {cookie}\nimport torch\n".encode("latin-1") + b"x = 1\n" * 1000
    assert set(rules(analyze_source(data, "a.py"))) <= {"GP001", "GP002"}


@pytest.mark.parametrize("text", ["", "\n", "\f", "\x1a", "\ud800", "x = '\ud800'", "\ufeff\ufeff", "\\", "x = 1\\"])
def test_odd_texts_do_not_crash(text: str) -> None:
    analyze_source(text, "a.py")


@pytest.mark.parametrize("value", ["True", "False", "None"])
def test_a_case_of_a_constant_is_read(value: str) -> None:
    source = f"import torch\n\n\ndef f(x):\n    match x:\n        case {value}:\n            return torch.ones(1)\n"
    assert analyze_source(source, "a.py").findings == ()


def test_mutated_real_files_never_raise() -> None:
    """Words deleted and doubled, files cut short, bytes flipped: 400 mutants of the faulty and right cases."""
    random_source = random.Random(7)
    originals = [path.read_bytes() for path in sorted(CASES.glob("*.py"))]
    for _ in range(400):
        data = bytearray(random_source.choice(originals))
        words = bytes(data).split(b" ")
        action = random_source.randrange(4)
        if action == 0:
            del words[random_source.randrange(len(words))]
            mutant = b" ".join(words)
        elif action == 1:
            place = random_source.randrange(len(words))
            words[place:place] = words[place : place + random_source.randrange(1, 20)]
            mutant = b" ".join(words)
        elif action == 2:
            mutant = bytes(data[: random_source.randrange(len(data))])
        else:
            for _ in range(random_source.randrange(1, 30)):
                data[random_source.randrange(len(data))] = random_source.randrange(256)
            mutant = bytes(data)
        failed = [f.message for f in analyze_source(mutant, "a.py").findings if "failed on it" in f.message]
        assert failed == []
