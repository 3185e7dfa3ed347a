"""Code that depends on how a result lies in memory: `view` (GP512) and `as_strided` (GP514).

Which operations turn or thin a tensor without copying is all that is known here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name

_TURNING_METHODS = frozenset({"transpose", "permute", "t", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint"})
_TURNING_ATTRIBUTES = frozenset({"T", "mT", "H", "mH"})
_THINNING_METHODS = frozenset(
    {"expand", "expand_as", "broadcast_to", "narrow", "select", "diagonal", "unfold", "chunk", "split", "unbind"}
)
_DIVIDING = frozenset({"chunk", "split", "unbind"})
# One result element for each operand element: the operations whose eager kernels happen to keep the layout.
_ELEMENTWISE = frozenset(
    {
        *("abs", "add", "addcdiv", "addcmul", "atan2", "ceil", "clamp", "clip", "cos", "div", "divide", "eq", "erf"),
        *("exp", "expm1", "floor", "floor_divide", "fmod", "gelu", "ge", "gt", "le", "leaky_relu", "lerp", "log"),
        *("log1p", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum", "minimum", "mul"),
        *("multiply", "nan_to_num", "ne", "neg", "pow", "reciprocal", "relu", "remainder", "round", "rsqrt", "sigmoid"),
        *("sign", "silu", "sin", "softplus", "sqrt", "square", "sub", "subtract", "tanh", "true_divide", "trunc"),
        *("where", "cumsum", "cumprod", "softmax", "log_softmax", "dropout", "sort", "bucketize", "searchsorted"),
    }
)
# Same elements, same layout: looked through.
_TRANSPARENT = frozenset({"to", "float", "half", "double", "bfloat16", "long", "int", "detach", "requires_grad_"})


class ViewOfTurnedResult(Rule):
    id = "GP512"
    name = "view-of-unsettled-layout"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = (".view(",)
    documentation = Documentation(
        what_it_does=(
            "Finds `view` on a tensor that is turned back (`transpose`, `permute`, `.T`, `.mT`) after an operation on "
            "a turned tensor: `f(x.mT).mT.view(-1)`. It works only if the operation gives its result the layout of "
            "its operand."
        ),
        why_is_this_bad=(
            "No operation promises that. Eager kernels mostly keep the layout, compiled ones need not: on torch 2.13 "
            "`torch.floor_divide` of a transposed tensor is contiguous when compiled, and the `view` after it raises. "
            "`reshape` copies only where it must."
        ),
        faulty_example=(
            "import torch\n\n\ndef cells(points, size):\n    index = torch.floor_divide(points.mT, size)\n"
            "    return index.mT.view(-1)\n"
        ),
        right_example=(
            "import torch\n\n\ndef cells(points, size):\n    index = torch.floor_divide(points.mT, size)\n"
            "    return index.mT.reshape(-1)\n"
        ),
        fix_safety="Safe: `reshape` gives the same elements, as a view wherever `view` would have worked.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.relu(x.mT).mT.reshape(-1)\n",
        "import torch\ndef f(x):\n    return torch.relu(x).view(-1)\n",
        "import torch\ndef f(x):\n    y = torch.relu(x.transpose(1, 2))\n"
        "    return y.transpose(1, 2).contiguous().view(-1)\n",
        "import torch\ndef f(x):\n    y = torch.relu(x.transpose(1, 2)).contiguous()\n    return y.view(-1)\n",
        # a residual sum, 12 times on real code: sums and products follow their operands, compiled as well
        "import torch\ndef f(x, r):\n    y = r + x.transpose(1, 2)\n    return y.transpose(1, 2).view(2, -1)\n",
        # these keep channels-last on purpose, compiled as well
        "import torch.nn.functional as F\ndef f(x):\n    y = F.interpolate(x.permute(0, 3, 1, 2), size=(4, 4))\n"
        "    return y.permute(0, 2, 3, 1).view(1, -1, 3)\n",
        # turned once: whether its source allows it can't be seen here, and eager says so at once if not
        "import torch\ndef f(x):\n    return x.transpose(1, 2).view(-1)\n",
        "import torch\ndef f(x):\n    return x.mT.contiguous().mT.view(-1)\n",
        # a view of a type, not of a shape
        "import torch\ndef f(x):\n    return torch.relu(x.mT).mT.view(torch.int32)\n",
        "import torch\ndef f(x):\n    return x.transpose(0, 1).transpose(0, 1).view(-1)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, c):\n    y = torch.floor_divide(x.mT, c)\n    return y.mT.view(-1)\n", (4,)),
        Invalid(
            "import torch\ndef f(x):\n    return torch.relu(x.transpose(1, 2)).transpose(1, 2).view(2, -1)\n", (3,)
        ),
        Invalid(
            "import torch\ndef f(x, b):\n    y = x.permute(0, 2, 1) // b\n    y = y.permute(0, 2, 1)\n"
            "    return y.view(y.shape[0], -1)\n",
            (5,),
        ),
        Invalid("import torch\ndef f(x):\n    y = x.T.exp()\n    return y.T.view(-1)\n", (4,)),
        Invalid(
            "import torch\ndef f(x, m):\n    t = x.mT\n    y = torch.where(m, t, 0)\n    return y.mT.view(-1)\n", (5,)
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every `view` to a shape of a result that was turned back."""
        for call in file.calls("view"):
            function = call.func
            if not isinstance(function, ast.Attribute) or file.qualified_name(function) is not None or not call.args:
                continue
            if _is_dtype(file, call.args[0]):
                continue
            turned = _resolved(file, function.value)
            source = _turned(turned)
            made = _resolved(file, source) if source is not None else None
            if made is None:
                continue
            operand = _turned_operand(file, made)
            if operand is None:
                continue
            yield Hit(
                call,
                "`view` needs a layout that nothing promises: the operation before the tensor was turned back may "
                "give its result any layout, and compiled it does. Use `reshape`.",
                hypothesis={"operand": file.source(function.value)},
                related=((operand, "turned here"), (made, "a result whose layout is open")),
                fix=_reshape(file, function),
            )


def _reshape(file: FileContext, function: ast.Attribute) -> Rewrite:
    text = f"{file.operand_source(function.value)}.reshape"
    return Rewrite(FixSafety.SAFE, (Replacement(function, text),))


class StridesOfAView(Rule):
    id = "GP514"
    name = "as-strided-on-view"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("as_strided",)
    documentation = Documentation(
        what_it_does=(
            "Finds `as_strided` on a tensor that is a slice, an expansion, a transposition or another thinned-out "
            "view. `as_strided` on a tensor that was just made or made contiguous is fine."
        ),
        why_is_this_bad=(
            "`as_strided` counts in the memory of the tensor underneath, not in the elements of the view: what it "
            "reads depends on how that memory happens to lie. Compiled, the memory may never be there: on torch 2.13 "
            "the result holds garbage."
        ),
        faulty_example=(
            "import torch\n\n\ndef spread(sheet, rows, step):\n    pick = sheet[:, ::step]\n"
            "    return pick.as_strided((rows, step), (sheet.shape[1], 1))\n"
        ),
        right_example="import torch\n\n\ndef spread(sheet, rows, step):\n    return sheet[:, :step]\n",
        fix_safety="No automatic fix: the elements that are meant can be named by slicing, `unfold` or `gather`.",
    )
    valid = (
        "import torch\ndef f(x):\n    y = x.contiguous()\n    return y.as_strided((2, 2), (1, 1))\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x):\n    y = F.pad(x, (1, 1))\n"
        "    return y.as_strided((2, 2), (1, 1))\n",
        "import torch\ndef f(x):\n    return x.as_strided((2, 2), (1, 1))\n",
        "import torch\ndef f(x):\n    return x[:, ::2].contiguous().as_strided((2, 2), (1, 1))\n",
        "import torch\ndef f(x):\n    return torch.as_strided(x.reshape(-1), (2, 2), (1, 1))\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.lib.stride_tricks.as_strided(x[::2], (2,), (8,))\n",
        "import torch\ndef f(x):\n    y = x[x > 0]\n    return y.as_strided((2, 2), (1, 1))\n",
        # the strides are computed from the view's own
        "import torch\ndef f(x):\n    y = x[:, ::2]\n    s = y.stride()\n    return y.as_strided(y.shape, s)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    y = x[:, ::2]\n    return y.as_strided((2, 2), (4, 1))\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.as_strided(x.expand(4, -1), (2, 2), (1, 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.t().as_strided((2, 2), (1, 1))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    y = x.narrow(0, 1, 2)\n    return y.as_strided((2, 2), (1, 1))\n", (4,)),
        Invalid(
            "import torch\ndef f(x):\n    a, b = x.chunk(2, dim=1)\n    return b.as_strided((2, 2), (1, 1))\n", (4,)
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every `as_strided` on a view that can be seen to be one."""
        for call in file.calls("as_strided"):
            qualified = file.qualified_name(call.func)
            if qualified == "torch.as_strided" and call.args:
                operand, rest = call.args[0], call.args[1:]
            elif qualified is None and isinstance(call.func, ast.Attribute):
                operand, rest = call.func.value, call.args
            else:
                continue
            view = _view(file, operand)
            if view is None or _reads_strides(file, [*rest, *(keyword.value for keyword in call.keywords)]):
                continue
            yield Hit(
                call,
                f"`as_strided` counts in the memory under `{file.source(operand)}`, which is a view: what it reads "
                "depends on the layout of the tensor behind it, and compiled code may not keep that tensor.",
                hypothesis={"operand": file.source(operand)},
                related=((view, "a view, made here"),),
            )


def _view(file: FileContext, operand: ast.expr) -> ast.expr | None:
    """The slice or view that an expression is, or was last assigned."""
    definition = _resolved(file, operand)
    if isinstance(definition, ast.Subscript) and _is_basic_slice(definition.slice):
        return definition
    if _turned(definition) is not None:
        return definition
    if isinstance(definition, ast.Call) and terminal_name(definition.func) in _THINNING_METHODS:
        qualified = file.qualified_name(definition.func)
        if qualified is None or qualified == f"torch.{terminal_name(definition.func)}":
            return definition
    return _part(file, operand) if isinstance(operand, ast.Name) else None


def _part(file: FileContext, name: ast.Name) -> ast.expr | None:
    """`x.chunk(2)` of `a, b = x.chunk(2)`."""
    for binding in file.values.definitions(name):
        source = binding.value
        if binding.element is None or not isinstance(source, ast.Call):
            continue
        if terminal_name(source.func) in _DIVIDING:
            return source
    return None


def _is_basic_slice(index: ast.expr) -> bool:
    """Whether an index has a slice and nothing that copies (a mask, a list)."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    plain = (ast.Slice, ast.Constant, ast.UnaryOp)
    thins = any(isinstance(p, ast.Slice) and (p.step or p.lower or p.upper) is not None for p in parts)
    return thins and all(isinstance(part, plain) for part in parts)


def _reads_strides(file: FileContext, arguments: list[ast.expr]) -> bool:
    """Whether the strides are computed from those of a tensor: then they follow the layout."""
    for argument in arguments:
        resolved = _resolved(file, argument)
        for node in (argument, resolved):
            if any(isinstance(n, ast.Call) and terminal_name(n.func) == "stride" for n in ast.walk(node)):
                return True
    return False


def _resolved(file: FileContext, expression: ast.expr) -> ast.expr:
    """What a name was assigned, through conversions that keep the layout."""
    for _ in range(6):
        following: ast.expr | None = None
        if isinstance(expression, ast.Name):
            following = file.values.single_definition(expression)
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            transparent = expression.func.attr in _TRANSPARENT and file.qualified_name(expression.func) is None
            following = expression.func.value if transparent else None
        if following is None:
            return expression
        expression = following
    return expression


def _turned(expression: ast.expr) -> ast.expr | None:
    """`x` of `x.mT`, `x.transpose(1, 2)` and `torch.permute(x, …)`."""
    if isinstance(expression, ast.Attribute) and expression.attr in _TURNING_ATTRIBUTES:
        return expression.value
    if isinstance(expression, ast.Call) and terminal_name(expression.func) in _TURNING_METHODS:
        function = expression.func
        if isinstance(function, ast.Attribute):
            is_torch = isinstance(function.value, ast.Name) and function.value.id == "torch"
            return (expression.args[0] if expression.args else None) if is_torch else function.value
    return None


def _turned_operand(file: FileContext, made: ast.expr) -> ast.expr | None:
    """The turned operand of an operation that makes a new tensor element by element."""
    operands: list[ast.expr] = []
    if isinstance(made, ast.BinOp) and not isinstance(made.op, (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult)):
        operands = [made.left, made.right]
    elif isinstance(made, ast.Call) and terminal_name(made.func) in _ELEMENTWISE:
        if (file.qualified_name(made.func) or "torch.").partition(".")[0] != "torch":
            return None
        operands = list(made.args)
        if isinstance(made.func, ast.Attribute) and file.qualified_name(made.func) is None:
            operands.append(made.func.value)
    return next((operand for operand in operands if _turned(_resolved(file, operand)) is not None), None)


def _is_dtype(file: FileContext, argument: ast.expr) -> bool:
    qualified = file.qualified_name(argument) or ""
    return qualified.startswith("torch.") or terminal_name(argument) == "dtype"
