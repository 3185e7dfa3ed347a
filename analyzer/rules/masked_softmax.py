"""Softmax over scores that are masked with -inf, where a whole row may be masked (GP116).

This module must not follow values itself; where the infinity comes from is `analyzer.infinities`' business.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.infinities import InfiniteFill, infinite_fills
from analyzer.layer_calls import called_layer, names_given
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.guards import made_of, value_names
from analyzer.values.surroundings import Surroundings, surroundings

_SOFTMAX_CALLS = ("softmax", "log_softmax", "softmin")
_SOFTMAX_LAYERS = frozenset({"torch.nn.Softmax", "torch.nn.LogSoftmax", "torch.nn.Softmin"})
# Masks by position leave every row something: the diagonal of a causal mask, the window around a place.
_POSITIONAL = re.compile(
    r"causal|triu|tril|arange|eye|diag|future|subsequent|look_?ahead|window|local|triangular|band|^tri$|range|"
    r"square_subsequent|autoregressive|bottom_right|shape|size|roll|img_mask|shift|topk|kthvalue|sort|cumsum|"
    r"top_|unique|self_mask|self_pair|padding_len"
)
# `arange(n) < lengths` is padding, and a length can be zero.
_LENGTH = re.compile(r"(^|_)(lens?|lengths?|counts?|sizes|n_?valid|num_[a-z]+)$|lengths?$")
_RANGE = re.compile(r"^(arange|range|shape|size)$")
_REPAIRS = frozenset({"nan_to_num", "nan_to_num_", "masked_fill", "masked_fill_", "where"})
_EMPTINESS = frozenset({"any", "all", "amax", "amin", "max", "min", "count_nonzero", "logical_or", "fill_diagonal_"})


class FullyMaskedSoftmax(Rule):
    id = "GP116"
    name = "softmax-of-fully-masked-row"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("softmax", "Softmax", "softmin", "Softmin", "exp")
    documentation = Documentation(
        what_it_does=(
            "Finds `softmax` over scores in which a mask writes `-inf`, when nothing shows that every row keeps at "
            "least one place, and nothing repairs the rows that do not. An optional mask of keys, the same for all "
            "heads and queries (`mask[:, None, None]`), is a note: it covers a row only where a sample is all padding."
        ),
        why_is_this_bad=(
            "The softmax of a row that is `-inf` everywhere is NaN. One empty sequence in a batch, or a query that is "
            "itself padding, puts NaN into the output and into the gradient of the values; if the mask was added "
            "instead of filled in, into the gradients of queries and keys as well, and no later `nan_to_num` or "
            "`masked_fill` takes those back (measured on torch 2.13)."
        ),
        faulty_example=(
            "import torch\n\n\ndef attend(score, keep, v):\n"
            '    score = score.masked_fill(~keep[:, None, :], float("-inf"))\n'
            "    return torch.softmax(score, dim=-1) @ v\n"
        ),
        right_example=(
            "import torch\n\n\ndef attend(score, keep, v):\n    hide = ~keep[:, None, :]\n"
            "    score = score.masked_fill(hide, torch.finfo(score.dtype).min)\n"
            "    return torch.softmax(score, dim=-1).masked_fill(hide, 0.0) @ v\n"
        ),
        fix_safety=(
            "The lowest finite number instead of `-inf` gives the same weights in every row that keeps a place. A row "
            "that keeps none gets equal weights instead of NaN: set them to zero afterwards if they are used."
        ),
    )
    valid = (
        # masks by position keep the diagonal
        "import torch\ndef f(s):\n    n = s.size(-1)\n    m = torch.ones(n, n).triu(1).bool()\n"
        "    return s.masked_fill(m, float('-inf')).softmax(-1)\n",
        "import torch\ndef f(s, causal_mask):\n    return s.masked_fill(causal_mask, float('-inf')).softmax(-1)\n",
        "import torch\nclass A(torch.nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.register_buffer('mask', torch.tril(torch.ones(n, n)))\n    def forward(self, s):\n"
        "        s = s.masked_fill(self.mask == 0, float('-inf'))\n        return torch.softmax(s, dim=-1)\n",
        # a finite number
        "import torch\ndef f(s, mask):\n    return s.masked_fill(mask, torch.finfo(s.dtype).min).softmax(-1)\n",
        "import torch\ndef f(s, mask):\n    return s.masked_fill(mask, -1e4).softmax(-1)\n",
        # the filled form can be repaired afterwards (measured)
        "import torch\ndef f(s, mask):\n    w = s.masked_fill(mask, float('-inf')).softmax(-1)\n"
        "    return torch.nan_to_num(w)\n",
        "import torch\ndef f(s, mask):\n    s = s.masked_fill(mask, float('-inf'))\n"
        "    return torch.softmax(s, -1).masked_fill(mask, 0.0)\n",
        "import torch\ndef f(s, mask):\n    w = torch.softmax(s.masked_fill(mask, float('-inf')), -1)\n"
        "    w = torch.where(mask, torch.zeros_like(w), w)\n    return w\n",
        # somebody looked after empty rows
        "import torch\ndef f(s, mask):\n    mask = mask & ~mask.all(-1, keepdim=True)\n"
        "    return s.masked_fill(mask, float('-inf')).softmax(-1)\n",
        "import torch\ndef f(s, keep):\n    keep[:, 0] = True\n"
        "    return s.masked_fill(~keep, float('-inf')).softmax(-1)\n",
        "import torch\ndef f(s, keep):\n    if not keep.any():\n        return s * 0\n"
        "    return s.masked_fill(~keep, float('-inf')).softmax(-1)\n",
        # chosen by the scores themselves: the best one stays
        "import torch\ndef f(logits, k):\n    worst = logits.topk(k).values[..., -1:]\n"
        "    return logits.masked_fill(logits < worst, float('-inf')).softmax(-1)\n",
        "import torch\ndef f(logits, p):\n    probs = logits.softmax(-1)\n    drop = probs < p\n"
        "    return logits.masked_fill(drop, float('-inf')).softmax(-1)\n",
        "import torch\ndef f(s):\n    hide = torch.arange(s.size(0))[:, None] < torch.arange(s.size(1))\n"
        "    return s.masked_fill(hide, float('-inf')).softmax(-1)\n",
        # plus infinity is another matter
        "import torch\ndef f(score, mask):\n    return score.masked_fill(mask, float('inf')).softmax(-1)\n",
        # the fused attention returns zero for such a row
        "import torch\nimport torch.nn.functional as F\ndef f(q, k, v, mask):\n"
        "    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)\n",
        "import numpy as np\nimport torch\ndef f(s, mask):\n    s[mask] = -1.0\n    return torch.softmax(s, -1)\n",
    )
    invalid = (
        Invalid(
            "import torch\ndef f(s, keep):\n    s = s.masked_fill(~keep[:, None], float('-inf'))\n"
            "    return torch.softmax(s, dim=-1)\n",
            (4,),
        ),
        Invalid("import torch\ndef f(s, mask):\n    return s.masked_fill(mask, -torch.inf).softmax(-1)\n", (3,)),
        Invalid(
            "import math\nimport torch\ndef f(s, pad_mask):\n    s = torch.where(pad_mask, -math.inf, s)\n"
            "    return s.log_softmax(dim=-1)\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef f(s, valid):\n    s[~valid] = float('-inf')\n    return torch.softmax(s / 2.0, -1)\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef f(s, mask=None):\n    if mask is not None:\n"
            "        s = s.masked_fill(mask == 0, float('-inf'))\n    return s.softmax(dim=-1)\n",
            (5,),
        ),
        Invalid(
            "import torch\ndef f(s, mask):\n    s.masked_fill_(mask, float('-inf'))\n    return s.softmax(dim=-1)\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef f(s, lengths):\n    late = torch.arange(s.size(-1)) >= lengths[:, None]\n"
            "    return s.masked_fill(late, float('-inf')).softmax(-1)\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef f(logits, taken):\n    return logits.masked_fill(taken, float('-inf')).softmax(-1)\n",
            (3,),
        ),
        # a softmax by hand
        Invalid(
            "import torch\ndef f(s, mask):\n    s = s.masked_fill(mask, float('-inf'))\n"
            "    e = torch.exp(s - s.max(-1, keepdim=True).values)\n    return e / e.sum(-1, keepdim=True)\n",
            (4,),
        ),
        # added, no later repair helps
        Invalid(
            "import torch\ndef f(s, pad):\n    bias = torch.zeros_like(s).masked_fill(pad, float('-inf'))\n"
            "    return torch.nan_to_num((s + bias).softmax(-1))\n",
            (4,),
        ),
        # a product with the mask keeps NaN
        Invalid(
            "import torch\ndef f(s, mask):\n    w = s.masked_fill(~mask, float('-inf')).softmax(-1)\n"
            "    return w * mask\n",
            (3,),
        ),
        # a layer instead of a function
        Invalid(
            "import torch\nfrom torch import nn\nclass A(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.soft = nn.Softmax(dim=-1)\n    def forward(self, s, mask):\n"
            "        s = s.masked_fill(mask, float('-inf'))\n        return self.soft(s)\n",
            (9,),
        ),
        # pairs of kept places: every row of a padded query is masked
        Invalid(
            "import torch\ndef f(s, keep):\n    pair = keep[:, :, None] & keep[:, None, :]\n"
            "    return s.masked_fill(~pair, float('-inf')).softmax(-1)\n",
            (4,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call, operand in _softmaxes(file):
            place = surroundings(file, call)
            if place is Surroundings.ASIDE:
                continue
            for fill in infinite_fills(file, operand):
                if _may_cover_a_row(file, fill, call) and (fill.added or not _is_repaired(file, call)):
                    yield self._hit(file, call, fill, unrecorded=place is Surroundings.UNRECORDED)
                    break

    def _hit(self, file: FileContext, call: ast.Call, fill: InfiniteFill, *, unrecorded: bool) -> Hit:
        pairs = _is_pair(file, fill.mask)
        rows = "The row of every padded query is -inf throughout, and"
        when = rows if pairs else f"Where `{shown(file, fill.mask)}` covers a whole row,"
        follows = (
            "the mask is added, so the gradients of everything before it are NaN too, whatever is done afterwards"
            if fill.added
            else "so are the output and the gradients behind it"
        )
        return Hit(
            node=call,
            message=f"{when} its softmax is NaN: {follows}. Fill with `torch.finfo(dtype).min` instead of -inf.",
            severity=Severity.NOTE if unrecorded or _is_optional_key_mask(file, fill) else None,
            confidence=Confidence.HIGH if pairs and not unrecorded else None,
            hypothesis={
                "operand": normalised_source(fill.mask, file.text),
                "singular_set": "covers a whole row",
                "operation": "softmax",
                "symbol": file.symbol(call),
                "line": fill.mask.lineno,
            },
            related=((fill.node, f"`{shown(file, fill.literal)}` is written here"),),
            fix=_finite_fill(file, fill),
        )


def _softmaxes(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Every softmax of the file, and what it is taken of."""
    for call in file.calls(*_SOFTMAX_CALLS):
        operation = file.values.operation(call)
        if operation is not None and operation.operand is not None:
            yield call, operation.operand
    for call in file.calls("exp"):
        shifted = _shifted_scores(file, call)
        if shifted is not None:
            yield call, shifted
    classes = tuple(name.rpartition(".")[2] for name in _SOFTMAX_LAYERS)
    for name in sorted(names_given(file, classes)):
        for call in file.calls(name):
            layer = called_layer(file, call)
            if layer is not None and layer.name in _SOFTMAX_LAYERS and call.args:
                yield call, call.args[0]


def _shifted_scores(file: FileContext, call: ast.Call) -> ast.expr | None:
    """`s` of `exp(s - s.max())`, the first half of a softmax by hand: of a row of -inf that is -inf + inf."""
    operation = file.values.operation(call)
    source = core(file, operation.operand) if operation is not None and operation.operand is not None else None
    if not isinstance(source, ast.BinOp) or not isinstance(source.op, ast.Sub):
        return None
    peak = core(file, source.right)
    if isinstance(peak, ast.Attribute) and peak.attr == "values":
        peak = core(file, peak.value)
    return source.left if isinstance(peak, ast.Call) and terminal_name(peak.func) in ("max", "amax") else None


def _may_cover_a_row(file: FileContext, fill: InfiniteFill, softmax: ast.Call) -> bool:
    """Whether a mask is neither one by position nor by score, and was not looked at for emptiness."""
    made = made_of(file, fill.mask)
    words = {word.lower() for word in _words_behind(file, fill.mask) | made}
    if any(_LENGTH.search(name.lower()) for name in made):
        words = {word for word in words if not _RANGE.search(word)}
    if not made or any(_POSITIONAL.search(word) for word in words):
        return False
    if fill.filled is not None and _reads(file, fill.mask, {name for name, _ in value_names(fill.filled)}):
        return False  # the mask compares the very scores that it is written into: the best one stays
    return not _looked_at(file, made, softmax)


def _reads(file: FileContext, mask: ast.expr, names: set[str], *, depth: int = 3) -> bool:
    """Whether a mask is computed from the values of one of the names; their shapes don't count."""
    for name, node in value_names(mask):
        outer = file.parent(node)
        if isinstance(outer, ast.Attribute) and outer.attr in ("size", "shape", "device", "dtype", "ndim"):
            continue
        if name in names:
            return True
        definition = file.values.single_definition(node) if depth else None
        if definition is not None and _reads(file, definition, names, depth=depth - 1):
            return True
    return False


def _words_behind(file: FileContext, mask: ast.expr) -> frozenset[str]:
    """The functions and attributes that a mask was computed with, as far as its function (or class) shows."""
    words: set[str] = set()
    pending: list[tuple[ast.expr, int]] = [(mask, 0)]
    seen: set[ast.expr] = set()
    while pending and len(seen) < 40:
        expression, depth = pending.pop()
        if expression in seen:
            continue
        seen.add(expression)
        for node in ast.walk(expression):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Call):
                words.add(terminal_name(node.func) or "")
            if isinstance(node, (ast.Name, ast.Attribute)) and depth < 4:
                values = [binding.value for binding in file.values.definitions(node)]
                values.extend(file.values.attribute_values(node))
                pending.extend((value, depth + 1) for value in values if value is not None)
    return frozenset(words)


def _looked_at(file: FileContext, made: frozenset[str], softmax: ast.Call) -> bool:
    """Whether the function tests the mask for emptiness, or opens a place in it, before or after."""
    function = file.enclosing_function(softmax)
    if function is None:
        return True
    for node in file.nodes_in(function, ast.Call):
        if terminal_name(node.func) in _EMPTINESS and {name for name, _ in value_names(node)} & made:
            return True
    return any(
        isinstance(target, ast.Subscript) and {name for name, _ in value_names(target.value)} & made
        for statement in file.nodes_in(function, ast.Assign)
        for target in statement.targets
    )


def _is_repaired(file: FileContext, softmax: ast.Call) -> bool:
    """Whether the weights are cleaned after the softmax, which is enough where -inf was filled in (measured)."""
    for outer in file.ancestors(softmax):
        if isinstance(outer, ast.stmt):
            break
        if isinstance(outer, ast.Call) and terminal_name(outer.func) in _REPAIRS:
            return True
    statement, function = file.statement(softmax), file.enclosing_function(softmax)
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or function is None:
        return False
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = {name for target in targets for name, _ in value_names(target)}
    return _repairs_later(file, function, statement, names)


def _repairs_later(file: FileContext, function: FunctionNode, statement: ast.stmt, names: set[str]) -> bool:
    for call in file.nodes_in(function, ast.Call):
        if call.lineno > statement.lineno and terminal_name(call.func) in _REPAIRS:
            used = {name for name, _ in value_names(call)}
            if used & names:
                return True
    return any(
        assignment.lineno > statement.lineno
        and any(
            isinstance(target, ast.Subscript) and terminal_name(target.value) in names for target in assignment.targets
        )
        for assignment in file.nodes_in(function, ast.Assign)
    )


def _is_pair(file: FileContext, mask: ast.expr) -> bool:
    """Whether a mask is an outer product of two: `m[:, :, None] & m[:, None, :]`."""
    expression: ast.expr | None = mask
    for _ in range(4):
        if isinstance(expression, ast.UnaryOp):
            expression = expression.operand
        elif isinstance(expression, ast.Compare):
            expression = expression.left
        elif isinstance(expression, ast.Name):
            expression = file.values.single_definition(expression)
    if not isinstance(expression, ast.BinOp) or not isinstance(expression.op, (ast.BitAnd, ast.Mult)):
        return False
    left, right = _spread_axes(expression.left), _spread_axes(expression.right)
    return bool(left) and bool(right) and left != right


def _is_optional_key_mask(file: FileContext, fill: InfiniteFill) -> bool:
    """`if mask is not None:` around a mask `[:, None, None]` of keys, for all heads and queries of one sample.

    Such a row is masked throughout only where the whole sample is padding.
    """
    names = made_of(file, fill.mask)
    optional = any(
        isinstance(outer, ast.If) and _asks_whether_given(outer.test) in names for outer in file.ancestors(fill.node)
    )
    return optional and _spreads_twice(file, fill.mask, 4)


def _asks_whether_given(test: ast.expr) -> str | None:
    """`mask` of `mask is not None`."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.IsNot):
        return None
    return test.left.id if isinstance(test.left, ast.Name) else None


def _spreads_twice(file: FileContext, expression: ast.expr, depth: int) -> bool:
    """Whether a mask gets two new axes behind its first: `m[:, None, None, :]`, `m.unsqueeze(1).unsqueeze(2)`."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            places = node.slice.elts[1:]
            if len(places) > 1 and all(isinstance(axis, ast.Constant) and axis.value is None for axis in places[:2]):
                return True
        elif _unsqueezed(node) in ("1", "2") and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if _unsqueezed(node.func.value) == "1":
                return True
        elif isinstance(node, ast.Name) and depth:
            values = [binding.value for binding in file.values.definitions(node)]
            if any(value is not None and _spreads_twice(file, value, depth - 1) for value in values):
                return True
    return False


def _unsqueezed(node: ast.AST) -> str | None:
    """The axis of `m.unsqueeze(axis)`."""
    if isinstance(node, ast.Call) and terminal_name(node.func) == "unsqueeze" and len(node.args) == 1:
        return ast.unparse(node.args[0])
    return None


def _spread_axes(side: ast.expr) -> tuple[str, ...]:
    """Where new axes are put into one factor of an outer product."""
    if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Tuple):
        parts = side.slice.elts
        if any(isinstance(part, ast.Constant) and part.value is None for part in parts):
            return tuple("new" if isinstance(part, ast.Constant) else "old" for part in parts)
    if isinstance(side, ast.Call) and terminal_name(side.func) == "unsqueeze" and side.args:
        return (ast.unparse(side.args[-1]),)
    return ()


def _finite_fill(file: FileContext, fill: InfiniteFill) -> Rewrite | None:
    """The lowest number of the scores' type in the place of -inf."""
    limits = file.spelling("torch.finfo")
    if limits is None or fill.added or not isinstance(fill.filled, (ast.Name, ast.Attribute)):
        return None
    if any(file.statement(fill.literal) is not file.statement(part) for part in (fill.mask, fill.node)):
        return None
    if isinstance(fill.literal, (ast.Name, ast.Attribute)) or _is_tensor(fill.literal):
        return None
    text = f"{limits}({file.source(fill.filled)}.dtype).min"
    return Rewrite(FixSafety.SAFE, (Replacement(fill.literal, text),))


def _is_tensor(literal: ast.expr) -> bool:
    """`torch.full_like(x, -inf)` is a tensor: a number would not always do in its place."""
    return isinstance(literal, ast.Call) and terminal_name(literal.func) != "float"
