"""Calls of functions that train or that talk to other ranks: a small model, its optimizer and a batch for it.

They take what no differentiable function takes, and return nothing that could be differentiated: the general search
would give up on them. What a parameter is for is told by its annotation and its name. A call that runs through and
changes a parameter is the recipe; what needs other ranks can't be tried here and is taken as it is. What none of these
calls suits is training code of its own kind, which says nothing about the repository: it has its own reason.
"""

from __future__ import annotations

import ast
import inspect
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import torch

from gradproof_probe.harness.recipe import Recipe, build, names_of
from gradproof_probe.harness.sources import function_node
from gradproof_probe.harness.trial import TrialTimeoutError, time_limit
from gradproof_probe.importing import NotRunnableError, Resolved
from gradproof_probe.request import Declared
from gradproof_probe.seeding import reseed
from gradproof_probe.training.collectives import talks
from gradproof_probe.training.reach import names_of_code, names_used
from gradproof_probe.training.step_arguments import StepArguments
from gradproof_probe.training.step_recorder import StepRecorder

# What the gradient checks skip.
NO_OUTPUT: Final = "no differentiable output"
SAID: Final = "model, optimizer and batch by the names of the parameters"
# The reason of what trains and can't be called so.
TRAINING_CODE: Final = "training code"
# What the general search ends with where a call is not found.
_UNCALLED: Final = ("constructor unsolved", "inputs unsolved", "timed out", "no differentiable output")
_TRIAL_S: Final = 4.0
_BATCH: Final = 4
_MOST_FACTORIES: Final = 3
_PLAIN_MODEL: Final = "torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 7))"
_TENSOR: Final = "torch.randn(4, 6)"
_SAID_TENSOR: Final = "a tensor, since it takes nothing else and waits for other ranks"
_OF_LOSSES: Final = re.compile(r"loss|criterion", re.IGNORECASE)
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
        (r"^epoch$|^(global_)?step$|^iteration$|^it$|^i$|^(batch_)?idx$|_(epoch|step)$", "zero"),
        (r"accum|micro|^(n|num)_(chunks|parts)$|epochs$|^steps$|(^|_)(n|num|max)_?(steps|iter\w*)$|^iter\w*s$", "two"),
        (r"clip|max_norm|limit", "limit"),
        (r"^(lr|learning_rate|rate)$", "rate"),
        (r"interval$|_freq$|^every$|_every$", "two"),
        (r"^verbose$|^debug$|^use_amp$|^amp$", "no"),
        (r"world_?size|num_(gpus|procs|replicas)", "one"),
        (r"rank$", "zero"),
    )
)
_TARGETS: Final = re.compile(r"target|label|truth|expected|^y(_|$)", re.IGNORECASE)
_ANNOTATED: Final = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"Optimizer$", "optimizer"),
        (r"Scheduler$", "scheduler"),
        (r"GradScaler$", "scaler"),
        (r"DataLoader$", "batches"),
        (r"^Module$", "model"),
        (r"^device$", "device"),
        (r"^Callable$", "criterion"),
        (r"^int$", "two"),
        (r"^bool$", "no"),
        (r"^float$", "limit"),
    )
)
Wanted = inspect.Parameter
_ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FIXED: Final = {
    "scaler": 'torch.amp.GradScaler("cpu")',
    "device": 'torch.device("cpu")',
    "zero": "0",
    "one": "1",
    "two": "2",
    "no": "False",
    "limit": "1.0",
    "rate": "0.1",
    "scheduler": "torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
}


@dataclass(frozen=True, slots=True)
class _Data:
    """Expressions for one batch, its parts, and a loss that takes it."""

    x: str
    y: str
    criterion: str
    batch: str


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
        needed = _needed(resolved.value) or []
        if len(needed) == 1 and _may_be_tensor(needed[0]):
            return Recipe("synthesised", "C", None, (_TENSOR,), _SAID_TENSOR, NO_OUTPUT, "names")
        if not needed or {_role(item) for item in needed} - {"model", "one", "zero"}:
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
        unknown = [item.name for item in _needed(resolved.value) or [] if _role(item) is None and item.name != "self"]
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
            error = recorder.run(built.call, *arguments.for_call())
    except Exception:
        return None
    if isinstance(error, TrialTimeoutError):
        return None
    acts = {event.act for event in recorder.events}
    if {"backward", "step"} <= acts:
        return "steps"
    return "raises" if any(event.error is not None for event in recorder.events) else None


# --- expressions ---------------------------------------------------------------------------------------------------


def _candidates(resolved: Resolved, declared: Declared | None) -> Iterator[Recipe]:
    needed = _needed(resolved.value)
    if declared is not None and needed is not None and len(declared.inputs) >= len(needed):
        yield Recipe("declared", "A", None, declared.inputs, declared.provenance, NO_OUTPUT, "declared")
        return
    owner = _owner(resolved)
    if needed is None:
        return
    is_method = bool(needed) and needed[0].name == "self"
    for model in _models(resolved, declared):
        for data in _batches(resolved, model, declared):
            inputs = _arguments(_Expressions(model, data), needed, owner if is_method else None)
            if inputs is not None:
                yield Recipe("synthesised", "C", None, tuple(inputs), SAID, NO_OUTPUT, "names")


def _arguments(expressions: _Expressions, needed: Sequence[Wanted], owner: type | None) -> list[str] | None:
    """`owner`: the class of a method, whose object is built of the same pieces."""
    if owner is None:
        return expressions.of(needed)
    wanted = _needed(owner)
    own = None if wanted is None else expressions.of(wanted)
    rest = expressions.of(needed[1:])
    return None if own is None or rest is None else [f"{owner.__qualname__}({', '.join(own)})", *rest]


def _needed(function: Any) -> list[Wanted] | None:
    """The parameters without a default; None where they can't be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return [item for item in parameters if item.default is item.empty and item.kind not in _ANY_NUMBER]


def _roles(wanted: Sequence[Wanted]) -> list[str | None]:
    """What each is for. One or two that have names of their own are the batch, as far as it isn't there yet."""
    found = [_role(item) for item in wanted]
    unknown = [place for place, role in enumerate(found) if role is None]
    if any(role in ("batch", "batches") for role in found):
        return found
    missing = [role for role in ("input", "target") if role not in found]
    if len(unknown) <= len(missing):
        for place, role in zip(unknown, missing[-len(unknown) :] if unknown else [], strict=True):
            found[place] = role
    return found


def _role(wanted: Wanted) -> str | None:
    """By its name; by its annotation where the name says nothing, or says that it is a batch."""
    annotation = _annotation(wanted)
    named = next((role for pattern, role in _ROLES if pattern.search(wanted.name)), None)
    if named == "batch" and annotation == "Tensor":
        return "input"
    return named or next((role for pattern, role in _ANNOTATED if pattern.search(annotation)), None)


def _annotation(wanted: Wanted) -> str:
    """Its last name: `Module` for `torch.nn.Module`, whether evaluated or not."""
    annotation: Any = wanted.annotation
    if annotation is wanted.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None)
    return text.rpartition(".")[2] if isinstance(text, str) and text.replace(".", "").isidentifier() else ""


def _may_be_tensor(wanted: Wanted) -> bool:
    return _role(wanted) in (None, "input", "target") and _annotation(wanted) in ("", "Tensor")


class _Expressions:
    """The arguments of one call, left to right: what a later one needs is named where it is made."""

    def __init__(self, model: str, data: _Data) -> None:
        self._model = model
        self._data = data
        self._named: set[str] = set()

    def of(self, wanted: Sequence[Wanted]) -> list[str] | None:
        """None if a parameter is of no known kind."""
        found = [self._one(role) for role in _roles(wanted)]
        if None in found:
            return None
        return [
            f"{item.name}={expression}" if item.kind is item.KEYWORD_ONLY else str(expression)
            for item, expression in zip(wanted, found, strict=True)
        ]

    def _one(self, role: str | None) -> str | None:
        data = self._data
        if role == "model":
            return self._net()
        if role == "optimizer":
            self._named.add("optimizer")
            return f"(optimizer := torch.optim.SGD({self._net()}.parameters(), lr=0.1))"
        if role == "scheduler" and "optimizer" not in self._named:
            return None
        given = {
            "criterion": data.criterion,
            "batches": f"[{data.batch} for _ in range(4)]",
            "batch": data.batch,
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
    defined = list(vars(resolved.module).items())
    factories = [
        f"{name}()"
        for name, value in defined
        if _FACTORY.search(name) and inspect.isfunction(value) and _needed(value) == []
    ]
    yield from factories[:_MOST_FACTORIES]
    classes = [f"{name}()" for name, value in defined if _is_model(value, resolved) and _needed(value) == []]
    yield from classes[:_MOST_FACTORIES]
    yield _PLAIN_MODEL


def _is_model(value: Any, resolved: Resolved) -> bool:
    """Whether it is a class of this module that may be a model: a loss isn't one."""
    if not isinstance(value, type) or value.__module__ != resolved.module.__name__:
        return False
    return issubclass(value, torch.nn.Module) and _OF_LOSSES.search(value.__name__) is None


def _batches(resolved: Resolved, model: str, declared: Declared | None) -> Iterator[_Data]:
    """Batches that the model takes, with targets of the kinds that losses want."""
    losses = ("torch.nn.CrossEntropyLoss()", "torch.nn.MSELoss()")
    if declared is not None and len(declared.inputs) == 2:
        x, y = declared.inputs
        yield from (_Data(x, y, loss, f"({x}, {y})") for loss in losses)
        return
    found = _input_for(resolved, model)
    if found is None:
        return
    x, size = found
    keys = _keys(resolved.value)
    targets = [(f"torch.randn{size}", losses[1]), (f"torch.rand{size}", "torch.nn.BCEWithLogitsLoss()")]
    if len(size) == 2 and size[1] > 1:
        targets.insert(0, (f"torch.randint(0, {size[1]}, ({size[0]},))", losses[0]))
    for y, loss in targets:
        yield _Data(x, y, loss, _by_keys(keys, x, y) if keys else f"({x}, {y})")
    yield _Data(x, x, losses[1], x)


def _input_for(resolved: Resolved, model: str) -> tuple[str, tuple[int, ...]] | None:
    """An input that a model takes, and the shape of what it gives for it."""
    try:
        with time_limit(_TRIAL_S), torch.no_grad():
            net = eval(model, names_of(resolved))
            x = _input_of(net)
            output = None if x is None else net(eval(x, {"torch": torch}))
    except Exception:  # submitted models may do anything
        return None
    if x is None or not isinstance(output, torch.Tensor) or not output.ndim:
        return None
    return x, tuple(output.shape)


def _keys(function: Any) -> list[str]:
    """The names by which a batch is asked for its parts, in the order of the code."""
    node = function_node(function)
    found: dict[str, None] = {}
    for part in ast.walk(node) if node is not None else ():
        if not isinstance(part, ast.Subscript) or not isinstance(part.value, ast.Name):
            continue
        is_batch = any(role == "batch" and pattern.search(part.value.id) for pattern, role in _ROLES)
        if is_batch and isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str):
            found.setdefault(part.slice.value)
    return list(found)


def _by_keys(keys: Sequence[str], x: str, y: str) -> str:
    """A batch with these names: what is called so, or comes last of several, is the target."""
    targets = [key for key in keys if _TARGETS.search(key)] or (list(keys[-1:]) if len(keys) > 1 else [])
    return "{" + ", ".join(f"{key!r}: {y if key in targets else x}" for key in keys) + "}"


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
