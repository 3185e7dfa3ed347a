"""Where the gradient of a result ends: follows parameters, layers and arguments through one function.

Every expression has two sets of sources: those whose gradient it carries (`live`), and those that went into it through
something that has none (`cut`), with the place where that happened. Helpers of the same file are followed two levels.
Statements run in order, loops once; what any branch adds counts, because the question is whether a gradient can come
through at all. This module must not know rules.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from analyzer.context import FileContext
from analyzer.forward_code import ForwardCode, forward_code
from analyzer.layers import Attribute, Content
from analyzer.saved_values.conditions import without_gradients
from analyzer.syntax import FunctionNode, dotted_name, leaves, parameters, terminal_name


class Ending(Enum):
    """What ends a gradient."""

    NUMBER = "Python number"
    NUMPY = "NumPy array"
    DETACHED = "detached value"
    UNRECORDED = "value computed without recording"
    DISCRETE = "value without slope"
    COMPARISON = "comparison"
    COPY = "new tensor"


class Origin(Enum):
    """What a source is."""

    PARAMETER = "parameter"
    LAYER = "layer"
    ARGUMENT = "argument"
    # an object of unknown class that is called: perhaps a model
    CALLED = "called object"


@dataclass(frozen=True, slots=True)
class Source:
    """`self.weight`, `self.head`, an argument."""

    origin: Origin
    name: str


@dataclass(frozen=True, slots=True)
class Cut:
    """The gradient of `source` ends at `node`."""

    source: Source
    node: ast.expr
    ending: Ending


_NOTHING: frozenset[Source] = frozenset()
_UNCUT: frozenset[Cut] = frozenset()


@dataclass(frozen=True, slots=True)
class Flow:
    """`discrete`: an index, a mask or a decision, not a number to compute with. `computed`: more than a bare name."""

    live: frozenset[Source] = _NOTHING
    cut: frozenset[Cut] = _UNCUT
    discrete: bool = False
    computed: bool = False

    def ended(self, node: ast.expr, ending: Ending, *, discrete: bool = False) -> Flow:
        """The same behind something that carries no gradient."""
        return Flow(_NOTHING, self.cut | {Cut(source, node, ending) for source in self.live}, discrete, computed=True)


_EMPTY = Flow()


def joined(flows: Iterable[Flow]) -> Flow:
    """What any of them brings along."""
    flows = [flow for flow in flows if flow is not _EMPTY]
    if not flows:
        return _EMPTY
    if len(flows) == 1:
        return flows[0]
    return Flow(
        frozenset().union(*(flow.live for flow in flows)),
        frozenset().union(*(flow.cut for flow in flows)),
        all(flow.discrete for flow in flows),
        any(flow.computed for flow in flows),
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What comes out of a function: everything it returns, or calls `backward` on."""

    function: FunctionNode
    flow: Flow
    backward: bool


_NUMBER_METHODS = frozenset({"item", "tolist"})
_NUMBER_CALLS = frozenset({"float", "int", "round", "bool"})
_DISCRETE = frozenset(
    {
        *("argmax", "argmin", "argsort", "round", "floor", "ceil", "trunc", "sign", "sgn", "long", "int"),
        *("short", "bool"),
        *("heaviside", "bucketize", "searchsorted", "one_hot", "bincount", "histc", "byte", "nonzero", "multinomial"),
        *("bernoulli", "eq", "ne", "gt", "ge", "lt", "le", "isnan", "isinf", "isfinite", "logical_and", "logical_or"),
    }
)
# Of these the result still is a number that somebody may compute with.
_ROUNDING = frozenset({"round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "histc"})
# Of what these give, the second part is where it was.
_CHOOSING = frozenset({"topk", "sort", "max", "min", "median", "kthvalue", "mode", "cummax", "cummin"})
_DESCRIPTIONS = frozenset({"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "grad", "grad_fn", "layout"})
_DESCRIBING = frozenset(
    {
        *("size", "dim", "numel", "stride", "type", "is_floating_point", "get_device", "data_ptr", "len", "isinstance"),
        *("print", "range", "getattr", "hasattr", "type", "id", "zeros_like", "ones_like", "empty_like", "rand_like"),
        *("randn_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "is_tensor"),
        *("debug", "info", "warn", "warning", "log_scalar", "add_scalar", "finfo", "arange", "zeros", "ones", "empty"),
    }
)
# Of what these are given they take the type or the shape, and no gradient.
_SHAPED_LIKE = frozenset({"to", "type", "type_as", "view_as", "reshape_as", "expand_as"})
_SAMPLES_OF_FLOAT = frozenset({"float", "double", "half", "bfloat16", "to", "type_as", "type"})
# Labels, positions and settings have no gradient to lose.
_WITHOUT_GRADIENT = re.compile(
    r"(^|_)(mask|masks|idx|index|indices|ids|label|labels|target|targets|gt|truth|y|len|lens|length|lengths|size|shape|"
    r"position|positions|step|steps|t|timestep|timesteps|epoch|weight|weights|num|n|k|dim|cfg|config|args|kwargs|batch|"
    r"eps|reduction|name|mode|key|device|dtype|meta|info|data|fps|rate|anchors?|boxes|classes|names)$"
)
_NUMBER_ANNOTATION = re.compile(
    r"^(Optional\[)?(int|float|bool|str)\b|LongTensor|IntTensor|BoolTensor|List\[int|list\[int"
)
_NO_MODEL = re.compile(r"loss|crit|metric|dist|measure|(^|_)(fn|func|function)$")
_BUILTINS = frozenset(dir(builtins))
_MAX_DEPTH = 2
_MAX_STATEMENTS = 400


class GradientFlow:
    """The gradient flow of one function, with what `self` holds."""

    def __init__(self, file: FileContext, function: FunctionNode) -> None:
        self._file = file
        self._code: ForwardCode = forward_code(file)
        owner = self._code.module_of(function)
        self._owner = owner
        self._attributes: Mapping[str, Attribute] = self._code.attributes(owner) if owner is not None else {}
        self._function = function
        self._depth = 0
        self._budget = _MAX_STATEMENTS

    def result(self) -> Result:
        """What the function gives back, or starts a backward from."""
        self._backward: list[Flow] = []
        scope = {p.arg: _argument(p) for p in parameters(self._function)}
        returned = self._run(self._function.body, scope)
        if self._backward:
            return Result(self._function, joined(self._backward), backward=True)
        return Result(self._function, joined(returned), backward=False)

    # --- statements --------------------------------------------------------------------------------------------

    def _run(self, body: list[ast.stmt], scope: dict[str, Flow]) -> list[Flow]:
        outer = getattr(self, "_scope", None)
        self._scope = scope
        self._returned: list[Flow]
        outer_returned = getattr(self, "_returned", None)
        self._returned = []
        self._block(body)
        returned = self._returned
        if outer is not None and outer_returned is not None:
            self._scope, self._returned = outer, outer_returned
        return returned

    def _block(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._budget -= 1
            if self._budget > 0:
                self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        flow = self._flow
        match statement:
            case ast.Return() if statement.value is not None:
                value = flow(statement.value)
                self._returned.append(_EMPTY if self._file.grad_disabled(statement) else value)
            case ast.Assign():
                value = self._unrecorded(statement, flow(statement.value))
                for target in statement.targets:
                    self._bind(target, value, statement.value)
            case ast.AnnAssign() if statement.value is not None:
                self._bind(statement.target, self._unrecorded(statement, flow(statement.value)), statement.value)
            case ast.AugAssign():
                self._add_to(statement.target, self._unrecorded(statement, flow(statement.value)))
            case ast.Expr():
                self._expression_statement(statement.value)
            case ast.If():
                self._branches(statement)
            case ast.For() | ast.AsyncFor():
                self._bind_loop(statement.target, statement.iter)
                self._block(statement.body)
                self._block(statement.orelse)
            case ast.While() | ast.With() | ast.AsyncWith():
                self._block(statement.body)
            case ast.Try():
                self._block(statement.body)
                self._block(statement.orelse)
                self._block(statement.finalbody)

    def _unrecorded(self, statement: ast.stmt, flow: Flow) -> Flow:
        """What is computed under `no_grad`: a parameter of the module ends there, of the rest a backward may tell."""
        if flow is _EMPTY or not self._file.grad_disabled(statement):
            return flow
        block = next((o for o in self._file.ancestors(statement) if isinstance(o, (ast.With, ast.AsyncWith))), None)
        if not flow.live or block is None:
            return _EMPTY
        at = block.items[0].context_expr
        endings = {Origin.PARAMETER: Ending.DETACHED}
        cuts = (Cut(source, at, endings.get(source.origin, Ending.UNRECORDED)) for source in flow.live)
        return Flow(_NOTHING, frozenset(cuts), computed=True)

    def _branches(self, statement: ast.If) -> None:
        body_is_free, orelse_is_free = without_gradients(statement.test)
        before = dict(self._scope)
        if not body_is_free:
            self._block(statement.body)
        after = dict(self._scope)
        self._scope.clear()
        self._scope.update(before)
        if not orelse_is_free:
            self._block(statement.orelse)
        if leaves(statement.body):
            return
        for name, flow in after.items():
            other = self._scope.get(name)
            if leaves(statement.orelse) or other is None:
                self._scope[name] = flow
            elif other is not flow:
                self._scope[name] = joined([flow, other])

    def _expression_statement(self, value: ast.expr) -> None:
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            self._flow(value)
            return
        method = value.func.attr
        if method == "backward":
            self._backward.append(self._flow(value.func.value))
        elif method in {"append", "extend", "insert", "add", "update"} or method.endswith("_"):
            self._add_to(value.func.value, joined(map(self._flow, value.args)))
        else:
            self._flow(value)

    # --- names -------------------------------------------------------------------------------------------------

    def _bind(self, target: ast.expr, flow: Flow, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            given = value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
            chosen = isinstance(value, ast.Call) and terminal_name(value.func) in _CHOOSING and len(target.elts) == 2
            if chosen and value is not None:
                self._bind(target.elts[0], flow, None)
                self._bind(target.elts[1], flow.ended(value, Ending.DISCRETE, discrete=True), None)
                return
            for index, item in enumerate(target.elts):
                same = given is not None and len(given) == len(target.elts)
                self._bind(item, self._flow(given[index]) if same and given is not None else flow, None)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, flow, None)
        elif isinstance(target, ast.Subscript):
            self._add_to(target, flow)
        else:
            name = dotted_name(target)
            if name is not None:
                self._scope[name] = flow

    def _add_to(self, target: ast.expr, flow: Flow) -> None:
        """`x += flow`, `x[i] = flow`, `x.append(flow)`: what was in `x` stays."""
        while isinstance(target, (ast.Subscript, ast.Call)) or (
            isinstance(target, ast.Attribute) and dotted_name(target) not in self._scope
        ):
            if isinstance(target, ast.Subscript):
                index = self._flow(target.slice)
                flow = joined([flow, Flow(_NOTHING, index.cut, computed=True)])
            target = target.func if isinstance(target, ast.Call) else target.value
        name = dotted_name(target)
        if name is not None:
            self._scope[name] = joined([self._scope.get(name, _EMPTY), flow])

    def _bind_loop(self, target: ast.expr, iterated: ast.expr) -> None:
        if isinstance(iterated, ast.Call) and isinstance(target, ast.Tuple):
            name, arguments = terminal_name(iterated.func), iterated.args
            if name == "zip" and len(arguments) == len(target.elts):
                for item, argument in zip(target.elts, arguments, strict=True):
                    self._bind(item, self._flow(argument), None)
                return
            if name == "enumerate" and arguments and len(target.elts) == 2:
                self._bind(target.elts[0], _EMPTY, None)
                self._bind_loop(target.elts[1], arguments[0])
                return
        self._bind(target, self._flow(iterated), None)

    # --- expressions -------------------------------------------------------------------------------------------

    def _flow(self, expression: ast.expr) -> Flow:
        handler = _HANDLERS.get(type(expression))
        if handler is not None:
            return handler(self, expression)
        if isinstance(expression, (ast.Constant, ast.Lambda, ast.JoinedStr)):
            return _EMPTY
        if isinstance(expression, ast.IfExp):
            body_is_free, orelse_is_free = without_gradients(expression.test)
            sides = [
                s for s, free in ((expression.body, body_is_free), (expression.orelse, orelse_is_free)) if not free
            ]
            return joined(map(self._flow, sides))
        if isinstance(expression, ast.NamedExpr):
            flow = self._flow(expression.value)
            self._bind(expression.target, flow, None)
            return flow
        return joined(self._flow(child) for child in ast.iter_child_nodes(expression) if isinstance(child, ast.expr))

    def _name(self, name: ast.Name) -> Flow:
        return self._scope.get(name.id, _EMPTY)

    def _attribute(self, expression: ast.Attribute) -> Flow:
        name = dotted_name(expression)
        if name is not None and name in self._scope:
            return self._scope[name]
        if expression.attr in _DESCRIPTIONS:
            return _EMPTY
        if name is not None and name.startswith("self.") and name.count(".") == 1:
            known = self._attributes.get(expression.attr)
            if known is not None and known.content is Content.PARAMETER:
                return Flow(frozenset({Source(Origin.PARAMETER, name)}))
            return _EMPTY
        flow = self._flow(expression.value)
        if expression.attr == "indices":
            return flow.ended(expression, Ending.DISCRETE, discrete=True)
        return flow.ended(expression, Ending.DETACHED) if expression.attr == "data" else flow

    def _subscript(self, expression: ast.Subscript) -> Flow:
        base, index = self._flow(expression.value), self._flow(expression.slice)
        cut = index.cut | {Cut(source, expression.slice, Ending.DISCRETE) for source in index.live}
        return Flow(base.live, base.cut | cut, base.discrete, computed=True) if base is not _EMPTY or cut else _EMPTY

    def _binary(self, expression: ast.BinOp) -> Flow:
        left, right = self._flow(expression.left), self._flow(expression.right)
        both = joined([left, right])
        floats = isinstance(expression.op, ast.Div) or _is_float(expression.left) or _is_float(expression.right)
        logical = isinstance(expression.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
        if isinstance(expression.op, (ast.FloorDiv,)):
            return both.ended(expression, Ending.DISCRETE)
        return Flow(both.live, both.cut, (both.discrete and not floats) or logical, computed=True)

    def _comparison(self, expression: ast.Compare) -> Flow:
        sides = joined(self._flow(side) for side in (expression.left, *expression.comparators))
        return sides.ended(expression, Ending.COMPARISON, discrete=True)

    def _comprehension(self, expression: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Flow:
        before = dict(self._scope)
        for generator in expression.generators:
            self._bind_loop(generator.target, generator.iter)
        flow = self._flow(expression.elt)
        self._scope.clear()
        self._scope.update(before)
        return flow

    # --- calls -------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call) -> Flow:
        qualified = self._file.qualified_name(call.func)
        name = terminal_name(call.func) or ""
        given = joined(map(self._flow, (*call.args, *(keyword.value for keyword in call.keywords))))
        if qualified is None and isinstance(call.func, ast.Attribute):
            return self._method(call, call.func, given)
        if qualified is not None:
            return self._imported(call, qualified, given)
        if name in _NUMBER_CALLS:
            return given.ended(call, Ending.NUMBER, discrete=name == "bool")
        if name in _DESCRIBING:
            return _EMPTY
        helper = self._helper(name)
        if helper is not None:
            return self._followed(helper, call)
        return Flow(given.live | _weights_of(name), given.cut, computed=True)

    def _imported(self, call: ast.Call, qualified: str, given: Flow) -> Flow:
        name = qualified.rpartition(".")[2]
        if not qualified.startswith("torch."):
            if qualified.startswith(("math.", "numpy.")):
                return given.ended(call, Ending.NUMBER)
            return Flow(given.live, given.cut, computed=True)
        if name in {"tensor", "Parameter", "Tensor", "FloatTensor"} or (name == "as_tensor" and _is_sequence(call)):
            return given.ended(call, Ending.COPY)
        if name in _DISCRETE:
            return given.ended(call, Ending.DISCRETE, discrete=name not in _ROUNDING)
        if name in {"detach", "no_grad"}:
            return given.ended(call, Ending.DETACHED)
        return _EMPTY if name in _DESCRIBING else Flow(given.live, given.cut, given.discrete, computed=True)

    def _method(self, call: ast.Call, method: ast.Attribute, given: Flow) -> Flow:
        name, dotted = method.attr, dotted_name(method) or ""
        if dotted.startswith("self.") and dotted.count(".") == 1:
            return self._own_call(call, name, given)
        base = self._flow(method.value)
        ending: tuple[Ending, bool] | None = None
        if name in _NUMBER_METHODS:
            ending = (Ending.NUMBER, False)
        elif name == "numpy":
            ending = (Ending.NUMPY, False)
        elif name == "detach":
            parent = self._file.parent(self._file.parent(call) or call)
            numpy = isinstance(parent, ast.Call) and terminal_name(parent.func) in {"numpy", "cpu"}
            ending = (Ending.NUMPY if numpy else Ending.DETACHED, False)
        elif name in _DISCRETE:
            ending = (Ending.DISCRETE, name not in _ROUNDING)
        elif name in _DESCRIBING:
            return _EMPTY
        if ending is not None:
            return base.ended(call, ending[0], discrete=ending[1])
        both = base if name in _SHAPED_LIKE else joined([base, given])
        discrete = both.discrete and name not in _SAMPLES_OF_FLOAT
        return Flow(both.live, both.cut, discrete, computed=True) if both is not _EMPTY else _EMPTY

    def _own_call(self, call: ast.Call, name: str, given: Flow) -> Flow:
        known = self._attributes.get(name)
        if known is not None and known.content in {Content.LAYER, Content.CHAIN, Content.MODULE}:
            source = Source(Origin.LAYER, f"self.{name}")
            return Flow(given.live | {source}, given.cut, computed=True)
        if self._owner is not None:
            for statement in self._owner.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == name:
                    return self._followed(statement, call)
        return Flow(given.live | _weights_of(f"self.{name}"), given.cut, computed=True)

    def _helper(self, name: str) -> FunctionNode | None:
        for function in self._file.functions_by_name.get(name, ()):
            if isinstance(self._file.parent(function), ast.Module):
                return function
        return None

    def _followed(self, helper: FunctionNode, call: ast.Call) -> Flow:
        """What a helper of this file makes of what it is given."""
        given = {keyword.arg: self._flow(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        positional = [p.arg for p in [*helper.args.posonlyargs, *helper.args.args] if p.arg not in {"self", "cls"}]
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        everything = joined([*map(self._flow, call.args), *given.values()])
        if self._file.grad_disabled(helper.body[0]):
            return everything.ended(call, Ending.UNRECORDED)
        if self._depth >= _MAX_DEPTH or starred:
            return Flow(everything.live, everything.cut, computed=True)
        for name, argument in zip(positional, call.args, strict=False):
            given[name] = self._flow(argument)
        self._depth += 1
        returned = self._run(helper.body, dict(given))
        self._depth -= 1
        return joined(returned)


def _weights_of(name: str) -> frozenset[Source]:
    """What an object of unknown class brings along when it is called: it may be a model, unless it is a loss."""
    if not name or name in _BUILTINS or _NO_MODEL.search(name):
        return _NOTHING
    return frozenset({Source(Origin.CALLED, name)})


def _argument(parameter: ast.arg) -> Flow:
    annotation = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
    without = (
        parameter.arg in {"self", "cls", "ctx"}
        or _NUMBER_ANNOTATION.search(annotation)
        or _WITHOUT_GRADIENT.search(parameter.arg.lower())
    )
    return _EMPTY if without else Flow(frozenset({Source(Origin.ARGUMENT, parameter.arg)}))


def _is_float(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and isinstance(expression.value, float)


def _is_sequence(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], (ast.List, ast.Tuple, ast.ListComp))


# Of the class and not of each object: bound methods would tie every object into a cycle with itself.
_HANDLERS: dict[type[ast.expr], Callable[[GradientFlow, Any], Flow]] = {
    ast.Name: GradientFlow._name,
    ast.Attribute: GradientFlow._attribute,
    ast.Subscript: GradientFlow._subscript,
    ast.Call: GradientFlow._call,
    ast.BinOp: GradientFlow._binary,
    ast.Compare: GradientFlow._comparison,
    ast.ListComp: GradientFlow._comprehension,
    ast.GeneratorExp: GradientFlow._comprehension,
    ast.SetComp: GradientFlow._comprehension,
}
