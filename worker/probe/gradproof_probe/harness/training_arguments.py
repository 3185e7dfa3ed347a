"""What the parameters of a function that trains are for, and expressions for them: model, optimizer, batch, settings.

Told by names and annotations alone, and by what the code asks a batch or its settings for. This module must not run
anything.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradproof_probe.harness.sources import function_node

_ROLES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), role)
    for pattern, role in (
        (r"optim|(^|_)opt$", "optimizer"),
        (r"sched", "scheduler"),
        (r"scaler", "scaler"),
        (r"^(args|arguments|cfg|conf|config|opts|options|hparams|hps|flags|settings)$", "settings"),
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
        (r"^(params|parameters|model_params)$", "parameters"),
        (r"world_?size|n_?(procs|gpus?|replicas|ranks)$|num_(procs|processes|gpus?|replicas|ranks)$", "one"),
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
class Data:
    """Expressions for one batch, its parts, and a loss that takes it."""

    x: str
    y: str
    criterion: str
    batch: str


def needed_by(function: Any) -> list[Wanted] | None:
    """The parameters without a default; None where they can't be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return [item for item in parameters if item.default is item.empty and item.kind not in _ANY_NUMBER]


def _roles(wanted: Sequence[Wanted]) -> list[str | None]:
    """What each is for. One or two that have names of their own are the batch, as far as it isn't there yet."""
    found = [role_of(item) for item in wanted]
    if "target" in found:
        found = ["input" if item.name == "data" else role for item, role in zip(wanted, found, strict=True)]
    unknown = [place for place, role in enumerate(found) if role is None]
    if any(role in ("batch", "batches") for role in found):
        return found
    missing = [role for role in ("input", "target") if role not in found]
    if len(unknown) <= len(missing):
        for place, role in zip(unknown, missing[-len(unknown) :] if unknown else [], strict=True):
            found[place] = role
    return found


def settings_for(function: Any, names: Sequence[str]) -> str:
    """An object with the attributes that the code of a function asks its settings for: switches are off."""
    node = function_node(function)
    parts = list(ast.walk(node)) if node is not None and names else []
    asked = [
        part
        for part in parts
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in names
    ]
    tests = [part.test for part in parts if isinstance(part, ast.If | ast.IfExp | ast.While)]
    switches = {item.attr for test in tests for item in ast.walk(test) if item in asked and _is_switch(item, test)}
    values = {
        item.attr: "False" if item.attr in switches else _FIXED.get(_named(item.attr) or "", "1.0") for item in asked
    }
    values = {name: value if value.replace(".", "").isalnum() else "1.0" for name, value in values.items()}
    return f"__import__('types').SimpleNamespace({', '.join(f'{name}={value}' for name, value in values.items())})"


def _is_switch(item: ast.AST, test: ast.expr) -> bool:
    """Whether a condition asks whether something is on, and not how large it is."""
    return not any(item in ast.walk(part) for part in ast.walk(test) if isinstance(part, ast.Compare | ast.BinOp))


def role_of(wanted: Wanted) -> str | None:
    """By its name; by its annotation where the name says nothing, or says that it is a batch."""
    annotation = _annotation(wanted)
    named = _named(wanted.name)
    if named == "batch" and annotation == "Tensor":
        return "input"
    return named or next((role for pattern, role in _ANNOTATED if pattern.search(annotation)), None)


def _named(name: str) -> str | None:
    return next((role for pattern, role in _ROLES if pattern.search(name)), None)


def _annotation(wanted: Wanted) -> str:
    """Its last name: `Module` for `torch.nn.Module`, whether evaluated or not."""
    annotation: Any = wanted.annotation
    if annotation is wanted.empty:
        return ""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None)
    return text.rpartition(".")[2] if isinstance(text, str) and text.replace(".", "").isidentifier() else ""


def may_be_tensor(wanted: Wanted) -> bool:
    return role_of(wanted) in (None, "input", "target") and _annotation(wanted) in ("", "Tensor")


class Expressions:
    """The arguments of one call, left to right: what a later one needs is named where it is made."""

    def __init__(self, model: str, data: Data, settings: str) -> None:
        self._model = model
        self._data = data
        self._settings = settings
        self._named: set[str] = set()
        self._has_model = False

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
            # A second one is another: a teacher, a target network.
            expression = self._model if self._has_model else self._net()
            self._has_model = True
            return expression
        if role == "optimizer":
            self._named.add("optimizer")
            return f"(optimizer := torch.optim.SGD({self._net()}.parameters(), lr=0.1))"
        if role == "parameters":
            return f"list({self._net()}.parameters())"
        if role == "scheduler" and "optimizer" not in self._named:
            return None
        given = {
            "criterion": data.criterion,
            "batches": f"[{data.batch} for _ in range(4)]",
            "batch": data.batch,
            "input": data.x,
            "target": data.y,
            "settings": self._settings,
        }
        return given.get(role or "") or _FIXED.get(role or "")

    def _net(self) -> str:
        if "net" in self._named:
            return "net"
        self._named.add("net")
        return f"(net := {self._model})"


def keys_of(function: Any) -> list[str]:
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


def batch_of(keys: Sequence[str], x: str, y: str) -> str:
    """A batch with these names: what is called so, or comes last of several, is the target."""
    targets = [key for key in keys if _TARGETS.search(key)] or (list(keys[-1:]) if len(keys) > 1 else [])
    return "{" + ", ".join(f"{key!r}: {y if key in targets else x}" for key in keys) + "}"
