"""NaN and inf that are cleaned out of a result, too late for its gradient (GP115).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.infinities import infinite_fills, infinity
from analyzer.late_masks import compared_names, computed_from, is_about, singular_nodes
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import hypothesis, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Kind, Zero
from analyzer.values.guards import guarded, value_names
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings

_NAN_TESTS = frozenset({"isnan", "isinf", "isfinite", "isposinf", "isneginf"})
_CLEANERS = ("nan_to_num", "nan_to_num_")
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max")
# Names are looked up only where they sound like a selection: products are everywhere.
_MASK_NAME = re.compile(r"mask|valid|ok|keep|good|safe|zero|pos|nan|inf|bad|^is_|^has_|inside|visible")
# Sums by index are zero where no index points, and send nothing back from there: NaN needs a sum that cancels.
_SUMS_BY_INDEX = re.compile(r"scatter|segment|index_add|degree|bincount|count")
_LOGARITHMS = frozenset({"log_softmax", "log", "log2", "log10", "logsigmoid"})


@dataclass(frozen=True, slots=True)
class _Hidden:
    """A result whose bad places are taken away: `node` does it, `what` it is done to.

    `condition` chooses the places by a comparison; without one they are those that are NaN or infinite.
    """

    node: ast.expr | ast.stmt
    what: ast.expr
    how: str
    condition: ast.expr | None = None
    chosen_stays: bool = False


@dataclass(frozen=True, slots=True)
class _Maker:
    """An operation that makes the NaN: a singular one, or a product in which zero meets infinity."""

    node: ast.expr | ast.stmt
    operand: ast.expr
    reason: str
    singular: Singular | None = None
    known: bool = True
    quiet: bool = False


class NanHiddenTooLate(Rule):
    id = "GP115"
    name = "nan-hidden-after-the-fact"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    documentation = Documentation(
        what_it_does=(
            "Finds `nan_to_num`, `masked_fill(isnan(y), 0)`, `where(isfinite(y), y, 0)`, `y[isnan(y)] = 0`, a clamp or "
            "a product with a mask that take NaN or inf out of a result `y`, when the operation that makes them (a "
            "division, root, logarithm, power, or zero times infinity) is differentiated."
        ),
        why_is_this_bad=(
            "The values look clean, so the loss is finite; but the backward pass multiplies the zero gradient of the "
            "cleaned places with the infinite slope of the operation before, and zero times infinity is NaN. The "
            "parameters are NaN after the next step (measured for every one of these forms, traps T22 and T23)."
        ),
        faulty_example="import torch\n\n\ndef ratio(a, b):\n    return torch.nan_to_num(a / b, nan=0.0)\n",
        right_example=(
            "import torch\n\n\ndef ratio(a, b):\n    ok = b != 0\n    safe = torch.where(ok, b, torch.ones_like(b))\n"
            "    return torch.where(ok, a / safe, torch.zeros_like(a))\n"
        ),
        fix_safety="Nothing is rewritten: what the operation should see in the bad places is the author's decision.",
    )
    valid = (
        # the input is guarded, the cleaning is a second lock
        "import torch\ndef f(a, b):\n    return torch.nan_to_num(a / b.clamp(min=1e-6))\n",
        "import torch\ndef f(a, b):\n    safe = torch.where(b == 0, torch.ones_like(b), b)\n"
        "    return torch.nan_to_num(a / safe)\n",
        # nothing singular was computed: the data may hold NaN
        "import torch\ndef f(x):\n    return torch.nan_to_num(x) * 2\n",
        "import torch\ndef f(x):\n    x[torch.isnan(x)] = 0.0\n    return x / 3\n",
        # nothing is differentiated
        "import torch\n@torch.no_grad()\ndef f(a, b):\n    return torch.nan_to_num(a / b)\n",
        "import torch\ndef f(a, b):\n    return torch.nan_to_num((a / b).detach())\n",
        "import torch\nclass DiceMetric:\n    def compute(self, a, b):\n        return torch.nan_to_num(a / b)\n",
        "import torch\ndef f(labels, n):\n    return torch.nan_to_num(labels.sum() / labels.numel())\n",
        "import torch\ndef f(x, y):\n    with torch.no_grad():\n        r = 1 / x\n"
        "    return torch.nan_to_num(r * y)\n",
        # softmax of filled scores may be cleaned afterwards (measured)
        "import torch\ndef f(s, m):\n    return torch.nan_to_num(s.masked_fill(m, float('-inf')).softmax(-1))\n",
        # a loss that is skipped is never differentiated
        "import torch\ndef f(a, b):\n    loss = (a / b).mean()\n    if torch.isnan(loss):\n        return None\n"
        "    return loss\n",
        # clamps of what can't be singular, and those in front
        "import torch\ndef f(x):\n    return torch.exp(x.clamp(max=10.0)).clamp(max=1e4)\n",
        "import torch\ndef f(x):\n    return torch.log1p(x.exp()).clamp(min=0.1)\n",
        "import torch\ndef f(x):\n    return x.clamp(min=1e-6).log().clamp(min=-10.0)\n",
        "import torch\ndef f(x, n: int):\n    return (x / n).clamp(max=1.0)\n",
        "import torch\ndef f(a, b):\n    return (a / b).clamp(max=1.0)\n",
        # a limit after an exponential is another rule's
        "import torch\ndef f(x):\n    return torch.exp(x).clamp(max=1e6)\n",
        # the mask says something about another tensor
        "import torch\ndef f(x, n, y):\n    return (x / n) * (y > 0)\n",
        # a cut-off from above is no guard against zero, and not meant as one
        "import torch\ndef f(a, d):\n    return (a / d) * (d < 1.0)\n",
        "import torch\ndef f(x):\n    lp = x.log_softmax(-1)\n    return torch.nan_to_num(lp.exp() * lp)\n",
        "import torch\ndef f(x):\n    return torch.nan_to_num(x.std(dim=1, unbiased=False))\n",
        "import torch\ndef f(a, n, y):\n    return (a / n.clamp(min=1)).masked_fill(n == 0, 0.0)\n",
        "import torch\ndef f(a, n, y):\n    return (a / n).masked_fill(y == 0, 0.0)\n",
        "import numpy as np\nimport torch\ndef f(a, b):\n    return np.nan_to_num(np.log(a))\n",
    )
    invalid = (
        Invalid("import torch\ndef f(a, b):\n    return torch.nan_to_num(a / b)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    y = x.log()\n    return y.nan_to_num(neginf=0.0).sum()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    y = 1 / x\n    return y.masked_fill(torch.isinf(y), 0.0)\n", (4,)),
        Invalid("import torch\ndef f(d):\n    r = d.pow(-0.5)\n    r[r == float('inf')] = 0\n    return r\n", (4,)),
        Invalid("import torch\ndef f(x):\n    y = x.sqrt()\n    y[torch.isnan(y)] = 0\n    return y\n", (4,)),
        Invalid(
            "import torch\ndef f(a, b):\n    q = a / b\n"
            "    return torch.where(torch.isnan(q), torch.zeros_like(q), q)\n",
            (4,),
        ),
        Invalid(
            "import torch\ndef f(a, b):\n    q = a / b\n    return torch.where(q != q, torch.zeros_like(q), q)\n", (4,)
        ),
        # the degree of a node without edges sends its NaN to nobody: a note
        Invalid(
            "import torch\ndef f(w, index, n):\n    d = w.new_zeros(n).scatter_add(0, index, w)\n    r = d.pow(-0.5)\n"
            "    return r.masked_fill(torch.isinf(r), 0.0)\n",
            (5,),
        ),
        # zero times infinity, from masked scores
        Invalid(
            "import torch\ndef f(logits, legal):\n    lp = logits.masked_fill(~legal, float('-inf')).log_softmax(-1)\n"
            "    return torch.nan_to_num(lp.exp() * lp).sum()\n",
            (4,),
        ),
        # clamped afterwards
        Invalid("import torch\ndef f(x):\n    return x.log().clamp(min=-100.0)\n", (3,)),
        Invalid("import torch\ndef f(x, d):\n    w = 1.0 / d\n    return x * torch.clamp(w, max=1e4)\n", (4,)),
        # multiplied with a mask of the same tensor
        Invalid("import torch\ndef f(a, n):\n    return (a / n) * (n > 0).float()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    ok = x > 0\n    return ok * x.log()\n", (4,)),
        # filled where the operand is singular
        Invalid("import torch\ndef f(a, n):\n    return (a / n).masked_fill(n == 0, 0.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    y = x.rsqrt()\n    y[x == 0] = 0.0\n    return y\n", (4,)),
        # the deviation of a group of one
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.std(dim=1))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        by_node: dict[ast.AST, Singular] | None = None
        seen: set[ast.AST] = set()  # what hides, and what of a product is hidden: an outer product hides it as well
        for hidden in _hidden_results(file):
            if hidden.node in seen or surroundings(file, hidden.node) is not Surroundings.DIFFERENTIATED:
                continue
            if by_node is None:
                by_node = singular_nodes(file)
            maker = _maker(file, hidden, by_node)
            if maker is not None and not (isinstance(hidden.node, ast.BinOp) and maker.node in seen):
                seen |= {hidden.node, maker.node}
                yield _hit(file, hidden, maker)


def _hit(file: FileContext, hidden: _Hidden, maker: _Maker) -> Hit:
    aim = (
        hypothesis(file, maker.singular)
        if maker.singular is not None
        else {
            "operand": shown(file, maker.operand),
            "singular_set": "== -inf",
            "operation": "product",
            "symbol": file.symbol(hidden.node),
            "line": maker.node.lineno,
        }
    )
    return Hit(
        node=hidden.node,
        message=(
            f"{hidden.how} cleans the value, not the gradient: {maker.reason}, and zero times that is NaN. "
            f"Guard the input of `{shown(file, maker.node)}` instead."
        ),
        severity=Severity.NOTE if maker.quiet else None,
        confidence=Confidence.HIGH if maker.known else None,
        hypothesis=aim,
        related=((maker.node, "the NaN is made here"),),
    )


# --- what hides ------------------------------------------------------------------------------------------------------


def _hidden_results(file: FileContext) -> Iterator[_Hidden]:
    for call in file.calls(*_CLEANERS):
        operation = file.values.operation(call)
        if operation is not None and operation.operand is not None:
            yield _Hidden(call, operation.operand, "`nan_to_num`")
    for call in file.calls("masked_fill", "masked_fill_", "where"):
        yield from _filled(file, call)
    for statement in file.nodes(ast.Assign):
        target = statement.targets[0]
        if not isinstance(target, ast.Subscript) or not _may_be_selection(target.slice):
            continue
        if _tests_for_nan(file, target.slice, target.value):
            yield _Hidden(statement, target.value, "This assignment")
        elif _is_condition(file, target.slice):
            yield _Hidden(statement, target.value, "This assignment", target.slice)
    for call in file.calls(*_CLAMPS):
        operation = file.values.operation(call)
        if operation is not None and operation.operand is not None:
            yield from _clamped(file, operation, operation.operand)
    yield from _multiplied(file)


def _may_be_selection(index: ast.expr) -> bool:
    """Whether an index is worth looking up: most are positions."""
    if isinstance(index, ast.UnaryOp):
        index = index.operand
    if isinstance(index, ast.Name):
        return _MASK_NAME.search(index.id) is not None
    return isinstance(index, (ast.Compare, ast.Call, ast.BinOp))


def _filled(file: FileContext, call: ast.Call) -> Iterator[_Hidden]:
    operation = file.values.operation(call)
    if operation is None or operation.operand is None:
        return
    if operation.name != "where":
        mask = operation.argument(0, "mask")
        if mask is not None and _tests_for_nan(file, mask, operation.operand):
            yield _Hidden(call, operation.operand, f"`{operation.name}`")
        elif mask is not None and _is_condition(file, mask):
            yield _Hidden(call, operation.operand, f"`{operation.name}`", mask)
        return
    condition = operation.operand if operation.qualified else operation.argument(0, "condition")
    branches = operation.arguments[:2] if operation.qualified else (operation.operand, *operation.arguments[1:2])
    if condition is not None and len(branches) == 2:
        for branch in branches:
            if _tests_for_nan(file, condition, branch):
                yield _Hidden(call, branch, "`where`")
                return


def _tests_for_nan(file: FileContext, condition: ast.expr, result: ast.expr) -> bool:
    """Whether a condition asks which places of `result` are NaN or infinite."""
    names = {name for name, _ in value_names(result)}
    definition = file.values.single_definition(condition)
    for node in ast.walk(definition if definition is not None else condition):
        if isinstance(node, ast.Call) and terminal_name(node.func) in _NAN_TESTS:
            if names & {name for name, _ in value_names(node)}:
                return True
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
            right = node.comparators[0]
            if infinity(file, right) is not None and names & {name for name, _ in value_names(node.left)}:
                return True
            if isinstance(node.ops[0], ast.NotEq) and ast.dump(node.left) == ast.dump(right):
                return bool(names & {name for name, _ in value_names(right)})
    return False


def _clamped(file: FileContext, operation: Operation, operand: ast.expr) -> Iterator[_Hidden]:
    """A clamp of nothing but a logarithm from below, or of a quotient from above."""
    definition = file.values.single_definition(operand)
    source = definition if definition is not None else operand
    name = operation.name
    lower = None if name == "clamp_max" else operation.argument(0, "min")
    upper = None if name == "clamp_min" else operation.argument(0 if name == "clamp_max" else 1, "max")
    if isinstance(source, ast.Call) and terminal_name(source.func) in ("log", "log2", "log10"):
        if lower is not None and not (isinstance(lower, ast.Constant) and lower.value is None):
            yield _Hidden(operation.call, source, f"`{name}`")
    elif upper is not None and not (isinstance(upper, ast.Constant) and upper.value is None):
        is_quotient = isinstance(source, ast.BinOp) and isinstance(source.op, ast.Div)
        bounded = file.values.value(upper).constant
        # A ratio that is clamped near 1 is a share or a ratio of probabilities: nobody expects infinity there.
        if is_quotient and bounded is not None and bounded >= 100:
            yield _Hidden(operation.call, source, f"`{name}`")


def _multiplied(file: FileContext) -> Iterator[_Hidden]:
    """`f(x) * (x > 0)`: the mask compares what the other factor is singular in."""
    for product in file.nodes(ast.BinOp):
        if not isinstance(product.op, ast.Mult):
            continue
        for mask, other in ((product.left, product.right), (product.right, product.left)):
            if _is_condition(file, mask):
                yield _Hidden(product, other, "The product with the mask", mask, chosen_stays=True)


def _is_condition(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression is a comparison, as numbers or under a name that sounds like a selection."""
    inner = _without_cast(expression)
    if isinstance(inner, ast.Name) and not _MASK_NAME.search(inner.id):
        return False
    return isinstance(_comparison(file, inner), ast.Compare)


def _comparison(file: FileContext, expression: ast.expr) -> ast.expr:
    """The comparison behind a cast to numbers and one variable."""
    inner = _without_cast(expression)
    definition = file.values.single_definition(inner)
    return _without_cast(definition) if definition is not None else inner


def _without_cast(expression: ast.expr) -> ast.expr:
    is_cast = isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute)
    if is_cast and expression.func.attr in ("float", "to", "type_as", "type", "double"):  # type: ignore[attr-defined]
        return expression.func.value  # type: ignore[attr-defined,no-any-return]
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Invert):
        return expression.operand
    return expression


# --- what makes ------------------------------------------------------------------------------------------------------


def _maker(file: FileContext, hidden: _Hidden, by_node: dict[ast.AST, Singular]) -> _Maker | None:
    if hidden.condition is not None:
        return _masked_maker(file, hidden, hidden.condition, by_node)
    is_clamp = isinstance(hidden.node, ast.Call) and terminal_name(hidden.node.func) in _CLAMPS
    if is_clamp:
        return _clamped_maker(file, hidden.what, by_node)
    for node in computed_from(file, hidden.what):
        singular = by_node.get(node)
        if singular is not None:
            found = _singular_maker(file, singular)
            if found is not None:
                return found
        found = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            found = _zero_times_infinity(file, node)
        elif isinstance(node, ast.Call) and terminal_name(node.func) in ("std", "var"):
            found = _deviation(file, node)
        if found is not None:
            return found
    return None


def _deviation(file: FileContext, call: ast.Call) -> _Maker | None:
    """The deviation of a single element is 0/0, and so is its gradient (measured)."""
    operation = file.values.operation(call)
    told = {keyword.arg for keyword in call.keywords} & {"unbiased", "correction"}
    if operation is None or operation.operand is None or told or len(operation.arguments) > 1:
        return None
    value = file.values.value(operation.operand)
    if value.gradient is Gradient.NO or value.is_number or guarded(file, call, operation.operand):
        return None
    reason = f"`{shown(file, call)}` of one element is 0/0 in its slope as well"
    return _Maker(call, operation.operand, reason, None, known=False)


def _singular_maker(file: FileContext, singular: Singular) -> _Maker | None:
    judgement = file.singularities.judge(singular)
    if judgement.surroundings is not Surroundings.DIFFERENTIATED or judgement.guarded:
        return None
    if not _is_differentiated(file, singular, judgement):
        return None
    known = judgement.value.zero in (Zero.CERTAIN_ORIGIN, Zero.ROUNDED)
    if not known and judgement.value.kind is Kind.UNKNOWN and isinstance(singular.operand, ast.Attribute):
        return None  # a setting, most likely
    because = f" {judgement.value.zero_because}" if known and judgement.value.zero_because else ""
    where = "reaches the end of its domain" if singular.form.value == "inverse function" else f"is zero{because}"
    reason = f"where `{shown(file, singular.operand)}` {where}, the slope of the {singular.form.value} is infinite"
    return _Maker(singular.node, singular.operand, reason, singular, known, _is_sum_by_index(file, singular.operand))


def _is_sum_by_index(file: FileContext, operand: ast.expr) -> bool:
    """Whether a value is a sum over the entries that an index gathers, such as the degree of a node."""
    for node in computed_from(file, operand, depth=1):
        if isinstance(node, ast.Call) and _SUMS_BY_INDEX.search(terminal_name(node.func) or ""):
            return True
    return False


def _is_differentiated(file: FileContext, singular: Singular, judgement: Judgement) -> bool:
    """Whether a gradient goes back through the operand, or through what is divided by it (measured: T23d)."""
    if judgement.value.gradient is not Gradient.NO and not judgement.value.is_discrete:
        return True
    if singular.numerator is None:
        return False
    above = file.values.value(singular.numerator)
    return above.gradient is not Gradient.NO and not above.is_number and not above.is_discrete


def _clamped_maker(file: FileContext, source: ast.expr, by_node: dict[ast.AST, Singular]) -> _Maker | None:
    singular = by_node.get(source)
    if singular is None or singular.form not in (Form.LOGARITHM, Form.DIVISION):
        return None
    found = _singular_maker(file, singular)
    # With evidence of a zero the operation itself is reported.
    return found if found is not None and not found.known else None


def _zero_times_infinity(file: FileContext, product: ast.BinOp) -> _Maker | None:
    """`exp(lp) * lp` where `lp` holds -inf in places that a mask selects."""
    for factor, other in ((product.left, product.right), (product.right, product.left)):
        definition = file.values.single_definition(factor)
        source = definition if definition is not None else factor
        if not isinstance(source, ast.Call) or terminal_name(source.func) not in _LOGARITHMS:
            continue
        if not _is_exponential(file, other):
            continue
        fills = infinite_fills(file, source)
        if fills:
            reason = f"`{shown(file, factor)}` is -inf in masked places, and its factor there is zero"
            return _Maker(product, factor, reason)
    return None


def _is_exponential(file: FileContext, expression: ast.expr) -> bool:
    definition = file.values.single_definition(expression)
    source = definition if definition is not None else expression
    return isinstance(source, ast.Call) and terminal_name(source.func) in ("exp", "softmax")


def _masked_maker(
    file: FileContext, hidden: _Hidden, condition: ast.expr, by_node: dict[ast.AST, Singular]
) -> _Maker | None:
    """The operation whose own operand the condition compares: `(1 / n) * (n > 0)`, `y.masked_fill(n == 0, 0)`."""
    compared = compared_names(file, _comparison(file, condition), from_below=hidden.chosen_stays)
    if not compared:
        return None
    for node in computed_from(file, hidden.what, depth=1):
        singular = by_node.get(node)
        if singular is not None and is_about(file, singular.operand, compared):
            found = _singular_maker(file, singular)
            if found is not None:
                return found
    return None
