"""An elementwise formula that turns the derivative into what was returned: a factor or a term too many or too few.

Looks in three places: analytic = c · derivative · φ, analytic - derivative = c · incoming · φ, and analytic
= c · incoming · φ, with φ one term of the vocabulary or a product or quotient of two; then for sums of two terms.
With dozens of coordinates that agree to ten digits and ten thousand formulas, an accident is out of the question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.vocabulary import Vocabulary, vocabulary

_FEWEST: Final = 3  # coordinates: fewer agree with something by accident
_SCREEN: Final = 1e-8  # of squared logarithms, before the exact test
_CANDIDATES: Final = 6


@dataclass(frozen=True, slots=True)
class Product:
    """constant · Π term^power: the powers are 1 or -1."""

    constant: float
    terms: tuple[tuple[int, int], ...]  # (row of the vocabulary, power)
    cost: float


def formula(item: Difference) -> Named | None:
    """The simplest factor or term."""
    if not item.is_wrong or item.r.is_complex() or int(item.telling.sum()) < _FEWEST:
        return None
    known = vocabulary(item)
    a, r, d = item.a[known.sample], item.r[known.sample], item.d[known.sample]
    found: list[tuple[float, Named]] = []
    factor = _product(a, r, known, item)
    if factor is not None:
        found.append((factor.cost, _say_factor(item, factor, known)))
    for name, incoming in known.cotangents:
        term = _product(d, incoming, known, item)
        if term is not None:
            found.append((term.cost + 0.5, _say_term(item, term, known, name)))
        whole = _product(a, incoming, known, item)
        if whole is not None:
            truth = _product(r, incoming, known, item)
            found.append((whole.cost + 1.5, _say_formula(item, whole, truth, known, name)))
    bare = _product(d, torch.ones_like(d), known, item, incoming_too=False)
    if bare is not None:
        found.append((bare.cost + 0.75, _say_bare(item, bare, known)))
    if found:
        return min(found, key=lambda pair: pair[0])[1]
    for name, incoming in known.cotangents:
        two = _sum_of_two(d, incoming, r, known, item)
        if two is not None:
            return _say_sum(item, two, known, name)
    return None


def _product(
    target: torch.Tensor, base: torch.Tensor, known: Vocabulary, item: Difference, *, incoming_too: bool = True
) -> Product | None:
    """target = c · base · φ or c · base · φ₁^±1 · φ₂^±1, the simplest that fits; None if none does."""
    floor = 1e-9 * float(target.abs().max())
    usable = (target.abs() > floor) & (base.abs() > 1e-9 * float(base.abs().max()))
    if int(usable.sum()) < _FEWEST:
        return None
    # Where the target vanishes and the base doesn't (or the other way round), only a term that vanishes fits: such
    # terms have no logarithm. These cases belong to the rules for places.
    if not bool(usable.all()) and bool(((target.abs() > floor) != (base.abs() > 0))[~usable].any()):
        return None
    table = known.table[:, usable]
    quotient = target[usable] / base[usable]
    good = torch.isfinite(table).all(1) & (table.abs() > 1e-12).all(1)
    rows = good.nonzero().reshape(-1)
    if not incoming_too:
        rows = torch.tensor([row for row in rows.tolist() if row not in known.incoming], dtype=torch.long)
    logs = table[rows].abs().log()
    logs = logs - logs.mean(1, keepdim=True)
    aim = quotient.abs().log()
    aim = aim - aim.mean()
    size = float((aim * aim).sum())
    n = int(usable.sum())
    if size < 1e-16 * n:
        constant = float(quotient[0])
        left_over = target[usable] - constant * base[usable]
        return Product(constant, (), _constant_cost(constant)) if item.explains(left_over) else None
    norms = (logs * logs).sum(1)
    along = logs @ aim
    limit = _SCREEN * size
    found: list[Product] = []
    for power in (1, -1):
        near = (size + norms - 2 * power * along < limit).nonzero().reshape(-1).tolist()
        for place in near:
            found += _verified(((int(rows[place]), power),), target, base, usable, known, item)
    if found:
        return min(found, key=lambda product: product.cost)
    if n < 2 * _FEWEST:
        return None
    gram = logs @ logs.T
    costs = torch.tensor(known.costs, dtype=torch.float64)[rows]
    for first_power, second_power in ((1, 1), (-1, -1), (1, -1)):
        distance = (
            size
            + norms[:, None]
            + norms[None, :]
            - 2 * first_power * along[:, None]
            - 2 * second_power * along[None, :]
            + 2 * first_power * second_power * gram
        )
        near_pairs = (distance < limit).nonzero()
        if first_power == second_power:
            near_pairs = near_pairs[near_pairs[:, 0] <= near_pairs[:, 1]]
        order = (costs[near_pairs[:, 0]] + costs[near_pairs[:, 1]]).argsort()[:_CANDIDATES]
        for one, two in near_pairs[order].tolist():
            terms = ((int(rows[one]), first_power), (int(rows[two]), second_power))
            found += _verified(terms, target, base, usable, known, item)
    return min(found, key=lambda product: product.cost) if found else None


def _verified(
    terms: tuple[tuple[int, int], ...],
    target: torch.Tensor,
    base: torch.Tensor,
    usable: torch.Tensor,
    known: Vocabulary,
    item: Difference,
) -> list[Product]:
    """The product with its constant, if it fits."""
    shape = base
    for row, power in terms:
        shape = shape * known.table[row] if power > 0 else shape / known.table[row]
    chosen, aim = shape[usable], target[usable]
    constant = float((chosen * aim).sum() / (chosen * chosen).sum())
    if not math.isfinite(constant) or not item.explains(aim - constant * chosen):
        return []
    cost = sum(known.costs[row] for row, _ in terms) + (len(terms) - 1) + _constant_cost(constant)
    return [Product(constant, terms, cost)]


def _constant_cost(constant: float) -> float:
    size = abs(constant)
    if abs(size - 1) < 1e-6:
        return 0.0 if constant > 0 else 0.25
    return 1.0 if any(abs(size - nice) < 1e-6 * nice for nice in (2, 0.5, 3, 4, 0.25, 1 / 3)) else 2.0


def _spelled(product: Product, known: Vocabulary) -> str:
    above = [known.names[row] for row, power in product.terms if power > 0]
    below = [known.names[row] for row, power in product.terms if power < 0]
    constant = product.constant
    sign = "-" if constant < 0 else ""
    number = "" if abs(abs(constant) - 1) < 1e-6 else words.number(abs(constant))
    numerator = " · ".join(([number] if number else []) + above) or "1"
    return f"{sign}{numerator}" + "".join(f" / {name}" for name in below)


def _say_factor(item: Difference, product: Product, known: Vocabulary) -> Named:
    rows = {row for row, _ in product.terms}
    numbers = {"factor": _spelled(product, known), "constant": product.constant}
    if rows and rows <= known.incoming:
        return _say_incoming(item, product, known, numbers)
    above = [known.names[row] for row, power in product.terms if power > 0]
    below = [known.names[row] for row, power in product.terms if power < 0]
    start = f"the gradient for {item.name} is the derivative times {_spelled(product, known)}"
    if above and below:
        text = f"{start}: it has {above[0]} where {below[0]} belongs"
        return Named("wrong_factor", text, numbers, f"look for {above[0]} in the product where {below[0]} belongs")
    if below:
        missing = " · ".join(below)
        cause, text = "missing_factor", f"{start}: the factor {missing} is missing"
        return Named(
            cause, text, numbers, f"multiply by {missing}: a derivative, or a step of the chain rule, is left out"
        )
    extra = " · ".join(above)
    return Named(
        "extra_factor",
        f"{start}: the factor {extra} is too much, or a division by it is missing",
        numbers,
        f"look for {extra}: it is multiplied in once too often, or not divided by",
    )


def _say_incoming(item: Difference, product: Product, known: Vocabulary, numbers: dict[str, object]) -> Named:
    above = [known.names[row] for row, power in product.terms if power > 0]
    below = [known.names[row] for row, power in product.terms if power < 0]
    plain = bool(below) and below[0] in {"grad_output"} | {name for name, _ in known.cotangents}
    if not above and plain:
        constant = "" if abs(product.constant - 1) < 1e-6 else f" times {words.number(product.constant)}"
        said = f"as if the incoming gradient were all ones{constant}"
    elif above and plain:
        said = f"as if the incoming gradient were {_spelled(Product(product.constant, product.terms[:1], 0), known)}"
    elif above:
        said = f"{_spelled(product, known)} times the derivative: the incoming gradient is multiplied twice"
        return Named(
            "extra_factor",
            f"the gradient for {item.name} is {said}",
            dict(numbers),
            "grad_output is multiplied into a factor that holds it already",
        )
    else:
        said = f"the derivative times {_spelled(product, known)}"
    return Named(
        "ignores_grad_output",
        f"the gradient for {item.name} is {said}",
        dict(numbers),
        "backward must multiply by grad_output element by element, whatever it is: not assume ones, not reduce it",
    )


def _say_term(item: Difference, product: Product, known: Vocabulary, incoming: str) -> Named:
    spelled = _spelled(Product(abs(product.constant), product.terms, 0), known)
    term = incoming if spelled == "1" else f"{incoming} · {spelled}"
    numbers = {"term": term, "constant": product.constant}
    if product.constant < 0:
        return Named(
            "missing_term",
            f"the gradient for {item.name} is the derivative minus {term}: that term is missing (or its sign is wrong)",
            numbers,
            f"look for the branch or the part of the product rule that gives {term}",
        )
    return Named(
        "extra_term",
        f"the gradient for {item.name} is the derivative plus {term}: that term is too much (or its sign is wrong)",
        numbers,
        f"look for {term}: it is added once too often, or a term that cancels it is missing",
    )


def _say_formula(item: Difference, product: Product, truth: Product | None, known: Vocabulary, incoming: str) -> Named:
    spelled = _spelled(product, known)
    returned = incoming if spelled == "1" else f"{incoming} · {spelled}"
    numbers: dict[str, object] = {"returned": returned}
    if truth is not None:
        right = _spelled(truth, known)
        right = incoming if right == "1" else f"{incoming} · {right}"
        numbers["derivative"] = right
        return Named(
            "wrong_formula",
            f"the gradient for {item.name} is {returned}, the derivative is {right}",
            numbers,
            f"{returned} is returned where {right} belongs",
        )
    if not product.terms:
        return Named(
            "missing_factor",
            f"the gradient for {item.name} is the incoming gradient{'' if spelled == '1' else ' times ' + spelled}: "
            "the derivative of the function itself is left out",
            numbers,
            "backward hands grad_output on as it is: multiply by the derivative of forward",
        )
    return Named(
        "wrong_formula",
        f"the gradient for {item.name} is {returned}, which is not the derivative",
        numbers,
        f"{returned} is what backward computes: differentiate forward again, a term or a factor is lost",
    )


def _say_bare(item: Difference, product: Product, known: Vocabulary) -> Named:
    spelled = _spelled(Product(abs(product.constant), product.terms, 0), known)
    numbers = {"term": spelled, "constant": product.constant}
    side = "plus" if product.constant > 0 else "minus"
    cause = "constant_offset" if not product.terms else "extra_term"
    return Named(
        cause,
        f"the gradient for {item.name} is the derivative {side} {spelled}, whatever the incoming gradient is",
        numbers,
        "something is added that isn't multiplied by grad_output: a constant, a penalty, weight decay",
    )


@dataclass(frozen=True, slots=True)
class _Sum:
    constants: tuple[float, float]
    names: tuple[str, str]


def _sum_of_two(
    d: torch.Tensor, incoming: torch.Tensor, r: torch.Tensor, known: Vocabulary, item: Difference
) -> _Sum | None:
    """d = c₁ · b₁ + c₂ · b₂ with b among incoming · φ and the derivative itself."""
    if d.numel() < 8:
        return None
    basis = torch.cat([known.table * incoming, incoming[None], r[None]])
    names = [*(f"grad_output · {name}" for name in known.names), "grad_output", "the derivative"]
    norms = (basis * basis).sum(1).sqrt()
    rows = (torch.isfinite(norms) & (norms > 1e-12)).nonzero().reshape(-1)
    unit = basis[rows] / norms[rows][:, None]
    aim = d / d.norm()
    along = unit @ aim
    gram = unit @ unit.T
    separate = 1 - gram * gram
    explained = along[:, None] ** 2 + along[None, :] ** 2 - 2 * gram * along[:, None] * along[None, :]
    left_over = 1 - explained / separate.clamp_min(1e-300)
    near = ((left_over < 1e-8) & (separate > 1e-5)).triu(1).nonzero()
    costs = torch.tensor([*known.costs, 0, 0], dtype=torch.float64)[rows]
    order = (costs[near[:, 0]] + costs[near[:, 1]]).argsort()[:_CANDIDATES]
    for one, two in near[order].tolist():
        pair = basis[rows[[one, two]]]
        solution = torch.linalg.lstsq(pair.T, d[:, None]).solution.reshape(-1)
        if item.explains(d - solution @ pair):
            return _Sum((float(solution[0]), float(solution[1])), (names[int(rows[one])], names[int(rows[two])]))
    return None


def _say_sum(item: Difference, two: _Sum, known: Vocabulary, incoming: str) -> Named:
    del known
    parts = []
    for constant, name in zip(two.constants, two.names, strict=True):
        said = name.replace("grad_output", incoming)
        number = "" if abs(abs(constant) - 1) < 1e-6 else f"{words.number(abs(constant))} · "
        parts.append(f"{'plus' if constant > 0 else 'minus'} {number}{said}")
    negative = all(constant < 0 for constant in two.constants)
    return Named(
        "missing_term" if negative else "wrong_term",
        f"the gradient for {item.name} is the derivative {parts[0]} {parts[1]}",
        {"terms": list(two.names), "constants": list(two.constants)},
        "look for these two terms: a factor in them, their sign, or that they are left out",
    )
