"""What a repository gives to names and classes is found in its text, wherever it is written, and only plain values."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradproof_probe.harness.mined_values import calls_of, values_named

CODE = '''
"""A block.

>>> Block(width=9, mode='doc')
"""
size = (4, 4)

class Block(Base):
    def __init__(self, width: int = 7, mode: Mode | None = None, *, label="a, b) # c"):
        self.width = 99
        if width == 98:
            raise ValueError

def build(depth):
    Block(width=12)
    other.Block(
        width=12,  # it isn't (the width) of 'all'
        size=size,
    )
    return Block(width=depth, label=[1] * 3)
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    (tmp_path / "README.md").write_text("Try this:\n\n```python\nblock = Block(\n    width=3\n)\n```\n")
    return package


def test_values_come_from_calls_defaults_assignments_and_examples_the_commonest_first(root: Path) -> None:
    assert values_named(root, "width")[0] == "12"
    assert {*values_named(root, "width")} == {"12", "7", "9", "3"}, "attributes and comparisons give nothing"
    assert values_named(root, "size") == ("(4, 4)",)
    assert values_named(root, "label") == ("'a, b) # c'",), "what has to be computed is left out"


def test_calls_are_read_to_their_closing_bracket_with_variables_in_place(root: Path) -> None:
    assert {*calls_of(root, "Block")} == {
        "(width=9, mode='doc')",
        "(width=12)",
        "(width=12, size=(4, 4))",
        "(width=3)",
    }
