"""Conditions of the submitted code that rejected a call, solved for the arguments: ranks, sizes, kinds, values.

`raised_conditions` finds the condition and `conditions` says which names would have to change; here those names are
traced back to arguments: the parameter itself, the same live object in a helper, or an axis of the size that it is.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch

from gradproof_probe.harness.arguments import Argument, Arguments, with_leaves
from gradproof_probe.harness.axes import LARGEST
from gradproof_probe.harness.conditions import Change, UnknownValueError, evaluate, solve
from gradproof_probe.harness.guarded_values import guarded_values
from gradproof_probe.harness.raised_conditions import Guard, guards
from gradproof_probe.harness.repair import of_rank
from gradproof_probe.harness.scene import Scene
from gradproof_probe.harness.structured import function_of_arity

MOST: Final = 12
_KINDS: Final[dict[Any, str]] = {
    torch.bool: "bool",
    torch.int64: "int",
    torch.int32: "int",
    torch.float32: "float",
    torch.float64: "float",
    torch.complex64: "complex",
    torch.complex128: "complex",
}
_SIMPLE: Final = (int, float, str, bool, tuple, list, type(None))

Spare = Callable[[str], Argument | None]


def guard_changes(scene: Scene, spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """(changed arguments, the condition). `spare` makes an argument for a parameter that isn't given yet."""
    offered = 0
    for guard in guards(scene.error):
        for answer in solve(guard.condition, guard.names):
            changed: Arguments | None = scene.arguments
            for change in answer:
                changed = _apply(scene, changed, change, guard, spare) if changed is not None else None
            if changed is not None and changed != scene.arguments:
                yield changed, f"so that {guard.text[:120]} holds"
                offered += 1
                if offered >= MOST:
                    return
        for index, leaf in guarded_values(scene, guard):
            yield with_leaves(scene.arguments, _put(scene.leaves, index, leaf)), f"so that {guard.text[:120]} holds"


def _apply(scene: Scene, arguments: Arguments, change: Change, guard: Guard, spare: Spare) -> Arguments | None:
    root = change.root
    if root is None:
        return None
    current = Scene(scene.error, arguments, scene.args, scene.kwargs)
    index = _leaf(current, change, guard)
    if index is not None:
        leaf = _changed(current.leaves[index], change, current.usual_shape)
        return with_leaves(arguments, _put(current.leaves, index, leaf)) if leaf is not None else None
    if change.relation in ("given", "instance", "attribute") and guard.names.get(root) is None:
        extra = spare(root)
        return (*arguments, extra) if extra is not None and _is_new(arguments, root) else None
    return _counted(current, change, guard) or _by_size(current, change, guard)


def _counted(scene: Scene, change: Change, guard: Guard) -> Arguments | None:
    """`len(args) == 4` of a function that takes any number: more like the last one, or fewer."""
    if change.relation != "equals" or not change.text.startswith("len(") or type(change.value) is not int:
        return None
    try:
        gathered = evaluate(_owner(change.subject), guard.names)
    except UnknownValueError:
        return None
    positional = [argument for argument in scene.arguments if not argument.keyword]
    if type(gathered) is not tuple or not gathered or len(gathered) > len(positional):
        return None
    given = list(scene.args)
    if any(one is not other for one, other in zip(gathered, given[len(given) - len(gathered) :], strict=True)):
        return None
    wanted = len(positional) - len(gathered) + change.value
    if not 0 < wanted <= MOST:
        return None
    more = tuple(
        replace(positional[-1], name=f"{positional[-1].name}{place}") for place in range(len(positional), wanted)
    )
    keywords = tuple(argument for argument in scene.arguments if argument.keyword)
    return (*positional[:wanted], *more, *keywords)


def _is_new(arguments: Arguments, name: str) -> bool:
    return all(argument.name != name for argument in arguments)


def _put(listed: Arguments, index: int, leaf: Argument) -> Arguments:
    return (*listed[:index], leaf, *listed[index + 1 :])


def _owner(subject: ast.expr) -> ast.expr:
    """`x` of `x.shape[1]`, `batch['image']` of `batch['image'].ndim`, `x` of `len(x)`."""
    if isinstance(subject, ast.Call) and subject.args:
        return subject.args[0]
    node = subject
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "ndim", "dtype"):
            return node.value
        node = node.value
    return subject


def _leaf(scene: Scene, change: Change, guard: Guard) -> int | None:
    try:
        value = evaluate(_owner(change.subject), guard.names)
    except UnknownValueError:
        value = None
    index = scene.leaf_of(value)
    if index is None and scene.frames and guard.code is scene.frames[0].frame.f_code:
        index = scene.leaf_named(change.root or "")
    if index is None and isinstance(value, torch.Tensor):
        # Computed of an argument without another shape: the only one that is like it.
        similar = scene.similar(value)
        index = similar[0] if similar else None
    return index


def _changed(leaf: Argument, change: Change, usual: tuple[int, ...]) -> Argument | None:
    if change.relation == "equals":
        return _equal(leaf, change.subject, change.value)
    if change.relation == "callable":
        return replace(leaf, kind="literal", text=function_of_arity(1))
    if change.relation == "given":
        return replace(leaf, kind="float", shape=usual) if leaf.kind == "literal" else None
    if change.relation == "attribute":
        return of_attribute(leaf, str(change.value), usual)
    return _of_class(leaf, change.value, usual)


def of_attribute(leaf: Argument, name: str, usual: tuple[int, ...]) -> Argument | None:
    """What has an attribute of this name: a tensor, or an object with it."""
    if hasattr(torch.Tensor, name):
        return replace(leaf, kind="float", shape=leaf.shape or usual) if not leaf.is_tensor else None
    inner = Argument(name, shape=leaf.shape if leaf.is_tensor and leaf.shape else usual)
    return replace(leaf, kind="object", text="", items=(inner,))


def _of_class(leaf: Argument, classes: tuple[type, ...], usual: tuple[int, ...]) -> Argument | None:
    if torch.Tensor in classes:
        return replace(leaf, kind="float", shape=leaf.shape or usual) if not leaf.is_tensor else None
    part = replace(leaf, keyword=False) if leaf.is_tensor else Argument(leaf.name, shape=usual)
    texts: dict[type, str] = {bool: "True", int: "2", float: "0.7", str: "'mean'", complex: "0.5 + 0.5j"}
    for kind in classes:
        if kind in texts:
            return replace(leaf, kind="literal", text=texts[kind], items=())
        if kind in (list, tuple):
            items = (replace(part, name=f"{leaf.name}[0]"), replace(part, name=f"{leaf.name}[1]"))
            return replace(leaf, kind="list" if kind is list else "tuple", items=items)
        if kind is dict:
            return replace(leaf, kind="dict", items=(replace(part, name="a"),))
    return None


def _equal(leaf: Argument, subject: ast.expr, value: Any) -> Argument | None:
    text = ast.unparse(subject)
    owner = ast.unparse(_owner(subject))
    rest = text[len(owner) :] if text.startswith(owner) else text
    if text.startswith("len(") and isinstance(value, int):
        return _axis(leaf, 0, value)
    if rest == ".ndim" and isinstance(value, int):
        return leaf.with_shape(of_rank(leaf.shape, value)) if leaf.is_tensor and 0 <= value <= 6 else None
    if rest == ".dtype":
        kind = _KINDS.get(value)
        return replace(leaf, kind=kind) if kind is not None and leaf.is_tensor else None  # type: ignore[arg-type]
    if rest.startswith(".shape"):
        return _shape(leaf, subject, value)
    if rest:
        return None
    if isinstance(value, _SIMPLE):
        return replace(leaf, kind="literal", text=repr(value), items=(), guessed=True)
    member = repr(value)
    return replace(leaf, kind="literal", text=member) if member.startswith("torch.") else None


def _shape(leaf: Argument, subject: ast.expr, value: Any) -> Argument | None:
    if not leaf.is_tensor:
        return None
    if isinstance(subject, ast.Subscript):
        try:
            place = ast.literal_eval(subject.slice)
        except ValueError:
            place = _slice_start(subject.slice)
            sizes = [size for size in value if isinstance(size, int)] if isinstance(value, tuple | list) else []
            if place is None or place >= 0 or len(sizes) != -place or len(leaf.shape) < len(sizes):
                return None
            return leaf.with_shape((*leaf.shape[: len(leaf.shape) - len(sizes)], *sizes))
        return _axis(leaf, place, value) if isinstance(place, int) and isinstance(value, int) else None
    if isinstance(value, tuple | list) and all(isinstance(size, int) and 0 < size <= LARGEST for size in value):
        return leaf.with_shape(tuple(value))
    return None


def _slice_start(node: ast.expr) -> int | None:
    if not isinstance(node, ast.Slice) or node.lower is None or node.upper is not None:
        return None
    try:
        start = ast.literal_eval(node.lower)
    except ValueError:
        return None
    return start if isinstance(start, int) else None


def _axis(leaf: Argument, place: int, size: int) -> Argument | None:
    rank = len(leaf.shape)
    if leaf.kind in ("list", "tuple") and leaf.items and 0 < size <= 16:
        return replace(leaf, items=tuple(leaf.items[index % len(leaf.items)] for index in range(size)))
    if not leaf.is_tensor or not -rank <= place < rank or not 0 < size <= LARGEST:
        return None
    shape = list(leaf.shape)
    shape[place] = size
    return leaf.with_shape(tuple(shape))


def _by_size(scene: Scene, change: Change, guard: Guard) -> Arguments | None:
    """A local integer that is the size of an axis: that axis, where one argument only has it."""
    if change.relation != "equals" or type(change.value) is not int or not 0 < change.value <= LARGEST:
        return None
    try:
        before = evaluate(change.subject, guard.names)
    except UnknownValueError:
        return None
    if type(before) is not int or before == change.value:
        return None
    changed = [
        leaf.with_shape(tuple(change.value if size == before else size for size in leaf.shape))
        if leaf.is_tensor and before in leaf.shape
        else leaf
        for leaf in scene.leaves
    ]
    return with_leaves(scene.arguments, changed) if tuple(changed) != scene.leaves else None
