"""Given a condition and the names of the frame it stands in: which changes of which names would make it true.

Pure: nothing of the submitted code is called; names, attributes, items, comparisons, arithmetic, `len`, `isinstance`,
`in`, a few builtins and what torch says of a tensor's values are evaluated over live objects, and everything else is
unknown. How to use it:

    for guard in guards(error):                       # raised_conditions.py: innermost first, then inlined in callers
        for changes in solve(guard.condition, guard.names):
            ...                                       # a tuple of changes that are to be made together; mostly one

A `Change` says what its `subject` (an expression such as `heads`, `len(widths)`, `x.shape[1]`, `x.ndim`, `config.k`)
should be: `equals` a value, an `instance` of one of a tuple of classes, have the `attribute` of a name, be `callable`,
or be `given` (neither None nor empty). `subject` is normalised: `x.size(1)` reads `x.shape[1]`, `x.dim()`,
`x.ndimension()` and `len(x.shape)` read `x.ndim`; helpers of a single `return` stand inlined. Each `equals` was
checked: with this value in place the condition (or the first part of an `and` that failed) comes out true.
The order is: what the other side of a comparison asks for, then what lies near to the value that is there.
"""

from __future__ import annotations

import ast
import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import torch

from gradproof_probe.harness.sources import function_node

Relation = Literal["equals", "instance", "attribute", "callable", "given"]
MOST_ANSWERS: Final = 24
MOST_ITEMS: Final = 256  # of a container that is searched or looped over
_STEPS: Final = 4000  # nodes evaluated for one value
_INLINED: Final = 4  # helpers within helpers


@dataclass(frozen=True, slots=True)
class Change:
    """`subject` should stand in `relation` to `value`."""

    subject: ast.expr
    relation: Relation
    value: Any

    @property
    def root(self) -> str | None:
        """The name that the subject starts from."""
        return root_of(self.subject)

    @property
    def text(self) -> str:
        return ast.unparse(self.subject)


class UnknownValueError(Exception):
    """The value of an expression isn't known without running code."""


def root_of(subject: ast.expr) -> str | None:
    """`x` of `x.shape[1]`, `len(x)`, `x.size()`."""
    node: ast.AST = subject
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        elif isinstance(node, ast.Call) and _is_name(node.func, "len") and len(node.args) == 1:
            node = node.args[0]
        else:
            return None


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


# --- Evaluation -------------------------------------------------------------------------------------------------------

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, box: item in box,
    ast.NotIn: lambda item, box: item not in box,
}
_FUNCTIONS: Final[tuple[Callable[..., Any], ...]] = (
    abs, all, any, bool, callable, dict, divmod, enumerate, float, frozenset, getattr, hasattr, int, isinstance,
    issubclass, len, list, max, min, range, reversed, round, set, sorted, str, sum, tuple, type, zip,
    math.ceil, math.floor, math.gcd, math.isqrt, math.log, math.log2, math.prod, math.sqrt,
)  # fmt: skip
_METHODS: Final = frozenset(
    {"keys", "values", "items", "get", "lower", "upper", "strip", "split", "startswith", "endswith", "isdigit"}
    | {"count", "index", "bit_length", "is_integer", "is_floating_point", "is_complex", "numel"}
)
# What guards ask of the values of a tensor: as a function of torch and as a method of the tensor. torch's own code runs
# then, and writes to nothing.
_OF_TENSORS: Final = frozenset(
    {"all", "any", "abs", "amin", "amax", "min", "max", "sum", "mean", "prod", "norm", "square", "unique", "diff", "mT"}
    | {"isfinite", "isnan", "isinf", "isclose", "allclose", "equal", "logical_and", "logical_or", "logical_not"}
    | {"ge", "gt", "le", "lt", "eq", "ne", "greater", "greater_equal", "less", "less_equal", "det", "inverse"}
    | {"tensor", "as_tensor", "new_tensor", "new_ones", "new_zeros", "ones", "zeros", "ones_like", "zeros_like", "eye"}
    | {"item", "bool", "float", "long", "int", "double", "flatten", "squeeze", "unsqueeze", "view_as", "detach", "to"}
    | {"transpose", "matmul", "bmm", "count_nonzero", "clamp", "round", "floor", "type_as", "argmin", "argmax"}
)
_TORCH_MODULES: Final = (torch, torch.linalg)


def evaluate(expression: ast.expr, names: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Any:
    """The value, with `given` (by the text of an expression) in place of what the frame says. Raises
    `UnknownValueError`."""
    return _Evaluator(names, given or {}).value(expression)


class _Evaluator:
    def __init__(self, names: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self.names = names
        self.given = given
        self.steps = 0

    def value(self, node: ast.expr) -> Any:
        self.steps += 1
        if self.steps > _STEPS:
            raise UnknownValueError("too long")
        if self.given and isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
            text = ast.unparse(node)
            if text in self.given:
                return self.given[text]
        try:
            return self._value(node)
        except UnknownValueError:
            raise
        except Exception as error:
            raise UnknownValueError(f"{type(error).__name__}: {ast.unparse(node)}") from error

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.names[name]
            case ast.Attribute(value=base, attr=attribute):
                return getattr(self.value(base), attribute)
            case ast.Subscript(value=base, slice=key):
                return self.value(base)[self._slice(key)]
            case ast.Tuple(elts=items):
                return tuple(self._items(items))
            case ast.List(elts=items):
                return list(self._items(items))
            case ast.Set(elts=items):
                return set(self._items(items))
            case ast.Dict(keys=keys, values=values):
                return {self.value(k): self.value(v) for k, v in zip(keys, values, strict=True) if k is not None}
            case ast.BoolOp(op=op, values=parts):
                return self._boolean(isinstance(op, ast.And), parts)
            case ast.UnaryOp(op=op, operand=operand):
                return _UNARY[type(op)](self.value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self.value(left), self.value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self._compare(left, ops, others)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body) if self.value(test) else self.value(other)
            case ast.Call():
                return self._call(node)
            case ast.GeneratorExp(elt=item, generators=[loop]) | ast.ListComp(elt=item, generators=[loop]):
                return list(self._loop(item, loop))
            case ast.SetComp(elt=item, generators=[loop]):
                return set(self._loop(item, loop))
            case ast.JoinedStr(values=parts):
                return "".join(
                    str(self.value(p.value) if isinstance(p, ast.FormattedValue) else self.value(p)) for p in parts
                )
            case _:
                raise UnknownValueError(type(node).__name__)

    def _items(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from islice(self.value(node.value), MOST_ITEMS)
            else:
                yield self.value(node)

    def _slice(self, key: ast.expr) -> Any:
        if isinstance(key, ast.Slice):
            return slice(*(self.value(part) if part is not None else None for part in (key.lower, key.upper, key.step)))
        return self.value(key)

    def _boolean(self, conjunction: bool, parts: list[ast.expr]) -> Any:  # noqa: FBT001 - one of two, by its name
        value: Any = conjunction
        for part in parts:
            value = self.value(part)
            if bool(value) != conjunction:
                break
        return value

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Pow):
            if not (isinstance(left, int | float) and isinstance(right, int | float) and abs(right) < 64):
                raise UnknownValueError("a power")
            return left**right
        if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
            return operator.matmul(left, right) if isinstance(op, ast.MatMult) else _BINARY[type(op)](left, right)
        if isinstance(op, ast.Mult) and not (isinstance(left, int | float) and isinstance(right, int | float)):
            size = left if isinstance(left, int) else right
            if not isinstance(size, int) or size > MOST_ITEMS:
                raise UnknownValueError("a long product")
        return _BINARY[type(op)](left, right)

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> Any:
        value, answer = self.value(left), True
        for op, other in zip(ops, others, strict=True):
            following = self.value(other)
            answer = _COMPARE[type(op)](value, following)  # of tensors: each element's
            if len(ops) > 1 and not bool(answer):
                return False
            value = following
        return answer if isinstance(answer, torch.Tensor) else bool(answer)

    def _call(self, node: ast.Call) -> Any:
        if any(keyword.arg is None for keyword in node.keywords):
            raise UnknownValueError("a call with **")
        if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS | _OF_TENSORS:
            owner = self.value(node.func.value)
            # Only a plain tensor: a subclass may do anything when it is asked.
            if node.func.attr not in _METHODS and not (
                type(owner) in (torch.Tensor, torch.nn.Parameter) or any(owner is known for known in _TORCH_MODULES)
            ):
                raise UnknownValueError(ast.unparse(node.func))
            function = getattr(owner, node.func.attr)
        else:
            function = self.value(node.func)
            if not any(function is known for known in _FUNCTIONS):
                raise UnknownValueError(ast.unparse(node.func))
        values = list(self._items(node.args))
        if function is range and len(range(*values)) > MOST_ITEMS:
            raise UnknownValueError("a long range")
        return function(*values, **{str(k.arg): self.value(k.value) for k in node.keywords})

    def _loop(self, item: ast.expr, loop: ast.comprehension) -> Iterator[Any]:
        for value in islice(self.value(loop.iter), MOST_ITEMS):
            names = dict(self.names)
            _bind(loop.target, value, names)
            inner = _Evaluator(names, self.given)
            inner.steps = self.steps
            if all(inner.value(test) for test in loop.ifs):
                yield inner.value(item)
            self.steps = inner.steps


def _bind(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        for part, item in zip(target.elts, value, strict=True):
            _bind(part, item, names)


# --- One way of writing -----------------------------------------------------------------------------------------------


def normalised(expression: ast.expr, names: Mapping[str, Any]) -> ast.expr:
    """Sizes and ranks written one way, and helpers of a single `return` inlined. The given tree stays as it is."""
    return _Normaliser(names).visit(copy.deepcopy(expression))


class _Normaliser(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.depth = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="size"), args=args, keywords=[]) if len(args) < 2:
                shape = ast.Attribute(owner, "shape", ast.Load())
                return ast.Subscript(shape, args[0], ast.Load()) if args else shape
            case ast.Call(func=ast.Attribute(value=owner, attr="dim" | "ndimension"), args=[], keywords=[]):
                return ast.Attribute(owner, "ndim", ast.Load())
            case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=owner, attr="shape")]):
                return ast.Attribute(owner, "ndim", ast.Load())
        return self._inlined(node) or node

    def _inlined(self, node: ast.Call) -> ast.expr | None:
        try:
            function = evaluate(node.func, self.names)
        except UnknownValueError:
            return None
        body = _single_return(function)
        if body is None or self.depth >= _INLINED or any(k.arg is None for k in node.keywords):
            return None
        definition, result = body
        arguments = definition.args
        parameters = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if (
            arguments.vararg
            or arguments.kwarg
            or len(node.args) > len(parameters)
            or not hasattr(function, "__globals__")
        ):
            return None
        bound: dict[str, ast.expr] = dict(zip(parameters, node.args, strict=False))
        bound |= {str(k.arg): k.value for k in node.keywords}
        defaults = dict(zip(reversed(parameters), reversed(arguments.defaults), strict=False))
        bound = {**{name: value for name, value in defaults.items() if name not in bound}, **bound}
        bound |= {
            a.arg: value
            for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None and a.arg not in bound
        }
        inner = {n.id for n in ast.walk(result) if isinstance(n, ast.Name)} - {*bound}
        if any(function.__globals__.get(name, self.names.get(name)) is not self.names.get(name) for name in inner):
            return None  # its globals mean something else here
        self.depth += 1
        inlined = self.visit(substituted(result, bound))
        self.depth -= 1
        return inlined


def _single_return(function: Any) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.expr] | None:
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__closure__", None) or getattr(function, "__self__", None) is not None:
        return None
    node = function_node(function)
    if node is None or node.decorator_list:
        return None
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
        return node, body[0].value
    return None


def substituted(expression: ast.expr, values: Mapping[str, ast.expr]) -> ast.expr:
    """A copy with each sub-expression whose text is a key replaced: `heads`, `self.dim`, `kwargs['depth']`."""
    return _Substitution(values).visit(copy.deepcopy(expression))


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
            value = self.values.get(ast.unparse(node))
            if value is not None:
                return copy.deepcopy(value)
        return self.generic_visit(node)


# --- Solving ----------------------------------------------------------------------------------------------------------

Answer = tuple[Change, ...]


def solve(condition: ast.expr, names: Mapping[str, Any], *, wanted: bool = True) -> Iterator[Answer]:
    """Changes that would make the condition true (or false); the likeliest first, at most two dozen."""
    seen: set[str] = set()
    for answer in islice(_solve(normalised(condition, names), names, wanted), 4 * MOST_ANSWERS):
        key = "; ".join(f"{change.text} {change.relation} {change.value!r:.80}" for change in answer)
        if key not in seen and len(seen) < MOST_ANSWERS:
            seen.add(key)
            yield answer


def holds(condition: ast.expr, names: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> bool | None:
    """Whether a condition is true; None where that isn't known."""
    try:
        return bool(evaluate(condition, names, given))
    except Exception:  # also a truth value that raises: of a tensor of several elements
        return None


def _solve(condition: ast.expr, names: Mapping[str, Any], wanted: bool) -> Iterator[Answer]:  # noqa: FBT001
    match condition:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _solve(operand, names, not wanted)
        case ast.BoolOp(op=op, values=parts):
            if isinstance(op, ast.And) == wanted:
                # All of them have to: what fails first is mended first, the others come up after that.
                failing = [part for part in parts if holds(part, names) is not wanted]
                for part in sorted(failing, key=lambda part: holds(part, names) is None):
                    yield from _solve(part, names, wanted)
            else:
                for part in parts:
                    yield from _solve(part, names, wanted)
        case ast.Compare(left=left, ops=[_, _, *_] as ops, comparators=others):
            sides = [left, *others]
            chain = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(ops)]
            yield from _solve(ast.BoolOp(ast.And(), [*chain]), names, wanted)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            kinds = list(_kinds(left, op, right, names, wanted))
            yield from kinds or _search(condition, names, wanted)
        case ast.Call(func=ast.Name(id=function), args=[subject, *more]) if function in _RELATIONS:
            yield from _related(function, subject, more, names, wanted)
        case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.GeneratorExp() | ast.ListComp() as loop]):
            yield from _looped(loop, names, wanted)
        case ast.Call(func=ast.Name(id="all" | "any"), args=[ast.Tuple() | ast.List() as listed]):
            together = ast.And() if _is_name(condition.func, "all") else ast.Or()
            yield from _solve(ast.BoolOp(together, listed.elts), names, wanted)
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            yield from _solve(inner, names, wanted)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            yield from _truth(condition, names, wanted)
        case _:
            yield from _search(condition, names, wanted)


_RELATIONS: Final = {"isinstance": "instance", "issubclass": "instance", "hasattr": "attribute", "callable": "callable"}


def _related(
    function: str,
    subject: ast.expr,
    more: list[ast.expr],
    names: Mapping[str, Any],
    wanted: bool,  # noqa: FBT001
) -> Iterator[Answer]:
    if not wanted or root_of(subject) is None:
        return
    if function == "callable":
        yield (Change(subject, "callable", None),)
        return
    try:
        value = evaluate(more[0], names)
    except (UnknownValueError, IndexError):
        return
    if function == "hasattr":
        if isinstance(value, str):
            yield (Change(subject, "attribute", value),)
        return
    classes = value if isinstance(value, tuple) else getattr(value, "__args__", None) or (value,)
    if all(isinstance(item, type) for item in classes):
        yield (Change(subject, "instance", tuple(classes)),)


def _kinds(
    left: ast.expr,
    op: ast.cmpop,
    right: ast.expr,
    names: Mapping[str, Any],
    wanted: bool,  # noqa: FBT001
) -> Iterator[Answer]:
    """`x is not None`, `type(x) is T`: what no search over values finds."""
    positive = isinstance(op, ast.Is | ast.Eq) == wanted
    if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
        for subject, other in ((left, right), (right, left)):
            if isinstance(other, ast.Constant) and other.value is None and root_of(subject) is not None:
                yield (Change(subject, "equals", None) if positive else Change(subject, "given", None),)
            match subject:
                case ast.Call(func=ast.Name(id="type"), args=[inner]) if positive and root_of(inner) is not None:
                    yield from _related("isinstance", inner, [other], names, wanted=True)
    if isinstance(op, ast.In) == wanted and isinstance(op, ast.In | ast.NotIn):
        match left:
            case ast.Call(func=ast.Name(id="type"), args=[inner]) if root_of(inner) is not None:
                yield from _related("isinstance", inner, [ast.Call(ast.Name("tuple"), [right], [])], names, wanted=True)


def _looped(loop: ast.GeneratorExp | ast.ListComp, names: Mapping[str, Any], wanted: bool) -> Iterator[Answer]:  # noqa: FBT001
    """A condition on every item: the subject becomes `items[i]` of the first one that fails."""
    if len(loop.generators) != 1 or not wanted or root_of(loop.generators[0].iter) is None:
        return
    target, source = loop.generators[0].target, loop.generators[0].iter
    try:
        items = list(islice(evaluate(source, names), 16))
    except (UnknownValueError, TypeError):
        return
    if isinstance(target, ast.Name):
        for index in range(len(items)):
            at = ast.Subscript(source, ast.Constant(index), ast.Load())
            condition = substituted(loop.elt, {target.id: at})
            if holds(condition, names) is not True:
                yield from _solve(condition, names, wanted)
                return


def _truth(subject: ast.expr, names: Mapping[str, Any], wanted: bool) -> Iterator[Answer]:  # noqa: FBT001
    try:
        value = evaluate(subject, names)
    except UnknownValueError:
        return
    if isinstance(value, bool):
        yield (Change(subject, "equals", wanted),)
    elif wanted:
        yield (Change(subject, "given", None),)
    else:
        yield (
            Change(subject, "equals", type(value)() if isinstance(value, int | float | str | tuple | list) else None),
        )


def subjects_of(condition: ast.expr) -> list[ast.expr]:
    """What may change: the longest chains of names, attributes and items, and `len` of them."""
    found: dict[str, ast.expr] = {}

    def look(node: ast.AST) -> None:
        chain = isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or (
            isinstance(node, ast.Call) and _is_name(node.func, "len")
        )
        if chain and isinstance(node, ast.expr) and root_of(node) is not None:
            found.setdefault(ast.unparse(node), node)
            if isinstance(node, ast.Subscript):
                look(node.slice)
            return
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                look(node.func.value)
            for argument in node.args:
                look(argument)
            return
        for child in ast.iter_child_nodes(node):
            look(child)

    look(condition)
    return list(found.values())


def _search(condition: ast.expr, names: Mapping[str, Any], wanted: bool) -> Iterator[Answer]:  # noqa: FBT001
    """Values for one subject, or for two at once where one isn't enough."""
    subjects = []
    for subject in subjects_of(condition):
        try:
            value = evaluate(subject, names)
        except UnknownValueError:
            continue
        if not (callable(value) or isinstance(value, type)):
            subjects.append((subject, value))
    asked = list(_asked(condition, names))
    found = False
    for subject, value in subjects[:6]:
        for candidate in _candidates(value, asked):
            if holds(condition, names, {ast.unparse(subject): candidate}) is wanted:
                found = True
                yield (Change(subject, "equals", candidate),)
    if found:
        return
    numbers = [(s, v) for s, v in subjects[:4] if isinstance(v, int | float)]
    for index, (first, value) in enumerate(numbers):
        for second, other in numbers[index + 1 :]:
            for one in islice(_candidates(value, asked), 20):
                for two in islice(_candidates(other, asked), 20):
                    given = {ast.unparse(first): one, ast.unparse(second): two}
                    if holds(condition, names, given) is wanted:
                        yield (Change(first, "equals", one), Change(second, "equals", two))


def _asked(condition: ast.expr, names: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the condition itself names: sides of comparisons, members of containers, constants."""
    for node in ast.walk(condition):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                try:
                    value = evaluate(side, names)
                except UnknownValueError:
                    continue
                if isinstance(value, list | tuple | set | frozenset | dict | type({}.keys())):
                    yield from islice(_in_order(value), 40)
                    if isinstance(value, list | tuple):
                        yield value
                elif value is None or isinstance(value, str | int | float | bytes) or _is_member(value):
                    yield value
        elif isinstance(node, ast.Constant):
            yield node.value


def _in_order(values: Any) -> list[Any]:
    """Sets have no order of their own; the same source has to give the same answer."""
    return sorted(values, key=repr) if isinstance(values, set | frozenset) else list(values)


def _is_member(value: Any) -> bool:
    """Whether it is an enum member, a dtype or the like: compared by identity, with a readable name."""
    of_torch = type(value).__module__ == "torch" and not isinstance(value, torch.Tensor)
    return of_torch or hasattr(type(value), "__members__")


def _candidates(value: Any, asked: list[Any]) -> Iterator[Any]:
    seen: list[Any] = []
    extremes = [item for item in asked if type(item) is type(value) and item in (0, 1, -1)]
    for candidate in (*_fitting(value, asked), *_near(value), *extremes):
        if not any(candidate is other or (type(candidate) is type(other) and candidate == other) for other in seen):
            seen.append(candidate)
            yield candidate


def _fitting(value: Any, asked: list[Any]) -> Iterator[Any]:
    """Of the values that the condition names, those of the value's own kind first; 0 and 1 are seldom meant."""
    same = [a for a in asked if type(a) is type(value) and a not in (0, 1, -1)] if value is not None else asked
    yield from same
    if isinstance(value, bool) or value is None:
        yield from (True, False)
    yield from (a for a in asked if isinstance(a, str) or _is_member(a))
    yield from (a for a in asked if isinstance(a, list | tuple) and isinstance(value, list | tuple | int))


def _near(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        return
    if isinstance(value, int) or value is None:
        start = value if isinstance(value, int) and abs(value) < 4096 else 8
        around = [*range(max(2, start - 32), start + 33), *(start * factor for factor in (2, 3, 4, 8))]
        yield from sorted(around, key=lambda number: abs(number - start))
        yield from (64, 128, 256, 1)
    elif isinstance(value, float):
        yield from (0.5, 0.1, 0.9, 2.0, 1.0, 0.0, -1.0, value / 2, value * 2)
    elif isinstance(value, list | tuple) and value:
        for length in range(1, 7):
            items = [value[index % len(value)] for index in range(length)]
            yield type(value)(items) if type(value) in (list, tuple) else tuple(items)
