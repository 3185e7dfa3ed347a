"""Calls of functions that train or that talk to other ranks: a small model, its optimizer and a batch for it.

They take what no differentiable function takes, and return nothing that could be differentiated: the general search
would give up on them. What a parameter is for is told by its name alone. A call that runs through and changes a
parameter is the recipe; what needs other ranks can't be tried here and is taken as it is.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Recipe, build, names_of
from gradproof_probe.harness.trial import TrialTimeoutError, time_limit
from gradproof_probe.importing import Resolved
from gradproof_probe.request import Declared
from gradproof_probe.seeding import reseed
from gradproof_probe.training.collectives import talks
from gradproof_probe.training.reach import names_used
from gradproof_probe.training.step_arguments import StepArguments
from gradproof_probe.training.step_recorder import StepRecorder

# What the gradient checks skip.
NO_OUTPUT: Final = "no differentiable output"
SAID: Final = "model, optimizer and batch by the names of the parameters"
_TRIAL_S: Final = 4.0
_BATCH: Final = 4
_MOST_FACTORIES: Final = 3
_PLAIN_MODEL: Final = "torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 7))"
_FACTORY: Final = re.compile(r"^(make|build|create|get)_?\w*(net|model)", re.IGNORECASE)
_ROLES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), role)
    for pattern, role in (
        (r"optim|(^|_)opt$", "optimizer"),
        (r"sched", "scheduler"),
        (r"scaler", "scaler"),
        (r"criterion|loss_?(fn|func|function|module)?$|objective", "criterion"),
        (r"loader|^batches$|dataset|iterator|^data$", "batches"),
        (r"^batch$|^sample$|^samples$", "batch"),
        (r"^(model|net|network|module|classifier|encoder|backbone|policy|student)$|_(model|net)$|^ddp", "model"),
        (r"^(y|ys|target|targets|label|labels|truth|gt|y_true|expected)$", "target"),
        (r"^(x|xs|input|inputs|features?|images?|imgs?|signal|inp)$", "input"),
        (r"device", "device"),
        (r"^epochs?$|^step$|^iteration$|^it$|^i$", "zero"),
        (r"clip|max_norm|limit", "limit"),
        (r"world_?size|num_(gpus|procs|replicas)", "one"),
        (r"rank$", "zero"),
    )
)
_FIXED: Final = {
    "scaler": 'torch.amp.GradScaler("cpu")',
    "device": 'torch.device("cpu")',
    "zero": "0",
    "one": "1",
    "limit": "1.0",
    "scheduler": "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
}


@dataclass(frozen=True, slots=True)
class _Data:
    """Expressions for one batch, and for a loss that takes it."""

    x: str
    y: str
    criterion: str


def training_recipe(resolved: Resolved, declared: Declared | None, *, seed: int, deadline: float) -> Recipe | None:
    """None for what doesn't train, and where no call comes to a step."""
    if resolved.target.kind != "function":
        return None
    names = _names(resolved)
    if not {"backward", "step"} <= names:
        return None
    talking = talks(names)
    for recipe in _candidates(resolved, declared):
        if time.monotonic() > deadline:
            break
        if _runs(resolved, recipe, seed, talking=talking):
            return recipe
    return None


def ranks_recipe(resolved: Resolved, declared: Declared | None) -> Recipe | None:
    """For what can't run without other ranks: the declared call as it is, or a model where nothing else is wanted."""
    if resolved.target.kind != "function":
        return None
    if not talks(_names(resolved)):
        return None
    if declared is None and {_role(name) for name in _needed(resolved.value) or [""]} - {"model", "one", "zero"}:
        return None
    return next(_candidates(resolved, declared), None)


def _names(resolved: Resolved) -> frozenset[str]:
    try:
        return names_used(resolved.value, _root_of(resolved), _owner(resolved))
    except Exception:  # globals of submitted code may do anything when they are looked at: the search goes on without
        return frozenset()


def _root_of(resolved: Resolved) -> Path:
    file = Path(str(resolved.module.__file__)).resolve()
    return file.parents[len(Path(resolved.target.path).parts) - 1]


def _owner(resolved: Resolved) -> type | None:
    name, _, method = resolved.target.qualname.partition(".")
    owner = getattr(resolved.module, name, None) if method else None
    return owner if isinstance(owner, type) else None


def _runs(resolved: Resolved, recipe: Recipe, seed: int, *, talking: bool) -> bool:
    """Whether the call comes to a step, or to a backward that raises; of what talks to ranks only building is asked."""
    recorder = StepRecorder(_root_of(resolved))
    try:
        with time_limit(_TRIAL_S), recorder.watching():
            built = build(resolved, recipe, seed=seed)
            if talking:
                return True
            arguments = StepArguments(built)
            for holder in arguments.holders():
                recorder.know(holder)
            reseed(seed)
            error = recorder.run(built.call, *arguments.for_call())
    except Exception:
        return False
    if isinstance(error, TrialTimeoutError):
        return False
    backwards = [event for event in recorder.events if event.act == "backward"]
    stepped = any(event.act == "step" for event in recorder.events)
    return bool(backwards) and (stepped or any(event.error is not None for event in backwards))


# --- expressions ---------------------------------------------------------------------------------------------------


def _candidates(resolved: Resolved, declared: Declared | None) -> Iterator[Recipe]:
    needed = _needed(resolved.value)
    if declared is not None and needed is not None and len(declared.inputs) >= len(needed):
        yield Recipe("declared", "A", None, declared.inputs, declared.provenance, NO_OUTPUT, "declared")
        return
    owner = _owner(resolved)
    if needed is None:
        return
    for model in _models(resolved, declared):
        for data in _batches(resolved, model, declared):
            inputs = _arguments(_Expressions(model, data), needed, owner if needed[:1] == ["self"] else None)
            if inputs is not None:
                yield Recipe("synthesised", "C", None, tuple(inputs), SAID, NO_OUTPUT, "names")


def _arguments(expressions: _Expressions, needed: list[str], owner: type | None) -> list[str] | None:
    """`owner`: the class of a method, whose object is built of the same pieces."""
    if owner is None:
        return expressions.of(needed)
    own = expressions.of(_needed(owner) or [])
    rest = expressions.of(needed[1:])
    return None if own is None or rest is None else [f"{owner.__qualname__}({', '.join(own)})", *rest]


def _needed(function: Any) -> list[str] | None:
    """The names of parameters without a default; None where they can't be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(item.kind is item.KEYWORD_ONLY and item.default is item.empty for item in parameters):
        return None
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [item.name for item in parameters if item.default is item.empty and item.kind in named]


def _roles(names: Sequence[str]) -> list[str | None]:
    """What each is for. One or two that have names of their own are the batch, as far as it isn't there yet."""
    found = [_role(name) for name in names]
    unknown = [place for place, role in enumerate(found) if role is None]
    if any(role in ("batch", "batches") for role in found):
        return found
    missing = [role for role in ("input", "target") if role not in found]
    if len(unknown) <= len(missing):
        for place, role in zip(unknown, missing[-len(unknown) :] if unknown else [], strict=True):
            found[place] = role
    return found


def _role(name: str) -> str | None:
    return next((role for pattern, role in _ROLES if pattern.search(name)), None)


class _Expressions:
    """The arguments of one call, left to right: what a later one needs is named where it is made."""

    def __init__(self, model: str, data: _Data) -> None:
        self._model = model
        self._data = data
        self._named: set[str] = set()

    def of(self, names: Sequence[str]) -> list[str] | None:
        """None if a parameter is of no known kind."""
        found = [self._one(role) for role in _roles(names)]
        return [expression for expression in found if expression is not None] if None not in found else None

    def _one(self, role: str | None) -> str | None:
        data = self._data
        batch = f"({data.x}, {data.y})"
        if role == "model":
            return self._net()
        if role == "optimizer":
            self._named.add("optimizer")
            return f"(optimizer := torch.optim.SGD({self._net()}.parameters(), lr=0.1))"
        if role == "scheduler" and "optimizer" not in self._named:
            return None
        given = {
            "criterion": data.criterion,
            "batches": f"[{batch} for _ in range(4)]",
            "batch": batch,
            "input": data.x,
            "target": data.y,
        }
        return given.get(role or "") or _FIXED.get(role or "")

    def _net(self) -> str:
        if "net" in self._named:
            return "net"
        self._named.add("net")
        return f"(net := {self._model})"


def _models(resolved: Resolved, declared: Declared | None) -> Iterator[str]:
    if declared is not None and declared.constructor:
        yield declared.constructor
    factories = [
        f"{name}()"
        for name, value in vars(resolved.module).items()
        if _FACTORY.search(name) and inspect.isfunction(value) and not _needed(value)
    ]
    yield from factories[:_MOST_FACTORIES]
    yield _PLAIN_MODEL


def _batches(resolved: Resolved, model: str, declared: Declared | None) -> Iterator[_Data]:
    """Batches that the model takes, with targets of the kinds that losses want."""
    losses = ("torch.nn.CrossEntropyLoss()", "torch.nn.MSELoss()")
    if declared is not None and len(declared.inputs) == 2:
        yield from (_Data(*declared.inputs, loss) for loss in losses)
        return
    try:
        with time_limit(_TRIAL_S), torch.no_grad():
            net = eval(model, names_of(resolved))
            x = _input_of(net)
            output = None if x is None else net(eval(x, {"torch": torch}))
    except Exception:
        return
    if x is None:
        return
    if not isinstance(output, torch.Tensor) or not output.ndim:
        return
    size = tuple(output.shape)
    if output.ndim == 2 and size[1] > 1:
        yield _Data(x, f"torch.randint(0, {size[1]}, ({size[0]},))", losses[0])
    yield _Data(x, f"torch.randn{size}", losses[1])
    yield _Data(x, f"torch.rand{size}", "torch.nn.BCEWithLogitsLoss()")


def _input_of(net: Any) -> str | None:
    for layer in net.modules() if isinstance(net, torch.nn.Module) else ():
        if isinstance(layer, torch.nn.Linear):
            return f"torch.randn({_BATCH}, {layer.in_features})"
        if isinstance(layer, torch.nn.Conv2d):
            return f"torch.randn({_BATCH}, {layer.in_channels}, 16, 16)"
        if isinstance(layer, torch.nn.Conv1d):
            return f"torch.randn({_BATCH}, {layer.in_channels}, 16)"
        if isinstance(layer, torch.nn.Embedding):
            return f"torch.randint(0, {layer.num_embeddings}, ({_BATCH}, 5))"
    return None
