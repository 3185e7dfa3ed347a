"""Masks made by multiplying with infinity, or by adding two that are already at the lowest number (GP117).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.infinities import infinity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Zero
from analyzer.values.surroundings import Surroundings, surroundings

_TRIANGLES = frozenset({"triu", "tril", "triu_", "tril_", "diag", "eye", "diag_embed"})
_MULTIPLICATIONS = ("mul", "mul_", "multiply", "multiply_")


class InfiniteMaskArithmetic(Rule):
    id = "GP117"
    name = "arithmetic-with-infinite-mask"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("inf", "Inf", "finfo")
    documentation = Documentation(
        what_it_does=(
            "Finds a mask that is multiplied with infinity, `(1 - mask) * float('-inf')`, and the sum of two masks "
            "that both hold the lowest number of their type."
        ),
        why_is_this_bad=(
            "Zero times infinity is NaN: every place that the mask was to keep becomes NaN, at once (measured, T04c). "
            "The lowest number added to itself is `-inf`, in every type (T04d): a row that both masks cover is NaN "
            "after the softmax, which the lowest number was chosen to avoid."
        ),
        faulty_example="import torch\n\n\ndef bias(mask):\n    return (1.0 - mask) * float('-inf')\n",
        right_example=(
            "import torch\n\n\ndef bias(mask):\n    zero = torch.zeros_like(mask)\n"
            "    return zero.masked_fill(mask == 0, float('-inf'))\n"
        ),
        fix_safety=(
            "The product has no finite value to keep: it is NaN where the mask is zero and infinite elsewhere. "
            "`torch.where` gives the infinity where the mask is not zero, and 0 elsewhere."
        ),
    )
    valid = (
        "import torch\ndef f(s, m):\n    return s.masked_fill(m, float('-inf'))\n",
        "import torch\ndef f(m):\n    return torch.where(m, float('-inf'), 0.0)\n",
        "import torch\ndef f(n):\n    return torch.triu(torch.ones(n, n) * float('-inf'), diagonal=1)\n",
        "import torch\ndef f(n):\n    return torch.triu(torch.full((n, n), float('-inf')), diagonal=1)\n",
        # numbers
        "import torch\ndef f(x, sign=1.0):\n    best = sign * float('inf')\n    return x.clamp(max=best)\n",
        "import math\nimport torch\ndef f(x):\n    return -1 * math.inf < x\n",
        "import torch\ndef f(m):\n    return (1.0 - m) * torch.finfo(m.dtype).min\n",
        "import torch\ndef f(x):\n    return x.exp() * float('inf')\n",
        # one mask at the lowest number, added to scores
        "import torch\ndef f(s, m):\n    low = torch.finfo(s.dtype).min\n"
        "    b = torch.zeros_like(s).masked_fill(m, low)\n    return s + b\n",
        "import torch\ndef f(s, m):\n    b = torch.zeros_like(s).masked_fill(m, -1e4)\n"
        "    c = torch.zeros_like(s).masked_fill(~m, -1e4)\n    return b + c\n",
        "import numpy as np\nimport torch\ndef f(a):\n    return np.ones(3) * np.inf\n",
    )
    invalid = (
        Invalid("import torch\ndef f(mask):\n    return (1.0 - mask) * float('-inf')\n", (3,)),
        Invalid("import math\nimport torch\ndef f(s, keep):\n    return s + ~keep * -math.inf\n", (4,)),
        Invalid("import torch\ndef f(n):\n    m = torch.ones(n, n).triu(1)\n    return m * float('-inf')\n", (4,)),
        Invalid("import torch\ndef f(x):\n    hide = (x == 0).float()\n    return hide.mul(-torch.inf)\n", (4,)),
        Invalid(
            "import torch\nNEG = float('-inf')\ndef f(x, pad_mask):\n    return x + pad_mask.float() * NEG\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return torch.zeros_like(x) * float('inf')\n", (3,)),
        # two at the lowest number
        Invalid(
            "import torch\ndef f(s, m, n):\n    low = torch.finfo(s.dtype).min\n"
            "    a = torch.zeros_like(s).masked_fill(m, low)\n    b = torch.full_like(s, low).triu(1)\n"
            "    return s + (a + b)\n",
            (6,),
        ),
        Invalid(
            "import torch\ndef f(s, m, c):\n    a = (1.0 - m) * torch.finfo(s.dtype).min\n"
            "    b = torch.where(c, torch.finfo(s.dtype).min, 0.0)\n    return a + b\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for node, mask, bound in _products(file):
            if surroundings(file, node) is not Surroundings.ASIDE and _holds_zero(file, mask):
                yield Hit(
                    node=node,
                    message=(
                        f"Zero times infinity is NaN: every place where `{shown(file, mask)}` is zero becomes NaN. "
                        "Fill the masked places instead (`masked_fill`, `where`)."
                    ),
                    hypothesis=_hypothesis(file, node, mask),
                    fix=_where(file, node, mask, bound),
                )
        if "finfo" in file.text:
            yield from _sums(file)


def _sums(file: FileContext) -> Iterator[Hit]:
    for node in file.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Add) or not _may_be_mask(node.left) or not _may_be_mask(node.right):
            continue
        if _is_lowest(file, node.left) and _is_lowest(file, node.right):
            yield Hit(
                node=node,
                message=(
                    "Both masks hold the lowest number of their type, and the sum of two of those is -inf: a row that "
                    "both cover is NaN after a softmax. Combine the conditions before filling."
                ),
                confidence=Confidence.MEDIUM,
                hypothesis=_hypothesis(file, node, node.left),
            )


def _hypothesis(file: FileContext, node: ast.expr, mask: ast.expr) -> dict[str, object]:
    return {
        "operand": normalised_source(mask, file.text),
        "singular_set": "== 0",
        "operation": "product with infinity" if isinstance(node, ast.Call) or _is_product(node) else "sum of masks",
        "symbol": file.symbol(node),
        "line": mask.lineno,
    }


def _is_product(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)


def _products(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(product, its other factor, the infinite one)."""
    for node in file.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Mult):
            continue
        for bound, other in ((node.right, node.left), (node.left, node.right)):
            if _sounds_infinite(bound) and infinity(file, bound) is not None:
                yield node, other, bound
                break
    for call in file.calls(*_MULTIPLICATIONS):
        operation = file.values.operation(call)
        bound_argument = operation.argument(0, "other") if operation is not None else None
        if operation is None or operation.operand is None or bound_argument is None:
            continue
        if _sounds_infinite(bound_argument) and infinity(file, bound_argument) is not None:
            yield call, operation.operand, bound_argument


def _sounds_infinite(expression: ast.expr) -> bool:
    """Whether it is worth asking: names and calls only, since products are everywhere."""
    if isinstance(expression, ast.UnaryOp):
        expression = expression.operand
    if isinstance(expression, ast.Call):
        return terminal_name(expression.func) in ("float", "tensor", "full", "full_like")
    return isinstance(expression, (ast.Name, ast.Attribute))


def _holds_zero(file: FileContext, mask: ast.expr) -> bool:
    """Whether a factor is a tensor that is zero somewhere in practice."""
    value = file.values.value(mask)
    source = core(file, mask)
    if isinstance(source, ast.Call) and terminal_name(source.func) in _TRIANGLES:
        return True
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return True
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Sub):
        return any(file.values.value(side).mask for side in (source.left, source.right))
    return value.mask or (value.zero is Zero.CERTAIN_ORIGIN and value.kind is not Kind.UNKNOWN)


def _where(file: FileContext, node: ast.expr, mask: ast.expr, bound: ast.expr) -> Rewrite | None:
    where = file.spelling("torch.where")
    if where is None or (isinstance(node, ast.Call) and terminal_name(node.func) in ("mul_", "multiply_")):
        return None
    value = file.values.value(mask)
    text = f"{where}({file.operand_source(mask)} != 0, {file.source(bound)}, 0.0)"
    return Rewrite(FixSafety.SAFE if value.non_negative else FixSafety.UNSAFE, (Replacement(node, text),))


def _may_be_mask(expression: ast.expr) -> bool:
    return isinstance(expression, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))


def _is_lowest(file: FileContext, expression: ast.expr) -> bool:
    """Whether a tensor was made of zeros and the lowest number of its type."""
    source = core(file, expression)
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Mult):
        return any(_is_limit(file, side) for side in (source.left, source.right))
    if not isinstance(source, ast.Call):
        return False
    operation = file.values.operation(source)
    if operation is None or operation.operand is None:
        return False
    if operation.name in _TRIANGLES:
        return _is_lowest(file, operation.operand)
    if operation.name in ("masked_fill", "masked_fill_"):
        written = [operation.argument(1, "value")] if file.values.value(operation.operand).constant is not None else []
    elif operation.name in ("full", "full_like", "new_full"):
        written = [operation.argument(0, "fill_value")]
    elif operation.name == "where":
        written = [operation.argument(0, "input"), operation.argument(1, "other")]
    else:
        written = []
    return any(value is not None and _is_limit(file, value) for value in written)


def _is_limit(file: FileContext, expression: ast.expr) -> bool:
    """`torch.finfo(t).min`, through one variable."""
    source = core(file, expression)
    maker = source.value if isinstance(source, ast.Attribute) and source.attr == "min" else None
    return isinstance(maker, ast.Call) and terminal_name(maker.func) == "finfo"
