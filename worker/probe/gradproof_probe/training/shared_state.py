"""What a function keeps outside of its calls: the names of its file, its default arguments, attributes of its own.

It can be looked at, compared and put back as it was, so that it is known what a result owes to earlier calls. This
module must not judge.
"""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.training.plain_state import Leaves, equal, leaves_in
from gradproof_probe.training.watched_calls import memory
from gradproof_probe.trees import tensors

_CONTAINERS: Final = (list, dict, set, collections.deque)
# A file that holds more than this in tensors of its own holds data, which is not copied.
_MOST_ELEMENTS: Final = 2**24


@dataclass(frozen=True, slots=True)
class Kept:
    """`kind`: a name of the file, a default argument, or an attribute of the function or class itself."""

    kind: str
    name: str


class SharedState:
    """Remembers at construction. `function` is a function or a class of autograd's; `module` the file's."""

    def __init__(self, function: Any, module: types.ModuleType) -> None:
        self._function = inspect.unwrap(function)
        self._names = vars(module)
        seen = self._look()
        self._held = {kept: value for kept, (value, _) in seen.items()}
        self._before = {kept: held for kept, (_, held) in seen.items()}
        self._contents = {kept: value.copy() for kept, value in self._held.items() if isinstance(value, _CONTAINERS)}

    def changed(self) -> list[Kept]:
        """What holds something else than it did."""
        now = {kept: held for kept, (_, held) in self._look().items()}
        return [
            kept
            for kept in dict.fromkeys([*self._before, *now])
            if not equal(self._before.get(kept, {}), now.get(kept, {}))
        ]

    def keeps(self, where: int) -> Kept | None:
        """Who holds a tensor in this memory."""
        for kept, value in self._held.items():
            if any(memory(tensor) == where for _, tensor in tensors(value)):
                return kept
        return None

    def put_back(self) -> bool:
        """Everything as it was; False where something can't be."""
        for kept, (value, _) in self._look().items():
            if kept not in self._held and kept.kind == "name":
                del self._names[kept.name]
            elif kept.kind == "name" and self._held[kept] is not value:
                self._names[kept.name] = self._held[kept]
        for kept, content in self._contents.items():
            _refill(self._held[kept], content)
        for kept, value in self._held.items():
            _rewrite(value, self._before[kept])
        for value in self._names.values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
        return not self.changed()

    def _look(self) -> dict[Kept, tuple[Any, Leaves]]:
        """Every value with what it holds."""
        found: dict[Kept, tuple[Any, Leaves]] = {}
        elements = 0
        for kept, value in self._all():
            try:
                elements += sum(tensor.numel() for _, tensor in tensors(value))
                if _is_data(value) and elements <= _MOST_ELEMENTS:
                    found[kept] = value, leaves_in(value)
            except Exception:  # noqa: S112 - what stands for a module that is missing raises whatever it is asked
                continue
        return found

    def _all(self) -> Iterator[tuple[Kept, Any]]:
        for name, value in list(self._names.items()):
            if not name.startswith("__"):
                yield Kept("name", name), value
        for name, value in _defaults(self._function):
            yield Kept("default", name), value
        for name, value in list(vars(self._function).items()):
            if not name.startswith("__"):
                yield Kept("attribute", name), value


def written_at(kept: Kept, module: types.ModuleType, source_root: Path) -> Place | None:
    """The first line inside a function of the file that gives what is kept another value, or adds to it."""
    file = getattr(module, "__file__", None)
    path = relative(file or "", source_root)
    try:
        tree = ast.parse(Path(str(file)).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    if path is None:
        return None
    lines = [
        node.lineno
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.stmt | ast.expr) and _gives(node, kept.name)
    ]
    return Place(path, min(lines)) if lines else None


def _gives(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_named(target, name) for target in targets)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _named(node.func.value, name)
        and (node.func.attr in ("append", "extend", "insert", "update", "add", "setdefault", "appendleft"))
    )


def _named(node: ast.expr, name: str) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    code = getattr(function, "__code__", None)
    if code is None:
        return
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _is_data(value: Any) -> bool:
    return not (isinstance(value, types.ModuleType | type | torch.Generator) or callable(value)) or isinstance(
        value, torch.Tensor
    )


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


def _rewrite(value: Any, before: Leaves) -> None:
    """The tensors of a value as they were; what can't be written to is left."""
    for path, tensor in tensors(value):
        was = before.get(path)
        if isinstance(was, torch.Tensor) and was.shape == tensor.shape and not torch.equal(was, tensor.detach()):
            with torch.no_grad():
                tensor.copy_(was)
