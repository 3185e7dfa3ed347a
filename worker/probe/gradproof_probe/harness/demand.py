"""What the source of a call demands of its arguments, read by going through the code once with unknown shapes.

Nothing is executed but attribute look-ups on the built instance: constants (`self.heads`), layers and helper functions
are found live, so that `rearrange(x, 'b n (h d) -> b h n d', h=self.heads)` says a number. Branches whose condition is
known are taken, of others both are read, the first demand wins. Helpers of the repository and forward methods of its
modules are gone through as well.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gradproof_probe.harness.assumptions import assume, truth
from gradproof_probe.harness.axes import Form
from gradproof_probe.harness.reader_base import (
    DEPTH,
    Inner,
    ReturnedError,
    plain_function,
)
from gradproof_probe.harness.reader_calls import Calls
from gradproof_probe.harness.sources import function_node
from gradproof_probe.harness.values import (
    UNKNOWN,
    Constant,
    Items,
    Parameter,
    ShapeOf,
    Size,
    Unknown,
)


def demands(
    function: Callable[..., Any], instance: torch.nn.Module | None, names: Sequence[str], *, skip_first: bool = False
) -> dict[str, Parameter]:
    """By name, what is known of each parameter in `names`; the others are at their defaults.

    `skip_first`: an autograd.Function's forward, whose first parameter is the context.
    """
    parameters = {name: Parameter(name) for name in names}
    reader = Reader()
    try:
        signature = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return parameters
    env: dict[str, Any] = {}
    for index, item in enumerate(signature):
        if index == 0 and instance is not None:
            env[item.name] = Constant(instance)
        elif index == 0 and skip_first:
            env[item.name] = UNKNOWN
        elif item.name in parameters:
            env[item.name] = parameters[item.name]
            if item.kind is item.VAR_POSITIONAL:
                env[item.name] = Items([parameters[item.name]])
        elif item.kind is item.VAR_POSITIONAL:
            env[item.name] = Items([])
        elif item.kind is item.VAR_KEYWORD:
            env[item.name] = Constant({})
        else:
            env[item.name] = Constant(item.default) if item.default is not item.empty else UNKNOWN
    # It computes with live values of the submitted code, which may behave in any way; what was read by then holds.
    with contextlib.suppress(Exception):
        reader.run(function, env)
    return parameters


class Reader(Calls):
    """Goes through the statements of a function, and of those that it calls."""

    def run(self, function: Any, env: dict[str, Any]) -> Any:
        plain = plain_function(function)
        if plain is None or len(self.stack) >= DEPTH:
            return UNKNOWN
        tree = function_node(plain)
        if tree is None:
            return UNKNOWN
        before, self.globals = self.globals, names_seen_by(plain)
        self.stack.append(plain)
        try:
            self.block(tree.body, env)
        except ReturnedError as returned:
            return returned.value
        finally:
            self.globals = before
            self.stack.pop()
        return Constant(None)

    def block(self, body: Sequence[ast.stmt], env: dict[str, Any]) -> None:
        for statement in body:
            self.count()
            handler = getattr(self, f"do_{type(statement).__name__.lower()}", None)
            if handler is not None:
                handler(statement, env)

    def do_expr(self, node: ast.Expr, env: dict[str, Any]) -> None:
        self.value(node.value, env)

    def do_return(self, node: ast.Return, env: dict[str, Any]) -> None:
        raise ReturnedError(self.value(node.value, env) if node.value is not None else Constant(None))

    def do_assign(self, node: ast.Assign, env: dict[str, Any]) -> None:
        value = self.value(node.value, env)
        for target in node.targets:
            self.bind(target, value, env)

    def do_annassign(self, node: ast.AnnAssign, env: dict[str, Any]) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, env), env)

    def do_augassign(self, node: ast.AugAssign, env: dict[str, Any]) -> None:
        if isinstance(node.target, ast.Name):
            left = env.get(node.target.id, UNKNOWN)
            env[node.target.id] = self.combine(node.op, left, self.value(node.value, env))
        else:
            self.value(node.value, env)

    def do_if(self, node: ast.If, env: dict[str, Any]) -> None:
        test = self.value(node.test, env)
        known = truth(test)
        if known is not None:
            self.block(node.body if known else node.orelse, env)
        elif node.body and isinstance(node.body[-1], ast.Raise):
            assume(self, node.test, env, wanted=False)
            self.block(node.orelse, env)
        elif node.orelse and isinstance(node.orelse[-1], ast.Raise):
            assume(self, node.test, env)
            self.block(node.body, env)
        else:
            self.either([node.body, node.orelse], env)

    def either(self, bodies: Sequence[Sequence[ast.stmt]], env: dict[str, Any]) -> None:
        """Both are read; of what they bind the first's value counts, unless it is not known."""
        results: list[dict[str, Any]] = []
        for body in bodies:
            inner = dict(env)
            try:
                self.block(body, inner)
            except ReturnedError:
                # It goes on as if this branch weren't taken: what follows makes its demands as well.
                continue
            if body:
                results.append(inner)
        for inner in reversed(results):
            env.update((name, value) for name, value in inner.items() if not isinstance(value, Unknown))

    def do_assert(self, node: ast.Assert, env: dict[str, Any]) -> None:
        assume(self, node.test, env)

    def do_for(self, node: ast.For, env: dict[str, Any]) -> None:
        for item in self.iterate(self.value(node.iter, env), 3):
            self.bind(node.target, item, env)
            self.block(node.body, env)

    def do_while(self, node: ast.While, env: dict[str, Any]) -> None:
        self.value(node.test, env)
        self.block(node.body, env)

    def do_with(self, node: ast.With, env: dict[str, Any]) -> None:
        for item in node.items:
            self.value(item.context_expr, env)
        self.block(node.body, env)

    def do_try(self, node: ast.Try, env: dict[str, Any]) -> None:
        self.block(node.body, env)
        self.block(node.finalbody, env)

    def do_functiondef(self, node: ast.FunctionDef, env: dict[str, Any]) -> None:
        env[node.name] = Constant(Inner(node, env))

    def bind(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, Size) and not value.axis.root().symbol:
                value.axis.root().symbol = target.id
            env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            starred = next((i for i, item in enumerate(target.elts) if isinstance(item, ast.Starred)), None)
            if starred is None:
                for item, part in zip(target.elts, self.unpack(value, len(target.elts)), strict=False):
                    self.bind(item, part, env)
            else:
                self.bind_starred(target.elts, starred, value, env)

    def bind_starred(self, targets: list[ast.expr], place: int, value: Any, env: dict[str, Any]) -> None:
        after = len(targets) - place - 1
        if isinstance(value, ShapeOf):
            for index, item in enumerate(targets[:place]):
                self.bind(item, Size(value.form.axis(value.start + index)), env)
            for index, item in enumerate(targets[place + 1 :]):
                self.bind(item, Size(value.form.axis(index - after)), env)
        elif isinstance(value, Items) and len(value.values) >= len(targets) - 1:
            end = len(value.values) - after
            for item, part in zip(targets[:place], value.values, strict=False):
                self.bind(item, part, env)
            for item, part in zip(targets[place + 1 :], value.values[end:], strict=False):
                self.bind(item, part, env)
            starred = targets[place]
            assert isinstance(starred, ast.Starred)
            self.bind(starred.value, Items(value.values[place:end]), env)

    def unpack(self, value: Any, count: int) -> list[Any]:
        if isinstance(value, ShapeOf):
            if value.start < 0:
                return [Size(value.form.axis(index - count)) for index in range(count)]
            if value.form.rank is None:
                value.form.set_rank(count + value.start)
            return [Size(value.form.axis(index + value.start)) for index in range(count)]
        if isinstance(value, Items):
            shapes = [item for item in value.values if isinstance(item, ShapeOf) and item.spread]
            if len(shapes) == 1 and len(value.values) <= count:
                # `b, n, _, h = *x.shape, self.heads`
                place = value.values.index(shapes[0])
                width = count - (len(value.values) - 1)
                sizes = self.unpack(shapes[0], width)
                return [*value.values[:place], *sizes, *value.values[place + 1 :]]
            return value.values + [UNKNOWN] * (count - len(value.values))
        if isinstance(value, Parameter):
            if value.count is None:
                value.count = count
            return [value.item(index) for index in range(count)]
        return [*self.iterate(value, count), *[UNKNOWN] * count][:count]

    def iterate(self, value: Any, most: int) -> list[Any]:
        if isinstance(value, Items):
            return value.values[: max(most, 1)]
        if isinstance(value, Parameter):
            value.iterated += 1
            return [value.item(0)]
        if isinstance(value, Form):
            axes = value.all_axes()
            return [Form.of(axes[1:]) if axes else Form(None, max(value.least_rank - 1, 0))]
        if isinstance(value, Constant):
            try:
                listed = value.value
                if isinstance(listed, range | list | tuple | dict | torch.nn.Module) or hasattr(listed, "__len__"):
                    return [Constant(item) for _, item in zip(range(most), iter(listed), strict=False)]
            except Exception:
                return [UNKNOWN]
        return [UNKNOWN]


def names_seen_by(function: types.FunctionType) -> dict[str, Any]:
    names = {**vars(__import__("builtins")), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    return names
