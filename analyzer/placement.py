"""Where the memory of a tensor lies: on the CPU whatever happens, or wherever the model and its input are.

A factory call without `device=` makes a tensor on the CPU; inputs, parameters, buffers and what is computed from them
lie with the model. Whatever is not known is neither. This module must not know rules, nor where tensors meet.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.forward_code import ForwardCode, forward_code, keyword, own_attribute
from analyzer.layers import Attribute, Content
from analyzer.syntax import FunctionNode, is_self, parameters, terminal_name
from analyzer.values.domain import Kind

SIZED_FACTORIES = (
    *("zeros", "ones", "full", "empty", "rand", "randn", "randint", "eye", "arange", "linspace", "logspace", "range"),
    *(
        "randperm",
        "tril_indices",
        "triu_indices",
        "hann_window",
        "hamming_window",
        "blackman_window",
        "bartlett_window",
    ),
)
DATA_FACTORIES = ("tensor", "as_tensor", "FloatTensor", "LongTensor", "Tensor", "from_numpy")
FACTORIES = (*SIZED_FACTORIES, *DATA_FACTORIES)
LIKE = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "bernoulli"}
)
MOVING = frozenset({"to", "cuda", "type_as", "type", "xpu", "mps", "npu"})
LEAVING = frozenset({"item", "tolist", "numpy", "size", "dim", "numel", "stride", "storage", "data_ptr", "ndimension"})
VIEWS = frozenset({"T", "mT", "H", "mH", "data", "real", "imag", "grad"})
_SCALAR_WITHOUT_DIM = frozenset(
    {"sum", "mean", "max", "min", "prod", "norm", "std", "var", "median", "any", "all", "amax", "amin", "argmax"}
)
_JOINING_LISTS = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack"})
_TENSOR_TRAITS = frozenset(
    {
        *("shape", "size", "device", "dtype", "dim", "ndim", "view", "reshape", "unsqueeze", "squeeze", "permute"),
        *("transpose", "contiguous", "flatten", "expand", "new_zeros", "new_ones", "new_full", "new_tensor", "is_cuda"),
        *("mean", "sum", "norm", "chunk", "float", "detach", "type_as"),
    }
)
# A NumPy array has these as well, so outside of a module they prove nothing.
_ARRAY_TRAITS = frozenset(
    {"shape", "size", "dtype", "ndim", "reshape", "squeeze", "transpose", "mean", "sum", "flatten"}
)
_WITH_PARAMETERS = re.compile(r"Linear|Conv|Embedding|Norm|RNN|LSTM|GRU|Attention|Transformer|PReLU")
MAX_DEPTH = 8


class Placement:
    """The places of one file's tensors."""

    def __init__(self, file: FileContext, code: ForwardCode) -> None:
        self._file = file
        self._code = code
        self._follows: dict[ast.expr, bool] = {}
        self._pending: set[ast.AST] = set()

    # --- where tensors are made ---------------------------------------------------------------------------------

    def is_cpu_factory(self, call: ast.Call, *, anywhere: bool = False) -> bool:
        """Whether a call makes a tensor of at least one dimension on the CPU, whatever the model's device is.

        `anywhere`: on whatever device.
        """
        qualified = self._file.qualified_name(call.func) or ""
        excluding = (None, "out", "like") if anywhere else (None, "device", "out", "like")
        if not qualified.startswith("torch.") or any(item.arg in excluding for item in call.keywords):
            return False
        name = qualified.rpartition(".")[2]
        if qualified != f"torch.{name}" or name not in FACTORIES or self._in_device_context(call):
            return False
        if name == "from_numpy" or any(isinstance(argument, ast.Starred) for argument in call.args):
            return name not in DATA_FACTORIES or name == "from_numpy"
        if name in DATA_FACTORIES:
            data = call.args[0] if call.args else keyword(call, "data")
            return self._is_listed(data) or (name.endswith("Tensor") and bool(call.args) and not self.follows(data))
        shape = call.args[0] if call.args else keyword(call, "size")
        counts = name in ("arange", "range", "linspace", "logspace")
        return bool(call.args or call.keywords) and (counts or not _is_scalar_or_empty(shape))

    def is_cpu_scalar(self, call: ast.Call) -> bool:
        """Whether a call makes a tensor without dimensions on the CPU: `torch.tensor(0.0)`, `torch.zeros(())`."""
        qualified = self._file.qualified_name(call.func) or ""
        if any(item.arg in (None, "device", "out") for item in call.keywords) or self._in_device_context(call):
            return False
        first = call.args[0] if call.args else None
        if qualified == "torch.tensor":
            return first is not None and self._file.values.value(first).constant is not None
        empty = isinstance(first, (ast.Tuple, ast.List)) and not first.elts
        return empty and qualified in ("torch.zeros", "torch.ones", "torch.full", "torch.empty")

    def _is_listed(self, data: ast.expr | None) -> bool:
        """Whether data given to `torch.tensor` is a list of numbers, so that the result has a dimension."""
        if isinstance(data, ast.Name):
            data = self._file.values.single_definition(data) or self._default_of(data)
        return isinstance(data, (ast.List, ast.Tuple, ast.ListComp)) and not (
            isinstance(data, (ast.List, ast.Tuple)) and any(self.follows(element) for element in data.elts)
        )

    def _default_of(self, name: ast.Name) -> ast.expr | None:
        """The default of the parameter that a name stands for."""
        function = self._file.enclosing_function(name)
        if function is None:
            return None
        positional = [*function.args.posonlyargs, *function.args.args]
        defaults = function.args.defaults
        for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
            if argument.arg == name.id:
                return default
        return None

    def _in_device_context(self, node: ast.AST) -> bool:
        if "set_default_device" in self._file.text or "set_default_tensor_type" in self._file.text:
            return True
        for outer in self._file.ancestors(node):
            if isinstance(outer, ast.With):
                for item in outer.items:
                    if any("device" in (terminal_name(part) or "") for part in ast.walk(item.context_expr)):
                        return True
        return False

    def made_on_cpu(self, expression: ast.expr | None) -> ast.Call | None:
        """The factory call that an expression's tensor comes from, if it lies on the CPU."""
        return self._made(expression, 0, anywhere=False)

    def made(self, expression: ast.expr | None) -> ast.Call | None:
        """The factory call that an expression's tensor comes from, on whatever device it lies."""
        return self._made(expression, 0, anywhere=True)

    def _made(self, expression: ast.expr | None, depth: int, *, anywhere: bool) -> ast.Call | None:
        if depth > MAX_DEPTH:
            return None
        parts: list[ast.expr | None] = []
        match expression:
            case ast.Call():
                return self._call_made(expression, depth, anywhere=anywhere)
            case ast.Name():
                parts = [self._file.values.single_definition(expression)]
            case ast.BinOp():
                parts = [expression.left, expression.right]
            case ast.UnaryOp():
                parts = [expression.operand]
            case ast.Subscript() if self.keeps_dimension(expression.slice):
                parts = [expression.value]
        return self._first_made(parts, depth, anywhere=anywhere)

    def _first_made(self, parts: Iterable[ast.expr | None], depth: int, *, anywhere: bool) -> ast.Call | None:
        for part in parts:
            found = self._made(part, depth + 1, anywhere=anywhere)
            if found is not None:
                return found
        return None

    def _call_made(self, call: ast.Call, depth: int, *, anywhere: bool) -> ast.Call | None:
        if self.is_cpu_factory(call, anywhere=anywhere):
            return call
        qualified = self._file.qualified_name(call.func)
        parts: list[ast.expr] = []
        if qualified is None and isinstance(call.func, ast.Attribute):
            name = call.func.attr
            stays = anywhere or not self.moves(call)
            if (
                stays
                and not (name in LEAVING or self.is_scalar_reduction(call))
                and (operations().is_tensor_method(name) or name in MOVING)
            ):
                parts = [call.func.value]
        elif qualified is not None and returns_tensor(qualified):
            parts = tensor_arguments(call) if anywhere or keyword(call, "device") is None else []
        return self._first_made(parts, depth, anywhere=anywhere)

    def loads(self, function: FunctionNode, name: str) -> list[ast.Name]:
        """The places of a function that read a name."""
        return [node for node in self._file.names_in(function, name) if isinstance(node.ctx, ast.Load)]

    # --- what lies with the model -------------------------------------------------------------------------------

    def follows(self, expression: ast.expr | None) -> bool:
        """Whether an expression is known to be a tensor that lies where the model or its input lies."""
        if expression is None:
            return False
        known = self._follows.get(expression)
        if known is not None:
            return known
        if expression in self._pending or len(self._pending) > 4 * MAX_DEPTH:
            return False
        self._pending.add(expression)
        try:
            result = self._lies_with_model(expression)
        finally:
            self._pending.discard(expression)
        self._follows[expression] = result
        return result

    def _lies_with_model(self, expression: ast.expr) -> bool:
        result = False
        match expression:
            case ast.Name():
                result = self._name_follows(expression)
            case ast.Attribute():
                result = self._attribute_follows(expression)
            case ast.Call():
                result = self._call_follows(expression)
            case ast.BinOp():
                result = self.follows(expression.left) or self.follows(expression.right)
            case ast.Compare():
                result = any(self.follows(side) for side in (expression.left, *expression.comparators))
            case ast.UnaryOp():
                result = not isinstance(expression.op, ast.Not) and self.follows(expression.operand)
            case ast.Subscript():
                result = self.follows(expression.value)
            case ast.IfExp():
                result = self.follows(expression.body) and self.follows(expression.orelse)
            case ast.List() | ast.Tuple():
                joining = is_joined_list(self._file, expression)
                result = joining and any(self.follows(element) for element in expression.elts)
        return result

    def _name_follows(self, name: ast.Name) -> bool:
        function = self._file.enclosing_function(name)
        if function is None:
            return False
        bindings, may_be_parameter = self._file.values.bindings(function).reaching(name.id, self._file.statement(name))
        plain = [b for b in bindings if b.index is None and not isinstance(b.statement, ast.Expr)]
        if may_be_parameter or not plain:
            argument = next((p for p in parameters(function) if p.arg == name.id), None)
            if argument is None or not self._parameter_follows(function, argument):
                return False
        for binding in plain:
            if binding.value is None or not self.follows(binding.value):
                return False
        return bool(plain) or may_be_parameter

    def _parameter_follows(self, function: FunctionNode, argument: ast.arg) -> bool:
        if argument.annotation is not None:
            names = {terminal_name(node) for node in ast.walk(argument.annotation)}
            return "Tensor" in names or "LongTensor" in names or "FloatTensor" in names
        if argument.arg in ("self", "cls") or argument in (function.args.vararg, function.args.kwarg):
            return False
        in_forward = self._code.runs_in_forward(function)
        if in_forward and function.name != "forward" and not self._given_by_callers(function, argument):
            return False
        return any(self._shows_tensor(name, in_forward=in_forward) for name in self.loads(function, argument.arg))

    def tensor_parameter(self, function: FunctionNode) -> str | None:
        """The first parameter of a function that is a tensor lying with the model."""
        for argument in parameters(function):
            if self._parameter_follows(function, argument):
                bindings = self._file.values.bindings(function).all(argument.arg)
                return argument.arg if not bindings else None
        return None

    def _given_by_callers(self, function: FunctionNode, argument: ast.arg) -> bool:
        """Whether every call of a helper in its class gives this parameter a tensor that lies with the model."""
        position = [p.arg for p in parameters(function)].index(argument.arg) - 1
        given: list[ast.expr | None] = []
        for call in self._file.calls(function.name):
            if own_attribute(call.func) == function.name:
                by_name = keyword(call, argument.arg)
                given.append(by_name or (call.args[position] if 0 <= position < len(call.args) else None))
        return bool(given) and all(self.follows(value) for value in given)

    def _shows_tensor(self, name: ast.Name, *, in_forward: bool) -> bool:
        parent = self._file.parent(name)
        if isinstance(parent, ast.BinOp):
            return in_forward and (self._is_factor_of_matrices(parent) or self._is_input_of_layer(name, parent))
        if isinstance(parent, ast.Attribute):
            of_tensor = in_forward and operations().is_tensor_method(parent.attr)
            return of_tensor or parent.attr in (_TENSOR_TRAITS if in_forward else _TENSOR_TRAITS - _ARRAY_TRAITS)
        if isinstance(parent, ast.Call) and name in parent.args:
            qualified = self._file.qualified_name(parent.func) or ""
            if qualified.startswith("torch.nn.functional.") or terminal_name(parent.func) in LIKE:
                return True
            if in_forward and qualified.startswith("torch.") and name is parent.args[0]:
                return terminal_name(parent.func) not in (*FACTORIES, "full", "is_tensor", "Size", "device")
            return in_forward and isinstance(parent.func, ast.Attribute) and self._submodule(parent.func) is not None
        return False

    def _is_factor_of_matrices(self, operation: ast.BinOp) -> bool:
        """Whether `x @ …` is asked of it, perhaps times numbers: only a tensor with dimensions allows that."""
        outer: ast.AST | None = operation
        while isinstance(outer, ast.BinOp):
            if isinstance(outer.op, ast.MatMult):
                return True
            outer = self._file.parent(outer)
        return False

    def _is_input_of_layer(self, name: ast.Name, operation: ast.BinOp) -> bool:
        """Whether it is the first that `forward` is given, and a layer takes what is computed of it."""
        function = self._file.enclosing_function(name)
        if function is None or [p.arg for p in parameters(function)][1:2] != [name.id] or function.name != "forward":
            return False
        inner: ast.AST = operation
        outer = self._file.parent(inner)
        while isinstance(outer, ast.BinOp):
            inner, outer = outer, self._file.parent(outer)
        return isinstance(outer, ast.Call) and inner in outer.args and self._submodule(outer.func) is not None

    def _attribute_follows(self, attribute: ast.Attribute) -> bool:
        if attribute.attr in VIEWS:
            return self.follows(attribute.value)
        name = own_attribute(attribute)
        if name is not None:
            owner = self._code.module_of(attribute)
            known = self._code.attributes(owner).get(name) if owner is not None else None
            if known is not None and known.content in (Content.PARAMETER, Content.BUFFER):
                return True
            return self.has_parameters(attribute)
        if attribute.attr in ("weight", "bias") and isinstance(attribute.value, ast.Attribute):
            return self.has_parameters(attribute.value)
        return False

    def _submodule(self, function: ast.expr) -> Attribute | None:
        name = own_attribute(function)
        owner = self._code.module_of(function)
        return self._code.attributes(owner).get(name or "") if owner is not None else None

    def has_parameters(self, function: ast.expr) -> bool:
        """Whether an attribute is a layer of torch with parameters, which take part in what it computes."""
        known = self._submodule(function)
        if known is None or known.content not in (Content.LAYER, Content.CHAIN):
            return False
        return any(_WITH_PARAMETERS.search(layer.name) for layer in (known, *known.layers))

    def _call_follows(self, call: ast.Call) -> bool:
        qualified = self._file.qualified_name(call.func)
        device = keyword(call, "device")
        if device is not None:
            return self._is_device_of_model(device)
        if qualified is not None:
            is_operation = returns_tensor(qualified) and terminal_name(call.func) not in FACTORIES
            return (is_operation or qualified.startswith("einops.")) and self._any_follows(call)
        if isinstance(call.func, ast.Attribute):
            return self._method_follows(call, call.func)
        if isinstance(call.func, ast.Name):
            functions = self._file.functions_by_name.get(call.func.id)
            if functions is None:
                # A name of this function that stands for a module, such as the variable of a loop over layers.
                return bool(self._file.values.definitions(call.func)) and self._any_follows(call)
            return len(functions) == 1 and self._any_follows(call) and self._returns_follow(functions[0])
        return False

    def _any_follows(self, call: ast.Call) -> bool:
        return any(self.follows(argument) for argument in tensor_arguments(call))

    def _returns_follow(self, function: FunctionNode) -> bool:
        values = [item.value for item in self._file.returns_of(function) if item.value is not None]
        return bool(values) and all(self.follows(value) for value in values)

    def _method_follows(self, call: ast.Call, function: ast.Attribute) -> bool:
        if is_self(function.value):
            helper = self._own_method(function)
            if helper is not None:
                return self._returns_follow(helper)
            given = self._submodule(function) is not None and self._any_follows(call)
            return given or self.has_parameters(function)
        name = function.attr
        if name in ("to", "type_as") and call.args and self._is_target_of_model(call.args[0]):
            return True
        if name in LEAVING or name in ("cpu", "cuda", "type") or (name == "to" and self.moves(call)):
            return False
        if name.startswith("new_") or operations().is_tensor_method(name) or name == "to":
            return self.follows(function.value)
        return False

    def _own_method(self, function: ast.Attribute) -> FunctionNode | None:
        owner = self._code.module_of(function)
        if owner is None:
            return None
        for statement in owner.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == function.attr:
                return statement
        return None

    def _is_target_of_model(self, target: ast.expr) -> bool:
        return self.follows(target) or self._is_device_of_model(target)

    def _is_device_of_model(self, device: ast.expr) -> bool:
        """`x.device`, or a name that stands for it."""
        if isinstance(device, ast.Name):
            definition = self._file.values.single_definition(device)
            return definition is not None and self._is_device_of_model(definition)
        return isinstance(device, ast.Attribute) and device.attr == "device" and self.follows(device.value)

    # --- small questions ----------------------------------------------------------------------------------------

    def moves(self, call: ast.Call) -> bool:
        """Whether a method call may bring its tensor to another device: `.to(torch.float16)` does not."""
        name = terminal_name(call.func)
        if name not in MOVING:
            return False
        if name not in ("to", "type"):
            return True
        if keyword(call, "device") is not None or any(item.arg is None for item in call.keywords):
            return True
        return not all(self._is_dtype(argument) for argument in call.args)

    def _is_dtype(self, expression: ast.expr) -> bool:
        if isinstance(expression, ast.Attribute) and expression.attr == "dtype":
            return True
        if terminal_name(expression) in ("dtype", "torch_dtype"):
            return True
        qualified = self._file.qualified_name(expression) or ""
        if qualified in ("torch.FloatTensor", "torch.LongTensor", "torch.DoubleTensor", "torch.HalfTensor"):
            return True
        return qualified.startswith("torch.") and qualified.rpartition(".")[2] in DTYPES

    def is_scalar_reduction(self, call: ast.Call) -> bool:
        if terminal_name(call.func) not in _SCALAR_WITHOUT_DIM:
            return False
        given = len(call.args) - (1 if self._file.qualified_name(call.func) is not None else 0)
        return given <= 0 and keyword(call, "dim", "axis") is None

    def keeps_dimension(self, index: ast.expr) -> bool:
        """Whether an index leaves the tensor a dimension, as far as it tells: slices, None and `...` do."""
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        kept = any(isinstance(part, ast.Slice) or _is_ellipsis(part) or _is_none(part) for part in parts)
        return kept and all(
            isinstance(part, (ast.Slice, ast.Constant)) or self._file.values.value(part).is_number for part in parts
        )

    def is_harmless(self, expression: ast.expr) -> bool:
        """Whether an operand is a number, a flag or a tensor that lies on the CPU as well."""
        if isinstance(expression, ast.Constant):
            return True
        if self._file.values.value(expression).kind in (Kind.NUMBER, Kind.OTHER):
            return True
        if isinstance(expression, (ast.Tuple, ast.List)):
            return all(self.is_harmless(element) for element in expression.elts)
        return self.made_on_cpu(expression) is not None


DTYPES = frozenset(
    {
        *("float16", "bfloat16", "float32", "float64", "half", "float", "double", "int8", "int16", "int32", "int64"),
        *("uint8", "bool", "long", "int", "short", "complex64", "complex128", "cfloat", "cdouble"),
    }
)


def _is_scalar_or_empty(shape: ast.expr | None) -> bool:
    """`()`, which makes a tensor without dimensions, and `0` or `[0]`, which makes one that stands for nothing."""
    if isinstance(shape, (ast.Tuple, ast.List)):
        return all(isinstance(size, ast.Constant) and size.value == 0 for size in shape.elts)
    return isinstance(shape, ast.Constant) and shape.value == 0


def _is_none(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is None


def _is_ellipsis(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and expression.value is Ellipsis


_FUNCTIONAL = "torch.nn.functional."
_PLAIN_FUNCTIONS = frozenset(
    {
        *("normalize", "softmax", "log_softmax", "relu", "gelu", "silu", "elu", "leaky_relu", "softplus", "sigmoid"),
        *("tanh", "logsigmoid", "dropout", "linear", "conv1d", "conv2d", "conv3d", "layer_norm", "group_norm", "pad"),
        *("interpolate", "avg_pool2d", "adaptive_avg_pool2d", "one_hot", "scaled_dot_product_attention", "mish"),
        *("batch_norm", "instance_norm", "grid_sample", "embedding", "unfold", "fold", "cosine_similarity", "glu"),
    }
)


def returns_tensor(qualified: str) -> bool:
    """Whether a function of torch gives one tensor."""
    if qualified.startswith(_FUNCTIONAL):
        return qualified.removeprefix(_FUNCTIONAL) in _PLAIN_FUNCTIONS
    # With three arguments, which is how it joins tensors, `where` returns one tensor.
    return qualified == "torch.where" or operations().returns_one_tensor(qualified)


def is_joined_list(file: FileContext, elements: ast.List | ast.Tuple) -> bool:
    """Whether the elements of a list become one tensor: `torch.cat([a, b])`."""
    call = file.parent(elements)
    return isinstance(call, ast.Call) and terminal_name(call.func) in _JOINING_LISTS and call.args[:1] == [elements]


def tensor_arguments(call: ast.Call) -> list[ast.expr]:
    """The arguments of a call that may be tensors."""
    return [*call.args, *(item.value for item in call.keywords if item.arg not in ("dim", "dtype", "axis", "out"))]


def placement(file: FileContext) -> Placement:
    """The places of a file's tensors, worked out once for all rules."""
    return file.once(_placement)


def _placement(file: FileContext) -> Placement:
    return Placement(file, forward_code(file))
