"""Tries situations one after another until one shows a wrong gradient, and finds the smallest one that does.

The reference of a situation is the oracle, where it is valid; otherwise what the same call gives in the plainest
circumstance, or finite differences where inputs are others. Every difference is judged before it counts.
"""

from __future__ import annotations

import cmath
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.battery import LARGEST, grown
from gradproof_probe.gradients.experiment import BackwardError, ForwardError, rms
from gradproof_probe.gradients.faults import Fault, locally_constant
from gradproof_probe.gradients.infinities import passes_infinities
from gradproof_probe.gradients.judging import Judge, Ruled, Tolerance, differs, largest
from gradproof_probe.gradients.probing import UnstableError, random_direction, ridders
from gradproof_probe.gradients.situations import COMPUTED, ORDINARY, Situation
from gradproof_probe.gradients.subject import NotApplicableError, Pull, Subject, plain

# Relative size of the change that a probe along a random direction must agree to where only differences are at hand.
PROBE_RELATIVE: Final = 1e-5


@dataclass(slots=True)
class Count:
    """What was done, for the report."""

    tried: int = 0
    not_applicable: int = 0
    kinks: int = 0
    unclear: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)


class Trials:
    """`ordinary` is the pull of the ordinary situation, known to be right."""

    def __init__(
        self, subject: Subject, judge: Judge, tolerance: Tolerance, *, oracle: bool, ordinary: Pull, deadline: float
    ) -> None:
        self._subject = subject
        self._judge = judge
        self._tolerance = tolerance
        self.oracle = oracle
        self._ordinary = ordinary
        # Variables for which backward never returns anything: declared to have no gradient.
        self._silent = [index for index, gradient in enumerate(ordinary.gradients) if gradient is None]
        self._natural = largest(ordinary.gradients)
        self._deadline = deadline
        self._graph: tuple[list[torch.Tensor], list[Any]] | None = None
        self._graph_of: tuple[Any, ...] | None = None
        self._pulled: dict[tuple[Any, ...], list[torch.Tensor | None]] = {}
        self.count = Count()
        self.stopped = False
        self._told = True

    def first_fault(self, situations: Iterable[Situation]) -> Fault | None:
        """The first of them that shows a wrong gradient, made as small as it gets."""
        for situation in situations:
            if time.monotonic() > self._deadline:
                self.stopped = True
                return None
            fault = self.attempt(situation) or self._one_by_one(situation)
            if fault is not None:
                return self._smallest(fault)
        return None

    def _one_by_one(self, situation: Situation) -> Fault | None:
        """The parts of a combination that couldn't be had, or that nothing could be told of."""
        if self._told:
            return None
        parts = situation.parts()
        return next((fault for part in parts if (fault := self.attempt(part))), None) if len(parts) > 1 else None

    def attempt(self, situation: Situation) -> Fault | None:
        """None if the gradient is right there, or if that can't be told (`count` says how often)."""
        before = (self.count.not_applicable, self.count.kinks, len(self.count.unclear), len(self.count.raised))
        fault = self._attempt(situation)
        after = (self.count.not_applicable, self.count.kinks, len(self.count.unclear), len(self.count.raised))
        self._told = before == after
        return fault

    def _attempt(self, situation: Situation) -> Fault | None:
        self.count.tried += 1
        given = [item for item in self._subject.args if isinstance(item, torch.Tensor)]
        if situation.resize and grown(given, situation.resize) > LARGEST:
            self.count.not_applicable += 1
            return None
        try:
            pull = self._subject.pull(situation)
        except (NotApplicableError, ForwardError, ValueError, TypeError, IndexError, RuntimeError):
            self.count.not_applicable += 1
            return None
        except BackwardError as error:
            return self._raised(situation, error.cause)
        if not all(bool(torch.isfinite(output).all()) for output in pull.outputs):
            self.count.not_applicable += 1
            return None
        try:
            return self._compare(situation, pull)
        except (NotApplicableError, ForwardError, BackwardError, UnstableError, RuntimeError):
            # RuntimeError: shapes that don't fit each other, where one tensor stands for inputs of several sizes.
            self.count.not_applicable += 1
            return None

    def _raised(self, situation: Situation, error: BaseException) -> Fault | None:
        """An error is loud, and no wrong gradient; only layouts and subsets have to be taken by every backward."""
        self.count.raised.append(f"{situation.describe()}: {type(error).__name__}: {str(error)[:200]}")
        must = situation.cotangent.layout != "contiguous" or situation.wanted is not None
        if not must or situation.changed() not in (("cotangent",), ("wanted",)):
            return None
        if situation.cotangent.layout != "contiguous":
            # It may be the values that it doesn't take, not the layout.
            try:
                self._subject.pull(plain(situation))
            except (BackwardError, ForwardError):
                return None
        return Fault(situation, self._ordinary, [None for _ in self._ordinary.gradients], None, error)

    def _compare(self, situation: Situation, pull: Pull) -> Fault | None:
        if self.oracle:
            reference = self._seen_through(situation, pull.cotangents)
        # Another evaluation, not the same gradient in other clothes.
        elif any(name in (*COMPUTED, "alias") for name in situation.changed()):
            return self._by_differences(situation, pull)
        else:
            reference = self._by_itself(situation, pull.cotangents)
        self._align(situation, pull, reference)
        only = differs(pull.gradients, reference, self._tolerance, self._natural * largest(pull.cotangents))
        if not only:
            return None
        plain_one = plain(situation)
        ruled = self._judge.rule(plain_one, pull.gradients, reference, pull.cotangents, only)
        if ruled.ruling == "kink":
            self.count.kinks += 1
        elif ruled.ruling == "unclear":
            self.count.unclear.append(situation.describe())
        fault = Fault(situation, pull, reference, ruled)
        if ruled.ruling != "wrong" or self._beside_the_domain(situation, ruled) or self._saturated(fault):
            return None
        return fault

    def _saturated(self, fault: Fault) -> bool:
        """A gradient where the output is constant, at values that only we gave: clamps and quantisers let it through.

        Where the given inputs show it, it is weighed by `design`; elsewhere nobody can tell it from what is meant.
        """
        if fault.situation.values.kind not in ("scaled", "shifted", "around", "positive", "negative", "masked"):
            return False
        wrong = differs(fault.pull.gradients, fault.reference, self._tolerance, self._natural)
        return locally_constant(fault, wrong) != "none"

    def _beside_the_domain(self, situation: Situation, ruled: Ruled) -> bool:
        """A gradient that isn't finite at values that nobody may ever give: the search for those weighs them.

        Exact zeros where all given inputs are positive, and -inf where nothing speaks of masks.
        """
        if situation.arguments:
            # An exponent, an epsilon or an index that its callers may never give.
            return not cmath.isfinite(ruled.analytic) or self._leaves_the_formula(situation)
        if cmath.isfinite(ruled.analytic):
            return False
        if situation.values.kind == "masked":
            return not self._subject.masks
        given = [self._subject.args[position] for position in self._subject.positions]
        return situation.values.kind != "ordinary" and any(
            not item.is_complex() and item.numel() > 0 and float(item.min()) > 0 for item in given
        )

    def _leaves_the_formula(self, situation: Situation) -> bool:
        """Whether only these arguments lead through infinities: dividing by an exponent of 0, and the like."""
        return passes_infinities(lambda: self._subject.pull(plain(situation))) and not passes_infinities(
            lambda: self._subject.pull(plain(situation.without("arguments")))
        )

    def _align(self, situation: Situation, pull: Pull, reference: list[torch.Tensor | None]) -> None:
        """What isn't wanted, or never has a gradient, is compared with nothing."""
        for index in range(len(reference)):
            unwanted = situation.wanted is not None and index not in situation.wanted
            if unwanted or (index in self._silent and pull.gradients[index] is None):
                pull.gradients[index] = None
                reference[index] = None

    def _seen_through(self, situation: Situation, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The oracle's answer; one graph serves all situations of the same values, one pull those of a cotangent."""
        values = (situation.made_of(), situation.autocast, situation.alias)
        if self._graph is None or self._graph_of != values:
            plainly = replace(plain(situation), cotangent=ORDINARY.cotangent)
            leaves = self._subject.leaves(self._subject.make(plainly), None, alias=situation.alias)
            given = self._subject.given(leaves, ORDINARY)
            self._graph = (self._subject.forward(given, through=True), leaves)
            self._graph_of = values
            self._pulled.clear()
        asked = situation.cotangent
        key = (asked.kind, asked.number, asked.outputs, asked.layout == "expanded", situation.sequence == "used_twice")
        found = self._pulled.get(key)
        if found is None:
            outputs, leaves = self._graph
            found = self._subject.reference_pull(outputs, leaves, cotangents, situation, retain=True)
            self._pulled[key] = found
        return list(found)

    def _by_itself(self, situation: Situation, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """backward(v) = backward(v + w) - backward(w) in the plainest circumstance, w random: linear in v."""
        same = replace(plain(situation), cotangent=replace(ORDINARY.cotangent, outputs=situation.cotangent.outputs))
        factor = 2 if situation.sequence == "used_twice" else 1
        size = max((float(item.abs().max()) for item in cotangents if item.numel()), default=1.0) or 1.0
        others = [
            torch.randn(
                item.shape,
                generator=torch.Generator().manual_seed(self._subject.seed + 31 + index),
                dtype=torch.complex128 if item.is_complex() else torch.float64,
            ).to(item.dtype)
            * size
            for index, item in enumerate(cotangents)
        ]
        both = self._subject.pull(same, [a.contiguous() + b for a, b in zip(cotangents, others, strict=True)])
        one = self._subject.pull(same, others)
        return [
            None if a is None or b is None else factor * (a - b)
            for a, b in zip(both.gradients, one.gradients, strict=True)
        ]

    def _by_differences(self, situation: Situation, pull: Pull) -> Fault | None:
        """A probe along random directions, then single coordinates where it doesn't agree."""
        subject = self._subject
        if self.along_directions(situation, pull) is not False:
            return None
        reference: list[torch.Tensor | None] = []
        for ordinal, gradient in enumerate(pull.gradients):
            reference.append(None if gradient is None else self.sampled(situation, pull, ordinal, gradient))
        only = [index for index, item in enumerate(reference) if item is not None and item.numel()]
        ruled = self._judge.rule(plain(situation), pull.gradients, reference, pull.cotangents, only) if only else None
        if ruled is None or ruled.ruling != "wrong" or subject.elements == 0:
            return None
        fault = Fault(situation, pull, reference, ruled)
        return None if self._beside_the_domain(situation, ruled) or self._saturated(fault) else fault

    def along_directions(self, situation: Situation, pull: Pull, number: int = 0) -> bool | None:
        """Whether differences along one random direction of all variables agree; None if they can't tell."""
        subject = self._subject
        made = subject.make(plain(situation))
        generator = torch.Generator().manual_seed(subject.seed + 1000 + number)
        directions: dict[int, torch.Tensor] = {}
        analytic = square = 0.0
        for ordinal, position in enumerate(subject.positions):
            gradient = pull.gradients[ordinal]
            if gradient is None or situation.alias:
                continue
            item = made[position]
            direction = random_direction(item, generator, rms(item))
            directions[position] = direction
            product = gradient.conj() * direction
            terms = (product.real if product.is_complex() else product).to(torch.float64)
            analytic += float(terms.sum())
            square += float(terms.square().sum())
        if not directions:
            return None

        def move(step: float) -> list[Any]:
            return [item + step * directions[index] if index in directions else item for index, item in enumerate(made)]

        phi = self._judge.moving(plain(situation), pull.cotangents, move)
        coarse = self._judge.rounding > 1e-9
        scale = square**0.5
        best, error = 0.0, float("inf")
        for step in (1e-1, 2e-2) if coarse else (1e-2, 1e-4, 2e-6):
            try:
                value, estimate = ridders(phi, step, self._judge.rounding)
            except UnstableError:
                continue  # so far away the forward isn't finite any more
            if estimate < error:
                best, error = value, estimate
            relative = 1e-2 if coarse else 1e-7
            if abs(analytic - best) <= 10 * error + relative * max(scale, abs(best)) and error <= 1e-3 * scale:
                return True
        relative = 1e-2 if coarse else PROBE_RELATIVE
        if error > 1e-3 * max(scale, abs(best)):
            return None
        return bool(abs(analytic - best) <= 10 * error + relative * max(scale, abs(best)))

    def sampled(self, situation: Situation, pull: Pull, ordinal: int, gradient: torch.Tensor) -> torch.Tensor:
        """The derivative by differences at some coordinates, NaN at the others."""
        found = torch.full(gradient.shape, float("nan"), dtype=torch.float64).reshape(-1)
        count = found.numel()
        generator = torch.Generator().manual_seed(self._subject.seed)
        chosen = range(count) if count <= 48 else torch.randperm(count, generator=generator)[:32].tolist()
        for coordinate in chosen:
            if time.monotonic() > self._deadline:
                break
            phi, size = self._judge.along(plain(situation), pull.cotangents, ordinal, coordinate)
            try:
                steps = (1e-1, 2e-2) if self._judge.rounding > 1e-9 else (1e-3, 1e-5)
                best = min((ridders(phi, step * size, self._judge.rounding) for step in steps), key=lambda x: x[1])
            except (ForwardError, UnstableError):
                continue
            found[coordinate] = best[0]
        return found.reshape(gradient.shape)

    def _smallest(self, fault: Fault) -> Fault:
        """Drop what isn't needed for it to show, one field after another."""
        if fault.raised is not None:
            return fault
        for name in fault.situation.changed():
            fault = self._smaller(fault, fault.situation.without(name))
        cotangent = fault.situation.cotangent
        if cotangent.kind != "random" and cotangent.layout != "contiguous":
            for less in (replace(cotangent, layout="contiguous"), replace(cotangent, kind="random", number=0.0)):
                smaller = self._smaller(fault, replace(fault.situation, cotangent=less))
                if smaller is not fault:
                    return smaller
        return fault

    def _smaller(self, fault: Fault, situation: Situation) -> Fault:
        """The fault in a smaller situation, if it shows there; the given one otherwise."""
        smaller = self.attempt(situation)
        if smaller is None:
            return fault
        if situation == ORDINARY:
            if not differs(smaller.pull.gradients, self._ordinary.gradients, self._tolerance):
                return fault
            # It was right before: something that outlives a call has changed since.
            return replace(smaller, situation=Situation(sequence="repeated"))
        return smaller
