"""The search: ordinary inputs first, then singular constructions, then descent on what is left.

Each candidate is one forward and one backward; only one that gives something not finite is run again, watched, to find
where it began and whether that is the code's fault.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.nan_search.birth import Birth, watch, watch_forward
from gradproof_probe.nan_search.constructions import (
    GIVEN,
    REPAIRS,
    Construction,
    Edit,
    Naturalness,
    constructions,
    holds_logarithms,
    literal,
)
from gradproof_probe.nan_search.descent import Goal, closest, descend, goals
from gradproof_probe.nan_search.domains import left
from gradproof_probe.nan_search.hypotheses import Hypothesis, about, read_hypotheses
from gradproof_probe.nan_search.judgement import Fault, Judge
from gradproof_probe.nan_search.notices import documents_at, documents_of, told
from gradproof_probe.nan_search.spy import Event
from gradproof_probe.nan_search.subject import Evaluation, Inputs, Subject
from gradproof_probe.trees import tensors

# Candidates that failed and are watched: each costs three runs and an explanation, and the first ones say it all,
# unless there are suspicions to be settled one by one.
_MOST_WATCHED: Final = 12
_MOST_WATCHED_FOR_SUSPICIONS: Final = 30
_MOST_BIRTHS: Final = 6
# Of singular operations that no hypothesis names, so many are descended on.
_MOST_GOALS: Final = 6
_MOST_S: Final = 15.0
# Beyond this an input is not what a layer sees.
_LARGEST_PLAUSIBLE: Final = 1e4
_LARGEST_LOGARITHM: Final = 50.0  # e^50 = 5e21
# A literal of more elements makes a script nobody reads.
_MOST_LITERAL: Final = 400

Outcome = Literal["searched", "raises", "no gradient"]


@dataclass(slots=True)
class NanReport:
    """`faults`, the gravest first; `tried` candidates; `hypotheses` with what became of each."""

    outcome: Outcome
    faults: list[Fault] = field(default_factory=list)
    tried: int = 0
    operations: int = 0
    hypotheses: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = True
    error: str = ""  # what the forward raised at the ordinary inputs

    @property
    def worst(self) -> Fault | None:
        """The fault that fails, at the most natural input."""
        return next((fault for fault in self.faults if fault.verdict == "fail"), None)


def search(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    module: torch.nn.Module | None = None,
    hypotheses: Iterable[Mapping[str, Any]] = (),
    source_root: Path | None = None,
    names: Sequence[str] = (),
    declared: bool = False,
    fell_back: bool = False,
    seed: int = 0,
    deadline: float | None = None,
) -> NanReport:
    """Look for inputs at which `call` gives values or gradients that are not finite.

    `module` holds the parameters, if `call` is one. `source_root` is what lines are named in. `declared`: the inputs
    are known to be what the function is for, so that NaN at them is a fault whatever its reason. `fell_back`: ordinary
    values were not finite and others were taken: a suspicion is then tried outside of the sets that these lie in too.
    Never raises for a fault of the call. Global generators are seeded before each call, and not put back.
    """
    inputs = Inputs(list(args), dict(kwargs or {}), tuple(names))
    known = read_hypotheses(hypotheses)
    limit = time.monotonic() + _MOST_S
    until = limit if deadline is None else min(limit, deadline)
    report = NanReport("searched")
    subject = Subject(call, module, seed=seed)
    root = source_root or Path("/")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of much that is tried here on purpose
        _Searcher(report, inputs, known, root, until, declared=declared, fell_back=fell_back).run(subject)
        half = subject.in_dtype(torch.float16) if any(item.low_precision for item in known) else None
        if report.outcome == "searched" and half is not None:
            _Searcher(report, inputs, known, root, until, declared=False, fell_back=fell_back).run(half)
    for item in known:
        if item.outcome == "not_reproduced" and not report.complete:
            item.outcome = "not_reached"  # the search was cut short: it can't say that it missed
    report.hypotheses = [item.to_wire() for item in known]
    order = {"fail": 0, "tuned": 1, "note": 2}
    grades = ("given", "natural", "plausible", "extreme", "tuned")
    report.faults.sort(key=lambda fault: (order[fault.verdict], grades.index(fault.construction.naturalness)))
    return report


class _Searcher:
    """One pass in one dtype."""

    def __init__(
        self,
        report: NanReport,
        inputs: Inputs,
        hypotheses: Sequence[Hypothesis],
        source_root: Path,
        until: float,
        *,
        declared: bool,
        fell_back: bool,
    ) -> None:
        self._report = report
        self._given = inputs
        self._all = hypotheses
        self._root = source_root
        self._until = until
        self._declared = declared
        self._fell_back = fell_back
        self._watched = 0
        self._seen: set[tuple[Any, ...]] = set()
        self._failed: set[tuple[Any, ...]] = set()
        # The inputs that constructions change: what sets these lie in, made-up ones must not leave.
        self._ordinary = inputs
        self._warned: set[str] = set()

    def run(self, subject: Subject) -> None:
        half = subject.dtype == torch.float16
        self._hypotheses = [item for item in self._all if item.low_precision == half]
        first = watch_forward(subject, self._given, self._root)
        if first is None:
            if subject.dtype is None:
                self._report.outcome, self._report.error = "raises", subject.error
            return
        evaluation, spy = first
        if not evaluation.differentiable or not evaluation.leaves:
            self._report.outcome = "no gradient"
            return
        dtype = subject.dtype or _narrowest(evaluation)
        wide = subject.in_dtype(torch.float64) if dtype != torch.float64 else None
        self._subject = subject
        self._warned = set(evaluation.warned)
        self._judge = Judge(subject, wide, precision=str(dtype).removeprefix("torch."), declared=self._declared)
        self._report.operations = max(self._report.operations, len(goals(spy.events)))
        self._note_reached(spy.events, spy.lines)
        base = self._base()
        started = base.build(self._given)
        self._ordinary = started or self._given
        ignoring = any(name.startswith("nll_loss") for name in spy.operations)
        emptying = any("nothing" in item.singular_set for item in self._hypotheses)
        for construction in constructions(self._given, ignoring=ignoring, emptying=emptying):
            if not self._more():
                self._report.complete = False
                return
            self._try(construction.after(base))
        again = None if started is None else watch_forward(subject, started, self._root)
        if started is not None and again is not None:
            self._descend(started, again[1].events)

    def _more(self) -> bool:
        return time.monotonic() < self._until

    def _base(self) -> Construction:
        """The ordinary inputs, or the first repair of them at which the call is finite."""
        if self._try(GIVEN):
            return GIVEN
        slots = [slot for slot in self._given.slots() if any(t.is_floating_point() for _, t in tensors(
            self._given.get(slot)))]  # fmt: skip
        for words, expression in REPAIRS:
            repair = Construction(words, "natural", tuple(Edit(slot, expression) for slot in slots))
            if self._try(repair):
                return repair
        return GIVEN

    def _try(self, construction: Construction) -> bool:
        """Whether all is finite there; None of it if the call refuses the input. A fault is added to the report."""
        inputs = construction.build(self._given)
        if inputs is None:
            return False
        outside = left(self._ordinary, inputs) is not None
        if outside and not (self._fell_back and self._hypotheses):
            return False
        self._report.tried += 1
        if self._hypotheses:
            watched = watch_forward(self._subject, inputs, self._root)
            if watched is not None:
                self._note_reached(watched[1].events, watched[1].lines)
        evaluation = self._subject.run(inputs)
        if evaluation is None:
            return False
        if not self._is_bad(evaluation):
            return True
        return not self._explain(construction, inputs, only_asked=outside)

    @staticmethod
    def _is_bad(evaluation: Evaluation) -> bool:
        evaluation.differentiate()
        return not evaluation.finite_outputs or bool(evaluation.bad_leaves())

    def _explain(self, construction: Construction, inputs: Inputs, *, only_asked: bool = False) -> bool:
        """Whether something that wasn't meant is not finite there; `only_asked` leaves alone what no finding names."""
        if self._watched >= (_MOST_WATCHED_FOR_SUSPICIONS if self._hypotheses else _MOST_WATCHED):
            return True
        watched = watch(self._subject, inputs, self._root)
        if watched is None:
            return False
        if construction.naturalness in ("natural", "plausible") and _disagreement(watched.spy.events):
            construction = replace(construction, naturalness="extreme")
        self._watched += 1
        if watched.constant is not None:
            self._add(self._judge.judge_constant(watched.constant, construction))
            return True
        births = watched.forward or (watched.backward if watched.evaluation.bad_leaves() else [])
        for birth in births[:_MOST_BIRTHS]:
            if (birth.phase, birth.operation, birth.place) in self._failed:
                continue
            asked = self._asked(birth, construction)
            if only_asked and not asked:
                continue
            fault = self._judge.judge(
                inputs,
                watched.evaluation,
                birth,
                construction,
                asked=asked,
                known=self._known(watched.evaluation, birth),
            )
            self._add(fault)
        return bool(births)

    def _asked(self, birth: Birth, construction: Construction) -> bool:
        return bool(about(self._hypotheses, birth.place)) and construction.naturalness != "extreme"

    def _known(self, evaluation: Evaluation, birth: Birth) -> Literal["told", "warned"] | None:
        """How the author says that it isn't finite."""
        if set(evaluation.warned) - self._warned:
            return "warned"
        documents = [*documents_of(self._subject.called), *documents_at(birth.place, self._root)]
        return "told" if told(documents) is not None else None

    def _add(self, fault: Fault) -> None:
        birth = fault.birth
        key = (birth.phase, birth.operation, birth.place, fault.verdict, fault.ground)
        if key in self._seen:
            return
        self._seen.add(key)
        self._report.faults.append(fault)
        if fault.verdict == "fail":
            self._failed.add(key[:3])
            for item in about(self._hypotheses, birth.place):
                if item.outcome != "confirmed":
                    item.shown_at, item.precision = _written(fault.construction), fault.precision
                item.outcome, item.closest = "confirmed", 0.0

    def _note_reached(self, events: Sequence[Event], lines: set[tuple[str, int]]) -> None:
        for item in self._hypotheses:
            if item.outcome == "not_reached" and any(item.near(Place(*line)) for line in lines):
                item.outcome = "not_reproduced"
        for event in events:
            if event.singularity is not None:
                for item in about(self._hypotheses, event.place):
                    item.closest = min(item.closest, closest(event))

    def _descend(self, inputs: Inputs, events: Sequence[Event]) -> None:
        """On the operations that hypotheses name, then on others, if nothing failed so far."""
        known = goals(list(events))
        wanted = [goal for goal in known if about(self._hypotheses, goal.place)]
        others = [goal for goal in known if goal not in wanted][:_MOST_GOALS]
        places = {fault.birth.place for fault in self._report.faults if fault.verdict == "fail"}
        for goal in [*wanted, *others]:
            if goal.place in places or not self._more():
                continue
            self._descend_to(inputs, goal)

    def _descend_to(self, inputs: Inputs, goal: Goal) -> None:
        anywhere = self._fell_back and bool(about(self._hypotheses, goal.place))
        reached, distance = descend(
            self._subject,
            inputs,
            goal,
            self._root,
            lambda made, evaluation: self._is_bad(evaluation) and (anywhere or left(self._ordinary, made) is None),
            self._more,
        )
        for item in about(self._hypotheses, goal.place):
            item.closest = min(item.closest, distance)
        self._report.tried += 1
        if reached is None:
            return
        construction = Construction(
            f"inputs found by moving the operand of `{goal.operation.lstrip('_')}`",
            self._naturalness(reached),
            _literal_edits(reached),
        )
        self._explain(construction, reached, only_asked=anywhere)

    def _naturalness(self, inputs: Inputs) -> Naturalness:
        """Of an input that was found: extreme by its size, tuned if the fault is gone when it's moved a little."""
        for slot in inputs.slots():
            limit = _LARGEST_LOGARITHM if holds_logarithms(inputs.name(slot)) else _LARGEST_PLAUSIBLE
            floating = [t.detach() for _, t in tensors(inputs.get(slot)) if t.is_floating_point() and t.numel()]
            if not all(float(t.abs().max()) <= limit for t in floating):
                return "extreme"
        for number in range(2):
            generator = torch.Generator().manual_seed(number)

            def moved(tensor: torch.Tensor, generator: torch.Generator = generator) -> torch.Tensor:
                if not tensor.is_floating_point():
                    return tensor
                noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
                return tensor.detach() * (1.0 + 1e-3 * noise)

            evaluation = self._subject.run(inputs.transformed(moved))
            if evaluation is None or not self._is_bad(evaluation):
                return "tuned"
        return "plausible"


def _disagreement(events: Sequence[Event]) -> bool:
    """Whether an exponential of a difference of two arguments overflowed.

    Such a difference is the logarithm of a ratio (new policy to old): at e^88 training has failed long before.
    """
    return any(
        event.singularity is not None
        and event.singularity.overflows
        and not event.origin.computed
        and len(event.origin.slots) > 1
        and any(not output.isfinite().all() for output in event.outputs)
        for event in events
    )


def _written(construction: Construction) -> list[list[Any]] | None:
    """The input in expressions; None where it was found and is too long to be written down."""
    if not construction.edits and construction.naturalness != "given":
        return None
    return [[edit.slot, edit.expression, edit.other] for edit in construction.edits]


def _literal_edits(inputs: Inputs) -> tuple[Edit, ...]:
    """The inputs written out; none where that is too long to read or not a tensor by itself."""
    edits = []
    for slot in inputs.slots():
        value = inputs.get(slot)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            if value.numel() > _MOST_LITERAL:
                return ()
            edits.append(Edit(slot, literal(value)))
    return tuple(edits)


def _narrowest(evaluation: Evaluation) -> torch.dtype:
    """The dtype in which the values have the least range."""
    found = [leaf.tensor.dtype for leaf in evaluation.leaves] + [output.dtype for output in evaluation.outputs]
    real = [dtype for dtype in found if dtype.is_floating_point]
    return min(real, key=lambda dtype: torch.finfo(dtype).max, default=torch.float32)
