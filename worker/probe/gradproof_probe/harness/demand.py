"""What the source of a call demands of its arguments, read by going through the code once with unknown shapes.

Nothing is executed but attribute look-ups on the built instance: constants (`self.heads`), layers and helper functions
are found live, so that `rearrange(x, 'b n (h d) -> b h n d', h=self.heads)` says a number. Branches whose condition is
known are taken, of others both are read, the first demand wins. Helpers of the repository and forward methods of its
modules are gone through as well.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from gradproof_probe.harness import operations
from gradproof_probe.harness.assumptions import assume, truth
from gradproof_probe.harness.axes import Axis, Form
from gradproof_probe.harness.layers import attention, through_layer
from gradproof_probe.harness.patterns import pack, read_pattern, rearrange
from gradproof_probe.harness.values import (
    UNKNOWN,
    Bound,
    Constant,
    Items,
    Parameter,
    RankOf,
    ShapeOf,
    Size,
    Unknown,
    axis_of,
    form_of,
    number_of,
    only_of_tensors,
)

DEPTH: Final = 7
NODES: Final = 20_000  # of one target: reading costs some 5 microseconds a node
SECONDS: Final = 0.6
_NOT_OURS: Final = frozenset(
    {"torch", "einops", "builtins", "numpy", "math", "typing", "functools", "collections"}
) | set(sys.stdlib_module_names)
YES: Final = Constant(True)  # noqa: FBT003 the value is what it holds
NO: Final = Constant(False)  # noqa: FBT003
_PATTERNS: Final = ("rearrange", "reduce", "repeat")


class _ReturnedError(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _TooMuchError(Exception):
    """The budget is used up: what was learnt so far stays."""


def demands(
    function: Callable[..., Any], instance: torch.nn.Module | None, names: Sequence[str], *, skip_first: bool = False
) -> dict[str, Parameter]:
    """By name, what is known of each parameter in `names`; the others are at their defaults.

    `skip_first`: an autograd.Function's forward, whose first parameter is the context.
    """
    parameters = {name: Parameter(name) for name in names}
    reader = _Reader()
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
    with contextlib.suppress(_TooMuchError, RecursionError):
        reader.run(function, env)
    return parameters


@functools.lru_cache(maxsize=512)
def _tree(function: types.FunctionType) -> ast.FunctionDef | ast.Lambda | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            return node
    return next((node for node in ast.walk(tree) if isinstance(node, ast.Lambda)), None)


def _plain_function(function: Any) -> types.FunctionType | None:
    for _ in range(4):
        function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    return function if isinstance(function, types.FunctionType) else None


class _Reader:
    def __init__(self) -> None:
        self.nodes = 0
        self.stack: list[tuple[Any, int]] = []
        self.deadline = time.monotonic() + SECONDS
        self.globals: dict[str, Any] = {}

    def run(self, function: Any, env: dict[str, Any]) -> Any:
        plain = _plain_function(function)
        if plain is None or len(self.stack) >= DEPTH:
            return UNKNOWN
        tree = _tree(plain)
        if tree is None:
            return UNKNOWN
        before, self.globals = self.globals, _names(plain)
        self.stack.append((plain, 0))
        try:
            if isinstance(tree, ast.Lambda):
                return self.value(tree.body, env)
            self.block(tree.body, env)
        except _ReturnedError as returned:
            return returned.value
        finally:
            self.globals = before
            self.stack.pop()
        return Constant(None)

    # Statements

    def block(self, body: Sequence[ast.stmt], env: dict[str, Any]) -> None:
        for statement in body:
            self.count()
            handler = getattr(self, f"do_{type(statement).__name__.lower()}", None)
            if handler is not None:
                handler(statement, env)

    def count(self) -> None:
        self.nodes += 1
        if self.nodes > NODES or (self.nodes % 64 == 0 and time.monotonic() > self.deadline):
            raise _TooMuchError

    def do_expr(self, node: ast.Expr, env: dict[str, Any]) -> None:
        self.value(node.value, env)

    def do_return(self, node: ast.Return, env: dict[str, Any]) -> None:
        raise _ReturnedError(self.value(node.value, env) if node.value is not None else Constant(None))

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
            except _ReturnedError:
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
        env[node.name] = Constant(_Inner(node, env))

    # Binding and iteration

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

    # Expressions

    def value(self, node: ast.expr | None, env: dict[str, Any]) -> Any:
        self.count()
        if node is None:
            return Constant(None)
        handler = getattr(self, f"of_{type(node).__name__.lower()}", None)
        return handler(node, env) if handler is not None else UNKNOWN

    def of_constant(self, node: ast.Constant, _env: dict[str, Any]) -> Any:
        return Constant(node.value)

    def of_name(self, node: ast.Name, env: dict[str, Any]) -> Any:
        if node.id in env:
            return env[node.id]
        if node.id in self.globals:
            return Constant(self.globals[node.id])
        return UNKNOWN

    def of_attribute(self, node: ast.Attribute, env: dict[str, Any]) -> Any:
        owner = self.value(node.value, env)
        if isinstance(owner, Constant):
            try:
                return Constant(getattr(owner.value, node.attr))
            except Exception:
                return UNKNOWN
        if isinstance(owner, Parameter) and not only_of_tensors(node.attr) and node.attr not in ("T", "mT"):
            return self.attribute_of_parameter(owner, node.attr)
        return self.attribute_of_form(owner, node.attr)

    def attribute_of_parameter(self, owner: Parameter, name: str) -> Any:
        if name in operations.OPERATIONS or name in operations.SAME or name in operations.REDUCTIONS:
            return Bound(owner, name)
        if name in ("keys", "values", "items", "get", "pop", "update", "append", "index", "split", "lower", "format"):
            return Bound(owner, name)
        return owner.attribute(name)

    def attribute_of_form(self, owner: Any, name: str) -> Any:
        form = form_of(owner) if isinstance(owner, Form | Parameter) else None
        if form is None:
            return UNKNOWN
        special: dict[str, Callable[[], Any]] = {
            "shape": lambda: ShapeOf(form),
            "ndim": lambda: RankOf(form),
            "data": lambda: form,
            "real": lambda: Form(form.rank, form.least_rank, form.axes),
            "imag": lambda: Form(form.rank, form.least_rank, form.axes),
            "T": lambda: operations.apply("T", [form], {}),
            "mT": lambda: operations.apply("mT", [form], {}),
            "grad": lambda: form,
        }
        if name in special:
            if name in ("real", "imag"):
                form.want("complex")
            return special[name]()
        if name in ("dtype", "device", "requires_grad", "is_cuda", "layout", "itemsize"):
            return UNKNOWN
        return Bound(owner, name)

    def of_tuple(self, node: ast.Tuple | ast.List, env: dict[str, Any]) -> Any:
        values: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                inner = self.value(item.value, env)
                if isinstance(inner, ShapeOf):
                    inner = ShapeOf(inner.form, inner.start, spread=True)
                values += inner.values if isinstance(inner, Items) else [inner]
            else:
                values.append(self.value(item, env))
        return Items(values)

    of_list = of_tuple

    def of_starred(self, node: ast.Starred, env: dict[str, Any]) -> Any:
        return self.value(node.value, env)

    def of_subscript(self, node: ast.Subscript, env: dict[str, Any]) -> Any:
        owner = self.value(node.value, env)
        if isinstance(owner, ShapeOf):
            return self.part_of_shape(owner, node.slice, env)
        index = self.value(node.slice, env) if not isinstance(node.slice, ast.Slice) else UNKNOWN
        if isinstance(owner, Constant):
            if isinstance(index, Constant):
                try:
                    return Constant(owner.value[index.value])
                except Exception:
                    return UNKNOWN
            form = form_of(owner)
            return self.index(form, node.slice, env) if form is not None else UNKNOWN
        if isinstance(owner, Items):
            number = number_of(index)
            inside = number is not None and -len(owner.values) <= number < len(owner.values)
            return owner.values[number] if inside and number is not None else UNKNOWN
        if isinstance(owner, Parameter):
            if isinstance(index, Constant) and isinstance(index.value, str):
                return owner.key(index.value)
            if isinstance(index, Constant) and isinstance(index.value, int) and not owner.tensor:
                return owner.item(index.value)
        form = form_of(owner)
        result = self.index(form, node.slice, env) if form is not None else UNKNOWN
        if isinstance(result, Form) and result is not form:
            result.base = form
        return result

    def part_of_shape(self, shape: ShapeOf, node: ast.expr, env: dict[str, Any]) -> Any:
        if isinstance(node, ast.Slice):
            start = number_of(self.value(node.lower, env)) if node.lower is not None else 0
            stop = number_of(self.value(node.upper, env)) if node.upper is not None else None
            if start is None or shape.start or node.step is not None:
                return UNKNOWN
            if stop is None and node.upper is None:
                return ShapeOf(shape.form, start)
            if stop is None or (stop < 0) != (start < 0):
                return (
                    UNKNOWN
                    if shape.form.rank is None or stop is None
                    else Items([Size(shape.form.axis(place)) for place in range(shape.form.rank)[start:stop]])
                )
            return Items([Size(shape.form.axis(place)) for place in range(start, stop)])
        number = number_of(self.value(node, env))
        return Size(shape.form.axis(number + shape.start)) if number is not None else UNKNOWN

    def index(self, form: Form, node: ast.expr, env: dict[str, Any]) -> Any:
        """`x[:, 0]`, `x[..., :3]`, `x[:, None]`, `x[mask]`."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        dots = next((i for i, part in enumerate(parts) if _is_dots(part)), None)
        if dots is None and not all(_is_simple(part) for part in parts):
            for part in parts:
                inner = self.value(part, env) if not isinstance(part, ast.Slice) else UNKNOWN
                self.used_as_index(inner, form)
            consuming = sum(not _is_new_axis(part) for part in parts)
            form.least_rank = max(form.least_rank, consuming) if form.rank is None else form.least_rank
            return UNKNOWN
        front = parts if dots is None else parts[:dots]
        back = [] if dots is None else parts[dots + 1 :]
        axes_front = self.index_side(form, front, env, 0)
        consuming = sum(not _is_new_axis(part) for part in back)
        axes_back = self.index_side(form, back, env, -consuming)
        if form.rank is None:
            result = Form(None, max(0, form.least_rank - len(front) + len(axes_front)))
            result.axes = dict(enumerate(axes_front)) | {i - len(axes_back): axis for i, axis in enumerate(axes_back)}
            result.base, result.offset = form, len(axes_front) + len(axes_back) - consuming
            result.offset -= sum(not _is_new_axis(part) for part in front)
            if dots is None and len(axes_front) == len(front):
                result.axes |= {index: axis for index, axis in form.axes.items() if index < 0}
            return result
        used = sum(not _is_new_axis(part) for part in front)
        middle = [form.axis(place) for place in range(used, form.rank - consuming)]
        return Form.of([*axes_front, *middle, *axes_back])

    def index_side(self, form: Form, parts: Sequence[ast.expr], env: dict[str, Any], place: int) -> list[Axis]:
        axes: list[Axis] = []
        for part in parts:
            if _is_new_axis(part):
                axes.append(Axis(1))
                continue
            axis = form.axis(place)
            place += 1
            if isinstance(part, ast.Slice):
                axes.append(self.sliced(axis, part, env))
            else:
                number = number_of(self.value(part, env))
                if number is not None:
                    axis.root().least = max(axis.root().least, number + 1 if number >= 0 else -number)
        return axes

    def sliced(self, axis: Axis, part: ast.Slice, env: dict[str, Any]) -> Axis:
        if part.lower is None and part.upper is None and part.step is None:
            return axis
        low = number_of(self.value(part.lower, env)) if part.lower is not None else None
        upper = self.value(part.upper, env) if part.upper is not None else UNKNOWN
        high, whole = number_of(upper), axis.known()
        if isinstance(upper, Size) and high is None and whole is not None and part.lower is None:
            # `self.positions[:length]`: no longer than what there is.
            upper.axis.root().most = min(upper.axis.root().most, whole)
            return upper.axis
        for number in (low, high):
            if number is not None:
                axis.root().least = max(axis.root().least, min(abs(number) + (number == low and number > 0), 64))
        if part.step is None and high is not None and high > 0 and (low or 0) >= 0:
            return Axis(high - (low or 0)) if high > (low or 0) else Axis()
        return Axis()

    def used_as_index(self, value: Any, form: Form) -> None:
        if isinstance(value, Parameter) and not value.form.dtype and not value.whole:
            value.form.want("index", form.axis(0).known() or 2)

    def of_binop(self, node: ast.BinOp, env: dict[str, Any]) -> Any:
        return self.combine(node.op, self.value(node.left, env), self.value(node.right, env))

    def combine(self, operator: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(operator, ast.MatMult):
            return operations.apply("matmul", [left, right], {})
        numbers = (number_of(left), number_of(right))
        if isinstance(left, Constant) and isinstance(right, Constant):
            return _computed(operator, left.value, right.value)
        if isinstance(left, Size | RankOf) or isinstance(right, Size | RankOf):
            if numbers[0] is not None and numbers[1] is not None:
                return _computed(operator, *numbers)
            return self.size_arithmetic(operator, left, right)
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(operator, ast.Add):
            return Items([*left.values, *right.values])
        for value, other in ((left, right), (right, left)):
            if isinstance(value, Parameter) and isinstance(other, Constant | Unknown | Parameter):
                value.number += 1
        return operations.together(left, right)

    def size_arithmetic(self, operator: ast.operator, left: Any, right: Any) -> Any:
        divisor = number_of(right)
        if isinstance(left, Size) and divisor is not None and divisor > 0:
            root = left.axis.root()
            if isinstance(operator, ast.FloorDiv | ast.Div):
                if root.size is None and not root.parts and divisor < 64:
                    part = Axis()
                    root.parts = (Axis(divisor), part)
                    return Size(part)
                if len(root.parts) == 2 and root.parts[0].known() == divisor:
                    return Size(root.parts[1])
            elif isinstance(operator, ast.Mult):
                product = Axis()
                product.parts = (Axis(divisor), left.axis)
                return Size(product)
        if isinstance(operator, ast.Mult) and (first := axis_of(left)) and (second := axis_of(right)):
            product = Axis()
            product.parts = (first, second)
            return Size(product)
        for value in (left, right):
            if isinstance(value, Parameter):
                value.number += 1
        return UNKNOWN

    def of_unaryop(self, node: ast.UnaryOp, env: dict[str, Any]) -> Any:
        value = self.value(node.operand, env)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            return Constant(not known) if known is not None else UNKNOWN
        if isinstance(value, Constant):
            try:
                return Constant(-value.value if isinstance(node.op, ast.USub) else ~value.value)
            except Exception:
                return UNKNOWN
        if isinstance(node.op, ast.Invert) and isinstance(value, Parameter | Form):
            form = form_of(value)
            if form is not None:
                form.want("bool")
            return form
        if isinstance(value, Parameter):
            value.number += 1
            return value
        return value if isinstance(value, Form) else UNKNOWN

    def of_boolop(self, node: ast.BoolOp, env: dict[str, Any]) -> Any:
        decisive = isinstance(node.op, ast.Or)
        unknown = False
        last: Any = UNKNOWN
        for item in node.values:
            last = self.value(item, env)
            known = truth(last)
            if known is decisive:
                return last
            unknown = unknown or known is None
        return UNKNOWN if unknown else last

    def of_compare(self, node: ast.Compare, env: dict[str, Any]) -> Any:
        left, right = self.value(node.left, env), self.value(node.comparators[0], env)
        operator = node.ops[0]
        if isinstance(operator, ast.Is | ast.IsNot) and isinstance(right, Constant) and right.value is None:
            same = isinstance(left, Constant) and left.value is None
            given = not isinstance(left, Constant | Unknown)
            if isinstance(left, Unknown):
                return UNKNOWN
            return Constant((same and not given) == isinstance(operator, ast.Is))
        numbers = number_of(left), number_of(right)
        if None not in numbers:
            return _compared(operator, *numbers)
        if isinstance(left, Constant) and isinstance(right, Constant | Items):
            other = (
                right.value
                if isinstance(right, Constant)
                else [item.value if isinstance(item, Constant) else item for item in right.values]
            )
            return _compared(operator, left.value, other)
        if isinstance(left, Parameter):
            self.compared_parameter(left, right)
        return operations.together(left, right) if form_of(left) is not None and isinstance(left, Form) else UNKNOWN

    def compared_parameter(self, left: Parameter, right: Any) -> None:
        values = right.values if isinstance(right, Items) else [right]
        for item in values:
            known = item.value if isinstance(item, Constant) else None
            for text in known if isinstance(known, list | tuple | set | dict) else [known]:
                if isinstance(text, str):
                    left.texts.append(text)
        if isinstance(right, Constant | Size) and number_of(right) is not None:
            left.number += 1

    def of_ifexp(self, node: ast.IfExp, env: dict[str, Any]) -> Any:
        known = truth(self.value(node.test, env))
        if known is not None:
            return self.value(node.body if known else node.orelse, env)
        first, second = self.value(node.body, env), self.value(node.orelse, env)
        return second if isinstance(first, Unknown) else first

    def of_namedexpr(self, node: ast.NamedExpr, env: dict[str, Any]) -> Any:
        value = self.value(node.value, env)
        self.bind(node.target, value, env)
        return value

    def of_lambda(self, node: ast.Lambda, env: dict[str, Any]) -> Any:
        return Constant(_Inner(node, env))

    def of_listcomp(self, node: ast.ListComp | ast.GeneratorExp, env: dict[str, Any]) -> Any:
        generator = node.generators[0]
        inner = dict(env)
        found = []
        for item in self.iterate(self.value(generator.iter, env), 4):
            self.bind(generator.target, item, inner)
            found.append(self.value(node.elt, inner))
        return Items(found)

    of_generatorexp = of_listcomp

    def of_joinedstr(self, node: ast.JoinedStr, env: dict[str, Any]) -> Any:
        """An f-string whose parts are all known: einops patterns are put together so."""
        text = ""
        for part in node.values:
            inner = self.value(part.value if isinstance(part, ast.FormattedValue) else part, env)
            if not isinstance(inner, Constant):
                return UNKNOWN
            text += str(inner.value)
        return Constant(text)

    # Calls

    def of_call(self, node: ast.Call, env: dict[str, Any]) -> Any:
        function = self.value(node.func, env)
        args: list[Any] = []
        for item in node.args:
            value = self.value(item, env)
            if isinstance(item, ast.Starred) and isinstance(value, Items):
                args += value.values
            else:
                args.append(value)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, env)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, Constant) and isinstance(value.value, dict):
                named |= {str(key): Constant(item) for key, item in value.value.items()}
        if isinstance(function, Bound):
            return self.call_method(function, args, named)
        if isinstance(function, Parameter):
            function.called += 1
            function.arity = max(function.arity, len(args))
            return next((item for item in args if isinstance(item, Form | Parameter)), UNKNOWN)
        if isinstance(function, Constant):
            return self.call(function.value, args, named)
        return UNKNOWN

    def call_method(self, method: Bound, args: list[Any], named: dict[str, Any]) -> Any:
        owner, name = method.owner, method.name
        if isinstance(owner, Parameter) and not owner.tensor and name in ("keys", "values", "items", "get", "pop"):
            if args and isinstance(args[0], Constant) and isinstance(args[0].value, str):
                return owner.key(args[0].value)
            return UNKNOWN
        plain = operations.plain(name)
        if isinstance(owner, Parameter) and not only_of_tensors(name) and name not in operations.OPERATIONS:
            return UNKNOWN
        if isinstance(owner, Parameter):
            owner.as_form()
        if plain in ("masked_fill", "masked_fill_", "masked_select") and args:
            self.mask(args[0], owner)
        return operations.apply(plain, [owner, *args], named)

    def mask(self, mask: Any, owner: Any) -> None:
        form, other = form_of(mask), form_of(owner)
        if form is not None:
            form.want("bool")
            if other is not None and form.rank is not None and form.rank == other.rank:
                operations.together(form, other)

    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        if isinstance(function, functools.partial):
            named = {**{name: Constant(item) for name, item in (function.keywords or {}).items()}, **named}
            return self.call(function.func, [*(Constant(item) for item in function.args), *args], named)
        if isinstance(function, _Inner):
            return self.call_inner(function, args, named)
        if isinstance(function, torch.nn.Module):
            return self.call_module(function, args, named)
        name = str(getattr(function, "__name__", ""))
        if name in _PATTERNS and len(args) > 1 and isinstance(args[1], Constant) and isinstance(args[1].value, str):
            sizes = named if name != "reduce" else {k: v for k, v in named.items() if k != "reduction"}
            if isinstance(args[0], Items):
                return UNKNOWN
            return rearrange(args[0], args[1].value, sizes) or UNKNOWN
        if name == "pack" and len(args) > 1 and isinstance(args[0], Items) and isinstance(args[1], Constant):
            packed = [pack(item, str(args[1].value)) for item in args[0].values]
            return Items([next((form for form in packed if form is not None), UNKNOWN), UNKNOWN])
        if "shape" in name.lower() and len(args) > 1:
            self.checked_shape(args)
        if _is_builtin(function):
            return _BUILTINS[function](self, args)
        owner = getattr(function, "__self__", None)
        if name == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            function_class: Any = owner
            plain = function_class.setup_context is torch.autograd.Function.setup_context
            first = [UNKNOWN] if plain else []
            return self.call_function(function_class.forward, [*first, *args], named)
        if isinstance(owner, torch.nn.Module) and _plain_function(function) is not None:
            return self.call_function(function, [Constant(owner), *args], named)
        module = str(getattr(function, "__module__", None) or "torch").partition(".")[0]
        if _plain_function(function) is not None and module not in _NOT_OURS and not isinstance(function, type):
            return self.call_function(function, args, named)
        return self.call_torch(name, args, named)

    def checked_shape(self, args: list[Any]) -> None:
        """`check_shape(x, ["B", "3", "3"])`: a helper by whose name the words beside a tensor are its axes."""
        words = args[1]
        listed: list[Any] = [getattr(item, "value", None) for item in words.values] if isinstance(words, Items) else []
        if isinstance(words, Constant) and isinstance(words.value, list | tuple | str):
            listed = words.value.split() if isinstance(words.value, str) else list(words.value)
        form = form_of(args[0]) if isinstance(args[0], Form | Parameter) else None
        if form is not None and listed and all(isinstance(word, str) for word in listed):
            side = " ".join("..." if word in ("*", "...") else str(word) for word in listed)
            read_pattern(form, side, {})

    def call_torch(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        first = named.pop("input", None) if "input" in named else None
        values = [first, *args] if first is not None else args
        if name in ("complex", "polar"):
            return operations.together(values[0], values[1]) if len(values) > 1 else UNKNOWN
        if name in ("arange", "zeros", "ones", "randn", "rand", "empty", "full", "linspace", "eye"):
            for value in values:
                if isinstance(value, Parameter):
                    value.whole += 1
                    value.number += 1
            return (
                operations.apply("expand", [UNKNOWN, *values], {})
                if name in ("zeros", "ones", "randn", "rand")
                else UNKNOWN
            )
        if name == "where" and values:
            self.mask(values[0], values[1] if len(values) > 1 else UNKNOWN)
            return operations.together(values[1], values[2]) if len(values) > 2 else UNKNOWN
        return operations.apply(operations.plain(name), values, named)

    def call_inner(self, function: _Inner, args: list[Any], named: dict[str, Any]) -> Any:
        if len(self.stack) >= DEPTH:
            return UNKNOWN
        inner = dict(function.env)
        parameters = function.node.args
        for item, value in zip([*parameters.posonlyargs, *parameters.args], args, strict=False):
            inner[item.arg] = value
        inner |= named
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, inner)
        self.stack.append((function, 0))
        try:
            self.block(function.node.body, inner)
        except _ReturnedError as returned:
            return returned.value
        finally:
            self.stack.pop()
        return Constant(None)

    def call_function(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        if any(seen is _plain_function(function) for seen, _ in self.stack) and len(self.stack) > 3:
            return UNKNOWN
        plain = _plain_function(function)
        if plain is None:
            return UNKNOWN
        env = _bound(plain, args, named)
        return self.run(plain, env) if env is not None else UNKNOWN

    def call_module(self, module: torch.nn.Module, args: list[Any], named: dict[str, Any]) -> Any:
        if not args:
            args = [next(iter(named.values()), UNKNOWN)]
        if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
            value = args[0]
            for layer in module:
                value = self.call_module(layer, [value], {})
            return value
        if isinstance(module, torch.nn.MultiheadAttention):
            given = [*args, *(named[key] for key in ("query", "key", "value") if key in named)]
            return Items([attention(module, *given[:3]) or UNKNOWN, UNKNOWN]) if len(given) > 2 else UNKNOWN
        known, result = through_layer(module, args[0])
        if known:
            return UNKNOWN if result is None else result
        pattern = getattr(module, "pattern", None)
        if isinstance(pattern, str) and "->" in pattern and type(module).__module__.startswith("einops"):
            lengths = getattr(module, "axes_lengths", {})
            return rearrange(args[0], pattern, {k: Constant(v) for k, v in dict(lengths).items()}) or UNKNOWN
        if type(module).__module__.startswith("torch.nn"):
            return self.call_torch_module(module, args, named)
        return self.call_function(type(module).forward, [Constant(module), *args], named)

    def call_torch_module(self, module: torch.nn.Module, args: list[Any], named: dict[str, Any]) -> Any:
        width = getattr(getattr(module, "self_attn", None), "embed_dim", None)
        form = form_of(args[0]) if args else None
        if form is not None and isinstance(width, int):
            form.set_rank(3)
            form.axis(-1).fix(width)
            return form
        name = type(module).__name__.removesuffix("Loss")
        words = {"CrossEntropy": "cross_entropy", "NLL": "nll_loss", "BCE": "binary_cross_entropy", "MSE": "mse_loss"}
        if isinstance(module, torch.nn.modules.loss._Loss):
            return operations.apply(words.get(name, "mse_loss"), args, named)
        return UNKNOWN


class _Inner:
    """A function written inside another, with the names that it sees."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, env: dict[str, Any]) -> None:
        self.node = node
        self.env = env


def _names(function: types.FunctionType) -> dict[str, Any]:
    names = {**vars(__import__("builtins")), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            continue
    return names


def _bound(function: types.FunctionType, args: list[Any], named: dict[str, Any]) -> dict[str, Any] | None:
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **named)
    except (TypeError, ValueError):
        return None
    env: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in bound.arguments:
            given = bound.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                given = Items(list(given))
            elif parameter.kind is parameter.VAR_KEYWORD:
                given = Constant({key: item.value for key, item in given.items() if isinstance(item, Constant)})
            env[name] = given
        elif parameter.kind is parameter.VAR_POSITIONAL:
            env[name] = Items([])
        elif parameter.kind is parameter.VAR_KEYWORD:
            env[name] = Constant({})
        elif parameter.default is not parameter.empty:
            env[name] = Constant(parameter.default)
    return env


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    simple = int | float | str | tuple | list
    if not isinstance(left, simple) or not isinstance(right, simple) or isinstance(operator, ast.Pow):
        return UNKNOWN
    try:
        code = compile(
            ast.Expression(ast.BinOp(ast.Name("a", ast.Load()), operator, ast.Name("b", ast.Load()))), "", "eval"
        )
    except (TypeError, ValueError):
        try:
            tree = ast.fix_missing_locations(
                ast.Expression(ast.BinOp(ast.Name("a", ast.Load()), operator, ast.Name("b", ast.Load())))
            )
            code = compile(tree, "", "eval")
        except (TypeError, ValueError):
            return UNKNOWN
    try:
        return Constant(eval(code, {"a": left, "b": right}))
    except Exception:
        return UNKNOWN


def _compared(operator: ast.cmpop, left: Any, right: Any) -> Any:
    tests: dict[type, Callable[[], bool]] = {
        ast.Eq: lambda: bool(left == right),
        ast.NotEq: lambda: bool(left != right),
        ast.Lt: lambda: bool(left < right),
        ast.LtE: lambda: bool(left <= right),
        ast.Gt: lambda: bool(left > right),
        ast.GtE: lambda: bool(left >= right),
        ast.In: lambda: left in right,
        ast.NotIn: lambda: left not in right,
        ast.Is: lambda: left is right,
        ast.IsNot: lambda: left is not right,
    }
    try:
        return Constant(tests[type(operator)]())
    except Exception:
        return UNKNOWN


def _is_builtin(function: Any) -> bool:
    try:
        return function in _BUILTINS
    except TypeError:  # a callable that has no hash
        return False


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _is_new_axis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_simple(node: ast.expr) -> bool:
    """A slice, a number or a new axis: no tensor is used as an index."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Slice | ast.Constant)


def _length(_reader: _Reader, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, ShapeOf) and value.start == 0:
        return RankOf(value.form)
    if isinstance(value, Items):
        return Constant(len(value.values))
    if isinstance(value, Form):
        return Size(value.axis(0))
    if isinstance(value, Constant):
        try:
            return Constant(len(value.value))
        except Exception:
            return UNKNOWN
    return UNKNOWN


def _range(_reader: _Reader, args: list[Any]) -> Any:
    for value in args:
        if isinstance(value, Parameter):
            value.whole += 1
            value.number += 1
    numbers = [number_of(value) for value in args]
    if not numbers or None in numbers:
        return UNKNOWN
    return Constant(range(*[number for number in numbers if number is not None][:3]))


def _instance(_reader: _Reader, args: list[Any]) -> Any:
    if len(args) < 2 or not isinstance(args[1], Constant):
        return UNKNOWN
    asked = args[1].value
    classes = [kind for kind in (asked if isinstance(asked, tuple) else (asked,)) if isinstance(kind, type)]
    value = args[0]
    if isinstance(value, Form):
        return Constant(torch.Tensor in classes)
    if isinstance(value, Constant):
        try:
            return Constant(isinstance(value.value, tuple(classes)))
        except TypeError:
            return UNKNOWN
    if isinstance(value, Parameter):
        if value.tensor and torch.Tensor in classes:
            return YES
        if value.tensor:
            return NO
        value.kinds += classes
    return UNKNOWN


def _zip(reader: _Reader, args: list[Any]) -> Any:
    columns = [reader.iterate(value, 3) for value in args]
    return Items([Items(list(row)) for row in zip(*columns, strict=False)])


def _enumerate(reader: _Reader, args: list[Any]) -> Any:
    items = reader.iterate(args[0], 3) if args else []
    return Items([Items([Constant(index), item]) for index, item in enumerate(items)])


def _map(reader: _Reader, args: list[Any]) -> Any:
    if len(args) < 2 or not isinstance(args[0], Constant):
        return UNKNOWN
    return Items([reader.call(args[0].value, [item], {}) for item in reader.iterate(args[1], 4)])


def _listing(reader: _Reader, args: list[Any]) -> Any:
    if not args:
        return Items([])
    return args[0] if isinstance(args[0], Items | ShapeOf | Parameter) else Items(reader.iterate(args[0], 4))


def _total(reader: _Reader, args: list[Any]) -> Any:
    items = reader.iterate(args[0], 4) if args else []
    return items[0] if items else UNKNOWN


def _number(_reader: _Reader, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, Parameter):
        value.number += 1
        return UNKNOWN
    return value if isinstance(value, Size | RankOf) or number_of(value) is not None else UNKNOWN


def _callable(_reader: _Reader, args: list[Any]) -> Any:
    value = args[0] if args else UNKNOWN
    if isinstance(value, Constant):
        return Constant(callable(value.value))
    return NO if isinstance(value, Form) else UNKNOWN


def _extreme(_reader: _Reader, args: list[Any]) -> Any:
    numbers = [number_of(value) for value in args]
    return UNKNOWN if len(numbers) < 2 or None in numbers else Constant(max(n for n in numbers if n is not None))


_BUILTINS: Final[dict[Any, Callable[[_Reader, list[Any]], Any]]] = {
    len: _length,
    range: _range,
    isinstance: _instance,
    zip: _zip,
    enumerate: _enumerate,
    map: _map,
    list: _listing,
    tuple: _listing,
    reversed: _listing,
    sum: _total,
    int: _number,
    float: _number,
    callable: _callable,
    max: _extreme,
}
