"""Do activation checkpoints change what a training step computes? The same steps with them, and called directly."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.equivalence.observation import UNIT
from gradproof_probe.gradients.attribution import Place, innermost
from gradproof_probe.harness.recipe import ExpressionError, construct
from gradproof_probe.importing import describe_error
from gradproof_probe.training.checkpointing import (
    Segment,
    Steps,
    Subject,
    TooManySegmentsError,
    Way,
    train,
)
from gradproof_probe.training.plain_state import Attribute
from gradproof_probe.training.segment_lines import RepeatedOperations, SavedUnfilled, WatchedWrites
from gradproof_probe.training.step_differences import Difference, differences
from gradproof_probe.training.submitted_source import is_contained, is_read

# A recomputation repeats the same operations: what differs by less is gradients added up in another order.
ROUNDING: Final = 16 * UNIT
# What is more must be there in float64 too, by more than its rounding, with other numbers.
WIDE_ROUNDING: Final = 1e-8
# Where no float64 run exists, what differs by less than this share can still be ill-conditioned rounding.
WITHOUT_WIDE: Final = 1e-3
# Attributes by which a module lets checkpoints be turned on.
_SWITCH: Final = re.compile(r"checkpoint|save_?memory|memory_?efficient|recompute", re.IGNORECASE)
_NO_GRAPH: Final = "does not require grad and does not have a grad_fn"
_DIRECT: Final = Way(recompute=False)


class CheckpointEquivalence(Check):
    name: ClassVar[str] = "checkpoint_equivalence"
    # Without a checkpoint, which most targets are, one forward; with one two pairs of two steps, and as much again
    # for telling why they differ.
    cost: ClassVar[float] = 6.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Compares training steps with activation checkpoints with the same steps without recomputation.",
        what_it_does=(
            "Where a call of the target reaches `torch.utils.checkpoint` (by whatever name; modules with an attribute "
            "such as `use_checkpoint` are tried with it on as well), two training steps in a row are run as they are, "
            "and again with every checkpointed function called directly: the same seeds, the same random incoming "
            "gradient, gradients by `backward()`. Outputs, gradients of parameters and inputs, buffers, and what "
            "modules keep in plain attributes are compared after each step. Where checkpoints are of the reentrant "
            "kind, a step follows in which the inputs are data that need no gradient. When something differs, one "
            "condition of the recomputation after the other is mended, until the difference goes: torch's random "
            "state, Python's and NumPy's, what modules hold, the early end. That names the cause, and a run with a "
            "watch on it the line."
        ),
        how_it_decides=(
            "`fail` when something differs by more than rounding (16 float32 units), with another seed and in float64 "
            "too: `random_state_not_preserved`, `buffer_updated_twice` (batch norm statistics, for one), "
            "`state_changed`, `no_gradient_through_reentrant`, `recomputation_stopped_early`, "
            "`recomputation_raises`, or `recomputation_differs` where none of these explains it. An attribute that "
            "differs counts only if code reads it. A missing gradient for inputs that need none is `fail` only where "
            "no other class of the repository contains the target, since within a larger model its input would "
            "require one, or where the target goes backward itself and that raises. `inconclusive`: two direct runs "
            "differ as well, nothing was recomputed, or all gradients are zero. `skipped`: no call reached a "
            "checkpoint."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        subject = Subject(context.resolved, context.recipe, context.source_root)
        try:
            return _Comparison(context, subject).run()
        except ExpressionError as error:
            return CheckResult("error", f"the target can't be built: {error}"[:400])
        except Exception as error:  # submitted objects can refuse to be looked at, or to be set, in any way
            return CheckResult("error", f"it can't be compared: {describe_error(error, 300)}")


class _Comparison:
    def __init__(self, context: CheckContext, subject: Subject) -> None:
        self._context = context
        self._subject = subject
        self._evidence: dict[str, Any] = {}
        self._seed = context.seed

    def run(self) -> CheckResult:
        why_not = self._reach()
        if why_not:
            return CheckResult("skipped", why_not)
        direct, recomputed = self._train(_DIRECT), self._train(Way())
        if isinstance(recomputed.error, TooManySegmentsError):
            return self._inconclusive(str(recomputed.error))
        if direct.error is not None:
            said = describe_error(direct.error, 300)
            if self._subject.flags:
                return CheckResult(
                    "skipped", f"with {self._flags()} on it raises, without recomputation as well: {said}"
                )
            return CheckResult("error", f"it raises without recomputation as well: {said}")
        self._evidence["segments"] = _told(recomputed.segments)
        if recomputed.error is not None:
            return self._raised(direct, recomputed)
        found = self._differences(direct, recomputed, ROUNDING)
        if not found:
            return self._equal(direct, recomputed)
        unstable = {item.name for item in self._differences(direct, self._train(_DIRECT), 0.0)}
        stable = [item for item in found if item.name not in unstable]
        if not stable:
            return self._inconclusive(f"two runs without recomputation differ as well: {found[0].text}")
        kinds = self._confirmed(stable)
        if not kinds:
            self._evidence["differences"] = [item.text for item in stable[:10]]
            return self._inconclusive(f"{stable[0].text}, but not with another seed and in float64")
        return self._diagnosed(direct, recomputed, [item for item in stable if item.kind in kinds])

    # -- what is run

    def _train(self, way: Way, **options: Any) -> Steps:
        return train(self._subject, way, seed=self._seed, **options)

    def _in_time(self) -> bool:
        return time.monotonic() < self._context.deadline

    def _reach(self) -> str:
        """Why no checkpoint is reached; empty if one is, for which attributes may have been turned on."""
        first = self._train(Way(), steps=1, backward=False)
        if first.segments:
            return ""
        if first.error is not None:
            return f"its call raises before it comes to a checkpoint: {describe_error(first.error, 200)}"
        none = "no call of it comes to torch.utils.checkpoint"
        switches = self._switches()
        if not switches:
            return none
        self._subject = replace(self._subject, flags=switches)
        turned = self._train(Way(), steps=1, backward=False)
        if turned.segments:
            self._evidence["turned_on"] = [f"{owner}.{name}" if owner else name for owner, name in switches]
            return ""
        with_them = f", also with {self._flags()} on"
        return none + with_them + (f": it raises {describe_error(turned.error, 200)}" if turned.error else "")

    def _switches(self) -> tuple[tuple[str, str], ...]:
        module = construct(self._context.resolved, self._context.recipe.constructor, seed=self._seed)
        if module is None:
            return ()
        return tuple(
            (owner, name)
            for owner, item in module.named_modules()
            for name, value in vars(item).items()
            if value is False and _SWITCH.search(name)
        )

    def _flags(self) -> str:
        return ", ".join(dict.fromkeys(name for _, name in self._subject.flags))

    def _confirmed(self, found: list[Difference]) -> set[str]:
        """The kinds of differences that are there with another seed too, and where one exists in float64."""
        seed = self._seed + 1000
        options: dict[str, Any] = {"seed": seed, "dtype": torch.float64}
        direct = train(self._subject, _DIRECT, **options)
        limit = WIDE_ROUNDING
        if direct.error is not None:
            options, limit = {"seed": seed}, WITHOUT_WIDE
            direct = train(self._subject, _DIRECT, **options)
        recomputed = train(self._subject, Way(), **options)
        if recomputed.error is not None and direct.error is None:
            return {item.kind for item in found}
        return {item.kind for item in self._differences(direct, recomputed, limit)} & {item.kind for item in found}

    # -- what is compared

    def _differences(self, expected: Steps, got: Steps, limit: float) -> list[Difference]:
        """What isn't the same, the worst first. Gradients of inputs that reentrant checkpoints lose are not in it."""
        found = [
            item
            for item in differences(expected, got, limit)
            # A counter that nobody reads may differ.
            if item.kind != "attribute" or is_read(item.attribute, self._context.resolved, self._context.source_root)
        ]
        lost = [item for item in found if item.missing and item.of_input]
        if lost and any(segment.reentrant for segment in got.segments):
            # Whether anybody wants their gradient is not known; data need none.
            self._evidence["gradients_lost"] = [item.name for item in lost]
            found = [item for item in found if item not in lost]
        return found

    # -- verdicts

    def _equal(self, direct: Steps, recomputed: Steps) -> CheckResult:
        segments = recomputed.segments
        lost: CheckResult | None = None
        if any(segment.reentrant for segment in segments) and self._in_time():
            lost = self._with_data()
        if lost is not None:
            return lost
        if not any(segment.runs > 1 for segment in segments):
            return self._inconclusive("no checkpoint was recomputed: no gradient goes through any of them")
        gradients = [value for name, value in direct.values.items() if ": gradient" in name]
        if not any(bool(value.any()) for value in gradients):
            return self._inconclusive("every gradient is zero: nothing was compared in backward")
        number = len(segments) // 2 or 1
        text = (
            f"outputs, gradients and state are the same over two steps with and without recomputation "
            f"({number} checkpoint{'s' if number > 1 else ''} a step)"
        )
        if "note" in self._evidence:
            text += f"; {self._evidence['note']}"
        return CheckResult("pass", text, evidence=self._evidence)

    def _with_data(self) -> CheckResult | None:
        """A step whose inputs need no gradient: reentrant checkpoints then give none to what is inside of them."""
        options: dict[str, Any] = {"steps": 1, "gradients_of_inputs": False}
        direct, recomputed = self._train(_DIRECT, **options), self._train(Way(), **options)
        blind = [segment for segment in recomputed.segments if segment.reentrant and not segment.takes_gradient]
        if direct.error is not None or not blind:
            return None
        if recomputed.error is not None:
            return self._no_graph(recomputed.error, blind[0])
        lost = [item for item in self._differences(direct, recomputed, ROUNDING) if item.missing]
        if not lost:
            return None
        self._evidence["without_gradient"] = [item.name.partition("gradient of ")[2] for item in lost][:20]
        if self._is_whole():
            return self._no_gradient(lost, blind[0])
        self._evidence["note"] = (
            f"where its input needs no gradient, {len(lost)} parameters get none through the reentrant checkpoint"
        )
        return None

    def _no_graph(self, error: BaseException, segment: Segment) -> CheckResult | None:
        """The target goes backward itself, on data, and there is nothing to go back through."""
        if _NO_GRAPH not in str(error):
            return None
        text = (
            "where its inputs are data, its own backward raises, and without the checkpoint it does not: the reentrant "
            "checkpoint follows only tensors that are arguments themselves, and none of them requires grad; pass "
            "use_reentrant=False"
        )
        return self._fail("no_gradient_through_reentrant", text, segment.place, [])

    def _is_whole(self) -> bool:
        """Whether its input is data: no other class contains the target, and nobody but its author turned it on."""
        context = self._context
        if self._subject.flags and context.recipe.source == "synthesised":
            return False
        return not is_contained(context.resolved.target.qualname, context.source_root)

    def _no_gradient(self, lost: list[Difference], segment: Segment) -> CheckResult:
        names = [item.name.partition("gradient of ")[2] for item in lost]
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        text = (
            f"{few} get{'s' if len(names) == 1 else ''} no gradient: the reentrant checkpoint follows only tensors "
            "that are arguments themselves, and none of them requires grad; pass use_reentrant=False"
            if not segment.takes_gradient
            else f"{few} get{'s' if len(names) == 1 else ''} no gradient through the reentrant checkpoint, which "
            "follows only tensors that are arguments themselves; pass use_reentrant=False"
        )
        return self._fail("no_gradient_through_reentrant", text, segment.place, lost, tensors=len(names))

    def _raised(self, direct: Steps, recomputed: Steps) -> CheckResult:
        assert recomputed.error is not None
        told = describe_error(recomputed.error, 300)
        if (named := self._mended(direct, recomputed, [])) is not None:
            cause, why, place, numbers = named
            return self._fail(cause, f"backward raises only with the checkpoint ({told}): {why}", place, [], **numbers)
        place = innermost(recomputed.error.__traceback__, self._context.source_root)
        place = place or next((s.place for s in recomputed.segments if s.place), None)
        return self._fail(
            "recomputation_raises", f"only with the checkpoint {recomputed.phase} raises {told}", place, []
        )

    def _diagnosed(self, direct: Steps, recomputed: Steps, found: list[Difference]) -> CheckResult:
        through = [item for item in found if item.kind in ("output", "gradient")]
        primary = through or found
        self._evidence["differences"] = [item.text for item in found[:10]]
        if (named := self._mended(direct, recomputed, primary)) is not None:
            cause, why, place, numbers = named
            if cause == "state_changed" and all(item.kind == "buffer" for item in primary):
                cause = "buffer_updated_twice"
                where = f" at line {place.line}" if place is not None else ""
                why = (
                    f"forward updates it{where}, and the recomputation once more; keep what updates buffers out of the "
                    "checkpoint, or update them in one of the two runs only"
                )
            return self._fail(cause, f"{primary[0].text} with the checkpoint: {why}", place, primary, **numbers)
        lost = [item for item in primary if item.missing and item.kind == "gradient"]
        reentrant = [segment for segment in recomputed.segments if segment.reentrant]
        if lost and reentrant:
            return self._no_gradient(lost, next((s for s in reentrant if not s.takes_gradient), reentrant[0]))
        watch = RepeatedOperations(self._context.source_root)
        self._train(replace(_DIRECT, twice=True), steps=1, watch=watch)
        repeated = watch.first()
        operation = f": {repeated[0]} gives something else when it is repeated" if repeated else ""
        place = repeated[1] if repeated else next((s.place for s in recomputed.segments if s.place), None)
        text = f"{primary[0].text} with the checkpoint, whose recomputation is not what forward was{operation}"
        return self._fail("recomputation_differs", text, place, primary)

    def _mended(
        self, direct: Steps, recomputed: Steps, primary: list[Difference]
    ) -> tuple[str, str, Place | None, dict[str, Any]] | None:
        """(cause, why, where, numbers) of the condition that has to be mended for the difference to go."""
        names = {item.name for item in primary}

        def mends(**condition: bool) -> Steps | None:
            if not self._in_time():
                return None
            mended = self._train(Way(**condition))
            if mended.error is not None:
                return None
            left = {
                item.name for item in self._differences(direct, mended, ROUNDING) if names or item.kind == "gradient"
            }
            return None if left & names or (not names and left) else mended

        loose = [segment for segment in recomputed.segments if not segment.preserves]
        if loose and mends(torch_random=True):
            why = "preserve_rng_state=False lets the recomputation draw other random numbers than forward did"
            return "random_state_not_preserved", why, loose[0].place, {}
        call = next((segment.place for segment in recomputed.segments if segment.place), None)
        if mends(python_random=True):
            writes = WatchedWrites(self._context.source_root, python_random=True)
            self._train(_DIRECT, steps=1, watch=writes)
            source, place = writes.first() or ("random", call)
            why = (
                f"its function draws from {source}, whose state a checkpoint does not put back: "
                "draw with torch, or before the checkpoint"
            )
            return "random_state_not_preserved", why, place, {}
        if (mended := mends(state=True)) is not None:
            return self._state(mended, call)
        if any(not segment.reentrant for segment in recomputed.segments) and mends(to_the_end=True):
            saved = SavedUnfilled(self._context.source_root)
            self._train(_DIRECT, steps=1, watch=saved)
            why = (
                "the recomputation ends as soon as the last tensor has been saved, and an operation there (as rrelu "
                "does) writes what it saved only afterwards; end the function with another operation, or pass "
                "early_stop=False"
            )
            return "recomputation_stopped_early", why, saved.first() or call, {}
        return None

    def _state(self, mended: Steps, call: Place | None) -> tuple[str, str, Place | None, dict[str, Any]]:
        changed: list[Attribute] = list(dict.fromkeys(a for segment in mended.segments for a in segment.moved))
        writes = WatchedWrites(self._context.source_root, changed)
        self._train(_DIRECT, steps=1, watch=writes)
        name, place = writes.first() or (str(changed[0]) if changed else "what modules hold", call)
        where = f" at line {place.line}" if place is not None else ""
        why = f"{name} is written{where} and no longer what it was in forward when the function runs again"
        return "state_changed", why, place, {"changed": [str(attribute) for attribute in changed[:10]]}

    def _fail(self, cause: str, text: str, place: Place | None, found: list[Difference], **numbers: Any) -> CheckResult:
        target = self._context.resolved.target
        if self._subject.flags:
            text += f" (with {self._flags()} on)"
        worst = [item.relative for item in found if item.relative != float("inf")]
        if worst:
            numbers["largest_relative_difference"] = worst[0]
        numbers["differing"] = len(found)
        return Answer("fail", cause, text, place, numbers).result(target, self._evidence)

    def _inconclusive(self, text: str) -> CheckResult:
        return CheckResult("inconclusive", text, diagnosis=Diagnosis("not_decided", text), evidence=self._evidence)


def _told(segments: list[Segment]) -> list[dict[str, Any]]:
    """The checkpoints, each place once."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for segment in segments:
        place = f"{segment.place.path}:{segment.place.line}" if segment.place else None
        key = (place, segment.reentrant, segment.preserves)
        record = found.setdefault(
            key,
            {"place": place, "reentrant": segment.reentrant, "preserves_random_state": segment.preserves, "calls": 0},
        )
        record["calls"] += 1
    return list(found.values())[:20]
