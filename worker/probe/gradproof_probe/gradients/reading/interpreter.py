"""Walks the statements of forward and backward once, with meanings in place of values, and has predicates noted.

Both branches of every test are walked, loops once. A variable means what was last assigned that is known. Functions of
the same package are followed with what they are given. It must run nothing of what it reads, and end soon whatever it
reads: `MOST_NODES` expressions are looked at, then what has been noted so far counts.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.reading import objects
from gradproof_probe.gradients.reading.clue import Clues, Operand
from gradproof_probe.gradients.reading.comparing import SIGNS, compare, contained, negated, truth
from gradproof_probe.gradients.reading.meanings import (
    ELEMENTS,
    UNKNOWN,
    Context,
    Known,
    Many,
    Mask,
    Meaning,
    Quantity,
    Rest,
    Routine,
    Table,
    is_tensor,
    stepped,
    words,
)
from gradproof_probe.gradients.reading.notes import Notes, Place
from gradproof_probe.gradients.reading.operations import Call, ask, block, flag_attribute, operate
from gradproof_probe.gradients.reading.sources import Body, body_of

DEEPEST: Final = 4  # calls from forward or backward into helpers
MOST_NODES: Final = 6_000  # for each of forward and backward, with what it calls: some 10 ms
MOST_CALLS: Final = 40  # into helpers, likewise: each new one has to be parsed
VISITS: Final = 3  # of one function: what it is given may differ
MOST_ITEMS: Final = 8  # of a sequence that is written out and looped over
_SMALLEST_SLICE: Final = 3  # x[1:] and x[:-2] are differences and halos, x[:, 256:] is a tail
_NO_ROLE_KEYWORDS: Final = frozenset(words("dim axis dims axes keepdim dim0 dim1 start_dim end_dim ndim device"))


# What odd code, or objects that answer oddly, may do to their reader.
_ODD: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError)


class _EnoughError(Exception):
    """So much has been read that more would take too long."""


class _Frame:
    __slots__ = ("around", "body", "function", "path", "returned", "variables", "written")

    def __init__(self, function: types.FunctionType | None, body: Body, path: str, around: _Frame | None) -> None:
        self.function = function
        self.body = body
        self.path = path
        self.around = around
        self.variables: dict[str, Meaning] = {}
        self.returned: list[Meaning] = []
        self.written: set[str] = set()  # declared `global`


class Interpreter:
    def __init__(self, start: Any, name: str) -> None:
        body = body_of(start.__code__)
        self._starts = [start]
        self.notes = Notes(Place(start.__code__.co_filename, name, body))
        self._frame = _Frame(start, body, start.__code__.co_filename, None)
        self._depth = 0
        self._left = MOST_NODES
        self._calls_left = MOST_CALLS
        self._visits: dict[types.CodeType, int] = {}
        self._context: dict[str, Meaning] = {}
        self._saved: Meaning = UNKNOWN

    # Functions

    def function_class(self, cls: type, given: Sequence[Meaning] | None, named: dict[str, Meaning]) -> Meaning:
        """`cls.apply(*given)`; with None for given, the parameters are the inputs."""
        forward = objects.unwrapped(_static(cls, "forward"))
        if forward is None:
            return UNKNOWN
        before = self._context, self._saved
        self._context, self._saved = {}, UNKNOWN
        setup = objects.unwrapped(_static(cls, "setup_context"))
        separate = setup is not None and objects.package(setup) != "torch"
        inputs = list(given) if given is not None else _inputs(forward, 0 if separate else 1)
        outermost = given is None
        run = functools.partial(self._run, outermost=outermost)
        name = "forward" if outermost else ""
        backward = _backward(cls)
        if outermost and backward is not None:
            self._starts.append(backward)
        result = run(forward, inputs if separate else [Context(), *inputs], named, name)
        if separate:
            run(setup, [Context(), Many(tuple(inputs)), result], {}, "setup_context" if outermost else "")
        if backward is not None:
            run(backward, [Context(), *_cotangents(backward)], {}, "backward" if outermost else "")
        self._context, self._saved = before
        return result

    def plain(self, function: types.FunctionType, own: Any) -> Meaning:
        """A function whose parameters are the inputs; `own` is its `self`, if it is a method."""
        skip = 0 if own is None else 1
        given = _inputs(function, skip)
        return self._run(function, given if own is None else [Known(own), *given], {}, function.__name__)

    def expression(self, node: ast.expr, variables: dict[str, Meaning], text: str) -> None:
        """One predicate alone, with what its names stand for."""
        self.notes.place = Place("", "", Body((), (text,), 0))
        self._frame.variables.update(variables)
        with contextlib.suppress(*_ODD, _EnoughError):
            truth(self.notes, self.meaning(node), node)

    def finished(self) -> Clues:
        return self.notes.finished()

    def _run(
        self, function: Any, given: Sequence[Meaning], named: dict[str, Meaning], name: str, *, outermost: bool = True
    ) -> Meaning:
        code = function.__code__
        visits = self._visits.get(code, 0)
        if outermost:
            self._left, self._calls_left = MOST_NODES, MOST_CALLS
        if visits >= VISITS or self._depth > DEEPEST or self._calls_left <= 0:
            return UNKNOWN
        self._calls_left -= 1
        self._visits[code] = visits + 1
        body = body_of(code)
        frame = _Frame(function, body, code.co_filename, None)
        _bind(frame.variables, function, given, named)
        outer, place = self._frame, self.notes.place
        self._frame, self._depth = frame, self._depth + 1
        # A helper's predicates belong to the method that called it: "backward compares …".
        self.notes.place = Place(code.co_filename, name or place.function, body)
        try:
            self._block(body.statements)
        except _EnoughError:
            if not outermost:
                raise
        except _ODD:
            # Odd code is read as far as it goes: a clue less is no fault.
            return UNKNOWN
        finally:
            self._frame, self._depth = outer, self._depth - 1
            self.notes.place = place
        return _result(frame.returned)

    def _routine(self, routine: Routine, given: Sequence[Meaning], named: dict[str, Meaning]) -> Meaning:
        if self._depth > DEEPEST:
            return UNKNOWN
        around: _Frame = routine.around
        frame = _Frame(around.function, around.body, around.path, around)
        arguments = routine.node.args
        names = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
        frame.variables.update(zip(names, given, strict=False))
        if arguments.vararg is not None:
            frame.variables[arguments.vararg.arg] = Many(tuple(given[len(names) :]))
        frame.variables.update(named)
        outer = self._frame
        self._frame, self._depth = frame, self._depth + 1
        try:
            if isinstance(routine.node, ast.Lambda):
                return self.meaning(routine.node.body)
            self._block(routine.node.body)
        finally:
            self._frame, self._depth = outer, self._depth - 1
        return _result(frame.returned)

    # Statements

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        outer = len(self.notes.within)
        for statement in statements:
            if isinstance(statement, ast.If):
                found = self._if(statement)
                if not statement.orelse and _leaves(statement.body):
                    # What follows is only reached on the other side of the test.
                    self.notes.within += found
                continue
            act = _STATEMENTS.get(type(statement))
            if act is not None:
                act(self, statement)
        del self.notes.within[outer:]

    def _assign(self, node: ast.Assign) -> None:
        value = self.meaning(node.value)
        for target in node.targets:
            self._store(target, value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, self.meaning(node.value))

    def _augmented(self, node: ast.AugAssign) -> None:
        target = node.target
        before = self._without_notes(target)
        value = self._binary(before, node.op, self.meaning(node.value), node)
        self._store(target, value)

    def _without_notes(self, node: ast.expr) -> Meaning:
        self.notes.silent += 1
        try:
            return self.meaning(node)
        finally:
            self.notes.silent -= 1

    def _store(self, target: ast.expr, value: Meaning) -> None:
        if isinstance(target, ast.Name):
            if target.id in self._frame.written and self._frame.function is not None:
                self.notes.written((id(self._frame.function.__globals__), target.id), target)
                return
            # What is known stays known through `x = x.to(...)` and the like, and through the other branch.
            if value is UNKNOWN and isinstance(self._frame.variables.get(target.id), Quantity | Known):
                return
            self._frame.variables[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value)
        elif isinstance(target, ast.Starred):
            self._store(target.value, value)
        elif isinstance(target, ast.Attribute):
            owner = self._without_notes(target.value)
            if isinstance(owner, Context):
                if value is not UNKNOWN or target.attr not in self._context:
                    self._context[target.attr] = value
            elif isinstance(owner, Known) and not isinstance(owner.value, torch.Tensor):
                self.notes.written((id(owner.value), target.attr), target)
        elif isinstance(target, ast.Subscript):
            owner = self._without_notes(target.value)
            if isinstance(owner, Known) and owner.origin is not None:
                self.notes.written(owner.origin, target)
            elif isinstance(owner, Quantity | Mask):
                self.meaning(target)  # x[x > 3] = 0

    def _unpack(self, target: ast.Tuple | ast.List, value: Meaning) -> None:
        count = len(target.elts)
        star = next((place for place, item in enumerate(target.elts) if isinstance(item, ast.Starred)), None)
        for place, item in enumerate(target.elts):
            index = place if star is None or place < star else place - count
            self._store(item, self._from(value, place) if place == star else self._item(value, index, target))

    def _from(self, value: Meaning, start: int) -> Meaning:
        if isinstance(value, Many):
            return Many(value.items[start:])
        if isinstance(value, Rest):
            return Rest(value.kind, value.start + start)
        if isinstance(value, Quantity) and value.kind == "shape":
            return replace(value, axis=(value.axis or 0) + start)
        return UNKNOWN

    def _if(self, node: ast.If) -> list[int]:
        """The places of the clues in its test."""
        if node.body and _refuses(node.body) and not node.orelse:
            self._without_notes(node.test)
            return []
        mark = len(self.notes.trail)
        truth(self.notes, self.meaning(node.test), node.test)
        found = list(dict.fromkeys(self.notes.trail[mark:]))
        kept = dict(self._frame.variables)
        outer = len(self.notes.within)
        self.notes.within += found
        self._block(node.body)
        self._restore(kept)
        self._block(node.orelse)
        self._restore(kept)
        del self.notes.within[outer:]
        return found

    def _restore(self, kept: dict[str, Meaning]) -> None:
        """What a branch makes of a variable isn't what it is without it."""
        for name, value in kept.items():
            if value is not UNKNOWN:
                self._frame.variables[name] = value

    def _while(self, node: ast.While) -> None:
        truth(self.notes, self.meaning(node.test), node.test)
        self._block(node.body)
        self._block(node.orelse)

    def _for(self, node: ast.For | ast.AsyncFor) -> None:
        over = self.meaning(node.iter)
        self._any_needs(over, node.iter)
        self._store(node.target, self._element(over))
        self._block(node.body)
        self._block(node.orelse)

    def _element(self, over: Meaning) -> Meaning:
        if isinstance(over, Many):
            return over.items[0] if over.items else UNKNOWN
        if isinstance(over, Quantity):
            if over.kind == "shape":
                return Quantity("size", over.argument, moved=True)
            return replace(over, moved=True) if over.kind in ELEMENTS else over
        if isinstance(over, Rest):
            return _numbered(over, 0)
        return UNKNOWN

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            value = self.meaning(item.context_expr)
            if item.optional_vars is not None:
                self._store(item.optional_vars, value)
        self._block(node.body)

    def _try(self, node: Any) -> None:
        self._block(node.body)
        for handler in node.handlers:
            self._block(handler.body)
        self._block(node.orelse)
        self._block(node.finalbody)

    def _return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._frame.returned.append(self.meaning(node.value))

    def _expression(self, node: ast.Expr) -> None:
        self.meaning(node.value)

    def _nested(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._frame.variables[node.name] = Routine(node, self._frame)

    def _global(self, node: ast.Global) -> None:
        self._frame.written.update(node.names)

    def _assert(self, node: ast.Assert) -> None:
        self._without_notes(node.test)

    def _match(self, node: ast.Match) -> None:
        subject = self.meaning(node.subject)
        for case in node.cases:
            for pattern in ast.walk(case.pattern):
                if isinstance(pattern, ast.MatchValue):
                    compare(self.notes, subject, "==", self.meaning(pattern.value), pattern)
                elif isinstance(pattern, ast.MatchSingleton):
                    compare(self.notes, subject, "==", Known(pattern.value), pattern)
            if case.guard is not None:
                truth(self.notes, self.meaning(case.guard), case.guard)
            self._block(case.body)

    # Expressions

    def meaning(self, node: ast.expr) -> Meaning:
        self._left -= 1
        if self._left < 0:
            raise _EnoughError
        act = _EXPRESSIONS.get(type(node))
        return act(self, node) if act is not None else self._parts(node)

    def _parts(self, node: ast.AST) -> Meaning:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.meaning(child)
            elif isinstance(child, ast.FormattedValue | ast.keyword):
                self._parts(child)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Meaning:
        self.notes.number(node.value)
        return Known(node.value)

    def _name(self, node: ast.Name) -> Meaning:
        name = node.id
        frame: _Frame | None = self._frame
        while frame is not None:
            if name in frame.variables:
                return frame.variables[name]
            frame = frame.around
        function = self._frame.function
        if function is None:
            return UNKNOWN
        if name in function.__code__.co_freevars and function.__closure__ is not None:
            cell = function.__closure__[function.__code__.co_freevars.index(name)]
            try:
                return self._variable(cell.cell_contents, (id(cell), name))
            except ValueError:
                return UNKNOWN
        if name in function.__globals__:
            return self._variable(function.__globals__[name], (id(function.__globals__), name))
        found = vars(builtins).get(name)
        return Known(found) if found is not None else UNKNOWN

    def _variable(self, value: Any, origin: tuple[int, str]) -> Meaning:
        if isinstance(value, int | float):
            self.notes.number(value)
            return Known(value, origin)
        if isinstance(value, types.ModuleType | types.FunctionType | type):
            return Known(value)
        return Known(value, origin)

    def _attribute(self, node: ast.Attribute) -> Meaning:
        owner = self.meaning(node.value)
        if isinstance(owner, Known):
            if not isinstance(owner.value, type):
                flag = flag_attribute(self.notes, node.attr, node)
                if flag is not None:
                    return flag
            if isinstance(owner.value, torch.finfo):
                return UNKNOWN
            found = objects.attribute(owner.value, node.attr)
            if isinstance(found, Known) and not (
                isinstance(owner.value, types.ModuleType) and owner.value.__name__.partition(".")[0] in objects.NEVER
            ):
                self.notes.number(found.value)
            return found
        if isinstance(owner, Context):
            return self._of_context(node.attr)
        return ask(self.notes, owner, node.attr, node)

    def _attribute_named(self, owner: Meaning, name: Meaning, node: ast.AST) -> Meaning:
        """`getattr(owner, "name", default)`."""
        if not isinstance(name, Known) or not isinstance(name.value, str):
            return UNKNOWN
        if isinstance(owner, Context):
            return self._of_context(name.value)
        if isinstance(owner, Known):
            return objects.attribute(owner.value, name.value)
        return ask(self.notes, owner, name.value, node)

    def _of_context(self, name: str) -> Meaning:
        if name == "needs_input_grad":
            return Quantity("requires_grad", detail="needs")
        if name in {"saved_tensors", "saved_variables", "saved_values"}:
            return self._saved
        return self._context.get(name, UNKNOWN)

    def _call(self, node: ast.Call) -> Meaning:
        function = node.func
        owner: Meaning | None = None
        target: Meaning = UNKNOWN
        name = ""
        if isinstance(function, ast.Attribute):
            owner, name = self.meaning(function.value), function.attr
            if isinstance(owner, Known):
                target = objects.attribute(owner.value, name)
        elif isinstance(function, ast.Name):
            name, target = function.id, self._name(function)
        else:
            target = self.meaning(function)
        given = self._arguments(node.args)
        for meaning in (owner, *given):
            self._any_needs(meaning, node)
        named = {item.arg: self._keyword(item) for item in node.keywords if item.arg is not None}
        for item in node.keywords:
            if item.arg is None:
                self.meaning(item.value)
        if isinstance(owner, Context):
            return self._call_context(name, given)
        if name == "getattr" and owner is None and len(given) > 1:
            return self._attribute_named(given[0], given[1], node)
        if isinstance(target, Routine):
            return self._routine(target, given, named)
        if isinstance(target, Known):
            followed = self._follow(target, owner, name, given, named)
            if followed is not None:
                return followed
            if isinstance(function, ast.Name) or owner is None:
                name = getattr(target.value, "__name__", name) or name
        # A method's object is the first thing it is given, unless it is the module that a function is from.
        about_owner = owner is not None and not (
            isinstance(owner, Known) and isinstance(owner.value, types.ModuleType | type)
        )
        everything = [owner, *given] if about_owner and owner is not None else given
        return operate(Call(self.notes, name, everything, named, node))

    def _any_needs(self, meaning: Meaning | None, node: ast.AST) -> None:
        """`any(ctx.needs_input_grad)`, a loop over it: each input may be the one."""
        if isinstance(meaning, Quantity) and meaning.kind == "requires_grad" and meaning.detail == "needs":
            self.notes.clue("requires_grad", node)

    def _arguments(self, nodes: Sequence[ast.expr]) -> list[Meaning]:
        given: list[Meaning] = []
        for item in nodes:
            if isinstance(item, ast.Starred):
                value = self.meaning(item.value)
                if isinstance(value, Many):
                    given += value.items
                elif isinstance(value, Rest):
                    given += [_numbered(value, place) for place in range(8)]
                else:
                    given.append(value)
            else:
                given.append(self.meaning(item))
        return given

    def _keyword(self, item: ast.keyword) -> Meaning:
        value = self.meaning(item.value)
        if item.arg in _NO_ROLE_KEYWORDS:
            self.notes.has_role(value)
        return value

    def _call_context(self, name: str, given: list[Meaning]) -> Meaning:
        if name in {"save_for_backward", "save_for_forward"}:
            if not (isinstance(self._saved, Many) and len(self._saved.items) == len(given)) or any(
                is_tensor(item) for item in given
            ):
                self._saved = Many(tuple(given))
        elif name in self._context:
            kept = self._context[name]
            if isinstance(kept, Routine):
                return self._routine(kept, given, {})
            if isinstance(kept, Known):
                return self._follow(kept, None, name, given, {}) or UNKNOWN
        return UNKNOWN

    def _follow(
        self, target: Known, owner: Meaning | None, name: str, given: list[Meaning], named: dict[str, Meaning]
    ) -> Meaning | None:
        """Into code of the same package; None where it isn't."""
        value = target.value
        if name == "apply" and isinstance(owner, Known) and objects.is_function_class(owner.value):
            return self._inner_class(owner.value, given, named)
        if isinstance(value, functools.partial):
            bound = [Known(item) for item in value.args]
            value, given = value.func, [*bound, *given]
        if isinstance(value, types.MethodType):
            given = [Known(value.__self__), *given]
        elif isinstance(value, torch.nn.Module):
            method = _static(type(value), "forward")
            given, value = [Known(value), *given], method
        elif owner is not None and isinstance(owner, Known) and not _bare(owner.value, name):
            given = [owner, *given]
        bound_apply = getattr(value, "__self__", None) if isinstance(value, types.BuiltinMethodType) else None
        if isinstance(value, types.MethodType) and value.__name__ == "apply":
            bound_apply = value.__self__
        if objects.is_function_class(bound_apply):
            return self._inner_class(bound_apply, given[1:] if isinstance(value, types.MethodType) else given, named)
        function = objects.unwrapped(value)
        if not isinstance(function, types.FunctionType) or not objects.may_be_read(function, self._starts):
            return None
        return self._run(function, given, named, "", outermost=False)

    def _inner_class(self, cls: Any, given: list[Meaning], named: dict[str, Meaning]) -> Meaning | None:
        forward = objects.unwrapped(_static(cls, "forward"))
        if forward is None or not objects.may_be_read(forward, self._starts) or self._depth > DEEPEST:
            return None
        return self.function_class(cls, given, named)

    def _compare(self, node: ast.Compare) -> Meaning:
        left = self.meaning(node.left)
        result: Meaning = UNKNOWN
        for operator, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.meaning(right_node)
            sign = SIGNS.get(type(operator))
            if sign is not None:
                if isinstance(operator, ast.Is | ast.IsNot) and is_tensor(left) and is_tensor(right):
                    self._identical(left, right, node)
                else:
                    result = compare(self.notes, left, sign, right, node)
            elif isinstance(operator, ast.In | ast.NotIn):
                result = contained(self.notes, left, right, node)
            left = right
        return result

    def _identical(self, left: Meaning, right: Meaning, node: ast.AST) -> None:
        for item in (left, right):
            if isinstance(item, Quantity) and item.kind == "value":
                self.notes.clue("value", node, detail="address", argument=item.argument)
                return

    def _bool(self, node: ast.BoolOp) -> Meaning:
        added = 0
        last: Meaning = UNKNOWN
        for item in node.values:
            mark = len(self.notes.trail)
            last = self.meaning(item)
            truth(self.notes, last, item)
            if isinstance(node.op, ast.And):
                found = list(dict.fromkeys(self.notes.trail[mark:]))
                self.notes.within += found
                added += len(found)
        if added:
            del self.notes.within[len(self.notes.within) - added :]
        return last if isinstance(last, Mask) else UNKNOWN

    def _unary(self, node: ast.UnaryOp) -> Meaning:
        value = self.meaning(node.operand)
        if isinstance(node.op, ast.Not):
            truth(self.notes, value, node)
            return negated(value) if isinstance(value, Mask) else UNKNOWN
        if isinstance(node.op, ast.Invert):
            return negated(value) if isinstance(value, Mask) else UNKNOWN
        if isinstance(node.op, ast.USub):
            if isinstance(value, Known) and isinstance(value.value, int | float):
                self.notes.number(-value.value)
                return Known(-value.value)
            if isinstance(value, Quantity):
                return stepped(value, "neg")
        return value

    def _binary_node(self, node: ast.BinOp) -> Meaning:
        return self._binary(self.meaning(node.left), node.op, self.meaning(node.right), node)

    def _binary(self, left: Meaning, operator: ast.operator, right: Meaning, node: ast.AST) -> Meaning:
        name = _OPERATORS.get(type(operator), "")
        if isinstance(left, Known) and isinstance(right, Known):
            return _computed(left, name, right)
        if isinstance(left, Mask) or isinstance(right, Mask):
            return _masks(left, name, right)
        if isinstance(left, Quantity) and isinstance(right, Known) and _number(right.value):
            return self._with_number(left, name, right, node)
        if isinstance(left, Known) and isinstance(right, Quantity) and _number(left.value):
            mirrored = {"add": "add", "mul": "mul", "sub": "rsub", "div": "rdiv"}.get(name)
            if mirrored is None:
                return replace(right, derived=True)
            return stepped(right, mirrored, float(left.value))
        if isinstance(left, Quantity) and isinstance(right, Quantity):
            return self._quantities(left, name, right, node)
        if isinstance(left, Many) and isinstance(right, Many) and name == "add":
            return Many((*left.items, *right.items))
        for item in (left, right):
            if isinstance(item, Quantity):
                return replace(item, derived=True)
        return UNKNOWN

    def _with_number(self, left: Quantity, name: str, right: Known, node: ast.AST) -> Meaning:
        number = float(right.value)
        notes = self.notes
        sized = left.kind in {"size", "numel"}
        if name == "sub":
            return stepped(left, "add", -number)
        if name == "pow":
            notes.has_role(right)
        if sized and name in {"floordiv", "rshift", "mod"} and number > 0:
            unit = 2**number if name == "rshift" and number < 40 else number
            if unit > 1:
                relation: Any = "multiple" if name == "mod" else "block"
                notes.about(left, node, number=unit, relation=relation, constant=0 if name == "mod" else None)
            return stepped(left, "mod" if name == "mod" else "floordiv", unit)
        if name == "lshift":
            return stepped(left, "mul", 2**number) if 0 <= number < 40 else replace(left, derived=True)
        if name == "bitand" and sized and number > 0 and (int(number) + 1).bit_count() == 1:
            notes.about(left, node, number=number + 1, relation="multiple", constant=0)
            return stepped(left, "mod", number + 1)
        if name in {"add", "mul", "div", "floordiv", "mod", "pow"}:
            return stepped(left, name, number)
        return replace(left, derived=True)

    def _quantities(self, left: Quantity, name: str, right: Quantity, node: ast.AST) -> Meaning:
        if left.kind in {"size", "numel"} and right.kind in {"size", "numel"}:
            if name == "bitand":
                self.notes.about(left, node, relation="power of two")
                return replace(left, steps=(), derived=True)
            if name in {"mod", "floordiv"}:
                other = Operand(right.argument, None if right.moved else right.axis)
                self.notes.about(left, node, detail="other", relation="multiple", constant=other)
                return replace(left, derived=True)
            if name == "mul" and left.argument == right.argument:
                return Quantity("numel", left.argument, derived=True)
        chosen = right if left.kind == "rank" else left
        if right.kind in ELEMENTS and (left.kind not in ELEMENTS or (left.kind == "cotangent" != right.kind)):
            chosen = right
        return replace(chosen, derived=True)

    def _subscript(self, node: ast.Subscript) -> Meaning:
        owner = self.meaning(node.value)
        key = node.slice
        if isinstance(owner, Quantity) and owner.kind in ELEMENTS:
            self._cut(owner, key, node)
            return replace(owner, moved=True)
        if isinstance(key, ast.Slice):
            return self._sliced(owner, key)
        index = self.meaning(key)
        if isinstance(index, Known):
            self.notes.has_role(index)
            if isinstance(index.value, int) and not isinstance(index.value, bool):
                return self._item(owner, index.value, node)
        if isinstance(owner, Known | Table):
            return self._looked_up(owner, index, node)
        if isinstance(owner, Quantity) and owner.kind == "shape":
            return Quantity("size", owner.argument, moved=True)
        if isinstance(owner, Many) and owner.items:
            return owner.items[0]
        return UNKNOWN

    def _item(self, owner: Meaning, index: int, node: ast.AST) -> Meaning:
        if isinstance(owner, Many):
            return owner.items[index] if -len(owner.items) <= index < len(owner.items) else UNKNOWN
        if isinstance(owner, Rest):
            return _numbered(owner, index) if index >= 0 else UNKNOWN
        if isinstance(owner, Quantity):
            if owner.kind == "shape":
                axis = index + (owner.axis or 0) if index >= 0 else index
                return Quantity("size", owner.argument, axis=axis, moved=owner.moved, derived=owner.derived)
            if owner.kind == "requires_grad" and owner.detail == "needs":
                self.notes.clue("requires_grad", node, number=index)
                return Quantity("requires_grad", axis=index)
            if owner.kind in ELEMENTS:
                return replace(owner, moved=True)
        if isinstance(owner, Known):
            return self._looked_up(owner, Known(index), node)
        return UNKNOWN

    def _looked_up(self, owner: Known | Table, index: Meaning, node: ast.AST) -> Meaning:
        if isinstance(owner, Table):
            for key, kept in zip(owner.keys, owner.values, strict=False):
                if isinstance(key, Known) and isinstance(index, Known) and key.value == index.value:
                    return kept
            contained(self.notes, index, owner, node)
            return next((item for item in owner.values if item is not UNKNOWN), UNKNOWN)
        self.notes.consulted(owner, node)
        value = owner.value
        if isinstance(index, Known):
            with contextlib.suppress(KeyError, IndexError, TypeError):
                if type(value) in {list, tuple, dict}:
                    found = value[index.value]
                    self.notes.number(found)
                    return Known(found, owner.origin)
        elif isinstance(value, dict | list | tuple):
            contained(self.notes, index, owner, node)
        return UNKNOWN

    def _sliced(self, owner: Meaning, key: ast.Slice) -> Meaning:
        bounds = [self.meaning(item) for item in (key.lower, key.upper, key.step) if item is not None]
        for item in bounds:
            self.notes.has_role(item)
        lower = self._without_notes(key.lower) if key.lower is not None else Known(0)
        start = lower.value if isinstance(lower, Known) and isinstance(lower.value, int) else None
        if isinstance(owner, Many):
            upper = self._without_notes(key.upper) if key.upper is not None else Known(None)
            if start is not None and isinstance(upper, Known) and isinstance(upper.value, int | type(None)):
                return Many(owner.items[start : upper.value])
            return owner
        if isinstance(owner, Rest | Quantity) and start is not None and start >= 0:
            return self._from(owner, start) if not (isinstance(owner, Quantity) and owner.kind != "shape") else owner
        if isinstance(owner, Quantity) and owner.kind == "shape":
            return replace(owner, moved=True)
        return owner if isinstance(owner, Quantity) else UNKNOWN

    def _cut(self, tensor: Quantity, key: ast.expr, node: ast.AST) -> None:
        """`x[:, 256:]`: the sizes at which it begins to matter."""
        parts = key.elts if isinstance(key, ast.Tuple) else [key]
        dots = next((place for place, item in enumerate(parts) if _is_dots(item)), None)
        for place, item in enumerate(parts):
            if not isinstance(item, ast.Slice):
                found = self.meaning(item)
                self.notes.has_role(found)
                continue
            axis = place if dots is None or place < dots else place - len(parts)
            owner = tensor.argument if tensor.kind == "value" else f"grad {tensor.argument}"
            moved = tensor.moved or tensor.derived
            for bound in (item.lower, item.upper, item.step):
                value = self.meaning(bound) if bound is not None else UNKNOWN
                self.notes.has_role(value)
                if isinstance(value, Known) and _number(value.value) and abs(value.value) >= _SMALLEST_SLICE:
                    size = Quantity("size", owner, axis=axis, moved=moved, derived=tensor.derived)
                    if bound is item.step:
                        block(self.notes, size, value, node)
                    else:
                        self.notes.about(size, node, number=abs(value.value), relation=">")

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Meaning:
        return Many(tuple(self._arguments(node.elts)))

    def _dict(self, node: ast.Dict) -> Meaning:
        keys = tuple(self.meaning(item) for item in node.keys if item is not None)
        return Table(keys, tuple(self.meaning(item) for item in node.values))

    def _choice(self, node: ast.IfExp) -> Meaning:
        truth(self.notes, self.meaning(node.test), node.test)
        one, other = self.meaning(node.body), self.meaning(node.orelse)
        known = isinstance(one, Quantity | Many) or other is UNKNOWN
        return one if known else other

    def _lambda(self, node: ast.Lambda) -> Meaning:
        return Routine(node, self._frame)

    def _comprehension(self, node: Any) -> Meaning:
        first = self.meaning(node.generators[0].iter)
        if len(node.generators) == 1 and isinstance(first, Many) and 1 < len(first.items) <= MOST_ITEMS:
            return Many(tuple(self._one_of(node, item) for item in first.items))
        for generator in node.generators:
            over = self.meaning(generator.iter)
            self._any_needs(over, generator.iter)
            self._store(generator.target, self._element(over))
            for condition in generator.ifs:
                truth(self.notes, self.meaning(condition), condition)
        if isinstance(node, ast.DictComp):
            self.meaning(node.key)
            return self.meaning(node.value)
        return self.meaning(node.elt)

    def _one_of(self, node: Any, item: Meaning) -> Meaning:
        """What the comprehension makes of one item of what is written out: `[t.shape for t in (x, y)]`."""
        generator = node.generators[0]
        self._store(generator.target, item)
        for condition in generator.ifs:
            truth(self.notes, self.meaning(condition), condition)
        return self.meaning(node.value if isinstance(node, ast.DictComp) else node.elt)

    def _walrus(self, node: ast.NamedExpr) -> Meaning:
        value = self.meaning(node.value)
        self._store(node.target, value)
        return value

    def _starred(self, node: ast.Starred) -> Meaning:
        return self.meaning(node.value)


def _static(cls: type, name: str) -> Any:
    found = objects.attribute(cls, name)
    return found.value if isinstance(found, Known) else None


def _backward(cls: type) -> types.FunctionType | None:
    for name in ("backward", "vjp"):
        found = objects.unwrapped(_static(cls, name))
        if isinstance(found, types.FunctionType) and objects.package(found) != "torch":
            return found
    return None


def _bare(owner: Any, name: str) -> bool:
    """`owner.name` is a plain function: from a module, or a static method; not one that is given its object."""
    if isinstance(owner, types.ModuleType):
        return True
    cls = owner if isinstance(owner, type) else type(owner)
    for base in cls.__mro__:
        if name in vars(base):
            raw = vars(base)[name]
            return isinstance(raw, staticmethod) or (isinstance(owner, type) and not isinstance(raw, classmethod))
    return True


def _inputs(function: types.FunctionType, skip: int) -> list[Meaning]:
    names, rest, _, _ = objects.parameters(function.__code__)
    found: list[Meaning] = [Quantity("value", name) for name in names[skip:]]
    if rest is not None:
        found.append(Rest("value", len(names) - skip))
    return found


def _cotangents(function: types.FunctionType) -> list[Meaning]:
    names, rest, _, _ = objects.parameters(function.__code__)
    found: list[Meaning] = [Quantity("cotangent", str(place)) for place in range(len(names) - 1)]
    if rest is not None:
        found.append(Rest("cotangent", max(len(names) - 1, 0)))
    return found


def _numbered(rest: Rest, place: int) -> Quantity:
    number = rest.start + place
    return Quantity(rest.kind, f"#{number}" if rest.kind == "value" else str(number))


def _bind(
    variables: dict[str, Meaning], function: types.FunctionType, given: Sequence[Meaning], named: dict[str, Meaning]
) -> None:
    names, rest, only, _ = objects.parameters(function.__code__)
    defaults = function.__defaults__ or ()
    for name, value in zip(reversed(names), reversed(defaults), strict=False):
        variables[name] = Known(value)
    for name, value in (function.__kwdefaults__ or {}).items():
        variables[name] = Known(value)
    tail = given[len(names) :]
    variables.update(zip(names, given, strict=False))
    # forward(ctx, *args) of a decorator that calls the real one: what is left over, still in order.
    if rest is not None:
        if len(tail) == 1 and isinstance(tail[0], Rest):
            variables[rest] = tail[0]
        else:
            variables[rest] = Many(tuple(tail))
    elif given and isinstance(given[-1], Rest) and len(given) <= len(names):
        last = given[-1]
        for place, name in enumerate(names[len(given) - 1 :]):
            variables[name] = _numbered(last, place)
    variables.update(named)
    for name in (*names, *only):
        variables.setdefault(name, UNKNOWN)


def _result(returned: list[Meaning]) -> Meaning:
    return next((item for item in returned if not isinstance(item, Known) and item is not UNKNOWN), UNKNOWN)


def _refuses(body: list[ast.stmt]) -> bool:
    """The branch only rejects what it was given."""
    return isinstance(body[-1], ast.Raise) and not any(isinstance(item, ast.If | ast.Return | ast.For) for item in body)


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


_OPERATORS: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "bitand",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.MatMult: "matmul",
}
_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}


def _computed(left: Known, name: str, right: Known) -> Meaning:
    """Arithmetic of constants: `4 * BLOCK`, `2 ** 16`, `1 << 16`."""
    one, other = left.value, right.value
    origin = left.origin or right.origin
    if not (isinstance(one, int | float) and isinstance(other, int | float)):
        return UNKNOWN
    # Powers and shifts of small numbers alone: 9 ** 9 ** 9 would not end.
    if name in {"pow", "lshift"} and (abs(one) > 1024 or not 0 <= other <= 64):
        return UNKNOWN
    try:
        if name == "pow":
            return Known(one**other, origin)
        if name == "lshift" and isinstance(one, int) and isinstance(other, int):
            return Known(one << other, origin)
        act = _ARITHMETIC.get(name)
        return Known(act(one, other), origin) if act is not None else UNKNOWN
    except (ArithmeticError, ValueError):
        return UNKNOWN


def _masks(left: Meaning, name: str, right: Meaning) -> Meaning:
    if isinstance(left, Mask) and isinstance(right, Mask):
        return Mask(left.of, left.relation, None, (*left.clues, *right.clues))
    for item in (left, right):
        if isinstance(item, Quantity):
            return replace(item, derived=True)  # g * (x > 0)
    for item in (left, right):
        if isinstance(item, Mask) and name in {"bitand", "bitor"}:
            return item
        if isinstance(item, Mask):
            return replace(item.of, derived=True)
    return UNKNOWN


_STATEMENTS: Final[dict[type[ast.stmt], Callable[[Interpreter, Any], None]]] = {
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.AugAssign: Interpreter._augmented,
    ast.While: Interpreter._while,
    ast.For: Interpreter._for,
    ast.AsyncFor: Interpreter._for,
    ast.With: Interpreter._with,
    ast.AsyncWith: Interpreter._with,
    ast.Try: Interpreter._try,
    ast.TryStar: Interpreter._try,
    ast.Return: Interpreter._return,
    ast.Expr: Interpreter._expression,
    ast.FunctionDef: Interpreter._nested,
    ast.AsyncFunctionDef: Interpreter._nested,
    ast.Global: Interpreter._global,
    ast.Assert: Interpreter._assert,
    ast.Match: Interpreter._match,
}
_EXPRESSIONS: Final[dict[type[ast.expr], Callable[[Interpreter, Any], Meaning]]] = {
    ast.Constant: Interpreter._constant,
    ast.Name: Interpreter._name,
    ast.Attribute: Interpreter._attribute,
    ast.Call: Interpreter._call,
    ast.Compare: Interpreter._compare,
    ast.BoolOp: Interpreter._bool,
    ast.UnaryOp: Interpreter._unary,
    ast.BinOp: Interpreter._binary_node,
    ast.Subscript: Interpreter._subscript,
    ast.Tuple: Interpreter._tuple,
    ast.List: Interpreter._tuple,
    ast.Set: Interpreter._tuple,
    ast.Dict: Interpreter._dict,
    ast.IfExp: Interpreter._choice,
    ast.Lambda: Interpreter._lambda,
    ast.ListComp: Interpreter._comprehension,
    ast.SetComp: Interpreter._comprehension,
    ast.GeneratorExp: Interpreter._comprehension,
    ast.DictComp: Interpreter._comprehension,
    ast.NamedExpr: Interpreter._walrus,
    ast.Starred: Interpreter._starred,
}
