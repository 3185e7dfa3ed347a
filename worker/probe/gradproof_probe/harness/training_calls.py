"""Calls of functions that train or that talk to other ranks: a small model, its optimizer and a batch for it.

They take what no differentiable function takes, and return nothing that could be differentiated: the general search
would give up on them. What a parameter is for is told by its annotation and its name. A call that runs through and
changes a parameter is the recipe; what needs other ranks can't be tried here and is taken as it is. What none of these
calls suits is training code of its own kind, which says nothing about the repository: it has its own reason.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import torch

from gradproof_probe.harness.recipe import Recipe, build, names_of
from gradproof_probe.harness.training_arguments import (
    Data,
    Expressions,
    Wanted,
    batch_of,
    keys_of,
    may_be_tensor,
    needed_by,
    role_of,
    settings_for,
)
from gradproof_probe.harness.trial import TrialTimeoutError, time_limit
from gradproof_probe.importing import NotRunnableError, Resolved
from gradproof_probe.request import Declared
from gradproof_probe.seeding import reseed
from gradproof_probe.training.collectives import talks
from gradproof_probe.training.reach import names_of_code, names_used
from gradproof_probe.training.step_arguments import StepArguments
from gradproof_probe.training.step_recorder import StepRecorder
from gradproof_probe.trees import tensors

# What the gradient checks skip.
NO_OUTPUT: Final = "no differentiable output"
SAID: Final = "model, optimizer and batch by the names of the parameters"
# The reason of what trains and can't be called so.
TRAINING_CODE: Final = "training code"
# What the general search ends with where a call is not found.
_UNCALLED: Final = ("constructor unsolved", "inputs unsolved", "timed out", "no differentiable output")
_TRIAL_S: Final = 4.0
_CALLS: Final = 3  # as often as the checks call it: what accumulates needn't step in the first
_BATCH: Final = 4
_MOST_FACTORIES: Final = 3
_PLAIN_MODEL: Final = "torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 7))"
_TENSOR: Final = "torch.randn(4, 6)"
_SAID_TENSOR: Final = "a tensor, since it takes nothing else and waits for other ranks"
_OF_LOSSES: Final = re.compile(r"loss|criterion", re.IGNORECASE)
_FACTORY: Final = re.compile(r"^(make|build|create|get)_?\w*(net|model)", re.IGNORECASE)


def training_recipe(resolved: Resolved, declared: Declared | None, *, seed: int, deadline: float) -> Recipe | None:
    """None for what doesn't train, and where no call comes to a step; else to an act of training that raises."""
    if resolved.target.kind != "function":
        return None
    names = _names(resolved)
    if not {"backward", "step"} <= names:
        return None
    talking = talks(names)
    raising: Recipe | None = None
    for recipe in _candidates(resolved, declared):
        if time.monotonic() > deadline:
            break
        ended = _tried(resolved, recipe, seed, talking=talking)
        if ended == "steps":
            return recipe
        if ended == "raises":
            raising = raising or recipe
    return raising


def ranks_recipe(resolved: Resolved, declared: Declared | None) -> Recipe | None:
    """For what can't run without other ranks: the declared call as it is, or a model or tensor where nothing else is
    wanted."""
    if resolved.target.kind != "function":
        return None
    if not talks(_names(resolved)):
        return None
    if declared is None:
        needed = needed_by(resolved.value) or []
        if needed and may_be_tensor(needed[0]) and {role_of(item) for item in needed[1:]} <= {"one", "zero"}:
            # Sizes of the group and ranks are told where there are some.
            inputs = (_TENSOR, *("1" if role_of(item) == "one" else "0" for item in needed[1:]))
            return Recipe("synthesised", "C", None, inputs, _SAID_TENSOR, NO_OUTPUT, "names")
        if not needed or {role_of(item) for item in needed} - {"model", "parameters", "one", "zero"}:
            return None
    return next(_candidates(resolved, declared), None)


def training_reason(resolved: Resolved, error: NotRunnableError) -> NotRunnableError | None:
    """Of what trains by its own code, or waits for other ranks, and isn't called by any of these: its own reason."""
    if resolved.target.kind != "function" or error.reason not in _UNCALLED:
        return None
    code = getattr(inspect.unwrap(resolved.value), "__code__", None)
    own = frozenset(names_of_code(code)) if isinstance(code, CodeType) else frozenset[str]()
    last = error.detail.removeprefix("last try: ")
    if {"backward", "step"} <= own:
        unknown = [
            item.name for item in needed_by(resolved.value) or [] if role_of(item) is None and item.name != "self"
        ]
        said = f"nothing says what {', '.join(unknown[:4])} {'is' if len(unknown) == 1 else 'are'}" if unknown else last
        return NotRunnableError(TRAINING_CODE, f"no call with a small model comes to a step of it: {said}")
    if talks(own) and ("grad" in own or "process group" in last):
        return NotRunnableError(TRAINING_CODE, f"it waits for other ranks, and how it is called is not known: {last}")
    return None


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


def _tried(resolved: Resolved, recipe: Recipe, seed: int, *, talking: bool) -> Literal["steps", "raises"] | None:
    """Whether the call comes to a step, or only to an act of training that raises; of what talks to ranks only building
    is asked."""
    recorder = StepRecorder(_root_of(resolved))
    try:
        with time_limit(_TRIAL_S), recorder.watching():
            built = build(resolved, recipe, seed=seed)
            if talking:
                return "steps"
            arguments = StepArguments(built)
            for holder in arguments.holders():
                recorder.know(holder)
            reseed(seed)
            for _ in range(_CALLS):
                error = recorder.run(built.call, *arguments.for_call())
                acts = {event.act for event in recorder.events}
                if error is not None or "step" in acts or "backward" not in acts:
                    break
    except Exception:
        return None
    if isinstance(error, TrialTimeoutError):
        return None
    if {"backward", "step"} <= acts:
        return "steps"
    return "raises" if any(event.error is not None for event in recorder.events) else None


# --- expressions ---------------------------------------------------------------------------------------------------


def _candidates(resolved: Resolved, declared: Declared | None) -> Iterator[Recipe]:
    needed = needed_by(resolved.value)
    if declared is not None and needed is not None and len(declared.inputs) >= len(needed):
        yield Recipe("declared", "A", None, declared.inputs, declared.provenance, NO_OUTPUT, "declared")
        return
    owner = _owner(resolved)
    if needed is None:
        return
    is_method = bool(needed) and needed[0].name == "self"
    settings = settings_for(resolved.value, [item.name for item in needed if role_of(item) == "settings"])
    for model in _models(resolved, declared):
        for data in _batches(resolved, model, declared):
            inputs = _arguments(Expressions(model, data, settings), needed, owner if is_method else None)
            if inputs is not None:
                yield Recipe("synthesised", "C", None, tuple(inputs), SAID, NO_OUTPUT, "names")


def _arguments(expressions: Expressions, needed: Sequence[Wanted], owner: type | None) -> list[str] | None:
    """`owner`: the class of a method, whose object is built of the same pieces."""
    if owner is None:
        return expressions.of(needed)
    wanted = needed_by(owner)
    own = None if wanted is None else expressions.of(wanted)
    rest = expressions.of(needed[1:])
    return None if own is None or rest is None else [f"{owner.__qualname__}({', '.join(own)})", *rest]


def _models(resolved: Resolved, declared: Declared | None) -> Iterator[str]:
    if declared is not None and declared.constructor:
        yield declared.constructor
    defined = list(vars(resolved.module).items())
    factories = [
        f"{name}()"
        for name, value in defined
        if _FACTORY.search(name) and inspect.isfunction(value) and needed_by(value) == []
    ]
    yield from factories[:_MOST_FACTORIES]
    classes = [f"{name}()" for name, value in defined if _is_model(value, resolved) and needed_by(value) == []]
    yield from classes[:_MOST_FACTORIES]
    yield _PLAIN_MODEL


def _is_model(value: Any, resolved: Resolved) -> bool:
    """Whether it is a class of this module that may be a model: a loss isn't one."""
    if not isinstance(value, type) or value.__module__ != resolved.module.__name__:
        return False
    return issubclass(value, torch.nn.Module) and _OF_LOSSES.search(value.__name__) is None


def _batches(resolved: Resolved, model: str, declared: Declared | None) -> Iterator[Data]:
    """Batches that the model takes, with targets of the kinds that losses want."""
    losses = ("torch.nn.CrossEntropyLoss()", "torch.nn.MSELoss()")
    if declared is not None and len(declared.inputs) == 2:
        x, y = declared.inputs
        yield from (Data(x, y, loss, f"({x}, {y})") for loss in losses)
        return
    found = _input_for(resolved, model)
    if found is None:
        return
    x, size = found
    keys = keys_of(resolved.value)
    targets = [(f"torch.randn{size}", losses[1]), (f"torch.rand{size}", "torch.nn.BCEWithLogitsLoss()")]
    if len(size) == 2 and size[1] > 1:
        targets.insert(0, (f"torch.randint(0, {size[1]}, ({size[0]},))", losses[0]))
    for y, loss in targets:
        yield Data(x, y, loss, batch_of(keys, x, y) if keys else f"({x}, {y})")
    yield Data(x, x, losses[1], x)


def _input_for(resolved: Resolved, model: str) -> tuple[str, tuple[int, ...]] | None:
    """An input that a model takes, and the shape of what it gives for it."""
    try:
        with time_limit(_TRIAL_S), torch.no_grad():
            net = eval(model, names_of(resolved))
            x = _input_of(net)
            output = None if x is None else net(eval(x, {"torch": torch}))
    except Exception:  # submitted models may do anything
        return None
    first = next((value for _, value in tensors(output)), None)
    return None if x is None or first is None or not first.ndim else (x, tuple(first.shape))


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
