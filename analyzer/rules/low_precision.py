"""Constants that a 16-bit type can't hold: fills (GP118), epsilons (GP119), and results beyond 65504 (GP126).

This module must not work out types itself: what a tensor's type is comes from its value, what its author expects from
`analyzer.half_evidence`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.formulas import core
from analyzer.half_evidence import expects_low_precision
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.singularities import Form
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind, Precision, Value, Zero
from analyzer.values.surroundings import Surroundings, autocast, surroundings

# The largest float16, the smallest that is not zero (with rounding: everything up to half of it is), and the smallest
# number whose reciprocal is finite (measured on torch 2.13).
_LARGEST_HALF = 65504.0
_LARGEST_SINGLE = 3.4028234663852886e38
_ROUNDS_TO_ZERO = 2.0**-25
_RECIPROCAL_OVERFLOWS = 1.0 / 65504.0
# float16 holds exp(x) up to here, and x ** 2 up to 255.9.
_LARGEST_EXPONENT_HALF = 11.09


@dataclass(frozen=True, slots=True)
class _Fill:
    """A constant that is written into a tensor: `raises` where float16 refuses it, instead of making it inf."""

    node: ast.expr | ast.stmt
    literal: ast.expr
    target: ast.expr | None
    raises: bool


class FillBeyondHalf(Rule):
    id = "GP118"
    name = "fill-beyond-half-precision"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "autocast")
    fix = FixSafety.UNSAFE
    triggers = ("masked_fill", "full_like", "fill_", "half", "float16")
    documentation = Documentation(
        what_it_does=(
            "Finds constants beyond ±65504, such as `-1e9`, that are written into a tensor which is float16, or which "
            "stands in code that casts for low precision."
        ),
        why_is_this_bad=(
            "`masked_fill`, `full_like` and `fill_` raise in float16 (`value cannot be converted to type c10::Half "
            "without overflow`); `where`, indexed assignments and sums silently turn the number into `-inf`, and a row "
            "of those into NaN. Other types are fine: bfloat16 has the range of float32."
        ),
        faulty_example=(
            "import torch\n\n\ndef attend(score, hide, v):\n    score = score.half().masked_fill(hide, -1e9)\n"
            "    return score.softmax(dim=-1) @ v\n"
        ),
        right_example=(
            "import torch\n\n\ndef attend(score, hide, v):\n    score = score.half()\n"
            "    score = score.masked_fill(hide, torch.finfo(score.dtype).min)\n    return score.softmax(dim=-1) @ v\n"
        ),
        fix_safety=(
            "`torch.finfo(dtype).min` fits every type. The filled tensor holds another number; what a softmax makes of "
            "it is the same."
        ),
    )
    valid = (
        "import torch\ndef f(s, m):\n    return s.half().masked_fill(m, torch.finfo(torch.float16).min)\n",
        "import torch\ndef f(s, m):\n    return s.half().masked_fill(m, -1e4)\n",
        "import torch\ndef f(s, m):\n    return s.float().masked_fill(m, -1e9).to(s.dtype)\n",
        "import torch\ndef f(s, m):\n    s = s.to(torch.float32)\n    return s.masked_fill(m, -1e9).type_as(m)\n",
        "import torch\ndef f(s, m):\n    return s.bfloat16().masked_fill(m, -1e9)\n",
        "import torch\ndef f(s, m):\n    return s.half().masked_fill(m, float('-inf'))\n",
        # whole numbers
        "import torch\ndef f(ids, m):\n    return ids.long().masked_fill(m, 1000000)\n",
        "import torch\ndef f(x, m):\n    d = x.argmax(-1)\n    d[m] = 1000000\n    return d, x.half()\n",
        "import torch\ndef f(s, m):\n    return s.float().masked_fill(m, torch.finfo(torch.float32).min).half()\n",
        # a number to scale with, no fill
        "import torch\ndef f(x):\n    return x.to(x.dtype) * 1e6\n",
        # picked for the type
        "import torch\ndef f(s, m):\n    low = -1e4 if s.dtype == torch.float16 else -1e9\n"
        "    return s.masked_fill(m, low)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(s, m):\n    return s.half().masked_fill(m, -1e9)\n", (3,)),
        Invalid("import torch\ndef f(s, m):\n    s = s.to(torch.float16)\n    return s.masked_fill(m, -1e9)\n", (4,)),
        Invalid(
            "import torch\ndef f(s, m, v):\n    s = s.masked_fill(m, -1e9)\n    return s.softmax(-1).to(v.dtype) @ v\n",
            (3,),
        ),
        Invalid(
            "import torch\ndef f(s, m):\n    s.masked_fill_(m, -1e9)\n    return torch.softmax(s.float(), -1)\n", (3,)
        ),
        Invalid("import torch\ndef f(s, m):\n    s = s.half()\n    s[m] = -1e9\n    return s\n", (4,)),
        Invalid("import torch\ndef f(s, m):\n    s = s.half()\n    return torch.where(m, s, -100000.0)\n", (4,)),
        Invalid("import torch\nLOW = -1e30\ndef f(s, m):\n    return s.half().masked_fill(m, LOW)\n", (4,)),
        Invalid("import torch\ndef f(s):\n    return torch.full_like(s.half(), 1e6)\n", (3,)),
        # the limit of another type
        Invalid(
            "import torch\ndef f(s, m):\n    return s.half().masked_fill(m, torch.finfo(torch.float32).min)\n", (3,)
        ),
        # nothing says which type: a note
        Invalid("import torch\ndef f(s, m):\n    return s.masked_fill(m, -1e9).softmax(-1)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for fill in _fills(file):
            constant = _constant(file, fill.literal)
            if constant is None or abs(constant) <= _LARGEST_HALF:
                continue
            level = _level(file, fill)
            if level is None or surroundings(file, fill.node) is Surroundings.ASIDE:
                continue
            severity, confidence, condition = level
            does = "raises" if fill.raises else "becomes -inf" if constant < 0 else "becomes inf"
            name = "torch.finfo(dtype).min" if constant < 0 else "torch.finfo(dtype).max"
            yield Hit(
                node=fill.node,
                message=f"`{shown(file, fill.literal)}` does not fit into float16: {condition} this {does}. "
                f"Use `{name}`.",
                severity=severity,
                confidence=confidence,
                hypothesis={
                    "operand": normalised_source(fill.literal, file.text),
                    "singular_set": "> 65504",
                    "operation": "fill",
                    "symbol": file.symbol(fill.node),
                    "line": fill.literal.lineno,
                },
                related=_evidence(file, fill.node) if severity is None and confidence is Confidence.MEDIUM else (),
                fix=_limit_of_type(file, fill, constant),
            )


def _constant(file: FileContext, literal: ast.expr) -> float | None:
    """The number that a fill is; `torch.finfo(torch.float32).min` is one as well."""
    source = core(file, literal)
    sign = 1.0
    if isinstance(source, ast.UnaryOp) and isinstance(source.op, ast.USub):
        source, sign = source.operand, -1.0
    maker = source.value if isinstance(source, ast.Attribute) and source.attr in ("min", "max") else None
    if isinstance(maker, ast.Call) and terminal_name(maker.func) == "finfo" and maker.args:
        if terminal_name(maker.args[0]) not in ("float32", "float", "bfloat16", "float64", "double"):
            return None
        return sign * (
            -_LARGEST_SINGLE if isinstance(source, ast.Attribute) and source.attr == "min" else _LARGEST_SINGLE
        )
    return file.values.value(literal).constant


def _evidence(file: FileContext, node: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
    shows = expects_low_precision(file, node)
    return ((shows, "this shows that low precision is expected here"),) if shows is not None else ()


def _level(file: FileContext, fill: _Fill) -> tuple[Severity | None, Confidence, str] | None:
    """(severity, confidence, condition) of a fill; None when its tensor holds the number."""
    value = file.values.value(fill.target) if fill.target is not None else Value()
    if value.is_discrete or value.is_number or value.precision in (Precision.SINGLE, Precision.DOUBLE):
        return None
    if value.precision is Precision.HALF:
        return None if value.kind is Kind.OTHER else (None, Confidence.HIGH, "here")
    if value.precision is Precision.BFLOAT16 or _is_whole(file, fill.literal):
        return None
    if fill.raises and expects_low_precision(file, fill.node) is not None:
        return None, Confidence.MEDIUM, "under float16 autocast or after `.half()`"
    return (Severity.NOTE, Confidence.LOW, "under float16") if fill.raises else None


def _is_whole(file: FileContext, literal: ast.expr) -> bool:
    """Whether a constant is written as an integer: for indices and lengths, most likely."""
    source = core(file, literal)
    source = source.operand if isinstance(source, ast.UnaryOp) else source
    return isinstance(source, ast.Constant) and isinstance(source.value, int)


def _fills(file: FileContext) -> Iterator[_Fill]:
    # What float16 turns into inf without a word is worth a look only where something is float16.
    silent = file.words.any_of(("half", "float16"))
    for call in file.calls("masked_fill", "masked_fill_", "full_like", "fill_", *(("where",) if silent else ())):
        operation = file.values.operation(call)
        if operation is None:
            continue
        name = operation.name
        if name == "where":
            yield from _where_fills(call, (operation.argument(0, "input"), operation.argument(1, "other")))
            continue
        position = 1 if name.startswith("masked") else 0
        literal = operation.argument(position, "value", "fill_value")
        if literal is not None and operation.operand is not None:
            yield _Fill(call, literal, operation.operand, raises=True)
    for statement in file.nodes(ast.Assign) if silent else ():
        target = statement.targets[0]
        written = (ast.Constant, ast.UnaryOp, ast.Name, ast.Attribute)
        if isinstance(target, ast.Subscript) and isinstance(statement.value, written):
            yield _Fill(statement, statement.value, target.value, raises=False)


def _where_fills(call: ast.Call, branches: tuple[ast.expr | None, ast.expr | None]) -> Iterator[_Fill]:
    for literal, other in (branches, branches[::-1]):
        if literal is not None and other is not None:
            yield _Fill(call, literal, other, raises=False)


def _limit_of_type(file: FileContext, fill: _Fill, constant: float) -> Rewrite | None:
    limits = file.spelling("torch.finfo")
    target = fill.target
    if limits is None or not isinstance(target, (ast.Name, ast.Attribute)):
        return None
    limit = "min" if constant < 0 else "max"
    return Rewrite(FixSafety.UNSAFE, (Replacement(fill.literal, f"{limits}({file.source(target)}.dtype).{limit}"),))


# --- GP119 -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Epsilon:
    """A small number that protects a tensor: `node` adds it, `literal` is it, `value` what it protects."""

    node: ast.expr
    literal: ast.expr
    size: float
    protects: ast.expr
    value: Value


class EpsilonBelowHalf(Rule):
    id = "GP119"
    name = "epsilon-below-half-precision"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient", "autocast")
    triggers = ("e-", "normalize", "0.0000")
    documentation = Documentation(
        what_it_does=(
            "Finds an eps that float16 can't hold where it protects a division, root or logarithm: `norm + 1e-8`, "
            "`clamp(min=1e-12)`, and `F.normalize` with its default of 1e-12. It speaks where the tensor is float16, "
            "and as a note where the code around casts for low precision."
        ),
        why_is_this_bad=(
            "Everything below 3e-8 is zero in float16, so that the guard is not there: a zero vector gives 0/0 = NaN. "
            "Below 1.6e-5 the eps is there, but one divided by it is inf, and the gradient with it. "
            "`F.normalize(torch.zeros(2, dtype=torch.float16), dim=0)` is NaN (measured on torch 2.13)."
        ),
        faulty_example=(
            "import torch\n\n\ndef direction(x):\n    x = x.half()\n"
            "    return x / (x.norm(dim=-1, keepdim=True) + 1e-8)\n"
        ),
        right_example=(
            "import torch\n\n\ndef direction(x):\n    wide = x.float()\n"
            "    return (wide / (wide.norm(dim=-1, keepdim=True) + 1e-8)).to(x.dtype)\n"
        ),
        fix_safety=(
            "Nothing is rewritten: computing in float32 and a larger eps are both right, and differ in their results."
        ),
    )
    valid = (
        "import torch\ndef f(x):\n    x = x.float()\n    return x / (x.norm() + 1e-8)\n",
        "import torch\ndef f(x):\n    x = x.half()\n    return x / (x.norm() + 1e-3)\n",
        "import torch\ndef f(x):\n    x = x.bfloat16()\n    return x / (x.norm() + 1e-8)\n",
        "import torch\nfrom torch.nn import functional as F\ndef f(x):\n"
        "    return F.normalize(x.float(), dim=-1).to(x.dtype)\n",
        "import torch\nfrom torch.nn import functional as F\ndef f(x):\n    return F.normalize(x.half(), eps=1e-4)\n",
        # nothing says which type
        "import torch\ndef f(x):\n    return x / (x.norm() + 1e-8)\n",
        "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return F.normalize(x, dim=-1)\n",
        # the tensor is not zero anyway
        "import torch\ndef f(x):\n    x = x.half()\n    return x / (x.exp() + 1e-8)\n",
        # not a guard
        "import torch\ndef f(x, y):\n    x = x.half()\n    return x.norm() + 1e-8\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    x = x.half()\n    return x / (x.norm() + 1e-8)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    x = x.half()\n    return x / x.norm().clamp(min=1e-12)\n", (4,)),
        Invalid("import torch\ndef f(x):\n    x = x.half()\n    s = x.std() + 1e-7\n    return x / s\n", (4,)),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return F.normalize(x.half(), dim=-1)\n", (4,)
        ),
        Invalid(
            "import torch\nimport torch.nn.functional as F\ndef f(x):\n"
            "    with torch.autocast('cuda', dtype=torch.float16):\n        y = x @ x\n"
            "        return F.normalize(y, dim=-1, eps=1e-10)\n",
            (6,),
        ),
        # casts for low precision: a note
        Invalid("import torch\ndef f(x, y):\n    return (x / (x.norm() + 1e-8)).to(y.dtype)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for epsilon in (*_added(file), *_built_in(file)):
            value = epsilon.value
            if value.precision not in (Precision.HALF, Precision.UNKNOWN) or value.is_number:
                continue
            known = value.precision is Precision.HALF
            vanishes = epsilon.size < _ROUNDS_TO_ZERO
            if not known and (not vanishes or expects_low_precision(file, epsilon.node) is None):
                continue
            if surroundings(file, epsilon.node) is Surroundings.ASIDE:
                continue
            where = "here" if known else "under float16"
            what = (
                f"is zero in float16: {where} the division by `{shown(file, epsilon.protects)}` is 0/0 = NaN"
                if vanishes
                else f"has no finite reciprocal in float16: {where} the gradient is inf where "
                f"`{shown(file, epsilon.protects)}` is zero"
            )
            yield Hit(
                node=epsilon.node,
                message=f"The eps {epsilon.size:g} {what}. Compute in float32, or use an eps of 1e-4.",
                severity=None if known else Severity.NOTE,
                confidence=None if known else Confidence.LOW,
                hypothesis={
                    "operand": normalised_source(epsilon.protects, file.text),
                    "singular_set": "== 0 in float16",
                    "operation": "division",
                    "symbol": file.symbol(epsilon.node),
                    "line": epsilon.protects.lineno,
                },
                related=() if known else _evidence(file, epsilon.node),
            )


def _added(file: FileContext) -> Iterator[_Epsilon]:
    """`norm + eps` and `norm.clamp(min=eps)` under a division, root or logarithm."""
    seen: set[ast.expr] = set()
    for singular in file.singularities.of(Form.DIVISION, Form.RECIPROCAL_ROOT, Form.ROOT, Form.LOGARITHM):
        guard = core(file, singular.operand)
        if guard in seen:
            continue
        seen.add(guard)
        for literal, protected in _guards(file, guard):
            size = file.values.value(literal).constant
            if size is None or not 0 < size < _RECIPROCAL_OVERFLOWS:
                continue
            value = file.values.value(protected)
            if value.non_negative and value.zero is Zero.CERTAIN_ORIGIN and not value.is_discrete:
                yield _Epsilon(guard, literal, size, protected, value)


def _guards(file: FileContext, guard: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(eps, what it protects), for the ways of writing that."""
    if isinstance(guard, ast.BinOp) and isinstance(guard.op, ast.Add):
        yield guard.right, guard.left
        yield guard.left, guard.right
    elif isinstance(guard, ast.Call):
        operation = file.values.operation(guard)
        if operation is not None and operation.name in ("clamp", "clamp_min", "clip", "add"):
            literal = operation.argument(0, "min", "other")
            if literal is not None and operation.operand is not None:
                yield literal, operation.operand


def _built_in(file: FileContext) -> Iterator[_Epsilon]:
    """`F.normalize` divides by the norm, clamped at its eps."""
    for call in file.calls("normalize"):
        operation = file.values.operation(call)
        if operation is None or operation.qualified != "torch.nn.functional.normalize" or operation.operand is None:
            continue
        given = operation.argument(2, "eps")
        size = 1e-12 if given is None else file.values.value(given).constant
        if size is not None and 0 < size < _RECIPROCAL_OVERFLOWS:
            value = file.values.value(operation.operand)
            if value.precision is Precision.HALF:
                yield _Epsilon(call, given if given is not None else call, size, operation.operand, value)


# --- GP126 -----------------------------------------------------------------------------------------------------------


class OverflowInHalf(Rule):
    id = "GP126"
    name = "overflow-in-half-precision"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search", "autocast")
    triggers = ("half", "float16", ".float()", "float32")
    documentation = Documentation(
        what_it_does=(
            "Finds squares, sums of squares, exponentials and products over many numbers of a tensor that is float16, "
            "and attention scores that are scaled, or cast up, only after the matrix product."
        ),
        why_is_this_bad=(
            "The largest float16 is 65504: 256 squared and exp(11.1) are inf. A product of queries and keys that is "
            "scaled afterwards has overflowed before the scale comes, and `.float()` behind it keeps the inf."
        ),
        faulty_example="import torch\n\n\ndef energy(x):\n    return x.half().pow(2).sum()\n",
        right_example="import torch\n\n\ndef energy(x):\n    return x.float().pow(2).sum()\n",
        fix_safety="Nothing is rewritten: where to cast is a decision about memory and speed.",
    )
    valid = (
        "import torch\ndef f(x):\n    return x.float().pow(2).sum()\n",
        "import torch\ndef f(x):\n    return x.bfloat16().exp()\n",
        "import torch\ndef f(x):\n    return x.half().clamp(max=10.0).exp()\n",
        "import torch\ndef f(x):\n    return x.half().sigmoid().pow(2)\n",
        "import torch\ndef f(x):\n    return x.half().relu()\n",
        "import torch\ndef f(q, k, s):\n    return ((q * s) @ k.transpose(-1, -2)).float().softmax(-1)\n",
        "import torch\ndef f(q, k, s):\n    q, k = q.float(), k.float()\n"
        "    return ((q @ k.transpose(-1, -2)) * s).float().softmax(-1)\n",
        "import torch\ndef f(q, k, s, t):\n    w = ((q * s) @ k.transpose(-1, -2)) * t\n"
        "    return w.float().softmax(-1)\n",
        # exp and pow run in float32 under autocast, but not a square written as a product
        "import torch\ndef f(x):\n    with torch.autocast('cuda', dtype=torch.float16):\n        y = x @ x\n"
        "        return y.exp() + y.pow(2) + y ** 2\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return x.half().pow(2).sum()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    x = x.to(torch.float16)\n    return (x ** 2).mean()\n", (4,)),
        Invalid("import torch\ndef f(x):\n    return torch.exp(x.half())\n", (3,)),
        Invalid("import torch\ndef f(x):\n    x = x.half()\n    return x * x\n", (4,)),
        # cast too late
        Invalid(
            "import torch\ndef f(q, k, v, s):\n    w = (q @ k.transpose(-1, -2)) * s\n"
            "    return torch.softmax(w.float(), -1).to(v.dtype) @ v\n",
            (3,),
        ),
        Invalid(
            "import torch\ndef f(q, k, v, d):\n    w = torch.matmul(q, k.transpose(-1, -2)) / d ** 0.5\n"
            "    return torch.softmax(w, -1, dtype=torch.float32).to(v.dtype) @ v\n",
            (3,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for node, operand, what in _growing(file):
            value = file.values.value(operand)
            if value.precision is not Precision.HALF or value.is_number or value.is_discrete:
                continue
            is_product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
            if not is_product and autocast(file, node) is not None:
                continue  # autocast runs powers and exponentials in float32 on CUDA
            if surroundings(file, node) is Surroundings.ASIDE or not _may_overflow(what, value):
                continue
            yield Hit(
                node=node,
                message=(
                    f"`{shown(file, operand)}` is float16, where {what} is inf. Cast to float32 before, not after."
                ),
                hypothesis=_overflow_hypothesis(file, node, operand),
            )
        yield from self._late_casts(file)

    def _late_casts(self, file: FileContext) -> Iterator[Hit]:
        for call in file.calls("float", "softmax"):
            scaled = _scaled_product(file, call)
            if scaled is None or surroundings(file, scaled) is Surroundings.ASIDE:
                continue
            yield Hit(
                node=scaled,
                message=(
                    "The product of queries and keys is scaled after it was summed up, and cast up after that: in "
                    "float16 it is inf beyond 65504 by then. Scale the queries first."
                ),
                severity=Severity.NOTE if terminal_name(call.func) == "softmax" else None,
                confidence=Confidence.LOW if terminal_name(call.func) == "softmax" else None,
                hypothesis=_overflow_hypothesis(file, scaled, scaled),
                related=((call, "it is cast up here, too late for an overflow"),),
            )


def _overflow_hypothesis(file: FileContext, node: ast.expr, operand: ast.expr) -> dict[str, object]:
    return {
        "operand": normalised_source(operand, file.text),
        "singular_set": "> 65504 in float16",
        "operation": "overflow",
        "symbol": file.symbol(node),
        "line": operand.lineno,
    }


def _growing(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """(node, operand, which result is inf) for the operations that leave the range soonest."""
    square = "the square of everything from 256"
    for call in file.calls("pow", "square", "exp", "cosh", "sinh"):
        operation = file.values.operation(call)
        if operation is None or operation.operand is None:
            continue
        exponent = operation.argument(0, "exponent") if operation.name == "pow" else None
        if operation.name == "square" or (exponent is not None and _is_large(file, exponent)):
            yield call, operation.operand, square
        elif operation.name != "pow":
            yield call, operation.operand, f"`{operation.name}` of everything from 11.1"
    for node in file.nodes(ast.BinOp):
        is_power = isinstance(node.op, ast.Pow) and _is_large(file, node.right)
        if is_power or (isinstance(node.op, ast.Mult) and _is_same_name(node.left, node.right)):
            yield node, node.left, square


def _is_same_name(left: ast.expr, right: ast.expr) -> bool:
    return isinstance(left, ast.Name) and isinstance(right, ast.Name) and left.id == right.id


def _is_large(file: FileContext, exponent: ast.expr) -> bool:
    constant = file.values.value(exponent).constant
    return constant is not None and constant >= 2


def _may_overflow(what: str, value: Value) -> bool:
    reach = max(abs(value.low), abs(value.high)) if "square" in what else value.high
    return reach > (255.0 if "square" in what else _LARGEST_EXPONENT_HALF)


def _scaled_product(file: FileContext, cast: ast.Call) -> ast.expr | None:
    """The `(q @ k.T) * scale` that is cast up here."""
    operation = file.values.operation(cast)
    if operation is None or operation.operand is None:
        return None
    if operation.name == "softmax":
        wanted = [keyword.value for keyword in cast.keywords if keyword.arg == "dtype"]
        if not any(terminal_name(item) == "float32" for item in wanted):
            return None
    source = core(file, operation.operand)
    if not isinstance(source, ast.BinOp) or not isinstance(source.op, (ast.Mult, ast.Div)):
        return None
    product = core(file, source.left)
    return source if _is_product_of_tensors(file, product) else None


def _is_product_of_tensors(file: FileContext, product: ast.expr) -> bool:
    """A matrix product of two activations, none of them known to be wide or scaled before."""
    if isinstance(product, ast.BinOp) and isinstance(product.op, ast.MatMult):
        factors: list[ast.expr | None] = [product.left, product.right]
    else:
        operation = file.values.operation(product) if isinstance(product, ast.Call) else None
        if operation is None or operation.name not in ("matmul", "bmm"):
            return False
        factors = [operation.operand, operation.argument(0, "other", "mat2")]
    for factor in factors:
        if factor is None or file.values.value(factor).precision in (Precision.SINGLE, Precision.DOUBLE):
            return False
        if isinstance(core(file, factor), ast.BinOp):
            return False
    return any(factor is not None and _is_transposed(factor) for factor in factors)


def _is_transposed(factor: ast.expr) -> bool:
    if isinstance(factor, ast.Attribute):
        return factor.attr in ("T", "mT")
    return isinstance(factor, ast.Call) and terminal_name(factor.func) in ("transpose", "permute", "t", "swapaxes")
