"""Patterns mean what git says they mean, and never cost more than the product of the lengths."""

from __future__ import annotations

import pytest

from services.snapshots.patterns import Coverage, PatternError, parse_pattern, parse_patterns


def named(line: str, path: str) -> bool:
    pattern = parse_pattern(line)
    assert pattern is not None
    return pattern.matches(path.rstrip("/"), is_directory=path.endswith("/"))


@pytest.mark.parametrize(
    ("line", "yes", "no"),
    [
        ("a.py", ["a.py", "x/y/a.py", "a.py/"], ["a.pyc", "xa.py"]),
        ("/a.py", ["a.py"], ["x/a.py"]),
        ("x/a.py", ["x/a.py"], ["y/x/a.py"]),
        ("build/", ["build/", "x/build/"], ["build", "build/a.py"]),
        ("*.py", ["a.py", ".py", "x/a.py"], ["a.pyc"]),
        ("x/*.py", ["x/a.py"], ["x/y/a.py"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["xx", "x/a"]),
        ("x/**", ["x/a", "x/a/b"], ["x", "x/"]),
        ("x/**/y", ["x/y", "x/a/y", "x/a/b/y"], ["x/ay", "y"]),
        ("**", ["a", "a/b"], []),
        ("a**b", ["ab", "aXb", "d/aXXb"], ["a/b"]),
        ("?", ["a", "ü"], ["ab", ""]),
        ("[a-c]", ["a", "b"], ["d", "-"]),
        ("[!a-c]", ["d"], ["a"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[\\]]", ["]"], ["\\"]),
        ("[[:digit:]x]", ["7", "x"], ["a", ":"]),
        ("\\*", ["*"], ["a"]),
        ("\\!a", ["!a"], ["a"]),
        ("\\#a", ["#a"], ["a"]),
        ("a ", ["a"], ["a "]),
        ("a\\ ", ["a "], ["a"]),
        ("*a*b*", ["ab", "xaybz"], ["ba"]),
        ("ab*ba", ["abba", "abxba"], ["aba"]),
    ],
)
def test_a_pattern_names_these_and_not_those(line: str, yes: list[str], no: list[str]) -> None:
    assert [path for path in yes if not named(line, path)] == []
    assert [path for path in no if named(line, path)] == []


@pytest.mark.parametrize("line", ["/", "//", "!", "a\\", "[a", "[", "[!", "[[:nope:]]", "a/[b"])
def test_a_pattern_that_can_match_nothing_is_an_error_and_passed_over_in_a_file(line: str) -> None:
    with pytest.raises(PatternError):
        parse_pattern(line)
    assert parse_patterns([line]) == ()


@pytest.mark.parametrize("line", ["", "   ", "# a comment", "\n", "\r\n"])
def test_a_blank_line_or_a_comment_is_no_pattern(line: str) -> None:
    assert parse_pattern(line) is None


def test_a_covered_directory_covers_what_is_below_it() -> None:
    coverage = Coverage(parse_patterns(["tests/", "/gen", "*.txt"]))
    paths = ["a.py", "tests/a.py", "x/tests/y/a.py", "gen/a.py", "x/gen/a.py", "tests", "a.txt", "d.txt/a.py"]
    assert [path for path in paths if coverage.covers(path)] == [
        "tests/a.py",
        "x/tests/y/a.py",
        "gen/a.py",
        "a.txt",
        "d.txt/a.py",
    ]


def test_a_pattern_of_many_stars_is_answered_all_the_same() -> None:
    # As a regular expression, the first of these runs for longer than the universe is old.
    assert not named("*a" * 200 + "b", "a" * 240)
    assert named("*a" * 200 + "*", "a" * 240)
    assert not named("**/a/" * 50 + "b", "a/" * 60 + "c")
