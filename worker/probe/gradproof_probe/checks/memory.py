"""Does memory grow with every call? The counting is in `training.memory`."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, ClassVar, Final

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation
from gradproof_probe.checks.gradcheck import experiment_maker
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.gradients.experiment import BackwardError, Experiment, ForwardError
from gradproof_probe.gradients.steps import SECOND_TIME
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.keeping import kept_at, let_go_of, set_on_context
from gradproof_probe.training.memory import (
    Cycle,
    Root,
    Saved,
    census,
    collector_off,
    cycles,
    holdings,
    step,
)

# The first calls fill caches and make what is made lazily.
WARM: Final = 2
WINDOW: Final = 3
# What grew over six calls is watched for this many more: a cache or a ring of a few entries is full by then.
LONGER: Final = 12
_SHOWN: Final = 12

Holdings = Mapping[Root, tuple[int, int, int]]


class Memory(Check):
    name: ClassVar[str] = "memory"
    cost: ClassVar[float] = 10.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Counts what stays alive after each call, and names what keeps the graphs of earlier calls.",
        what_it_does=(
            "The target is built once and called again and again on the state that it leaves, forward and backward, "
            "everything that it returned is dropped, and Python's collector is off. After 2, 5 and 8 calls the "
            "tensors that are alive, those of them with a graph, the nodes behind these, and what graphs have saved "
            "for backward are counted, in numbers and bytes. What grows is counted again after 20. Then the attributes "
            "of its modules, and the names, classes and default arguments of its source files, are searched for the "
            "one whose graphs grow, and the ctx of custom Functions for their own outputs. `evidence.saved` says "
            "which lines make autograd save how many bytes in one call."
        ),
        how_it_decides=(
            "`fail` when graphs of earlier calls are held and grow with every call, and what holds them is known: an "
            "attribute or a buffer that is computed from its own last value without `detach()`, a list of losses with "
            "their graphs, or an output that a custom Function keeps as an attribute of ctx instead of by "
            "`save_for_backward` (the two hold each other, and only the collector frees them). `pass` where nothing "
            "grows, where growth ends (a cache, a ring), where what grows has no graph (a log or a cache of values), "
            "where it lies in ordinary cycles that the collector frees, and where the source has a method or a "
            "statement that empties what is kept: each is noted. `skipped` where a call makes no graph. "
            "`inconclusive` where graphs grow and nobody is found "
            "who holds them."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return _Counting(context).result()
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")
            except ForwardError as error:
                return CheckResult("error", f"the forward raises {describe_error(error.cause, 300)}")
            except BackwardError as error:
                return CheckResult("inconclusive", f"the backward raises {describe_error(error.cause, 300)}")


class _Counting:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._root = context.source_root
        self._backward = True
        self._makes_graphs = False
        self._evidence: dict[str, Any] = {}

    def result(self) -> CheckResult:
        try:
            return self._counted()
        except BackwardError as error:
            if SECOND_TIME not in str(error.cause):
                raise
        # The graph of the last call is in the way of the next backward: how it grows shows without one.
        self._backward = False
        self._evidence["backward"] = "left out: the second one runs into the graph of the first call"
        return self._counted()

    def _counted(self) -> CheckResult:
        saved, experiment = self._start()
        if not self._makes_graphs:
            return CheckResult("skipped", "its call makes no graph that could be kept", evidence=self._evidence)
        with collector_off():
            self._steps(experiment, saved, WARM - 1)
            counts = [census(saved)]
            for _ in range(2):
                self._steps(experiment, saved, WINDOW)
                counts.append(census(saved))
            grown = [later.grown(earlier, WINDOW) for earlier, later in pairwise(counts)]
            self._evidence["alive"] = [asdict(item) for item in counts]
            if not _grows(grown):
                return self._passed("nothing more is alive after each call")
            if time.monotonic() > self._context.deadline:
                return self._open("memory grew over eight calls, and no time was left to see whether it goes on")
            before = holdings(experiment.instance, self._root)
            self._steps(experiment, saved, LONGER)
            last = census(saved)
            longer = last.grown(counts[-1], LONGER)
            root = _growing_root(before, holdings(experiment.instance, self._root))
            self._evidence["grows_per_call"] = longer
            if not _grows([*grown, longer]):
                return self._passed("nothing more is alive after each call, once what grew at first is full")
            cycle = cycles()
            gc.collect()
            rest = census(saved).grown(counts[-1], LONGER)
        return self._growing(longer, rest, root, cycle)

    def _start(self) -> tuple[Saved | None, Experiment]:
        """The first call, on which is counted what each line saves. Hooks on saved tensors are refused by some code."""
        make = experiment_maker(self._context)
        experiment = make(None)
        saved = Saved(self._root)
        try:
            with saved:
                self._makes_graphs = step(experiment, saved, backward=self._backward)
        except (ForwardError, BackwardError) as error:
            if "hooks" not in str(error.cause):
                raise
            experiment = make(None)
            self._makes_graphs = step(experiment, None, backward=self._backward)
            return None, experiment
        own = [variable.leaf for variable in experiment.variables]
        if experiment.instance is not None:
            own += [*experiment.instance.parameters(), *experiment.instance.buffers()]
        found = saved.by_operation(aside={tensor.untyped_storage().data_ptr() for tensor in own})
        self._evidence["saved"] = {
            "bytes": sum(item.bytes for item in found),
            "by_operation": [
                {
                    "operation": item.operation,
                    "place": None if item.place is None else f"{item.place.path}:{item.place.line}",
                    "tensors": item.tensors,
                    "bytes": item.bytes,
                }
                for item in found[:_SHOWN]
            ],
        }
        return saved, experiment

    def _steps(self, experiment: Experiment, saved: Saved | None, number: int) -> None:
        for _ in range(number):
            step(experiment, saved, backward=self._backward)

    def _growing(
        self, grown: Mapping[str, float], rest: Mapping[str, float], root: Root | None, cycle: Cycle | None
    ) -> CheckResult:
        graphs = grown["graphs"] > 0 or grown["nodes"] > 0 or grown["saved"] > 0
        numbers = {name: round(value, 2) for name, value in grown.items()}
        if not graphs:
            return self._passed(
                f"{grown['tensors']:.3g} tensors ({grown['bytes']:.4g} bytes) more are alive after each call, without "
                "a graph: a log or a cache"
            )
        if root is not None and root.limit is not None:
            return self._passed(f"{root.label} holds the graphs of the last {root.limit} calls at most")
        if root is not None:
            return self._kept(root, grown, numbers)
        if cycle is not None:
            name = cycle.function.__qualname__
            return self._fail(
                "reference_cycle",
                f"{name} keeps its own output as ctx.{cycle.attribute}: the output holds its graph, the graph ctx, "
                f"and ctx the output. {grown['tensors']:.3g} tensors ({grown['bytes']:.4g} bytes) stay with each call "
                "until Python's collector comes by; save it with ctx.save_for_backward",
                set_on_context(cycle.function, cycle.attribute, self._root),
                {"attribute": cycle.attribute, "function": name, **numbers},
            )
        if not any(rest[name] > 0 for name in ("graphs", "nodes", "saved")):
            return self._passed(
                f"{grown['tensors']:.3g} tensors of each call wait in cycles of Python objects for the collector, "
                "which frees them"
            )
        return self._open(
            f"graphs of earlier calls stay alive ({grown['nodes']:.3g} nodes, {grown['bytes']:.4g} bytes more with "
            "each call); what holds them was not found"
        )

    def _kept(self, root: Root, grown: Mapping[str, float], numbers: Mapping[str, float]) -> CheckResult:
        emptied = let_go_of(root, self._root)
        place = kept_at(root, self._root)
        text = (
            f"{root.label} keeps the graphs of earlier calls: {grown['nodes']:.3g} nodes and {grown['bytes']:.4g} "
            "bytes more with each"
        )
        if emptied is not None:
            self._evidence["kept"] = {"name": root.label, "emptied": emptied}
            return self._passed(f"{text}, until its caller empties it ({emptied})")
        return self._fail(
            "graph_kept_by_history",
            f"{text}; keep its value without the graph (`detach()`), or compute it under torch.no_grad()",
            place,
            {"name": root.label, **numbers},
        )

    def _passed(self, text: str) -> CheckResult:
        saved = self._evidence.get("saved", {}).get("bytes")
        size = "" if saved is None else f"; one call saves {saved:,} bytes for backward"
        return CheckResult("pass", text + size, evidence=self._evidence)

    def _open(self, text: str) -> CheckResult:
        target = self._context.resolved.target
        return CheckResult(
            "inconclusive",
            text,
            diagnosis=Diagnosis("memory_grows", text, dict(self._evidence.get("grows_per_call", {}))),
            path=target.path,
            line=target.line,
            evidence=self._evidence,
        )

    def _fail(self, cause: str, text: str, place: Place | None, numbers: dict[str, Any]) -> CheckResult:
        target = self._context.resolved.target
        return CheckResult(
            "fail",
            text,
            diagnosis=Diagnosis(cause, text, numbers),
            path=place.path if place is not None else target.path,
            line=place.line if place is not None else target.line,
            evidence=self._evidence,
        )


def _grows(windows: list[dict[str, float]]) -> bool:
    """Whether something grows in every window, by at least one with each call."""
    return any(all(window[name] >= 1 for window in windows) for name in ("tensors", "graphs", "saved", "nodes"))


def _growing_root(before: Holdings, after: Holdings) -> Root | None:
    """The name behind which graphs grow: the one with the fewest nodes, if several lead to them."""
    found = [
        (last[2], root)
        for root, last in after.items()
        if any(last[index] > before.get(root, (0, 0, 0))[index] for index in (1, 2))
    ]
    return min(found, key=lambda item: item[0])[1] if found else None
