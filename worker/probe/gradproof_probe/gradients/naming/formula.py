"""An elementwise formula that turns the derivative into what was returned: a factor or a term too many or too few.

Looks in three places: analytic = c · derivative · φ, analytic - derivative = c · incoming · φ, and analytic
= c · incoming · φ, with φ one term of the vocabulary or a product or quotient of two; then for sums of two terms.
With dozens of coordinates that agree to ten digits and ten thousand formulas, an accident is out of the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from gradproof_probe.gradients.naming import words
from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named
from gradproof_probe.gradients.naming.terms import changed_invariance
from gradproof_probe.gradients.naming.vocabulary import Vocabulary, vocabulary

_FEWEST: Final = 3  # coordinates: fewer agree with something by accident
_SCREEN: Final = 1e-8  # of squared logarithms, before the exact test
_CANDIDATES: Final = 6
_SMALL: Final = 1e-2  # an epsilon, and the part of a gradient that it changes
_EPSILON_HINT: Final = "an epsilon is added in backward that forward doesn't have, or has at another place"


@dataclass(frozen=True, slots=True)
class Product:
    """constant · Π term^power: the powers are 1 or -1."""

    constant: float
    terms: tuple[tuple[int, int], ...]  # (row of the vocabulary, power)
    cost: float


def formula(item: Difference) -> Named | None:
    """The simplest factor or term, or two formulas side by side."""
    known = _vocabulary(item)
    if known is None:
        return None
    a, r, d = item.a[known.sample], item.r[known.sample], item.d[known.sample]
    found: list[tuple[float, Named]] = []
    factor = _product(a, r, known, item)
    if factor is not None:
        found.append((factor.cost, _say_factor(item, factor, known)))
    for name, incoming in known.cotangents:
        term = _product(d, incoming, known, item)
        if term is not None:
            simple = _product(r, incoming, known, item) is not None and _product(a, incoming, known, item) is None
            found.append((term.cost + 0.5, _say_term(item, term, known, name, simple=simple)))
        whole = _product(a, incoming, known, item)
        item.memory.setdefault("whole", []).append((name, whole))
        truth = _product(r, incoming, known, item) if whole is not None else None
        if whole is not None and truth is not None:
            found.append((whole.cost + 2.5, _say_formula(item, whole, truth, known, name)))
    bare = _product(d, torch.ones_like(d), known, item, simple=True)
    if bare is not None:
        found.append((bare.cost + 0.75, _say_bare(item, bare, known)))
    if not found:
        found += _near_one(item, a, r, d, known)
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _near_one(
    item: Difference, a: torch.Tensor, r: torch.Tensor, d: torch.Tensor, known: Vocabulary
) -> list[tuple[float, Named]]:
    """analytic = derivative · (1 + c · φ) or derivative / (1 + c · φ): an epsilon, or a second part of a factor."""
    found = []
    for base, below in ((r, False), (a, True)):
        part = _product(d, base, known, item, simple=True, inverse=True)
        if part is None or not part.terms:
            continue
        constant = -part.constant if below else part.constant
        spelled = _spelled(Product(abs(constant), part.terms, 0), known)
        factor = f"(1 {'+' if constant > 0 else '-'} {spelled})"
        said = f"the derivative {'divided by' if below else 'times'} {factor}"
        small = item.largest < 0.1 * item.scale and abs(constant) < _SMALL
        found.append(
            (
                part.cost,
                Named(
                    "different_epsilon" if small else "wrong_factor",
                    f"the gradient for {item.name} is {said}",
                    {"factor": factor, "constant": constant},
                    _EPSILON_HINT if small else f"look for a factor in which {spelled} is too much or missing",
                ),
            )
        )
    return found


def two_terms(item: Difference) -> Named | None:
    """A sum of two terms is missing, too much, or has wrong factors."""
    known = _vocabulary(item)
    if known is None:
        return None
    r, d = item.r[known.sample], item.d[known.sample]
    for name, incoming in known.cotangents:
        two = _sum_of_two(d, incoming, r, known, item)
        if two is not None:
            return _say_sum(item, two, name)
    return None


def returned_formula(item: Difference) -> Named | None:
    """What was returned is a simple formula; the derivative isn't."""
    known = _vocabulary(item)
    if known is None:
        return None
    for name, whole in item.memory.get("whole", []):
        if whole is not None:
            return _say_formula(item, whole, None, known, name)
    return None


def _vocabulary(item: Difference) -> Vocabulary | None:
    if not item.is_wrong or item.r.is_complex() or int(item.telling.sum()) < _FEWEST:
        return None
    if "vocabulary" not in item.memory:
        item.memory["vocabulary"] = vocabulary(item)
    known: Vocabulary = item.memory["vocabulary"]
    return known


@dataclass(frozen=True, slots=True)
class _Logarithms:
    """Logarithms of the terms that are nowhere zero, less their means: products are sums of them."""

    rows: torch.Tensor  # of the vocabulary
    logs: torch.Tensor
    norms: torch.Tensor  # squared
    views: torch.Tensor  # random directions
    seen: torch.Tensor  # the logarithms along these directions
    costs: torch.Tensor


def _logarithms(known: Vocabulary, usable: torch.Tensor, item: Difference) -> _Logarithms:
    everywhere = bool(usable.all())
    if everywhere and "logarithms" in item.memory:
        kept: _Logarithms = item.memory["logarithms"]
        return kept
    table = known.table[:, usable].abs()
    rows = ((table > 1e-12) & torch.isfinite(table)).all(1).nonzero().reshape(-1)
    logs = table[rows].log()
    logs = logs - logs.mean(1, keepdim=True)
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(logs.shape[1], 2, dtype=torch.float64, generator=generator)
    costs = torch.tensor(known.costs, dtype=torch.float64)[rows]
    made = _Logarithms(rows, logs, (logs * logs).sum(1), views, logs @ views, costs)
    if everywhere:
        item.memory["logarithms"] = made
    return made


def _product(
    target: torch.Tensor,
    base: torch.Tensor,
    known: Vocabulary,
    item: Difference,
    *,
    simple: bool = False,
    inverse: bool = False,
) -> Product | None:
    """target = c · base · φ or c · base · φ₁^±1 · φ₂^±1, the simplest that fits; None if none does.

    `simple`: one term that isn't made of the incoming gradient, or none; `inverse`: or one over it.
    """
    floor = 1e-9 * float(target.abs().max())
    usable = (target.abs() > floor) & (base.abs() > 1e-9 * float(base.abs().max()))
    n = int(usable.sum())
    if n < _FEWEST:
        return None
    # Where the target vanishes and the base doesn't (or the other way round), only a term that vanishes fits: such
    # terms have no logarithm. These cases belong to the rules for places.
    if n < usable.numel() and bool(((target.abs() > floor) != (base.abs() > 0))[~usable].any()):
        return None
    constant = float((target * base)[usable].sum() / (base * base)[usable].sum())
    if item.explains((target - constant * base)[usable], target):
        return Product(constant, (), _constant_cost(constant))
    aim = (target[usable] / base[usable]).abs().log()
    aim = aim - aim.mean()
    size = float((aim * aim).sum())
    terms = _logarithms(known, usable, item)
    along = terms.logs @ aim
    found: list[Product] = []
    for power in (1, -1):
        near = (size + terms.norms - 2 * power * along < _SCREEN * size).nonzero().reshape(-1).tolist()
        for place in near:
            row = int(terms.rows[place])
            if not (simple and ((power < 0 and not inverse) or row in known.incoming)):
                found += _verified(((row, power),), target, base, usable, known, item)
    if not found and not simple and n >= 2 * _FEWEST:
        for pair in _near_pairs(terms, aim):
            found += _verified(pair, target, base, usable, known, item)
    return min(found, key=lambda product: product.cost) if found else None


def _near_pairs(terms: _Logarithms, aim: torch.Tensor) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Products and quotients of two terms that may be the aim, the simplest first.

    Then p · logs[one] + q · logs[two] = aim along every direction: two random ones tell nearly all pairs apart. The
    first is looked at in float32: that halves the time of the only step that is quadratic in the number of terms.
    """
    wanted = aim @ terms.views
    room = 1e-5 * float(aim.norm() * terms.views.norm(dim=0).max())
    coarse = terms.seen[:, 0].to(torch.float32)
    for first, second in ((1, 1), (-1, -1), (1, -1)):
        rest = (float(wanted[0]) - first * coarse)[:, None]
        near = ((rest - second * coarse[None, :]).abs() < room).nonzero()
        gap = wanted[1] - first * terms.seen[near[:, 0], 1] - second * terms.seen[near[:, 1], 1]
        near = near[gap.abs() < room]
        if first == second:
            near = near[near[:, 0] <= near[:, 1]]
        order = (terms.costs[near[:, 0]] + terms.costs[near[:, 1]]).argsort()[:_CANDIDATES]
        for one, two in near[order].tolist():
            yield (int(terms.rows[one]), first), (int(terms.rows[two]), second)


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
    if not math.isfinite(constant) or not item.explains(aim - constant * chosen, aim):
        return []
    cost = sum(known.costs[row] for row, _ in terms) + (len(terms) - 1) + _constant_cost(constant)
    return [Product(constant, terms, cost)]


def _constant_cost(constant: float) -> float:
    size = abs(constant)
    if abs(size - 1) < 1e-6:
        return 0.0 if constant > 0 else 0.25
    # 0.01 or 0.5 is written by hand, 0.0681222 is not.
    if abs(size - float(f"{size:.2g}")) < 1e-7 * size:
        return 0.75
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
    plain = {name for name, _ in known.cotangents}
    if above and not below:
        return Named(
            "extra_factor",
            f"the gradient for {item.name} is {_spelled(product, known)} times the derivative: the incoming gradient "
            "is multiplied twice",
            dict(numbers),
            "grad_output is multiplied into a factor that holds it already",
        )
    if not above and below[0] in plain:
        said = f"as if the incoming gradient were {constant_words(product.constant, item)}"
    elif not above and below[0].startswith("|"):
        said = "as if the incoming gradient were its sign"
    elif above and below[0] in plain:
        said = f"as if the incoming gradient were {_spelled(Product(product.constant, product.terms[:1], 0), known)}"
    else:
        said = f"the derivative times {_spelled(product, known)}"
    return Named(
        "ignores_grad_output",
        f"the gradient for {item.name} is {said}",
        dict(numbers),
        "backward must multiply by grad_output element by element, whatever it is: not assume ones, not reduce it",
    )


def constant_words(constant: float, item: Difference) -> str:
    """Which constant was taken for the incoming gradient: "all ones", "its mean everywhere"."""
    if words.same(constant, 1.0):
        return "all ones"
    for g in item.evidence.cotangents:
        if not g.is_complex():
            for value, said in ((g.mean(), "mean"), (g.sum(), "sum"), (g.reshape(-1)[0], "first element")):
                if words.same(constant, float(value)):
                    return f"its {said} everywhere"
    return f"all ones times {words.number(constant)}"


def _say_term(item: Difference, product: Product, known: Vocabulary, incoming: str, *, simple: bool) -> Named:
    """`simple`: the derivative is a simple formula by itself, so that nothing can be missing from what was returned."""
    term = _times(incoming, product, known)
    numbers = {"term": term, "constant": product.constant}
    side, lacking = ("minus", term) if product.constant < 0 else ("plus", f"-{term}")
    start = f"the gradient for {item.name} is the derivative {side} {term}"
    if product.terms and item.largest < _SMALL * item.scale and abs(product.constant) < _SMALL:
        return Named("different_epsilon", start, numbers, _EPSILON_HINT)
    if simple:
        return Named(
            "extra_term",
            f"{start}: that term is too much",
            numbers,
            f"look for {term}: backward adds or subtracts it and shouldn't",
        )
    return Named(
        "missing_term",
        f"{start}: the term {lacking} is missing (or {term} too much)",
        numbers,
        f"look for the branch or the part of the product rule that gives {lacking}",
    )


def _times(incoming: str, product: Product, known: Vocabulary) -> str:
    """`grad_output · x`, with the sign left to the sentence; a quotient by the incoming gradient is cancelled."""
    for place, (row, power) in enumerate(product.terms):
        if power < 0 and known.names[row] == incoming:
            kept = product.terms[:place] + product.terms[place + 1 :]
            return _spelled(Product(abs(product.constant), kept, 0), known)
    spelled = _spelled(Product(abs(product.constant), product.terms, 0), known)
    return incoming if spelled == "1" else f"{incoming} · {spelled}"


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
    if product.terms:
        return Named(
            "extra_term",
            f"the gradient for {item.name} is the derivative {side} {spelled}, whatever the incoming gradient is",
            numbers,
            "something is added that isn't multiplied by grad_output: a penalty, weight decay",
        )
    changed = changed_invariance(item)
    if changed:
        return Named(
            f"{changed}_term",
            f"the gradient for {item.name} {'lacks' if changed == 'missing' else 'has too much'} a sum over all "
            f"elements: it is the derivative {side} {spelled} at every element",
            numbers,
            "look for a mean or a sum over all elements that is subtracted",
        )
    return Named(
        "constant_offset",
        f"the gradient for {item.name} is the derivative {side} {spelled} at every element",
        numbers,
        "something is added that is the same for every element: a constant, or a sum over all of them",
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
        # Without the derivative itself, what was returned is the other term: no sum.
        whole = names[int(rows[two])] == "the derivative" and abs(float(solution[1]) + 1) < 1e-6
        if not whole and item.explains(d - solution @ pair):
            return _Sum((float(solution[0]), float(solution[1])), (names[int(rows[one])], names[int(rows[two])]))
    return None


def _say_sum(item: Difference, two: _Sum, incoming: str) -> Named:
    parts = []
    for constant, name in zip(two.constants, two.names, strict=True):
        said = name.replace("grad_output", incoming)
        number = "" if abs(abs(constant) - 1) < 1e-6 else f"{words.number(abs(constant))} · "
        parts.append(f"{'plus' if constant > 0 else 'minus'} {number}{said}")
    return Named(
        "wrong_term",
        f"the gradient for {item.name} is the derivative {parts[0]} {parts[1]}",
        {"terms": list(two.names), "constants": list(two.constants)},
        "look for these two terms: a factor in them, their sign, or that they are left out",
    )
