"""Which expressions are certainly torch tensors, as far as their own file shows.

Rules that speak of a tensor's value used as a Python value (a branch, a conversion) need more than "nothing is known":
a number, a flag or an array in the same place is right. Evidence is an annotation, a torch operation that always
returns one tensor, a layer of the module, a buffer or parameter, or a method that nothing else has. This module must
not know rules.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from analyzer.compiled_regions import compiled_regions
from analyzer.facts import operations
from analyzer.layers import Attribute, Content, module_attributes
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.values.bindings import Binding

if TYPE_CHECKING:
    from analyzer.context import FileContext

_MAX_DEPTH = 12
# Methods that a NumPy array or a pandas object has as well: they tell nothing about what they are called on.
_SHARED_METHODS = frozenset(
    {
        *(
            "all",
            "any",
            "argmax",
            "argmin",
            "argsort",
            "clip",
            "conj",
            "cumprod",
            "cumsum",
            "diagonal",
            "dot",
            "flatten",
        ),
        *("mean", "prod", "put", "ravel", "repeat", "reshape", "round", "squeeze", "std", "sum", "swapaxes", "take"),
        *("trace", "transpose", "var", "view", "max", "min", "copy", "abs", "add", "eq", "ne", "lt", "gt", "ge", "le"),
        *("diff", "corr", "cov", "pow", "sub", "mul", "div", "get", "floor", "log", "exp", "isin", "where", "median"),
        *("t", "filter", "index_select", "unique", "quantile", "sort", "replace", "count_nonzero", "to"),
    }
)
# Torch functions that return one tensor in every form that code uses, and are missing from the facts because their
# other forms, or their modes, return several values.
_MORE_FUNCTIONS = frozenset({"tensor", "as_tensor", "softmax", "log_softmax", "relu", "dropout", "gelu", "norm"})
_SAME_KIND_METHODS = frozenset(
    {"to", "type", "cuda", "cpu", "float", "half", "double", "bfloat16", "long", "int", "bool"}
)
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "data", "grad", "real", "imag"})
_PLAIN_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "layout", "is_leaf"})
_TENSOR_WORD = re.compile(r"\b(?:Long|Float|Half|Bool|Int|Byte)?Tensor\b")
_OTHER_WORD = re.compile(r"\b(?:List|list|Tuple|tuple|Dict|dict|Sequence|Iterable|float|int|bool|str|ndarray|array)\b")
# Functions that look at every element and return a truth value of Python's.
_PREDICATES = frozenset({"torch.equal", "torch.allclose"})
# Layers whose call returns a tuple.
_TUPLE_LAYERS = frozenset(
    {"LSTM", "GRU", "RNN", "LSTMCell", "MultiheadAttention", "AdaptiveLogSoftmaxWithLoss", "FractionalMaxPool2d"}
)


class TensorEvidence:
    """Asks of single expressions of one file. Answers are remembered."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._known: dict[ast.expr, bool] = {}
        self._attributes: dict[ast.ClassDef, dict[str, Attribute]] = {}
        self._depth = 0

    def is_tensor(self, expression: ast.expr) -> bool:
        """Whether the expression is certainly a tensor."""
        known = self._known.get(expression)
        if known is not None:
            return known
        if self._depth >= _MAX_DEPTH:
            return False
        self._known[expression] = False  # a definition that leads back to itself is no evidence
        self._depth += 1
        try:
            answer = self._is_tensor(expression)
        finally:
            self._depth -= 1
        self._known[expression] = answer
        return answer

    def _is_tensor(self, expression: ast.expr) -> bool:
        answer = False
        match expression:
            case ast.Name():
                answer = self._name(expression)
            case ast.Attribute():
                answer = self._attribute(expression)
            case ast.Call():
                answer = self._call(expression)
            case ast.BinOp():
                answer = self.is_tensor(expression.left) or self.is_tensor(expression.right)
            case ast.UnaryOp():
                answer = not isinstance(expression.op, ast.Not) and self.is_tensor(expression.operand)
            case ast.Compare():
                answer = self._comparison(expression)
            case ast.Subscript():
                answer = self.is_tensor(expression.value)
            case ast.IfExp():
                answer = self.is_tensor(expression.body) and self.is_tensor(expression.orelse)
            case ast.NamedExpr():
                answer = self.is_tensor(expression.value)
        return answer

    def _comparison(self, expression: ast.Compare) -> bool:
        if any(isinstance(operator, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for operator in expression.ops):
            return False
        sides = [expression.left, *expression.comparators]
        if any(
            isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, str)) for side in sides
        ):
            return False
        return any(self.is_tensor(side) for side in sides)

    def is_read_from_tensor(self, expression: ast.expr) -> bool:
        """Whether a Python number or truth value is taken out of a tensor: `x.sum().item()`, `int(t)`, `torch.equal`.

        Comparisons and arithmetic of such a number count as well.
        """
        if isinstance(expression, (ast.Compare, ast.BinOp)):
            if isinstance(expression, ast.BinOp):
                parts = [expression.left, expression.right]
            else:
                parts = [expression.left, *expression.comparators]
            return any(self.is_read_from_tensor(part) for part in parts)
        if isinstance(expression, ast.Name):
            definition = self._file.values.single_definition(expression)
            return isinstance(definition, (ast.Call, ast.Compare)) and self.is_read_from_tensor(definition)
        if not isinstance(expression, ast.Call):
            return False
        if self._file.qualified_name(expression.func) in _PREDICATES:
            return True
        name = terminal_name(expression.func)
        if isinstance(expression.func, ast.Attribute):
            return name == "item" and not expression.args and self._is_tensor_like(expression.func.value)
        return name in ("int", "float", "bool") and len(expression.args) == 1 and self.is_tensor(expression.args[0])

    # --- names and attributes ----------------------------------------------------------------------------------

    def _name(self, name: ast.Name) -> bool:
        function = self._file.enclosing_function(name)
        if function is None:
            return False
        statement = self._file.statement(name)
        bindings, may_be_none = self._file.values.bindings(function).reaching(name.id, statement)
        argument = next((p for p in parameters(function) if p.arg == name.id), None)
        if may_be_none and not (argument is not None and self._is_tensor_parameter(function, argument)):
            return False
        return bool(bindings or may_be_none) and all(self._binding(binding) for binding in bindings)

    def _is_tensor_parameter(self, function: FunctionNode, argument: ast.arg) -> bool:
        if argument in (function.args.vararg, function.args.kwarg):
            return False
        if argument.annotation is not None:
            text = ast.unparse(argument.annotation)
            return _TENSOR_WORD.search(text) is not None and _OTHER_WORD.search(text) is None
        return False

    def _binding(self, binding: Binding) -> bool:
        if binding.value is None:
            return False
        if binding.index is not None:
            return True  # something is written into it: what it is was decided where it was made
        if binding.operator is not None:
            return self.is_tensor(binding.value)
        if binding.element is not None:
            return _is_tensor_sequence(self._file, binding.value)
        return self.is_tensor(binding.value)

    def _attribute(self, expression: ast.Attribute) -> bool:
        if expression.attr in _PLAIN_ATTRIBUTES:
            return False
        owner = expression.value
        if isinstance(owner, ast.Name) and owner.id == "self":
            attribute = self.module_attribute(expression)
            return attribute is not None and attribute.content in (Content.PARAMETER, Content.BUFFER)
        if expression.attr == "weight" and isinstance(owner, ast.Attribute):
            attribute = self.module_attribute(owner)
            return attribute is not None and attribute.content is Content.LAYER
        return expression.attr in _TENSOR_ATTRIBUTES and self.is_tensor(owner)

    def module_attribute(self, expression: ast.Attribute) -> Attribute | None:
        """What `self.name` of the class around the expression holds, if it is told."""
        if not (isinstance(expression.value, ast.Name) and expression.value.id == "self"):
            return None
        owner = self._file.enclosing_class(expression)
        if owner is None:
            return None
        table = self._attributes.get(owner)
        if table is None:
            table = self._attributes[owner] = module_attributes(self._file, owner)
        return table.get(expression.attr)

    # --- calls -------------------------------------------------------------------------------------------------

    def _call(self, call: ast.Call) -> bool:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None:
            return self._torch_call(qualified)
        function = call.func
        if not isinstance(function, ast.Attribute):
            return False
        attribute = self.module_attribute(function)
        if attribute is not None:
            if attribute.content is Content.CHAIN:
                return True
            return attribute.content is Content.LAYER and attribute.name.rpartition(".")[2] not in _TUPLE_LAYERS
        return self._method(function)

    @staticmethod
    def _torch_call(qualified: str) -> bool:
        if not qualified.startswith("torch."):
            return False
        if operations().returns_one_tensor(qualified):
            return True
        module, _, name = qualified.rpartition(".")
        return module in ("torch", "torch.nn.functional", "torch.linalg") and (
            name in _MORE_FUNCTIONS or operations().returns_one_tensor(f"torch.{name}")
        )

    def _method(self, function: ast.Attribute) -> bool:
        name = function.attr
        if not operations().returns_one_tensor(f"torch.Tensor.{name}") and name not in _SAME_KIND_METHODS | {
            "max",
            "min",
        }:
            return False
        if name not in _SHARED_METHODS and name not in _SAME_KIND_METHODS and not name.startswith("_"):
            return operations().is_tensor_method(name) and self._may_be_tensor(function.value)
        return self._is_tensor_like(function.value)

    def _is_tensor_like(self, operand: ast.expr, depth: int = 0) -> bool:
        """A tensor, or computed from an argument of a function that tensors are given to.

        Enough for what a method is called on that numbers do not have.
        """
        if self.is_tensor(operand):
            return True
        if depth > _MAX_DEPTH:
            return False
        parts: list[ast.expr] = []
        if isinstance(operand, ast.Compare):
            parts = [operand.left, *operand.comparators]
        elif isinstance(operand, ast.BinOp):
            parts = [operand.left, operand.right]
        elif isinstance(operand, ast.Subscript):
            parts = [operand.value]
        elif isinstance(operand, ast.Name):
            definition = self._file.values.single_definition(operand)
            parts = [definition] if isinstance(definition, (ast.BinOp, ast.Compare, ast.Subscript)) else []
        return self._is_forward_argument(operand) or any(self._is_tensor_like(part, depth + 1) for part in parts)

    def _is_forward_argument(self, operand: ast.expr) -> bool:
        if not isinstance(operand, ast.Name):
            return False
        function = self._file.enclosing_function(operand)
        if function is None or not self._takes_tensors(function):
            return False
        _, may_be_none = self._file.values.bindings(function).reaching(operand.id, self._file.statement(operand))
        argument = next((p for p in parameters(function) if p.arg == operand.id), None)
        own = argument is not None and argument.annotation is None and argument.arg not in ("self", "ctx")
        return may_be_none and own

    def _takes_tensors(self, function: FunctionNode) -> bool:
        """Whether what a function is given is tensors by custom: a forward, a Function's backward, compiled code."""
        if function.name == "forward" and is_module_method(self._file, function):
            return True
        if compiled_regions(self._file).of(function) is not None:
            return True
        return function.name == "backward" and self._file.parent(function) in self._file.autograd_functions

    def _may_be_tensor(self, operand: ast.expr) -> bool:
        """Whether nothing says that the owner of a method is a module or a class."""
        return not (isinstance(operand, ast.Name) and (operand.id in ("self", "cls") or operand.id[:1].isupper()))


def tensor_evidence(file: FileContext) -> TensorEvidence:
    """The one of this file; made on the first call."""
    kept = vars(file)
    if "_tensor_evidence" not in kept:
        kept["_tensor_evidence"] = TensorEvidence(file)
    found: TensorEvidence = kept["_tensor_evidence"]
    return found


def _is_tensor_sequence(file: FileContext, expression: ast.expr) -> bool:
    """Whether the parts of an unpacked result are tensors: `a, b = x.chunk(2)`."""
    if isinstance(expression, ast.Attribute) and expression.attr == "saved_tensors":
        return True
    if not isinstance(expression, ast.Call):
        return False
    name = terminal_name(expression.func)
    qualified = file.qualified_name(expression.func)
    if name in ("chunk", "unbind", "split", "tensor_split"):
        return qualified is None or qualified.startswith("torch.")
    return name in ("topk", "std_mean", "var_mean", "broadcast_tensors") and (qualified or "torch.").startswith(
        "torch."
    )


def is_module_method(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function is a method of a class that reads like an `nn.Module`."""
    owner = file.parent(function)
    if not isinstance(owner, ast.ClassDef):
        return False
    return any(is_module_base(file, base) for base in owner.bases)


def is_module_base(file: FileContext, base: ast.expr) -> bool:
    """Whether a base class is `nn.Module`, one of torch's layers, or is called like a module."""
    qualified = file.qualified_name(base)
    if qualified is not None and qualified.startswith("torch.nn."):
        return True
    name = terminal_name(base) or ""
    return name.endswith(("Module", "Model", "Layer", "Block", "PreTrainedModel", "Net"))
