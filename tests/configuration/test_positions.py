"""The scanner must agree with `tomllib` about what the keys are, and know the line of each."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.configuration.positions import Key, key_positions

_TRICKY = "ab \"'\\#[]{}=,.\t\n"


def _paths(value: Any, path: tuple[Key, ...] = ()) -> set[tuple[Key, ...]]:
    found = {path} if path else set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= _paths(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found |= _paths(inner, (*path, index))
    return found


def _basic(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")


class _Writer:
    """Draws a document in which every key occurs once, as `k<number>k`."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._count = 0

    def key(self) -> str:
        self._count += 1
        name = f"k{self._count}k"
        return self._draw(st.sampled_from([name, f'"{name}"', f"'{name}'", f'"{name} = [#\\" ."']))

    def value(self, depth: int = 0) -> str:
        writers = [self._string, self._number, *([self._array, self._table] if depth < 3 else [])]
        return self._draw(st.sampled_from(writers))(depth)

    def _string(self, _: int) -> str:
        text = self._draw(st.text(_TRICKY, max_size=12))
        escaped = text.replace("\\", "\\\\")
        return self._draw(
            st.sampled_from(
                [
                    f'"{_basic(text)}"',
                    "'" + text.replace("'", "").replace("\n", "") + "'",
                    '"""' + escaped.replace('"""', '""') + 'x"""',
                    "'''" + text.replace("'''", "''") + "x'''",
                ]
            )
        )

    def _number(self, _: int) -> str:
        return self._draw(st.sampled_from(["1", "-2.5e3", "true", "inf", "0x1F", "1979-05-27 07:32:00", "07:32:00"]))

    def _table(self, depth: int) -> str:
        return "{" + ", ".join(self.assignment(depth + 1) for _ in range(self._draw(st.integers(0, 2)))) + "}"

    def _array(self, depth: int) -> str:
        space = st.sampled_from(["", " ", "\n", "  # a ] comment\n\t"])
        items = [self.value(depth + 1) + self._draw(space) for _ in range(self._draw(st.integers(0, 3)))]
        return "[" + self._draw(space) + ("," + self._draw(space)).join(items) + "]"

    def assignment(self, depth: int = 0) -> str:
        parts = [self.key() for _ in range(self._draw(st.integers(1, 2)))]
        return (
            self._draw(st.sampled_from([".", " . "])).join(parts)
            + self._draw(st.sampled_from(["=", " = "]))
            + (self.value(depth))
        )


@st.composite
def _documents(draw: Any) -> str:
    writer = _Writer(draw)
    lines: list[str] = []
    array = writer.key()
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["assignment", "table", "array", "below", "blank"]))
        if kind == "assignment":
            lines.append(writer.assignment() + draw(st.sampled_from(["", " # [x]"])))
        elif kind == "table":
            lines.append(f"[{writer.key()}.{writer.key()}]")
        elif kind == "array":
            lines.append(f"[[{array}]]")
        elif kind == "below" and f"[[{array}]]" in lines:
            lines.append(f"[{array} . {writer.key()}]")
        else:
            lines.append(draw(st.sampled_from(["", "# k = 1", "\t"])))
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


@given(_documents())
@settings(max_examples=300, deadline=None)
def test_every_key_that_tomllib_sees_has_the_line_on_which_it_is_written(text: str) -> None:
    value = tomllib.loads(text)
    positions = key_positions(text)
    assert set(positions) == _paths(value)
    lines = text.split("\n")
    for path, line in positions.items():
        name = path[-1]
        if isinstance(name, str):
            first = next(number for number, content in enumerate(lines, 1) if name.split(" ")[0] in content)
            assert line == first


def test_elements_of_an_array_of_tables_have_their_own_header_s_line() -> None:
    text = "[[a.b]]\nx = 1\n\n[[a.b]]\nx = 2\n[a.b.c]\ny = 3\n"
    positions = key_positions(text)
    assert positions["a", "b", 0] == 1
    assert positions["a", "b", 1] == 4
    assert positions["a", "b", 1, "x"] == 5
    assert positions["a", "b", 1, "c", "y"] == 7


def test_a_string_that_looks_like_a_table_moves_no_key() -> None:
    text = 'a = """\n[b]\nc = 1\n"""\nd = \'\'\'\n"""\n\'\'\'\ne = 2\n'
    assert key_positions(text) == {("a",): 1, ("d",): 5, ("e",): 8}


def test_strings_that_end_in_quotes_are_read_to_their_end() -> None:
    text = 'a = """x"""""\nb = \'\'\'y\'\'\'\'\nc = """\\""""\nd = 1\n'
    assert tomllib.loads(text)["a"] == 'x""'
    assert key_positions(text) == {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4}
