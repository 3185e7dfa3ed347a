"""Constructors from before torch 0.4: `torch.Tensor(...)`, `torch.FloatTensor(...)`, `Variable(...)` (GP907)."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.values.domain import Gradient

_TYPES = {
    "Tensor": "",
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "LongTensor": "int64",
    "IntTensor": "int32",
    "ShortTensor": "int16",
    "CharTensor": "int8",
    "ByteTensor": "uint8",
    "BoolTensor": "bool",
}
_VARIABLE = frozenset({"torch.autograd.Variable", "torch.autograd.variable.Variable"})


class LegacyConstructor(Rule):
    id = "GP907"
    name = "legacy-constructor"
    severity = Severity.NOTE
    confidence = Confidence.HIGH
    fix = FixSafety.SAFE
    triggers = ("Tensor(", "Variable")
    documentation = Documentation(
        what_it_does=(
            "Notes tensors that are made by calling a tensor class, and `Variable`. Warns where `Variable` is given a "
            "value that a gradient flows through, or the argument `volatile`. Types in annotations and in "
            "`isinstance` are fine."
        ),
        why_is_this_bad=(
            "`torch.Tensor(3)` is three numbers of whatever was in memory, `torch.Tensor([3])` is one number that is "
            "3.0: one pair of brackets decides, and the device can't be chosen. `Variable(x)` has been of no use since "
            "torch 0.4 and is worse than that: it returns a tensor without the graph of `x`, so that the gradient ends "
            "there. `volatile` is ignored."
        ),
        faulty_example="import torch\n\n\ndef table(n):\n    return torch.FloatTensor(n, 4)\n",
        right_example="import torch\n\n\ndef table(n):\n    return torch.empty(n, 4, dtype=torch.float32)\n",
        fix_safety=(
            "Safe: `torch.empty` for sizes, `torch.tensor` with the type for a list of numbers. `Variable(x)` is not "
            "rewritten where a gradient may flow, because leaving it out brings the gradient back."
        ),
    )
    valid = (
        "import torch\ndef f(n):\n    return torch.empty(n, 4), torch.tensor([1.0, 2.0]), torch.zeros(3)\n",
        "import torch\ndef f(x: torch.Tensor) -> torch.FloatTensor:\n"
        "    return x if isinstance(x, torch.LongTensor) else x\n",
        "from mine import Variable\nv = Variable(3)\n",
        "import torch\nkinds = {'float': torch.FloatTensor}\n",
        "import torch\nclass T(torch.Tensor):\n    pass\nt = T([1.0])\n",
    )
    invalid = (
        Invalid("import torch\ndef f(n):\n    return torch.Tensor(n, 4)\n", (3,)),
        Invalid("import torch\nt = torch.Tensor([1, 2])\n", (2,)),
        Invalid("import torch\nt = torch.LongTensor([[1, 2], [3, 4]])\n", (2,)),
        Invalid("import torch\nfrom torch import nn\nw = nn.Parameter(torch.FloatTensor(3, 4))\n", (3,)),
        Invalid("from torch.autograd import Variable\ndef f(x):\n    return Variable(x)\n", (3,)),
        Invalid(
            "import torch\nfrom torch.autograd import Variable\nx = Variable(torch.ones(2), volatile=True)\n", (3,)
        ),
        Invalid(
            "import torch\nfrom torch import nn\nfrom torch.autograd import Variable\nclass M(nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        self.w = nn.Parameter(torch.ones(2))\n"
            "    def forward(self, x):\n        h = Variable(x * self.w)\n        return h.sum()\n",
            (9,),
        ),
        Invalid("import torch\ndef f(n):\n    return torch.cuda.FloatTensor(n)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call of a tensor class or of `Variable`."""
        for call in file.calls(*_TYPES):
            name = file.qualified_name(call.func) or ""
            home, _, kind = name.rpartition(".")
            if home in ("torch", "torch.cuda"):
                yield self._constructor(file, call, home, kind)
        for call in file.calls("Variable"):
            if file.qualified_name(call.func) in _VARIABLE:
                yield self._variable(file, call)

    def _constructor(self, file: FileContext, call: ast.Call, home: str, kind: str) -> Hit:
        sizes = bool(call.args) and not isinstance(call.args[0], (ast.List, ast.Tuple, ast.ListComp))
        if len(call.args) > 1 or (sizes and isinstance(call.args[0], ast.Constant)):
            what = "uninitialised memory of that size: `torch.empty` says so"
        elif sizes:
            what = "uninitialised memory where the argument is a number, and its values where it is a list"
        else:
            what = "the values in a type that it implies: `torch.tensor` takes the type and the device"
        return Hit(
            call,
            f"`{home}.{kind}(...)` is a legacy constructor. It gives {what}.",
            fix=_fix(file, call, kind) if home == "torch" else None,
        )

    def _variable(self, file: FileContext, call: ast.Call) -> Hit:
        if any(keyword.arg == "volatile" for keyword in call.keywords):
            message = "`volatile` has no effect since torch 0.4: gradients are recorded. Use `with torch.no_grad():`."
            return Hit(call, message, severity=Severity.WARNING)
        argument = call.args[0] if call.args else None
        flows = argument is not None and file.values.value(argument).gradient is Gradient.YES
        if flows and not file.grad_disabled(call):
            message = (
                "`Variable(...)` returns a tensor without the graph of its argument: the gradient that flows through "
                "it ends here, silently. Use the tensor itself."
            )
            return Hit(call, message, severity=Severity.WARNING, hypothesis={"operand": file.source(call.args[0])})
        return Hit(
            call, "`Variable` is of no use since torch 0.4, and cuts its argument's graph. Use the tensor itself."
        )


def _fix(file: FileContext, call: ast.Call, kind: str) -> Rewrite | None:
    """`torch.empty` for several sizes or a literal one, `torch.tensor` for a list of number literals."""
    if call.keywords or not call.args or any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    dtype = f", dtype={file.spelling(f'torch.{_TYPES[kind]}')}" if _TYPES[kind] else ""
    first = call.args[0]
    if len(call.args) > 1 or (isinstance(first, ast.Constant) and type(first.value) is int):
        name = file.spelling("torch.empty")
        text = ", ".join(file.source(argument) for argument in call.args)
    elif isinstance(first, ast.List) and first.elts and all(map(_is_number, ast.walk(first))):
        name = file.spelling("torch.tensor")
        text = file.source(first)
        default = file.spelling("torch.get_default_dtype")
        dtype = dtype or f", dtype={default}()"
    else:
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(call, f"{name}({text}{dtype})"),)) if name is not None else None


def _is_number(node: ast.AST) -> bool:
    """Part of a nested list of number literals."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    return isinstance(node, (ast.List, ast.UnaryOp, ast.USub, ast.Load))
