"""Which rules a file is shown to, by the words in it."""

from __future__ import annotations

import pytest

from analyzer.source import parse
from analyzer.syntax import SyntaxIndex
from analyzer.triggers import Triggers, Words

GROUPS = (("sqrt",), (".data", "half"), (), ("**",), ("optim.step",))


def met(text: str) -> list[int]:
    return Triggers(GROUPS).met(Words(text, SyntaxIndex(parse(text))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n", [2]),
        ("y = x.sqrt()\n", [0, 2]),
        ("y = x.rsqrt_()\n", [0, 2]),
        ("y = x.data\n", [1, 2]),
        ("data = x\n", [2]),
        ("half = x.data\n", [1, 2]),
        ("y = x**2\n", [2, 3]),
        ("optim.step()\n", [2, 4]),
        ("step = optim\n", [2]),
        ("kind = 'sqrt'\n", [0, 2]),
        ("# sqrt\nx = 1\n", [2]),
        ("x = 'the sqrt of it'\n", [2]),
    ],
)
def test_a_group_is_met_when_one_of_its_triggers_stands_in_the_code(text: str, expected: list[int]) -> None:
    assert met(text) == expected


def test_what_one_file_holds_says_nothing_about_the_next() -> None:
    triggers = Triggers(GROUPS)
    texts = ("y = x.sqrt()\n", "y = x.half()\n", "y = x.sqrt()\n")
    assert [triggers.met(Words(text, SyntaxIndex(parse(text)))) for text in texts] == [[0, 2], [1, 2], [0, 2]]
