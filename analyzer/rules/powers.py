"""Powers whose base can be zero or negative where the exponent is no integer (GP106).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.formulas import core
from analyzer.repairs import floored
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import hypothesis, path_of, shown
from analyzer.singularities import Form, Judgement, Singular
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Kind, Value, Zero
from analyzer.values.surroundings import Surroundings

_POWERS = ("pow", "pow_", "float_power")
_FLOOR = "1e-6"


class FractionalPower(Rule):
    id = "GP106"
    name = "fractional-power"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient", "gradcheck")
    fix = FixSafety.UNSAFE
    triggers = ("**", "pow")
    documentation = Documentation(
        what_it_does=(
            "Finds powers between 0 and 1 (other than the square root) of a tensor that can be exactly zero, powers "
            "with a fractional exponent of a tensor that takes negative values, and powers with a learned exponent of "
            "a tensor that nothing keeps positive."
        ),
        why_is_this_bad=(
            "A fractional power of a negative number is NaN. At zero the slope of a power below one is infinite. And "
            "the gradient with respect to a learned exponent contains the logarithm of the base: it is NaN for every "
            "negative base, even where the exponent happens to be an integer and the value is right (measured)."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\n\nclass Gamma(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.gamma = nn.Parameter(torch.ones(1))\n\n"
            "    def forward(self, volume):\n        return volume ** self.gamma\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\n\nclass Gamma(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.gamma = nn.Parameter(torch.ones(1))\n\n"
            "    def forward(self, volume):\n"
            "        return volume.sign() * volume.abs().clamp(min=1e-6) ** self.gamma\n"
        ),
        fix_safety=(
            "A floor of 1e-6 under the base gives the same values above it, and takes the gradient away below it. To "
            "keep the sign of negative bases, write `x.sign() * x.abs().clamp(min=1e-6) ** p` instead."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    return x ** 2 + x.pow(3) + x ** 0.5\n",
        "import torch\ndef f(x):\n    return x.clamp(min=1e-6) ** (1 / 3)\n",
        "import torch\ndef f(x):\n    return (x.abs() + 1e-6) ** 0.3\n",
        # nothing says that it is ever zero or negative
        "import torch\ndef f(x):\n    return x ** 1.5 + x ** 0.25\n",
        # an exponent that is a setting: focal losses
        "import torch\ndef f(x, gamma=2.0):\n    p = x.sigmoid()\n    return (1 - p) ** gamma\n",
        "import torch\nclass L:\n    def __init__(self, gamma):\n        self.gamma = gamma\n"
        "    def forward(self, x):\n        return (1 - x.sigmoid()).pow(self.gamma)\n",
        # a constant base
        "import torch\ndef f(dim):\n    return 1.0 / (10000 ** (torch.arange(0, dim, 2).float() / dim))\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.p = nn.Parameter(torch.ones(1))\n    def forward(self, x):\n        return x * 2 ** self.p\n",
        # generalised mean pooling, as it should be
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\nclass GeM(nn.Module):\n"
        "    def __init__(self, p=3.0, eps=1e-6):\n        super().__init__()\n"
        "        self.p = nn.Parameter(torch.ones(1) * p)\n        self.eps = eps\n    def forward(self, x):\n"
        "        return F.adaptive_avg_pool2d(x.clamp(min=self.eps).pow(self.p), 1).pow(1.0 / self.p)\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.p = nn.Parameter(torch.ones(1))\n    def forward(self, x, scale: float):\n"
        "        return torch.relu(x) ** self.p + scale ** self.p\n",
        "import torch\ndef f(mask, x):\n    return x * (mask - 0.5).abs() + mask ** 1.5\n",
        # the sign is kept apart
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.p = nn.Parameter(torch.ones(1))\n    def forward(self, x):\n"
        "        return x.sign() * (x.abs() + 1e-6) ** self.p\n",
        "import torch\n@torch.no_grad()\ndef f(x):\n    return x.abs() ** 0.3\n",
        "import torch\ndef f(x):\n    y = torch.tanh(x)\n    return torch.where(y > 0, y, torch.ones_like(y)) ** 1.5\n",
        "import torch\ndef f(x):\n    y = torch.tanh(x)\n    if (y > 0).all():\n        return y ** 1.5\n"
        "    return y\n",
        "import numpy as np\nimport torch\ndef f(x):\n    return np.abs(x) ** 0.3\n",
        "import torch\ndef f(a, b):\n    return (a - b) ** 2.0\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return x.abs() ** (1 / 3)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.pow(x.relu(), 0.25)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.clamp(min=0).pow(0.4)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return x.pow(2).sum(-1) ** 0.3\n", (3,)),
        # negative bases
        Invalid("import torch\ndef f(x):\n    return torch.tanh(x) ** 1.5\n", (3,)),
        Invalid("import torch\ndef f(a, b):\n    return (a - b).pow(1.5).sum()\n", (3,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(a, b):\n"
            "    return F.cosine_similarity(a, b).pow(1 / 3)\n",
            (4,),
        ),
        Invalid("import torch\ndef f(x):\n    z = (x - x.mean()) / (x.std() + 1e-6)\n    return z ** 2.2\n", (4,)),
        # learned exponents
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.p = nn.Parameter(torch.ones(1))\n    def forward(self, x):\n"
            "        return x ** self.p\n",
            (8,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n        self.log_gamma = nn.Parameter(torch.tensor(0.2))\n"
            "    def forward(self, volume):\n        gamma = torch.exp(self.log_gamma)\n"
            "        return torch.pow(volume, gamma)\n",
            (9,),
        ),
        Invalid("import torch\ndef f(x):\n    return torch.nan_to_num(x.abs() ** 0.3)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for singular in file.singularities.of(Form.POWER):
            judgement = file.singularities.judge(singular)
            value = judgement.value
            at_zero = value.non_negative and value.zero in (Zero.CERTAIN_ORIGIN, Zero.CONCEIVABLE)
            if at_zero and judgement.differentiable and not judgement.guarded:
                yield Hit(
                    node=singular.node,
                    message=(
                        f"`{shown(file, singular.operand)}` is exactly zero {value.zero_because}; the slope of this "
                        "power there is infinite, and the gradient becomes inf or NaN."
                    ),
                    confidence=None if value.zero is Zero.CERTAIN_ORIGIN else Confidence.MEDIUM,
                    hypothesis=hypothesis(file, singular),
                    related=path_of(file, singular, judgement),
                    fix=floored(file, singular.operand, FixSafety.UNSAFE),
                )
        for node, base, exponent in _powers(file):
            yield from _of_signed_base(file, node, base, exponent)


def _powers(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(the power, its base, its exponent), unless either is plainly a number that makes it harmless."""
    for operation in file.nodes(ast.BinOp):
        if not isinstance(operation.op, ast.Pow) or isinstance(operation.left, ast.Constant):
            continue
        if not _is_whole_number(operation.right):
            yield operation, operation.left, operation.right
    for call in file.calls(*_POWERS):
        found = file.values.operation(call)
        exponent = found.argument(0, "exponent") if found is not None else None
        if found is None or found.operand is None or exponent is None or _is_whole_number(exponent):
            continue
        if not isinstance(found.operand, ast.Constant):
            yield call, found.operand, exponent


def _is_whole_number(exponent: ast.expr) -> bool:
    return isinstance(exponent, ast.Constant) and (
        isinstance(exponent.value, int) or (isinstance(exponent.value, float) and exponent.value.is_integer())
    )


def _of_signed_base(file: FileContext, node: ast.expr, base: ast.expr, exponent: ast.expr) -> Iterator[Hit]:
    power = file.values.value(exponent)
    is_fraction = power.constant is not None and not power.constant.is_integer()
    is_learned = power.gradient is Gradient.YES and not power.is_number
    if not is_fraction and not is_learned:
        return
    singular = Singular(Form.POWER, node, base)
    judgement = Judgement(file, singular)
    if not _can_be_negative(file, base, judgement.value, learned=is_learned) or judgement.guarded:
        return
    if judgement.surroundings is Surroundings.ASIDE:
        return
    if is_learned:
        message = (
            f"The exponent `{shown(file, exponent)}` is learned, and nothing keeps `{shown(file, base)}` positive: for "
            "a negative base the power and the gradient of the exponent are NaN."
        )
    else:
        message = (
            f"`{shown(file, base)}` takes negative values, of which a power with the exponent "
            f"`{shown(file, exponent)}` is NaN."
        )
    unrecorded = judgement.surroundings is Surroundings.UNRECORDED
    yield Hit(
        node=node,
        message=message,
        severity=Severity.NOTE if unrecorded else None,
        confidence=Confidence.MEDIUM if is_learned else None,
        hypothesis={**hypothesis(file, singular), "singular_set": "< 0"},
        related=((base, "nothing here keeps the base positive"), (exponent, "this is no whole number")),
        fix=Rewrite(FixSafety.UNSAFE, (Replacement(base, f"{file.operand_source(base)}.clamp(min={_FLOOR})"),)),
    )


def _can_be_negative(file: FileContext, base: ast.expr, value: Value, *, learned: bool) -> bool:
    """Whether a base is known to take both signs; for a learned exponent it is enough that nothing rules them out."""
    if value.non_negative or value.is_number or value.is_discrete or value.kind is Kind.OTHER or value.mask:
        return False
    if not math.isinf(value.low):
        return value.low < 0
    if learned:
        return not value.parameter
    return value.zero is not Zero.EXCLUDED and _is_signed(file, base)


def _is_signed(file: FileContext, base: ast.expr) -> bool:
    """Whether a base is a difference of tensors, a centred tensor over its spread, or drawn from a normal."""
    found = core(file, base)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div):
        found = core(file, found.left)
    if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Sub):
        sides = [file.values.value(side) for side in (found.left, found.right)]
        return all(not side.is_number and side.constant is None for side in sides)
    return isinstance(found, ast.Call) and terminal_name(found.func) in ("randn", "randn_like")
