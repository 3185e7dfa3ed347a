"""Why a whole target's gradient differs: one of its custom Functions, or something that is no fault of its author.

A module's verdict stays `fail` only if code of its own runs in backward, nothing else explains the difference, and it
shows again with other numbers. Derivatives of torch's own operations aren't this code's to get wrong.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.agreement import UNRUNNABLE, Comparer
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.gradients.breaks import HOOK, Break, Breaks
from gradproof_probe.gradients.carried import gathered, remembered, written
from gradproof_probe.gradients.examination import Examination, Examiner, Make, placed
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.gradients.functions import Recorder, submitted_functions
from gradproof_probe.gradients.idioms import idiom
from gradproof_probe.gradients.labels import Label, said
from gradproof_probe.gradients.precision import COARSE, Narrow, PrecisionTrace
from gradproof_probe.gradients.probing import ROUNDING
from gradproof_probe.gradients.whole_calls import FunctionCall
from gradproof_probe.harness.recipe import ExpressionError, default_dtype

SINGLE_CUTS: Final = 4  # lines that are tried one by one for being the whole cause

# A gradient that isn't finite, or an error, is the code's own whoever wrote the derivatives.
VALUES_ASIDE: Final = frozenset({"nan_gradient", "forward_raises", "backward_raises"})


@dataclass(slots=True)
class _Seen:
    """What one ordinary call does."""

    recorder: Recorder
    breaks: Breaks
    noted: Narrow
    experiment: Experiment

    def cuts(self) -> list[Break]:
        return [item for item in self.breaks.found if item.what != HOOK]

    def own_backward(self) -> bool:
        """Whether code that is not torch's computes gradients: hooks, or operators with derivatives of their own."""
        module = self.experiment.instance
        hooked = module is not None and any(
            item._backward_hooks or item._backward_pre_hooks for item in module.modules()
        )
        return hooked or bool(self.noted.foreign) or any(item.what == HOOK for item in self.breaks.found)


class Explainer:
    """`make` builds the experiment of the whole target; `deadline` is monotonic seconds.

    `redraw` builds it from another seed, with other parameters and inputs: what is called a fault has to show there
    too. `guessed`: nobody said which inputs are right, so what fails with them may be the inputs' fault.
    """

    def __init__(
        self,
        make: Make,
        *,
        source_root: Path,
        seed: int,
        deadline: float,
        redraw: Callable[[int], Make] | None = None,
        guessed: bool = False,
    ) -> None:
        self._make = make
        self._root = source_root
        self._seed = seed
        self._deadline = deadline
        self._redraw = redraw
        self._guessed = guessed

    def explain(self, found: Examination) -> Examination:
        """`found` itself, or what it turns into once its cause is known."""
        if found.place is not None or not (found.verdict == "fail" or (found.by_design and found.mismatch)):
            return found
        seen = self._look(single=found.single)
        if seen is None:
            return found
        inner = self._functions(seen.recorder)
        for function, examination in inner:
            if examination.verdict == "fail":
                examination.evidence = {**found.evidence, "function": function.__qualname__}
                examination.function = function
                return placed(examination, function, self._root)
        label = self._meant_inside(inner) if found.mismatch else None
        if label is None:
            label = self._label(found, seen)
        if label is None and found.cause == "nan_gradient" and self._guessed:
            label = self._not_finite(found)
        if label is not None:
            return labelled(found, label)
        if found.verdict != "fail":
            return found
        if found.cause in VALUES_ASIDE:
            return found
        if time.monotonic() > self._deadline:
            return labelled(
                found,
                Label(
                    "time_over",
                    f"{found.text}; the time was over before anything that might explain it was tried",
                    ("a difference is called a fault only after its harmless causes are excluded",),
                    meant=False,
                ),
            )
        if not inner and not seen.own_backward():
            return labelled(
                found,
                Label(
                    "unexplained",
                    f"{found.text}; but it uses torch's own operations alone, whose derivatives are torch's",
                    ("no custom Function, operator or hook computes a gradient in this call",),
                    meant=False,
                ),
            )
        return self._seen_again(found)

    def _look(self, *, single: bool) -> _Seen | None:
        recorder, breaks, trace = Recorder(self._root), Breaks(self._root), PrecisionTrace(self._root)
        try:
            with default_dtype(torch.float32 if single else torch.float64):
                experiment = self._make(None if single else torch.float64)
                with recorder.watching(submitted_functions(self._root)), breaks.watching(), trace:
                    experiment.run()
        except (ForwardError, RuntimeError):
            return None
        return _Seen(recorder, breaks, trace.narrow, experiment)

    def _functions(self, recorder: Recorder) -> list[tuple[type, Examination]]:
        found = []
        for call in recorder.calls:
            if time.monotonic() > self._deadline:
                break
            examined = FunctionCall(
                call.function,
                call.args,
                source_root=self._root,
                seed=self._seed,
                deadline=self._deadline,
                picture=True,
            ).examine("first_order", thorough=False)
            found.append((call.function, examined))
        return found

    @staticmethod
    def _meant_inside(inner: Sequence[tuple[type, Examination]]) -> Label | None:
        for function, examination in inner:
            if examination.by_design:
                name = function.__qualname__
                return Label(
                    examination.cause,
                    f"it differs from differences because of {name}: {examination.text}",
                    (f"{name} alone differs in the same way", examination.text),
                )
        return None

    # -- discriminators, the cheap and the certain first

    def _label(self, found: Examination, seen: _Seen) -> Label | None:
        if not found.mismatch:
            return None
        rounding = COARSE[seen.noted.dtype] if seen.noted.dtype is not None else ROUNDING[torch.float64]
        comparer = self._comparer(single=found.single, rounding=rounding)
        try:
            return (
                self._carried(seen.experiment, single=found.single)
                or self._cut(found, seen, comparer)
                or self._hooked(seen)
                or self._drawn_randomly(seen)
                or self._outside(seen, comparer)
                or self._rough(seen, comparer)
                or self._narrow(found, seen)
            )
        except UNRUNNABLE:
            return None

    def _carried(self, experiment: Experiment, *, single: bool) -> Label | None:
        """State and side effects."""
        with default_dtype(torch.float32 if single else torch.float64):
            return (
                written(experiment, self._root)
                or remembered(experiment)
                or gathered(self._make, None if single else torch.float64)
            )

    def _cut(self, found: Examination, seen: _Seen, comparer: Comparer) -> Label | None:
        """A gradient that is stopped: with the line, and whether that is the whole cause."""
        cuts = seen.cuts()
        if not cuts:
            return None
        because = []
        frozen = comparer.frozen()
        chosen = cuts
        if frozen:
            because.append("with what is cut held at its value, differences agree with autograd")
            alone = self._alone(cuts, comparer)
            chosen = [alone] if alone is not None else cuts
        else:
            bridged = comparer.bridged()
            if bridged is False and frozen is False:
                return None
            if bridged:
                because.append("without it autograd agrees with the differences")
        first = next((item for item in chosen if item.place is not None), chosen[0])
        read = idiom(first.place, self._root)
        if read is not None:
            because.append(read)
        text = f"the gradient is cut by {first.what}{said(first.place)}"
        text += f"; {'; '.join(because)}" if because else "; it can't be told apart from a fault"
        through = found.cause == "straight_through" or (read is not None and "straight-through" in read)
        return Label(
            "straight_through" if through else "stop_gradient",
            text,
            tuple(because),
            first.place,
            meant=read is not None,
        )

    @staticmethod
    def _alone(cuts: Sequence[Break], comparer: Comparer) -> Break | None:
        """The cut that is the whole cause by itself."""
        places: list[Place] = []
        for item in cuts:
            if item.place is None or item.place in places:
                continue
            places.append(item.place)
            if len(places) > SINGLE_CUTS:
                return None
            if comparer.frozen(item.place):
                return item
        return None

    @staticmethod
    def _hooked(seen: _Seen) -> Label | None:
        hook = next((item for item in seen.breaks.found if item.what == HOOK), None)
        if hook is None:
            return None
        return Label(
            "gradient_hook",
            f"a hook may change gradients on purpose{said(hook.place)}",
            ("register_hook is called in forward",),
            hook.place,
        )

    @staticmethod
    def _drawn_randomly(seen: _Seen) -> Label | None:
        if not seen.noted.random:
            return None
        names = ", ".join(sorted(seen.noted.random)[:3])
        return Label(
            "random",
            "it draws random numbers: a gradient that is right in expectation isn't the derivative at a fixed seed",
            (f"{names} draws from a generator, which was put back before each evaluation",),
        )

    def _outside(self, seen: _Seen, comparer: Comparer) -> Label | None:
        """Directions or values that no caller gives."""
        if seen.noted.one_triangle and comparer.symmetric():
            name, place = next(iter(seen.noted.one_triangle.items()))
            return Label(
                "structured_input",
                f"it agrees at symmetric matrices: {name}{said(place)} reads one triangle only",
                ("autograd agrees with differences at symmetric matrices, along symmetric directions",),
                place,
            )
        inside, names = comparer.inside()
        if inside:
            return Label(
                "structured_input",
                f"it agrees along directions that stay inside: {', '.join(names)}",
                (f"the given values are {', '.join(names)}", "autograd agrees with differences along these"),
            )
        if self._guessed and comparer.interior():
            return Label(
                "guessed_input",
                "it differs at the inputs that were made up for it, and agrees at values between 0.1 and 0.9",
                ("nobody said which inputs are right", "autograd agrees with differences at values from inside"),
                meant=False,
            )
        return None

    @staticmethod
    def _rough(seen: _Seen, comparer: Comparer) -> Label | None:
        """Where differences of falling steps don't tend to a derivative."""
        ladder = comparer.ladder()
        if ladder is None:
            return None
        lines = [f"{name}{said(place)}" for name, place in seen.noted.steps.items() if place is not None]
        place = next((place for place in seen.noted.steps.values() if place is not None), None)
        seen_as = f"differences by steps from 1e-3 to 1e-7: {', '.join(f'{value:.3g}' for value in ladder.central)}"
        if ladder.behaviour in ("jump", "constant"):
            what = "jumps" if ladder.behaviour == "jump" else "is locally constant"
            why = f", because of {lines[0]}" if lines else ""
            return Label("discontinuous", f"the output {what}{why}", (seen_as, *lines[:3]), place)
        if ladder.behaviour == "corner":
            left, right = ladder.left[-1], ladder.right[-1]
            return Label(
                "kinks",
                f"it has a corner here: {left:.6g} from the left, {right:.6g} from the right",
                (seen_as, f"from the left {left:.6g}, from the right {right:.6g}"),
                place,
            )
        if ladder.behaviour == "coarse":
            return Label(
                "low_precision",
                f"the differences get better as their step grows: it rounds inside{said(seen.noted.place)}",
                (seen_as,),
                seen.noted.place,
            )
        return None

    @staticmethod
    def _narrow(found: Examination, seen: _Seen) -> Label | None:
        if found.precise:
            return None
        name = str(seen.noted.dtype or torch.float32).removeprefix("torch.")
        return Label(
            "low_precision",
            f"it computes in {name} inside{said(seen.noted.place)}, in a run with float64 inputs",
            (f"{seen.noted.operation or 'its own types'} gives {name}",),
            seen.noted.place,
            meant=False,
        )

    def _not_finite(self, found: Examination) -> Label | None:
        """NaN at inputs that were made up, and nowhere from 0 to 1, which nearly every domain contains."""
        comparer = self._comparer(single=found.single, rounding=ROUNDING[torch.float64])
        if comparer.finite_from_zero_to_one() is not True:
            return None
        return Label(
            "guessed_input",
            f"{found.text}; but these inputs were made up for it, and from 0 to 1 its gradient is finite: "
            "nan_gradient looks for what it takes",
            ("nobody said which inputs are right", "values and gradients are finite from 0 to 1, both included"),
            meant=False,
        )

    def _comparer(self, *, single: bool, rounding: float) -> Comparer:
        return Comparer(
            self._make,
            source_root=self._root,
            seed=self._seed,
            deadline=self._deadline,
            rounding=rounding,
            single=single,
        )

    # -- once more

    def _seen_again(self, found: Examination) -> Examination:
        """A fault shows with other parameters and inputs as well; what doesn't was seen once."""
        if self._redraw is None or time.monotonic() > self._deadline:
            return found
        seed = self._seed + 1009
        examiner = Examiner(self._redraw(seed), source_root=self._root, seed=seed, deadline=self._deadline)
        try:
            again = examiner.examine()
        except (ExpressionError, RuntimeError):
            return found
        if again.verdict == "fail" and again.mismatch == found.mismatch:
            found.evidence["seen_again"] = f"with seed {seed}: {again.cause}"
            return found
        return labelled(
            found,
            Label(
                "seen_once",
                f"{found.text}; with other numbers of the same kind it doesn't show: {again.text}",
                (f"built anew from seed {seed}: {again.verdict}",),
                meant=False,
            ),
        )


def labelled(found: Examination, label: Label) -> Examination:
    """The examination as what the label says it is."""
    return replace(
        found,
        verdict="inconclusive",
        cause=label.cause,
        text=label.text,
        place=label.place,
        label=label,
        evidence={**found.evidence, "by_design": label.to_evidence()},
    )


def signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """An empty list where there is none to read (built-in callables)."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
