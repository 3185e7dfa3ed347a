"""How the reader of submitted source takes expressions: names, attributes, indexing, arithmetic, comparisons."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from gradproof_probe.harness import operations
from gradproof_probe.harness.assumptions import truth
from gradproof_probe.harness.axes import Axis, Form
from gradproof_probe.harness.reader_base import (
    Inner,
    ReaderBase,
)
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
    side_of,
)


class Expressions(ReaderBase):
    """Values of expressions, without calls."""

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
            return self.chosen(form, inner) if len(parts) == 1 else UNKNOWN
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
        if isinstance(value, Parameter) and value.form.dtype in ("index", "bool"):
            self.indexing.append((value.form, form))

    @staticmethod
    def chosen(form: Form, index: Any) -> Any:
        """`x[mask]`: some of the first axis, the others as they were."""
        mask = form_of(index) if isinstance(index, Parameter | Form) else None
        if mask is None or mask.dtype != "bool":
            return UNKNOWN
        if mask.set_rank(1):
            mask.axis(0).join(form.axis(0))
        return Form(axes={0: Axis()}, least_rank=1, twin=form)

    def is_mask(self, form: Form) -> None:
        """`~x`: what was taken for numbers of places, in `y[x]`, says for each place whether it is chosen."""
        if form.dtype == "index":
            form.dtype, form.high = "", None
        form.want("bool")
        for mask, owner in self.indexing:
            if mask is form and form.dtype == "bool" and form.set_rank(1):
                form.axis(0).join(owner.axis(0))

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
        if isinstance(operator, ast.Pow):
            half = isinstance(left, Size) and isinstance(right, Constant) and right.value == 0.5
            return side_of(left) if half else UNKNOWN
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
                self.is_mask(form)
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
        return operations.together(left, right) if isinstance(left, Form) else UNKNOWN

    def compared_parameter(self, left: Parameter, right: Any) -> None:
        values = right.values if isinstance(right, Items) else [right]
        for item in values:
            known = item.value if isinstance(item, Constant) else None
            for text in known if isinstance(known, list | tuple | set | dict) else [known]:
                if isinstance(text, str):
                    left.texts.append(text)
        if isinstance(right, Constant | Size) and (number := number_of(right)) is not None:
            left.number += 1
            left.numbers.append(number)

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
        return Constant(Inner(node, env))

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


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _is_new_axis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_simple(node: ast.expr) -> bool:
    """A slice, a number or a new axis: no tensor is used as an index."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Slice | ast.Constant)
