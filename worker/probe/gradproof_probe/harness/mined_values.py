"""Values that the repository itself gives to a parameter of a name: in calls, defaults, assignments and doc examples.

Text and syntax trees only. Files are read once a process and parsed only when they mention what is asked for; reading
stops at a budget, so that a repository of thousands of files costs what one of hundreds does.
"""

from __future__ import annotations

import ast
import doctest
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Final

FILES: Final = 1500
CHARACTERS: Final = 12_000_000
PARSED: Final = 40  # files parsed for one question
PARSING_S: Final = 1.5  # of this process's own time, for all questions together
MOST_VALUES: Final = 8
LONGEST: Final = 160  # characters of a value
EMPTY: Final = frozenset({"None", "''", "()", "[]", "{}"})  # given often, and nothing can be computed with them
_BESIDE: Final = ("tests", "test", "examples", "docs", "doc", "scripts", "benchmarks")


class _Budget:
    """Parsing time used so far, in seconds of this process."""

    spent = 0.0


def root_of_package(module: ModuleType) -> Path | None:
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


@lru_cache(maxsize=256)
def _tree(path: str, root: Path) -> ast.Module | None:
    if _Budget.spent > PARSING_S:
        return None
    text = next(text for name, text in _texts(root) if name == path)
    before = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text if path.endswith(".py") else "\n".join(_code_blocks(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        _Budget.spent += time.process_time() - before


def _code_blocks(markdown: str) -> Iterator[str]:
    """Fenced blocks that parse by themselves: one that doesn't must not cost the others."""
    for block in re.findall(r"```(?:python|py)?\s*\n(.*?)```", markdown, re.DOTALL)[:64]:
        try:
            ast.parse(block)
        except (SyntaxError, ValueError):
            continue
        yield block


def _mentioning(root: Path, word: str) -> Iterator[ast.AST]:
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    paths = (path for path, text in _texts(root) if word in text and pattern.search(text))
    for path in islice(paths, PARSED):
        tree = _tree(path, root)
        if tree is not None:
            yield tree
            yield from _examples(tree, word)


def _examples(tree: ast.Module, word: str) -> Iterator[ast.AST]:
    """The doc examples (`>>>`) that mention it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            text = ast.get_docstring(node, clean=True) or ""
            if ">>>" in text and word in text:
                try:
                    source = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
                    yield ast.parse(source)
                except (SyntaxError, ValueError):
                    continue


def literal(node: ast.expr) -> str | None:
    """The text of a plain value, or None for anything that would have to be run."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    text = repr(value)
    return text if len(text) <= LONGEST and not isinstance(value, bytes | complex) else None


@lru_cache(maxsize=512)
def values_named(root: Path, name: str) -> tuple[str, ...]:
    """Literals given to parameters and variables of this name, the commonest first."""
    if len(name) < 2:
        return ()  # a single letter means something else everywhere
    found: Counter[str] = Counter()
    for tree in _mentioning(root, name):
        for node in ast.walk(tree):
            found.update(_given(node, name))
    return tuple(text for text, _ in found.most_common(MOST_VALUES))


def _given(node: ast.AST, name: str) -> Iterator[str]:
    match node:
        case ast.Call(keywords=keywords):
            values = [k.value for k in keywords if k.arg == name]
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            values = [value]
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            listed = [*arguments.posonlyargs, *arguments.args]
            pairs = [
                *zip(reversed(listed), reversed(arguments.defaults), strict=False),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
            values = [value for argument, value in pairs if argument.arg == name and value is not None]
        case _:
            return
    for value in values:
        text = literal(value)
        if text is not None and text not in EMPTY:
            yield text


@lru_cache(maxsize=512)
def calls_of(root: Path, name: str) -> tuple[str, ...]:
    """Calls of a class or function whose arguments are all plain values, as `(…)` texts; the commonest first."""
    found: Counter[str] = Counter()
    for tree in _mentioning(root, name):
        assigned = _assigned(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _last_name(node.func) == name and (node.args or node.keywords):
                text = _arguments(node, assigned)
                if text is not None:
                    found[text] += 1
    return tuple(text for text, _ in found.most_common(MOST_VALUES))


def _assigned(tree: ast.AST) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if literal(value) is not None:
                found[name] = value
    return found


def _arguments(node: ast.Call, assigned: dict[str, ast.expr]) -> str | None:
    parts = []
    given = [*(("", value) for value in node.args), *((k.arg, k.value) for k in node.keywords)]
    for name, value in given:
        text = literal(assigned.get(value.id, value) if isinstance(value, ast.Name) else value)
        if text is None or name is None:
            return None
        parts.append(f"{name}={text}" if name else text)
    return f"({', '.join(parts)})"


def _last_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None
