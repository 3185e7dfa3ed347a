"""What a module keeps beside its parameters and buffers: attributes, with all tensors and numbers inside them.

torch neither saves, moves nor trains these. This module only reads and copies; it must not judge.
"""

from __future__ import annotations

import ast
import collections
import copy
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.suspicions.bench import same
from gradproof_probe.training.watched_calls import memory as memory_of
from gradproof_probe.trees import transform

_TORCH_OWN: Final = frozenset(vars(torch.nn.Module()))
_DEPTH: Final = 4
_MOST_LEAVES: Final = 2000
# What carries a sequence or a stream from call to call, by its name: it starts anew by design.
CARRIED: Final = re.compile(
    r"state|hidden|memory|(^|_)mems?(_|$)|cache|prev|(^|_)last|history|queue|buffer|bank|(^|_)kv|past|carry|potential"
    r"|voltage|membrane|spike|^[hcvu]_?[t0n]?$|pos(ition)?$|offset|cursor|ptr|pointer|trace|context|recent|record",
    re.IGNORECASE,
)
# What is a running estimate, by its name.
STATISTIC: Final = re.compile(
    r"running|moving|(^|_)ema(_|$)|(^|_)av(g|erage)|(^|_)mean|(^|_)mu(_|$)|(^|_)var(iance)?(_|$)|(^|_)std|sigma|momentum"
    r"|centre|center|cov(ariance)?(_|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Attribute:
    """`owner` is the submodule's name, empty for the module itself."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


Leaf: TypeAlias = torch.Tensor | bool | int | float | complex | str | None
Leaves: TypeAlias = dict[str, Leaf]


def plain_attributes(module: torch.nn.Module) -> Iterator[tuple[Attribute, Any]]:
    for owner, item in module.named_modules():
        for name, value in list(vars(item).items()):
            if name not in _TORCH_OWN:
                yield Attribute(owner, name), value


def leaves(module: torch.nn.Module, *, cloned: bool = True) -> dict[Attribute, Leaves]:
    """Per attribute, what it holds that is neither registered itself nor shares memory with what is."""
    registered = {id(item) for item in module.modules()}
    memory = {memory_of(tensor) for tensor in [*module.parameters(), *module.buffers()]}
    found: dict[Attribute, Leaves] = {}
    for attribute, value in plain_attributes(module):
        own: Leaves = {}
        _walk(value, "", 0, own, registered, memory)
        if own:
            if cloned:
                own = {path: v.detach().clone() if isinstance(v, torch.Tensor) else v for path, v in own.items()}
            found[attribute] = own
    return found


def leaves_in(value: Any) -> Leaves:
    """What one value holds, copied."""
    own: Leaves = {}
    _walk(value, "", 0, own, set(), set())
    return {path: v.detach().clone() if isinstance(v, torch.Tensor) else v for path, v in own.items()}


def changed(before: dict[Attribute, Leaves], after: dict[Attribute, Leaves]) -> list[Attribute]:
    """Attributes that hold something else, in the order of `after`."""
    names = [*after, *(attribute for attribute in before if attribute not in after)]
    return [attribute for attribute in names if not equal(before.get(attribute, {}), after.get(attribute, {}))]


def transplant(source: torch.nn.Module, target: torch.nn.Module, attribute: Attribute) -> bool:
    """A copy of an attribute (or of a buffer) of one instance for another; False if it can't be copied."""
    try:
        giver, taker = source.get_submodule(attribute.owner), target.get_submodule(attribute.owner)
        if attribute.name in giver._buffers:
            buffer = giver._buffers[attribute.name]
            taker._buffers[attribute.name] = None if buffer is None else buffer.detach().clone()
        elif attribute.name in vars(giver):
            vars(taker)[attribute.name] = _copied(vars(giver)[attribute.name])
        else:
            vars(taker).pop(attribute.name, None)
    except Exception:  # submitted objects may refuse to be copied in any way
        return False
    return True


def assigned(module: torch.nn.Module, name: str, source_root: Path) -> Place | None:
    """Where the constructor sets an attribute (the last time), else where another method does."""
    found = [
        (method != "__init__", -line if method == "__init__" else line, Place(path, line))
        for method, line, path, kind in _mentions(type(module), name, source_root)
        if kind == "set"
    ]
    return min(found, key=lambda item: item[:2])[2] if found else None


def written(module: torch.nn.Module, name: str, source_root: Path) -> Place | None:
    """Where a method that is no constructor writes to an attribute: `forward` first."""
    found = [
        (method != "forward", line, Place(path, line))
        for method, line, path, _ in _mentions(type(module), name, source_root)
        if not re.search(r"__init__|reset|init|load|clear|setup", method)
    ]
    return min(found, key=lambda item: item[:2])[2] if found else None


def is_single(value: Leaf) -> bool:
    """A number, a flag, or a tensor of one element."""
    return isinstance(value, bool | int | float | complex) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _walk(value: Any, path: str, depth: int, found: Leaves, registered: set[int], memory: set[int]) -> None:
    if depth > _DEPTH or len(found) >= _MOST_LEAVES or id(value) in registered:
        return
    if isinstance(value, torch.Tensor):
        if memory_of(value) not in memory:
            found[path] = value
    elif isinstance(value, bool | int | float | complex | str) or value is None:
        found[path] = value
    elif isinstance(value, torch.nn.Module):
        tensors = [*value.named_parameters(), *value.named_buffers()]
        found.update({f"{path}.{name}": tensor for name, tensor in tensors if memory_of(tensor) not in memory})
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            _walk(item, f"{path}[{key!r:.40}]", depth + 1, found, registered, memory)
    elif isinstance(value, list | tuple | collections.deque):
        found[f"len({path})"] = len(value)
        for index, item in enumerate(list(value)):
            _walk(item, f"{path}[{index}]", depth + 1, found, registered, memory)
    elif type(value).__module__ == "numpy":
        if getattr(getattr(value, "dtype", None), "kind", "") in tuple("biufc"):
            found[path] = torch.as_tensor(value)
    elif not callable(value) and isinstance(getattr(value, "__dict__", None), dict):
        for name, item in list(vars(value).items()):
            _walk(item, f"{path}.{name}", depth + 1, found, registered, memory)


def equal(first: Leaves, second: Leaves) -> bool:
    return first.keys() == second.keys() and all(_same(first[path], second[path]) for path in first)


def _same(a: Leaf, b: Leaf) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        try:
            return same(a, b)
        except RuntimeError:  # what torch can't compare (sparse with strided) speaks against nobody
            return True
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or type(a) is not type(b):
        return False
    return a == b or str(a) == str(b)  # NaN is the same as NaN


def _copied(value: Any) -> Any:
    # A tensor with a graph behind it can't be deep-copied, and its graph is not wanted.
    return copy.deepcopy(transform(value, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)))


def _mentions(cls: type, name: str, source_root: Path) -> Iterator[tuple[str, int, str, str]]:
    """(method, line, file, how) of each write to `self.name` in the submitted classes of an object."""
    for base in cls.__mro__:
        if base.__module__.startswith("torch."):
            continue
        try:
            lines, start = inspect.getsourcelines(base)
            path = relative(inspect.getsourcefile(base) or "", source_root)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        if path is None:
            continue
        for method in ast.walk(tree):
            if isinstance(method, ast.FunctionDef):
                for node in ast.walk(method):
                    kind = _writes(node, name)
                    if kind and isinstance(node, ast.stmt | ast.expr):
                        yield method.name, start - 1 + node.lineno, path, kind


def _writes(node: ast.AST, name: str) -> str:
    """`set` for a new value under the name, `written` for a change of what is there, empty for neither."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if any(_is_attribute(part, name) for part in parts):
            return "set"
        written_to = [part.value for part in parts if isinstance(part, ast.Subscript)]
        return "written" if any(_is_attribute(part, name) for part in written_to) else ""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    if node.func.attr in ("register_buffer", "register_parameter", "__setattr__"):
        return "set" if name in [item.value for item in node.args if isinstance(item, ast.Constant)] else ""
    receiver: ast.expr = node.func.value
    while isinstance(receiver, ast.Subscript) or (isinstance(receiver, ast.Attribute) and receiver.attr == "data"):
        receiver = receiver.value
    in_place = re.fullmatch(r"[a-z]\w*[a-z0-9]_|append|extend|insert|update|add|setdefault", node.func.attr)
    return "written" if in_place and _is_attribute(receiver, name) else ""


def _is_attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name
