"""Operations that are singular somewhere, and whether anything keeps their operand away from that place.

Divisions, roots, powers, logarithms and inverse functions are found once a file and judged once, so that the rules
about them agree with each other. This module must not know how findings are reported.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from analyzer.formulas import operation_behind
from analyzer.syntax import terminal_name
from analyzer.values.domain import Gradient, Kind, Value, Zero
from analyzer.values.guards import guarded
from analyzer.values.operations import Operation
from analyzer.values.surroundings import Surroundings, surroundings

if TYPE_CHECKING:
    from analyzer.context import FileContext

_DIVIDING_CALLS = ("div", "div_", "divide", "divide_", "true_divide", "true_divide_")
_LOGARITHMS = ("log", "log2", "log10", "log_", "log2_", "log10_")
_POWERS = ("pow", "pow_", "float_power")


class Form(Enum):
    """Which operation is singular."""

    DIVISION = "division"
    RECIPROCAL_ROOT = "reciprocal square root"
    ROOT = "square root"
    POWER = "fractional power"
    LOGARITHM = "logarithm"
    INVERSE = "inverse function"


@dataclass(frozen=True, slots=True)
class Domain:
    """Where an inverse function and its slope are finite: strictly between the bounds."""

    low: float
    high: float
    singular_set: str


# Measured on torch 2.13: at a bound the slope is infinite, even where the value is finite (acos, asin, acosh).
_DOMAINS = {
    **dict.fromkeys(("acos", "asin", "arccos", "arcsin"), Domain(-1.0, 1.0, "abs(operand) >= 1")),
    **dict.fromkeys(("atanh", "arctanh", "erfinv"), Domain(-1.0, 1.0, "abs(operand) >= 1")),
    **dict.fromkeys(("acosh", "arccosh"), Domain(1.0, math.inf, "<= 1")),
    "logit": Domain(0.0, 1.0, "<= 0 or >= 1"),
}


@dataclass(frozen=True, slots=True)
class Singular:
    """One operation: `node` is what to point at, `operand` what must stay away from the singular set.

    `numerator` is what is divided, for a division that has one; `name` the function, for an inverse function.
    """

    form: Form
    node: ast.expr | ast.stmt
    operand: ast.expr
    numerator: ast.expr | None = None
    name: str = ""

    @property
    def domain(self) -> Domain:
        """Where an inverse function is finite."""
        return _DOMAINS[self.name]

    @property
    def singular_set(self) -> str:
        """Where the operand must not be, as a comparison."""
        if self.form is Form.INVERSE:
            return self.domain.singular_set
        return "== 0" if self.form in (Form.DIVISION, Form.ROOT) else "<= 0"


class Judgement:
    """What is known about the operand of a singular operation at its place.

    The tests around it are looked at on demand: nine operands in ten are settled by their value alone.
    """

    def __init__(self, file: FileContext, singular: Singular) -> None:
        self._file = file
        self._singular = singular
        self.value: Value = file.values.value(singular.operand)

    @cached_property
    def guarded(self) -> bool:
        """Whether a number or a test in front keeps the operand out of the singular set."""
        value = self.value
        if value.is_number or value.kind is Kind.OTHER:
            return True
        if self._singular.form is Form.INVERSE:
            if self._inside_domain or self._is_selected:
                return True
        elif value.zero is Zero.EXCLUDED:
            return True
        return guarded(self._file, self._singular.node, self._singular.operand)

    @property
    def _is_selected(self) -> bool:
        """Whether a `where`, a `masked_fill` or an index by a mask chose the operand: the double where."""
        operand, values = self._singular.operand, self._file.values
        definition = values.single_definition(operand) or operand
        if isinstance(definition, ast.Subscript) and values.value(definition.slice).kind is Kind.BOOLEAN_TENSOR:
            return True
        return operation_behind(self._file, operand, "where", "masked_fill") is not None

    @property
    def _inside_domain(self) -> bool:
        """Whether the operand of an inverse function stays strictly inside, in the precision of a float32."""
        domain, value = self._singular.domain, self.value
        above = value.low > domain.low or (value.low == domain.low and value.low_open)
        below = value.high < domain.high or value.high_open or math.isinf(domain.high)
        return above and below

    @cached_property
    def surroundings(self) -> Surroundings:
        return surroundings(self._file, self._singular.node)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can flow through the operand here."""
        return (
            self.surroundings is Surroundings.DIFFERENTIATED
            and self.value.gradient is not Gradient.NO
            and not self.value.is_discrete
        )


class Singularities:
    """The singular operations of one file."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._judgements: dict[ast.expr, Judgement] = {}
        self._by_form: dict[Form, list[Singular]] = {}
        for singular in self._find():
            self._by_form.setdefault(singular.form, []).append(singular)

    def of(self, *forms: Form) -> list[Singular]:
        """The operations of these forms, in no promised order."""
        return [singular for form in forms for singular in self._by_form.get(form, ())]

    def judge(self, singular: Singular) -> Judgement:
        """What is known of the operand, with the tests around the operation taken into account."""
        known = self._judgements.get(singular.operand)
        if known is None:
            self._file.check_deadline()
            known = self._judgements[singular.operand] = Judgement(self._file, singular)
        return known

    # --- finding -----------------------------------------------------------------------------------------------

    def _find(self) -> Iterator[Singular]:
        for operation in self._file.nodes(ast.BinOp):
            if isinstance(operation.op, ast.Div):
                if not _plainly_constant(operation.right):
                    yield Singular(Form.DIVISION, operation, operation.right, operation.left)
            elif isinstance(operation.op, ast.Pow):
                yield from self._power(operation, operation.left, operation.right)
        for statement in self._file.nodes(ast.AugAssign):
            if isinstance(statement.op, ast.Div) and not _plainly_constant(statement.value):
                yield Singular(Form.DIVISION, statement, statement.value, statement.target)
        yield from self._calls()

    def _calls(self) -> Iterator[Singular]:
        values = self._file.values
        for call in self._file.calls(*_DIVIDING_CALLS):
            operation = values.operation(call)
            if operation is not None and operation.operand is not None:
                divisor = operation.argument(0, "other")
                if divisor is not None and not _plainly_constant(divisor):
                    yield Singular(Form.DIVISION, call, divisor, operation.operand)
        for form, names in (
            (Form.DIVISION, ("reciprocal", "reciprocal_")),
            (Form.RECIPROCAL_ROOT, ("rsqrt", "rsqrt_")),
            (Form.ROOT, ("sqrt", "sqrt_")),
            (Form.LOGARITHM, _LOGARITHMS),
        ):
            for call in self._file.calls(*names):
                operation = values.operation(call)
                if operation is not None and operation.operand is not None:
                    yield Singular(form, call, operation.operand)
        for call in self._file.calls(*_DOMAINS, *(f"{name}_" for name in _DOMAINS)):
            operation = values.operation(call)
            if operation is not None and operation.operand is not None and not _has_own_guard(operation):
                name = operation.name.rstrip("_")
                yield Singular(Form.INVERSE, call, operation.operand, name=name)
        for call in self._file.calls(*_POWERS):
            operation = values.operation(call)
            exponent = operation.argument(0, "exponent") if operation is not None else None
            if operation is not None and operation.operand is not None and exponent is not None:
                yield from self._power(call, operation.operand, exponent)

    def _power(self, node: ast.expr, base: ast.expr, exponent: ast.expr) -> Iterator[Singular]:
        """A negative power divides, one half is a root, any other fraction below one has an infinite slope at zero."""
        if _plainly_constant(base):
            return
        constant = self._file.values.value(exponent).constant
        if constant is None:
            return
        if constant == -0.5:
            yield Singular(Form.RECIPROCAL_ROOT, node, base)
        elif constant < 0:
            yield Singular(Form.DIVISION, node, base)
        elif constant == 0.5:
            yield Singular(Form.ROOT, node, base)
        elif 0 < constant < 1:
            yield Singular(Form.POWER, node, base)


def _has_own_guard(operation: Operation) -> bool:
    """`torch.logit(x, eps=1e-6)` clamps its operand itself."""
    eps = operation.argument(0, "eps") if operation.name.startswith("logit") else None
    return eps is not None and not (isinstance(eps, ast.Constant) and eps.value in (None, 0))


def _plainly_constant(expression: ast.expr) -> bool:
    """Literals, arithmetic of literals and ALL_CAPS names: most divisors of real code, told without any analysis."""
    if isinstance(expression, ast.Constant):
        return True
    if isinstance(expression, ast.BinOp):
        return _plainly_constant(expression.left) and _plainly_constant(expression.right)
    if isinstance(expression, ast.UnaryOp):
        return _plainly_constant(expression.operand)
    name = terminal_name(expression)
    return name is not None and name.isupper() and len(name) > 1
