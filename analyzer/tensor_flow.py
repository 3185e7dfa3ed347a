"""Whether a function takes tensors, and whether what it returns may carry a gradient of them.

Follows values through assignments, loops and calls of one function, without its helpers, and in doubt says that a
gradient may flow: what says "no" here is never run. This module must not know other files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from analyzer.annotations import annotation_names, is_tensor_name
from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.syntax import FunctionNode, parameters, terminal_name

# Nobody chains more assignments backwards through loops than this.
_MOST_ROUNDS: Final = 4
_MOST_HELPERS: Final = 16

_PLAIN: Final = frozenset(
    {"int", "float", "bool", "str", "bytes", "complex", "None", "dtype", "device", "Path", "PathLike", "Generator"}
)
_WRAPPERS: Final = frozenset(
    {"Optional", "Union", "List", "Sequence", "Tuple", "list", "tuple", "Iterable", "Literal", "Final", "Annotated"}
)
_MODULES: Final = frozenset({"Module", "Sequential", "ModuleList", "Optimizer"})
_CALLABLES: Final = frozenset({"Callable", "type", "Type"})
_ARRAYS: Final = frozenset({"ndarray", "NDArray", "ArrayLike", "Image", "DataFrame"})
_WITHOUT_GRADIENT_TENSORS: Final = frozenset(
    {"IntTensor", "LongTensor", "BoolTensor", "ByteTensor", "ShortTensor", "CharTensor", "Int", "Bool", "Integer"}
)
# These make a tensor out of numbers or of another's shape: no value that they are given is in the result.
CREATORS: Final = frozenset(
    {
        *(
            "arange",
            "range",
            "linspace",
            "logspace",
            "eye",
            "zeros",
            "ones",
            "full",
            "empty",
            "rand",
            "randn",
            "randint",
        ),
        *("randperm", "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "tril_indices", "triu_indices", "Generator"),
        *("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window", "device", "Size"),
        *("tensor", "as_tensor", "from_numpy", "load", "save", "asarray", "frombuffer", "manual_seed"),
    }
)
# Classes of `torch.nn` that hold the value that they are given.
_KEEPERS: Final = frozenset({"Parameter", "Buffer", "ParameterList", "ParameterDict"})
# Methods and functions whose result is an index, a truth value, a number or a shape.
_WITHOUT_GRADIENT: Final = frozenset(
    {
        *(
            "argmax",
            "argmin",
            "argsort",
            "argwhere",
            "nonzero",
            "bincount",
            "searchsorted",
            "bucketize",
            "count_nonzero",
        ),
        *("eq", "ne", "lt", "le", "gt", "ge", "equal", "allclose", "isclose", "isnan", "isinf", "isfinite", "isin"),
        *("logical_and", "logical_or", "logical_not", "logical_xor", "any", "all", "is_tensor", "is_floating_point"),
        *("is_complex", "int", "long", "bool", "short", "byte", "char", "item", "tolist", "numpy", "size", "dim"),
        *(
            "numel",
            "nelement",
            "ndimension",
            "stride",
            "data_ptr",
            "get_device",
            "histc",
            "multinomial",
            "element_size",
        ),
        *("is_contiguous", "type_name", "named_parameters_count", "result_type", "broadcast_shapes", "one_hot"),
        *("argrelextrema", "unique_consecutive", "isneginf", "isposinf", "isreal", "signbit", "floor_divide"),
        *("startswith", "endswith", "format", "split_sizes", "is_available", "get_default_dtype", "finfo", "iinfo"),
    }
)
_SHAPES: Final = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad", "is_leaf", "layout", "grad_fn", "itemsize"),
        *("__name__", "__class__", "indices", "is_sparse", "names", "is_complex", "is_floating_point", "nbytes"),
    }
)
_WHOLE_NUMBERS: Final = frozenset(
    {"torch.int", "torch.long", "torch.short", "torch.bool", "torch.uint8"}
    | {f"torch.int{bits}" for bits in (8, 16, 32, 64)}
)
_NUMBERS_OF: Final = frozenset(
    {
        *("len", "int", "bool", "str", "isinstance", "hasattr", "range", "type", "repr", "id", "callable", "print"),
        *("any", "all", "float", "round_half", "issubclass", "hash", "ord", "open"),
    }
)
# The second result of these is an index.
_WITH_INDEX: Final = frozenset({"max", "min", "topk", "sort", "median", "mode", "kthvalue", "cummax", "cummin"})
_WRITES: Final = frozenset({"append", "extend", "insert", "update", "setdefault", "add", "put", "copy_"})
_ARRAY_LIBRARIES: Final = frozenset({"numpy", "PIL", "cv2", "pandas", "scipy", "skimage", "matplotlib"})
_TENSOR_LIBRARIES: Final = ("torch.", "einops.", "opt_einsum.")
# What only tensors (not arrays, not lists) are asked for.
_TENSOR_ONLY: Final = frozenset(
    {
        *("unsqueeze", "permute", "contiguous", "masked_fill", "softmax", "log_softmax", "sigmoid", "detach", "clamp"),
        *("requires_grad", "requires_grad_", "is_cuda", "expand", "expand_as", "type_as", "new_zeros", "new_ones"),
        *("new_tensor", "matmul", "bmm", "chunk", "dim", "numel", "relu", "tanh", "exp", "sqrt", "pow", "norm"),
        *("unfold", "gather", "scatter", "scatter_add", "index_select", "narrow", "unbind", "flip", "log", "abs"),
        *("repeat_interleave", "cuda", "device", "view", "size", "masked_select", "mul", "sub", "neg", "rsqrt"),
        *("flatten", "baddbmm", "logsumexp", "square", "cos", "sin", "grad_fn", "view_as", "is_complex", "softplus"),
    }
)
_ALSO_OF_ARRAYS: Final = frozenset({"shape", "ndim", "dtype"})
_MODULE_ONLY: Final = frozenset(
    {
        *(
            "named_modules",
            "modules",
            "named_children",
            "children",
            "state_dict",
            "load_state_dict",
            "named_parameters",
        ),
        *("parameters", "zero_grad", "train", "eval", "register_forward_hook", "param_groups", "add_module"),
    }
)


@dataclass(frozen=True, slots=True)
class Flow:
    """`takes`: some parameter is a tensor for sure. `carries`: the result may hold a gradient of a parameter.

    `through`: what else is given a parameter, by dotted name; `arrays`: values go through numpy, PIL or the like.
    """

    takes: bool
    carries: bool
    through: tuple[str, ...]
    arrays: bool


def flow_of(file: FileContext, function: FunctionNode, *, method: bool = False) -> Flow:
    """How values go through a function. Of a `method`, everything that hangs on `self` may carry a gradient."""
    try:
        return _Function(file, function, method=method).flow()
    except RecursionError:  # an expression of a thousand levels
        return Flow(takes=True, carries=True, through=(), arrays=False)


def takes_arrays(function: FunctionNode) -> bool:
    """Whether some parameter is annotated as an array or a picture, and none as a tensor."""
    names = [annotation_names(p.annotation) for p in parameters(function) if p.annotation is not None]
    return any(found & _ARRAYS for found in names) and not any(is_tensor_name(n) for found in names for n in found)


class _Function:
    def __init__(self, file: FileContext, function: FunctionNode, *, method: bool) -> None:
        self._file = file
        self._function = function
        self._sure: set[str] = set()
        self._open: set[str] = set()
        self._arrays = False
        self._carriers: set[str] = set()
        self._sort_parameters(method=method)
        self._helpers: dict[str, None] = {}

    def _sort_parameters(self, *, method: bool) -> None:
        documented = _documented_tensors(self._function)
        arguments = self._function.args
        named = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip((a.arg for a in reversed(named)), reversed(arguments.defaults), strict=False))
        defaults |= {
            a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None
        }
        for number, parameter in enumerate(parameters(self._function)):
            name = parameter.arg
            if number == 0 and name in ("self", "cls", "ctx"):
                if method:
                    self._carriers.add(name)
                continue
            if parameter.annotation is None:
                default = defaults.get(name)
                if name in documented:
                    self._sure.add(name)
                elif not (isinstance(default, ast.Constant) and default.value is not None):
                    self._open.add(name)
                continue
            names = annotation_names(parameter.annotation)
            if any(map(is_tensor_name, names)):
                if names & _WITHOUT_GRADIENT_TENSORS and not names & {"Float", "FloatTensor", "DoubleTensor"}:
                    continue
                self._sure.add(name)
            elif names & _ARRAYS:
                self._arrays = True
            elif names - _WRAPPERS <= _PLAIN or names & _MODULES or (names & _CALLABLES and not names & {"dict"}):
                continue
            else:
                self._open.add(name)

    def flow(self) -> Flow:
        function, file = self._function, self._file
        if self._open:
            modules = {
                node.value.id
                for node in file.nodes_in(function, ast.Attribute)
                if node.attr in _MODULE_ONLY and isinstance(node.value, ast.Name)
            }
            self._open -= modules
        takes = bool(self._sure) or (bool(self._open) and self._uses_tensors())
        self._carriers |= self._sure | self._open
        self._spread()
        returned = [node.value for node in file.returns_of(function) if node.value is not None]
        carries = any(self._carries(value) for value in returned)
        if not takes:
            self._note_helpers()
        return Flow(takes, carries, tuple(self._helpers)[:_MOST_HELPERS], self._arrays)

    # --- does it take tensors ---------------------------------------------------------------------------------

    def _uses_tensors(self) -> bool:
        file, function, names = self._file, self._function, self._open
        calls_torch = False
        for call in file.nodes_in(function, ast.Call):
            qualified = file.qualified_name(call.func)
            if qualified is None or not qualified.startswith(_TENSOR_LIBRARIES):
                continue
            calls_torch = True
            if _computes(qualified) and self._mentions(call.args[:3], names):
                return True
        asked = {
            attribute.attr
            for attribute in file.nodes_in(function, ast.Attribute)
            if isinstance(attribute.value, ast.Name) and attribute.value.id in names
        }
        if asked & _TENSOR_ONLY or (calls_torch and asked & _ALSO_OF_ARRAYS):
            return True
        return calls_torch and self._computed_with(names)

    def _computed_with(self, names: set[str]) -> bool:
        """Whether torch is called on something computed from the parameters."""
        carriers = set(names)
        file = self._file
        for assignment in sorted(file.nodes_in(self._function, ast.Assign), key=lambda node: node.lineno):
            if self._mentions([assignment.value], carriers):
                carriers |= {n.id for target in assignment.targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        carriers -= names
        if not carriers:
            return False
        return any(
            self._mentions(call.args[:3], carriers)
            for call in file.nodes_in(self._function, ast.Call)
            if (qualified := file.qualified_name(call.func)) is not None
            and qualified.startswith(_TENSOR_LIBRARIES)
            and _computes(qualified)
        )

    @staticmethod
    def _mentions(expressions: Iterable[ast.expr], names: set[str]) -> bool:
        return any(isinstance(node, ast.Name) and node.id in names for value in expressions for node in ast.walk(value))

    def _note_helpers(self) -> None:
        """What is called with a parameter and may be a function of this repository."""
        file = self._file
        for call in file.nodes_in(self._function, ast.Call):
            callee = call.func.func if isinstance(call.func, ast.Call) else call.func
            qualified = file.qualified_name(callee)
            if qualified is None:
                qualified = callee.id if isinstance(callee, ast.Name) else None
            if qualified is None or qualified.startswith(_TENSOR_LIBRARIES) or qualified in _NUMBERS_OF:
                continue
            if any(isinstance(a, (ast.Name, ast.Starred)) and self._carries(a) for a in call.args):
                self._helpers.setdefault(qualified)

    # --- where values go --------------------------------------------------------------------------------------

    def _spread(self) -> None:
        """Follows values until nothing more is reached.

        A parameter that is overwritten with something without a gradient still counts: that only keeps something
        eligible which the probe then finds to be without one.
        """
        file, function = self._file, self._function
        bindings = list(self._bindings())
        calls = [
            statement.value for statement in file.nodes_in(function, ast.Expr) if isinstance(statement.value, ast.Call)
        ]
        nested = [node for node in file.nodes_in(function, ast.FunctionDef) if node is not function]
        for _ in range(_MOST_ROUNDS):
            before = len(self._carriers)
            for targets, value in bindings:
                self._assign(targets, value)
            for call in calls:
                self._write(call)
            self._carriers |= {
                inner.name for inner in nested if any(n.id in self._carriers for n in file.nodes_in(inner, ast.Name))
            }
            if len(self._carriers) == before:
                break

    def _bindings(self) -> Iterator[tuple[list[ast.expr], ast.expr]]:
        """Every place of the function where a value is bound: what is bound, and the value."""
        file, function = self._file, self._function
        for assign in file.nodes_in(function, ast.Assign):
            yield assign.targets, assign.value
        for changed in file.nodes_in(function, ast.AugAssign):
            yield [changed.target], changed.value
        for annotated in file.nodes_in(function, ast.AnnAssign):
            if annotated.value is not None:
                yield [annotated.target], annotated.value
        for walrus in file.nodes_in(function, ast.NamedExpr):
            yield [walrus.target], walrus.value
        for loop in file.nodes_in(function, ast.For):
            yield [loop.target], loop.iter
        for part in file.nodes_in(function, ast.comprehension):
            yield [part.target], part.iter
        for item in file.nodes_in(function, ast.withitem):
            if item.optional_vars is not None:
                yield [item.optional_vars], item.context_expr

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        if not self._carries(value):
            return
        for target in targets:
            if isinstance(target, ast.Tuple) and len(target.elts) == 2 and _gives_index(value):
                self._carriers |= _names(target.elts[0])
            else:
                self._carriers |= _names(target)

    def _write(self, call: ast.Call) -> None:
        """`out.append(x)`, `out.copy_(x)`, `torch.mul(a, b, out=out)`: the receiver holds what it was given."""
        if not self._any_carries(call):
            return
        if isinstance(call.func, ast.Attribute) and (call.func.attr in _WRITES or call.func.attr.endswith("_")):
            self._carriers |= _names(call.func.value)
        for keyword in call.keywords:
            if keyword.arg == "out":
                self._carriers |= _names(keyword.value)

    def _carries(self, value: ast.expr) -> bool:
        """Whether a value may hold a gradient; what has one in a part of it has one."""
        if isinstance(value, ast.Name):
            return value.id in self._carriers
        if isinstance(value, ast.Call):
            return self._call_carries(value)
        if isinstance(value, ast.Attribute):
            return value.attr not in _SHAPES and self._carries(value.value)
        if _takes_index(value):
            return False
        return any(self._carries(part) for part in _parts(value))

    def _call_carries(self, call: ast.Call) -> bool:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None:
            return self._passes(qualified, call) and self._any_carries(call)
        if isinstance(call.func, ast.Name):
            name = call.func.id
            return name not in _NUMBERS_OF and (name in self._carriers or self._any_carries(call))
        if isinstance(call.func, ast.Attribute):
            name = call.func.attr
            if name in CREATORS or _has_no_gradient(name) or self._is_whole(name, call):
                self._arrays = self._arrays or name == "numpy"
                return False
            return self._carries(call.func.value) or self._any_carries(call)
        return self._carries(call.func) or self._any_carries(call)

    def _passes(self, qualified: str, call: ast.Call) -> bool:
        """Whether an imported function may pass a gradient on."""
        if qualified.startswith(_TENSOR_LIBRARIES):
            return _computes(qualified) and not _has_no_gradient(qualified.rpartition(".")[2])
        if qualified.partition(".")[0] in _ARRAY_LIBRARIES:
            self._arrays = self._arrays or self._any_carries(call)
            return False
        return not qualified.startswith("math.")

    def _is_whole(self, name: str, call: ast.Call) -> bool:
        if name not in ("to", "type", "astype"):
            return False
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return any(self._file.qualified_name(argument) in _WHOLE_NUMBERS for argument in given)

    def _any_carries(self, call: ast.Call) -> bool:
        return any(self._carries(argument) for argument in call.args) or any(
            self._carries(keyword.value) for keyword in call.keywords
        )


def _parts(value: ast.expr) -> Iterable[ast.expr]:
    """The parts of an expression from which a gradient may come into it: none of a comparison, both of a sum."""
    if isinstance(value, ast.BinOp):
        bits = isinstance(value.op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift))
        return () if bits else (value.left, value.right)
    if isinstance(value, ast.UnaryOp):
        return () if isinstance(value.op, (ast.Not, ast.Invert)) else (value.operand,)
    if isinstance(value, ast.IfExp):
        return value.body, value.orelse
    field = _PARTS.get(type(value))
    if field is None:
        return ()
    part = getattr(value, field)
    return part if isinstance(part, list) else (part,)


_PARTS: Final[dict[type[ast.expr], str]] = {
    ast.Subscript: "value",
    ast.Tuple: "elts",
    ast.List: "elts",
    ast.Set: "elts",
    ast.BoolOp: "values",
    ast.Dict: "values",
    ast.ListComp: "elt",
    ast.SetComp: "elt",
    ast.GeneratorExp: "elt",
    ast.DictComp: "value",
    ast.Starred: "value",
    ast.NamedExpr: "value",
    ast.Await: "value",
    ast.Lambda: "body",
}


def _gives_index(value: ast.expr) -> bool:
    """Whether a call gives values and their places: `x.max(1)`, `torch.topk(x, 3)`."""
    return isinstance(value, ast.Call) and terminal_name(value.func) in _WITH_INDEX


@cache
def _computes(qualified: str) -> bool:
    """Whether a function of torch makes its result of values that it is given, and does not build a layer."""
    home, _, last = qualified.rpartition(".")
    return last not in CREATORS and not (home.startswith("torch.nn") and last[:1].isupper() and last not in _KEEPERS)


@cache
def _has_no_gradient(name: str) -> bool:
    return name in _WITHOUT_GRADIENT or operations().never_differentiable(f"torch.{name}")


def _takes_index(value: ast.expr) -> bool:
    """`x.max(1)[1]`."""
    if not isinstance(value, ast.Subscript) or not _gives_index(value.value):
        return False
    return isinstance(value.slice, ast.Constant) and value.slice.value == 1


def _names(target: ast.expr) -> set[str]:
    """The variables that a target binds or changes: `a`, `(a, b)`, `a[i]`, `a.b`."""
    while isinstance(target, (ast.Attribute, ast.Subscript, ast.Starred)):
        target = target.value
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*(_names(item) for item in target.elts))
    return set()


_DOCUMENTED: Final = re.compile(
    r"^\s*(?::param\s+|:type\s+)?\*{0,2}`*(\w+)`*\s*[(:][^\n]{0,80}\b[tT]ensors?\b", re.MULTILINE
)


def _documented_tensors(function: FunctionNode) -> frozenset[str]:
    """Parameters that the docstring calls tensors: `x (torch.Tensor): …`, `:param x: tensor of shape …`."""
    text = ast.get_docstring(function, clean=False)
    if text is None or "ensor" not in text:
        return frozenset()
    return frozenset(match.group(1) for match in _DOCUMENTED.finditer(text[:20_000]))
