"""From a class or an exception to a file and a line of the submitted source."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

_TORCH: Final = str(Path(torch.__file__).parent) + "/"
_PROBE: Final = str(Path(__file__).parent.parent) + "/"


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is relative to the source root, `line` 1-based."""

    path: str
    line: int


def relative(filename: str, source_root: Path) -> str | None:
    """`filename` relative to the source root; None if it lies outside, or is torch's or the probe's own."""
    if filename.startswith((_TORCH, _PROBE, "<")):
        return None
    try:
        return str(Path(filename).resolve().relative_to(source_root.resolve()))
    except (ValueError, OSError):
        return None


def innermost(traceback: TracebackType | None, source_root: Path) -> Place | None:
    """The innermost submitted frame of a traceback."""
    place = None
    while traceback is not None:
        path = relative(traceback.tb_frame.f_code.co_filename, source_root)
        if path is not None:
            place = Place(path, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def calling_line(source_root: Path) -> Place | None:
    """The innermost submitted frame of the running stack."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith("<"):
            path = relative(filename, source_root)
            if path is not None:
                return Place(path, frame.f_lineno)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def backward_return(function: type, source_root: Path) -> Place | None:
    """The last `return` of the Function's backward, or its `def` if it returns nothing."""
    try:
        # Under `once_differentiable` and other decorators: getsourcelines looks through them, getsourcefile does not.
        backward = inspect.unwrap(function.backward)  # type: ignore[attr-defined]
        lines, start = inspect.getsourcelines(backward)
        filename = inspect.getsourcefile(backward)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, AttributeError):
        return None
    path = relative(filename or "", source_root)
    if path is None:
        return None
    returns = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Return)]
    definition = next((node.lineno for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)), 1)
    return Place(path, start - 1 + (max(returns) if returns else definition))


def statement(function: type, called: str, source_root: Path) -> Place | None:
    """The first line in the Function's forward (or setup_context) that calls a method of this name."""
    for name in ("forward", "setup_context"):
        method = inspect.unwrap(getattr(function, name, None))  # type: ignore[arg-type]
        try:
            lines, start = inspect.getsourcelines(method)
            path = relative(inspect.getsourcefile(method) or "", source_root)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        found = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == called
        ]
        if path is not None and found:
            return Place(path, start - 1 + min(found))
    return None


def in_place_line(function: type, source_root: Path) -> Place | None:
    """The first line of the Function's backward that writes to a tensor: `x.mul_(…)`, `x *= …`, `x[i] = …`, `out=`."""
    for node, line, path in _nodes(getattr(function, "backward", None), source_root):
        if isinstance(node, ast.AugAssign):
            return Place(path, line)
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Subscript) for target in node.targets):
            return Place(path, line)
        if isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Attribute) and re.search(r"[a-z0-9]_$", node.func.attr))
            or any(keyword.arg == "out" for keyword in node.keywords)
        ):
            return Place(path, line)
    return None


def kept_line(function: type, source_root: Path) -> Place | None:
    """The first line of forward (or setup_context) that keeps something as an attribute of ctx which backward reads.

    Where there is none, the line that saves tensors.
    """
    read = {
        node.attr
        for node, _, _ in _nodes(getattr(function, "backward", None), source_root)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    for name in ("forward", "setup_context"):
        for node, line, path in _nodes(getattr(function, name, None), source_root):
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant | ast.Name):
                kept = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
                if any(attribute in read for attribute in kept):
                    return Place(path, line)
    for name in ("forward", "setup_context"):
        for node, line, path in _nodes(getattr(function, name, None), source_root):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Attribute) and target.attr in read for target in node.targets
            ):
                return Place(path, line)
    return statement(function, "save_for_backward", source_root)


def _nodes(method: Any, source_root: Path) -> list[tuple[ast.AST, int, str]]:
    """(node, its line in the file, the file), in the order of lines; empty where there is no submitted source."""
    try:
        unwrapped = inspect.unwrap(method)
        lines, start = inspect.getsourcelines(unwrapped)
        path = relative(inspect.getsourcefile(unwrapped) or "", source_root)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, AttributeError, ValueError):
        return []
    if path is None:
        return []
    found = [(node, start - 1 + node.lineno, path) for node in ast.walk(tree) if hasattr(node, "lineno")]
    return sorted(found, key=lambda item: item[1])


_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


class ForwardTraces:
    """While open, anomaly mode remembers where each node was made; `place()` tells where the failing one was."""

    def __init__(self, source_root: Path) -> None:
        self._root = source_root
        self._messages: list[str] = []

    def place(self) -> Place | None:
        for message in reversed(self._messages):
            if "Traceback of forward call" in message:
                frames = [(relative(name, self._root), int(line)) for name, line in _FRAME.findall(message)]
                own = [(path, line) for path, line in frames if path is not None]
                if own:
                    return Place(*own[-1])
        return None

    @contextmanager
    def open(self) -> Iterator[ForwardTraces]:
        with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly(check_nan=False):
            warnings.simplefilter("always")
            try:
                yield self
            finally:
                self._messages += [str(item.message) for item in caught]


_VERSIONS: Final = re.compile(r"is at version (\d+); expected version (\d+)")
# `[torch.DoubleTensor [2, 8, 1, 1]], which is output 0 of Sigmoid, is at version …`
_SHAPE: Final = re.compile(r"\[torch\.\w+(?:\.\w+)? \[([\d, ]*)\]\]")


class InPlaceWrites(torch.overrides.TorchFunctionMode):
    """Notes the line of every in-place write, with the version that the tensor then has."""

    def __init__(self, source_root: Path) -> None:
        super().__init__()
        self._root = source_root
        self._writes: dict[int, list[tuple[int, tuple[int, ...], Place]]] = {}
        self._alive: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        before = _version(target)
        result = func(*args, **(kwargs or {}))
        after = _version(target)
        if target is not None and before is not None and after is not None and after > before:
            place = calling_line(self._root)
            if place is not None:
                self._alive.append(target)  # keeps the storage, and with it its address, from being used again
                self._writes.setdefault(target.untyped_storage().data_ptr(), []).append(
                    (after, tuple(target.shape), place)
                )
        return result

    def line_of(self, tensor: torch.Tensor) -> Place | None:
        """The last write to the memory of this tensor."""
        writes = self._writes.get(tensor.untyped_storage().data_ptr())
        return writes[-1][2] if writes else None

    def blame(self, message: str) -> Place | None:
        """The write that made the version in an error message one too many, if it can only be one place."""
        match = _VERSIONS.search(message)
        if match is None:
            return None
        now, expected = int(match[1]), int(match[2])
        shape = _SHAPE.search(message)
        wanted = tuple(int(size) for size in shape[1].split(",") if size.strip()) if shape else None
        places = []
        for writes in self._writes.values():
            later = [place for version, _, place in writes if version > expected]
            if later and max(version for version, _, _ in writes) >= now:
                # A view has another shape than the tensor that was saved: it counts, but after those of its shape.
                places.append((wanted not in {shape for _, shape, _ in writes}, later[0]))
        return min(places, key=lambda item: item[0])[1] if places else None


def _version(tensor: torch.Tensor | None) -> int | None:
    if tensor is None or tensor.is_inference():
        return None
    return int(tensor._version)
