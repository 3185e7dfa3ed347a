"""What an expression gives, and what evaluating it keeps and writes.

One method for each kind of expression; whatever has none gives an unknown value. This module must not know
statements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from analyzer.context import FileContext
from analyzer.facts.loader import NUMBER, OTHER, STRING, TENSOR, UNKNOWN
from analyzer.layers import Attribute, Content, describe
from analyzer.saved_values.conditions import without_gradients
from analyzer.saved_values.function_views import view_functions
from analyzer.saved_values.ledger import Ledger, inherited
from analyzer.saved_values.model import Differentiable, Obstacle, Route, Storage, Value
from analyzer.syntax import dotted_name, is_false, terminal_name
from analyzer.tensor_writes import PLAIN_COPIES, Write, writes_of, writing_method

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
# By measurement (torch 2.13): in-place writes to the results of these raise; `tensor_split`, `hsplit` and `unsafe_*`
# give independent views.
_PARTITIONS = frozenset({"chunk", "split", "split_with_sizes", "unbind"})
_BROADCASTS = frozenset({"broadcast_tensors", "meshgrid"})
_EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to"})
_TUPLE_LAYERS = frozenset({"RNN", "GRU", "LSTM", "LSTMCell", "MultiheadAttention", "AdaptiveLogSoftmaxWithLoss"})
_LAYER_PARAMETERS = frozenset({"weight", "bias"})
_SHARING_NUMPY = frozenset({"torch.from_numpy", "torch.from_dlpack", "torch.utils.dlpack.from_dlpack"})
_NUMPY_WRITERS = frozenset({"copyto", "put", "place", "putmask", "fill_diagonal", "shuffle"})
_NUMPY_WRITING_METHODS = frozenset({"fill", "sort", "partition", "put", "itemset"})
_WITHOUT_VALUE = (ast.JoinedStr, ast.Lambda, ast.Slice)


class Expressions:
    """Evaluates the expressions of one function against its ledger."""

    def __init__(self, file: FileContext, attributes: Mapping[str, Attribute], ledger: Ledger) -> None:
        self._file = file
        self._attributes = attributes
        self._ledger = ledger
        self._facts = ledger.facts

    def evaluate(self, expression: ast.expr | None) -> Value:
        """The value of an expression; `None` and strings are values without a tensor."""
        evaluator = _EVALUATORS.get(type(expression))
        if evaluator is not None:
            return evaluator(self, expression)
        return Value(kind=OTHER) if expression is None or isinstance(expression, _WITHOUT_VALUE) else Value()

    def bind(self, target: ast.expr, value: Value) -> None:
        """Lets the names in a target stand for a value or for its parts."""
        if isinstance(target, ast.Starred):
            self.bind(target.value, Value(degree=value.degree))
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = value.parts if value.parts is not None and len(value.parts) == len(target.elts) else None
            for index, item in enumerate(target.elts):
                self.bind(item, self.element(value, target) if parts is None else parts[index])
        elif isinstance(target, (ast.Name, ast.Attribute)):
            name = dotted_name(target)
            if name is None:
                return
            value.bound = True
            names = self._ledger.state.names
            names[name] = value
            inside = f"{name}."
            for other in [other for other in names if other.startswith(inside)]:
                del names[other]

    def element(self, value: Value, node: ast.AST) -> Value:
        """One item of a value that is taken apart by unpacking or by a loop, which for a tensor is `unbind`."""
        if value.kind != TENSOR or value.route is not Route.OPEN or not value.bound:
            return value.part()
        view = value.view()
        view.leaf = False
        view.obstacle, view.cause = Obstacle.PARTS, node
        return view

    # --- names and parts ---------------------------------------------------------------------------------------

    def _constant(self, expression: ast.Constant) -> Value:
        if isinstance(expression.value, str):
            return Value(kind=STRING)
        number = isinstance(expression.value, (int, float)) and not isinstance(expression.value, bool)
        return Value(kind=NUMBER if number else OTHER)

    def _name_node(self, expression: ast.Name) -> Value:
        value = self._name(expression.id)
        self._ledger.read(expression, value)
        return value

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
            if name.startswith("self."):
                self._ledger.read_attribute(name.removeprefix("self."), expression, names[name])
            return names[name]
        if expression.attr in _DESCRIPTIONS:
            return Value(kind=OTHER)
        if expression.attr == "data" or expression.attr in _ALIASES:
            value = self.evaluate(expression.value).view()
            if expression.attr == "data":
                value.route, value.degree, value.keeps = Route.DATA, Differentiable.NO, ()
            return value
        if name is not None and name.startswith("self."):
            value = self._own_attribute(name.removeprefix("self."))
            self._ledger.read_attribute(name.removeprefix("self."), expression, value)
        else:
            value = self._foreign_attribute(expression)
        value.bound = True
        if name is not None:
            names[name] = value
        return value

    def _own_attribute(self, name: str) -> Value:
        attribute = self._attributes.get(name)
        is_buffer = attribute is not None and attribute.content is Content.BUFFER
        storage = Storage(attribute=name, buffer=is_buffer)
        if attribute is not None and attribute.content is Content.PARAMETER:
            if f"{name}.requires_grad" in self._file.text:
                return Value(storage=storage, kind=TENSOR, degree=Differentiable.LIKELY)
            return Value(storage=storage, kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)
        if attribute is not None and attribute.content is Content.BUFFER:
            return Value(storage=storage, kind=TENSOR)
        owner, _, last = name.rpartition(".")
        layer = self._attributes.get(owner)
        if layer is not None and last in _LAYER_PARAMETERS and self._has_parameters(layer):
            return Value(storage=storage, kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)
        return Value(storage=storage)

    def _foreign_attribute(self, expression: ast.Attribute) -> Value:
        base = self.evaluate(expression.value)
        if base.module is not None and expression.attr in _LAYER_PARAMETERS and self._has_parameters(base.module):
            return Value(kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)
        return Value(degree=base.degree)

    def _has_parameters(self, layer: Attribute) -> bool:
        return layer.content is Content.LAYER and "parameters" in self._facts.kept(layer.name, TENSOR)

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
        if base.each is not None:
            return base.part()
        if base.kind == UNKNOWN and (isinstance(index, ast.Tuple) or _is_new_axis(index)):
            # Lists and dictionaries of ours are not indexed like this: it is a tensor.
            base.kind = TENSOR
        if base.kind == TENSOR and self._is_basic(index):
            view = base.view()
            if view.obstacle in {Obstacle.SHARED, Obstacle.WINDOWS}:
                view.obstacle = view.cause = None
            return view
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
        if all(isinstance(side, ast.Constant) and side.value is None for side in expression.comparators):
            # Whether there is anything says nothing about its values: `self.state is None` reads no state.
            return Value(kind=OTHER)
        self._ledger.cut_unnamed([self.evaluate(side) for side in (expression.left, *expression.comparators)])
        return Value()

    def _logical(self, expression: ast.BoolOp) -> Value:
        return Value(degree=max(self.evaluate(value).degree for value in expression.values))

    def _choice(self, expression: ast.IfExp) -> Value:
        self.evaluate(expression.test)
        free = without_gradients(expression.test)
        body, orelse = (
            self._evaluate_branch(branch, inference=inference)
            for branch, inference in zip((expression.body, expression.orelse), free, strict=True)
        )
        return Value(degree=max(body.degree, orelse.degree))

    def _evaluate_branch(self, expression: ast.expr, *, inference: bool) -> Value:
        ledger = self._ledger
        before = ledger.recording, ledger.inference
        ledger.recording, ledger.inference = ledger.recording and not inference, ledger.inference or inference
        value = self.evaluate(expression)
        ledger.recording, ledger.inference = before
        return value

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
            return self._attribute_call(call, call.func)
        layer = self._called_layer(call.func)
        if layer is not None:
            return self._layers(call, layer)
        arguments, keywords = self._arguments(call)
        if dotted_name(call.func) in _CUTTING_CALLS:
            self._ledger.cut_unnamed(arguments)
            return Value(kind=NUMBER)
        if qualified is not None and qualified.startswith("numpy."):
            self._numpy_call(call, qualified, arguments)
        if self._detaches(call.func):
            return Value()
        return self._unknown_result([*arguments, *keywords])

    def _attribute_call(self, call: ast.Call, method: ast.Attribute) -> Value:
        name = dotted_name(method)
        if name is not None and name.startswith("self."):
            return self._own_call(call, method, name.removeprefix("self."))
        if name is not None and name.removesuffix(".apply") in self._view_functions:
            return self._function_view(call)
        return self._method(call, method)

    def _called_layer(self, called: ast.expr) -> Attribute | None:
        """The layer that is called, where it is a local name or was built on the spot."""
        if isinstance(called, ast.Name):
            known = self._ledger.state.names.get(called.id)
            return known.module if known is not None else None
        layer = describe(self._file, called) if isinstance(called, ast.Call) else None
        return layer if layer is not None and layer.content in {Content.LAYER, Content.CHAIN} else None

    def _numpy_call(self, call: ast.Call, qualified: str, arguments: list[Value]) -> None:
        """What a NumPy function writes into an array that is a tensor's memory."""
        short = qualified.rpartition(".")[2]
        if short in _NUMPY_WRITERS and arguments and arguments[0].route is Route.NUMPY:
            self._ledger.write(Write(call, call.args[0], f"np.{short}()"), arguments[0])
        for keyword in call.keywords:
            if keyword.arg == "out":
                self._ledger.write(Write(call, keyword.value, "out="), self.evaluate(keyword.value))

    def _function_view(self, call: ast.Call) -> Value:
        """The result of a custom Function whose forward returns a view, or its input as it is."""
        arguments, keywords = self._arguments(call)
        result = self._unknown_result([*arguments, *keywords])
        result.kind = TENSOR
        result.obstacle, result.cause = Obstacle.FUNCTION_VIEW, call
        return result

    def _detaches(self, called: ast.expr) -> bool:
        """Whether a helper gives back something without history, by its name or by its text in this file."""
        name = terminal_name(called) or ""
        if "detach" in name or "repackage" in name:
            return True
        named = self._file.functions_by_name.get(name)
        return named is not None and any(".detach()" in self._file.source(known) for known in named)

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
        if qualified.startswith("torch.nn.") and qualified.rpartition(".")[2][:1].isupper():
            return self._built(call, qualified)
        special = self._sharing_call(call, qualified, arguments)
        if special is not None:
            return special
        written = list(writes_of(self._file, call))
        if written:
            return self._torch_write(call, qualified, written, arguments)
        if any(item.arg == "requires_grad" and _is_true(item.value) for item in call.keywords):
            return Value(kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)
        if self._facts.known(qualified) or self._facts.never_differentiable(qualified):
            result = self._ledger.operation(qualified, arguments, call, keywords=keywords)
            return self._with_obstacle(qualified.rpartition(".")[2], call, call.args[1:], result)
        result = self._unknown_result([*arguments, *keywords])
        result.kind = TENSOR if self._facts.returns_one_tensor(qualified) else UNKNOWN
        return result

    def _built(self, call: ast.Call, qualified: str) -> Value:
        """A parameter, or a layer."""
        if not qualified.endswith(".Parameter"):
            return Value(kind=OTHER, module=describe(self._file, call))
        frozen = any(is_false(item.value) for item in call.keywords if item.arg == "requires_grad")
        return Value(kind=TENSOR) if frozen else Value(kind=TENSOR, degree=Differentiable.CERTAIN, leaf=True)

    def _sharing_call(self, call: ast.Call, qualified: str, arguments: list[Value]) -> Value | None:
        """What lies in the memory of its argument, in a way that matters to whoever writes to it."""
        if not arguments:
            return None
        short = qualified.rpartition(".")[2]
        if qualified == "torch.detach":
            return self._without_history(arguments[0])
        if short in _PARTITIONS | _BROADCASTS:
            return self._several_views(short, arguments[0], call)
        if qualified not in _SHARING_NUMPY:
            return None
        view = arguments[0].view()
        view.route = Route.NUMPY
        return view

    def _torch_write(self, call: ast.Call, qualified: str, written: list[Write], arguments: list[Value]) -> Value:
        name = qualified if self._facts.writes(qualified) else f"{qualified}(inplace=True)"
        degree = max((value.degree for value in arguments), default=Differentiable.NO)
        recording = self._ledger.recording
        if qualified.startswith("torch.nn.init."):
            self._ledger.recording = False  # these switch it off themselves
        result = self._torch_writes(call, name, written, arguments, degree)
        self._ledger.recording = recording
        return result

    def _torch_writes(
        self, call: ast.Call, name: str, written: list[Write], arguments: list[Value], degree: Differentiable
    ) -> Value:
        for write in written:
            is_first = bool(call.args) and write.target is call.args[0]
            target = arguments[0] if is_first else self.evaluate(write.target)
            if is_first:
                target.kind = TENSOR if target.kind == UNKNOWN else target.kind
                self._ledger.keep_inputs(name, arguments, call, skip=0)
            if write.how == "out=" and degree and self._ledger.recording and target.kind in {TENSOR, UNKNOWN}:
                target = target.view(kind=TENSOR)
                target.degree, target.obstacle, target.cause = degree, Obstacle.OUT, call
            self._ledger.write(write, target, degree)
            if is_first:
                self._ledger.keep_result(name, arguments, target, call)
        return arguments[0] if arguments and written[0].how != "out=" else Value(kind=TENSOR)

    def _own_call(self, call: ast.Call, method: ast.Attribute, name: str) -> Value:
        attribute = self._attributes.get(name)
        if attribute is not None and attribute.content in {Content.LAYER, Content.CHAIN}:
            return self._layers(call, attribute)
        if "." in name and self._is_tensor_method(method.attr):
            # `self.weight.mul_(…)`: a method of a tensor that is an attribute.
            return self._method(call, method)
        arguments, keywords = self._arguments(call)
        if self._detaches(method):
            return Value()
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
                value.kind = TENSOR if value.kind == UNKNOWN else value.kind
                self._ledger.write(Write(call, call.args[0], f"{short}(inplace=True)"), value)
                self._ledger.keep_result(f"{layer.name}(inplace=True)", [value], value, call)
                continue
            self._keep_weight(call, layer, value)
            value = self._ledger.operation(layer.name, [value, *rest], call)
            rest = []
            if self._ledger.recording and "parameters" in self._facts.kept(layer.name, TENSOR):
                value.degree = Differentiable.CERTAIN
            if short in _TUPLE_LAYERS:
                value = Value(degree=value.degree, keeps=value.keeps)
        return value

    def _keep_weight(self, call: ast.Call, layer: Attribute, value: Value) -> None:
        """Linear layers and convolutions keep their weight for the gradient of their input."""
        name = dotted_name(call.func)
        short = layer.name.rpartition(".")[2]
        if name is None or not name.startswith("self.") or not short.startswith(("Linear", "Conv")):
            return
        names = self._ledger.state.names
        weight = names.get(f"{name}.weight")
        if weight is None:
            weight = names[f"{name}.weight"] = self._own_attribute(f"{name.removeprefix('self.')}.weight")
            weight.bound = True
        self._ledger.keep_weight(weight, layer.name, call, value.degree)

    def _method(self, call: ast.Call, method: ast.Attribute) -> Value:
        base = self.evaluate(method.value)
        arguments, keywords = self._arguments(call)
        special = self._special_method(call, method, base)
        if special is not None:
            return special
        if not self._is_tensor_method(method.attr) or base.kind in {NUMBER, OTHER}:
            return self._unknown_result([base, *arguments, *keywords])
        return self._tensor_method(call, method, base, arguments, keywords)

    def _special_method(self, call: ast.Call, method: ast.Attribute, base: Value) -> Value | None:
        """Methods whose result is no new tensor."""
        name = method.attr
        result: Value | None = None
        if name in _CUTTING_METHODS:
            result = self._without_history(base)
            result.route = Route.NUMPY if name == "numpy" else base.route
        elif base.route is Route.NUMPY and name in _NUMPY_WRITING_METHODS:
            self._ledger.write(Write(call, method.value, f"{name}()"), base)
            result = Value(kind=OTHER)
        elif name in _METHODS_TO_NUMBERS:
            self._ledger.cut_unnamed([base])
            result = Value(kind=NUMBER)
        elif name in _METHODS_TO_NOTHING:
            result = Value(kind=OTHER)
        elif name == "requires_grad_":
            given = [*call.args, *(item.value for item in call.keywords)]
            base.require_gradient(required=not given or _is_true(given[0]))
            result = base
        return result

    def _is_tensor_method(self, name: str) -> bool:
        return name in PLAIN_COPIES or self._facts.is_tensor_method(name)

    def _tensor_method(
        self, call: ast.Call, method: ast.Attribute, base: Value, arguments: list[Value], keywords: list[Value]
    ) -> Value:
        name = f"torch.Tensor.{method.attr}"
        given = [base, *arguments]
        ledger = self._ledger
        if method.attr == "norm" and {keyword.arg for keyword in call.keywords} <= {"dim", "keepdim"}:
            keywords = []  # these change nothing about what is kept
        if method.attr in _PARTITIONS:
            return self._several_views(method.attr, base, call)
        if not writing_method(method.attr):
            result = ledger.operation(name, given, call, keywords=keywords)
            return self._with_obstacle(method.attr, call, call.args, result)
        ledger.keep_inputs(name, given, call, keywords=bool(keywords), skip=0)
        degree = max((value.degree for value in arguments), default=Differentiable.NO)
        for write in writes_of(self._file, call):
            if write.target is method.value:
                ledger.write(write, base, degree)
        ledger.keep_result(name, given, base, call, keywords=bool(keywords))
        return base

    def _several_views(self, name: str, base: Value, call: ast.Call) -> Value:
        """The results of `chunk` and its like, which torch lets nobody write to, and of broadcasting."""
        if base.kind == UNKNOWN:
            base.kind = TENSOR
        each = base.view()
        each.leaf = False
        each.obstacle = Obstacle.SHARED if name in _BROADCASTS else Obstacle.PARTS
        each.cause = call
        return Value(kind=UNKNOWN, degree=base.degree, each=each, keeps=base.keeps)

    def _with_obstacle(self, name: str, call: ast.Call, sizes: list[ast.expr], result: Value) -> Value:
        """Marks what overlaps in memory: expanded tensors, and windows that are wider than their step."""
        if name in _EXPANSIONS and not all(map(_is_minus_one, sizes)):
            result.obstacle, result.cause = Obstacle.SHARED, call
        elif name == "unfold" and len(sizes) == 3 and _overlapping(sizes[1], sizes[2]):
            result.obstacle, result.cause = Obstacle.WINDOWS, call
        return result

    @cached_property
    def _view_functions(self) -> frozenset[str]:
        return view_functions(self._file)

    def _without_history(self, base: Value) -> Value:
        self._ledger.cut_unnamed([base])
        return Value(storage=base.storage, kind=base.kind, bound=base.bound)


def _is_new_axis(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and (index.value is None or index.value is ...)


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_minus_one(size: ast.expr) -> bool:
    return (
        isinstance(size, ast.UnaryOp)
        and isinstance(size.op, ast.USub)
        and isinstance(size.operand, ast.Constant)
        and size.operand.value == 1
    )


def _overlapping(size: ast.expr, step: ast.expr) -> bool:
    """Whether windows of `size` that start every `step` share elements, as far as can be told: equal sizes do not."""
    if isinstance(size, ast.Constant) and isinstance(step, ast.Constant):
        return isinstance(size.value, int) and isinstance(step.value, int) and size.value > step.value
    return ast.dump(size) != ast.dump(step) and not (isinstance(size, ast.Constant) and size.value == 1)


# Of the class and not of each object: bound methods would tie every object into a cycle with itself.
_EVALUATORS: dict[type[ast.expr] | type[None], Callable[[Expressions, Any], Value]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name_node,
    ast.Attribute: Expressions._attribute,
    ast.Subscript: Expressions._subscript,
    ast.Call: Expressions._call,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._comparison,
    ast.BoolOp: Expressions._logical,
    ast.IfExp: Expressions._choice,
    ast.Tuple: Expressions._sequence,
    ast.List: Expressions._sequence,
    ast.Starred: Expressions._starred,
    ast.NamedExpr: Expressions._named,
}
