"""The steps of training in each function of a file: backward, clip, unscale, step, schedule, clear, in their order.

An event knows the branches and loops it stands in, so that rules can ask what comes before it on the same path, also
around the turn of a loop. Read once a file. What Lightning, DeepSpeed and wrappers of their kind do out of sight is not
seen, and a function that leaves a step to them has no such event. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from analyzer.context import FileContext
from analyzer.objects import made_by
from analyzer.syntax import FunctionNode, terminal_name

Scope = FunctionNode | ast.Module
Path = tuple[tuple[ast.AST, str], ...]
LOOPS = (ast.For, ast.AsyncFor, ast.While)

_OPTIMIZER = re.compile(r"(^|_)(opt|optim|optimi[sz]er)s?(_|\d|$)", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched|(^|_)lr_?(policy|updater)", re.IGNORECASE)
_SCALER = re.compile(r"scaler", re.IGNORECASE)
# Whatever clears gradients, in any spelling: read from the text of a function, because helpers have many names.
_CLEARS = re.compile(
    r"(zero|clear|reset|del|remove)\w*_?grad|grad\w*_(zero|clear|reset)|\.grad\s*=|\.grad\b[.\w]*\.(zero_|fill_)|"
    r"_foreach_zero_|post_accumulate_grad|grads?\[?.*\.zero_\("
)
_COMMENT = re.compile(r"#[^\n]*")


class Act(Enum):
    """What a training step consists of."""

    BACKWARD = "backward"
    CLEAR = "zero_grad"
    CLIP = "clip"
    UNSCALE = "unscale_"
    STEP = "step"
    SCALER_STEP = "scaler.step"
    SCALER_UPDATE = "scaler.update"
    SCHEDULE = "scheduler.step"


@dataclass(frozen=True, slots=True)
class Event:
    """One act. `subject` is what it is done to: the loss, the optimizer, the scheduler; `scaler` the GradScaler.

    `path` are the branches and loops around it inside `scope`, outermost first.
    """

    act: Act
    call: ast.Call
    statement: ast.stmt
    scope: Scope
    path: Path
    subject: ast.expr | None = None
    scaler: ast.expr | None = None

    @property
    def place(self) -> tuple[int, int]:
        return (self.call.lineno, self.call.col_offset)

    @property
    def loop(self) -> ast.AST | None:
        """The innermost loop whose body it stands in."""
        inside = [owner for owner, field in self.path if isinstance(owner, LOOPS) and field == "body"]
        return inside[-1] if inside else None

    def is_inside(self, owner: ast.AST) -> bool:
        return any(outer is owner and field == "body" for outer, field in self.path)

    @property
    def steps_parameters(self) -> bool:
        return self.act in (Act.STEP, Act.SCALER_STEP)


_CALLS = (
    *("backward", "manual_backward", "zero_grad", "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"),
    *("unscale_", "step", "update"),
)


def training_events(file: FileContext) -> dict[Scope, tuple[Event, ...]]:
    """The events of every function (or the module itself) that has any, in source order; functions inside apart."""
    return file.once(_training_events)


def _training_events(file: FileContext) -> dict[Scope, tuple[Event, ...]]:
    table: dict[Scope, list[Event]] = {}
    for call in file.calls(*_CALLS):
        event = _event(file, call)
        if event is not None:
            table.setdefault(event.scope, []).append(event)
    return {scope: tuple(sorted(found, key=lambda e: e.place)) for scope, found in table.items()}


def of_act(events: Iterable[Event], *acts: Act) -> list[Event]:
    return [event for event in events if event.act in acts]


def exclusive(first: Path, second: Path) -> bool:
    """Whether two places are in different branches of one `if` or `try`."""
    for mine, theirs in zip(first, second, strict=False):
        if mine == theirs:
            continue
        return mine[0] is theirs[0] and isinstance(mine[0], (ast.If, ast.Try))
    return False


def before(event: Event, events: Iterable[Event]) -> list[Event]:
    """What may have happened before an event in the same turn, the latest first."""
    earlier = [other for other in events if other.place < event.place and not exclusive(other.path, event.path)]
    return earlier[::-1]


def after(event: Event, events: Iterable[Event]) -> list[Event]:
    """What may still happen after an event in the same turn, the next first."""
    return [other for other in events if other.place > event.place and not exclusive(other.path, event.path)]


def path_of(file: FileContext, node: ast.AST, scope: Scope) -> Path:
    """The branches and loops around a node inside a scope; `with` and `finally` always run and are none."""
    found: list[tuple[ast.AST, str]] = []
    child = node
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try)):
            fields = ("body", "orelse", "handlers")
            found.extend((outer, field) for field in fields if child in getattr(outer, field, ()))
        if outer is scope:
            break
        child = outer
    return tuple(reversed(found))


def scope_of(file: FileContext, node: ast.AST) -> Scope:
    return file.enclosing_function(node) or file.tree


def clears_somewhere(file: FileContext, scope: Scope) -> bool:
    """Whether gradients are cleared by the function, its class, one around it, one that calls it or that it calls."""
    if isinstance(scope, ast.Module):
        return _clears(file.text)
    texts = [file.source(scope)]
    texts.extend(
        file.source(outer)
        for outer in file.ancestors(scope)
        if isinstance(outer, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    )
    for call in file.calls(scope.name):
        caller = file.enclosing_function(call)
        texts.append(file.source(caller) if caller is not None else file.source(file.statement(call) or call))
    for call in file.nodes_in(scope, ast.Call):
        name = terminal_name(call.func)
        texts.extend(file.source(function) for function in file.functions_by_name.get(name or "", ()))
    return any(map(_clears, texts))


def _clears(text: str) -> bool:
    return _CLEARS.search(_COMMENT.sub("", text)) is not None


# --- single events ---------------------------------------------------------------------------------------------------


def _event(file: FileContext, call: ast.Call) -> Event | None:
    name = terminal_name(call.func)
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    read = _READERS[name or ""](file, call, receiver)
    statement = file.statement(call)
    if read is None or statement is None or file.enclosing_autograd_function(call) is not None:
        return None
    act, subject, scaler = read
    scope = scope_of(file, call)
    return Event(act, call, statement, scope, path_of(file, call, scope), subject, scaler)


_Reading = tuple[Act, ast.expr | None, ast.expr | None] | None


def _backward(_file: FileContext, call: ast.Call, receiver: ast.expr | None) -> _Reading:
    if receiver is None:
        return None
    if isinstance(receiver, ast.Call):
        function = receiver.func
        if isinstance(function, ast.Attribute) and function.attr == "scale" and receiver.args:
            return Act.BACKWARD, receiver.args[0], function.value
        if terminal_name(function) == "super":
            return None
        return Act.BACKWARD, receiver, None
    name = terminal_name(receiver) or ""
    if name[:1].isupper() or len(call.args) > 1:
        return None  # `MyFunction.backward(ctx, grad)`
    return Act.BACKWARD, call.args[0] if call.args else receiver, None


def _manual_backward(_file: FileContext, call: ast.Call, _receiver: ast.expr | None) -> _Reading:
    return (Act.BACKWARD, call.args[0], None) if call.args else None


def _clear(_file: FileContext, _call: ast.Call, receiver: ast.expr | None) -> _Reading:
    return Act.CLEAR, receiver, None


def _clip(_file: FileContext, call: ast.Call, _receiver: ast.expr | None) -> _Reading:
    return (Act.CLIP, call.args[0], None) if call.args else None


def _unscale(_file: FileContext, call: ast.Call, receiver: ast.expr | None) -> _Reading:
    return Act.UNSCALE, call.args[0] if call.args else None, receiver


def _step(file: FileContext, call: ast.Call, receiver: ast.expr | None) -> _Reading:
    if receiver is None:
        return None
    if is_scaler(file, receiver):
        return (Act.SCALER_STEP, call.args[0], receiver) if call.args else None
    if is_scheduler(file, receiver):
        return Act.SCHEDULE, receiver, None
    if is_optimizer(file, receiver) and not call.args and not call.keywords:
        return Act.STEP, receiver, None
    return None


def _update(file: FileContext, _call: ast.Call, receiver: ast.expr | None) -> _Reading:
    if receiver is None or not is_scaler(file, receiver):
        return None
    return Act.SCALER_UPDATE, None, receiver


_READERS = {
    "backward": _backward,
    "manual_backward": _manual_backward,
    "zero_grad": _clear,
    "clip_grad_norm_": _clip,
    "clip_grad_value_": _clip,
    "clip_grad_norm": _clip,
    "unscale_": _unscale,
    "step": _step,
    "update": _update,
}


def is_scaler(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression stands for a GradScaler, by what made it or by its name."""
    known = made_by(file, expression)
    if known is not None and known.startswith("torch."):
        return known.endswith("GradScaler")
    return _SCALER.search(_name(expression)) is not None


def is_scheduler(file: FileContext, expression: ast.expr) -> bool:
    known = made_by(file, expression)
    if known is not None and known.startswith("torch."):
        return known.startswith("torch.optim.lr_scheduler.")
    return _SCHEDULER.search(_name(expression)) is not None


def is_optimizer(file: FileContext, expression: ast.expr) -> bool:
    known = made_by(file, expression)
    if known is not None and known.startswith("torch."):
        return known.startswith("torch.optim.") and not known.startswith("torch.optim.lr_scheduler.")
    return _OPTIMIZER.search(_name(expression)) is not None


def _name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    return terminal_name(expression) or ""


# --- rewriting -------------------------------------------------------------------------------------------------------


def block_of(file: FileContext, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of the block that a statement stands in."""
    parent = file.parent(statement)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(parent, field, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def between(file: FileContext, first: ast.stmt, last: ast.stmt) -> list[ast.stmt] | None:
    """The statements from the first to the last, both included, when they are plain ones of one block."""
    block = block_of(file, first)
    if first not in block or last not in block:
        return None
    start, end = sorted((block.index(first), block.index(last)))
    found = block[start : end + 1]
    plain = all(isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)) for statement in found)
    own_lines = len({statement.lineno for statement in found}) == len(found)
    return found if plain and own_lines else None
