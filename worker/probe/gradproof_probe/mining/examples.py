"""Finds the repository's own examples by reading: documents, docstrings, `__main__` blocks, notebooks, tests, scripts.

Nothing is imported or run here, and every count and size is bounded: the files are anybody's.
"""

from __future__ import annotations

import ast
import json
import os
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

Kind = Literal["readme", "docstring", "main", "notebook", "test"]

FILES: Final = 6000
SIZE: Final = 2**20  # bytes; longer files are data
BLOCKS: Final = 120  # of one document
DOCUMENTS: Final = 400
SKIPPED_DIRECTORIES: Final = frozenset(
    {"node_modules", "site-packages", "build", "dist", "venv", "env", "__pycache__", "third_party"}
)
SCRIPT_DIRECTORIES: Final = frozenset({"example", "examples", "demo", "demos", "tutorials", "samples"})
TEST_DIRECTORIES: Final = frozenset({"test", "tests", "testing"})
DOCUMENT_SUFFIXES: Final = frozenset({".md", ".rst", ".markdown"})
PYTHON_FENCES: Final = frozenset({"python", "py", "python3", "pycon", "{python}", "{code-block} python"})

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_FENCE: Final = re.compile(r"^(\s*)(```+|~~~+)\s*([^`]*)$")
_DIRECTIVE: Final = re.compile(r"^(\s*)\.\. (?:code-block|code|sourcecode|ipython|doctest|testcode)::\s*(\w*)")
_PROMPT: Final = re.compile(r"^\s*(>>>|\.\.\.)(?: (.*)|)$")
_EXAMPLE: Final = re.compile(r"^\s*(?:Examples?|Usage)\b.*:\s*$", re.IGNORECASE)
_SHELL: Final = re.compile(r"^\s*(?:[!%$]|pip |python |cd |git |conda )")


@dataclass(frozen=True, slots=True)
class Block:
    """Code that belongs together. `module` names the module whose names it is run with, if it has one of its own.

    `mentions` are the targets that it names.
    """

    place: str
    line: int
    source: str
    module: str | None = None
    mentions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Document:
    """Blocks in order. They share their names unless they are `separate`."""

    kind: Kind
    path: str
    blocks: tuple[Block, ...]
    separate: bool = False

    @property
    def mentions(self) -> frozenset[str]:
        return frozenset().union(*(block.mentions for block in self.blocks))


def find_documents(source_root: Path, targets: Sequence[str]) -> list[Document]:
    """Those that name a target, the ones that promise most first."""
    by_word: dict[str, set[str]] = {}
    for target in targets:
        by_word.setdefault(target.rpartition(":")[2].rpartition(".")[2], set()).add(target)
    modules = {target.partition(":")[0] for target in targets}
    packages = {module.partition(".")[0] for module in modules}
    found: list[Document] = []
    sources: set[str] = set()
    for path in _files(source_root):
        for document in _read(source_root, path, modules):
            # A wheel's METADATA is the README once more.
            fresh = [block for block in document.blocks if block.source not in sources][:BLOCKS]
            sources.update(block.source for block in fresh)
            words = [set(_WORD.findall(block.source)) for block in fresh]
            blocks = tuple(
                replace(block, mentions=frozenset().union(*(by_word[word] for word in used & by_word.keys())))
                for block, used in zip(fresh, words, strict=True)
            )
            if any(used & (by_word.keys() | packages) for used in words):
                found.append(Document(document.kind, document.path, blocks, document.separate))
    return sorted(found, key=_rank)[:DOCUMENTS]


def _rank(document: Document) -> tuple[int, int, str]:
    order = ("readme", "main", "docstring", "test", "notebook")
    return (0 if document.mentions else 1, order.index(document.kind), document.path)


def _files(root: Path) -> Iterator[Path]:
    count = 0
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED_DIRECTORIES and not name.startswith("."))
        for file in sorted(files):
            path = Path(directory, file)
            if file != "METADATA" and path.suffix not in {".py", ".ipynb", *DOCUMENT_SUFFIXES}:
                continue
            count += 1
            if count > FILES:
                return
            yield path


def _read(root: Path, path: Path, modules: Collection[str]) -> Iterator[Document]:
    try:
        if path.stat().st_size > SIZE or path.is_symlink():
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    place = path.relative_to(root).as_posix()
    parts = path.relative_to(root).parts
    if path.name == "METADATA":
        if parts[-2:-1] and parts[-2].endswith((".dist-info", ".egg-info")):
            yield Document("readme", place, tuple(document_blocks(_description(text), place)))
    elif path.suffix in DOCUMENT_SUFFIXES:
        yield Document("readme", place, tuple(document_blocks(text, place)))
    elif path.suffix == ".ipynb":
        yield Document("notebook", place, tuple(_cells(text, place)))
    elif path.suffix == ".py":
        yield from _python(text, place, parts, modules)


def _python(text: str, place: str, parts: tuple[str, ...], modules: Collection[str]) -> Iterator[Document]:
    name, directories = parts[-1], set(parts[:-1])
    if name.startswith("test_") or name.endswith("_test.py"):
        yield Document("test", place, (Block(f"{place}:1", 1, text),))
        return
    if directories & TEST_DIRECTORIES and name == "conftest.py":
        return
    module = _module_of(parts, modules)
    if module is None:
        if directories & SCRIPT_DIRECTORIES:
            yield Document("main", place, (Block(f"{place}:1", 1, text),))
        return
    if ">>>" not in text and "__main__" not in text and not re.search(r"\b(?:Examples?|Usage)\b.*:", text):
        return  # most modules: not worth parsing
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    main = tuple(_main_block(tree, place, module))
    if main:
        yield Document("main", place, main)
    strings = tuple(_docstring_blocks(tree, place, module))
    if strings:
        yield Document("docstring", place, strings, separate=True)


def _module_of(parts: tuple[str, ...], modules: Collection[str]) -> str | None:
    """The dotted name under which the targets know this file, or would: its package holds one of them."""
    names = [*parts[:-1], parts[-1].removesuffix(".py")]
    if names[-1] == "__init__":
        names.pop()
    packages = {module.partition(".")[0] for module in modules}
    for start in range(len(names)):
        dotted = ".".join(names[start:])
        if dotted in modules:
            return dotted
    for start, name in enumerate(names):
        if name in packages:
            return ".".join(names[start:])
    return None


def document_blocks(text: str, place: str) -> Iterator[Block]:
    """Python code of a Markdown or reStructuredText document."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        directive = _DIRECTIVE.match(lines[at])
        if fence:
            end = at + 1
            while end < len(lines) and not lines[end].strip().startswith(fence[2]):
                end += 1
            language = fence[3].strip().lower().split(",")[0]
            # Without a language it may be anything: only what parses as an import or call of something.
            if language.split(" ")[0] in PYTHON_FENCES or language in PYTHON_FENCES:
                yield from _block(lines[at + 1 : end], place, at + 2)
            elif not language:
                yield from _block(lines[at + 1 : end], place, at + 2, doubtful=True)
            at = end + 1
        elif directive or (lines[at].rstrip().endswith("::") and not lines[at].lstrip().startswith("..")):
            end = _indented(lines, at)
            body = [line for line in lines[at + 1 : end] if not re.match(r"\s*:[\w-]+:", line)]
            skipped = end - at - 1 - len(body)
            language = directive[2].lower() if directive else ""
            if language in ("", *PYTHON_FENCES):
                yield from _block(body, place, at + 2 + skipped, doubtful=not language)
            at = max(end, at + 1)
        elif _PROMPT.match(lines[at]) and ">>>" in lines[at]:
            end = at
            while end < len(lines) and lines[end].strip():
                end += 1
            yield from _block(lines[at:end], place, at + 1)
            at = end
        else:
            at += 1


def _indented(lines: Sequence[str], at: int) -> int:
    """The end of the indented paragraph that begins after the line `at`."""
    margin = len(lines[at]) - len(lines[at].lstrip())
    end = at + 1
    while end < len(lines) and (not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > margin):
        end += 1
    return end


def _block(lines: Sequence[str], place: str, line: int, *, doubtful: bool = False) -> Iterator[Block]:
    source = code_of(lines)
    if not source.strip() or len(source) > 40_000:
        return
    if doubtful and not (_parses(source) and re.search(r"\bimport\b|[\w.]+\(", source)):
        return
    yield Block(f"{place}:{line}", line, source)


def code_of(lines: Sequence[str]) -> str:
    """What of these lines is code: of a session what follows the prompts, no shell commands, no magics."""
    prompted = [line.strip().startswith(">>>") for line in lines]
    if any(prompted) and not next(mark for line, mark in zip(lines, prompted, strict=True) if line.strip()):
        # Code first: what follows the prompts is what it prints.
        lines = ["" if mark else line for line, mark in zip(lines, prompted, strict=True)]
    elif any(prompted):
        kept = [(match[2] or "") if (match := _PROMPT.match(line)) else "" for line in lines]
        return "\n".join(kept)
    text = textwrap.dedent("\n".join(lines))
    if _parses(text):
        return text
    return "\n".join("" if _SHELL.match(line) else line for line in text.splitlines())


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _description(metadata: str) -> str:
    """The body of a METADATA file, with as many empty lines before it as its head has: line numbers stay."""
    head, separator, body = metadata.partition("\n\n")
    if not separator:
        return ""
    return "\n" * (head.count("\n") + 2) + body


def _cells(text: str, place: str) -> Iterator[Block]:
    try:
        cells = json.loads(text).get("cells", [])
    except (ValueError, AttributeError, RecursionError):
        return
    for number, cell in enumerate(cells if isinstance(cells, list) else [], 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", "")
            lines = (source if isinstance(source, str) else "".join(map(str, source))).splitlines()
            if not (lines and lines[0].startswith("%%")):
                code = "\n".join("" if _SHELL.match(line) else line for line in lines)
                if code.strip():
                    yield Block(f"{place}:cell {number}", 1, code)


def _main_block(tree: ast.Module, place: str, module: str) -> Iterator[Block]:
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.dump(statement.test):
            body = ast.unparse(ast.Module(statement.body, []))
            yield Block(f"{place}:{statement.lineno}", statement.lineno, body, module)


def _docstring_blocks(tree: ast.Module, place: str, module: str) -> Iterator[Block]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node, clean=False)
        if text is None:
            continue
        start = node.body[0].lineno
        name = "" if isinstance(node, ast.Module) else f"{node.name}\n"
        for line, source in _docstring_code(text):
            # The name of what is documented counts as mentioned, though the example may call it otherwise.
            comment = f"# {name}" if name else ""
            yield Block(f"{place}:{start + line}", start + line, f"{comment}{source}", module)


def _docstring_code(text: str) -> Iterator[tuple[int, str]]:
    lines = text.splitlines()
    prompts = [number for number, line in enumerate(lines) if _PROMPT.match(line) and ">>>" in line]
    if prompts:
        # One example in several paragraphs, as doctest takes it too.
        yield prompts[0], code_of(lines[prompts[0] :])
        return
    for number, line in enumerate(lines):
        if _EXAMPLE.match(line) or line.rstrip().endswith("::") or _DIRECTIVE.match(line):
            body = [row for row in lines[number + 1 : _indented(lines, number)] if not row.strip().startswith("```")]
            source = code_of(body)
            if source.strip() and _parses(source) and "(" in source:
                yield number + 1, source
                return
