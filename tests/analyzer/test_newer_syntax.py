"""Syntax of Python 3.12 to 3.14 is read on 3.11, and findings in it keep their exact places."""

from __future__ import annotations

import ast

import pytest

from analyzer.engine import analyze_source
from analyzer.newer_syntax import comments, parse_newer
from analyzer.source import InvalidSyntaxError, parse

FAULT = "x / x.norm(dim=-1)"
# `@` stands for the fault. Each construct is one that Python 3.11 refuses, unless its name says otherwise.
CONSTRUCTS = {
    "type parameters of a function": "def f[T](x: T):\n    return @\n",
    "a body on the line of the type parameters": "def f[T: int](x: T): return @\n",
    "type parameters with bounds, defaults, tuples and specs": "def f[T: (int, str) = int, *Ts, **P](x): return @\n",
    "type parameters over lines, with a comment and an empty line": "def f[\n    T,  # é\n\n](x):\n    return @\n",
    "type parameters of a class": "class A[T](list[T]):\n    def f(self, x):\n        return @\n",
    "type parameters of a class without bases": "class A[T]:\n    def f(self, x): return @\n",
    "type parameters that are not ASCII": "def f[Größe](x): return @\n",
    "a type alias": "type X = list[int]\ndef f(x):\n    return @\n",
    "a generic type alias in a block": "if True:\n    type É[T] = list[T]; x = g(); y = @\n",
    "a type alias with parameters over lines": "type X[\n  T\n] = list[T]\ndef f(x): return @\n",
    "except without parentheses": "try:\n    pass\nexcept A, B: y = @\n",
    "except without parentheses, three of them": "try:\n    pass\nexcept a.A, B, C:\n    y = @\n",
    "except* without parentheses": "try:\n    pass\nexcept* A, B: y = @\n",
    "the same quotes inside an f-string": 'def f(x, d): return f"{d["a"]} é {@}"\n',
    "an f-string in an f-string, five deep": 'def f(x): return f"{f"{f"{f"{f"{@}"}"}"}"}"\n',
    "a backslash in an f-string": "def f(x, a): return f'{'\\n'.join(a)}{@}'\n",
    "a comment in an f-string": 'def f(x): return f"""{\n  @  # the norm\n}"""\n',
    "lines in a field of an f-string": 'def f(x): return f"{\n    @\n}"\n',
    "a field in a format": 'def f(x, w): return f"{1:>{w["k"]}.{@}}"\n',
    "conversion and debugging": 'def f(x, d): return f"{d["k"] = !r:>10}{ @ = }"\n',
    "an f-string behind a string": 'def f(x, d): return "a" f"{d["k"]}" "b" rf"\\d{@}"\n',
    "an f-string among others in brackets": 'def f(x, d):\n    return (\n "a"  # why\n f"{d["k"]}"\n f"{@}")\n',
    "a method of an f-string": 'def f(x, d): return f"{d["k"]}{@}".strip()[0]\n',
    "braces and named characters": 'def f(x, d): return f"{{\\N{BULLET}}}{d["k"]}{{{@}}}"\n',
    "a raw f-string": "def f(x, d): return rf'\\{d['k']}{@}'\n",
    "an f-string in a tuple": 'def f(x, d): return f"{d["k"]}", @\n',
    "a dict in an f-string": 'def f(x): return f"{ {"a": @}["a"] }"\n',
    "a starred field": 'def f(x, d): return f"{*d["k"], @}"\n',
    "a walrus in an f-string": 'def f(x, d): return f"{(y := d["k"])}{@}"\n',
    "a t-string": "def f(x): return t'{@}'\n",
    "a raw t-string": "def f(x): return Rt'\\d{@:>{1}}'\n",
    "parenthesised context managers, of 3.10": "def f(x):\n    with (a() as b, c() as d):\n        return @\n",
    "a match statement, of 3.10": "def f(x):\n    match x:\n        case [y]: return @\n",
    "except*, of 3.11": "try:\n    pass\nexcept* A:\n    y = @\n",
    "a star in an index, of 3.11": "def f(x, a, *b):\n    a[*b]\n    return @\n",
    "positional-only parameters and a walrus, of 3.8": "def f(x, /):\n    return (y := 1), @\n",
}
NEW = [name for name in CONSTRUCTS if ", of 3." not in name]


def source(name: str) -> str:
    return "import torch\n" + CONSTRUCTS[name].replace("@", FAULT)


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_finding_keeps_its_exact_place(name: str) -> None:
    text = source(name)
    before = text[: text.index(FAULT)]
    line = before.count("\n") + 1
    column = len(before) - (before.rfind("\n") + 1) + 1
    found = [finding for finding in analyze_source(text).findings if finding.rule in ("GP101", "GP102")]
    assert [
        (finding.region.start_line, finding.region.start_column, finding.region.end_line, finding.region.end_column)
        for finding in found
    ] == [(line, column, line, column + len(FAULT))]


@pytest.mark.parametrize("name", NEW)
def test_it_is_new_to_the_parser(name: str) -> None:
    with pytest.raises(SyntaxError):
        ast.parse(source(name))


@pytest.mark.parametrize("name", [name for name in NEW if "string" in name])
def test_a_format_string_is_one_in_the_tree(name: str) -> None:
    assert [type(node) for node in ast.walk(parse(source(name))) if isinstance(node, ast.JoinedStr)]


def test_no_fix_is_offered_inside_a_format_string() -> None:
    (finding,) = analyze_source('import torch\ndef f(x, d): return f"{d["k"]}{' + FAULT + '}"\n').findings
    assert finding.fix.edits == ()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("def f[T](x:\n    pass\n", (1, 9)),
        ('x = f"{d["a"]}"\ny = = 1\n', (2, 5)),
        ("type X = int\nwhile:\n    pass\n", (2, 6)),
        ("def f[T](x): return 1 +\n", (1, 24)),
    ],
)
def test_a_mistake_beside_newer_syntax_is_told_at_its_own_place(text: str, place: tuple[int, int]) -> None:
    with pytest.raises(InvalidSyntaxError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == place


@pytest.mark.parametrize(
    "text",
    [
        'x = f"{}{d["a"]}"\n',
        'x = f"{d["a"]"\n',
        'x = f"{d["a"]!}',
        "x = t'",
        "type X\n",
        "def f[T(x): pass\n",
        "except A, B\n",
    ],
)
def test_what_no_version_accepts_is_a_syntax_error(text: str) -> None:
    assert [finding.rule for finding in analyze_source(text).findings] == ["GP001"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print 'x'\n", "a `print` statement"),
        ("x = 1\nprint\tx, y\n", "a `print` statement"),
        ("exec code in scope\n", "an `exec` statement"),
        ("raise ValueError, 'no'\n", "`raise` with a comma"),
        ("if a <> b:\n    pass\n", "the operator `<>`"),
        ("x = `a`\n", "back-ticks"),
        ("x = ur'a'\n", "a `ur` string"),
        ("mode = 0777\n", "an octal number without `o`"),
        ("x = 10L\n", "a number with `L`"),
        ("x = 0xFFl\n", "a number with `L`"),
        ("def f(a, (b, c)):\n    pass\n", "a tuple as a parameter"),
    ],
)
def test_python_2_is_called_by_its_name(text: str, said: str) -> None:
    (finding,) = analyze_source(text).findings
    assert finding.rule == "GP001"
    assert f"Python 2, which is not read: {said}" in finding.message


@pytest.mark.parametrize("text", ["x = 'a 007 `b` print x\n", "x = [print for y in z\n", "raise ValueError)\n"])
def test_other_mistakes_are_not_called_python_2(text: str) -> None:
    (finding,) = analyze_source(text).findings
    assert "Python 2" not in finding.message


def test_a_suppression_behind_newer_syntax_counts() -> None:
    analysis = analyze_source(
        'import torch\ndef f[T](x, d):\n    y = f"{d["#"]}"\n    return '
        + FAULT
        + "  # gradproof: ignore[GP102] never zero\n"
    )
    assert analysis.findings == ()
    assert [item.reason for item in analysis.suppressed] == ["never zero"]


def test_comments_are_told_from_text() -> None:
    text = "# one\nx = '#no' # two\ny = f'{a # three\n}' '''\n# no\n'''  # four\n"
    assert [(comment.line, comment.column, comment.text) for comment in comments(text)] == [
        (1, 0, "# one"),
        (2, 10, "# two"),
        (3, 9, "# three"),
        (6, 5, "# four"),
    ]


def test_nothing_is_rewritten_that_is_not_new() -> None:
    assert (
        parse_newer("x = f'{a!r:>{b}}' 'c'\nexcept (A, B):\n  pass\ntype = [1]\ntype(x)[0]\nprint(type, x)\n") is None
    )


def test_a_name_on_the_next_line_is_no_alias() -> None:
    """In code that lost a bracket, `type` and an assignment can stand one below the other."""
    assert parse_newer("f(a,\n   type\n        device_type = b\n") is None


HOSTILE = [
    'f"{',
    'f"{x["',
    "f'{x:{",
    "(",
    "def f[",
    "def f[)",
    "type X[",
    "type X[) ",
    "except A, ",
    "except A, B ",
    "'''",
    "{",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_endless_nesting_ends(piece: str) -> None:
    assert {finding.rule for finding in analyze_source(piece * 20_000).findings} <= {"GP001", "GP002"}
