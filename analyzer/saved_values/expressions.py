"""What an expression gives, and what evaluating it keeps and writes.

One method for each kind of expression; whatever has none gives an unknown value. This module must not know
statements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from analyzer.context import FileContext
from analyzer.facts.loader import NUMBER, OTHER, STRING, TENSOR, UNKNOWN
from analyzer.layers import Attribute, Content, describe
from analyzer.saved_values.ledger import Ledger, inherited
from analyzer.saved_values.model import Differentiable, Value
from analyzer.syntax import dotted_name
from analyzer.tensor_writes import Write, writes_of

OPERATORS: Mapping[type[ast.operator], str] = {
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
    ast.LShift: "lshift",
    ast.RShift: "rshift",
}

_ALIASES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
_DESCRIPTIONS = frozenset(
    {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "grad", "grad_fn", "training"}
)
_METHODS_TO_NUMBERS = frozenset({"item", "size", "dim", "numel", "stride", "tolist", "ndimension", "nelement"})
_METHODS_TO_NOTHING = frozenset({"backward", "append", "extend"})
_CUTTING_METHODS = frozenset({"detach", "numpy"})
_CUTTING_CALLS = frozenset({"int", "float", "bool", "print", "len", "str", "repr"})
_WITHOUT_VALUE = (ast.JoinedStr, ast.Lambda, ast.Slice)


class Expressions:
    """Evaluates the expressions of one function against its ledger."""

    def __init__(self, file: FileContext, attributes: Mapping[str, Attribute], ledger: Ledger) -> None:
        self._file = file
        self._attributes = attributes
        self._ledger = ledger
        self._facts = ledger.facts
        self._evaluators: dict[type[ast.expr], Callable[..., Value]] = {
            ast.Constant: self._constant,
            ast.Name: self._name_node,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Call: self._call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.Compare: self._comparison,
            ast.BoolOp: self._logical,
            ast.IfExp: self._choice,
            ast.Tuple: self._sequence,
            ast.List: self._sequence,
            ast.Starred: self._starred,
            ast.NamedExpr: self._named,
        }

    def evaluate(self, expression: ast.expr | None) -> Value:
        """The value of an expression; `None` and strings are values without a tensor."""
        if expression is None or isinstance(expression, _WITHOUT_VALUE):
            return Value(kind=OTHER)
        evaluator = self._evaluators.get(type(expression))
        return Value() if evaluator is None else evaluator(expression)

    def bind(self, target: ast.expr, value: Value) -> None:
        """Lets the names in a target stand for a value or for its parts."""
        if isinstance(target, ast.Starred):
            self.bind(target.value, Value(degree=value.degree))
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.parts if value.parts is not None and len(value.parts) == len(target.elts) else None
            for index, item in enumerate(target.elts):
                self.bind(item, Value(degree=value.degree) if parts is None else parts[index])
        elif isinstance(target, (ast.Name, ast.Attribute)):
            name = dotted_name(target)
            if name is None:
                return
            value.bound = True
            names = self._ledger.state.names
            names[name] = value
            for other in [other for other in names if other.startswith(f"{name}.")]:
                del names[other]

    # --- names and parts ---------------------------------------------------------------------------------------

    def _constant(self, expression: ast.Constant) -> Value:
        if isinstance(expression.value, str):
            return Value(kind=STRING)
        number = isinstance(expression.value, (int, float)) and not isinstance(expression.value, bool)
        return Value(kind=NUMBER if number else OTHER)

    def _name_node(self, expression: ast.Name) -> Value:
        return self._name(expression.id)

    def _name(self, name: str) -> Value:
        names = self._ledger.state.names
        known = names.get(name)
        if known is None:
            known = names[name] = Value(bound=True)
        return known

    def _attribute(self, expression: ast.Attribute) -> Value:
        name = dotted_name(expression)
        names = self._ledger.state.names
        if name is not None and name in names:
            return names[name]
        if expression.attr in _DESCRIPTIONS:
            return Value(kind=OTHER)
        if expression.attr == "data" or expression.attr in _ALIASES:
            base = self.evaluate(expression.value)
            hidden = base.hidden or expression.attr == "data"
            degree = Differentiable.NO if hidden else base.degree
            return Value(storage=base.storage, kind=base.kind, degree=degree, hidden=hidden)
        if name is not None and name.startswith("self."):
            value = self._own_attribute(name.removeprefix("self."))
        else:
            value = Value(degree=self.evaluate(expression.value).degree)
        value.bound = True
        if name is not None:
            names[name] = value
        return value

    def _own_attribute(self, name: str) -> Value:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.content is Content.PARAMETER:
            return Value(kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)
        if attribute is not None and attribute.content is Content.BUFFER:
            return Value(kind=TENSOR)
        return Value()

    def _subscript(self, expression: ast.Subscript) -> Value:
        base = self.evaluate(expression.value)
        index = expression.slice
        self.evaluate(index)
        if base.parts is not None:
            if (
                isinstance(index, ast.Constant)
                and isinstance(index.value, int)
                and index.value in range(len(base.parts))
            ):
                return base.parts[index.value]
            return Value(degree=base.degree)
        if base.kind == UNKNOWN and (isinstance(index, ast.Tuple) or _is_new_axis(index)):
            # Lists and dictionaries of ours are not indexed like this: it is a tensor.
            base.kind = TENSOR
        if base.kind == TENSOR and self._is_basic(index):
            return Value(storage=base.storage, kind=TENSOR, degree=base.degree, hidden=base.hidden)
        return Value(kind=TENSOR if base.kind == TENSOR else UNKNOWN, degree=base.degree)

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
        return isinstance(index, ast.Name) and self._name(index.id).kind == NUMBER

    # --- arithmetic --------------------------------------------------------------------------------------------

    def _binary(self, expression: ast.BinOp) -> Value:
        left, right = self.evaluate(expression.left), self.evaluate(expression.right)
        kinds = {left.kind, right.kind}
        if kinds <= {NUMBER, STRING, OTHER}:
            return Value(kind=NUMBER)
        degree = max(left.degree, right.degree)
        if TENSOR not in kinds and not degree:
            return Value()
        name = f"operator.{OPERATORS[type(expression.op)]}"
        ledger = self._ledger
        result = Value(kind=TENSOR, degree=degree if ledger.recording else Differentiable.NO)
        noted = ledger.keep_inputs(name, [left, right], expression)
        noted += ledger.keep_result(name, [left, right], result, expression)
        result.keeps = (*inherited([left, right]), *noted)
        return result

    def _unary(self, expression: ast.UnaryOp) -> Value:
        value = self.evaluate(expression.operand)
        if not isinstance(expression.op, ast.USub):
            return Value()
        if value.kind == NUMBER:
            return Value(kind=NUMBER)
        return self._ledger.operation("operator.neg", [value], expression)

    def _comparison(self, expression: ast.Compare) -> Value:
        self._ledger.cut_unnamed([self.evaluate(side) for side in (expression.left, *expression.comparators)])
        return Value()

    def _logical(self, expression: ast.BoolOp) -> Value:
        return Value(degree=max(self.evaluate(value).degree for value in expression.values))

    def _choice(self, expression: ast.IfExp) -> Value:
        self.evaluate(expression.test)
        return Value(degree=max(self.evaluate(expression.body).degree, self.evaluate(expression.orelse).degree))

    def _sequence(self, expression: ast.Tuple | ast.List) -> Value:
        parts = tuple(self.evaluate(item) for item in expression.elts)
        degree = max((part.degree for part in parts), default=Differentiable.NO)
        return Value(degree=degree, parts=parts, keeps=tuple(keep for part in parts for keep in part.keeps))

    def _starred(self, expression: ast.Starred) -> Value:
        return Value(degree=self.evaluate(expression.value).degree)

    def _named(self, expression: ast.NamedExpr) -> Value:
        value = self.evaluate(expression.value)
        self.bind(expression.target, value)
        return value

    # --- calls -------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call) -> Value:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None and qualified.startswith("torch."):
            return self._torch_call(call, qualified)
        if isinstance(call.func, ast.Attribute) and qualified is None:
            name = dotted_name(call.func)
            if name is not None and name.startswith("self."):
                return self._own_call(call, call.func, name.removeprefix("self."))
            return self._method(call, call.func)
        if isinstance(call.func, ast.Call):
            layer = describe(self._file, call.func)
            if layer is not None and layer.content in {Content.LAYER, Content.CHAIN}:
                return self._layers(call, layer)
        arguments, keywords = self._arguments(call)
        if dotted_name(call.func) in _CUTTING_CALLS:
            self._ledger.cut_unnamed(arguments)
            return Value(kind=NUMBER)
        return self._unknown_result([*arguments, *keywords])

    def _arguments(self, call: ast.Call) -> tuple[list[Value], list[Value]]:
        return (
            [self.evaluate(argument) for argument in call.args],
            [self.evaluate(keyword.value) for keyword in call.keywords],
        )

    def _unknown_result(self, arguments: list[Value], *, at_least: Differentiable = Differentiable.NO) -> Value:
        degree = max((at_least, *(value.degree for value in arguments)))
        return Value(degree=degree if self._ledger.recording else Differentiable.NO, keeps=tuple(inherited(arguments)))

    def _torch_call(self, call: ast.Call, qualified: str) -> Value:
        arguments, keywords = self._arguments(call)
        if qualified.endswith(".Parameter"):
            return Value(kind=TENSOR, degree=Differentiable.CERTAIN)
        if qualified == "torch.detach" and arguments:
            return self._without_history(arguments[0])
        written = list(writes_of(self._file, call))
        if written:
            return self._torch_write(call, qualified, written, arguments)
        if self._facts.known(qualified) or self._facts.never_differentiable(qualified):
            return self._ledger.operation(qualified, arguments, call, keywords=keywords)
        result = self._unknown_result([*arguments, *keywords])
        result.kind = TENSOR if self._facts.returns_one_tensor(qualified) else UNKNOWN
        return result

    def _torch_write(self, call: ast.Call, qualified: str, written: list[Write], arguments: list[Value]) -> Value:
        name = qualified if self._facts.writes(qualified) else f"{qualified}(inplace=True)"
        degree = max((value.degree for value in arguments), default=Differentiable.NO)
        for write in written:
            is_first = bool(call.args) and write.target is call.args[0]
            target = arguments[0] if is_first else self.evaluate(write.target)
            if is_first:
                self._ledger.keep_inputs(name, arguments, call, skip=0)
            self._ledger.write(write, target, degree)
            if is_first:
                self._ledger.keep_result(name, arguments, target, call)
        return arguments[0] if arguments and written[0].how != "out=" else Value(kind=TENSOR)

    def _own_call(self, call: ast.Call, method: ast.Attribute, name: str) -> Value:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.content in {Content.LAYER, Content.CHAIN}:
            return self._layers(call, attribute)
        if "." in name and self._facts.is_tensor_method(method.attr):
            # `self.weight.mul_(…)`: a method of a tensor that is an attribute.
            return self._method(call, method)
        arguments, keywords = self._arguments(call)
        is_module = attribute is not None and attribute.content is Content.MODULE
        return self._unknown_result(
            [*arguments, *keywords], at_least=Differentiable.LIKELY if is_module else Differentiable.NO
        )

    def _layers(self, call: ast.Call, attribute: Attribute) -> Value:
        arguments, _ = self._arguments(call)
        if not call.args or isinstance(call.args[0], ast.Starred):
            return self._unknown_result(arguments, at_least=Differentiable.LIKELY)
        value, rest = arguments[0], arguments[1:]
        for layer in attribute.layers or (attribute,):
            short = layer.name.rpartition(".")[2]
            if layer.writes_input:
                self._ledger.write(Write(call, call.args[0], f"{short}(inplace=True)"), value)
                self._ledger.keep_result(f"{layer.name}(inplace=True)", [value], value, call)
                continue
            value = self._ledger.operation(layer.name, [value, *rest], call)
            rest = []
            if self._ledger.recording and "parameters" in self._facts.kept(layer.name, TENSOR):
                value.degree = Differentiable.CERTAIN
        return value

    def _method(self, call: ast.Call, method: ast.Attribute) -> Value:
        base = self.evaluate(method.value)
        arguments, keywords = self._arguments(call)
        if method.attr in _CUTTING_METHODS:
            return self._without_history(base)
        if method.attr in _METHODS_TO_NUMBERS:
            self._ledger.cut_unnamed([base])
            return Value(kind=NUMBER)
        if method.attr in _METHODS_TO_NOTHING:
            return Value(kind=OTHER)
        if method.attr == "requires_grad_":
            base.degree = Differentiable.CERTAIN
            return base
        if not self._facts.is_tensor_method(method.attr) or base.kind in {NUMBER, OTHER}:
            return self._unknown_result([base, *arguments, *keywords])
        return self._tensor_method(call, method, base, arguments, keywords)

    def _tensor_method(
        self, call: ast.Call, method: ast.Attribute, base: Value, arguments: list[Value], keywords: list[Value]
    ) -> Value:
        name = f"torch.Tensor.{method.attr}"
        given = [base, *arguments]
        ledger = self._ledger
        if not self._facts.writes(name):
            return ledger.operation(name, given, call, keywords=keywords)
        ledger.keep_inputs(name, given, call, keywords=bool(keywords), skip=0)
        degree = max((value.degree for value in arguments), default=Differentiable.NO)
        for write in writes_of(self._file, call):
            if write.target is method.value:
                ledger.write(write, base, degree)
        ledger.keep_result(name, given, base, call, keywords=bool(keywords))
        return base

    def _without_history(self, base: Value) -> Value:
        self._ledger.cut_unnamed([base])
        return Value(storage=base.storage, kind=base.kind, bound=base.bound)


def _is_new_axis(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and (index.value is None or index.value is ...)
