"""Writes that autograd's version counter does not see: through NumPy, and by putting other data into a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.module_examples import with_body
from analyzer.saved_values import Kept, Overwrite, Route, overwrites
from analyzer.write_findings import judged, operation_name

_HEAD = "import numpy as np\nimport torch\nimport torch.nn as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.up = nn.Linear(4, 4)\n        self.gain = nn.Parameter(torch.ones(4))\n\n"
    "    def forward(self, x):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
# The first line of a body given to `_forward`.
_FIRST = 13


def _hit(file: FileContext, found: Overwrite, message: str) -> Iterable[Hit]:
    sure = judged(file, found.function, found.keep.degree, in_forward=found.in_forward)
    if sure is None:
        return
    severity, confidence = sure
    yield Hit(
        found.write.node,
        message,
        severity=severity,
        confidence=confidence,
        hypothesis={
            "function": found.function.name,
            "tensor": found.name,
            "operation": found.keep.operation,
            "kept": found.keep.side.value,
            "kept_line": getattr(found.keep.node, "lineno", 0),
            "symbol": file.symbol(found.write.node),
            "line": getattr(found.write.node, "lineno", 0),
        },
        related=((found.keep.node, "kept for backward here"),),
    )


class NumpyWrite(Rule):
    """A write into a NumPy array that is the memory of a tensor whose values autograd has kept."""

    id = "GP402"
    name = "numpy-write"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    triggers = (".numpy()", "from_numpy", "dlpack")
    fix = FixSafety.NONE
    documentation = Documentation(
        what_it_does=(
            "Finds writes into the array that `x.numpy()`, `x.detach().numpy()`, `torch.from_numpy` or DLPack gave "
            "(`a *= 2`, `a[0] = 1`, `np.clip(a, 0, 1, out=a)`, `a.sort()`) when an operation of the same function "
            "has kept the tensor for backward. Copies (`.numpy().copy()`, `.clone()`) are left alone."
        ),
        why_is_this_bad=(
            "The array is the tensor's own memory, and NumPy does not count versions: the gradient is computed from "
            "the new values without an error (`exp` of 1, then doubled through NumPy: 5.44 instead of 2.72)."
        ),
        faulty_example=_forward("y = torch.exp(self.up(x))\ny.detach().numpy()[0] *= 2\nreturn y"),
        right_example=_forward("y = torch.exp(self.up(x))\na = y.detach().numpy().copy()\na *= 2\nreturn y"),
        fix_safety="No automatic fix: whether the change belongs to the graph only the author knows.",
    )
    valid = (
        _forward("y = torch.exp(self.up(x))\na = y.detach().clone().numpy()\na *= 2\nreturn y"),
        _forward("y = torch.exp(self.up(x))\na = y.detach().numpy().copy()\na[0] = 2\nreturn y"),
        _forward("y = self.up(x) + 1\na = y.detach().numpy()\na *= 2\nreturn y"),
        _forward("y = torch.exp(self.up(x))\na = y.detach().numpy() * 2\na += 1\nreturn y"),
        _forward("y = torch.exp(self.up(x))\na = np.clip(y.detach().numpy(), 0, 1)\na += 1\nreturn y"),
        _forward("with torch.no_grad():\n    y = torch.exp(self.up(x))\na = y.numpy()\na += 1\nreturn y"),
        _forward("y = torch.exp(self.up(x))\ny.data.mul_(2)\nreturn y"),
        _forward("y = torch.exp(self.up(x))\ny += 1\na = y.detach().numpy()\nreturn y"),
        _HEAD + "def load(path):\n    a = np.load(path)\n    t = torch.from_numpy(a)\n    a *= 2\n    return t.exp()\n",
    )
    invalid = (
        Invalid(_forward("y = torch.exp(self.up(x))\ny.detach().numpy()[0] *= 2\nreturn y"), (_FIRST + 1,)),
        Invalid(_forward("y = torch.exp(self.up(x))\na = y.detach().numpy()\na *= 2\nreturn y"), (_FIRST + 2,)),
        Invalid(_forward("y = self.up(x)\nz = y ** 2\na = y.detach().numpy()\na[0] = 1\nreturn z"), (_FIRST + 3,)),
        Invalid(
            _forward("y = self.up(x).sigmoid()\na = y.detach().numpy()\nnp.clip(a, 0, 0.5, out=a)\nreturn y"),
            (_FIRST + 2,),
        ),
        Invalid(_forward("y = self.up(x).sigmoid()\na = y.detach().numpy()\na.sort()\nreturn y"), (_FIRST + 2,)),
        Invalid(
            _forward("y = self.up(x).sigmoid()\nt = torch.from_numpy(y.detach().numpy())\nt.mul_(2)\nreturn y"),
            (_FIRST + 2,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every write through NumPy to a kept tensor."""
        for found in overwrites(file):
            if found.route is Route.NUMPY:
                side = "result" if found.keep.side is Kept.RESULT else "input"
                yield from _hit(
                    file,
                    found,
                    f"`{found.name}` is the memory of a tensor that {operation_name(found.keep.operation)} kept as its "
                    f"{side} for backward; the write ({found.write.how}) goes unnoticed, and the gradient is silently "
                    "computed from the new values. Write to a copy.",
                )


class DataReplaced(Rule):
    """`x.data = …` for a tensor that an operation has kept as its input."""

    id = "GP403"
    name = "data-replaced"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    triggers = (".data =",)
    documentation = Documentation(
        what_it_does=(
            "Finds `x.data = …` after an operation of the same function has kept `x` as its input for backward. "
            "Replacing the data before the tensor is used (loading weights, initialisation) is left alone, and so is "
            "replacing that of a result: autograd keeps a result's old memory."
        ),
        why_is_this_bad=(
            "Backward finds the new data where the old ones were, without an error: for `y = x * x` at 1, with "
            "`x.data` then set to 5, the gradient is 10 instead of 2."
        ),
        faulty_example=_forward("y = self.up(x) * self.gain\nself.gain.data = self.gain.data.clamp(0, 1)\nreturn y"),
        right_example=_forward("self.gain.data = self.gain.data.clamp(0, 1)\nreturn self.up(x) * self.gain"),
        fix_safety="No automatic fix: the replacement has to move before the use or after backward.",
    )
    valid = (
        _forward("self.gain.data = self.gain.data.clamp(0, 1)\nreturn self.up(x) * self.gain"),
        _forward("y = self.up(x).exp()\ny.data = y.data * 2\nreturn y"),
        _forward("h = self.up(x)\ny = h ** 2\nh.data.mul_(2)\nh.data = h.data\nreturn y"),
        _forward("with torch.no_grad():\n    y = x * self.gain\nself.gain.data = self.gain.data * 2\nreturn y"),
        _HEAD + "def load(module, weight):\n    module.weight.data = weight\n    module.bias.data = weight[0]\n",
    )
    invalid = (
        Invalid(
            _forward("y = self.up(x) * self.gain\nself.gain.data = self.gain.data.clamp(0, 1)\nreturn y"),
            (_FIRST + 1,),
        ),
        Invalid(_forward("h = self.up(x)\ny = h ** 2\nh.data = h.data / h.data.norm()\nreturn y"), (_FIRST + 2,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every replacement of the data of a kept input."""
        for found in overwrites(file):
            if found.replaced:
                line = getattr(found.keep.node, "lineno", 0)
                yield from _hit(
                    file,
                    found,
                    f"`{found.name}.data` is replaced after {operation_name(found.keep.operation)} in line {line} kept "
                    f"`{found.name}` as its input: backward silently computes with the new data. Replace it before the "
                    "use, or after backward.",
                )
