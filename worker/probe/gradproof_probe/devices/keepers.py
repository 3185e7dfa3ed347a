"""Who keeps a tensor that `.to()` does not move, and the line of the submitted source that put it there."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, relative

_DEPTH: Final = 4
_MOST: Final = 10_000
_ADDS: Final = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})
_MOVED: Final = frozenset({"_parameters", "_buffers", "_modules"})


@dataclass(frozen=True, slots=True)
class Keeper:
    """`name` as a reader of the source knows it: `self.scales[0]`, or `TABLE`. `given`: the caller's own tensor."""

    name: str
    place: Place | None
    given: bool = False


def keeper(tensor: torch.Tensor, instance: torch.nn.Module | None, source_root: Path) -> Keeper | None:
    """Who keeps `tensor`, or a tensor in whose memory it lies: an attribute of the module, or a name of a file."""
    memory = _memory(tensor)
    if instance is not None:
        for owner in instance.modules():
            for attribute, value in vars(owner).items():
                if attribute in _MOVED:
                    continue
                path = _path_to(memory, value)
                if path is not None:
                    return Keeper(f"self.{attribute}{path}", *_line_of_attribute(type(owner), attribute, source_root))
    for module in list(sys.modules.values()):
        file = relative(getattr(module, "__file__", None) or "", source_root)
        if file is None:
            continue
        for name, value in list(vars(module).items()):
            path = None if name.startswith("__") else _path_to(memory, value)
            if path is not None:
                line = _line_of_name(source_root / file, name)
                return Keeper(f"{name}{path}", None if line is None else Place(file, line))
    return None


def kept_tensors(instance: torch.nn.Module) -> dict[tuple[str, str, str], torch.Tensor]:
    """(module, attribute, path in it) -> tensor, for all that are neither parameters nor buffers."""
    found: dict[tuple[str, str, str], torch.Tensor] = {}
    for prefix, owner in instance.named_modules():
        for attribute, value in vars(owner).items():
            if attribute not in _MOVED:
                found |= {(prefix, attribute, path): item for path, item in _inside(value, "", 0)}
    return found


def _memory(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # sparse tensors have no storage, and share nothing
        return 0


def _path_to(memory: int, value: Any) -> str | None:
    return next((path for path, item in _inside(value, "", 0) if memory and _memory(item) == memory), None)


def _inside(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cpu":
            yield path, value
        return
    if depth > _DEPTH:
        return
    if isinstance(value, torch.nn.Module):
        for name, item in [*value.named_parameters(), *value.named_buffers()]:
            if item.device.type == "cpu":
                yield f"{path}.{name}", item
    elif isinstance(value, Mapping):
        for key, item in list(value.items())[:_MOST]:
            yield from _inside(item, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(list(value)[:_MOST]):
            yield from _inside(item, f"{path}[{number}]", depth + 1)


def _line_of_attribute(kind: type, attribute: str, source_root: Path) -> tuple[Place | None, bool]:
    """Where a value is put there (`self.x = []` only where nothing is added), and whether it is an argument."""
    for ancestor in kind.__mro__:
        try:
            file = inspect.getsourcefile(ancestor)
        except (TypeError, OSError):
            continue
        path = relative(file or "", source_root)
        tree = None if path is None else _parsed(source_root / path)
        if path is None or tree is None:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == ancestor.__name__:
                puts = _puts(node, attribute)
                if puts:
                    line, given = min(puts)
                    return Place(path, line), given
    return None, False


def _puts(body: ast.ClassDef, attribute: str) -> list[tuple[int, bool]]:
    """(line, whether the value is an argument of the method), of all places that give the attribute a value."""
    empty: list[tuple[int, bool]] = []
    puts: list[tuple[int, bool]] = []
    for method in [item for item in ast.walk(body) if isinstance(item, ast.FunctionDef)]:
        arguments = {item.arg for item in [*method.args.args, *method.args.kwonlyargs, *method.args.posonlyargs]}
        for node in ast.walk(method):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(_is_attribute(item, attribute) for target in targets for item in _parts(target)):
                    (empty if _is_empty(node.value) else puts).append((node.lineno, _is_given(node.value, arguments)))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _ADDS
                and _is_attribute(node.func.value, attribute)
            ):
                puts.append((node.lineno, False))
    return puts or empty


def _is_given(value: ast.expr | None, arguments: set[str]) -> bool:
    """An argument of the method, or a list of such: a teacher that is hidden from `parameters()` on purpose."""
    if isinstance(value, ast.List | ast.Tuple):
        return bool(value.elts) and all(_is_given(item, arguments) for item in value.elts)
    return isinstance(value, ast.Name) and value.id in arguments


def _parts(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [part for item in target.elts for part in _parts(item)]
    return [target.value] if isinstance(target, ast.Subscript) else [target]


def _is_attribute(node: ast.expr, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.value, ast.Name)


def _is_empty(value: ast.expr | None) -> bool:
    return value is None or (
        (isinstance(value, ast.List | ast.Tuple | ast.Set) and not value.elts)
        or (isinstance(value, ast.Dict) and not value.keys)
        or (isinstance(value, ast.Call) and not value.args and not value.keywords)
    )


def _line_of_name(file: Path, name: str) -> int | None:
    tree = _parsed(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node.lineno
    return None


@cache
def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def same_function(source_root: Path, one: Place, other: Place) -> bool:
    """Whether two lines lie in the same function of the same file."""
    return one.path == other.path and _function_at(source_root, one) == _function_at(source_root, other)


def _function_at(source_root: Path, place: Place) -> int | None:
    """The first line of the innermost function around a line."""
    tree = _parsed(source_root / place.path)
    around = [
        node.lineno
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    return max(around, default=None)


def names_a_device(source_root: Path, place: Place) -> bool:
    """Whether a device stands literally in a call on this line: `"cuda"`, `torch.device("cpu")`, `.cuda(0)`."""
    tree = _parsed(source_root / place.path)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Call) or not node.lineno <= place.line <= (node.end_lineno or node.lineno):
            continue
        written = all(isinstance(value, ast.Constant) for value in node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("cpu", "cuda") and written:
            return True
        asked = [item.value for item in node.keywords if item.arg == "device"]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            asked += node.args[:1]
        if any(_is_literal_device(value) for value in asked):
            return True
    return False


def _is_literal_device(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "device":
        return bool(value.args) and isinstance(value.args[0], ast.Constant)
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
