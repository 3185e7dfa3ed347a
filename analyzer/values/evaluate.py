"""What every expression of a file may be: looks names up, follows assignments, and asks the table of operations.

Values are computed on demand and remembered, so that a file pays only for the operands that rules ask about. Helpers
and attributes of the same file are followed a few levels. This module must not know rules.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.values.bindings import MOST_REACHING, Binding, FunctionBindings
from analyzer.values.conventions import is_epsilon, is_setting, named_number, parameter_value
from analyzer.values.domain import (
    OTHER,
    SIZE,
    SOME_NUMBER,
    UNKNOWN,
    UNKNOWN_TENSOR,
    Gradient,
    Kind,
    Precision,
    Value,
    Zero,
    add,
    divide,
    join,
    multiply,
    negate,
    number,
    power,
    squared,
    subtract,
)
from analyzer.values.operations import Operation, evaluate_operation
from analyzer.values.surroundings import autocast

if TYPE_CHECKING:
    from analyzer.context import FileContext

# Deeper chains of definitions than this say nothing that a reader could follow either.
_MAX_DEPTH = 40
# Of the functions of one name that many are looked at; `__init__` has 385 in the largest file of ten
# packages, where a call by name can mean none but a function of the module or of the same function.
_MOST_NAMESAKES = 64
# Classes derived from each other in one file: seven in the longest chain of ten packages.
_MOST_ANCESTORS = 32
_MAX_HELPER_DEPTH = 2

# Modules that aren't torch but whose results are no tensors either.
_NUMBER_MODULES = ("math.", "cmath.", "random.", "time.", "statistics.", "os.", "fractions.", "decimal.")
_ARRAY_MODULES = ("numpy.", "scipy.", "cv2.", "pandas.", "sklearn.", "PIL.", "skimage.")
_LAYERS = {
    "torch.nn.Softplus": Value(Kind.TENSOR, 0.0, low_open=True, zero=Zero.EXCLUDED),
    "torch.nn.Sigmoid": Value(Kind.TENSOR, 0.0, 1.0, zero=Zero.ROUNDED, zero_because="where the sigmoid underflows"),
    "torch.nn.Softmax": Value(Kind.TENSOR, 0.0, 1.0, zero=Zero.ROUNDED, zero_because="where the softmax underflows"),
    "torch.nn.Tanh": Value(Kind.TENSOR, -1.0, 1.0, reaches_high=True),
    "torch.nn.CosineSimilarity": Value(Kind.TENSOR, -1.0, 1.0, reaches_high=True),
    **dict.fromkeys(
        ("torch.nn.MSELoss", "torch.nn.L1Loss", "torch.nn.SmoothL1Loss", "torch.nn.HuberLoss"),
        Value(Kind.TENSOR, 0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="for a perfect prediction"),
    ),
    "torch.nn.ReLU": Value(
        Kind.TENSOR, 0.0, zero=Zero.CERTAIN_ORIGIN, zero_because="wherever the input of the ReLU is negative"
    ),
}
# Vectors out of a decomposition or a solver have unit length, or none at all; nobody gets a zero from them.
_DECOMPOSITION = re.compile(r"svd|eig|(^|_)qr($|_)|null|lstsq|solve|cholesky|normali[sz]e|orthogonal|unit")
_FROM_DECOMPOSITION = Value(kind=Kind.TENSOR, screened=True)
_FINFO_POSITIVE = frozenset({"eps", "tiny", "smallest_normal", "resolution", "max"})
# Unpacked calls: values and their indices; parts of one tensor; and what else is known by name.
_SELECTIONS = frozenset({"max", "min", "topk", "sort", "median", "mode", "kthvalue", "cummax", "cummin"})
_PARTITIONS = frozenset({"chunk", "split", "unbind", "broadcast_tensors", "tensor_split"})
_ELEMENTS = {
    "size": SIZE,
    "where": Value(Kind.INTEGER_TENSOR, gradient=Gradient.NO),
    "nonzero": Value(Kind.INTEGER_TENSOR, gradient=Gradient.NO),
    "unravel_index": Value(Kind.INTEGER_TENSOR, gradient=Gradient.NO),
    "meshgrid": Value(Kind.TENSOR, gradient=Gradient.NO),
}
_SEQUENCES = frozenset({"torch.nn.Sequential", "torch.nn.modules.container.Sequential"})
_PRECISIONS = {
    f"torch.{name}": precision
    for names, precision in (
        (("half", "float16"), Precision.HALF),
        (("bfloat16",), Precision.BFLOAT16),
        (("float", "float32"), Precision.SINGLE),
        (("double", "float64"), Precision.DOUBLE),
    )
    for name in names
}
# What autocast runs in 16 bits, and what it runs in float32 (the lists of torch's documentation for CUDA).
_AUTOCAST_LOW = frozenset(
    {
        *("matmul", "mm", "mv", "bmm", "addmm", "addbmm", "baddbmm", "linear", "bilinear", "einsum", "prelu"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "chain_matmul"),
        "scaled_dot_product_attention",
    }
)
_AUTOCAST_SINGLE = frozenset(
    {
        *("acos", "asin", "cosh", "cosine_similarity", "cumprod", "cumsum", "dist", "cdist", "erfinv", "exp", "expm1"),
        *("layer_norm", "group_norm", "log", "log10", "log2", "log1p", "log_softmax", "softmax", "softmin", "softplus"),
        *("norm", "pow", "prod", "reciprocal", "rsqrt", "sinh", "sum", "tan", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("kl_div", "nll_loss", "cross_entropy", "huber_loss", "renorm", "logsumexp", "pdist"),
    }
)
_TENSOR_SHAPE_ATTRIBUTES = frozenset({"shape", "ndim"})
_VIEW_ATTRIBUTES = frozenset({"T", "mT", "real", "imag"})


class Evaluator:
    """The values of one file's expressions."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._values: dict[ast.expr, Value] = {}
        self._provisional: dict[ast.expr, Value] = {}
        self._pending: set[ast.expr] = set()
        self._bindings: dict[ast.AST, FunctionBindings] = {}
        self._attributes: dict[ast.ClassDef, dict[str, list[ast.expr | None]]] = {}
        self._lineages: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        self._methods: dict[ast.ClassDef, dict[str, ast.FunctionDef]] = {}
        self._buffers: set[tuple[ast.ClassDef | None, str]] = set()
        self._helper_depth = 0
        # How often something was taken for unknown because of where the question came from: a cycle, or its depth.
        self._cuts = 0

    # --- interface ---------------------------------------------------------------------------------------------

    def value(self, expression: ast.expr) -> Value:
        """What is known of an expression at its place."""
        known = self._values.get(expression)
        if known is not None:
            return known
        known = self._provisional.get(expression)
        if known is not None:
            self._cuts += 1
            return known
        if expression in self._pending or len(self._pending) > _MAX_DEPTH:
            return self._cut_short()
        self._pending.add(expression)
        cuts = self._cuts
        try:
            result = self._evaluate(expression)
        finally:
            self._pending.discard(expression)
        # A value that was cut short by a cycle further out, or by its depth, is kept for this question only, so that
        # within it every expression is evaluated once; all others are kept for good.
        if not self._pending:
            self._provisional.clear()
        if self._pending and self._cuts > cuts:
            self._provisional[expression] = result
        else:
            self._values[expression] = result
        return result

    def _cut_short(self) -> Value:
        self._cuts += 1
        return UNKNOWN

    def precision(self, expression: ast.expr) -> Precision:
        """The floating-point type that an expression names (`torch.float16`, `x.dtype`), or that a tensor has."""
        qualified = self._file.qualified_name(expression)
        if qualified is not None:
            return _PRECISIONS.get(qualified, Precision.UNKNOWN)
        if isinstance(expression, ast.Attribute) and expression.attr == "dtype":
            return self.value(expression.value).precision
        definition = self.single_definition(expression)
        if definition is not None and self._file.qualified_name(definition) in _PRECISIONS:
            return _PRECISIONS[self._file.qualified_name(definition) or ""]
        return self.value(expression).precision

    def definitions(self, expression: ast.expr) -> list[Binding]:
        """The assignments that a name (or `self.attribute`) may stand for, in its own function only."""
        key = _binding_key(expression)
        scope = self._file.enclosing_function(expression)
        if key is None or scope is None:
            return []
        bindings, _ = self.bindings(scope).reaching(key, self._file.statement(expression))
        return bindings

    def single_definition(self, expression: ast.expr) -> ast.expr | None:
        """The one expression that a name stands for, if it was plainly assigned exactly once before."""
        key = _binding_key(expression)
        scope = self._file.enclosing_function(expression)
        if key is None or scope is None:
            return None
        bindings, may_be_none = self.bindings(scope).reaching(key, self._file.statement(expression))
        if len(bindings) != 1 or may_be_none:
            return None
        only = bindings[0]
        return only.value if only.element is None and only.operator is None and only.index is None else None

    def attribute_values(self, expression: ast.expr) -> list[ast.expr]:
        """Everything that the class around it assigns to an attribute of `self`, buffers included."""
        if not (isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name)):
            return []
        owner = self._file.enclosing_class(expression) if expression.value.id == "self" else None
        assigned = self._assigned(owner, expression.attr)[1]
        return [value for value in assigned if value is not None]

    def bindings(self, scope: FunctionNode | ast.Module) -> FunctionBindings:
        known = self._bindings.get(scope)
        if known is None:
            self._file.check_deadline()
            known = self._bindings[scope] = FunctionBindings(scope)
        return known

    def operation(self, call: ast.Call) -> Operation | None:
        """A call as a torch operation, whether written as a function or as a method; None if it is neither."""
        function = call.func
        qualified = self._file.qualified_name(function)
        if qualified is not None:
            if not qualified.startswith(("torch.", "einops.")):
                return None
            arguments = tuple(call.args)
            operand = arguments[0] if arguments else _keyword(call, "input", "self", "x", "tensors")
            return Operation(qualified.rpartition(".")[2], call, operand, arguments[1:], qualified)
        if isinstance(function, ast.Attribute) and not self._is_module(function.value):
            return Operation(function.attr, call, function.value, tuple(call.args), "")
        return None

    # --- expressions -------------------------------------------------------------------------------------------

    def _evaluate(self, expression: ast.expr) -> Value:
        self._file.check_deadline()  # here and in what walks around a node, so that no rule can outlast its file
        handler = _HANDLERS.get(type(expression))
        return handler(self, expression) if handler is not None else UNKNOWN

    def _literal(self, expression: ast.Constant) -> Value:
        value = expression.value
        if value is None or isinstance(value, str):
            return OTHER
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return SOME_NUMBER
        try:
            return number(float(value))
        except OverflowError:
            return SOME_NUMBER

    def _conditional(self, expression: ast.IfExp) -> Value:
        return join([self.value(expression.body), self.value(expression.orelse)])

    def _named(self, expression: ast.NamedExpr) -> Value:
        return self.value(expression.value)

    def _alternatives(self, expression: ast.BoolOp) -> Value:
        """`eps or 1e-6`: any of them."""
        return join([self.value(operand) for operand in expression.values])

    def _comparison(self, expression: ast.Compare) -> Value:
        sides = [self.value(side) for side in (expression.left, *expression.comparators)]
        if all(side.kind in (Kind.NUMBER, Kind.OTHER) for side in sides):
            return SOME_NUMBER
        return Value(
            Kind.BOOLEAN_TENSOR,
            0.0,
            1.0,
            gradient=Gradient.NO,
            zero=Zero.CERTAIN_ORIGIN,
            zero_because="where the condition does not hold",
            origin=expression,
            mask=True,
        )

    def _unary(self, expression: ast.UnaryOp) -> Value:
        operand = self.value(expression.operand)
        if isinstance(expression.op, ast.USub):
            return negate(operand)
        if isinstance(expression.op, ast.Not):
            return SOME_NUMBER
        return operand

    def _binary(self, expression: ast.BinOp) -> Value:
        if isinstance(expression.op, ast.Sub):
            spread = self._spread(expression.left, expression.right)
            if spread is not None:
                return spread
            if self._is_shifted_by_maximum(expression.left, expression.right):
                shifted = subtract(self.value(expression.left), self.value(expression.right), node=expression)
                return replace(shifted, high=0.0, high_open=False, reaches_high=True)
        if isinstance(expression.op, ast.Mult) and _same_source(expression.left, expression.right):
            return squared(self.value(expression.left), node=expression)
        result = _combine(expression.op, self.value(expression.left), self.value(expression.right), expression)
        if isinstance(expression.op, ast.MatMult):
            low = autocast(self._file, expression)
            return replace(result, precision=low) if low is not None else result
        return result

    def _spread(self, left: ast.expr, right: ast.expr) -> Value | None:
        """The difference between a tensor's maximum and its minimum, which is zero when all elements are equal."""
        upper, lower = self._extreme_of(left, "max"), self._extreme_of(right, "min")
        if upper is None or lower is None or not _same_source(upper, lower):
            return None
        value = self.value(upper)
        if value.is_number:
            return None
        return Value(
            Kind.TENSOR,
            0.0,
            gradient=value.gradient,
            zero=Zero.CERTAIN_ORIGIN,
            zero_because="when all elements are equal",
            origin=self._file.parent(left),
        )

    def _is_shifted_by_maximum(self, left: ast.expr, right: ast.expr) -> bool:
        """`x - x.max(...)` and `x - x.logsumexp(...)`: what is never above zero."""
        upper = self._extreme_of(right, "max") or self._extreme_of(right, "logsumexp")
        return upper is not None and _same_source(_undetached(upper), _undetached(left))

    def _extreme_of(self, expression: ast.expr, which: str) -> ast.expr | None:
        """`x` for `x.max(...)`, `x.amax(...)[0]`, `torch.max(x, 0).values` and names that stand for it."""
        for _ in range(6):
            is_part = isinstance(expression, ast.Attribute) and expression.attr in ("values", "data")
            if isinstance(expression, ast.Subscript) or is_part:
                expression = expression.value  # type: ignore[attr-defined]
            elif isinstance(expression, ast.Name):
                bindings = self.definitions(expression)
                if len(bindings) != 1 or bindings[0].value is None or bindings[0].operator is not None:
                    return None
                expression = bindings[0].value
            elif isinstance(expression, ast.Call):
                operation = self.operation(expression)
                if operation is None or operation.operand is None:
                    return None
                if operation.name in (which, f"a{which}"):
                    return operation.operand
                if operation.name not in ("view", "reshape", "unsqueeze", "expand", "detach", "squeeze"):
                    return None
                expression = operation.operand
            else:
                return None
        return None

    # --- names -------------------------------------------------------------------------------------------------

    def _name(self, name: ast.Name) -> Value:
        statement = self._file.statement(name)
        inside: ast.AST = name
        scope = self._file.enclosing_function(name)
        while scope is not None:
            arguments = [p for p in parameters(scope) if p.arg == name.id]
            # A default value or a decorator of the function is outside of its scope.
            in_body = self._in_body(scope, inside)
            if in_body:
                bindings, may_be_none = self.bindings(scope).reaching(name.id, statement)
                if bindings or arguments:
                    values = [self._binding(binding) for binding in bindings]
                    if arguments and may_be_none:
                        values.append(parameter_value(scope, arguments[0]))
                    return self._after_index_assignments(values, bindings)
            inside = scope
            statement = self._file.statement(scope)
            scope = self._file.enclosing_function(scope)
        return self._module_name(name)

    def _in_body(self, scope: FunctionNode, node: ast.AST) -> bool:
        child = node
        for outer in self._file.ancestors(node):
            if outer is scope:
                return isinstance(child, ast.stmt)
            if isinstance(outer, ast.Lambda) and any(p.arg == getattr(node, "id", None) for p in parameters(outer)):
                return False
            child = outer
        return False

    @staticmethod
    def _after_index_assignments(values: list[Value], bindings: list[Binding]) -> Value:
        """`x[x == 0] = 1` keeps zero away from all that `x` was before."""
        guarded = False
        plain: list[Value] = []
        for value, binding in zip(values, bindings, strict=False):
            if binding.index is None:
                plain.append(value)
            elif _selects_by_value(binding.index, None):
                guarded = guarded or value.zero is not Zero.CERTAIN_ORIGIN
            else:
                plain.append(UNKNOWN_TENSOR)
        plain.extend(values[len(bindings) :])
        result = join(plain)
        return result.without_zero() if guarded else result

    def _binding(self, binding: Binding) -> Value:
        if binding.value is None:
            return UNKNOWN
        value = self.value(binding.value)
        if binding.operator is not None:
            return self._augmented(binding, value)
        if binding.element is not None:
            return self._element(binding.value, binding.element, value)
        return value

    def _augmented(self, binding: Binding, value: Value) -> Value:
        """`x += eps`: what `x` was, combined with the right side."""
        statement = binding.statement
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, (ast.Name, ast.Attribute)):
            return UNKNOWN
        if statement.target in self._pending or binding.operator is None:
            return self._cut_short()
        before = self.value(statement.target)
        return _combine(binding.operator, before, value, statement)

    def _element(self, source: ast.expr, position: int, value: Value) -> Value:
        """One part of an unpacked result."""
        if isinstance(source, ast.Attribute) and source.attr == "shape":
            return SIZE
        if not isinstance(source, ast.Call):
            return UNKNOWN
        name = terminal_name(source.func) or ""
        if name in _SELECTIONS:
            return value if position == 0 else Value(Kind.INTEGER_TENSOR, gradient=Gradient.NO)
        if name in _PARTITIONS or _DECOMPOSITION.search(name):
            return value
        if name in ("std_mean", "var_mean") and position == 0:
            gradient = self.value(source.args[0]).gradient if source.args else Gradient.UNKNOWN
            spread = Value(Kind.TENSOR, 0.0, gradient=gradient, zero=Zero.CERTAIN_ORIGIN, origin=source)
            return replace(spread, zero_because="for constant input")
        return _ELEMENTS.get(name, UNKNOWN)

    def _module_name(self, name: ast.Name) -> Value:
        if name.id in self._file.imports:
            return OTHER
        bindings, _ = self.bindings(self._file.tree).reaching(name.id, None)
        if bindings:
            return join([self._binding(binding) for binding in bindings])
        if is_epsilon(name.id):
            return named_number(name.id, None)
        return UNKNOWN

    # --- attributes --------------------------------------------------------------------------------------------

    def _attribute(self, expression: ast.Attribute) -> Value:
        qualified = self._file.qualified_name(expression)
        if qualified is not None:
            if qualified.rpartition(".")[2] in ("pi", "e", "tau"):
                return number(math.pi)
            return SOME_NUMBER if qualified.startswith((*_NUMBER_MODULES, *_ARRAY_MODULES)) else OTHER
        if isinstance(expression.value, ast.Name) and expression.value.id == "self":
            return self._self_attribute(expression)
        of_tensor = self._tensor_attribute(expression)
        if of_tensor is not None:
            return of_tensor
        if is_epsilon(expression.attr):
            return named_number(expression.attr, None)
        return SOME_NUMBER if is_setting(expression) else UNKNOWN

    def _tensor_attribute(self, expression: ast.Attribute) -> Value | None:
        """`x.shape`, `x.T`, `x.data`, `torch.finfo(t).eps`: what an attribute says, whatever `x` is."""
        name, owner = expression.attr, expression.value
        if name in _TENSOR_SHAPE_ATTRIBUTES:
            return SIZE
        maker = terminal_name(owner.func) if isinstance(owner, ast.Call) else None
        if maker in ("finfo", "iinfo") and name in _FINFO_POSITIVE:
            return Value(Kind.NUMBER, 0.0, low_open=True, gradient=Gradient.NO, zero=Zero.EXCLUDED)
        if name in _VIEW_ATTRIBUTES or (name == "values" and maker is not None):
            return self.value(owner)
        if name == "data":
            return replace(self.value(owner), gradient=Gradient.NO)
        return Value(Kind.TENSOR, gradient=Gradient.NO) if name == "grad" else None

    def _self_attribute(self, expression: ast.Attribute) -> Value:
        function = self._file.enclosing_function(expression)
        if function is not None:
            key = f"self.{expression.attr}"
            bindings, may_be_none = self.bindings(function).reaching(key, self._file.statement(expression))
            if bindings and not may_be_none:
                return self._after_index_assignments([self._binding(b) for b in bindings], bindings)
        owner, assigned = self._assigned(self._file.enclosing_class(expression), expression.attr)
        if not assigned:
            return named_number(expression.attr, None) if is_epsilon(expression.attr) else UNKNOWN
        if len(assigned) > MOST_REACHING:
            return UNKNOWN
        values = [self.value(value) if value is not None else UNKNOWN for value in assigned]
        if (owner, expression.attr) in self._buffers:
            values = [replace(value, kind=Kind.TENSOR, gradient=Gradient.NO) for value in values]
        return replace(join(values), parameter=any(self._is_parameter(value) for value in assigned))

    def _assigned(
        self, owner: ast.ClassDef | None, attribute: str
    ) -> tuple[ast.ClassDef | None, Sequence[ast.expr | None]]:
        """(the class that assigns an attribute, what it assigns): the nearest of a class and its bases in this file."""
        for ancestor in self._lineage(owner):
            assigned = self._class_attributes(ancestor).get(attribute)
            if assigned:
                return ancestor, assigned
        return owner, ()

    def _lineage(self, owner: ast.ClassDef | None) -> list[ast.ClassDef]:
        """A class and its base classes in this file, the nearest first."""
        if owner is None:
            return []
        known = self._lineages.get(owner)
        if known is None:
            known = self._lineages[owner] = [owner]
            for current in known[:_MOST_ANCESTORS]:
                for base in current.bases:
                    for definition in self._classes_by_name.get(base.id if isinstance(base, ast.Name) else "", ()):
                        if definition not in known:
                            known.append(definition)
        return known

    def _methods_of(self, owner: ast.ClassDef) -> dict[str, ast.FunctionDef]:
        """The methods in the body of a class, by name; of two with one name the first."""
        known = self._methods.get(owner)
        if known is None:
            known = self._methods[owner] = {}
            for statement in owner.body:
                if isinstance(statement, ast.FunctionDef):
                    known.setdefault(statement.name, statement)
        return known

    @cached_property
    def _classes_by_name(self) -> dict[str, list[ast.ClassDef]]:
        table: dict[str, list[ast.ClassDef]] = {}
        for definition in self._file.nodes(ast.ClassDef):
            table.setdefault(definition.name, []).append(definition)
        return table

    def _is_parameter(self, expression: ast.expr | None) -> bool:
        if not isinstance(expression, ast.Call):
            return False
        return self._file.qualified_name(expression.func) in ("torch.nn.Parameter", "torch.nn.parameter.Parameter")

    def _class_attributes(self, owner: ast.ClassDef) -> dict[str, list[ast.expr | None]]:
        """Everything assigned to `self.x` in the methods of a class, or given to `register_buffer`."""
        known = self._attributes.get(owner)
        if known is not None:
            return known
        table: dict[str, list[ast.expr | None]] = {}
        self._attributes[owner] = table
        for method in owner.body:
            if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            bindings = self.bindings(method)
            for key in bindings.names():
                if key.startswith("self."):
                    for binding in bindings.all(key):
                        plain = binding.element is None and binding.operator is None and binding.index is None
                        table.setdefault(key[5:], []).append(binding.value if plain else None)
            for call in self._registrations(method):
                if len(call.args) > 1 and isinstance(call.args[0], ast.Constant):
                    name = str(call.args[0].value)
                    table.setdefault(name, []).append(call.args[1])
                    self._buffers.add((owner, name))
        for statement in owner.body:
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        table.setdefault(target.id, []).append(statement.value)
        return table

    def _registrations(self, method: ast.AST) -> Iterator[ast.Call]:
        for call in self._file.calls("register_buffer"):
            if isinstance(call.func, ast.Attribute) and method in self._file.definitions_around(call):
                yield call

    # --- calls and subscripts ----------------------------------------------------------------------------------

    def _subscript(self, expression: ast.Subscript) -> Value:
        source = expression.value
        if isinstance(source, ast.Attribute) and source.attr == "shape":
            return SIZE
        if isinstance(source, (ast.Tuple, ast.List)):
            return join([self.value(element) for element in source.elts]) if source.elts else UNKNOWN
        value = self.value(source)
        name = _binding_key(source)
        if name is not None and _selects_by_value(expression.slice, name):
            return replace(value.without_zero(), screened=True)
        return value

    def _call(self, call: ast.Call) -> Value:
        if _DECOMPOSITION.search(terminal_name(call.func) or ""):
            return _FROM_DECOMPOSITION
        qualified = self._file.qualified_name(call.func)
        if qualified is not None:
            return self._imported_call(call, qualified)
        if isinstance(call.func, ast.Name):
            return self._named_call(call, call.func.id)
        if isinstance(call.func, ast.Attribute):
            if isinstance(call.func.value, ast.Name) and call.func.value.id == "self":
                return self._method_call(call, call.func)
            operation = self.operation(call)
            known = self._of_operation(operation) if operation is not None else None
            if known is not None:
                return known
        return UNKNOWN

    def _of_operation(self, operation: Operation) -> Value | None:
        """What the table says, in the type that an autocast region gives it."""
        known = evaluate_operation(operation, self)
        if known is None or known.is_number or known.is_discrete:
            return known
        if operation.name in _AUTOCAST_LOW or operation.name in _AUTOCAST_SINGLE:
            low = autocast(self._file, operation.call)
            if low is not None:
                return replace(known, precision=low if operation.name in _AUTOCAST_LOW else Precision.SINGLE)
        return known

    def _imported_call(self, call: ast.Call, qualified: str) -> Value:
        if qualified.startswith(_NUMBER_MODULES):
            return SOME_NUMBER
        if qualified.startswith(_ARRAY_MODULES):
            return Value(Kind.ARRAY, gradient=Gradient.NO)
        if qualified in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            return Value(Kind.TENSOR, gradient=Gradient.YES, parameter=True)
        if qualified.startswith("torch.distributed.get_"):
            return SOME_NUMBER
        if qualified.startswith(("torch.", "einops.")):
            operation = self.operation(call)
            known = self._of_operation(operation) if operation is not None else None
            return known if known is not None else UNKNOWN
        return self._file.imported_value(qualified)

    def _named_call(self, call: ast.Call, name: str) -> Value:
        arguments = call.args
        if name in ("float", "int", "len", "round", "ord"):
            if name == "len" or not arguments:
                return SIZE
            return replace(self.value(arguments[0]), kind=Kind.NUMBER, gradient=Gradient.NO)
        if name in ("max", "min") and len(arguments) > 1:
            values = [self.value(argument) for argument in arguments]
            return _largest(values) if name == "max" else join(values)
        if name == "abs" and arguments:
            value = self.value(arguments[0])
            return squared(value, node=call) if not value.positive else value
        if name == "sum":
            return SOME_NUMBER if arguments and self._yields_numbers(arguments[0]) else UNKNOWN
        helper = self._function_named(name, call)
        return self._helper(helper) if helper is not None else UNKNOWN

    def _yields_numbers(self, expression: ast.expr) -> bool:
        if isinstance(expression, (ast.GeneratorExp, ast.ListComp)):
            return self.value(expression.elt).is_number
        return self.value(expression).is_number

    def _method_call(self, call: ast.Call, function: ast.Attribute) -> Value:
        owner = self._file.enclosing_class(call)
        if owner is None:
            return UNKNOWN
        for ancestor in self._lineage(owner):
            method = self._methods_of(ancestor).get(function.attr)
            if method is not None:
                return self._helper(method)
        layer = self.last_layer(call)
        if layer in _LAYERS:
            return replace(_LAYERS[layer], origin=call)
        return UNKNOWN_TENSOR if layer is not None and layer.startswith("torch.nn.") else UNKNOWN

    def layer(self, call: ast.Call) -> str | None:
        """The torch class of the layer that `self.layer(x)` calls, as far as its own class shows."""
        constructed = self.construction(call)
        return self._file.qualified_name(constructed.func) if constructed is not None else None

    def last_layer(self, call: ast.Call) -> str | None:
        """The same; of an `nn.Sequential(...)` the class of its last layer."""
        constructed = self.construction(call)
        while constructed is not None:
            qualified = self._file.qualified_name(constructed.func)
            last = constructed.args[-1] if constructed.args else None
            if qualified not in _SEQUENCES or not isinstance(last, ast.Call):
                return qualified
            constructed = last
        return None

    def has_bias(self, call: ast.Call) -> bool:
        """Whether the layer that `self.layer(x)` calls was made with a bias, or nothing says that it was not."""
        constructed = self.construction(call)
        bias = _keyword(constructed, "bias") if constructed is not None else None
        return not (isinstance(bias, ast.Constant) and bias.value is False)

    def construction(self, call: ast.Call) -> ast.Call | None:
        """The `nn.Linear(...)` that was assigned to the attribute which `self.layer(x)` calls."""
        function = call.func
        owner = self._file.enclosing_class(call)
        if owner is None or not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return None
        if function.value.id != "self":
            return None
        for value in self._assigned(owner, function.attr)[1]:
            if isinstance(value, ast.Call) and (self._file.qualified_name(value.func) or "").startswith("torch.nn."):
                return value
        return None

    def _function_named(self, name: str, call: ast.Call) -> FunctionNode | None:
        around = self._file.enclosing_function(call)
        for function in self._file.functions_by_name.get(name, ())[:_MOST_NAMESAKES]:
            owner = self._file.parent(function)
            if isinstance(owner, ast.Module) or owner is around:
                return function
        return None

    def returned(self, function: FunctionNode) -> Value:
        """What a function of this file returns, whatever it is given."""
        return self._helper(function)

    def _helper(self, function: FunctionNode) -> Value:
        """What a function of this file returns, whatever it is given."""
        if self._helper_depth >= _MAX_HELPER_DEPTH:
            return self._cut_short()
        returned = [node.value for node in self._file.returns_of(function) if node.value is not None]
        if not returned or len(returned) > 4 or any(isinstance(value, ast.Tuple) for value in returned):
            return UNKNOWN
        self._helper_depth += 1
        try:
            return join([self.value(value) for value in returned])
        finally:
            self._helper_depth -= 1

    def _is_module(self, expression: ast.expr) -> bool:
        """Whether an expression is an imported name, so that a call on it is no tensor method."""
        return self._file.qualified_name(expression) is not None


def _combine(operator: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """The value of `left operator right`."""
    plain = _ARITHMETIC.get(type(operator))
    if plain is not None:
        return plain(left, right)
    if isinstance(operator, ast.Sub):
        return subtract(left, right, node=node)
    if isinstance(operator, ast.Pow):
        return power(left, right, node=node)
    either = join([left, right])
    if isinstance(operator, (ast.BitAnd, ast.BitOr, ast.BitXor)):
        return replace(either, mask=True)
    if either.kind is Kind.NUMBER:
        return SIZE if left.non_negative and right.non_negative else SOME_NUMBER
    is_product = isinstance(operator, ast.MatMult)
    return Value(
        kind=Kind.TENSOR if is_product else either.kind,
        gradient=either.gradient,
        low=0.0 if is_product and left.non_negative and right.non_negative else -math.inf,
    )


def _largest(values: Sequence[Value]) -> Value:
    result = replace(join(list(values)), low=max(value.low for value in values))
    return result.without_zero() if any(value.positive for value in values) else result


def _binding_key(expression: ast.expr) -> str | None:
    if isinstance(expression, ast.Name):
        return expression.id
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        return f"{expression.value.id}.{expression.attr}"
    return None


def _keyword(call: ast.Call, *names: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg in names:
            return keyword.value
    return None


def _selects_by_value(index: ast.expr, name: str | None) -> bool:
    """Whether an index is a condition on `name` (`x[x > 0]`, `x[x.isinf()]`; None: on anything), or a mask by name."""
    keys = {_binding_key(node) for node in ast.walk(index) if isinstance(node, (ast.Name, ast.Attribute))}
    if any(word in (key or "").lower() for key in keys for word in ("mask", "valid", "zero", "keep", "inf")):
        return True
    compares = any(isinstance(node, (ast.Compare, ast.Call)) for node in ast.walk(index))
    return compares and (name is None or name in keys)


def _undetached(expression: ast.expr) -> ast.expr:
    while (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr == "detach"
    ):
        expression = expression.func.value
    return expression


def _same_source(left: ast.expr, right: ast.expr) -> bool:
    return type(left) is type(right) and ast.dump(left) == ast.dump(right)


_ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: add,
    ast.Mult: multiply,
    ast.Div: divide,
}
_HANDLERS: dict[type[ast.expr], Callable[[Evaluator, Any], Value]] = {
    ast.Constant: Evaluator._literal,
    ast.Name: Evaluator._name,
    ast.BinOp: Evaluator._binary,
    ast.Call: Evaluator._call,
    ast.Attribute: Evaluator._attribute,
    ast.Subscript: Evaluator._subscript,
    ast.UnaryOp: Evaluator._unary,
    ast.IfExp: Evaluator._conditional,
    ast.NamedExpr: Evaluator._named,
    ast.Compare: Evaluator._comparison,
    ast.BoolOp: Evaluator._alternatives,
}
