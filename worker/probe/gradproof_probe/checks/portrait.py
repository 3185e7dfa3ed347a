"""A portrait of the target: the graph of one call, and what its modules cost. It shows, and judges nothing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Documentation
from gradproof_probe.checks.gradcheck import experiment_maker
from gradproof_probe.gradients.experiment import Experiment, ForwardError
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.portraits.graph import MOST_NODES, Graph, TooLargeError, read_graph
from gradproof_probe.portraits.plan import plan
from gradproof_probe.portraits.profile import profile
from gradproof_probe.portraits.recording import record
from gradproof_probe.portraits.timing import Timing, timed


class Portrait(Check):
    name: ClassVar[str] = "portrait"
    cost: ClassVar[float] = 4.0
    documentation: ClassVar[Documentation] = Documentation(
        summary="Draws the autograd graph of one call, with the time and memory that each module takes. "
        "It judges nothing.",
        what_it_does=(
            "The target is built as its harness says and called once while notes are taken: of each node of the graph "
            "the operation, the submitted line and the module that made it, and the bytes that it keeps for backward "
            "(memory counts once, at the node that kept it first; parameters, buffers and inputs are there anyway and "
            "do not count). Floating inputs require grad, so that the way from each of them can be seen. A graph of up "
            "to 100 nodes is shown whole. In a larger one the calls of modules are boxes, opened from the outside "
            "inwards as long as all fit in (of modules that are alike the first only, if not all do); a long run of "
            "operations without modules becomes stretches of lines. Then the call and its backward are timed three "
            "times without notes, and the least is told: forward by hooks of modules, backward by hooks of nodes. "
            "`torch.profiler` is not used: starting it takes longer than all of this."
        ),
        how_it_decides=(
            "It does not: `pass` says that there is a picture, not that anything is right, and it never fails. "
            "Parameters that require grad and get none, or one that is exactly zero, are marked; whether that is a "
            "fault is the business of `gradient_flow`. Findings and failing checks whose line is the line of a node "
            "are coloured when the picture is drawn. `skipped` where nothing that the target returns has a graph, or "
            "where the graph has more than 50,000 nodes; `error` where the target raises."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if context.recipe.reason == "no differentiable output":
            return CheckResult("skipped", "there is no graph: no output depends differentiably on an input")
        with warnings.catch_warnings(), _nothing_compiled():
            warnings.simplefilter("ignore")
            try:
                return _drawn(context)
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")
            except ForwardError as error:
                return CheckResult("error", f"the forward raises {describe_error(error.cause, 300)}")
            except TooLargeError:
                return CheckResult("skipped", f"the graph has more than {MOST_NODES:,} nodes")


def _drawn(context: CheckContext) -> CheckResult:
    experiment = experiment_maker(context)(None)
    title = context.resolved.target.qualname
    recording = record(experiment, context.source_root, title)
    graph = read_graph(recording, experiment)
    if not graph.outputs:
        return CheckResult("skipped", "there is no graph: nothing that it returns depends differentiably on an input")
    recording.output = None  # the memory of the graph: it has been read
    if time.monotonic() > context.deadline:
        return CheckResult("inconclusive", f"one call took until the deadline; {len(graph.operations)} operations")
    timing = timed(experiment, title, context.deadline)
    lost = _without_gradient(experiment, graph, timing)
    evidence: dict[str, Any] = {
        "graph": plan(graph, recording.calls, timing, lost, experiment, context.source_root),
        "profile": profile(graph, recording, timing),
    }
    if timing.raised is not None:
        evidence["backward"] = f"not timed: it raises {describe_error(timing.raised, 200)}"
    return CheckResult("pass", _summary(graph, evidence, lost), evidence=evidence)


def _without_gradient(experiment: Experiment, graph: Graph, timing: Timing) -> dict[str, str]:
    """By name how a parameter is that gets nothing: `none` or `zero`. Told by the graph where backward raises."""
    if timing.raised is None:
        return {name: fate for name, fate in timing.gradients.items() if fate != "something"}
    reached = graph.parameters
    return {
        variable.name: "none"
        for variable in experiment.variables
        if variable.kind == "parameter" and variable.name not in reached
    }


def _summary(graph: Graph, evidence: dict[str, Any], lost: dict[str, str]) -> str:
    costs = evidence["profile"]
    boxes = len(evidence["graph"]["nodes"])
    number = len(graph.operations)
    said = f"{number} operation{'' if number == 1 else 's'} in {boxes} boxes, forward {costs['forward_ms']:.3g} ms"
    said += f", backward {costs['backward_ms']:.3g} ms" if costs["backward_ms"] else ""
    said += f", {costs['saved_bytes']:,} bytes kept between them"
    return f"{said}; {len(lost)} parameter{'' if len(lost) == 1 else 's'} without gradient" if lost else said


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """A target that compiles itself is drawn as it is written: compiled code is one node, after a minute."""
    import sys

    stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
    if stance is None or "torch._dynamo" not in sys.modules:
        yield
        return
    with stance("force_eager"):
        yield
