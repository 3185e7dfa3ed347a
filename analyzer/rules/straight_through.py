"""Straight-through estimators that pass no gradient, the wrong one, or the wrong value."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


def _function(expression: str) -> str:
    return f"{_HEAD}def quantise(x, y):\n    q = torch.round(x)\n    return {expression}\n"


_LINE = 8

_HARD = frozenset(
    {
        *("round", "floor", "ceil", "trunc", "sign", "argmax", "argmin", "one_hot", "heaviside", "scatter_"),
        *("bernoulli"),
        *("gt", "ge", "lt", "le", "bool", "quantize", "quantise", "fake_quantize", "hard", "binarize", "bucketize"),
    }
)


@dataclass(slots=True)
class _Term:
    """How often an expression is added, in the value and in the gradient."""

    expression: ast.expr
    value: int = 0
    gradient: int = 0
    detached: bool = False


@dataclass(slots=True)
class _Sum:
    terms: dict[str, _Term] = field(default_factory=dict)
    detached: bool = False

    def add(self, expression: ast.expr, sign: int, *, live: bool) -> bool:
        """Takes a chain of `+`, `-` and `detach()` apart; False when it is too long to be an estimator."""
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Add, ast.Sub)):
            right = sign if isinstance(expression.op, ast.Add) else -sign
            return self.add(expression.left, sign, live=live) and self.add(expression.right, right, live=live)
        inner = _detached(expression)
        if inner is not None:
            self.detached = True
            return self.add(inner, sign, live=False)
        key = ast.dump(expression)
        term = self.terms.setdefault(key, _Term(expression))
        term.value += sign
        term.gradient += sign if live else 0
        term.detached = term.detached or not live
        return len(self.terms) <= 2


def _detached(expression: ast.expr) -> ast.expr | None:
    """`x` of `x.detach()` and `x.data`."""
    if isinstance(expression, ast.Attribute) and expression.attr == "data":
        return expression.value
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return expression.func.value if expression.func.attr == "detach" and not expression.args else None
    return None


class WrongStraightThrough(Rule):
    """`x`, `y` and a `detach()` put together so that the gradient (or the value) is not what was meant."""

    id = "GP204"
    name = "wrong-straight-through"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search", "gradient_flow")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = (".detach()", "round", "sign", "floor", "one_hot")
    documentation = Documentation(
        what_it_does=(
            "Finds sums of a soft value `x` and a hard one `q` (rounded, signed, one-hot) in which `x` is added and "
            "taken away, as in a straight-through estimator, but with the `detach()` in the wrong place or missing: "
            "`(x + q - x).detach()`, `x + (q - x)`, `q + (x - q).detach()`, `x + (x - q).detach()`. The right form "
            "`x + (q - x).detach()`, in any order, is left alone."
        ),
        why_is_this_bad=(
            "The right form has the value of `q` and the gradient of `x`. With everything detached there is no "
            "gradient at all (measured: `requires_grad` is False), without `detach` it is that of `q`, which is zero, "
            "and with `x` and `q` swapped the value is the soft one. None of this raises."
        ),
        faulty_example=_function("(x + q - x).detach()"),
        right_example=_function("x + (q - x).detach()"),
        fix_safety="Safe where the value is that of `q` already: it stays, and the gradient becomes that of `x`.",
    )
    valid = (
        _function("x + (q - x).detach()"),
        _function("(q - x).detach() + x"),
        _function("q.detach() + x - x.detach()"),
        _function("q - x.detach() + x"),
        _function("x - x.detach() + q.detach()"),
        _function("y + (x - y)"),
        _function("(x + y - x)"),
        _function("(q - x).detach().abs().mean()"),
        _function("x - y + y.detach()"),
        _function("(x - q.detach()) ** 2"),
    )
    invalid = (
        Invalid(_function("(x + q - x).detach()"), (_LINE,)),
        Invalid(_function("(x + (torch.round(x) - x)).detach()"), (_LINE,)),
        Invalid(_function("(x + y - x).detach()"), (_LINE,)),
        Invalid(_function("x + (q - x)"), (_LINE,)),
        Invalid(_function("q + (x - q).detach()"), (_LINE,)),
        Invalid(_function("x + (x - q).detach()"), (_LINE,)),
        Invalid(_function("q - x + x.detach()"), (_LINE,)),
        Invalid(_function("(q - x).detach()"), (_LINE,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every chain of sums over two tensors that is no estimator."""
        for operation in file.nodes(ast.BinOp):
            if not isinstance(operation.op, (ast.Add, ast.Sub)):
                continue
            whole = self._whole(file, operation)
            if whole is not None:
                yield from self._judged(file, whole)

    def _whole(self, file: FileContext, operation: ast.BinOp) -> ast.expr | None:
        """The chain that an operation begins: itself, or the `detach()` around it; None inside a longer chain."""
        whole: ast.expr = operation
        parent = file.parent(whole)
        if isinstance(parent, ast.Attribute) and parent.attr in {"detach", "data"}:
            outer = file.parent(parent)
            whole = outer if parent.attr == "detach" and isinstance(outer, ast.Call) else parent
            parent = file.parent(whole)
        is_part = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub))
        return None if is_part else whole

    def _judged(self, file: FileContext, whole: ast.expr) -> Iterable[Hit]:
        if not _may_be_estimator(whole):
            return
        total = _Sum()
        if not total.add(whole, 1, live=True) or len(total.terms) != 2 or file.grad_disabled(whole):
            return
        first, second = total.terms.values()
        soft, hard = (first, second) if _is_hard(file, second.expression) else (second, first)
        if not _is_hard(file, hard.expression) or _is_hard(file, soft.expression):
            cancelled = _cancelled(first, second)
            if cancelled is None:
                return
            soft, hard = cancelled
        message = _fault(total, soft, hard, returned=isinstance(file.parent(whole), ast.Return))
        if message is None:
            return
        x, q = shown(file, soft.expression), shown(file, hard.expression)
        right = f"{file.operand_source(soft.expression)} + ({file.source(hard.expression)} - "
        right += f"{file.operand_source(soft.expression)}).detach()"
        keeps_value = (soft.value, hard.value) == (0, 1)
        fix = Rewrite(FixSafety.SAFE, (Replacement(whole, right),)) if keeps_value else None
        yield Hit(
            whole,
            f"`{shown(file, whole)}` {message.format(x=x, q=q)}. A straight-through estimator is "
            f"`{x} + ({q} - {x}).detach()`.",
            hypothesis={"soft": x, "hard": q, "symbol": file.symbol(whole), "line": whole.lineno},
            fix=fix,
        )


def _cancelled(first: _Term, second: _Term) -> tuple[_Term, _Term] | None:
    """(soft, hard) of `(x + y - x).detach()`: nobody adds and takes away `x` but for an estimator."""
    for soft, hard in ((first, second), (second, first)):
        without_gradient = soft.gradient == 0 and hard.gradient == 0
        if (soft.value, hard.value) == (0, 1) and without_gradient and soft.detached:
            return soft, hard
    return None


def _may_be_estimator(whole: ast.expr) -> bool:
    """Whether there are more than two plain terms: `a + b` alone, nothing of it detached, is what it says."""
    if not isinstance(whole, ast.BinOp):
        return True
    sides = (whole.left, whole.right)
    return any(_detached(side) is not None or isinstance(side, ast.BinOp) for side in sides)


def _fault(total: _Sum, soft: _Term, hard: _Term, *, returned: bool) -> str | None:
    """What is wrong with a sum, as a half sentence about its value and gradient; None for a right one."""
    found: str | None = None
    if (soft.value, hard.value) == (0, 1):
        if soft.gradient == 0 and hard.gradient == 0:
            found = "has the value of `{q}` and no gradient at all"
        elif soft.gradient == 0:
            found = "is just `{q}`: `{x}` cancels out, and gets no gradient"
        elif soft.gradient < 0:
            found = "has the gradient of `{x}` with the wrong sign"
    elif (soft.value, hard.value) == (1, 0) and total.detached and soft.gradient == 0:
        found = "has the value of `{x}`, not of `{q}`, and the gradient of `{q}`, which is zero"
    elif (soft.value, hard.value) == (2, -1) and total.detached:
        found = "is `2 * {x} - {q}`: the difference is taken the wrong way round"
    elif (soft.value, hard.value) == (-1, 1) and returned and soft.gradient == 0 and hard.gradient == 0:
        found = "is a difference without a gradient: `{x}` is not added"
    return found


def _is_hard(file: FileContext, expression: ast.expr) -> bool:
    """Whether an expression (or the one thing that a name stands for) is a decision: rounded, signed, one-hot."""
    for _ in range(4):
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Mult, ast.Div)):
            # `round(x * 255) / 255`
            return _is_hard(file, expression.left) or _is_hard(file, expression.right)
        if isinstance(expression, ast.Compare):
            return True
        if isinstance(expression, ast.Call) and terminal_name(expression.func) in _HARD:
            return True
        behind = _behind(file, expression)
        if behind is None:
            return isinstance(expression, ast.Name) and _is_hard_by_name(expression.id)
        expression = behind
    return False


def _behind(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """What a name stands for, or what a method is called on."""
    if isinstance(expression, ast.Name):
        return file.values.single_definition(expression)
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
        return expression.func.value if file.qualified_name(expression.func) is None else None
    return None


def _is_hard_by_name(name: str) -> bool:
    return name.endswith(("_hard", "_quantized", "_quant", "_rounded", "_binary")) or name.startswith(
        ("hard_", "quantized", "rounded", "binary_")
    )
