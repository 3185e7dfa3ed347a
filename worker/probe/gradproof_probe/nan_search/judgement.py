"""Whether a value or gradient that is not finite is the code's fault, at an input that was constructed.

Five grounds, from the strictest: float64 has a finite result that fits, so only the way of computing lost it; a
gradient that is not used (0) became NaN on its way; the function has bounded difference quotients, so a finite gradient
exists; the value has a limit; the singular operand was computed or meant to be protected, so the caller can't see that
it must stay away. The logarithm of an argument at 0 is none of these: that is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import torch

from gradproof_probe.nan_search.birth import Birth
from gradproof_probe.nan_search.constructions import Construction, Naturalness
from gradproof_probe.nan_search.singularities import advice
from gradproof_probe.nan_search.subject import Evaluation, Inputs, Leaf, Subject, weighted

Ground = Literal[
    "range", "unused", "slope", "limit", "reached", "asked", "domain", "defined", "overflow", "pole", "told", "warned",
    "constant",
]  # fmt: skip
_FAULTS: Final = frozenset({"range", "unused", "slope", "limit", "reached", "asked"})
_LIKELY: Final[frozenset[Naturalness]] = frozenset({"given", "natural", "plausible"})
# Distances from the singular point. A root's quotient grows a thousandfold between neighbours, a logarithm's by half.
_DISTANCES: Final = (1e-2, 1e-4, 1e-6, 1e-8)
_GROWTH: Final = 3.0
_DIRECTIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """`verdict`: `fail` at an input that happens, `tuned` at one that hardly does, `note` where nobody is to blame.

    `asked`: a hypothesis names the place.
    """

    verdict: Literal["fail", "tuned", "note"]
    ground: Ground
    birth: Birth
    construction: Construction
    precision: str
    gradient_of: tuple[str, ...]
    asked: bool
    text: str

    @property
    def remedy(self) -> str:
        """One sentence on what to write instead."""
        return advice(self.birth.operation)


class Judge:
    """For one subject; `wide` is the same in float64 (None if it can't run so)."""

    def __init__(self, subject: Subject, wide: Subject | None, *, precision: str, declared: bool) -> None:
        self._subject = subject
        self._wide = wide
        self._precision = precision
        self._declared = declared

    def judge(
        self,
        inputs: Inputs,
        evaluation: Evaluation,
        birth: Birth,
        construction: Construction,
        *,
        asked: bool,
        known: Literal["told", "warned"] | None = None,
    ) -> Fault:
        """`known`: the author says that this is not finite, in the documentation or by a warning."""
        ground = known or self._ground(inputs, evaluation, birth, construction, asked=asked)
        verdict: Literal["fail", "tuned", "note"] = "note"
        if ground in _FAULTS:
            likely = construction.naturalness in _LIKELY
            verdict = "fail" if likely else ("tuned" if construction.naturalness == "tuned" else "note")
        gradient_of = tuple(leaf.name for leaf in evaluation.bad_leaves()) if birth.phase == "backward" else ()
        text = _text(birth, ground, construction, gradient_of, self._precision)
        return Fault(verdict, ground, birth, construction, self._precision, gradient_of, asked, text)

    def judge_constant(self, birth: Birth, construction: Construction) -> Fault:
        """A NaN that is there whatever the inputs: whose fault it is depends on who chose the sizes."""
        text = _text(birth, "constant", construction, (), self._precision)
        return Fault("note", "constant", birth, construction, self._precision, (), asked=False, text=text)

    def _ground(
        self, inputs: Inputs, evaluation: Evaluation, birth: Birth, construction: Construction, *, asked: bool
    ) -> Ground:
        given = construction.naturalness == "given"
        # Silence has a logarithm of -inf, and data holds silence; a prediction that equals its target is an optimum.
        single = len({edit.slot for edit in construction.edits}) == 1 and construction.edits[0].other is None
        if birth.defined_by_torch:
            return "asked" if asked else "defined"
        wide = self._evaluated_wide(inputs)
        if wide is not None and _fits(evaluation, wide, backward=birth.phase == "backward"):
            return "range"
        if birth.overflow and not asked:
            return "overflow"
        if birth.phase == "backward":
            if birth.zero_times_infinity:
                return "unused"
            if self._bounded_slope(inputs, evaluation.bad_leaves(), wide):
                return "slope"
        elif not birth.outside:
            around = self._values_around(inputs, evaluation)
            if _agree(around):
                return "limit"
            if not asked and not single and _is_pole(evaluation, around):
                return "pole"
        if asked:
            return "asked"
        if given and self._declared and birth.phase == "forward":
            return "reached"
        if birth.own_infinity:
            return "reached"
        if birth.outside:
            # Inputs that were guessed prove nothing about a domain; a bound in front that lets this through does.
            return "reached" if birth.origin.bounded and not given else "domain"
        return "reached" if birth.origin.computed or birth.origin.protected else "domain"

    def _evaluated_wide(self, inputs: Inputs) -> Evaluation | None:
        if self._wide is None:
            return None
        wide = self._wide.run(inputs)
        if wide is not None:
            wide.differentiate()
        return wide

    def _bounded_slope(self, inputs: Inputs, leaves: list[Leaf], here: Evaluation | None) -> bool:
        """Whether |f(x + t u) - f(x)| / t stays bounded as t shrinks, on each side where f is finite."""
        if self._wide is None or here is None or not here.finite_outputs:
            return False
        value = weighted(here.outputs)
        judged = False
        for direction in _directions(leaves):
            quotients = []
            for distance in _DISTANCES:
                moved = self._wide.run(inputs, {name: distance * step for name, step in direction.items()})
                if moved is None or not moved.finite_outputs:
                    break
                quotients.append(abs(weighted(moved.outputs) - value) / distance)
            if not quotients:
                continue  # outside the domain on this side
            if len(quotients) < len(_DISTANCES) or quotients[-1] > _GROWTH * max(quotients[:2]) + 1e-6:
                return False
            judged = True
        return judged

    def _values_around(self, inputs: Inputs, evaluation: Evaluation) -> list[tuple[float, ...]]:
        """The values on the way to a point that has none, from several sides; empty if there are none there either."""
        leaves = [leaf for leaf in evaluation.leaves if leaf.is_input]
        if self._wide is None or not leaves:
            return []
        found = []
        for direction in _directions(leaves):
            values = []
            for distance in _DISTANCES[:-1]:
                moved = self._wide.run(inputs, {name: distance * step for name, step in direction.items()})
                if moved is None or not moved.finite_outputs:
                    return []
                values.append(weighted(moved.outputs))
            found.append(tuple(values))
        return found


def _agree(around: list[tuple[float, ...]]) -> bool:
    last = [values[-1] for values in around]
    return bool(last) and max(last) - min(last) <= 1e-3 * max(1.0, *(abs(value) for value in last))


def _is_pole(evaluation: Evaluation, around: list[tuple[float, ...]]) -> bool:
    """Whether the value is infinite because it has to be: no NaN, and it grows without bound on every way there."""
    if not around or any(bool(output.isnan().any()) for output in evaluation.outputs):
        return False
    return all(abs(values[0]) < abs(values[1]) < abs(values[2]) for values in around)


def _directions(leaves: list[Leaf]) -> Iterator[dict[str, torch.Tensor]]:
    """Random ones to both sides, then those that raise and that lower every element: a root has one side only."""
    for number in range(_DIRECTIONS):
        generator = torch.Generator().manual_seed(number)
        steps = {leaf.name: torch.randn(leaf.tensor.shape, generator=generator, dtype=torch.float64) for leaf in leaves}
        yield steps
        yield {name: -step for name, step in steps.items()}
    for sign in (1.0, -1.0):
        yield {name: sign * (0.5 + step.abs()) for name, step in steps.items()}


def _fits(narrow: Evaluation, wide: Evaluation, *, backward: bool) -> bool:
    """Whether somewhere the narrow result is not finite while the wide one is, and fits into the narrow dtype."""
    pairs = zip(narrow.gradients, wide.gradients, strict=False) if backward else zip(
        narrow.outputs, wide.outputs, strict=False
    )  # fmt: skip
    for low, high in pairs:
        if low is None or high is None or low.shape != high.shape or low.dtype == high.dtype:
            continue
        bad = ~low.detach().isfinite()
        values = high.detach()[bad]
        if values.numel() and bool((values.abs() <= _ordinary(low.dtype)).any()):
            return True
    return False


def _ordinary(dtype: torch.dtype) -> float:
    """Results up to here were not lost for want of room: the square root of the largest number (1.8e19 in float32)."""
    largest = float(torch.finfo(dtype).max)
    return 0.1 * largest if dtype == torch.float16 else largest**0.5


_BECAUSE: Final[dict[Ground, str]] = {
    "range": "in float64 the same call gives a finite result that fits {precision}",
    "unused": "the gradient that comes in is 0 there (the value is not used), but 0 times infinity is NaN: choosing "
    "between results afterwards, with where, masked_fill or nan_to_num, does not keep it out",
    "slope": "the function has a finite slope there, so there is a finite gradient to return",
    "limit": "the value has a limit there",
    "reached": "its operand is computed, so a caller can't see that it must stay away from there",
    "asked": "reading the source named this operation",
    "domain": "its operand is an argument, so this is the domain of the function",
    "defined": "torch defines it so",
    "overflow": "the value is beyond the largest number",
    "pole": "the value grows without bound towards that input",
    "told": "the documentation says so",
    "warned": "the code warns of it",
    "constant": "it is computed from sizes and constants alone, so it is there whatever the inputs",
}


def _text(
    birth: Birth, ground: Ground, construction: Construction, gradient_of: tuple[str, ...], precision: str
) -> str:
    operation = birth.operation.lstrip("_")
    if birth.phase == "backward":
        what = f"the outputs are finite, but the gradient of {_listed(gradient_of)} is not: it is born in the "
        what += f"backward of `{operation}`"
    else:
        what = f"an output is not finite: {'NaN' if birth.kind == 'nan' else 'infinity'} is born in `{operation}`"
    because = _BECAUSE[ground].format(precision=precision)
    return f"{what}, for {construction.description}; {because}"


def _listed(names: tuple[str, ...]) -> str:
    shown = [f"`{name}`" for name in names[:3]]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(shown) + more
