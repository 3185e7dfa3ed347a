"""Do two ranks come to what one process comes to? The ranks run in `training.ranks`, the judging is in `training`."""

from __future__ import annotations

import ast
import importlib
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from gradproof_probe.checks.base import Check, CheckContext, CheckResult, Diagnosis, Documentation, Verdict
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import Built, ExpressionError, make_inputs
from gradproof_probe.harness.sources import function_node, tree_of
from gradproof_probe.importing import describe_error
from gradproof_probe.source_texts import source_texts
from gradproof_probe.training.collectives import talks
from gradproof_probe.training.distributed import (
    WORLD,
    Kind,
    NotSharedError,
    Run,
    has_data,
    has_optimizer,
    has_parameters,
)
from gradproof_probe.training.mentions import mentions
from gradproof_probe.training.rank_judging import Opinion, of_averaging, of_loss, of_module, of_step, of_tensors
from gradproof_probe.training.ranks import Ranks, run_ranks
from gradproof_probe.training.reach import names_used

_AVERAGES: Final = re.compile(r"(^|_)(mean|avg|average|averaged|averages)(_|$)", re.IGNORECASE)
_ADDS: Final = re.compile(r"(^|[\W_])(sum|sums|summed|add|adds|added|total|accumulat\w*)([\W_]|$)", re.IGNORECASE)
_DIVIDES: Final = re.compile(r"/=?\s*(float\()?[\w.]*(world_size|num_replicas|n_gpus|num_gpus|nprocs|num_procs)")
_WRAPPERS: Final = frozenset({"DistributedDataParallel", "DDP", "no_sync"})
_DRAWS: Final = re.compile(r"rand|normal|perm|shuffle|sample|choice|uniform")
_RANK_S: Final = 20.0  # ranks that wait for each other are not waited for any longer

_SEVERAL_PROCESSES: Final = (
    r"\btorch\s*\.\s*distributed\b|\bfrom\s+torch\s+import\s.*\bdistributed\b|\bDistributedDataParallel\b|\bSyncBatchNorm\b"
    r"|\bfully_shard\b|\baccelerat(?:e|or)\b|\bLightningModule\b"
)


class DDPConsistency(Check):
    name: ClassVar[str] = "ddp_consistency"
    cost: ClassVar[float] = 8.0
    fixed_s: ClassVar[float] = 0.5
    documentation: ClassVar[Documentation] = Documentation(
        summary="Runs the target in two processes, each with half of a batch, and compares with one process.",
        what_it_does=(
            "Two forked processes form a gloo group over the loopback interface. A module is built in each with other "
            "random numbers, given equal parameters and buffers as DistributedDataParallel does, and its gradients are "
            "averaged. A function that calls collectives is run as it is: one that averages gradients is given other "
            "ones in each rank, a loss is differentiated, a training step is called once (its model in "
            "DistributedDataParallel, unless it averages gradients itself), a reduction of tensors is called. One "
            "process does the same with the whole batch, and with each half."
        ),
        how_it_decides=(
            "`fail` when gradients are added where they are averaged elsewhere, are left out, or only one rank has "
            "them; when a loss that gathers from other ranks has another gradient than that of the whole batch, in a "
            "second run with other numbers too, or the world size as a factor; when the parameters of the ranks differ "
            "after one step; when something that calls itself an average is a sum; when a module keeps something "
            "random that is neither parameter nor buffer. A factor of one over the world size is right if a caller "
            "adds, and is only noted, as are parameters that took no part (DistributedDataParallel then wants "
            "`find_unused_parameters=True`), buffers that differ, and batch statistics: these are so by design. "
            "`inconclusive` where ranks wait for each other until the deadline. `skipped` for functions without "
            "collectives, where no group can be made, and where the repository has no word of several processes: two "
            "of them for every layer of it would take half a second each."
        ),
    )

    def run(self, context: CheckContext) -> CheckResult:
        if not mentions(context.source_root, _SEVERAL_PROCESSES):
            return CheckResult("skipped", "the repository has no word of several processes (torch.distributed)")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return _Comparison(context).result()
            except ExpressionError as error:
                return CheckResult("error", f"the {error.part} raises {describe_error(error.cause)}")


class _Comparison:
    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._root = context.source_root
        self._target = context.resolved.target
        self._evidence: dict[str, Any] = {}
        self._place: Place | None = None

    def result(self) -> CheckResult:
        kind = self._kind()
        if kind is None:
            return CheckResult("skipped", "it calls no collective: what it does in several processes is its caller's")
        self._evidence["kind"] = kind
        run = Run(self._context, kind, self._context.seed)
        opinion = self._opinion(run)
        if isinstance(opinion, CheckResult):
            return opinion
        if opinion.fault and kind in ("loss", "step"):
            again = self._opinion(replace(run, seed=run.seed + 1009, wrapped=bool(self._evidence.get("wrapped"))))
            if isinstance(again, CheckResult) or again.cause != opinion.cause:
                return self._told("inconclusive", replace(opinion, text=f"{opinion.text}; not so with other numbers"))
        if opinion.fault:
            return self._told("fail", opinion)
        return self._told("inconclusive" if opinion.undecided else "pass", opinion)

    def _kind(self) -> Kind | None:
        resolved = self._context.resolved
        if self._target.kind == "module":
            return "module"
        if self._target.kind != "function":
            return None
        owner = getattr(resolved.module, self._target.qualname.partition(".")[0], None)
        owner = owner if isinstance(owner, type) else None
        names = names_used(resolved.value, self._root, owner)
        if not talks(names) and not names & _WRAPPERS:
            return None
        args, kwargs = make_inputs(resolved, self._context.recipe.inputs, seed=self._context.seed)
        built = Built(resolved.value, args, kwargs, None)
        if has_optimizer(built) and "backward" in names:
            self._evidence["wrapped"] = bool(names & _WRAPPERS)
            return "step"
        if has_parameters(built) and not has_data(built):
            return "average"
        return "loss" if self._is_loss(built) else "tensors"

    def _is_loss(self, built: Built) -> bool:
        """Whether a gradient is asked of it; a reduction for a log is called with numbers."""
        if has_parameters(built):
            return True
        return (
            not _AVERAGES.search(self._target.qualname)
            and re.search(
                r"loss|criterion|nce|contrast|simil|clip|barlow|vicreg|distill", self._target.qualname, re.IGNORECASE
            )
            is not None
        )

    def _opinion(self, run: Run) -> Opinion | CheckResult:
        if run.kind == "step" and self._evidence.get("wrapped") and not run.wrapped:
            run.wrapped = True
        ranks = self._ranks(run)
        if ranks.found is None:
            return self._not_run(ranks, run)
        tensors = [found.tensors for found in ranks.found]
        spoken = ranks.found[0].words.get("collectives", [])
        self._place = self._line_of(spoken)
        self._evidence["collectives"] = spoken[:20]
        self._evidence["processes"] = WORLD
        if not spoken and not run.wrapped:
            return CheckResult("skipped", "this call of it comes to no collective", evidence=self._evidence)
        if run.kind == "average":
            return of_averaging(tensors, adds=self._adds())
        if run.kind == "tensors":
            return of_tensors(tensors, averages=self._is_average())
        if run.kind == "step" and not run.wrapped and not _averages_gradients(spoken, tensors[0]):
            # Its collectives are for something else, a loss to be logged: the gradients are for the wrapper.
            self._evidence["wrapped"] = True
            return self._opinion(replace(run, wrapped=True))
        alone = run_ranks(run.alone, world=1, deadline=self._until(), source_root=self._root)
        if alone.found is None:
            return self._not_run(alone, run)
        single = alone.found[0].tensors
        if run.kind == "module":
            return self._of_module(tensors, single, ranks)
        return of_loss(tensors, single) if run.kind == "loss" else of_step(tensors, single)

    def _of_module(
        self, tensors: list[dict[str, torch.Tensor]], single: dict[str, torch.Tensor], ranks: Ranks
    ) -> Opinion:
        assert ranks.found is not None
        words = ranks.found[0].words
        if words.get("unused"):
            self._evidence["unused_parameters"] = words["unused"][:20]
        if words.get("random"):
            return Opinion("its outputs are random in evaluation mode too", undecided=True)
        opinion = of_module(tensors, single)
        if opinion.cause == "random_state_differs":
            first, second = (found.words.get("attributes", {}) for found in ranks.found)
            other = [(name, kind) for name, (kind, held) in first.items() if second.get(name, [kind, held])[1] != held]
            if not other:
                return replace(opinion, fault=False, undecided=True)  # nobody could say what it is
            self._evidence["not_registered"] = [name for name, _ in other][:20]
            self._place = self._assignment(other)
        return opinion

    def _ranks(self, run: Run) -> Ranks:
        if run.wrapped:
            # The wrapper imports it, which takes three seconds: once, not in each rank.
            importlib.import_module("torch._dynamo")
        return run_ranks(run.in_rank, world=WORLD, deadline=self._until(), source_root=self._root)

    def _until(self) -> float:
        return min(self._context.deadline, time.monotonic() + _RANK_S)

    def _not_run(self, ranks: Ranks, run: Run) -> CheckResult:
        if ranks.could_not_start:
            return CheckResult("skipped", ranks.why, evidence=self._evidence)
        if NotSharedError.__name__ in ranks.why:
            return CheckResult("skipped", "no input has a batch that could be shared out", evidence=self._evidence)
        if ranks.hung:
            return CheckResult("inconclusive", ranks.why, evidence=self._evidence)
        if ranks.place is not None:
            self._evidence["raised_at"] = f"{ranks.place[0]}:{ranks.place[1]}"
        recipe = self._context.recipe
        if run.kind != "module" and recipe.source == "synthesised" and recipe.reason is not None:
            # Nothing but the names of its parameters speaks for this call, which could not be tried before.
            text = f"called with what its parameters suggest, it raises in two ranks: {ranks.why}"
            return CheckResult("skipped", text, evidence=self._evidence)
        verdict: Verdict = "error" if run.kind != "module" else "inconclusive"
        return CheckResult(verdict, f"in two ranks it raises {ranks.why}", evidence=self._evidence)

    # --- what the source says ----------------------------------------------------------------------------------

    def _words(self) -> str:
        document = getattr(self._context.resolved.value, "__doc__", None)
        return f"{self._target.qualname} {document if isinstance(document, str) else ''}"

    def _is_average(self) -> bool:
        return bool(_AVERAGES.search(self._target.qualname)) and not _ADDS.search(self._target.qualname)

    def _adds(self) -> bool:
        """Whether it calls itself a sum, or its file divides by the number of ranks outside of it."""
        return bool(_ADDS.search(self._words())) or self._divides_elsewhere()

    def _divides_elsewhere(self) -> bool:
        """Whether a function that names the target, or a file that imports it, divides by the number of ranks."""
        name = re.compile(rf"\b{re.escape(self._target.qualname.rpartition('.')[2])}\b")
        own = Path(str(getattr(self._context.resolved.module, "__file__", None))).resolve()
        texts = source_texts(self._root)
        for item in texts.python:
            parts = _functions(item.text, self._target.qualname) if item.file.resolve() == own else [item.text]
            if any(name.search(part) and _DIVIDES.search(part) for part in parts):
                return True
        return not texts.complete

    def _line_of(self, spoken: list[dict[str, Any]]) -> Place | None:
        """What gathers from the other ranks, else the first collective, else where synchronisation is switched off."""
        known = [item for item in spoken if item["path"] is not None]
        for item in [*(item for item in known if item["gathers"]), *known]:
            return Place(item["path"], item["line"])
        node = function_node(self._context.resolved.value)
        for part in ast.walk(node) if node is not None else ():
            if isinstance(part, ast.Attribute) and part.attr in ("no_sync", "module"):
                return Place(self._target.path, part.lineno)
        return None

    def _assignment(self, attributes: Sequence[tuple[str, str]]) -> Place | None:
        """Where the target's file first sets one of these attributes (with the names of their classes), drawing it."""
        tree = tree_of(str(getattr(self._context.resolved.module, "__file__", None)))
        wanted = {(kind, name.rpartition(".")[2]) for name, kind in attributes}
        for item in ast.walk(tree) if tree is not None else ():
            if not isinstance(item, ast.ClassDef):
                continue
            for node in ast.walk(item):
                if not isinstance(node, ast.Assign) or not _DRAWS.search(ast.unparse(node.value)):
                    continue
                set_here = {(item.name, target.attr) for target in node.targets if isinstance(target, ast.Attribute)}
                if set_here & wanted:
                    return Place(self._target.path, node.lineno)
        return None

    def _told(self, verdict: Verdict, opinion: Opinion) -> CheckResult:
        place = (self._place or Place(self._target.path, self._target.line)) if verdict == "fail" else None
        return CheckResult(
            verdict,
            opinion.text,
            diagnosis=Diagnosis(opinion.cause, opinion.text, opinion.numbers) if opinion.cause else None,
            path=None if place is None else place.path,
            line=None if place is None else place.line,
            evidence={**self._evidence, "numbers": opinion.numbers},
        )


def _functions(text: str, but: str) -> list[str]:
    """The functions and methods of a file without the one of this name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return [text]
    return [
        ast.get_source_segment(text, node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name != but.rpartition(".")[2]
    ]


def _averages_gradients(spoken: list[dict[str, Any]], values: dict[str, torch.Tensor]) -> bool:
    """Whether what was reduced is as much as there are parameters."""
    reduced = sum(item["elements"] for item in spoken if "reduce" in item["name"] or "gather" in item["name"])
    return reduced >= sum(value.numel() for name, value in values.items() if name.startswith("update "))
