"""Changes to arguments that need to know where a call failed: a missing argument, another kind of value, a structure.

The argument is the one that the failing expression speaks of (`scene`); what it should be is told by what is done to
it there: an attribute, a key, an unpacking, a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from gradproof_probe.harness.arguments import Argument, Arguments, with_leaves
from gradproof_probe.harness.guards import of_attribute
from gradproof_probe.harness.names import INTEGER_INPUT
from gradproof_probe.harness.repair import repairs
from gradproof_probe.harness.scene import Scene
from gradproof_probe.harness.structured import function_of_arity

Spare = Callable[[str], Argument | None]
# Values that have what neither a tensor nor a plain object has.
# An object whose attributes are its keys: what graph libraries hand to their models.
BY_BOTH: Final = (
    "type('Both', (dict,), {'__getattr__': lambda self, name: "
    "self[name] if name in self else object.__getattribute__(self, name)})"
)
_ROWS: Final = 128
_TEXTS: Final = {"is_integer": "2.0", "lower": "'mean'", "split": "'a b'", "append": "[]"}


def frame_changes(scene: Scene, spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """(changed arguments, why), the likeliest first; then what the message alone suggests, suspects before others."""
    message = f"{type(scene.error).__name__}: {scene.error}"[:4000]
    for rule in (
        _missing,
        _none_given,
        _attribute,
        _keyed,
        _searched,
        _ordered,
        _called,
        _spread,
        _unpacked,
        *_INDICES,
    ):
        yield from rule(message, scene, spare)
    listed = scene.leaves
    order = {index: place for place, index in enumerate(scene.suspects)}
    suggested: list[tuple[int, int, Arguments, str]] = []
    for changed, why in repairs(message, listed):
        if len(changed) != len(listed):
            continue
        touched = [order.get(index, len(order)) for index, leaf in enumerate(changed) if leaf != listed[index]]
        suggested.append((min(touched, default=len(order)), len(suggested), changed, why))
        if len(suggested) >= 48:
            break
    for _, _, changed, why in sorted(suggested, key=lambda item: item[:2]):
        yield with_leaves(scene.arguments, changed), why


def _with_leaf(scene: Scene, index: int, leaf: Argument) -> Arguments:
    listed = scene.leaves
    return with_leaves(scene.arguments, (*listed[:index], leaf, *listed[index + 1 :]))


def _missing(message: str, scene: Scene, spare: Spare) -> Iterator[tuple[Arguments, str]]:
    match = re.search(r"missing \d+ required (?:positional |keyword-only )?arguments?: (.*)", message)
    if not match:
        return
    wanted = re.findall(r"[\"'](\w+)[\"']", match[1])
    given = {argument.name for argument in scene.arguments}
    extra = [argument for name in wanted if name not in given and (argument := spare(name)) is not None]
    if extra:
        yield (*scene.arguments, *extra), f"{', '.join(a.name for a in extra)} is needed"
    last = next(
        (argument for argument in reversed(scene.arguments) if argument.is_tensor and not argument.keyword), None
    )
    if last is not None and len(scene.arguments) < 8:
        more = tuple(replace(last, name=name) for name in wanted[:4] or ["more"])
        yield (*scene.arguments, *more), f"{', '.join(wanted)} missing: one argument more"


def _none_given(message: str, scene: Scene, spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """A parameter at its default None that turns out to be needed."""
    asked = re.search(r"\bNone(?:Type)?\b|implicitly created only for scalar", message)
    if not asked and not isinstance(scene.error, AssertionError | ValueError):
        return
    given = {argument.name for argument in scene.arguments}
    seen: set[str] = set()
    for failing in reversed(scene.frames):
        for word in re.findall(r"[A-Za-z_]\w*", failing.text):
            if word in given or word in seen or failing.frame.f_locals.get(word, word) is not None:
                continue
            seen.add(word)
            extra = spare(word)
            if extra is not None:
                yield (*scene.arguments, extra), f"{word} is needed"
    if isinstance(scene.error, ValueError):
        for word in re.findall(r"[A-Za-z_]\w*", str(scene.error)):
            if word not in given and word not in seen and (extra := spare(word)) is not None:
                seen.add(word)
                yield (*scene.arguments, extra), f"{word} is asked for"


def _spoken_of(scene: Scene, pattern: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Leaves whose name in some frame is the first group of a pattern in the failing text, innermost first."""
    for failing in reversed(scene.frames):
        for match in re.finditer(pattern, failing.text):
            value = failing.frame.f_locals.get(match[1])
            index = scene.leaf_of(value)
            if index is None:
                # Numbers have no identity: by name and value, the caller's name may be the same.
                index = scene.leaf_named(match[1])
                if index is not None and scene.objects[index] is not value:
                    index = None
            if index is not None:
                yield index, match


def _attribute(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    match = re.search(r"'(?:\w+\.)*(\w+)' object has no attribute '(\w+)'", message)
    if not match:
        return
    name = match[2]
    for index, _ in _spoken_of(scene, rf"\b(\w+)\.{name}\b"):
        leaf = of_attribute(scene.leaves[index], name, scene.usual_shape)
        if leaf is not None:
            yield _with_leaf(scene, index, leaf), f"{leaf.name} has .{name}"
    if match[1] in ("SimpleNamespace", "Both"):
        for changed in _grown(scene.arguments, name):
            yield changed, f".{name} is read as well"
    for index in scene.suspects:
        leaf = scene.leaves[index]
        if leaf.is_tensor and name in _TEXTS:
            yield _with_leaf(scene, index, replace(leaf, kind="literal", text=_TEXTS[name])), f"has .{name}"
        elif leaf.is_tensor and name in ("items", "keys", "values"):
            parts = (replace(leaf, name="a", keyword=False), replace(leaf, name="b", keyword=False))
            yield _with_leaf(scene, index, replace(leaf, kind="dict", items=parts)), f"has .{name}"


def _grown(arguments: Arguments, name: str) -> Iterator[Arguments]:
    """An object, or one inside another, with one attribute more: a tensor as the others are."""
    for place, argument in enumerate(arguments):
        if not argument.is_structure:
            continue
        made: list[Argument] = []
        if (
            argument.kind == "object"
            and argument.text in ("", BY_BOTH)
            and all(item.name != name for item in argument.items)
        ):
            made.append(replace(argument, items=(*argument.items, _part(name, argument))))
        made += [replace(argument, items=items) for items in _grown(argument.items, name)]
        for grown in made:
            yield (*arguments[:place], grown, *arguments[place + 1 :])


def _part(name: str, of: Argument) -> Argument:
    """One more part: a tensor as the others are, and where its name says so, indices into their first axis."""
    like = next((item for item in of.items if item.kind == "float" and item.shape), Argument(name, shape=(2, 5, 8)))
    if name == "edge_index":  # by the convention of graph libraries: sources and destinations
        return replace(like, name=name, kind="int", shape=(2, 6), high=like.shape[0])
    if INTEGER_INPUT.search(name):
        return replace(like, name=name, kind="int", shape=like.shape[:1], high=min(like.shape[0], 2))
    return replace(like, name=name)


def _keyed(_message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    if isinstance(scene.error, KeyError) and scene.error.args:
        key = scene.error.args[0]
        for place, argument in enumerate(scene.arguments):
            if isinstance(key, str) and (argument.kind == "dict" or argument.text == BY_BOTH):
                grown = replace(argument, items=(*argument.items, _part(key, argument)))
                yield (
                    (*scene.arguments[:place], grown, *scene.arguments[place + 1 :]),
                    f"the key {key!r} is read as well",
                )
        return
    if not isinstance(scene.error, IndexError | TypeError):
        return
    for index, match in _spoken_of(scene, r"\b(\w+)\[\s*f?[\"'](\w+)[\"']\s*\]"):
        leaf = scene.leaves[index]
        inner = Argument(match[2], shape=leaf.shape if leaf.is_tensor and leaf.shape else scene.usual_shape)
        yield _with_leaf(scene, index, replace(leaf, kind="dict", items=(inner,))), f"{leaf.name} is read by key"


def _searched(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """`'key' in argument`: a dict, and where it has attributes as well, one that answers by both."""
    if not re.search(
        r"__contains__ only supports|'(?:\w+\.)*SimpleNamespace' is not (?:iterable|a container)", message
    ):
        return
    for index, _ in _spoken_of(scene, r"[\"']\w+[\"']\s+(?:not\s+)?in\s+(\w+)\b"):
        leaf = scene.leaves[index]
        inner = Argument("x", shape=leaf.shape if leaf.is_tensor and leaf.shape else scene.usual_shape)
        yield _with_leaf(scene, index, replace(leaf, kind="object", text=BY_BOTH, items=(inner,))), "it is searched"
    for place, argument in enumerate(scene.arguments):
        if argument.kind == "object" and not argument.text:
            by_both = replace(argument, text=BY_BOTH)
            yield (*scene.arguments[:place], by_both, *scene.arguments[place + 1 :]), f"{argument.name} is searched"


def _ordered(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """Arguments that are compared with each other, or counted up to: numbers, each larger than the one before."""
    if "Boolean value of Tensor with more than one value" not in message:
        return
    suspects = [index for index in scene.suspects if scene.leaves[index].is_tensor]
    numbers = {
        index: replace(scene.leaves[index], kind="literal", text=str(3 + place), guessed=True)
        for place, index in enumerate(sorted(suspects))
    }
    if len(numbers) > 1:
        yield with_leaves(scene.arguments, [numbers.get(i, leaf) for i, leaf in enumerate(scene.leaves)]), "numbers"
    for index in suspects:
        yield _with_leaf(scene, index, numbers[index]), f"{numbers[index].name} is a number"


def _called(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    if "is not callable" in message:
        for index, _ in _spoken_of(scene, r"\b(\w+)\("):
            leaf = scene.leaves[index]
            yield _with_leaf(scene, index, replace(leaf, kind="literal", text=function_of_arity(1))), "it is called"
    match = re.search(r"takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) (?:was|were) given", message)
    if match or "tanh() takes" in message or "got an unexpected keyword argument" in message:
        count = int(match[2]) if match else 2
        for index, leaf in enumerate(scene.leaves):
            if leaf.kind == "literal" and (leaf.text == "torch.tanh" or leaf.text.startswith("lambda")):
                changed = replace(leaf, text=function_of_arity(max(count, 2)))
                if changed != leaf:
                    yield _with_leaf(scene, index, changed), "a function of more arguments"


def _spread(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """`f(*args, **kwargs)` with an argument: nothing in it is the simplest that fits."""
    match = re.search(r"after (\*{1,2}) must be (?:a mapping|an iterable)", message)
    for index in scene.suspects if match else ():
        text = "{}" if match is not None and match[1] == "**" else "()"
        yield _with_leaf(scene, index, replace(scene.leaves[index], kind="literal", text=text)), "it is spread"


def _unpacked(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """An argument that is unpacked, looped over or indexed as a list is."""
    count = re.search(r"values to unpack \(expected (?:at least )?(\d+)", message)
    number = re.search(r"'(?:float|int|NoneType|bool)' object is not (?:iterable|subscriptable)|non-iterable", message)
    lengths = re.search(r"has no len\(\)|step must be greater than zero", message)  # `x[::-1]` is a list's
    if not (count or number or lengths):
        return
    failing = scene.frames[-1].text if scene.frames else ""
    if count and re.search(r"\.shape|\.size\(", failing):
        return
    targets = re.match(r"\s*(?:for )?\(?([\w, ()]+?)\)?\s*(?:=|in)\s", failing)
    size = int(count[1]) if count else (targets[1].count(",") + 1 if targets else 2)
    for index in scene.suspects[:3]:
        leaf = scene.leaves[index]
        part = Argument(leaf.name, shape=leaf.shape if leaf.is_tensor and leaf.shape else scene.usual_shape)
        items = tuple(replace(part, name=f"{leaf.name}[{place}]") for place in range(min(size, 8)))
        yield _with_leaf(scene, index, replace(leaf, kind="tuple", items=items)), f"{leaf.name} is unpacked"
        if number:
            item = leaf.text if leaf.kind == "literal" and leaf.text.isdigit() else "2"
            text = f"({', '.join([item] * size)})"
            yield _with_leaf(scene, index, replace(leaf, kind="literal", text=text)), f"{leaf.name} is unpacked"


def _listed(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """A list by its annotation that the code hands to torch as a tensor: of indices, as lists of numbers are."""
    if not re.search(r"must be Tensor, not (?:list|tuple)", message):
        return
    for place, argument in enumerate(scene.arguments):
        if argument.kind in ("list", "tuple"):
            whole = all(item.kind == "literal" and item.text.lstrip("-").isdigit() for item in argument.items)
            size = max(len(argument.items), 2)
            made = replace(argument, kind="int" if whole else "float", shape=(size,), high=2, items=())
            yield (*scene.arguments[:place], made, *scene.arguments[place + 1 :]), f"{argument.name} is a tensor"


def _several(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """What is concatenated or stacked is several tensors."""
    if not re.search(r"must be (?:tuple|list) of Tensors, not Tensor", message):
        return
    for index in scene.suspects or range(len(scene.leaves)):
        leaf = scene.leaves[index]
        if leaf.is_tensor:
            parts = tuple(replace(leaf, name=f"{leaf.name}[{place}]", keyword=False) for place in range(2))
            yield _with_leaf(scene, index, replace(leaf, kind="list", items=parts)), f"{leaf.name} are several"


def _indexing(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """Indices of more than one axis, where what they pick doesn't fit: a vector, as long as what it picks from."""
    if not re.search(r"must match the size|match the broadcast shape|supposed to be a vector|only integer t", message):
        return
    for index, _ in _spoken_of(scene, r"(?:\[|,)[^\[\]]*?\b(\w+)\b"):
        leaf = scene.leaves[index]
        if leaf.kind != "int" or len(leaf.shape) < 2:
            continue
        for size in dict.fromkeys((leaf.shape[-1], leaf.shape[0])):
            yield _with_leaf(scene, index, leaf.with_shape((size,))), f"{leaf.name} is a vector of indices"


def _counted(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """Places in a list that grows in the loop, parents before children: only its first is there from the start."""
    if "list index out of range" in message:
        for index in scene.suspects:
            leaf = scene.leaves[index]
            if leaf.kind == "int" and leaf.shape and leaf.high > 1:
                yield _with_leaf(scene, index, replace(leaf, high=1)), f"{leaf.name} are places in a list"


def _looked_up(message: str, scene: Scene, _spare: Spare) -> Iterator[tuple[Arguments, str]]:
    """A table with fewer rows than the indices that the code itself computes, of angles or steps: a longer one."""
    if not re.search(r"index out of range in self|is out of bounds for dimension 0", message):
        return
    for index, _ in _spoken_of(scene, r"(?:index_select|gather|embedding)\(\s*(\w+)"):
        leaf = scene.leaves[index]
        if leaf.is_tensor and leaf.shape and leaf.shape[0] < _ROWS:
            yield _with_leaf(scene, index, leaf.with_shape((_ROWS, *leaf.shape[1:]))), f"{leaf.name} is a table"


_INDICES: Final = (_listed, _several, _indexing, _counted, _looked_up)
