"""Runs that differ from the examined one in a single thing: does autograd agree with differences there?

Each explains a difference, if it vanishes with that thing: cuts that are frozen or bridged, directions that stay inside
the set that the values lie in, values from inside a domain. Nothing here judges; `explanation` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.gradients.breaks import Breaks, Bridge, Freeze, Watch
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError
from gradproof_probe.gradients.ladder import Ladder, climb
from gradproof_probe.gradients.probing import (
    ROUNDING,
    Linearisation,
    UnstableError,
    linearise,
    probe,
    random_directions,
)
from gradproof_probe.gradients.structure import fill_inside, structures, symmetrised, tangents
from gradproof_probe.harness.recipe import ExpressionError, default_dtype

Make = Callable[[torch.dtype | None], Experiment]
PROBES: Final = 2
UNRUNNABLE: Final = (ForwardError, BackwardError, UnstableError, ExpressionError, RuntimeError)


class Comparer:
    """`rounding` is that of one evaluation; `single` that everything stays in float32.

    `deadline`: monotonic seconds after which nothing more is compared; every question is then answered by None.
    """

    def __init__(
        self, make: Make, *, source_root: Path, seed: int, deadline: float, rounding: float, single: bool
    ) -> None:
        self._make = make
        self._deadline = deadline
        self._root = source_root
        self._seed = seed
        self._rounding = max(rounding, ROUNDING[torch.float32]) if single else rounding
        self._single = single

    def frozen(self, only: Place | None = None) -> bool | None:
        """Whether autograd agrees when the cuts (those of one line) give the values of the base point again."""
        answer = Freeze(only)
        return self._answered(answer)

    def bridged(self) -> bool | None:
        """Whether autograd agrees once detach and no_grad do nothing. None if that can't be run."""
        return self._answered(Bridge())

    def inside(self) -> tuple[bool | None, list[str]]:
        """Along directions that stay in the sets in which the values lie, and what these sets are called."""
        experiment = self._experiment()
        bases = [variable.base for variable in experiment.variables]
        names = [item.name for base in bases for item in structures(base)]
        if not names:
            return None, []
        return self._agrees(experiment, lambda directions: tangents(bases, directions)[0]), list(dict.fromkeys(names))

    def symmetric(self) -> bool | None:
        """At symmetric matrices, along symmetric directions."""
        experiment = self._experiment()
        for variable in experiment.variables:
            variable.base = symmetrised(variable.base)
        return self._agrees(
            experiment, lambda directions: [None if item is None else symmetrised(item) for item in directions]
        )

    def interior(self) -> bool | None:
        """At inputs between 0.1 and 0.9; parameters as they are."""
        experiment = self._experiment()
        fill_inside(experiment, self._seed)
        return self._agrees(experiment, lambda directions: directions)

    def finite_from_zero_to_one(self) -> bool | None:
        """Whether values and gradients are finite at inputs from 0 to 1; None if it can't be run there."""
        for ends in (False, True):
            experiment = self._experiment()
            fill_inside(experiment, self._seed, ends=ends)
            try:
                with self._precision():
                    line = self._line(experiment)
            except UNRUNNABLE:
                if ends:
                    break
                return None
            if not all(bool(torch.isfinite(item).all()) for item in line.gradients if item is not None):
                return False
        return True

    def ladder(self) -> Ladder | None:
        """Differences along one random direction over falling steps."""
        if time.monotonic() > self._deadline:
            return None
        experiment = self._experiment()
        try:
            with self._precision():
                line = self._line(experiment)
                directions = random_directions(experiment, torch.Generator().manual_seed(self._seed + 13))
                analytic, scale = line.analytic(directions)
                return climb(line.phi(directions), analytic, scale, line.rounding)
        except UNRUNNABLE:
            return None
        finally:
            experiment.put_back()

    def _answered(self, answer: Watch) -> bool | None:
        experiment = self._experiment()
        plain, breaks = experiment.call, Breaks(self._root, answer)

        def call(*args: Any, **kwargs: Any) -> Any:
            # Only the call: constructors write to parameters under no_grad.
            answer.start(recording=not experiment.displaced)
            with breaks.watching():
                return plain(*args, **kwargs)

        experiment.call = call
        return self._agrees(experiment, lambda directions: directions)

    def _experiment(self) -> Experiment:
        with self._precision():
            return self._make(None if self._single else torch.float64)

    def _precision(self) -> Any:
        return nullcontext() if self._single else default_dtype(torch.float64)

    def _line(self, experiment: Experiment) -> Linearisation:
        generator = torch.Generator().manual_seed(self._seed + 17)
        return linearise(experiment, generator, rounding=self._rounding, single=self._single)

    def _agrees(
        self, experiment: Experiment, change: Callable[[list[torch.Tensor | None]], list[torch.Tensor | None]]
    ) -> bool | None:
        """True: at every probe that says anything; no gradient and no change agree. None: nothing can be said."""
        generator = torch.Generator().manual_seed(self._seed + 19)
        judgements: list[str] = []
        try:
            with self._precision():
                for _ in range(PROBES):
                    if time.monotonic() > self._deadline:
                        return None
                    line = self._line(experiment)
                    live = {index for index, item in enumerate(line.gradients) if item is not None}
                    found = probe(line, change(random_directions(experiment, generator, live)))
                    nothing = found.scale == 0 and abs(found.numeric) <= 10 * found.error + 1e-12
                    judgements.append("agree" if nothing else found.judgement)
        except UNRUNNABLE:
            return None
        if "mismatch" in judgements:
            return False
        return True if "agree" in judgements else None
