"""Formulas that lose their digits near zero (GP111), and those that are 0 / 0 there (GP129).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import minus_one, one_minus, one_plus, operation_behind, removable_singularity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, shown
from analyzer.singularities import Form, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Value, Zero
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings


class CancellationNearZero(Rule):
    id = "GP111"
    name = "cancellation-near-zero"
    severity = Severity.NOTE
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("log", "exp")
    documentation = Documentation(
        what_it_does="Finds `log(1 + x)`, `exp(x) - 1` and `1 - exp(x)` of tensors.",
        why_is_this_bad=(
            "Where x is small, adding one rounds it away: in float32 `log(1 + 1e-8)` is 0 and `exp(1e-8) - 1` is 0, "
            "so that nothing is left of x, and a division by the result is a division by zero. `log1p` and `expm1` "
            "keep all digits."
        ),
        faulty_example="import torch\n\n\ndef opacity(density, step):\n    return 1 - torch.exp(-density * step)\n",
        right_example="import torch\n\n\ndef opacity(density, step):\n    return -torch.expm1(-density * step)\n",
        fix_safety="`log1p` and `expm1` give the same values, with more digits near zero.",
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.log1p(x) + torch.expm1(x)\n",
        # x is large, or a count
        "import torch\ndef f(x):\n    return torch.log(1 + torch.bincount(x))\n",
        "import torch\ndef f(n: int, x):\n    return x * torch.log(torch.tensor(1 + n))\n",
        "import torch\ndef f(x):\n    return torch.log(2 + x)\n",
        "import torch\ndef f(x):\n    return torch.exp(x) - 2\n",
        # another rule's formula
        "import torch\ndef f(x):\n    return torch.log(1 + torch.exp(-x.abs()))\n",
        "import math\nimport torch\ndef f(x, k: float):\n    return x * (1 - math.exp(-k)) * math.log(1 + k)\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.log(1 + x)\n",
        "import torch\ndef f(x):\n    return torch.log10(1 + x)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.log(1 + x)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (x.abs() + 1.0).log()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.exp(x) - 1\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return 1 - x.exp()\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return y * (1.0 - torch.exp(-x * y))\n", (3,)),
        Invalid("import torch\nfrom torch import exp\ndef f(x):\n    return exp(x) - 1\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls("log"):
            operation = file.values.operation(call)
            inner = one_plus(file, operation.operand) if operation is not None and operation.operand else None
            if operation is None or inner is None or not self._is_small(file, call, inner):
                continue
            if operation_behind(file, inner, "exp") is not None:
                continue
            yield self._hit(file, call, inner, "log1p", _log1p(file, operation, inner))
        for difference in file.nodes(ast.BinOp):
            if isinstance(difference.op, ast.Sub):
                yield from self._of_difference(file, difference)

    def _of_difference(self, file: FileContext, difference: ast.BinOp) -> Iterator[Hit]:
        if not isinstance(difference.left, ast.Constant) and not isinstance(difference.right, ast.Constant):
            return
        call = minus_one(file, difference) or one_minus(file, difference)
        operation = file.values.operation(call) if isinstance(call, ast.Call) else None
        if operation is None or operation.name != "exp" or operation.operand is None:
            return
        if not self._is_small(file, difference, operation.operand):
            return
        sign = "-" if call is difference.right else ""
        yield self._hit(file, difference, operation.operand, "expm1", _expm1(file, difference, operation, sign))

    @staticmethod
    def _is_small(file: FileContext, node: ast.AST, argument: ast.expr) -> bool:
        """Whether an argument is a tensor that may come close to zero, in code whose digits matter."""
        value = file.values.value(argument)
        if value.is_number or value.is_discrete or value.kind is Kind.OTHER or value.mask or value.low >= 1e-3:
            return False
        return surroundings(file, node) is Surroundings.DIFFERENTIATED

    @staticmethod
    def _hit(file: FileContext, node: ast.expr, argument: ast.expr, name: str, fix: Rewrite | None) -> Hit:
        return Hit(
            node=node,
            message=(
                f"Where `{shown(file, argument)}` is small, one rounds it away, and `{shown(file, node)}` has few "
                f"digits left or none. `torch.{name}` keeps them."
            ),
            hypothesis={
                "operand": file.source(argument),
                "singular_set": "near 0",
                "operation": name,
                "symbol": file.symbol(node),
                "line": node.lineno,
            },
            related=((argument, "this is what is rounded away"),),
            fix=fix,
        )


def _log1p(file: FileContext, operation: Operation, inner: ast.expr) -> Rewrite | None:
    """`torch.log1p(x)`, where the sum stands in the logarithm itself."""
    operand = operation.operand
    if not isinstance(operand, ast.BinOp) or inner not in (operand.left, operand.right):
        return None
    spelled = file.spelling("torch.log1p")
    if spelled is None:
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(operation.call, f"{spelled}({file.source(inner)})"),))


def _expm1(file: FileContext, difference: ast.BinOp, operation: Operation, sign: str) -> Rewrite | None:
    spelled, argument = file.spelling("torch.expm1"), operation.operand
    if spelled is None or argument is None or operation.call not in (difference.left, difference.right):
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(difference, f"{sign}{spelled}({file.source(argument)})"),))


class RemovableSingularity(Rule):
    id = "GP129"
    name = "removable-singularity"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("sin", "cos", "tan", "exp", "log", "erf")
    documentation = Documentation(
        what_it_does=(
            "Finds quotients that have a limit at zero but no value there: `sin(x) / x`, `(1 - cos(x)) / x ** 2`, "
            "`(exp(x) - 1) / x`, `tanh(x) / x`, `log(1 + x) / x`, `x / sinh(x)` and the like."
        ),
        why_is_this_bad=(
            "At zero - the rotation that turns nothing, a time step of nothing - value and gradient are 0 / 0 = NaN "
            "(measured). Choosing the limit afterwards with `torch.where` repairs the value only. Near zero, "
            "`exp(x) - 1` and `1 - cos(x)` have no digits left."
        ),
        faulty_example="import torch\n\n\ndef window(x):\n    return torch.sin(x) / x\n",
        right_example="import torch\n\n\ndef window(x):\n    return torch.sinc(x / torch.pi)\n",
        fix_safety=(
            "`torch.sinc(x / torch.pi)` gives the values of `sin(x) / x` (safe). The other quotients get no fix: use "
            "the first terms of their series where x is small, and mask the input of the quotient, not its result."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return torch.sinc(x)\n",
        "import torch\ndef f(x):\n    return torch.sin(x) / x.abs().clamp(min=1e-6)\n",
        "import torch\ndef f(w):\n    t = w.norm(dim=-1, keepdim=True).clamp(min=1e-7)\n"
        "    return torch.sin(t) / t * w\n",
        "import torch\ndef f(w, eps=1e-8):\n    t = w.norm(dim=-1) + eps\n    return torch.sin(t) / t\n",
        # GP114 has more to say of a branch that is computed and then left out
        "import torch\ndef f(x):\n    return torch.where(x == 0, 1.0, torch.sin(x) / x)\n",
        "import torch\ndef f(x, y):\n    return torch.sin(x) / y\n",
        "import torch\ndef f(x):\n    return torch.sin(x) / torch.cos(x)\n",
        "import torch\ndef f(x):\n    safe = torch.where(x == 0, torch.ones_like(x), x)\n"
        "    return torch.where(x == 0, 1.0, torch.sin(safe) / safe)\n",
        "import torch\ndef f(x):\n    if x.abs().min() < 1e-4:\n        return 1 - x ** 2 / 6\n"
        "    return torch.sin(x) / x\n",
        "import torch\ndef f(x):\n    x = x[x != 0]\n    return torch.sin(x) / x\n",
        "import math\nimport torch\ndef f(w, t: float):\n    return w * math.sin(t) / t\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.sin(x) / x\n",
        # the argument has changed in between
        "import torch\ndef f(x):\n    s = torch.sin(x)\n    x = x + 1\n    return s / x\n",
        "import torch\n@torch.no_grad()\ndef table(n):\n    x = torch.arange(1, n)\n    return torch.sin(x) / x\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.sin(x) / x\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (3 * x).sin() / (3 * x)\n", (3,)),
        Invalid(
            "import torch\ndef f(w):\n    t = w.norm(dim=-1, keepdim=True)\n    return torch.sin(t) / t * w\n", (4,)
        ),
        Invalid("import torch\ndef f(x):\n    return (1 - torch.cos(x)) / x ** 2\n", (3,)),
        Invalid("import torch\ndef f(x):\n    c = 1 - torch.cos(x)\n    return c / (x * x)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return (torch.exp(x) - 1) / x\n", (3,)),
        Invalid("import torch\ndef f(d, t):\n    return (1 - torch.exp(-d)) / d * t\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.expm1(x) / x\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.tanh(x) / x\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.log1p(x) / x\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x / torch.sinh(x)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.div(x, torch.tanh(x))\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(torch.sin(x) / x, nan=1.0)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.DIVISION):
            node, numerator = singular.node, singular.numerator
            if numerator is None or not isinstance(node, ast.expr):
                continue
            name = removable_singularity(file, numerator, singular.operand)
            if name is None or not self._can_be_zero(file, singular) or _is_chosen(file, node):
                continue
            unrecorded = surroundings(file, node) is Surroundings.UNRECORDED
            yield Hit(
                node=node,
                message=(
                    f"`{shown(file, node)}` has a limit at zero, but there it is 0 / 0: value and gradient are NaN. "
                    f"{'Use `torch.sinc`.' if name == 'sin' else 'Keep the argument away from zero before this.'}"
                ),
                severity=Severity.NOTE if unrecorded else None,
                hypothesis={**hypothesis(file, singular), "singular_set": "== 0"},
                related=((singular.operand, "nothing keeps this away from zero"),),
                fix=_sinc(file, singular, numerator) if name == "sin" else None,
            )

    @staticmethod
    def _can_be_zero(file: FileContext, singular: Singular) -> bool:
        judgement = file.singularities.judge(singular)
        assert singular.numerator is not None
        values = (judgement.value, file.values.value(singular.numerator))
        if any(_is_elsewhere(value) for value in values) or judgement.guarded:
            return False
        return judgement.surroundings is not Surroundings.ASIDE


def _is_elsewhere(value: Value) -> bool:
    """Whether a value is no tensor, a constant table, or never zero."""
    return value.is_number or value.kind is Kind.OTHER or value.zero is Zero.EXCLUDED or value.is_discrete


def _is_chosen(file: FileContext, node: ast.AST) -> bool:
    """Whether the quotient stands in a `where`, about which GP114 has more to say."""
    for outer in file.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, ast.Call) and terminal_name(outer.func) == "where":
            return True
    return False


def _sinc(file: FileContext, singular: Singular, numerator: ast.expr) -> Rewrite | None:
    """`torch.sinc(x / torch.pi)`, where sin(x) is what is divided by x."""
    sinc, pi = file.spelling("torch.sinc"), file.spelling("torch.pi")
    sine = operation_behind(file, numerator, "sin")
    node = singular.node
    if sinc is None or pi is None or sine is None or not isinstance(node, ast.expr):
        return None
    text = f"{sinc}({file.operand_source(singular.operand)} / {pi})"
    return Rewrite(FixSafety.SAFE, (Replacement(node, text),))
