"""What the parts of the reader of submitted source share: its budget, its stack, what each offers the others."""

from __future__ import annotations

import ast
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from gradproof_probe.harness.axes import Form
from gradproof_probe.harness.values import Constant

DEPTH: Final = 7  # of calls within calls
NODES: Final = 20_000  # of one target: reading costs some 5 microseconds a node
SECONDS: Final = 0.6
YES: Final = Constant(True)  # noqa: FBT003 the value is what it holds
NO: Final = Constant(False)  # noqa: FBT003


class ReturnedError(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class TooMuchError(Exception):
    """The budget is used up: what was learnt so far stays."""


def plain_function(function: Any) -> types.FunctionType | None:
    for _ in range(4):
        function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    return function if isinstance(function, types.FunctionType) else None


class ReaderBase(ABC):
    """State of one reading, and what its parts call of each other: each is defined by one of them."""

    def __init__(self) -> None:
        self.nodes = 0
        self.stack: list[Any] = []
        self.deadline = time.monotonic() + SECONDS
        self.globals: dict[str, Any] = {}
        self.indexing: list[tuple[Form, Form]] = []
        """What was used as an index, and of what."""

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > NODES or (self.nodes % 64 == 0 and time.monotonic() > self.deadline):
            raise TooMuchError

    @abstractmethod
    def block(self, body: Sequence[ast.stmt], env: dict[str, Any]) -> None:
        """Read statements in order; `ReturnedError` carries what they return."""

    @abstractmethod
    def bind(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        """Give what stands left of an assignment its value."""

    @abstractmethod
    def iterate(self, value: Any, most: int) -> list[Any]:
        """The first items of what is looped over."""

    @abstractmethod
    def value(self, node: ast.expr | None, env: dict[str, Any]) -> Any:
        """What an expression is."""

    @abstractmethod
    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """What calling something gives."""

    @abstractmethod
    def run(self, function: Any, env: dict[str, Any]) -> Any:
        """What a function gives for the names in `env`."""


class Inner:
    """A function written inside another, with the names that it sees."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, env: dict[str, Any]) -> None:
        self.node = node
        self.env = env
