"""Which lines of a backward no situation has executed: where a wrong gradient could still hide.

A check that passes says nothing of lines that never ran (checks facts, section 5). Watching must cost next to nothing
and be in nobody's way: only the given functions are watched, watching ends by itself once every line was seen, and a
debugger or another coverage tool that is already tracing is left alone.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final

from gradproof_probe.gradients.reading.objects import unwrapped
from gradproof_probe.gradients.reading.sources import Body, body_of

_Tracer = Callable[[FrameType, str, Any], Any]
_TOOL_NAME: Final = "gradproof"


class LineCoverage:
    """Watches functions (decorators are looked through) or code objects, and the functions nested in them.

    `reason`: why nothing could be watched; empty if it was.
    """

    def __init__(self, watched: Iterable[CodeType | Callable[..., Any]]) -> None:
        self._statements: dict[CodeType, dict[int, int]] = {}
        for item in watched:
            function = None if isinstance(item, CodeType) else unwrapped(item, entirely=True)
            code = item if isinstance(item, CodeType) else getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                self._add(code, _Lines(body_of(code)))
        self._left = {start for lines in self._statements.values() for start in lines.values()}
        self._watched = False
        self._stop: Callable[[], None] = _nothing
        self.reason = "" if self._statements else "there is no Python code to watch"

    def _add(self, code: CodeType, lines: _Lines) -> None:
        if code in self._statements:
            return
        self._statements[code] = lines.counting(code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add(constant, lines)

    def missing(self) -> tuple[int, ...]:
        """The first lines of the statements that were not executed; nothing if nothing could be watched."""
        return tuple(sorted(self._left)) if self._watched else ()

    @contextmanager
    def watching(self) -> Iterator[LineCoverage]:
        """Watch while open. May be opened again: what was seen before stays seen."""
        if not self._left:
            self._watched = self._watched or bool(self._statements)
            yield self
            return
        start = getattr(self, "_monitor", self._trace) if hasattr(sys, "monitoring") else self._trace
        if start():
            self._watched, self.reason = True, ""
        try:
            yield self
        finally:
            self._stop()
            self._stop = _nothing

    def _seen(self, code: CodeType, line: int) -> None:
        self._left.discard(self._statements[code].get(line, 0))
        if not self._left:
            self._stop()
            self._stop = _nothing

    def _trace(self) -> bool:
        """By `sys.settrace`: other code costs one call of `enter` a function call."""
        if sys.gettrace() is not None:
            self.reason = "another tool is tracing"
            return False

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                self._seen(frame.f_code, frame.f_lineno)
            return line if self._left else None

        def enter(frame: FrameType, _: str, __: Any) -> _Tracer | None:
            return line if frame.f_code in self._statements else None

        def stop() -> None:
            # Whoever set a tracer of their own since then keeps it.
            if sys.gettrace() is enter:
                sys.settrace(None)

        self._stop = stop
        sys.settrace(enter)
        return True

    def _monitor(self) -> bool:
        """By `sys.monitoring` (Python 3.12): other code costs nothing, and a line is reported once."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        # 0 to 2 are meant for debuggers, coverage tools and profilers, 5 for optimisers: torch takes one of them.
        tool = next((number for number in (3, 4, 1, 2) if monitoring.get_tool(number) is None), None)
        if tool is None:
            return self._trace()
        monitoring.use_tool_id(tool, _TOOL_NAME)

        def line(code: CodeType, number: int) -> Any:
            if code in self._statements:
                self._seen(code, number)
            return monitoring.DISABLE

        def stop() -> None:
            for code in self._statements:
                monitoring.set_local_events(tool, code, 0)
            monitoring.register_callback(tool, monitoring.events.LINE, None)
            monitoring.free_tool_id(tool)

        monitoring.register_callback(tool, monitoring.events.LINE, line)
        for code in self._statements:
            monitoring.set_local_events(tool, code, monitoring.events.LINE)
        # Lines that were disabled under another tool of this number are reported again.
        monitoring.restart_events()
        self._stop = stop
        return True


class _Lines:
    """Which lines belong to one statement, and which only refuse what they were given."""

    def __init__(self, body: Body) -> None:
        self._known = bool(body.lines)
        self._starts: dict[int, int] = {}
        self._refusing: set[int] = set()
        for statement in body.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.stmt):
                    self._note(node, body.added)
                elif isinstance(node, ast.ExceptHandler):
                    self._starts[node.lineno + body.added] = node.lineno + body.added
        for statement in body.statements:
            for node in ast.walk(statement):
                for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
                    if isinstance(block, list) and block and isinstance(block[-1], ast.Raise):
                        self._refuse(block, body.added)

    def _note(self, node: ast.stmt, added: int) -> None:
        """Each line of a simple statement, and of the head of a compound one, counts as its first line."""
        inner = getattr(node, "body", None)
        definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        end = node.end_lineno or node.lineno
        if isinstance(inner, list) and inner:
            end = max(node.lineno, inner[0].lineno - 1)
        for line in range(node.lineno, end + 1):
            self._starts[line + added] = 0 if definition else node.lineno + added

    def _refuse(self, block: list[ast.stmt], added: int) -> None:
        first, last = block[0].lineno, block[-1].end_lineno or block[-1].lineno
        self._refusing.update(range(first + added, last + added + 1))

    def counting(self, code: CodeType) -> dict[int, int]:
        """The lines of a code object that count, each with the first line of its statement."""
        lines = {line for _, _, line in code.co_lines() if line is not None and line > 0}
        lines.discard(code.co_firstlineno)
        if self._known:
            return {
                line: start
                for line in lines
                if (start := self._starts.get(line, 0)) and line not in self._refusing and start != code.co_firstlineno
            }
        raising = {
            item.positions.lineno
            for item in dis.get_instructions(code)
            if item.opname == "RAISE_VARARGS" and item.positions is not None
        }
        return {line: line for line in lines if line not in raising}


def _nothing() -> None:
    """Nothing is being watched."""
