"""`torch.where` around an operation that is singular exactly where it is not chosen (GP114).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import hypothesis, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.values.domain import Gradient, Kind, Value
from analyzer.values.guards import value_names
from analyzer.values.surroundings import Surroundings

_CONDITION_CALLS = frozenset({"gt", "ge", "lt", "le", "eq", "ne", "isclose", "isfinite", "isnan", "isinf"})


class WhereNanTrap(Rule):
    id = "GP114"
    name = "where-nan-trap"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
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
        # the condition is about something else
        "import torch\ndef f(x, n, flag):\n    return torch.where(flag, x / n, x)\n",
        "import torch\ndef f(x, n):\n    return torch.where(x > 0, x / n, x * n)\n",
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
        # the input is clamped to where it is singular
        Invalid("import torch\ndef f(x):\n    return torch.where(x > 0, x.clamp(min=0).sqrt(), 0.0)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        seen: set[ast.AST] = set()
        for call in file.calls("where"):
            for singular, judgement, condition in _trapped(file, call):
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
                    related=((condition, "this condition masks the result, not the input"),),
                )


def _trapped(file: FileContext, call: ast.Call) -> Iterator[tuple[Singular, Judgement, ast.expr]]:
    """The singular operations whose result a `where` hides under a condition on their own operand."""
    operation = file.values.operation(call)
    if operation is None:
        return
    if operation.qualified:
        condition, branches = operation.operand, operation.arguments[:2]
    else:
        condition, branches = (
            operation.argument(0, "condition"),
            tuple(branch for branch in (operation.operand, operation.argument(1, "other")) if branch is not None),
        )
    if condition is None or len(branches) != 2:
        return
    tested = _tested(file, condition)
    if not tested:
        return
    by_node: dict[ast.AST, Singular] = {singular.node: singular for singular in file.singularities.of(*Form)}
    for branch in branches:
        for node in _computed_in(file, branch):
            singular = by_node.get(node)
            if singular is None or not _is_about(file, singular.operand, tested):
                continue
            judgement = file.singularities.judge(singular)
            if _is_trap(file, singular, judgement):
                yield singular, judgement, condition


def _is_trap(file: FileContext, singular: Singular, judgement: Judgement) -> bool:
    if judgement.surroundings is not Surroundings.DIFFERENTIATED or judgement.guarded:
        return False
    return judgement.value.gradient is not Gradient.NO or _numerator(file, singular).gradient is not Gradient.NO


def _numerator(file: FileContext, singular: Singular) -> Value:
    """What is divided; of other operations nothing but the operand carries a gradient."""
    source = singular.numerator if singular.numerator is not None else singular.operand
    return file.values.value(source)


def _tested(file: FileContext, condition: ast.expr) -> frozenset[str]:
    """The names whose values a condition compares with a bound, looking through one variable that holds it."""
    definition = file.values.single_definition(condition)
    expression = definition if definition is not None else condition
    names: set[str] = set()
    for node in ast.walk(expression):
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            for side, bound in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
                if _is_bound(file, bound):
                    names |= {name for name, _ in value_names(side)}
        elif isinstance(node, ast.Call):
            operation = file.values.operation(node)
            if operation is not None and operation.name in _CONDITION_CALLS and operation.operand is not None:
                names |= {name for name, _ in value_names(operation.operand)}
    return frozenset(names)


def _is_bound(file: FileContext, expression: ast.expr) -> bool:
    """Whether one side of a comparison is a limit, and no other computed tensor."""
    if isinstance(expression, (ast.Constant, ast.UnaryOp, ast.Attribute)):
        return True
    value = file.values.value(expression)
    is_given = isinstance(expression, ast.Name) and not file.values.definitions(expression)
    return is_given or value.is_number or value.constant is not None


def _is_about(file: FileContext, operand: ast.expr, tested: frozenset[str]) -> bool:
    """Whether all tensors of an operand are compared in the condition: then it is there to keep them away."""
    names = {name for name, node in value_names(operand) if not file.values.value(node).is_number}
    return bool(names) and names <= tested


def _computed_in(file: FileContext, branch: ast.expr) -> Iterator[ast.AST]:
    """The expressions that a branch is computed from: its own, and those of one variable it stands for."""
    definition = file.values.single_definition(branch)
    yield from ast.walk(definition if definition is not None else branch)
