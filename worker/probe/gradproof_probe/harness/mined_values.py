"""Values that the repository itself gives to a parameter of a name: in calls, defaults, assignments and doc examples.

Text only: a file is searched for the name, and just the value or the call that follows it is parsed, so that a question
costs milliseconds. Files are read once a process, up to a budget: a repository of thousands of files costs what one of
hundreds does.
"""

from __future__ import annotations

import ast
import re
import types
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

FILES: Final = 1500
CHARACTERS: Final = 12_000_000
PLACES: Final = 600  # looked at for one question
MOST_VALUES: Final = 8
LONGEST: Final = 160  # characters of a value
LONGEST_CALL: Final = 1200
EMPTY: Final = frozenset({"None", "''", "()", "[]", "{}"})  # given often, and nothing can be computed with them
_BESIDE: Final = ("tests", "test", "examples", "docs", "doc", "scripts", "benchmarks")
_ANNOTATION: Final = r":[^=\n,()\[]{1,40}(?:\[[^=\n\]]{1,60}\]+)?[^=\n,()]{0,30}"
_BEGINS_PLAIN: Final = "'\"([{-.0123456789TF"


def root_of_package(module: types.ModuleType) -> Path | None:
    """The folder of the top-level package that a module belongs to, or the module's own folder."""
    file = getattr(module, "__file__", None)
    if not file:
        return None
    folder = Path(file).resolve().parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


@lru_cache(maxsize=4)
def _texts(root: Path) -> tuple[tuple[str, str], ...]:
    """(path, text) of the package's files and of the tests, examples and README beside it."""
    found: list[tuple[str, str]] = []
    size = 0
    beside = [root.parent / name for name in _BESIDE]
    for place in (root, *(folder for folder in beside if folder.is_dir())):
        for path in sorted(place.rglob("*.py")):
            if len(found) >= FILES or size > CHARACTERS:
                return tuple(found)
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            size += len(text)
            found.append((str(path), text))
    for path in sorted(root.parent.glob("README*")):
        try:
            found.append((str(path), path.read_text(encoding="utf-8", errors="replace")[:200_000]))
        except OSError:
            continue
    return tuple(found)


def _mentioning(root: Path, word: str) -> Iterator[str]:
    return (text for _, text in _texts(root) if word in text)


def _end(text: str, start: int, longest: int, *, closing: bool = False) -> int:
    """Where the expression that begins here ends: at a comma, a line's end or a closing bracket of its surroundings.

    `closing`: with the bracket that closes the one that it begins with.
    """
    depth, quote, comment = 0, "", False
    for place in range(start, min(len(text), start + longest)):
        character = text[place]
        if comment:
            comment = character != "\n"
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}" and depth > 0:
            depth -= 1
            if closing and depth == 0:
                return place + 1
        elif depth == 0 and character in ")]},;#\n":
            return place
        comment = comment or (character == "#" and not quote)
    return min(len(text), start + longest)


def _parsed(text: str) -> ast.expr | None:
    """An expression of the repository; the prompts of a doc example's further lines are no part of it."""
    try:
        return ast.parse(re.sub(r"\n\s*\.\.\. ?", "\n", text).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def literal(node: ast.expr) -> str | None:
    """The text of a plain value, or None for anything that would have to be run."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    text = repr(value)
    return text if len(text) <= LONGEST and not isinstance(value, bytes | complex | types.EllipsisType) else None


@lru_cache(maxsize=512)
def values_named(root: Path, name: str) -> tuple[str, ...]:
    """Literals given to parameters and variables of this name, the commonest first."""
    if len(name) < 2:
        return ()  # a single letter means something else everywhere
    found = Counter(islice((value for text in _mentioning(root, name) for value in _given(text, name)), PLACES))
    return tuple(text for text, _ in found.most_common(MOST_VALUES))


def _given(text: str, name: str) -> Iterator[str]:
    """`name=8`, `name: int = 8`, `name = 8`."""
    for match in re.finditer(rf"(?<![\w.]){re.escape(name)}[ \t]*(?:{_ANNOTATION})?=(?!=)[ \t]*", text):
        start = match.end()
        if text[start : start + 1] and text[start] in _BEGINS_PLAIN:
            node = _parsed(text[start : _end(text, start, 2 * LONGEST)])
            value = literal(node) if node is not None else None
            if value is not None and value not in EMPTY:
                yield value


@lru_cache(maxsize=512)
def calls_of(root: Path, name: str) -> tuple[str, ...]:
    """Calls of a class or function whose arguments are all plain values, as `(…)` texts; the commonest first."""
    found = Counter(islice((call for text in _mentioning(root, name) for call in _calls(text, name)), PLACES))
    return tuple(text for text, _ in found.most_common(MOST_VALUES))


def _calls(text: str, name: str) -> Iterator[str]:
    for match in re.finditer(rf"(?<!\w){re.escape(name)}[ \t]*\(", text):
        start = match.end() - 1
        if re.search(r"\b(?:class|def)[ \t]+$", text[max(0, match.start() - 12) : match.start()]):
            continue
        node = _parsed("f" + text[start : _end(text, start, LONGEST_CALL, closing=True)])
        if isinstance(node, ast.Call) and (node.args or node.keywords):
            arguments = _arguments(node, text[: match.start()])
            if arguments is not None:
                yield arguments


def _arguments(node: ast.Call, before: str) -> str | None:
    parts = []
    given = [*(("", value) for value in node.args), *((k.arg, k.value) for k in node.keywords)]
    for name, value in given:
        text = _assigned(value.id, before) if isinstance(value, ast.Name) else literal(value)
        if text is None or name is None:
            return None
        parts.append(f"{name}={text}" if name else text)
    return f"({', '.join(parts)})"


def _assigned(name: str, before: str) -> str | None:
    """The plain value that a variable was given last before a place."""
    for match in reversed(list(re.finditer(rf"^[ \t>]*{re.escape(name)}[ \t]*=(?!=)[ \t]*", before, re.MULTILINE))):
        node = _parsed(before[match.end() : _end(before, match.end(), 2 * LONGEST)])
        if node is not None and (text := literal(node)) is not None:
            return text
    return None
