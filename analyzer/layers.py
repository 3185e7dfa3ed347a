"""What the attributes of a module class hold: torch layers, parameters, buffers, or something from elsewhere.

Read from the assignments to `self.…` in the class; an attribute that is assigned in two different ways is unknown.
This module must not know rules.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum

from analyzer.context import FileContext
from analyzer.syntax import is_false
from analyzer.tensor_writes import writes_first_argument


class Content(Enum):
    """What an attribute of `self` holds."""

    LAYER = "layer"  # a torch.nn module, by name
    CHAIN = "chain"  # a Sequential whose layers are told
    MODULE = "module"  # a module from elsewhere
    PARAMETER = "parameter"
    BUFFER = "buffer"


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name` is the full name of the layer's class; `layers` are those of a chain, in order."""

    content: Content
    node: ast.AST
    name: str = ""
    writes_input: bool = False
    layers: tuple[Attribute, ...] = ()


_REGISTRATIONS = {"register_buffer": Content.BUFFER, "register_parameter": Content.PARAMETER}


def module_attributes(file: FileContext, node: ast.ClassDef) -> dict[str, Attribute]:
    """Attribute name → what it holds, for every attribute that is assigned in one way only."""
    found: dict[str, Attribute | None] = {}
    for assignment in file.nodes_in(node, ast.Assign):
        for target in assignment.targets:
            _note(file, found, target, assignment.value)
    for annotated in file.nodes_in(node, ast.AnnAssign):
        if annotated.value is not None:
            _note(file, found, annotated.target, annotated.value)
    for name, content in _REGISTRATIONS.items():
        for call in file.calls(name):
            if node in file.ancestors(call) and call.args and isinstance(call.args[0], ast.Constant):
                found[str(call.args[0].value)] = Attribute(content, call)
    return {name: attribute for name, attribute in found.items() if attribute is not None}


def _note(file: FileContext, found: dict[str, Attribute | None], target: ast.expr, value: ast.expr) -> None:
    if not (isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"):
        return
    read = describe(file, value)
    if target.attr in found:
        known = found[target.attr]
        same = known is not None and read is not None and (known.content, known.name) == (read.content, read.name)
        if not same or (known is not None and read is not None and known.writes_input != read.writes_input):
            found[target.attr] = None
        return
    found[target.attr] = read


def describe(file: FileContext, value: ast.expr) -> Attribute | None:
    """What the value of an attribute is; None when the file does not tell."""
    if not isinstance(value, ast.Call):
        return None
    qualified = file.qualified_name(value.func)
    if qualified is None or not qualified.startswith("torch."):
        last = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return Attribute(Content.MODULE, value) if last[:1].isupper() else None
    return _describe_torch(file, value, qualified)


def _describe_torch(file: FileContext, value: ast.Call, qualified: str) -> Attribute | None:
    short = qualified.rpartition(".")[2]
    if short == "Parameter":
        frozen = any(item.arg == "requires_grad" and is_false(item.value) for item in value.keywords)
        return Attribute(Content.BUFFER if frozen else Content.PARAMETER, value)
    if qualified == "torch.nn.Sequential":
        layers = [layer for item in value.args if (layer := describe(file, item)) is not None]
        known = bool(layers) and len(layers) == len(value.args)
        if known and all(layer.content is Content.LAYER for layer in layers):
            return Attribute(Content.CHAIN, value, layers=tuple(layers))
        return Attribute(Content.MODULE, value)
    if qualified.startswith("torch.nn.") and short[:1].isupper():
        writes_input = writes_first_argument(file, value)
        return Attribute(Content.LAYER, value, name=f"torch.nn.{short}", writes_input=writes_input)
    return None
