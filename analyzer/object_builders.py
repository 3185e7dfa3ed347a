"""Functions that put objects together by a configuration, and functions that only rename the entries of a state dict.

Both are given or hand out tensors at most as part of something else, and compute nothing. In doubt a function is
neither. This module must not know other files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Final

from analyzer.annotations import annotation_names, is_tensor_name
from analyzer.context import FileContext
from analyzer.eligibility import words_of
from analyzer.syntax import FunctionNode, parameters, terminal_name

_VERBS: Final = ("make_", "build_", "create_", "setup_", "instantiate_")
_CONFIGURATIONS: Final = frozenset({"cfg", "config", "conf", "configuration", "hparams", "settings", "args", "opts"})
_CONFIGURED: Final = ("Config", "Configuration", "Cfg", "Settings", "HParams", "Namespace")
_CONTAINERS: Final = frozenset(
    {"tuple", "Tuple", "list", "List", "Sequence", "Optional", "Union", "Iterable", "dict", "Dict", "Mapping"}
)
_MAPPINGS: Final = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict"})
# What may hold tensors, or be anything.
_OPEN: Final = frozenset({"Any", "Self"})
_HOLDS_TENSORS: Final = frozenset(
    {
        *("output", "outputs", "input", "inputs", "batch", "data", "sample", "samples", "features", "mask", "graph"),
        *("state", "result", "results", "loss", "losses", "embedding", "embeddings", "cache", "grid", "rays", "image"),
        *("images", "tensor", "tensors", "dict", "mapping", "list", "tuple", "observation", "points", "transform"),
    }
)
_STRING_METHODS: Final = frozenset(
    {
        *("replace", "removeprefix", "removesuffix", "split", "rsplit", "join", "strip", "startswith", "endswith"),
        *("items", "keys", "values", "get", "pop", "copy", "update", "format", "lower", "upper", "sub", "match"),
        *("search", "append", "setdefault", "partition", "rpartition", "group", "apply", "lstrip", "rstrip"),
    }
)
_PLAIN_CALLS: Final = frozenset(
    {"dict", "OrderedDict", "list", "sorted", "set", "tuple", "len", "isinstance", "enumerate", "zip", "str", "print"}
)


def builds_objects(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function makes objects by a configuration, and is given no tensor by itself."""
    if not function.name.startswith(_VERBS) or not any(map(_is_configuration, parameters(function))):
        return False
    if any(_is_tensor(p.annotation) for p in parameters(function) if p.annotation is not None):
        return False
    if function.returns is not None:
        given = list(_outer_names(function.returns))
        return bool(given) and all(_is_class_name(name) for name in given) and not _mentions_tensor(function.returns)
    returned = [node.value for node in file.returns_of(function) if node.value is not None]
    return bool(returned) and all(_is_made(value, _last_values(file, function)) for value in returned)


def renames_entries(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function gives a state dict back under other names, by rules that it is told; every value as it was.

    One that is told nothing can be called with any dictionary, and is.
    """
    named = [p for p in parameters(function) if p.annotation is not None and _is_mapping(p.annotation)]
    about_state = "state_dict" in function.name or any("state_dict" in p.arg for p in named)
    positional = [*function.args.posonlyargs, *function.args.args]
    required = positional[: len(positional) - len(function.args.defaults)]
    told = [parameter for parameter in required if parameter not in named]
    if not about_state or not named or not told or function.returns is None or not _is_mapping(function.returns):
        return False
    return all(_is_plain_call(file, call) for call in file.nodes_in(function, ast.Call)) and all(
        isinstance(node.op, ast.Add) and _is_text(node) for node in file.nodes_in(function, ast.BinOp)
    )


def _is_configuration(parameter: ast.arg) -> bool:
    if parameter.arg.rpartition("_")[2] in _CONFIGURATIONS:
        return True
    names = annotation_names(parameter.annotation) if parameter.annotation is not None else frozenset[str]()
    return any(name.endswith(_CONFIGURED) for name in names)


def _is_tensor(annotation: ast.expr) -> bool:
    """A tensor itself, or a row of tensors; not one in a mapping."""
    return any(is_tensor_name(name) for name in _outer_names(annotation))


def _mentions_tensor(annotation: ast.expr) -> bool:
    return any(is_tensor_name(name) for name in annotation_names(annotation))


def _outer_names(annotation: ast.expr) -> Iterator[str]:
    """The classes of what an annotation says, without what they are parametrised by; containers are looked into."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from annotation_names(annotation)
    elif isinstance(annotation, ast.BinOp):
        yield from _outer_names(annotation.left)
        yield from _outer_names(annotation.right)
    elif isinstance(annotation, ast.Tuple):
        for element in annotation.elts:
            yield from _outer_names(element)
    elif isinstance(annotation, ast.Subscript):
        name = terminal_name(annotation.value) or "Any"
        if name in _CONTAINERS - _MAPPINGS:
            yield from _outer_names(annotation.slice)
        else:
            yield name
    elif not (isinstance(annotation, ast.Constant) and annotation.value in (None, ...)):
        yield terminal_name(annotation) or "Any"


def _is_class_name(name: str) -> bool:
    """A class by its name, of a kind that holds no tensors which it was given."""
    if not name[:1].isupper() or name.isupper() or name in _OPEN:
        return False
    return _HOLDS_TENSORS.isdisjoint(words_of(name)[-1:])


def _is_mapping(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return terminal_name(outer) in _MAPPINGS


def _last_values(file: FileContext, function: FunctionNode) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for assignment in file.nodes_in(function, ast.Assign):
        for target in assignment.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    values.setdefault(name.id, []).append(assignment.value)
    return values


def _is_made(value: ast.expr, values: dict[str, list[ast.expr]]) -> bool:
    """A call of a class or of another builder, a variable that only ever holds such, or several of them."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return bool(value.elts) and all(_is_made(element, values) for element in value.elts)
    if isinstance(value, ast.Name):
        known: Sequence[ast.expr] = values.get(value.id, ())
        return bool(known) and all(isinstance(one, ast.Call) and _is_made(one, {}) for one in known)
    if not isinstance(value, ast.Call):
        return False
    name = terminal_name(value.func) or ""
    return _is_class_name(name) or name.startswith(_VERBS)


def _is_plain_call(file: FileContext, call: ast.Call) -> bool:
    qualified = file.qualified_name(call.func) or ""
    if qualified.startswith(("torch.", "einops.", "numpy.")):
        return False
    return terminal_name(call.func) in _STRING_METHODS | _PLAIN_CALLS


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )
