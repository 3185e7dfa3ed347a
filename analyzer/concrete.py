"""Exact places of the few nodes that were flagged.

`ast` counts columns in UTF-8 bytes and, before Python 3.12, misplaces everything inside f-strings. libcst is exact but
costs ten parses of `ast` a file and its C recursion can kill the process, so it reads only the one expression that
holds the flagged node, and only where `ast` can't be trusted: the cost grows with the findings, not with the code.
This module must not know rules.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping

from analyzer.findings import Region
from analyzer.newer_syntax import EXACT

# libcst: 10,000 levels kill the process, 1,000 nested lists take 4 s, 150 of anything take nothing.
_MAX_DEPTH = 100
_HEADER = re.compile(r"(?:async\s+)?(?:def|class)\s+\w+")
_FORMAT_STRINGS_ARE_EXACT = sys.version_info >= (3, 12)


class Places:
    """Regions of nodes in one file."""

    def __init__(self, path: str, text: str, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._path = path
        self._lines = text.split("\n")
        self._parents = parents

    def region(self, node: ast.AST) -> Region:
        """The place of a node, without parentheses around it; of a class or function, its keyword and name."""
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            return self._header_region(node)
        if isinstance(node, ast.expr) and not _FORMAT_STRINGS_ARE_EXACT:
            format_string = self._enclosing_format_string(node)
            if format_string is not None:
                return self._region_in_format_string(node, format_string)
        return self._plain_region(node)

    def statement_line(self, node: ast.AST) -> int:
        """The first line of the innermost statement around a node (a decorated definition: its own keyword)."""
        while not isinstance(node, ast.stmt):
            parent = self._parents.get(node)
            if parent is None:
                return getattr(node, "lineno", 1)
            node = parent
        return node.lineno

    def _plain_region(self, node: ast.AST) -> Region:
        line = getattr(node, "lineno", 1)
        end_line = getattr(node, "end_lineno", None) or line
        start = self._column(line, getattr(node, "col_offset", 0))
        end = self._column(end_line, getattr(node, "end_col_offset", None) or 0)
        if isinstance(node, ast.stmt) and end_line > line:
            # Of a long statement its first line is the place to look at.
            end_line, end = line, len(self._line(line)) + 1
        return Region(self._path, line, start, end_line, max(end, start) if end_line == line else end)

    def _header_region(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Region:
        start = self._column(node.lineno, node.col_offset)
        match = _HEADER.match(self._line(node.lineno), start - 1)
        end = match.end() + 1 if match is not None else len(self._line(node.lineno)) + 1
        return Region(self._path, node.lineno, start, node.lineno, end)

    def _line(self, number: int) -> str:
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def _column(self, line: int, byte_offset: int) -> int:
        text = self._line(line)
        if text.isascii():
            return byte_offset + 1
        return len(text.encode("utf-8", "surrogatepass")[:byte_offset].decode("utf-8", "replace")) + 1

    def _enclosing_format_string(self, node: ast.expr) -> ast.JoinedStr | None:
        """The outermost f-string around a node, if any."""
        found: ast.JoinedStr | None = None
        current: ast.AST | None = self._parents.get(node)
        while current is not None and not isinstance(current, ast.stmt):
            if isinstance(current, ast.JoinedStr) and not hasattr(current, EXACT):
                found = current
            current = self._parents.get(current)
        return found

    def _region_in_format_string(self, node: ast.expr, format_string: ast.JoinedStr) -> Region:
        """Where libcst sees the node; the whole f-string if it can't be told."""
        whole = self._plain_region(format_string)
        wanted = ast.unparse(node)
        equal = [
            other for other in ast.walk(format_string) if type(other) is type(node) and ast.unparse(other) == wanted
        ]
        places = self._concrete_places(whole, wanted)
        if len(places) != len(equal):
            return whole
        return places[equal.index(node)]

    def _concrete_places(self, whole: Region, wanted: str) -> list[Region]:
        source = self._slice(whole)
        if sum(map(source.count, "([{")) > _MAX_DEPTH:
            return []
        # Imported here because it costs 0.13 s and hardly any file needs it.
        import libcst  # noqa: PLC0415
        from libcst.metadata import MetadataWrapper, PositionProvider  # noqa: PLC0415

        try:
            module = libcst.parse_module(source)
        except libcst.ParserSyntaxError:
            return []
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
        found: list[Region] = []
        for candidate, position in positions.items():
            if not isinstance(candidate, libcst.BaseExpression):
                continue
            try:
                expression = ast.parse(module.code_for_node(candidate).strip(), mode="eval").body
            except SyntaxError:
                continue
            if ast.unparse(expression) != wanted:
                continue
            found.append(
                Region(
                    self._path,
                    whole.start_line + position.start.line - 1,
                    position.start.column + (whole.start_column if position.start.line == 1 else 1),
                    whole.start_line + position.end.line - 1,
                    position.end.column + (whole.start_column if position.end.line == 1 else 1),
                )
            )
        return sorted(found)

    def _slice(self, region: Region) -> str:
        lines = self._lines[region.start_line - 1 : region.end_line]
        lines[-1] = lines[-1][: region.end_column - 1]
        lines[0] = lines[0][region.start_column - 1 :]
        return "\n".join(lines)
