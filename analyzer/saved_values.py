"""Follows tensors through one function: what autograd keeps of them for backward, and what is then written in place.

An abstract run in the order of the statements: names stand for values, values lie in storages (views share them), and
each storage carries what operations have kept of it, from the generated facts. A write to a storage that something is
kept of is an `Overwrite`. Branches are run apart; what only one of them kept is forgotten where they meet, so that
every finding lies on a path that certainly exists. Loops run twice, for what one turn keeps and the next writes.

Whether a tensor requires gradients at all is told in degrees, because one file seldom settles it. This module must not
know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from weakref import WeakKeyDictionary

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.facts.loader import NUMBER, OTHER, RESULT, TENSOR, UNKNOWN
from analyzer.layers import Attribute, Content, describe, module_attributes
from analyzer.syntax import FunctionNode, dotted_name, parameters
from analyzer.tensor_writes import Write, writes_of


class Differentiable(IntEnum):
    """How sure it is that a value requires gradients."""

    NO = 0
    POSSIBLE = 1  # it comes in as an argument
    LIKELY = 2  # it went through a module whose parameters we can't see
    CERTAIN = 3  # it went through parameters


class Kept(Enum):
    """Which side of an operation was kept."""

    INPUT = "input"
    RESULT = "result"


@dataclass(frozen=True, eq=False, slots=True)
class Keep:
    """An operation needs this tensor in backward, as it was then."""

    side: Kept
    operation: str
    node: ast.AST
    degree: Differentiable


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A write to a tensor that an operation has kept; `hidden` when it goes through `.data`."""

    write: Write
    keep: Keep
    name: str
    hidden: bool
    function: FunctionNode


@dataclass(eq=False, slots=True)
class _Storage:
    """Memory, by identity."""


@dataclass(eq=False, slots=True)
class _Value:
    storage: _Storage = field(default_factory=_Storage)
    kind: str = UNKNOWN
    degree: Differentiable = Differentiable.NO
    hidden: bool = False
    bound: bool = False
    parts: tuple[_Value, ...] | None = None
    keeps: tuple[Keep, ...] = ()


@dataclass(slots=True)
class _State:
    names: dict[str, _Value]
    kept: dict[_Storage, tuple[Keep, ...]]

    def copy(self) -> _State:
        return _State(dict(self.names), dict(self.kept))


_CACHE: WeakKeyDictionary[FileContext, tuple[Overwrite, ...]] = WeakKeyDictionary()

_ALIASES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
_DESCRIPTIONS = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "grad", "grad_fn", "training"}
)
_METHODS_TO_NUMBERS = frozenset({"item", "size", "dim", "numel", "stride", "tolist", "ndimension", "nelement"})
_CUTTING_METHODS = frozenset({"item", "tolist", "detach", "numpy"})
_CUTTING_CALLS = frozenset({"int", "float", "bool", "print", "len", "str", "repr"})
# Arguments of these names carry positions, choices or labels, which take no gradient.
_NO_GRADIENT_NAMES = re.compile(
    r"(^|_)(mask|masks|idx|index|indices|inds|ids|label|labels|target|targets|len|lens|length|lengths|pos|positions|"
    r"position|step|steps|t|timestep|timesteps|cache|buffer|out|state_dict|batch_idx|size|shape|dim|seed|prefix|key|mode)$"
)
_NUMBER_ANNOTATIONS = re.compile(r"^(Optional\[)?(int|float|bool|str|complex)\b")


def overwrites(file: FileContext) -> tuple[Overwrite, ...]:
    """Every overwritten tensor in the functions of a file, in source order; worked out once for all rules."""
    known = _CACHE.get(file)
    if known is None:
        found: list[Overwrite] = []
        attributes: dict[ast.ClassDef, dict[str, Attribute]] = {}
        for function in file.functions:
            owner = file.parent(function)
            table: dict[str, Attribute] = {}
            if isinstance(owner, ast.ClassDef):
                if owner not in attributes:
                    attributes[owner] = module_attributes(file, owner)
                table = attributes[owner]
            if _may_write(file, function, table):
                found.extend(_Run(file, function, table).run())
        known = _CACHE[file] = tuple(found)
    return known


def _may_write(file: FileContext, function: FunctionNode, table: dict[str, Attribute]) -> bool:
    """A cheap look before the run: most functions write nothing in place."""
    for node in ast.walk(function):
        if isinstance(node, ast.AugAssign):
            return True
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript) for target in node.targets):
            return True
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                if node.func.attr.endswith("_") and not node.func.attr.endswith("__"):
                    return True
                attribute = table.get(node.func.attr)
                if attribute is not None and _chain_writes(attribute):
                    return True
            if any(keyword.arg in {"inplace", "out"} for keyword in node.keywords):
                return True
    return False


def _chain_writes(attribute: Attribute) -> bool:
    return attribute.writes_input or any(layer.writes_input for layer in attribute.layers)


class _Run:
    """One function."""

    def __init__(self, file: FileContext, function: FunctionNode, attributes: dict[str, Attribute]) -> None:
        self._file = file
        self._function = function
        self._attributes = attributes
        self._facts = operations()
        self._found: dict[tuple[ast.AST, Kept, bool], Overwrite] = {}
        self._recording = True
        self._inference = False
        self._state = _State({}, {})

    def run(self) -> list[Overwrite]:
        self._recording = not self._file.grad_disabled(self._function.body[0])
        for argument in parameters(self._function):
            self._state.names[argument.arg] = self._argument(argument)
        defaults = self._function.args.defaults
        positional = [*self._function.args.posonlyargs, *self._function.args.args]
        for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
            if isinstance(default, ast.Constant) and default.value is not None:
                self._state.names[argument.arg] = _Value(kind=NUMBER, bound=True)
        self._block(self._function.body)
        return sorted(self._found.values(), key=lambda found: getattr(found.write.node, "lineno", 0))

    def _argument(self, argument: ast.arg) -> _Value:
        annotation = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        if argument.arg in {"self", "cls"} or _NUMBER_ANNOTATIONS.match(annotation):
            return _Value(kind=OTHER if argument.arg in {"self", "cls"} else NUMBER, bound=True)
        kind = TENSOR if annotation.rpartition(".")[2] == "Tensor" else UNKNOWN
        integers = re.search(r"Long|Int|Bool|Byte", annotation) is not None
        without = integers or _NO_GRADIENT_NAMES.search(argument.arg.lower()) is not None
        return _Value(kind=kind, degree=Differentiable.NO if without else Differentiable.POSSIBLE, bound=True)

    # --- statements --------------------------------------------------------------------------------------------

    def _block(self, statements: Iterable[ast.stmt]) -> bool:
        """Runs statements in order; True when the block never reaches its end."""
        return any(self._statement(statement) for statement in statements)

    def _statement(self, statement: ast.stmt) -> bool:
        self._file.check_deadline()
        ends = False
        match statement:
            case ast.Return() | ast.Raise():
                self._evaluate(getattr(statement, "value", None))
                ends = True
            case ast.Continue() | ast.Break():
                ends = True
            case ast.Assign():
                self._assign(statement)
            case ast.AnnAssign():
                if statement.value is not None:
                    self._bind(statement.target, self._evaluate(statement.value))
            case ast.AugAssign():
                self._augmented(statement)
            case ast.Expr():
                value = self._evaluate(statement.value)
                if not value.bound:
                    self._cut(value)
            case ast.Assert():
                self._cut(self._evaluate(statement.test))
            case ast.If():
                ends = self._branches(statement)
            case ast.For() | ast.AsyncFor():
                self._loop(statement.body, statement.orelse, statement)
            case ast.While():
                self._cut(self._evaluate(statement.test))
                self._loop(statement.body, statement.orelse, None)
            case ast.With() | ast.AsyncWith():
                ends = self._with(statement)
            case ast.Try():
                ends = self._try(statement)
            case ast.Match():
                self._alternatives([case.body for case in statement.cases], may_skip=True)
            case ast.Delete():
                for target in statement.targets:
                    self._state.names.pop(ast.unparse(target), None)
            case _:
                pass
        return ends

    def _branches(self, statement: ast.If) -> bool:
        self._cut(self._evaluate(statement.test))
        with_gradients = _gradient_test(statement.test)
        before = self._state.copy()
        first_ends = self._branch(statement.body, inference=with_gradients is False)
        first, self._state = self._state, before
        second_ends = self._branch(statement.orelse, inference=with_gradients is True)
        if first_ends and second_ends:
            return True
        if second_ends:
            self._state = first
        elif not first_ends:
            self._state = _merged(first, self._state)
        return False

    def _branch(self, statements: list[ast.stmt], *, inference: bool) -> bool:
        """A block that, with `inference`, runs only where no backward follows: nothing is kept, writes are free."""
        before = self._recording, self._inference
        self._recording, self._inference = self._recording and not inference, self._inference or inference
        ends = self._block(statements)
        self._recording, self._inference = before
        return ends

    def _alternatives(self, blocks: list[list[ast.stmt]], *, may_skip: bool) -> None:
        before = self._state
        ends: list[_State] = [before.copy()] if may_skip else []
        for block in blocks:
            self._state = before.copy()
            if not self._block(block):
                ends.append(self._state)
        self._state = ends[0] if ends else before
        for other in ends[1:]:
            self._state = _merged(self._state, other)

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt], loop: ast.For | ast.AsyncFor | None) -> None:
        before = self._state.copy()
        for _ in range(2):
            if loop is not None:
                self._bind_loop(loop)
            self._block(body)
        self._state = _merged(before, self._state)
        self._block(orelse)

    def _bind_loop(self, loop: ast.For | ast.AsyncFor) -> None:
        source = self._evaluate(loop.iter)
        name = dotted_name(loop.iter.func) if isinstance(loop.iter, ast.Call) else None
        if name == "range":
            self._bind(loop.target, _Value(kind=NUMBER))
        elif name == "enumerate" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
            self._bind(loop.target.elts[0], _Value(kind=NUMBER))
            self._bind(loop.target.elts[1], _Value(degree=source.degree))
        else:
            self._bind(loop.target, _Value(degree=source.degree))

    def _with(self, statement: ast.With | ast.AsyncWith) -> bool:
        for item in statement.items:
            value = self._evaluate(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value)
        recording = self._recording
        self._recording = not self._file.grad_disabled(statement.body[0])
        ends = self._block(statement.body)
        self._recording = recording
        return ends

    def _try(self, statement: ast.Try) -> bool:
        before = self._state.copy()
        ends = self._block([*statement.body, *statement.orelse])
        after = self._state
        for handler in statement.handlers:
            self._state = before.copy()
            if not self._block(handler.body):
                after = self._state if ends else _merged(after, self._state)
                ends = False
        self._state = after
        return self._block(statement.finalbody) or ends

    # --- binding and writing -----------------------------------------------------------------------------------

    def _assign(self, statement: ast.Assign) -> None:
        value = self._evaluate(statement.value)
        for target in statement.targets:
            if isinstance(target, ast.Subscript):
                self._evaluate(target.slice)
                for write in writes_of(self._file, statement):
                    if write.target is target.value:
                        self._write(write, self._evaluate(write.target), value.degree)
            else:
                self._bind(target, value)

    def _bind(self, target: ast.expr, value: _Value) -> None:
        if isinstance(target, ast.Starred):
            self._bind(target.value, _Value(degree=value.degree))
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.parts
            for index, item in enumerate(target.elts):
                fits = parts is not None and len(parts) == len(target.elts)
                self._bind(item, parts[index] if fits and parts is not None else _Value(degree=value.degree))
        elif isinstance(target, (ast.Name, ast.Attribute)):
            name = dotted_name(target)
            if name is None:
                return
            value.bound = True
            self._state.names[name] = value
            for other in [other for other in self._state.names if other.startswith(f"{name}.")]:
                del self._state.names[other]

    def _augmented(self, statement: ast.AugAssign) -> None:
        right = self._evaluate(statement.value)
        target = statement.target
        whole = target.value if isinstance(target, ast.Subscript) else target
        value = self._evaluate(whole)
        name = f"operator.i{_OPERATORS.get(type(statement.op), '')}"
        if not isinstance(target, ast.Subscript) and value.kind in {NUMBER, OTHER}:
            self._bind(target, _Value(kind=right.kind, degree=max(value.degree, right.degree)))
            return
        if isinstance(statement.op, ast.MatMult):
            self._bind(target, self._operation("operator.matmul", [value, right], statement))
            return
        if value.kind == UNKNOWN and right.kind == TENSOR and isinstance(target, ast.Name) and not self._kept(value):
            # `loss += …` on what may be a number: nothing was kept of it, and what it becomes is a new value.
            value.kind = TENSOR
        self._keep_inputs(name, [value, right], statement, skip=0)
        for write in writes_of(self._file, statement):
            self._write(write, value, right.degree)
        self._keep_result(name, [value, right], value, statement)

    def _kept(self, value: _Value) -> tuple[Keep, ...]:
        return self._state.kept.get(value.storage, ())

    def _write(self, write: Write, value: _Value, degree: Differentiable = Differentiable.NO) -> None:
        if value.kind in {NUMBER, OTHER} or self._inference:
            return
        kept = [keep for keep in self._kept(value) if keep.degree > Differentiable.NO]
        if kept:
            keep = max(kept, key=lambda item: item.degree)
            key = (write.node, keep.side, value.hidden)
            known = self._found.get(key)
            if known is None or known.keep.degree < keep.degree:
                name = ast.unparse(write.target)
                self._found[key] = Overwrite(write, keep, name, value.hidden, self._function)
            self._state.kept[value.storage] = ()
        if self._recording and not value.hidden:
            value.degree = max(value.degree, degree)

    # --- operations --------------------------------------------------------------------------------------------

    def _operation(
        self, name: str, arguments: list[_Value], node: ast.AST, *, keywords: list[_Value] | None = None
    ) -> _Value:
        """The result of an operation that makes a new tensor, after noting what it keeps."""
        given = keywords or []
        for value in arguments[:1]:
            if value.kind == UNKNOWN:
                value.kind = TENSOR
        if self._facts.never_differentiable(name):
            for value in arguments:
                if not value.bound:
                    self._cut(value)
            return _Value(kind=TENSOR)
        degree = max((value.degree for value in (*arguments, *given)), default=Differentiable.NO)
        result = _Value(kind=TENSOR, degree=degree if self._recording else Differentiable.NO)
        if self._facts.views(name) and arguments:
            result.storage = arguments[0].storage
            result.hidden = arguments[0].hidden
            result.keeps = arguments[0].keeps
            return result
        inherited = [keep for value in arguments if not value.bound for keep in value.keeps]
        noted = self._keep_inputs(name, arguments, node, keywords=bool(given))
        noted += self._keep_result(name, arguments, result, node, keywords=bool(given))
        result.keeps = (*inherited, *noted)
        return result

    def _keep_inputs(
        self, name: str, arguments: list[_Value], node: ast.AST, *, keywords: bool = False, skip: int = -1
    ) -> list[Keep]:
        noted: list[Keep] = []
        for position, degree in self._degrees(name, arguments, keywords=keywords).items():
            if position.isdigit() and int(position) != skip and int(position) < len(arguments):
                keep = Keep(Kept.INPUT, name, node, degree)
                self._note(arguments[int(position)], keep)
                noted.append(keep)
        return noted

    def _keep_result(
        self, name: str, arguments: list[_Value], result: _Value, node: ast.AST, *, keywords: bool = False
    ) -> list[Keep]:
        degree = self._degrees(name, arguments, keywords=keywords).get(RESULT)
        if degree is None:
            return []
        keep = Keep(Kept.RESULT, name, node, degree)
        self._note(result, keep)
        return [keep]

    def _note(self, value: _Value, keep: Keep) -> None:
        if value.kind not in {NUMBER, OTHER}:
            self._state.kept[value.storage] = (*self._kept(value), keep)

    def _degrees(self, name: str, arguments: list[_Value], *, keywords: bool) -> dict[str, Differentiable]:
        """What is kept → how sure it is that it is.

        A tensor that is kept for the sake of another one (`x` in `x * w`) counts only when that other one went
        through a module: an argument on its own may well be data.
        """
        if not self._recording:
            return {}
        kinds = "".join(value.kind for value in arguments)
        found: dict[str, Differentiable] = {}
        for source, kept in self._facts.kept(name, kinds, keywords=keywords).items():
            if source == "parameters":
                degree = Differentiable.CERTAIN
            elif source.isdigit() and int(source) < len(arguments):
                degree = arguments[int(source)].degree
            else:
                continue
            for item in kept:
                own = item in {source, RESULT} or degree >= Differentiable.LIKELY
                if own and degree > Differentiable.NO:
                    found[item] = max(found.get(item, Differentiable.NO), degree)
        return found

    def _cut(self, value: _Value) -> None:
        """Nothing flows back through this value: what was kept to make it is not needed."""
        if not value.keeps:
            return
        dead = set(value.keeps)
        for storage, kept in self._state.kept.items():
            if any(keep in dead for keep in kept):
                self._state.kept[storage] = tuple(keep for keep in kept if keep not in dead)

    # --- expressions -------------------------------------------------------------------------------------------

    def _evaluate(self, expression: ast.expr | None) -> _Value:
        match expression:
            case None:
                return _Value(kind=OTHER)
            case ast.Constant():
                number = isinstance(expression.value, (int, float)) and not isinstance(expression.value, bool)
                return _Value(kind=NUMBER if number else OTHER)
            case ast.Name():
                return self._name(expression.id)
            case ast.Attribute():
                return self._attribute(expression)
            case ast.Subscript():
                return self._subscript(expression)
            case ast.Call():
                return self._call(expression)
            case ast.BinOp():
                return self._binary(expression)
        return self._other(expression)

    def _other(self, expression: ast.expr) -> _Value:
        match expression:
            case ast.UnaryOp():
                value = self._evaluate(expression.operand)
                if isinstance(expression.op, ast.USub) and value.kind != NUMBER:
                    return self._operation("operator.neg", [value], expression)
                return _Value(kind=value.kind if isinstance(expression.op, ast.USub) else UNKNOWN)
            case ast.Compare():
                for value in (self._evaluate(expression.left), *map(self._evaluate, expression.comparators)):
                    if not value.bound:
                        self._cut(value)
                return _Value()
            case ast.BoolOp():
                return _Value(degree=max(self._evaluate(value).degree for value in expression.values))
            case ast.IfExp():
                self._evaluate(expression.test)
                degrees = [self._evaluate(value).degree for value in (expression.body, expression.orelse)]
                return _Value(degree=max(degrees))
            case ast.Tuple() | ast.List():
                parts = tuple(self._evaluate(item) for item in expression.elts)
                degree = max((part.degree for part in parts), default=Differentiable.NO)
                keeps = tuple(keep for part in parts for keep in part.keeps)
                return _Value(kind=UNKNOWN, degree=degree, parts=parts, keeps=keeps)
            case ast.Starred():
                return _Value(degree=self._evaluate(expression.value).degree)
            case ast.NamedExpr():
                value = self._evaluate(expression.value)
                self._bind(expression.target, value)
                return value
        return _Value(kind=OTHER if isinstance(expression, (ast.JoinedStr, ast.Lambda, ast.Slice)) else UNKNOWN)

    def _name(self, name: str) -> _Value:
        known = self._state.names.get(name)
        if known is None:
            known = self._state.names[name] = _Value(bound=True)
        return known

    def _attribute(self, expression: ast.Attribute) -> _Value:
        name = dotted_name(expression)
        known = self._state.names.get(name) if name is not None else None
        if known is not None:
            return known
        if expression.attr in _DESCRIPTIONS:
            return _Value(kind=OTHER)
        if name is not None and name.startswith("self."):
            value = self._own_attribute(name)
        else:
            base = self._evaluate(expression.value)
            if expression.attr == "data":
                return _Value(storage=base.storage, kind=base.kind, hidden=True)
            if expression.attr in _ALIASES:
                return _Value(storage=base.storage, kind=base.kind, degree=base.degree, hidden=base.hidden)
            value = _Value(degree=base.degree)
        value.bound = True
        if name is not None:
            self._state.names[name] = value
        return value

    def _own_attribute(self, name: str) -> _Value:
        if name.endswith(".data"):
            base = self._evaluate(ast.parse(name.removesuffix(".data"), mode="eval").body)
            return _Value(storage=base.storage, kind=base.kind, hidden=True)
        attribute = self._attributes.get(name.removeprefix("self."))
        if attribute is not None and attribute.content is Content.PARAMETER:
            return _Value(kind=TENSOR, degree=Differentiable.CERTAIN)
        if attribute is not None and attribute.content is Content.BUFFER:
            return _Value(kind=TENSOR)
        return _Value()

    def _subscript(self, expression: ast.Subscript) -> _Value:
        base = self._evaluate(expression.value)
        self._evaluate(expression.slice)
        index = expression.slice
        if base.parts is not None and isinstance(index, ast.Constant) and isinstance(index.value, int):
            return base.parts[index.value] if -len(base.parts) <= index.value < len(base.parts) else _Value()
        proves_tensor = isinstance(index, ast.Tuple) or (isinstance(index, ast.Constant) and index.value in {None, ...})
        if base.kind == UNKNOWN and proves_tensor and base.parts is None:
            base.kind = TENSOR
        if base.kind == TENSOR and self._is_basic(index):
            return _Value(storage=base.storage, kind=TENSOR, degree=base.degree, hidden=base.hidden)
        return _Value(kind=TENSOR if base.kind == TENSOR else UNKNOWN, degree=base.degree)

    def _is_basic(self, index: ast.expr) -> bool:
        """Whether an index is made of numbers and slices, so that it gives a view."""
        match index:
            case ast.Tuple():
                return all(self._is_basic(item) for item in index.elts)
            case ast.Slice() | ast.Constant():
                return True
            case ast.UnaryOp():
                return self._is_basic(index.operand)
            case ast.BinOp():
                return self._is_basic(index.left) and self._is_basic(index.right)
            case ast.Name():
                return self._name(index.id).kind == NUMBER
        return False

    def _binary(self, expression: ast.BinOp) -> _Value:
        left, right = self._evaluate(expression.left), self._evaluate(expression.right)
        if left.kind in {NUMBER, OTHER} and right.kind in {NUMBER, OTHER}:
            return _Value(kind=NUMBER)
        name = f"operator.{_OPERATORS.get(type(expression.op), '')}"
        if left.kind == UNKNOWN and right.kind == UNKNOWN and not (left.degree or right.degree):
            return _Value()
        degree = max(left.degree, right.degree) if self._recording else Differentiable.NO
        result = _Value(kind=TENSOR if TENSOR in {left.kind, right.kind} or degree else UNKNOWN, degree=degree)
        noted = self._keep_inputs(name, [left, right], expression)
        noted += self._keep_result(name, [left, right], result, expression)
        result.keeps = (*self._inherited([left, right]), *noted)
        return result

    @staticmethod
    def _inherited(arguments: list[_Value]) -> list[Keep]:
        return [keep for value in arguments if not value.bound for keep in value.keeps]

    # --- calls -------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call) -> _Value:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None and qualified.startswith("torch."):
            return self._torch_call(call, qualified)
        if isinstance(call.func, ast.Attribute):
            name = dotted_name(call.func)
            if name is not None and name.startswith("self."):
                return self._own_call(call, name.removeprefix("self."))
            if qualified is None:
                return self._method(call, call.func)
        if isinstance(call.func, ast.Call):
            layer = describe(self._file, call.func)
            if layer is not None and layer.content in {Content.LAYER, Content.CHAIN}:
                return self._layers(call, layer)
        arguments, keywords = self._arguments(call)
        name = dotted_name(call.func)
        if name in _CUTTING_CALLS:
            for value in arguments:
                if not value.bound:
                    self._cut(value)
            return _Value(kind=NUMBER)
        return self._unknown_result([*arguments, *keywords], at_least=Differentiable.NO)

    def _arguments(self, call: ast.Call) -> tuple[list[_Value], list[_Value]]:
        return (
            [self._evaluate(argument) for argument in call.args],
            [self._evaluate(keyword.value) for keyword in call.keywords],
        )

    def _unknown_result(self, arguments: list[_Value], *, at_least: Differentiable) -> _Value:
        degree = max((value.degree for value in arguments), default=Differentiable.NO)
        inherited = tuple(self._inherited(arguments))
        return _Value(degree=max(degree, at_least) if self._recording else Differentiable.NO, keeps=inherited)

    def _torch_call(self, call: ast.Call, qualified: str) -> _Value:
        arguments, keywords = self._arguments(call)
        if qualified.endswith(".Parameter"):
            return _Value(kind=TENSOR, degree=Differentiable.CERTAIN)
        if qualified == "torch.detach":
            return self._cutting(arguments[0]) if arguments else _Value()
        written = list(writes_of(self._file, call))
        if not written:
            if not self._facts.known(qualified) and not self._facts.never_differentiable(qualified):
                result = self._unknown_result([*arguments, *keywords], at_least=Differentiable.NO)
                result.kind = TENSOR if self._facts.returns_one_tensor(qualified) else UNKNOWN
                return result
            return self._operation(qualified, arguments, call, keywords=keywords)
        name = qualified if self._facts.writes(qualified) else f"{qualified}(inplace=True)"
        for write in written:
            target = arguments[0] if call.args and write.target is call.args[0] else self._evaluate(write.target)
            self._write(write, target, max((value.degree for value in arguments), default=Differentiable.NO))
            self._keep_inputs(name, arguments, call, skip=0)
            self._keep_result(name, arguments, target, call)
        return arguments[0] if arguments and written[0].how != "out=" else _Value(kind=TENSOR)

    def _own_call(self, call: ast.Call, name: str) -> _Value:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.content in {Content.LAYER, Content.CHAIN}:
            return self._layers(call, attribute)
        if isinstance(call.func, ast.Attribute) and "." in name and self._is_tensor_attribute(call.func):
            return self._method(call, call.func)
        arguments, keywords = self._arguments(call)
        is_module = attribute is not None and attribute.content is Content.MODULE
        return self._unknown_result(
            [*arguments, *keywords], at_least=Differentiable.LIKELY if is_module else Differentiable.NO
        )

    def _is_tensor_attribute(self, method: ast.Attribute) -> bool:
        """`self.weight.mul_(…)`: a method of a tensor that is an attribute."""
        return self._facts.is_tensor_method(method.attr)

    def _layers(self, call: ast.Call, attribute: Attribute) -> _Value:
        arguments, _ = self._arguments(call)
        if not call.args or isinstance(call.args[0], ast.Starred):
            return self._unknown_result(arguments, at_least=Differentiable.LIKELY)
        layers = attribute.layers or (attribute,)
        place = call.args[0]
        value = arguments[0]
        for layer in layers:
            short = layer.name.rpartition(".")[2]
            if layer.writes_input:
                write = Write(call, place, f"{short}(inplace=True)")
                self._write(write, value)
                self._keep_result(f"{layer.name}(inplace=True)", [value], value, call)
                continue
            value = self._operation(layer.name, [value, *(arguments[1:] if layer is layers[0] else [])], call)
            if self._recording and "parameters" in self._facts.kept(layer.name, TENSOR):
                value.degree = Differentiable.CERTAIN
        return value

    def _method(self, call: ast.Call, method: ast.Attribute) -> _Value:
        base = self._evaluate(method.value)
        arguments, keywords = self._arguments(call)
        if method.attr in _CUTTING_METHODS:
            return self._cutting(base) if method.attr in {"detach", "numpy"} else self._number(base)
        if method.attr in _METHODS_TO_NUMBERS or method.attr in {"backward", "append", "extend"}:
            return _Value(kind=NUMBER if method.attr in _METHODS_TO_NUMBERS else OTHER)
        if method.attr == "requires_grad_":
            base.degree = Differentiable.CERTAIN
            return base
        if not self._facts.is_tensor_method(method.attr) or base.kind in {NUMBER, OTHER}:
            return self._unknown_result([base, *arguments, *keywords], at_least=Differentiable.NO)
        name = f"torch.Tensor.{method.attr}"
        if not self._facts.writes(name):
            return self._operation(name, [base, *arguments], call, keywords=keywords)
        self._keep_inputs(name, [base, *arguments], call, keywords=bool(keywords), skip=0)
        for write in writes_of(self._file, call):
            if write.how != "out=":
                self._write(write, base, max((value.degree for value in arguments), default=Differentiable.NO))
        self._keep_result(name, [base, *arguments], base, call, keywords=bool(keywords))
        return base

    def _cutting(self, base: _Value) -> _Value:
        if not base.bound:
            self._cut(base)
        return _Value(storage=base.storage, kind=base.kind, bound=base.bound)

    def _number(self, base: _Value) -> _Value:
        if not base.bound:
            self._cut(base)
        return _Value(kind=NUMBER)


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
}


def _gradient_test(test: ast.expr) -> bool | None:
    """True when a condition holds only with gradients (`self.training`), False when only without, None otherwise."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _gradient_test(test.operand)
        return None if inner is None else not inner
    name = dotted_name(test.func if isinstance(test, ast.Call) else test) or ""
    if name.rpartition(".")[2] in {"training", "is_grad_enabled", "requires_grad"}:
        return True
    return None


def _merged(first: _State, second: _State) -> _State:
    names: dict[str, _Value] = {}
    for name in first.names.keys() | second.names.keys():
        one, other = first.names.get(name), second.names.get(name)
        if one is None or other is None:
            # Seen in one branch only, by reading it: the same thing in the other.
            names[name] = one or other or _Value()
        elif one is other:
            names[name] = one
        else:
            kind = one.kind if one.kind == other.kind else UNKNOWN
            names[name] = _Value(kind=kind, degree=max(one.degree, other.degree), bound=True)
    kept = {
        storage: tuple(keep for keep in keeps if keep in second.kept.get(storage, ()))
        for storage, keeps in first.kept.items()
    }
    return _State(names, kept)
