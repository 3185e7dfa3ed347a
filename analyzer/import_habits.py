"""What importing a file brings about beside definitions: work that is done, arguments that are read.

Text is read, nothing is imported. This module must not know other files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from analyzer.context import FileContext
from analyzer.syntax import dotted_name, terminal_name

_MOST_NOTES: Final = 20
# Statements that stand alone at the top of ordinary modules: they set something up, and take no time.
_HARMLESS: Final = frozenset(
    {
        *(
            "append",
            "extend",
            "insert",
            "update",
            "setdefault",
            "filterwarnings",
            "simplefilter",
            "basicConfig",
            "warn",
        ),
        *("getLogger", "setLevel", "addHandler", "register", "add", "set_start_method", "TypeVar", "manual_seed"),
        *(
            "set_float32_matmul_precision",
            "set_grad_enabled",
            "register_buffer",
            "define",
            "add_module",
            "captureWarnings",
        ),
        *("allow_in_graph", "register_fake", "register_autograd", "export", "lazy_import", "attach", "require_version"),
    }
)


@dataclass(frozen=True, slots=True)
class Habit:
    """One such thing: `kind` in stable words, `detail` a sentence."""

    line: int
    kind: str
    detail: str


def habits_of(file: FileContext) -> tuple[Habit, ...]:
    """What a person should know who imports the file, in source order."""
    found: list[Habit] = []
    for statement in _at_import(file.tree):
        habit = _habit(file, statement)
        if habit is not None:
            found.append(habit)
            if len(found) == _MOST_NOTES:
                break
    return tuple(found)


def _at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run at import, but for main guards and what only type checkers read."""
    pending: list[ast.stmt] = list(reversed(tree.body))
    while pending:
        statement = pending.pop()
        if isinstance(statement, ast.If):
            test = ast.dump(statement.test) if not isinstance(statement.test, ast.Constant) else ""
            if "__main__" in test or "TYPE_CHECKING" in test:
                continue
            pending.extend(reversed([*statement.body, *statement.orelse]))
        elif isinstance(statement, ast.Try):
            pending.extend(reversed([*statement.body, *statement.orelse, *statement.finalbody]))
        elif isinstance(statement, ast.With):
            pending.extend(reversed(statement.body))
        else:
            yield statement


def _habit(file: FileContext, statement: ast.stmt) -> Habit | None:
    value = getattr(statement, "value", None)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) and isinstance(value, ast.Call):
        name = terminal_name(value.func) or ""
        if name in ("parse_args", "parse_known_args") or (name == "parse" and "sys.argv" in file.source(value)):
            return Habit(statement.lineno, "reads arguments", "the command line is read when the file is imported")
        if name in ("exit", "_exit", "quit"):
            return Habit(statement.lineno, "ends the process", "the process ends when the file is imported")
        qualified = file.qualified_name(value.func) or ""
        if qualified == "torch.load" or name in (
            "load_state_dict",
            "from_pretrained",
            "hf_hub_download",
            "urlretrieve",
        ):
            return Habit(statement.lineno, "loads data", f"`{name}` is called when the file is imported")
        if (
            isinstance(statement, ast.Expr)
            and name
            and name not in _HARMLESS
            and not name.startswith(("set", "add_", "register"))
        ):
            called = dotted_name(value.func) or name
            return Habit(statement.lineno, "runs at import", f"`{called}` is called when the file is imported")
    if isinstance(statement, (ast.For, ast.While)):
        trains = any(
            terminal_name(call.func) in ("backward", "step")
            for call in ast.walk(statement)
            if isinstance(call, ast.Call)
        )
        if trains or isinstance(statement, ast.While):
            return Habit(statement.lineno, "runs at import", "a loop runs when the file is imported")
    return None
