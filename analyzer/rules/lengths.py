"""The length of a vector given by its components, which has no gradient at the origin (GP113).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.apart import is_edge
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import sum_of_squares
from analyzer.raw_inputs import made_of_raw_inputs
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form, Singular
from analyzer.values.domain import Gradient, Kind, Value, Zero
from analyzer.values.guards import guarded
from analyzer.values.surroundings import Surroundings, surroundings

# Added to the sum of squares: 1e-6 is the shortest length that is still told from zero.
_FLOOR = "1e-12"


class LengthOfComponents(Rule):
    id = "GP113"
    name = "length-at-origin"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient",)
    fix = FixSafety.SAFE
    triggers = ("hypot", "sqrt", "**", "pow")
    documentation = Documentation(
        what_it_does="Finds `torch.hypot(x, y)` and `sqrt(x ** 2 + y ** 2)` (also of three components) without eps.",
        why_is_this_bad=(
            "Where all components are zero - a flat region of an image, a vector of no length - the value is zero and "
            "the gradient NaN (measured, for `hypot` as well). `torch.linalg.vector_norm` and `abs` of a complex "
            "tensor have a gradient of zero there."
        ),
        faulty_example=(
            "import torch\n\n\ndef edges(image):\n    dx = image[..., 1:, 1:] - image[..., 1:, :-1]\n"
            "    dy = image[..., 1:, 1:] - image[..., :-1, 1:]\n    return torch.sqrt(dx ** 2 + dy ** 2)\n"
        ),
        right_example=(
            "import torch\n\n\ndef edges(image):\n    dx = image[..., 1:, 1:] - image[..., 1:, :-1]\n"
            "    dy = image[..., 1:, 1:] - image[..., :-1, 1:]\n"
            "    return torch.linalg.vector_norm(torch.stack((dx, dy)), dim=0)\n"
        ),
        fix_safety=(
            "`z.abs()` for the parts of a complex tensor gives the same values (safe). An eps of 1e-12 under the root "
            "makes the length of nothing 1e-6 (unsafe)."
        ),
    )
    valid = (
        "import torch\ndef f(x, y):\n    return torch.sqrt(x ** 2 + y ** 2 + 1e-12)\n",
        "import torch\ndef f(x, y, eps=1e-8):\n    return (x * x + y * y + eps).sqrt()\n",
        "import torch\ndef f(x, y, eps=1e-8):\n    return (x * x + y * y).clamp(min=eps).sqrt()\n",
        "import torch\ndef f(x, y):\n    return torch.linalg.vector_norm(torch.stack((x, y)), dim=0)\n",
        # the built-in length of a complex number has a gradient of zero at zero (measured)
        "import torch\ndef f(z):\n    return z.abs() + torch.abs(z)\n",
        "import torch\ndef f(x, y):\n    return x ** 2 + y ** 2\n",
        "import torch\ndef f(x):\n    return torch.sqrt(1 + x ** 2)\n",
        "import torch\ndef f(x, y):\n    return torch.hypot(x, y.exp())\n",
        "import torch\ndef f(x, y):\n    y = y.abs() + 1e-6\n    return torch.sqrt(x ** 2 + y ** 2)\n",
        "import math\nimport torch\ndef f(w, a: float, b: float):\n"
        "    return w * math.hypot(a, b) * (a ** 2 + b ** 2) ** 0.5\n",
        "import torch\ndef f(a, b):\n    return (a ** 2 + b ** 2) ** 0.5\n",
        "import torch\n@torch.no_grad()\ndef f(x, y):\n    return torch.hypot(x, y) + torch.sqrt(x ** 2 + y ** 2)\n",
        # GP104's and GP101's
        "import torch\ndef f(x, y, z):\n    return z / (torch.sqrt(x ** 2 + y ** 2) + 1e-8)\n",
        "import torch\ndef f(x, y, z):\n    return z / torch.sqrt(x.relu() ** 2 + y.relu() ** 2)\n",
        "import torch\ndef f(x, y):\n    return torch.hypot(x.detach(), y.detach())\n",
        "import torch\ndef f(x, y):\n    if (x == 0).any():\n        return x\n    return torch.hypot(x, y)\n",
        "import numpy as np\nimport torch\ndef f(x, y):\n    return np.hypot(x, y)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x, y):\n    return torch.hypot(x, y)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return x.hypot(y)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return torch.sqrt(x ** 2 + y ** 2)\n", (3,)),
        Invalid("import torch\ndef f(x: torch.Tensor, y):\n    return (x * x + y.square()) ** 0.5\n", (3,)),
        Invalid("import torch\ndef f(x, y, z):\n    r2 = x.pow(2) + y.pow(2) + z.pow(2)\n    return r2.sqrt()\n", (4,)),
        Invalid("import torch\ndef f(x, y, z):\n    return z / torch.sqrt(x ** 2 + y ** 2)\n", (3,)),
        Invalid("import torch\ndef f(p):\n    return torch.sqrt(p[..., 0] ** 2 + p[..., 1] ** 2)\n", (3,)),
        Invalid("import torch\ndef f(z):\n    return torch.sqrt(z.real ** 2 + z.imag ** 2)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return torch.sqrt(x ** 2 + y ** 2).clamp(min=1e-6)\n", (3,)),
        Invalid("import torch\ndef f(x, y):\n    return torch.nan_to_num(torch.hypot(x, y))\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.ROOT):
            components = sum_of_squares(file, singular.operand)
            judgement = file.singularities.judge(singular)
            if not components or judgement.guarded or not judgement.differentiable:
                continue
            if _is_reported_elsewhere(file, singular.node, judgement.value):
                continue
            if isinstance(singular.node, ast.Call) or _has_tensor(file, components):
                yield _hit(file, singular.node, components, _under_root(file, singular, components))
        for call in file.calls("hypot", "hypot_"):
            yield from _of_hypot(file, call)


def _has_tensor(file: FileContext, components: list[ast.expr]) -> bool:
    """Whether anything says that the components are tensors: `(a ** 2 + b ** 2) ** 0.5` may be of Python numbers."""
    return any(file.values.value(component).kind is Kind.TENSOR for component in components)


def _is_reported_elsewhere(file: FileContext, root: ast.AST, value: Value) -> bool:
    """Whether the root stands before an added eps (GP104), or divides and is known to be zero (GP101)."""
    parent = file.parent(root)
    if not isinstance(parent, ast.BinOp):
        return False
    divides = isinstance(parent.op, ast.Div) and parent.right is root
    return isinstance(parent.op, ast.Add) or (divides and value.zero is Zero.CERTAIN_ORIGIN)


def _of_hypot(file: FileContext, call: ast.Call) -> Iterator[Hit]:
    operation = file.values.operation(call)
    other = operation.argument(0, "other") if operation is not None else None
    if operation is None or operation.operand is None or other is None:
        return
    components = [operation.operand, other]
    values = [file.values.value(component) for component in components]
    if any(_keeps_away(value) for value in values) or all(value.gradient is Gradient.NO for value in values):
        return
    if surroundings(file, call) is not Surroundings.DIFFERENTIATED:
        return
    if any(guarded(file, call, component) for component in components):
        return
    spelled = file.spelling("torch.sqrt")
    fix = None
    if spelled is not None:
        squares = " + ".join(f"{file.operand_source(component)} ** 2" for component in components)
        fix = Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{spelled}({squares} + {_FLOOR})"),))
    yield _hit(file, call, components, fix)


def _keeps_away(value: Value) -> bool:
    return value.is_number or value.kind is Kind.OTHER or value.positive or value.zero is Zero.EXCLUDED


def _hit(file: FileContext, node: ast.expr | ast.stmt, components: list[ast.expr], fix: Rewrite | None) -> Hit:
    names = " and ".join(f"`{shown(file, component)}`" for component in components)
    quiet = all(is_edge(file, component) or made_of_raw_inputs(file, component) for component in components)
    return Hit(
        node=node,
        severity=Severity.NOTE if quiet else None,
        message=(
            f"Where {names} are all zero, the gradient of this length is NaN, and the value looks right. "
            "`torch.linalg.vector_norm` has a gradient of zero there; an eps under the root keeps away from it."
        ),
        hypothesis={
            "operand": ", ".join(file.source(component) for component in components),
            "singular_set": "all == 0",
            "operation": "length",
            "symbol": file.symbol(node),
            "line": node.lineno,
        },
        related=tuple((component, "nothing keeps this away from zero") for component in components),
        fix=fix,
    )


def _under_root(file: FileContext, singular: Singular, components: list[ast.expr]) -> Rewrite | None:
    """`z.abs()` for the parts of one complex tensor, an eps under the root for anything else."""
    node, owner = singular.node, _complex_owner(components)
    if owner is not None and isinstance(node, ast.expr):
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{file.operand_source(owner)}.abs()"),))
    operand = singular.operand
    text = file.operand_source(operand) if not isinstance(operand, ast.BinOp) else file.source(operand)
    return Rewrite(FixSafety.UNSAFE, (Replacement(operand, f"{text} + {_FLOOR}"),))


def _complex_owner(components: list[ast.expr]) -> ast.expr | None:
    parts = [part for part in components if isinstance(part, ast.Attribute)]
    if len(parts) != 2 or len(components) != 2 or {part.attr for part in parts} != {"real", "imag"}:
        return None
    return parts[0].value if ast.dump(parts[0].value) == ast.dump(parts[1].value) else None
