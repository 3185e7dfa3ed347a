"""`torch.where` around an operation that is singular exactly where it is not chosen (GP114).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.late_masks import compared_names, computed_from, is_about, singular_nodes
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, shown
from analyzer.singularities import Judgement, Singular
from analyzer.values.domain import Gradient, Kind, Value
from analyzer.values.guards import value_names
from analyzer.values.surroundings import Surroundings

# Arguments in the middle of the domain of inverse functions; everything else is finite at one.
_HARMLESS = {
    **dict.fromkeys(("acos", "arccos", "asin", "arcsin", "atanh", "arctanh", "erfinv"), "0.0"),
    **dict.fromkeys(("acosh", "arccosh"), "2.0"),
    "logit": "0.5",
}


class WhereNanTrap(Rule):
    id = "GP114"
    name = "where-nan-trap"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("where",)
    documentation = Documentation(
        what_it_does=(
            "Finds `torch.where(condition, f(x), other)` in which the condition keeps the result of a division, root, "
            "power or logarithm away from its singular point, but not its input."
        ),
        why_is_this_bad=(
            "Both branches are computed, and both are differentiated: the branch that was not chosen gets a gradient "
            "of zero, and zero times the infinite slope at the singular point is NaN. The value is right, the gradient "
            "of the whole batch is not."
        ),
        faulty_example=(
            "import torch\n\n\ndef safe_divide(x, n):\n    return torch.where(n > 0, x / n, torch.zeros_like(x))\n"
        ),
        right_example=(
            "import torch\n\n\ndef safe_divide(x, n):\n    safe = torch.where(n > 0, n, torch.ones_like(n))\n"
            "    return torch.where(n > 0, x / safe, torch.zeros_like(x))\n"
        ),
        fix_safety="Masking the input as well (the double `where`) gives the same values everywhere.",
    )
    valid = (
        # the double where, in one expression and over a variable
        "import torch\ndef f(x, n):\n    return torch.where(n > 0, x / torch.where(n > 0, n, 1.0), 0.0)\n",
        "import torch\ndef f(x, n):\n    safe_n = torch.where(n == 0, torch.ones_like(n), n)\n"
        "    return torch.where(n == 0, 0.0, x / safe_n)\n",
        "import torch\ndef f(x, n):\n    n_safe = n.clamp(min=1e-6)\n    return torch.where(n > 0, x / n_safe, 0.0)\n",
        "import torch\ndef f(x, n):\n    safe = n.masked_fill(n == 0, 1.0)\n"
        "    return torch.where(n > 0, x / safe, 0.0)\n",
        "import torch\ndef f(x):\n    return torch.where(x > 0, (x.abs() + 1e-6).sqrt(), 0.0)\n",
        # nothing here is differentiated
        "import torch\n@torch.no_grad()\ndef f(x, n):\n    return torch.where(n > 0, x / n, 0.0)\n",
        "import torch\ndef f(x):\n    x = x.detach()\n    return torch.where(x > 0, x.log(), 0.0)\n",
        "import torch\nclass RecallMetric:\n    def compute(self, tp, n):\n"
        "        return torch.where(n > 0, tp / n, 0.0)\n",
        # tested before
        "import torch\ndef f(x, n):\n    assert (n > 0).all()\n    return torch.where(n > 1, x / n, x)\n",
        # the condition compares two computed tensors: it keeps nothing away from zero
        "import torch\ndef f(x, r):\n    a = x * 2\n    b = x + 1\n    return torch.where(a > b * r, a / r, b)\n",
        "import torch\ndef f(x, y):\n    r = x * 2\n    b = x + 1\n    return torch.where(r > b, y / r, b)\n",
        # the condition is about something else
        "import torch\ndef f(x, n, flag):\n    return torch.where(flag, x / n, x)\n",
        "import torch\ndef f(x, n):\n    return torch.where(x > 0, x / n, x * n)\n",
        # what is detached sends nothing back
        "import torch\ndef f(x):\n    r = 1 / x\n    s = r.detach()\n    return torch.where(x > 0, s, 0.0), r\n",
        "import torch\ndef f(x):\n    return torch.where(x > 0, (1 / x).detach() * 2, 0.0)\n",
        # one plus something that is not negative
        "import torch\ndef f(x):\n    s = x ** 2\n    t = torch.tanh(s)\n"
        "    return torch.where(s < 1, t / (1 + t), s)\n",
        # sizes and numbers
        "import torch\ndef f(x, size: int):\n    return torch.where(x > size, x / size, x)\n",
        "import torch\ndef f(x):\n    return torch.where(x > 0, x / x.shape[0], x)\n",
        # numpy
        "import numpy as np\nimport torch\ndef f(x, n):\n    return np.where(n > 0, np.log(n), 0.0)\n",
        # where with a condition alone gives indices
        "import torch\ndef f(x):\n    return torch.where(x > 0)\n",
        "import torch\ndef f(x):\n    return torch.where(x > 0, torch.log1p(x.abs()), x)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, n):\n    return torch.where(n > 0, x / n, torch.zeros_like(x))\n", (3,)),
        Invalid("import torch\ndef f(x, n):\n    return torch.where(n == 0, 0.0, x / n)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, torch.sqrt(x), 0.0)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, x.log(), torch.zeros_like(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    y = x.sqrt()\n    return torch.where(x > 0, y, 0.0)\n", (3,)),
        Invalid(
            "import torch\ndef f(x):\n    ok = x > 1e-6\n    y = 1 / x\n    return torch.where(ok, y, 0.0)\n", (4,)
        ),
        Invalid("import torch\ndef f(t, knee):\n    return torch.where(t > knee, t.pow(1 / 3), 7.787 * t)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.sqrt().where(x > 0, torch.zeros_like(x))\n", (3,)),
        # a constant divisor of zero is as bad: the gradient of the numerator is NaN (measured)
        Invalid("import torch\ndef f(x, n):\n    n = n.detach()\n    return torch.where(n > 0, x / n, 0.0)\n", (4,)),
        # through two variables
        Invalid(
            "import torch\ndef f(a, n):\n    r = 1 / n\n    q = a * r\n    return torch.where(n > 0, q, 0.0)\n", (3,)
        ),
        # one fault, not two
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, 1 / torch.sqrt(x), 1.0)\n", (3,)),
        Invalid(
            "import torch\ndef f(x, d):\n    r = d.sqrt()\n    return torch.where(d > 0, x / r, torch.zeros_like(x))\n",
            (3,),
        ),
        # computed in one step from what is compared
        Invalid(
            "import torch\ndef f(x, d):\n    r = d * 2.0\n    return torch.where(d > 0, x / r, torch.zeros_like(x))\n",
            (4,),
        ),
        # the input is clamped to where it is singular
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, x.clamp(min=0).sqrt(), 0.0)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        by_node: dict[ast.AST, Singular] | None = None
        seen: set[ast.AST] = set()
        for call in file.calls("where"):
            choice = _choice(file, call)
            if choice is None:
                continue
            if by_node is None:
                by_node = singular_nodes(file)
            for singular, judgement, branch in _trapped(file, choice, by_node):
                if singular.node in seen:
                    continue
                seen.add(singular.node)
                yield Hit(
                    node=singular.node,
                    message=(
                        f"`torch.where` hides the result of this {singular.form.value} where "
                        f"`{shown(file, singular.operand)}` is singular, but not its gradient: the branch that is not "
                        f"chosen sends back zero times infinity, which is NaN. Mask the input instead."
                    ),
                    confidence=None if judgement.value.kind is not Kind.UNKNOWN else Confidence.MEDIUM,
                    hypothesis=hypothesis(file, singular),
                    related=((choice.condition, "this condition masks the result, not the input"),),
                    fix=_double_where(file, choice, singular, branch),
                )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A `where` with a condition on values: the branches in the order (where it holds, where not)."""

    call: ast.Call
    condition: ast.expr
    branches: tuple[ast.expr, ...]
    compared: frozenset[str]


def _choice(file: FileContext, call: ast.Call) -> _Choice | None:
    operation = file.values.operation(call)
    if operation is None:
        return None
    if operation.qualified:
        condition, branches = operation.operand, operation.arguments[:2]
    else:
        condition, branches = (
            operation.argument(0, "condition"),
            tuple(branch for branch in (operation.operand, operation.argument(1, "other")) if branch is not None),
        )
    if condition is None or len(branches) != 2:
        return None
    compared = compared_names(file, condition)
    return _Choice(call, condition, branches, compared) if compared else None


def _trapped(
    file: FileContext, choice: _Choice, by_node: dict[ast.AST, Singular]
) -> Iterator[tuple[Singular, Judgement, int]]:
    """The singular operations whose result a `where` hides under a condition on their own operand."""
    found: list[tuple[Singular, Judgement, int]] = []
    for position, branch in enumerate(choice.branches):
        for node in computed_from(file, branch):
            singular = by_node.get(node)
            if singular is None or not is_about(file, singular.operand, choice.compared):
                continue
            judgement = file.singularities.judge(singular)
            if _is_trap(file, singular, judgement):
                found.append((singular, judgement, position))
    nodes = {singular.node for singular, _, _ in found}
    for singular, judgement, position in found:
        # Of `1 / sqrt(x)` only the root is reported: masking its input mends the division as well.
        if not any(inner in nodes for inner in computed_from(file, singular.operand, depth=1)):
            yield singular, judgement, position


def _is_trap(file: FileContext, singular: Singular, judgement: Judgement) -> bool:
    if judgement.surroundings is not Surroundings.DIFFERENTIATED or judgement.guarded:
        return False
    return judgement.value.gradient is not Gradient.NO or _numerator(file, singular).gradient is not Gradient.NO


def _numerator(file: FileContext, singular: Singular) -> Value:
    """What is divided; of other operations nothing but the operand carries a gradient."""
    source = singular.numerator if singular.numerator is not None else singular.operand
    return file.values.value(source)


# --- the fix ---------------------------------------------------------------------------------------------------------


def _double_where(file: FileContext, choice: _Choice, singular: Singular, position: int) -> Rewrite | None:
    """The operand where the branch is chosen, a harmless number elsewhere: the values stay the same."""
    where = file.spelling("torch.where")
    if where is None or singular.operand not in file.index.parents:
        return None
    condition = _condition_at(file, choice.condition, singular.node)
    if condition is None:
        return None
    filling = _HARMLESS.get(singular.name, "1.0")
    operand = file.source(singular.operand)
    chosen = f"{operand}, {filling}" if position == 0 else f"{filling}, {operand}"
    replacement = Replacement(singular.operand, f"{where}({condition}, {chosen})")
    return Rewrite(FixSafety.SAFE, (replacement,))


def _condition_at(file: FileContext, condition: ast.expr, place: ast.AST) -> str | None:
    """The text of a condition that means the same at an earlier place; None when a name of it changes in between."""
    source = condition
    for _ in range(2):
        if _means_the_same(file, source, place):
            return file.source(source)
        definition = file.values.single_definition(source)
        if definition is None:
            return None
        source = definition
    return None


def _means_the_same(file: FileContext, condition: ast.expr, place: ast.AST) -> bool:
    function, statement = file.enclosing_function(place), file.statement(place)
    if function is None or statement is None or file.enclosing_function(condition) is not function:
        return False
    if statement is file.statement(condition):
        return True
    bindings = file.values.bindings(function)
    return all(
        bindings.reaching(name, statement) == bindings.reaching(name, file.statement(node))
        for name, node in value_names(condition)
    )
