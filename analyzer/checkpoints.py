"""Calls of `torch.utils.checkpoint`, and what runs inside them a second time during backward.

The checkpointed function is followed within its file: lambdas, nested functions, methods, layers, modules of the same
file and lists of them. What lies in other files is unknown, and `Inside.complete` says so. This module must not know
rules.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field

from analyzer.context import FileContext
from analyzer.forward_code import forward_code, is_constant, keyword, own_attribute
from analyzer.layers import Attribute, Content, describe
from analyzer.syntax import FunctionNode, terminal_name

_NAMES = ("checkpoint", "checkpoint_sequential")
_MODULE = "torch.utils.checkpoint"
_CONTAINERS = frozenset({"ModuleList", "Sequential", "ModuleDict"})
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One call. `function` is what is checkpointed, `arguments` what it is given."""

    call: ast.Call
    function: ast.expr
    arguments: tuple[ast.expr, ...]
    sequential: bool

    @property
    def reentrant(self) -> bool | None:
        """What `use_reentrant` says; None where it is not passed or not a literal."""
        given = keyword(self.call, "use_reentrant")
        if is_constant(given, value=True):
            return True
        return False if is_constant(given, value=False) else None

    @property
    def says_reentrant(self) -> bool:
        """Whether `use_reentrant` is passed, or may be."""
        return any(item.arg in ("use_reentrant", None) for item in self.call.keywords)


@dataclass(slots=True)
class Inside:
    """What runs in a checkpoint: layers of torch, and bodies of functions with the module class they belong to."""

    layers: list[Attribute] = field(default_factory=list)
    bodies: list[tuple[FunctionNode | ast.Lambda, ast.ClassDef | None]] = field(default_factory=list)
    complete: bool = True

    def nodes(self) -> Iterator[tuple[ast.AST, ast.ClassDef | None]]:
        """Every node of every body, with the class around the body."""
        for body, owner in self.bodies:
            for node in ast.walk(body):
                yield node, owner


def checkpoints(file: FileContext) -> Iterator[Checkpoint]:
    """Every call of torch's checkpoint functions."""
    for call in file.calls(*_NAMES):
        qualified = file.qualified_name(call.func) or ""
        if not qualified.startswith(_MODULE) or not call.args:
            continue
        sequential = qualified.endswith("checkpoint_sequential")
        yield Checkpoint(call, call.args[0], tuple(call.args[2 if sequential else 1 :]), sequential)


def inside(file: FileContext, found: Checkpoint) -> Inside:
    """What runs in a checkpoint, as far as its file tells."""
    result = Inside()
    _Follower(file, result).follow(found.function, forward_code(file).module_of(found.call), 0)
    return result


class _Follower:
    def __init__(self, file: FileContext, result: Inside) -> None:
        self._file = file
        self._result = result
        self._seen: set[ast.AST] = set()

    def follow(self, function: ast.expr, owner: ast.ClassDef | None, depth: int) -> None:
        """Adds what calling an expression runs."""
        self._file.check_deadline()
        if depth > _MAX_DEPTH:
            self._result.complete = False
            return
        if isinstance(function, ast.Attribute) and function.attr in ("forward", "__call__"):
            own = own_attribute(function)
            if own is None or own == "__call__":
                function = function.value
        if isinstance(function, ast.Lambda):
            self._body(function, owner, depth)
        elif isinstance(function, ast.Call) and terminal_name(function.func) == "partial" and function.args:
            self.follow(function.args[0], owner, depth)
        elif (own := own_attribute(function)) is not None:
            self._own(own, owner, depth)
        elif isinstance(function, ast.Name):
            self._name(function, owner, depth)
        elif isinstance(function, ast.Subscript) and (own := own_attribute(function.value)) is not None:
            self._own(own, owner, depth)
        else:
            self._result.complete = False

    def _own(self, name: str, owner: ast.ClassDef | None, depth: int) -> None:
        if owner is None:
            self._result.complete = False
            return
        for statement in owner.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                self._body(statement, owner, depth)
                return
        known = forward_code(self._file).attributes(owner).get(name)
        if known is None:
            self._result.complete = False
        elif known.content in (Content.LAYER, Content.CHAIN):
            container = known.name.rpartition(".")[2] in _CONTAINERS
            if container and isinstance(known.node, ast.Call):
                self._members(known.node, owner, depth)
            else:
                self._result.layers.extend(known.layers or (known,))
        elif isinstance(known.node, ast.Call):
            self._built(known.node, depth, owner)
        else:
            self._result.complete = False

    def _members(self, call: ast.Call, owner: ast.ClassDef, depth: int) -> None:
        """The modules that a `ModuleList` or a `Sequential` is built of."""
        built = [node for argument in call.args for node in ast.walk(argument) if isinstance(node, ast.Call)]
        if not built:
            self._result.complete = False
        for node in built:
            name = terminal_name(node.func) or ""
            if name[:1].isupper():
                self._built(node, depth, owner)

    def _built(self, call: ast.Call, depth: int, owner: ast.ClassDef) -> None:
        """An instance that is made of a class: of torch, or of this file."""
        known = describe(self._file, call)
        if known is not None and known.content in (Content.LAYER, Content.CHAIN):
            if known.name.rpartition(".")[2] in _CONTAINERS:
                self._members(call, owner, depth)
            else:
                self._result.layers.extend(known.layers or (known,))
            return
        if known is not None and terminal_name(call.func) in _CONTAINERS:
            self._members(call, owner, depth)
            return
        name = terminal_name(call.func)
        for module in forward_code(self._file).modules:
            if module.name == name:
                forward = next((s for s in module.body if isinstance(s, ast.FunctionDef) and s.name == "forward"), None)
                if forward is not None:
                    self._body(forward, module, depth + 1)
                    return
        self._result.complete = False

    def _name(self, name: ast.Name, owner: ast.ClassDef | None, depth: int) -> None:
        functions = self._file.functions_by_name.get(name.id, [])
        around = self._file.enclosing_function(name)
        for function in functions:
            if self._file.parent(function) is self._file.tree or self._file.enclosing_function(function) is around:
                self._body(function, owner, depth)
                return
        source = _looped_attribute(self._file, name)
        definition = self._file.values.single_definition(name)
        if source is not None:
            self._own(source, owner, depth)
        elif definition is not None and not isinstance(definition, ast.Name):
            self.follow(definition, owner, depth + 1)
        else:
            self._result.complete = False

    def _body(self, function: FunctionNode | ast.Lambda, owner: ast.ClassDef | None, depth: int) -> None:
        if function in self._seen:
            return
        self._seen.add(function)
        self._result.bodies.append((function, owner))
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                callee = node.func
                is_local = isinstance(callee, ast.Name) and self._file.qualified_name(callee) is None
                is_own = own_attribute(callee) is not None or (
                    isinstance(callee, ast.Subscript) and own_attribute(callee.value) is not None
                )
                if is_own or (is_local and not hasattr(builtins, terminal_name(callee) or "")):
                    self.follow(callee, owner, depth + 1)


def _looped_attribute(file: FileContext, name: ast.Name) -> str | None:
    """`blocks` where the name is the variable of a loop over `self.blocks`."""
    for outer in file.ancestors(name):
        if isinstance(outer, ast.For) and any(
            isinstance(node, ast.Name) and node.id == name.id for node in ast.walk(outer.target)
        ):
            return next((own for node in ast.walk(outer.iter) if (own := own_attribute(node)) is not None), None)
    return None


def holds(node: ast.AST, whole: ast.AST) -> bool:
    """Whether a node is a part of another."""
    return any(part is node for part in ast.walk(whole))
