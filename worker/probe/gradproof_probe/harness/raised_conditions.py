"""What was raised, read as conditions: the guard of the failing line, in its frame and inlined into its callers.

`guards(error)` gives the condition that has to become true for the line to pass: the test of an `assert`, the opposite
of the `if` around a `raise`, `key in TABLE` for a KeyError, `len(x) == 3` for an unpacking, `callable(f)` and
`hasattr(x, 'name')` for a TypeError and an AttributeError. A condition that speaks of parameters is carried to the call
that gave them, with the arguments in their place: through helpers, through torch's own constructors and through
`**kwargs`. Names that the function itself computed are replaced by what they were computed from.

Reads source and live frames; runs nothing of the submitted code.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from gradproof_probe.harness.conditions import UnknownValueError, evaluate, holds, normalised, substituted
from gradproof_probe.harness.sources import call_at, function_of

# Frames between a module's call and its forward, or a Function's apply and its forward: they pass everything on.
_PASSING: Final = frozenset({"_wrapped_call_impl", "_call_impl"})
_FRAMES: Final = 24
_EXPANSIONS: Final = 6  # definitions within definitions


@dataclass(frozen=True, slots=True)
class Guard:
    """`condition` has to become true; `names` are what its names mean. `code` is the function that it speaks in."""

    condition: ast.expr
    names: Mapping[str, Any]
    code: CodeType
    line: int

    @property
    def text(self) -> str:
        return ast.unparse(self.condition)


@dataclass(frozen=True, slots=True)
class _Level:
    frame: FrameType
    line: int
    instruction: int

    @property
    def code(self) -> CodeType:
        return self.frame.f_code

    def names(self) -> dict[str, Any]:
        return {**vars(builtins), **self.frame.f_globals, **self.frame.f_locals}


def guards(error: BaseException) -> Iterator[Guard]:
    """Innermost first; then the same condition in each caller as far as its names can be followed."""
    levels = frames_of(error)
    if levels:
        for condition in _conditions(levels[-1], error):
            yield from _outwards(condition, levels, len(levels) - 1)


def frames_of(error: BaseException) -> list[_Level]:
    """The frames of the error that have source, outermost first, without Gradproof's own and torch's passing-on."""
    levels = []
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "gradproof_probe" not in code.co_filename and code.co_name not in _PASSING and code.co_filename[:1] != "<":
            levels.append(_Level(traceback.tb_frame, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    return levels[-_FRAMES:]


def _outwards(condition: ast.expr, levels: list[_Level], depth: int) -> Iterator[Guard]:
    """The condition where it stands, then with parameters replaced by what the callers gave for them."""
    given: dict[str, dict[str, Any]] = {}
    for index in range(depth, -1, -1):
        level = levels[index]
        names = level.names()
        for name, defaults in given.items():
            names[name] = {**defaults, **names[name]}
        condition = normalised(condition, names)
        yield Guard(condition, names, level.code, level.line)
        expanded = _expanded(condition, level, names)
        if expanded is not None:
            yield Guard(expanded, names, level.code, level.line)
            condition = expanded
        if index == 0:
            return
        caller = levels[index - 1]
        call = call_at(caller.frame, caller.instruction)
        if call is None:
            return
        bound = _bound(call, level.code, caller.names())
        given = _left_to_keywords(call, level, bound, given)
        used = {ast.unparse(n) for n in ast.walk(condition) if isinstance(n, ast.Name | ast.Subscript)}
        if not used & {*bound}:
            return
        # What the inner function computed or owns means nothing outside: it stands as the value that it has.
        fixed = _fixed(condition, level, names, bound)
        if fixed is None:
            return
        condition = substituted(fixed, bound)


def _left_to_keywords(
    call: ast.Call, level: _Level, bound: dict[str, ast.expr], inner: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """A call with `**kwargs` could have given the parameters that it left out: they are bound to keys of it.

    By the caller's name for its keywords: the values that these parameters have without being given.
    """
    spread = next((k.value for k in call.keywords if k.arg is None and isinstance(k.value, ast.Name)), None)
    if not isinstance(spread, ast.Name):
        return {}
    code = level.code
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values: dict[str, Any] = {}
    for name in parameters:
        if name not in ("self", "cls") and name not in bound and name in level.frame.f_locals:
            bound[name] = ast.Subscript(ast.Name(spread.id, ast.Load()), ast.Constant(name), ast.Load())
            values[name] = level.frame.f_locals[name]
    for defaults in inner.values():
        values |= defaults
    return {spread.id: values}


def _fixed(
    condition: ast.expr, level: _Level, names: Mapping[str, Any], bound: Mapping[str, ast.expr]
) -> ast.expr | None:
    """Names of the inner function that weren't given by the caller, as constants where they are plain values."""
    values: dict[str, ast.expr] = {}
    for node in ast.walk(condition):
        if isinstance(node, ast.Name) and node.id not in bound and not any(k.startswith(f"{node.id}[") for k in bound):
            if node.id not in level.frame.f_locals and node.id not in level.frame.f_globals:
                continue
            constant = _constant(names[node.id])
            if constant is not None:
                values[node.id] = constant
            elif node.id in level.frame.f_locals:
                chain = next(
                    (
                        ast.unparse(n)
                        for n in ast.walk(condition)
                        if isinstance(n, ast.Attribute | ast.Subscript) and _starts(n, node.id)
                    ),
                    None,
                )
                try:
                    known = _constant(evaluate(ast.parse(chain or node.id, mode="eval").body, names))
                except (UnknownValueError, SyntaxError):
                    return None
                if known is None:
                    return None
                values[chain or node.id] = known
    return substituted(condition, values) if values else condition


def _starts(node: ast.AST, name: str) -> bool:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id == name


def _constant(value: Any) -> ast.expr | None:
    if value is None or type(value) in (int, float, str, bool):
        return ast.Constant(value)
    if type(value) in (list, tuple, set, frozenset, dict) and len(value) <= 64:
        text = repr(value)
        try:
            ast.literal_eval(text)
            return ast.parse(text, mode="eval").body
        except (ValueError, SyntaxError):
            return None
    return None


# --- What a call gave -------------------------------------------------------------------------------------------------


def _bound(call: ast.Call, code: CodeType, names: Mapping[str, Any]) -> dict[str, ast.expr]:
    """By the callee's names (`dim`, `args[0]`, `kwargs['dim']`): the caller's expressions."""
    parameters = list(code.co_varnames[: code.co_argcount])
    keyword_only = list(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    following = code.co_argcount + code.co_kwonlyargcount
    vararg = code.co_varnames[following] if code.co_flags & 0x04 else None
    kwarg = code.co_varnames[following + bool(vararg)] if code.co_flags & 0x08 else None
    given = list(call.args)
    explicit_self = isinstance(call.func, ast.Attribute) and given and _is_self(given[0]) and code.co_name == "__init__"
    if parameters and parameters[0] in ("self", "cls", "ctx") and not explicit_self:
        parameters = parameters[1:]
    bound: dict[str, ast.expr] = {}
    for index, argument in enumerate(given):
        if isinstance(argument, ast.Starred):
            rest = parameters[index:]
            for offset, name in enumerate(rest[: _length(argument.value, names)]):
                bound[name] = ast.Subscript(argument.value, ast.Constant(offset), ast.Load())
            break
        if index < len(parameters):
            bound[parameters[index]] = argument
        elif vararg is not None:
            bound[f"{vararg}[{index - len(parameters)}]"] = argument
    for keyword in call.keywords:
        if keyword.arg is None:
            for name in _keys(keyword.value, names) & {*parameters, *keyword_only}:
                bound.setdefault(name, ast.Subscript(keyword.value, ast.Constant(name), ast.Load()))
            if kwarg is not None:
                bound.setdefault(kwarg, keyword.value)
        elif keyword.arg in parameters or keyword.arg in keyword_only:
            bound[keyword.arg] = keyword.value
        elif kwarg is not None:
            bound[f"{kwarg}[{keyword.arg!r}]"] = keyword.value
    return bound


def _length(sequence: ast.expr, names: Mapping[str, Any]) -> int:
    try:
        return len(evaluate(sequence, names))
    except (UnknownValueError, TypeError):
        return 0


def _keys(mapping: ast.expr, names: Mapping[str, Any]) -> set[str]:
    try:
        return {*evaluate(mapping, names)}
    except (UnknownValueError, TypeError):
        return set()


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


# --- What a function computed -----------------------------------------------------------------------------------------


def _expanded(condition: ast.expr, level: _Level, names: Mapping[str, Any]) -> ast.expr | None:
    """The condition with computed names replaced, as long as it says the same; None where there is none."""
    function = function_of(level.code)
    if function is None:
        return None
    definitions = definitions_before(function, level.line, names)
    current, before = condition, holds(condition, names)
    for _ in range(_EXPANSIONS):
        used = {ast.unparse(n) for n in ast.walk(current) if isinstance(n, ast.Name | ast.Attribute)}
        known = {text: value for text, value in definitions.items() if text in used}
        if not known:
            break
        following = normalised(substituted(current, known), names)
        if holds(following, names) is not before or len(ast.dump(following)) > 4000:
            break
        current = following
    return current if current is not condition else None


def definitions_before(
    function: ast.FunctionDef | ast.AsyncFunctionDef, line: int, names: Mapping[str, Any]
) -> dict[str, ast.expr]:
    """By text (`dim_head`, `self.width`): the expression assigned to it, where that happened once before a line."""
    found: dict[str, ast.expr | None] = {}

    def define(target: ast.expr, value: ast.expr | None) -> None:
        text = ast.unparse(target)
        repeated = text in found or (
            value is not None and text in {ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.expr)}
        )
        found[text] = None if repeated else value

    for node in ast.walk(function):
        if getattr(node, "lineno", line) >= line and not isinstance(node, ast.For):
            continue
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets) | ast.List(elts=targets)], value=value):
                for index, target in enumerate(targets):
                    if isinstance(target, ast.Starred):
                        break
                    define(target, _item(value, index))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    define(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                define(target, value)
            case ast.NamedExpr(target=target, value=value):
                define(target, value)
            case ast.AugAssign(target=target):
                found[ast.unparse(target)] = None
            case ast.For(target=target, iter=source) if node.lineno <= line:
                for part, value in _loop_items(target, source, names):
                    define(part, value)
    return {text: value for text, value in found.items() if value is not None}


def _item(value: ast.expr, index: int) -> ast.expr:
    if isinstance(value, ast.Tuple | ast.List) and index < len(value.elts):
        return value.elts[index]
    return ast.Subscript(value, ast.Constant(index), ast.Load())


def _loop_items(target: ast.expr, source: ast.expr, names: Mapping[str, Any]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """For `for width in widths` and over zip and enumerate: which item it stands at, found by its value."""
    match source:
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]) if isinstance(target, ast.Tuple):
            yield from _loop_items(target.elts[1], inner, names)
            return
        case ast.Call(func=ast.Name(id="zip"), args=several) if isinstance(target, ast.Tuple):
            for part, inner in zip(target.elts, several, strict=False):
                yield from _loop_items(part, inner, names)
            return
    if isinstance(target, ast.Name):
        try:
            items = list(evaluate(source, names))[:64]
        except (UnknownValueError, TypeError):
            return
        for index, item in enumerate(items):
            if item is names.get(target.id):
                yield target, ast.Subscript(source, ast.Constant(index), ast.Load())
                return


# --- What failed ------------------------------------------------------------------------------------------------------


def _conditions(level: _Level, error: BaseException) -> Iterator[ast.expr]:
    function = function_of(level.code)
    if function is None:
        return
    statements = _statements_at(function.body, level.line, [])
    if statements is None:
        return
    around, statement = statements
    if isinstance(statement, ast.Assert):
        yield statement.test
    elif isinstance(statement, ast.Raise):
        for test, taken in reversed(around):
            yield ast.UnaryOp(ast.Not(), test) if taken else test
    yield from _implied(statement, error, level.names())


Around = list[tuple[ast.expr, bool]]


def _statements_at(body: list[ast.stmt], line: int, around: Around) -> tuple[Around, ast.stmt] | None:
    """The innermost statement at a line, with the tests around it and whether each came out true."""
    for statement in body:
        if not statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            continue
        if isinstance(statement, ast.If):
            return (
                _statements_at(statement.body, line, [*around, (statement.test, True)])
                or _statements_at(statement.orelse, line, [*around, (statement.test, False)])
                or (around, statement)
            )
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for child in _blocks(statement, name):
                found = _statements_at(child, line, around)
                if found is not None:
                    return found
        return around, statement
    return None


def _blocks(statement: ast.stmt, name: str) -> list[list[ast.stmt]]:
    value = getattr(statement, name, None)
    if not isinstance(value, list):
        return []
    if name in ("handlers", "cases"):
        return [item.body for item in value]
    return [value]


def _implied(statement: ast.stmt, error: BaseException, names: Mapping[str, Any]) -> Iterator[ast.expr]:
    """Conditions that an exception of Python itself stands for."""
    message = str(error)
    nodes = [n for n in _own_nodes(statement) if isinstance(n, ast.expr)]
    if isinstance(error, KeyError):
        for node in nodes:
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
                yield from _unless_true(ast.Compare(node.slice, [ast.In()], [node.value]), names)
    elif isinstance(error, IndexError):
        for node in nodes:
            if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
                size = ast.Call(ast.Name("len", ast.Load()), [node.value], [])
                yield from _unless_true(ast.Compare(node.slice, [ast.Lt()], [size]), names)
    elif isinstance(error, AttributeError):
        yield from _attributes(nodes, message, names)
    elif isinstance(error, TypeError):
        yield from _types(nodes, message, names)
    match = re.search(r"values to unpack \(expected (\d+)", message)
    if match and isinstance(statement, ast.Assign):
        size = ast.Call(ast.Name("len", ast.Load()), [statement.value], [])
        yield ast.Compare(size, [ast.Eq()], [ast.Constant(int(match[1]))])


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without the bodies that it holds."""
    bodies = {
        id(child) for name in ("body", "orelse", "finalbody", "handlers") for child in getattr(statement, name, [])
    }
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        yield node
        queue += [child for child in ast.iter_child_nodes(node) if id(child) not in bodies]


def _unless_true(condition: ast.expr, names: Mapping[str, Any]) -> Iterator[ast.expr]:
    if holds(condition, names) is False:
        yield condition


def _attributes(nodes: list[ast.expr], message: str, names: Mapping[str, Any]) -> Iterator[ast.expr]:
    match = re.search(r"has no attribute '(\w+)'", message)
    for node in nodes:
        match node:
            case ast.Attribute(value=owner, attr=name) if match and name == match[1]:
                yield _call("hasattr", owner, ast.Constant(name))
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, key]):
                yield from _unless_true(_call("hasattr", owner, key), names)
                yield ast.Compare(key, [ast.In()], [_public_names(owner, names)])


def _public_names(owner: ast.expr, names: Mapping[str, Any]) -> ast.expr:
    """What `getattr(owner, key)` may name: functions if the owner is a module of them, the likeliest first."""
    try:
        value = evaluate(owner, names)
    except UnknownValueError:
        return ast.List([], ast.Load())
    usual = [
        name for name in ("relu", "ReLU", "gelu", "tanh", "mean", "Linear") if callable(getattr(value, name, None))
    ]
    own = [name for name in vars(value) if not name.startswith("_") and callable(getattr(value, name, None))]
    return ast.List([ast.Constant(name) for name in (usual or own[:12])], ast.Load())


def _types(nodes: list[ast.expr], message: str, names: Mapping[str, Any]) -> Iterator[ast.expr]:
    if "is not callable" in message:
        for node in nodes:
            if isinstance(node, ast.Call):
                yield from _unless_true(_call("callable", node.func), names)
    elif re.search(
        r"not iterable|not subscriptable|has no len|non-iterable|must be (?:a sequence|an iterable)", message
    ):
        sequences = ast.Tuple([ast.Name("tuple", ast.Load()), ast.Name("list", ast.Load())], ast.Load())
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
                try:
                    value = evaluate(node, names)
                except UnknownValueError:
                    continue
                if isinstance(value, bool | int | float) or value is None:
                    yield _call("isinstance", node, sequences)


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), [*arguments], [])
