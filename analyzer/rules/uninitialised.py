"""Memory from `torch.empty` that is read before anything was written into it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, own_attribute
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_OPEN = "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"


def _module(setup: str, body: str = "return x", *, after: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    methods = "".join(f"    {line}\n" if line else "\n" for line in after.splitlines())
    return f"{_HEAD}{_OPEN}{lines}\n    def forward(self, x):\n{forward}" + (f"\n{methods}" if methods else "")


# The first line of `setup`, and of `body` after a setup of one line.
_FIRST, _BODY = 8, 11
_EMPTY = ("empty", "Tensor", "FloatTensor", "empty_like", "new_empty")
_INITIALISING = re.compile(r"init|reset|_$|fill|load|copy|normal|uniform|xavier|kaiming|orthogonal", re.I)
_DESCRIBING = frozenset(
    {"shape", "dtype", "device", "ndim", "size", "dim", "numel", "stride", "is_cuda", "requires_grad", "data_ptr"}
)
_INITIAL = "def init(self):\n    nn.init.normal_(self.weight)\n"


class UninitialisedMemory(Rule):
    """A parameter, a buffer or a variable that `torch.empty` makes and that is used as it comes."""

    id = "GP605"
    name = "uninitialised-memory"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare",)
    fix = FixSafety.SAFE
    triggers = ("empty", "Tensor(")
    documentation = Documentation(
        what_it_does=(
            "Finds parameters and buffers made of `torch.empty` (or `torch.Tensor(n)`) that nothing in the file ever "
            "initialises although the class initialises its others, and variables made of it that are read before "
            "they are written, or of which only the places selected by a mask are written."
        ),
        why_is_this_bad=(
            "The tensor holds what the memory held before: mostly zeros on a fresh CPU, other numbers or NaN on a GPU "
            "and in a long-running process. Results change from run to run and from device to device."
        ),
        faulty_example=_module(
            "self.weight = nn.Parameter(torch.empty(width))\nself.bias = nn.Parameter(torch.empty(width))\nself.init()",
            "return x * self.weight + self.bias",
            after=_INITIAL,
        ),
        right_example=_module(
            "self.weight = nn.Parameter(torch.empty(width))\nself.bias = nn.Parameter(torch.zeros(width))\nself.init()",
            "return x * self.weight + self.bias",
            after=_INITIAL,
        ),
        fix_safety=(
            "Zeros take the place of whatever was in memory: of a variable, as the code that adds to it or fills "
            "parts of it expects (safe); of a parameter or buffer they are a guess, which makes a scale zero (unsafe)."
        ),
    )
    valid = (
        _module(
            "self.weight = nn.Parameter(torch.empty(width))\nself.init()",
            "return x * self.weight",
            after=_INITIAL,
        ),
        _module(
            "self.weight = nn.Parameter(torch.empty(width))\nself.bias = nn.Parameter(torch.empty(width))\nself.init()",
            "return x * self.weight + self.bias",
            after="def init(self):\n    self.weight.data.normal_()\n    self.bias.data[:] = 0\n",
        ),
        _module(
            "self.weight = nn.Parameter(torch.empty(width))\nself.bias = nn.Parameter(torch.empty(width))",
            "return x * self.weight + self.bias",
            after="def reset_parameters(self):\n    for p in self.parameters():\n        nn.init.normal_(p)\n",
        ),
        _module("self.weight = nn.Parameter(torch.empty(width))", "return x * self.weight"),
        _module("pass", "out = torch.empty(4)\nout.fill_(0)\nreturn out + x"),
        _module("pass", "out = torch.empty_like(x)\nout[0] = x[0]\nout[1:] = x[1:] * 2\nreturn out"),
        _module("pass", "out = torch.empty(4)\ntorch.mul(x, 2, out=out)\nreturn out"),
        _module("pass", "out = torch.empty_like(x)\nkernel(x, out)\nreturn out"),
        _module("pass", "keep = torch.empty_like(x).bernoulli_(0.5)\nreturn x * keep"),
        _module("pass", "none = torch.empty(0, 4)\nreturn torch.cat([none, x])"),
        _module("pass", "like = torch.empty(4, 4)\nreturn x.expand(like.shape)"),
        _module("pass", "c = torch.empty(4, 4)\nreturn torch.baddbmm(c, x, x, beta=0)"),
        _module("pass", "out = torch.empty_like(x)\nm = x > 0\nout[m] = 1\nout[~m] = 2\nreturn out"),
        _module("pass", "out = torch.empty(4)\nfor i in range(4):\n    out[i] = x[i]\nreturn out"),
        _module("pass", "return torch.empty(4, device='meta')"),
        _HEAD + "def allocate(n):\n    return torch.empty(n)\n",
        _HEAD + "def allocate(n):\n    out = torch.empty(n)\n    return out\n",
    )
    invalid = (
        Invalid(
            _module(
                "self.weight = nn.Parameter(torch.empty(width))\nself.bias = nn.Parameter(torch.empty(width))\n"
                "self.init()",
                "return x * self.weight + self.bias",
                after=_INITIAL,
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "self.weight = nn.Parameter(torch.empty(width))\n"
                "self.register_buffer('scale', torch.empty(width))\nself.init()",
                "return x * self.weight * self.scale",
                after=_INITIAL,
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "self.weight = nn.Parameter(torch.Tensor(width))\nself.gain = nn.Parameter(torch.Tensor(width))\n"
                "nn.init.ones_(self.weight)",
                "return x * self.weight * self.gain",
            ),
            (_FIRST + 1,),
        ),
        Invalid(_module("pass", "total = torch.empty(4)\ntotal = total + x\nreturn total"), (_BODY,)),
        Invalid(_module("pass", "total = torch.empty_like(x)\ntotal += x\nreturn total"), (_BODY,)),
        Invalid(_module("pass", "out = torch.empty_like(x)\nout[x > 0] = 1.0\nreturn out * x"), (_BODY,)),
        Invalid(_module("pass", "out = torch.empty(4, 9)\nout[:, : x.shape[1]] = x\nreturn out.sum(1)"), (_BODY,)),
        Invalid(_module("pass", "total = x.new_empty(4)\ntotal.add_(x)\nreturn total"), (_BODY,)),
        Invalid(_module("pass", "return torch.empty(4) * x"), (_BODY,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call that leaves memory as it is."""
        for call in file.calls(*_EMPTY):
            if not _leaves_memory(file, call):
                continue
            kept = _kept_as(file, call)
            if kept is not None:
                yield from self._attribute(file, call, kept)
            else:
                yield from self._variable(file, call)

    def _attribute(self, file: FileContext, call: ast.Call, name: str) -> Iterator[Hit]:
        owner = forward_code(file).module_of(call)
        if owner is None or not _initialises_others(file, owner, name) or _is_initialised(file, owner, name):
            return
        yield Hit(
            file.statement(call) or call,
            f"`self.{name}` is made of uninitialised memory, and nothing here ever initialises it, though the other "
            "parameters are: its values change from run to run.",
            hypothesis={"attribute": name, "symbol": file.symbol(owner)},
            related=((call, "the memory is left as it is"),),
            fix=_zeroed(file, call, FixSafety.UNSAFE),
        )

    def _variable(self, file: FileContext, call: ast.Call) -> Iterator[Hit]:
        read = _first_read(file, call)
        if read is not None:
            yield Hit(
                file.statement(call) or call,
                f"This memory is uninitialised when line {read.lineno} reads it: the result changes from run to run "
                "and from device to device. Begin with zeros, or write all of it first.",
                hypothesis={"read_line": read.lineno, "symbol": file.symbol(call)},
                related=((read, "read here"),),
                fix=_zeroed(file, call, FixSafety.SAFE),
            )


def _leaves_memory(file: FileContext, call: ast.Call) -> bool:
    """Whether a call makes a tensor of some size without values."""
    name = terminal_name(call.func) or ""
    qualified = file.qualified_name(call.func)
    if is_constant(keyword(call, "device"), value="meta") or any(item.arg is None for item in call.keywords):
        return False
    if name in ("Tensor", "FloatTensor"):
        sizes = call.args
        numbers = bool(sizes) and all(_is_size(file, size) for size in sizes)
        return qualified == f"torch.{name}" and numbers and not _has_zero(sizes)
    if name == "new_empty":
        return qualified is None and not _has_zero(call.args)
    return qualified == f"torch.{name}" and not _has_zero(call.args) and bool(call.args or call.keywords)


def _is_size(file: FileContext, size: ast.expr) -> bool:
    """Whether an argument is a number, and not a list of numbers to make the tensor of."""
    function = file.enclosing_function(size)
    if isinstance(size, ast.Name) and function is not None:
        for parameter in parameters(function):
            if parameter.arg == size.id and parameter.annotation is not None:
                return terminal_name(parameter.annotation) == "int"
    return file.values.value(size).is_number


def _has_zero(sizes: Iterable[ast.expr]) -> bool:
    for size in sizes:
        if isinstance(size, ast.Constant) and size.value == 0:
            return True
        if isinstance(size, (ast.Tuple, ast.List)) and (not size.elts or _has_zero(size.elts)):
            return True
    return False


# --- attributes ------------------------------------------------------------------------------------------------------


def _kept_as(file: FileContext, call: ast.Call) -> str | None:
    """The parameter or buffer that the memory becomes."""
    outer = file.parent(call)
    if isinstance(outer, ast.Call) and terminal_name(outer.func) == "Parameter":
        statement = file.parent(outer)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            return own_attribute(statement.targets[0])
        if isinstance(statement, ast.AnnAssign):
            return own_attribute(statement.target)
        outer = statement
    registers = isinstance(outer, ast.Call) and terminal_name(outer.func) in ("register_buffer", "register_parameter")
    if isinstance(outer, ast.Call) and registers and outer.args and isinstance(outer.args[0], ast.Constant):
        return str(outer.args[0].value)
    return None


def _initialises_others(file: FileContext, owner: ast.ClassDef, name: str) -> bool:
    """Whether the class initialises some other parameter by name: then this one was forgotten."""
    for attribute in file.nodes_in(owner, ast.Attribute):
        if own_attribute(attribute) not in (None, name) and _is_filled(file, attribute, whole=False):
            return True
    return False


def _is_initialised(file: FileContext, owner: ast.ClassDef, name: str) -> bool:
    """Whether anything in the file may write to the attribute: by its name, or to all parameters at once."""
    for attribute in file.nodes(ast.Attribute):
        if attribute.attr == name and _is_filled(file, attribute, whole=True):
            return True
        if attribute.attr in ("parameters", "named_parameters", "_parameters", "buffers", "__dict__"):
            method = forward_code(file).method_of(attribute)
            if method is None or method not in forward_code(file).reached(owner).values():
                return True
    # `getattr(self, name)`, `setattr(...)` or the name as a string somewhere else than where it is registered.
    strings = sum(1 for constant in file.nodes(ast.Constant) if constant.value == name)
    registered = sum(
        1
        for call in file.calls("register_buffer", "register_parameter")
        if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == name
    )
    return strings > registered or bool(file.calls("setattr"))


def _is_filled(file: FileContext, attribute: ast.Attribute, *, whole: bool) -> bool:
    """Whether a mention of a parameter writes it, or hands it to something that may.

    `whole`: any call outside of torch counts, as it may write. Otherwise only a certain initialisation does.
    """
    node: ast.AST = attribute
    parent = file.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
        if not isinstance(parent.ctx, ast.Load):
            return True
        call = file.parent(parent)
        if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and call.func is parent:
            return parent.attr.endswith("_") and not parent.attr.endswith("__")
        node, parent = parent, call
    if isinstance(parent, ast.keyword):
        parent = file.parent(parent)
    if isinstance(parent, ast.Call) and parent.func is not node:
        return _fills_argument(file, parent, certain=not whole)
    if isinstance(parent, (ast.AugAssign, ast.For, ast.comprehension, ast.Tuple, ast.List)):
        return whole and _is_set_up(file, attribute)
    # Set anew: its first making is an assignment as well, and is told apart by standing where the memory is made.
    return whole and isinstance(attribute.ctx, ast.Store) and not _is_making(file, attribute)


def _fills_argument(file: FileContext, call: ast.Call, *, certain: bool) -> bool:
    """Whether a call writes the parameter it is given; `certain`: by its name, not just because nobody knows it."""
    qualified = file.qualified_name(call.func) or ""
    if qualified.startswith("torch.nn.init."):
        return True
    if qualified.startswith("torch."):
        return False
    by_name = _INITIALISING.search(terminal_name(call.func) or "") is not None
    return by_name or (not certain and forward_code(file).method_of(call) is not None and _is_set_up(file, call))


def _is_set_up(file: FileContext, node: ast.AST) -> bool:
    """Whether a node stands in code that does not run when the module is called."""
    owner, method = forward_code(file).module_of(node), forward_code(file).method_of(node)
    return owner is None or method is None or method not in forward_code(file).reached(owner).values()


def _is_making(file: FileContext, attribute: ast.Attribute) -> bool:
    statement = file.statement(attribute)
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return value is not None and any(
        isinstance(part, ast.Call) and terminal_name(part.func) in _EMPTY for part in ast.walk(value)
    )


# --- variables -------------------------------------------------------------------------------------------------------


def _first_read(file: FileContext, call: ast.Call) -> ast.expr | ast.stmt | None:
    """The first use of the memory, if that reads values that nobody has written."""
    parent = file.parent(call)
    if isinstance(parent, ast.BinOp):
        return parent
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or not isinstance(parent.targets[0], ast.Name):
        return None
    function = file.enclosing_function(call)
    if function is None or parent not in function.body:
        return None
    return _read_before_written(file, function, parent, parent.targets[0].id)


def _read_before_written(
    file: FileContext, function: FunctionNode, made: ast.Assign, name: str
) -> ast.expr | ast.stmt | None:
    """The statements of the same block in order: what happens to the variable first."""
    masked: ast.expr | None = None
    for statement in function.body[function.body.index(made) + 1 :]:
        mentions = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
        mentions = [n for n in mentions if not _describes(file, n)]
        if not mentions:
            continue
        mask = _mask_written(file, statement, name)
        if mask is not None:
            if masked is not None:
                return None  # a second selection may well be the rest
            masked = mask
            continue
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            return statement if statement.target.id == name else None
        if masked is not None:
            return masked if all(_reads(file, n) or isinstance(statement, ast.Return) for n in mentions) else None
        return (
            statement
            if isinstance(statement, (ast.Assign, ast.Expr, ast.Return))
            and all(_reads(file, n) for n in mentions if isinstance(n.ctx, ast.Load))
            and any(isinstance(n.ctx, ast.Load) for n in mentions)
            else None
        )
    return None


def _describes(file: FileContext, name: ast.Name) -> bool:
    """`out.shape`, `torch.zeros_like(out)`: nothing of the values is used."""
    parent = file.parent(name)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _DESCRIBING
    return isinstance(parent, ast.Call) and (terminal_name(parent.func) or "").endswith("_like")


def _mask_written(file: FileContext, statement: ast.stmt, name: str) -> ast.expr | None:
    """The condition of `out[condition] = …`, when the places written are selected by values."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name) or target.value.id != name:
        return None
    index = target.slice
    definition = file.values.single_definition(index)
    compares = isinstance(index, ast.Compare) or isinstance(definition, ast.Compare)
    named = isinstance(index, ast.Name) and _MASK_NAME.search(index.id) is not None
    return index if compares or named or _is_part(index) else None


_MASK_NAME = re.compile(r"(^|_)(mask|keep|valid|visible|selected)$")


def _is_part(index: ast.expr) -> bool:
    """`[:, :n]`: a slice that ends somewhere."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(part, ast.Slice) and (part.lower is not None or part.upper is not None) for part in parts)


def _reads(file: FileContext, name: ast.Name) -> bool:
    """Whether a mention of the variable takes its values into a computation."""
    parent = file.parent(name)
    if isinstance(parent, (ast.BinOp, ast.Compare, ast.UnaryOp)):
        return True
    if isinstance(parent, ast.Attribute):
        call = file.parent(parent)
        if not (isinstance(call, ast.Call) and call.func is parent):
            return False
        return parent.attr in _READING_METHODS
    return False


# In-place arithmetic reads what it writes; `zero_`, `fill_`, `copy_` and the random fills do not.
_READING_METHODS = frozenset(
    {
        *("add_", "sub_", "mul_", "div_", "pow_", "clamp_", "sum", "mean", "max", "min", "add", "mul", "matmul", "exp"),
        *("log", "sqrt", "sigmoid", "softmax", "norm", "index_add_", "scatter_add_", "masked_fill", "masked_fill_"),
    }
)


def _zeroed(file: FileContext, call: ast.Call, safety: FixSafety) -> Rewrite | None:
    """The same call under the name that gives zeros."""
    function = call.func
    name = terminal_name(function) or ""
    zeros = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}.get(name)
    if zeros is None or not isinstance(function, ast.Attribute):
        return None
    text = f"{file.source(function.value)}.{zeros}"
    return Rewrite(safety, (Replacement(function, text),))
