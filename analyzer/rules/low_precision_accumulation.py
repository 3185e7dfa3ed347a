"""Positions, averages and counters in a type with too few digits for them (GP127).

This module must not work out types itself: they come from the value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Precision
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings

# Every whole number up to here has a value of its own (measured: bfloat16 has 385 for arange(512)).
_EXACT_UP_TO = {Precision.BFLOAT16: 256, Precision.HALF: 2048}
_CASTS = frozenset({"half", "bfloat16", "to", "type", "type_as"})
_FREQUENCIES = re.compile(r"freq|theta|omega|rope|rotary")
_SIZES = frozenset({"numel", "size", "nelement", "len"})


class AccumulationInLowPrecision(Rule):
    id = "GP127"
    name = "accumulation-in-low-precision"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("autocast", "device_compare")
    fix = FixSafety.NONE
    triggers = ("arange", "float16", "bfloat16", "half", "+=", "add_", "lerp_")
    documentation = Documentation(
        what_it_does=(
            "Finds `arange` in float16 or bfloat16, positions cast to the type of a buffer that goes along when the "
            "model is cast, running sums and averages in a 16-bit tensor, and element counts in a float32 one."
        ),
        why_is_this_bad=(
            "bfloat16 has 8 significant bits: of the positions 0 to 511 only 385 are told apart, so that rotary and "
            "sinusoidal embeddings of neighbours coincide; float16 fails from 2048. An average with decay 0.999 stops "
            "at 0.5 of the way, and `1 - 1e-3` is 1 (measured, T05 and T06). A float32 counter stops at 2 ** 24."
        ),
        faulty_example=(
            "import torch\n\n\ndef angles(n, inv_freq):\n    t = torch.arange(n, dtype=torch.bfloat16)\n"
            "    return torch.outer(t, inv_freq)\n"
        ),
        right_example=(
            "import torch\n\n\ndef angles(n, inv_freq):\n    t = torch.arange(n, dtype=torch.float32)\n"
            "    return torch.outer(t, inv_freq.float())\n"
        ),
        fix_safety="Nothing is rewritten: where the wide type ends and the narrow one begins is the author's decision.",
    )
    valid = (
        "import torch\ndef f(n):\n    return torch.arange(n)\n",
        "import torch\ndef f(n):\n    return torch.arange(n, dtype=torch.float32)\n",
        "import torch\ndef f():\n    return torch.arange(128, dtype=torch.bfloat16)\n",
        "import torch\ndef f(x):\n    return torch.arange(16, device=x.device).to(torch.float16)\n",
        "import torch\ndef f(n, y):\n    return torch.arange(n, dtype=y.dtype)\n",
        "import torch\ndef f(x):\n    y = x.float()\n    y += 1e-3\n    return y\n",
        "import torch\ndef f(x, b):\n    h = x.half()\n    h += b\n    return h\n",
        "import torch\nfrom torch import nn\nclass C(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('seen', torch.zeros((), dtype=torch.long))\n    def forward(self, x):\n"
        "        self.seen += x.numel()\n        return x\n",
        # the type of a buffer that is no table of frequencies
        "import torch\nfrom torch import nn\nclass S(nn.Module):\n    def __init__(self, s):\n"
        "        super().__init__()\n        self.register_buffer('scale', s)\n    def forward(self, n):\n"
        "        return torch.arange(n, dtype=self.scale.dtype) * self.scale\n",
        # a running sum of the values themselves
        "import torch\nfrom torch import nn\nclass S(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('total', torch.zeros(1))\n    def forward(self, x):\n"
        "        self.total += x.detach().sum()\n        return x\n",
        "import torch\ndef f(xs):\n    total = torch.zeros(3)\n    for x in xs:\n        total += x\n"
        "    return total\n",
    )
    invalid = (
        Invalid("import torch\ndef f(n):\n    return torch.arange(n, dtype=torch.bfloat16)\n", (3,)),
        Invalid("import torch\ndef f():\n    return torch.arange(0, 4096, dtype=torch.float16)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.arange(x.shape[1], device=x.device).half()\n", (3,)),
        Invalid("import torch\ndef f(n):\n    return torch.arange(n).to(torch.bfloat16) / n\n", (3,)),
        # follows the buffer when the model is cast
        Invalid(
            "import torch\nfrom torch import nn\nclass R(nn.Module):\n    def __init__(self, inv):\n"
            "        super().__init__()\n        self.register_buffer('inv_freq', inv)\n"
            "    def forward(self, seq_len):\n        t = torch.arange(seq_len).type_as(self.inv_freq)\n"
            "        return torch.outer(t, self.inv_freq)\n",
            (8,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass R(nn.Module):\n    def __init__(self, inv):\n"
            "        super().__init__()\n        self.register_buffer('inv_freq', inv)\n"
            "    def forward(self, seq_len):\n        t = torch.arange(seq_len, dtype=self.inv_freq.dtype)\n"
            "        return torch.outer(t, self.inv_freq)\n",
            (8,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass R(nn.Module):\n    def __init__(self, d):\n"
            "        super().__init__()\n        inv = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)\n"
            "        self.register_buffer('inv_freq', inv)\n    def forward(self, x):\n"
            "        t = torch.arange(x.shape[1], device=x.device, dtype=self.inv_freq.dtype)\n"
            "        return torch.outer(t, self.inv_freq)\n",
            (9,),
        ),
        # running values
        Invalid(
            "import torch\nfrom torch import nn\nclass E(nn.Module):\n    def __init__(self, n):\n"
            "        super().__init__()\n        self.register_buffer('mean', torch.zeros(n, dtype=torch.bfloat16))\n"
            "    def forward(self, x):\n        with torch.no_grad():\n"
            "            self.mean.mul_(0.999).add_(x.mean(0), alpha=0.001)\n        return x - self.mean\n",
            (9,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass E(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.register_buffer('steps', torch.zeros(1, dtype=torch.float16))\n"
            "    def forward(self, x):\n        self.steps += 1\n        return x\n",
            (8,),
        ),
        # a count of elements in float32: a note
        Invalid(
            "import torch\nfrom torch import nn\nclass C(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.register_buffer('seen', torch.zeros(1))\n"
            "    def forward(self, x):\n        self.seen += x.numel()\n        return x\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        yield from self._positions(file)
        if "zeros" in file.text or "ones" in file.text or "tensor(" in file.text:
            yield from self._running(file)

    def _positions(self, file: FileContext) -> Iterator[Hit]:
        for call in file.calls("arange"):
            operation = file.values.operation(call)
            if operation is None or surroundings(file, call) is Surroundings.ASIDE:
                continue
            found = _final_type(file, operation)
            if found is None:
                continue
            node, precision, buffer = found
            if buffer is None:
                end = _end(file, operation)
                if end is not None and end <= _EXACT_UP_TO[precision]:
                    continue
                message = (
                    f"{precision.value} tells whole numbers apart up to {_EXACT_UP_TO[precision]} only: beyond, "
                    "neighbouring positions are equal. Make them in float32."
                )
                yield _hit(file, node, message, call)
            else:
                message = (
                    f"The positions take the type of the buffer `{shown(file, buffer)}`, which becomes bfloat16 with "
                    "the model: beyond 256 neighbours are equal then. Make them in float32."
                )
                yield _hit(file, node, message, call, confidence=Confidence.MEDIUM)

    def _running(self, file: FileContext) -> Iterator[Hit]:
        for node, target, added in _updates(file):
            values = file.values.attribute_values(target)
            if len(values) != 1 or not isinstance(values[0], ast.Call):
                continue
            kept = file.values.value(values[0])
            if kept.kind is not Kind.TENSOR or terminal_name(values[0].func) not in ("zeros", "ones", "tensor"):
                continue
            if kept.precision.is_low:
                message = (
                    f"`{shown(file, target)}` is kept in {kept.precision.value}: small additions to it are rounded "
                    "away. Keep running values in float32."
                )
                yield _hit(file, node, message, target)
            elif kept.precision is not Precision.DOUBLE and _is_count(added) and _is_float(values[0]):
                message = (
                    f"`{shown(file, target)}` counts elements in float32, which stops at 2 ** 24 = 16.8 million. "
                    "Count in int64."
                )
                yield _hit(file, node, message, target, severity=Severity.NOTE, confidence=Confidence.MEDIUM)


def _hit(
    file: FileContext,
    node: ast.expr | ast.stmt,
    message: str,
    about: ast.expr,
    *,
    severity: Severity | None = None,
    confidence: Confidence | None = None,
) -> Hit:
    return Hit(
        node=node,
        message=message,
        severity=severity,
        confidence=confidence,
        hypothesis={
            "operand": normalised_source(about, file.text),
            "singular_set": "beyond the exact whole numbers",
            "operation": "rounding",
            "symbol": file.symbol(node),
            "line": about.lineno,
        },
    )


# --- positions -------------------------------------------------------------------------------------------------------


def _final_type(file: FileContext, operation: Operation) -> tuple[ast.expr, Precision, ast.expr | None] | None:
    """(node, type, buffer that decides the type) of the positions, when that is a narrow type or a buffer's."""
    asked = operation.argument(99, "dtype")
    node: ast.expr = operation.call
    if asked is None:
        outer = file.parent(operation.call)
        cast = file.parent(outer) if isinstance(outer, ast.Attribute) and outer.attr in _CASTS else None
        if not isinstance(cast, ast.Call) or cast.func is not outer or not isinstance(outer, ast.Attribute):
            return None
        node = cast
        asked = cast.args[0] if cast.args else None
        precision = file.values.precision(asked) if asked is not None else file.values.value(cast).precision
    else:
        precision = file.values.precision(asked)
    if precision in _EXACT_UP_TO:
        return node, precision, None
    # The type that the buffer was made with says little: `model.bfloat16()` casts it.
    buffer = asked.value if isinstance(asked, ast.Attribute) and asked.attr == "dtype" else asked
    if isinstance(buffer, ast.Attribute) and _FREQUENCIES.search(buffer.attr) and file.values.attribute_values(buffer):
        return node, precision, buffer
    return None


def _end(file: FileContext, operation: Operation) -> float | None:
    """Where the range ends, if that is a number."""
    positional = [operation.operand, *operation.arguments]
    given = [item for item in positional if item is not None]
    end = given[0] if len(given) == 1 else given[1] if len(given) > 1 else None
    return file.values.value(end).constant if end is not None else None


# --- running values --------------------------------------------------------------------------------------------------


def _updates(file: FileContext) -> Iterator[tuple[ast.stmt | ast.expr, ast.expr, ast.expr]]:
    """(node, what is updated, what is added) for attributes of `self`."""
    for statement in file.nodes(ast.AugAssign):
        if isinstance(statement.op, (ast.Add, ast.Sub)) and isinstance(statement.target, ast.Attribute):
            yield statement, statement.target, statement.value
    for call in file.calls("add_", "sub_", "lerp_"):
        target = call.func.value if isinstance(call.func, ast.Attribute) else None
        while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            target = target.func.value  # `self.mean.mul_(decay).add_(…)`
        if isinstance(target, ast.Attribute) and call.args:
            yield call, target, call.args[0]


def _is_count(added: ast.expr) -> bool:
    if isinstance(added, ast.Subscript):
        added = added.value
    if isinstance(added, ast.Attribute):
        return added.attr == "shape"
    return isinstance(added, ast.Call) and terminal_name(added.func) in _SIZES


def _is_float(made: ast.Call) -> bool:
    """Whether a factory gives float32: it is not told another type."""
    if terminal_name(made.func) == "tensor":
        first = made.args[0] if made.args else None
        return isinstance(first, ast.Constant) and isinstance(first.value, float)
    return not any(keyword.arg == "dtype" for keyword in made.keywords)
