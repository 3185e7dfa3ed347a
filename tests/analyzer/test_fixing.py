"""Fixes change what they must and nothing else, and what they leave behind is clean."""

import ast

import pytest

from analyzer import fixing
from analyzer.context import FileContext
from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.file_analysis import FileResult, Surroundings
from analyzer.findings import Confidence, Edit, Finding, Fix, FixSafety, Region, Severity
from analyzer.fixing import apply_edits, fix_source, without_overlaps
from analyzer.registry import all_rules
from analyzer.rewriting import fix_of
from analyzer.rules.base import Invalid, Replacement, Rewrite, Rule

FIXING = [rule for rule in all_rules() if rule.fix is not FixSafety.NONE]
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.id}-{i}") for rule in FIXING for i, example in enumerate(rule.invalid)
]


def loud(source: bytes | str) -> list[str]:
    found = analyze_source(source, "package/layers.py").findings
    return sorted(finding.rule for finding in found if finding.severity is not Severity.NOTE)


def as_bytes(source: str | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.encode()


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_fixed_example_is_clean(rule: Rule, example: Invalid) -> None:
    data = as_bytes(example.source)
    options = AnalyzerOptions(rules=frozenset({rule.id}))
    fixable = [
        finding for finding in analyze_source(data, "package/layers.py", options=options).findings if finding.fix.edits
    ]
    fixed = fix_source(data, "package/layers.py", unsafe=True, options=options)
    assert [(left.finding.rule, left.reason) for left in fixed.left] == []
    assert len(fixed.applied) >= len(fixable)
    after = analyze_source(fixed.data, "package/layers.py", options=options).findings
    assert [finding for finding in after if finding.fix.edits] == []
    remaining = loud(fixed.data)
    for name in set(remaining):
        assert remaining.count(name) <= loud(data).count(name), f"the fix brings up {name}"


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.id)
def test_a_rule_says_truly_whether_and_how_safely_it_fixes(rule: Rule) -> None:
    options = AnalyzerOptions(rules=frozenset({rule.id}))
    offered = {
        finding.fix.safety
        for example in rule.invalid
        for finding in analyze_source(example.source, "package/layers.py", options=options).findings
        if finding.fix.edits
    }
    if rule.fix is FixSafety.NONE:
        assert offered == set()
    elif rule.fix is FixSafety.SAFE:
        assert FixSafety.SAFE in offered, "no example shows a safe fix"
    else:
        assert offered == {FixSafety.UNSAFE}


# --- the text outside the edits ---------------------------------------------------------------------------------


def edit(line: int, start: int, end: int, text: str, *, end_line: int | None = None) -> Edit:
    return Edit(Region("x.py", line, start, end_line or line, end), text)


def test_line_ends_of_every_kind_survive_an_edit() -> None:
    assert apply_edits("a\r\nbb\rcc\ndd", [edit(2, 1, 3, "x"), edit(4, 1, 3, "y")]) == "a\r\nx\rcc\ny"


def test_new_lines_get_the_line_end_that_the_file_uses() -> None:
    assert apply_edits("a\r\nb\r\n", [edit(2, 1, 2, "x\ny")]) == "a\r\nx\r\ny\r\n"


def test_a_byte_order_mark_is_no_column() -> None:
    assert apply_edits("\ufeffab", [edit(1, 1, 2, "x")]) == "\ufeffxb"


def test_columns_count_characters_and_not_bytes() -> None:
    assert apply_edits("ä = é + 1", [edit(1, 5, 6, "x")]) == "ä = x + 1"


def test_the_same_edit_of_two_rules_is_made_once() -> None:
    assert apply_edits("abc", [edit(1, 2, 3, "x"), edit(1, 2, 3, "x")]) == "axc"


def test_a_last_line_without_an_end_can_be_deleted() -> None:
    assert apply_edits("a\nb", [edit(2, 1, 1, "", end_line=3)]) == "a\n"


def finding(rule: str, *edits: Edit) -> Finding:
    return Finding(
        rule + str(edits),
        rule,
        rule,
        Severity.WARNING,
        Confidence.HIGH,
        edits[0].region,
        "",
        "",
        fix=Fix(FixSafety.SAFE, edits),
    )


def test_of_overlapping_fixes_the_first_wins_and_neighbours_both_stay() -> None:
    first, inside, neighbour = (
        finding("A", edit(1, 1, 6, "x")),
        finding("B", edit(1, 3, 5, "y")),
        finding("C", edit(1, 6, 8, "z")),
    )
    assert without_overlaps([neighbour, inside, first]) == [first, neighbour]


def test_two_rules_that_want_the_same_edit_are_both_satisfied_by_it() -> None:
    one, other = finding("A", edit(1, 1, 6, "x")), finding("B", edit(1, 1, 6, "x"))
    assert without_overlaps([one, other]) == [one, other]


# --- rewriting nodes --------------------------------------------------------------------------------------------


def rewritten(source: str, pick: type[ast.AST], text: str, *, nth: int = 0) -> str:
    tree = ast.parse(source)
    file = FileContext(path="x.py", module="x", text=source, tree=tree)
    node = [node for node in ast.walk(tree) if type(node) is pick][nth]
    assert isinstance(node, (ast.expr, ast.stmt))
    fix = fix_of(file, Rewrite(FixSafety.SAFE, (Replacement(node, text),)))
    return apply_edits(source, fix.edits)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("y = f(x) * 2\n", "a + b", "y = (a + b) * 2\n"),
        ("y = f(x) + 2\n", "a + b", "y = a + b + 2\n"),
        ("y = 2 - f(x)\n", "a + b", "y = 2 - (a + b)\n"),
        ("y = f(x).g\n", "a + b", "y = (a + b).g\n"),
        ("y = f(x)[0]\n", "-a", "y = (-a)[0]\n"),
        ("y = (f(x)) ** 2\n", "a / b", "y = (a / b) ** 2\n"),
        ("y = f(x) ** 2\n", "a / b", "y = (a / b) ** 2\n"),
        ("y = 2 ** f(x)\n", "-a", "y = 2 ** -a\n"),
        ("y = -f(x)\n", "a + b", "y = -(a + b)\n"),
        ("y = g(f(x), k=1)\n", "a + b", "y = g(a + b, k=1)\n"),
        ("y = not f(x)\n", "a if b else c", "y = not (a if b else c)\n"),
        ("y = f(x)  # why\n", "a +\nb", "y = (a +\nb)  # why\n"),
        ("y = f(x)\n", "(a, b)", "y = (a, b)\n"),
        ("y = f(x)\n", "a, b", "y = a, b\n"),
        ("y = f(x) * 2\n", "(a) + (b)", "y = ((a) + (b)) * 2\n"),
        ("y = f(x) * 2\n", "(a + b)", "y = (a + b) * 2\n"),
        ("y = g(k=f(x))\n", "a, b", "y = g(k=(a, b))\n"),
    ],
)
def test_a_replaced_expression_gets_the_parentheses_it_needs(source: str, text: str, expected: str) -> None:
    nth = 1 if source.startswith("y = g(") else 0
    assert rewritten(source, ast.Call, text, nth=nth) == expected
    ast.parse(expected)


def test_statements_are_indented_like_the_one_they_replace() -> None:
    source = "def f(x):\n    if x:\n        return g(x)  # kept\n"
    assert (
        rewritten(source, ast.Return, "y = 1\nreturn y")
        == "def f(x):\n    if x:\n        y = 1\n        return y  # kept\n"
    )


def test_a_statement_that_goes_takes_its_line_along() -> None:
    assert rewritten("def f():\n    g()  # gone\n    return 1\n", ast.Expr, "") == "def f():\n    return 1\n"


def test_the_only_statement_of_a_block_becomes_pass() -> None:
    assert rewritten("def f():\n    g()\n", ast.Expr, "") == "def f():\n    pass\n"


def test_what_stands_in_an_f_string_is_not_rewritten() -> None:
    assert rewritten('y = f"{g(x)}"\n', ast.Call, "a") == 'y = f"{g(x)}"\n'


def test_a_text_that_is_no_expression_yields_no_fix() -> None:
    assert rewritten("y = f(x)\n", ast.Call, "a +") == "y = f(x)\n"


# --- whole files ------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_python_is_left_as_it_is_and_says_why() -> None:
    fixed = fix_source(b"def f(:\n")
    assert fixed.data == b"def f(:\n"
    assert fixed.problem is not None
    assert "line 1" in fixed.problem


def test_a_file_without_anything_to_fix_keeps_every_byte() -> None:
    data = b"\xef\xbb\xbfimport torch\r\nx = 1\r\n\r"
    assert fix_source(data).data == data


def test_a_fix_that_does_not_help_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ny = torch.x\n"
    stubborn = finding("GP999", edit(2, 5, 12, "torch.x"))

    monkeypatch.setattr(fixing, "analyze_text", lambda *_: FileResult((stubborn,)))
    fixed = fix_source(source.encode())
    assert fixed.data == source.encode()
    assert [left.reason for left in fixed.left] == ["the fix does not remove the finding"]


def test_of_two_fixes_the_one_that_breaks_the_file_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = finding("GP998", edit(1, 5, 6, "2")), finding("GP999", edit(2, 5, 6, "("))
    real = fixing.analyze_text

    def analysed(text: str, path: str, surroundings: Surroundings, options: AnalyzerOptions) -> FileResult:
        broken = real(text, path, surroundings, options).findings
        left = [item for item, old in ((good, "x = 1"), (bad, "y = 1")) if old in text]
        return FileResult((*broken, *left))

    monkeypatch.setattr(fixing, "analyze_text", analysed)
    fixed = fix_source(b"x = 1\ny = 1\n")
    assert fixed.data == b"x = 2\ny = 1\n"
    assert [(left.finding.rule, left.reason) for left in fixed.left] == [
        ("GP999", "the fixed file would not be valid Python")
    ]
