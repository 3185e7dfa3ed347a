"""From a Function class or a callable with arguments to an examination: which way it is examined, and what is inside.

A Function is examined by itself. A callable that goes through custom Functions is examined as a whole, seen through,
if that works, and Function by Function with the arguments that each was given, if it doesn't. What has no custom
Function in it is torch's own business, but for the general probes of `examination`.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.clues import Clues, read_clues
from gradproof_probe.gradients.examination import Examination, Examiner, Make, placed
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.gradients.function_examination import FunctionExaminer, NeedsOtherExaminationError, Scope
from gradproof_probe.gradients.functions import RecordedCall, Recorder, submitted_functions
from gradproof_probe.gradients.oracle import seen_through, separate_context, transparent
from gradproof_probe.gradients.situations import Situation
from gradproof_probe.gradients.steering import steered
from gradproof_probe.gradients.subject import Subject, is_differentiable
from gradproof_probe.harness.recipe import default_dtype

# Of a module, Functions that are examined with the arguments that they were given.
MOST_FUNCTIONS: Final = 8
# Normalises exponentials or masks something: then -inf is an ordinary value.
MASKS: Final = re.compile(r"softmax|logsumexp|mask|^inf$")
COMPLEX: Final = re.compile(r"^conj|is_complex|^imag$|^view_as_real$")


class FunctionCall:
    """One custom Function with the arguments of one call."""

    def __init__(
        self,
        function: Any,
        args: Sequence[Any],
        *,
        source_root: Path,
        seed: int,
        deadline: float,
        clues: Clues | None = None,
        names: Sequence[str] = (),
        picture: bool = False,
    ) -> None:
        self.function = function
        self._picture = picture
        self._args = list(args)
        self._root = source_root
        self._seed = seed
        self._deadline = deadline
        self._clues = clues
        self._names = list(names) or argument_names(function)

    def examine(self, scope: Scope = "all", *, thorough: bool = True) -> Examination:
        """In float64; in float32 if it doesn't take that; by the general examination if it raises in both."""
        positions = wanted_positions(self._args)
        for dtype in (torch.float64, torch.float32):
            subject = Subject(
                self.function.apply,
                transparent(self.function),
                self._args,
                names=self._names,
                seed=self._seed,
                positions=positions,
                base_dtype=dtype,
            )
            subject.masks = speaks_of(self.function, MASKS)
            subject.complex_too = speaks_of(self.function, COMPLEX) and not any(
                subject.args[position].is_complex() for position in subject.positions
            )
            examiner = FunctionExaminer(
                subject,
                function=self.function,
                source_root=self._root,
                deadline=self._deadline,
                steered=self._steered(subject) if thorough else (),
                declared=positions is not None,
                thorough=thorough,
                picture=self._picture,
            )
            try:
                with default_dtype(dtype):
                    return examiner.examine(scope)
            except NeedsOtherExaminationError:
                continue
        return self._generally()

    def _steered(self, subject: Subject) -> list[Situation]:
        clues = read_clues(self.function)
        hinted = [] if self._clues is None else steered(self._clues, subject.args, self._names)
        return renumbered([*hinted, *steered(clues, subject.args, self._names)], subject)

    def _generally(self) -> Examination:
        def make(precision: torch.dtype | None) -> Experiment:
            args = [item.detach().clone() if isinstance(item, torch.Tensor) else item for item in self._args]
            return Experiment(
                self.function.apply,
                args,
                {},
                None,
                seed=self._seed,
                precision=precision,
                argument_names=self._names,
            )

        return Examiner(
            make, source_root=self._root, seed=self._seed, deadline=self._deadline, function=self.function
        ).examine()


class CallableCall:
    """A callable, and the custom Functions that it goes through. `call` takes flat arguments."""

    def __init__(
        self,
        call: Callable[..., Any],
        args: Sequence[Any],
        *,
        source_root: Path,
        seed: int,
        deadline: float,
        clues: Clues | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._call = call
        self._args = list(args)
        self._root = source_root
        self._seed = seed
        self._deadline = deadline
        self._clues = clues
        self._names = list(names)

    def functions(self) -> list[RecordedCall]:
        """Its calls of custom Functions, the first of each."""
        recorder = Recorder(self._root)
        args = [_leaf(item) for item in self._args]
        try:
            with default_dtype(torch.float64), recorder.watching(submitted_functions(self._root)):
                self._call(*args)
        except Exception:
            return []
        return first_calls(recorder)

    def examine(self, functions: Sequence[type], scope: Scope = "all") -> Examination | None:
        """As a whole; None if it can't be seen through."""

        def through(*args: Any) -> Any:
            with seen_through(list(functions)):
                return self._call(*args)

        positions = wanted_positions(self._args)
        subject = Subject(self._call, through, self._args, names=self._names, seed=self._seed, positions=positions)
        hinted = [] if self._clues is None else steered(self._clues, subject.args, self._names)
        for function in functions:
            hinted += steered(read_clues(function), subject.args, self._names)
        examiner = FunctionExaminer(
            subject,
            function=None,
            source_root=self._root,
            deadline=self._deadline,
            steered=hinted,
            declared=positions is not None,
        )
        try:
            with default_dtype(torch.float64):
                return examiner.examine(scope)
        except NeedsOtherExaminationError:
            return None


def first_calls(recorder: Recorder) -> list[RecordedCall]:
    """One call of each Function, the first."""
    found: dict[type, RecordedCall] = {}
    for call in recorder.calls:
        found.setdefault(call.function, call)
    return list(found.values())[:MOST_FUNCTIONS]


def recorded_calls(make: Make, source_root: Path) -> list[RecordedCall]:
    """The custom Functions that a whole target goes through, with the arguments of the first call of each."""
    recorder = Recorder(source_root)
    try:
        with default_dtype(torch.float64):
            experiment = make(torch.float64)
            with recorder.watching(submitted_functions(source_root)):
                experiment.run()
    except (ForwardError, RuntimeError):
        return []
    return first_calls(recorder)


def inner_fault(
    make: Make, *, source_root: Path, seed: int, deadline: float, scope: Scope = "first_order"
) -> Examination | None:
    """The first fault in a custom Function that a whole target goes through.

    Only what their callers may do to them is tried: incoming gradients, subsets, sequences of calls. The values and
    sizes that a module hands on are its own affair.
    """
    for recorded in recorded_calls(make, source_root):
        if time.monotonic() > deadline:
            break
        call = FunctionCall(recorded.function, recorded.args, source_root=source_root, seed=seed, deadline=deadline)
        found = call.examine(scope, thorough=False)
        if found.verdict == "fail":
            found.evidence["function"] = recorded.function.__qualname__
            found.function = recorded.function
            return placed(found, recorded.function, source_root)
    return None


def wanted_positions(args: Sequence[Any]) -> list[int] | None:
    """The arguments that are marked as requiring grad; None if none is."""
    marked = [index for index, item in enumerate(args) if is_differentiable(item) and item.requires_grad]
    return marked or None


def renumbered(situations: Sequence[Situation], subject: Subject) -> list[Situation]:
    """Inputs are counted among all floating tensors when situations are suggested, among the variables from here on."""
    floating = [index for index, item in enumerate(subject.args) if is_differentiable(item)]
    if tuple(floating) == subject.positions:
        return list(situations)
    numbers = {floating.index(position): number for number, position in enumerate(subject.positions)}
    found = []
    for item in situations:
        only, wanted = item.values.only, item.wanted
        if (only is not None and only not in numbers) or not all(number in numbers for number in wanted or ()):
            continue
        values = item.values if only is None else replace(item.values, only=numbers[only])
        found.append(replace(item, values=values, wanted=None if wanted is None else tuple(numbers[n] for n in wanted)))
    return found


def speaks_of(function: Any, words: re.Pattern[str]) -> bool:
    """Whether forward or backward uses a name of this kind."""
    codes = [getattr(inspect.unwrap(item), "__code__", None) for item in (function.forward, function.backward)]
    return any(words.search(name) for code in codes if code is not None for name in code.co_names)


def argument_names(function: Any) -> list[str]:
    """The names of forward's arguments after ctx."""
    try:
        parameters = list(inspect.signature(function.forward).parameters.values())
    except (TypeError, ValueError):
        return []
    if not separate_context(function):
        parameters = parameters[1:]
    return [item.name for item in parameters if item.kind is not item.VAR_POSITIONAL]


def _leaf(item: Any) -> Any:
    if not is_differentiable(item):
        return item
    wide = item.detach().to(torch.complex128 if item.is_complex() else torch.float64)
    return wide.clone().requires_grad_()
