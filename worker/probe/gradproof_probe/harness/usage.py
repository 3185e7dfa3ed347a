"""How a callable uses its parameters, read from its source: what kind of value each of them must be.

For a class it reads `__init__`, the methods that use what `__init__` kept (`self.x = x`), and the callables that a
parameter is passed on to, parents included. Reads source and resolves names in the defining module; runs nothing.
"""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import torch

from gradproof_probe.harness.sources import function_node

DEPTH: Final = 3  # of passing on: a value's kind shows within three calls, and what is deeper is mostly torch
_MOST_OPTIONS: Final = 24
# What every torch.nn.Module has: asking for these says "a module" and nothing more.
_OF_EVERY_MODULE: Final = frozenset(dir(torch.nn.Module())) | {"weight", "bias"}
_TEXT_METHODS: Final = frozenset(
    {"lower", "upper", "split", "strip", "startswith", "endswith", "format", "replace", "join", "title", "isdigit"}
)
_DICT_METHODS: Final = frozenset({"get", "pop", "keys", "values", "items", "setdefault", "update"})
_OF_TENSORS: Final = frozenset(dir(torch.Tensor))
_SHAPED: Final = frozenset({"shape", "ndim", "size", "dim"})  # a configuration has a dtype and a device too
_LIST_METHODS: Final = frozenset({"append", "index", "count", "extend", "sort", "insert"})


@dataclass(slots=True)
class Usage:
    """What is done with a value. Empty where nothing is known."""

    options: dict[Any, None] = field(default_factory=dict)  # constants that it is compared with, keys of tables
    number: int = 0  # places that do arithmetic with it or need a size
    real: bool = False  # a float, as far as torch's own parameters tell
    text: bool = False
    mapping: bool = False
    sequence: bool = False
    length: int | None = None
    item: Usage | None = None
    keys: dict[str, Usage] = field(default_factory=dict)
    attributes: dict[str, Usage] = field(default_factory=dict)
    called: int | None = None  # the number of arguments that it is called with
    tested_callable: bool = False  # `d() if callable(d) else d`: it may as well be a plain value
    factory: bool = False  # called while constructing: a class or a function that makes layers
    layer: bool = False  # kept as a module: called or iterated as one after construction
    classes: tuple[type, ...] = ()
    tensor: bool = False
    may_be_none: bool = False
    decides: bool = False  # tested after construction, or anywhere in a function: which way a call goes
    divisors: set[str] = field(default_factory=set)
    same_length: set[str] = field(default_factory=set)
    converted: tuple[type, ...] = ()  # classes of the package that take it as their only argument

    def merge(self, other: Usage, depth: int = 0) -> None:
        if depth > DEPTH or other is self:
            return
        self.options |= dict(islice(other.options.items(), _MOST_OPTIONS))
        self.number += other.number
        self.real |= other.real
        self.text |= other.text
        self.mapping |= other.mapping
        self.sequence |= other.sequence
        self.length = self.length or other.length
        self.called = self.called if self.called is not None else other.called
        self.factory |= other.factory
        self.layer |= other.layer
        self.classes = (*self.classes, *(c for c in other.classes if c not in self.classes))
        self.converted = (*self.converted, *(c for c in other.converted if c not in self.converted))
        self.tensor |= other.tensor
        self.may_be_none |= other.may_be_none
        self.decides |= other.decides
        for mine, theirs in ((self.keys, other.keys), (self.attributes, other.attributes)):
            for name, usage in list(theirs.items()):
                mine.setdefault(name, Usage()).merge(usage, depth + 1)
        if other.item is not None:
            self.of_items().merge(other.item, depth + 1)

    def of_items(self) -> Usage:
        self.sequence = True
        if self.item is None:
            self.item = Usage()
        return self.item

    @property
    def is_shaped(self) -> bool:
        """Whether its shape is asked for, and nothing that a tensor hasn't."""
        return self.tensor and not _SHAPED.isdisjoint(self.attributes) and _OF_TENSORS.issuperset(self.attributes)

    @property
    def own_attributes(self) -> dict[str, Usage]:
        """Attributes that say more than "a module", "a text" or "a tensor"."""
        usual = _OF_EVERY_MODULE | _TEXT_METHODS | _DICT_METHODS | _LIST_METHODS
        if self.is_shaped:
            return {}
        return {name: usage for name, usage in self.attributes.items() if name not in usual and name[:2] != "__"}


@dataclass(slots=True)
class Parameters:
    """By name: how each is used. `required_keys`/`optional_keys` are what is taken from `**kwargs`, `sinks` where
    the rest of it goes: (callable, names given there besides)."""

    of: dict[str, Usage]
    kwargs: str | None = None
    required_keys: dict[str, Usage] = field(default_factory=dict)
    sinks: list[tuple[Any, frozenset[str]]] = field(default_factory=list)


_CACHE: dict[Any, Parameters] = {}


def initialiser(cls: type) -> tuple[type, Any] | None:
    """The class that defines the `__init__` (or, for tuples and the like, `__new__`) that a class uses."""
    for name in ("__init__", "__new__"):
        for owner in cls.__mro__:
            if name in vars(owner):
                function = unwrapped(getattr(owner, name))
                if isinstance(function, types.FunctionType):
                    return owner, function
                break
    return None


def unwrapped(value: Any) -> Any:
    """What a decorator wrapped; None where the object doesn't even let itself be looked at."""
    try:
        return inspect.unwrap(value)
    except Exception:  # a stand-in for a missing module raises when it is touched
        return None


def usage_of(value: Any, depth: int = DEPTH) -> Parameters:
    """How a class's or function's parameters are used."""
    if isinstance(value, type):
        found = initialiser(value)
        if found is None:
            return Parameters({})
        owner, function = found
    else:
        owner, function = None, unwrapped(value)
    if not isinstance(function, types.FunctionType):
        return Parameters({})
    key = (function.__code__, value if isinstance(value, type) else None, depth)
    if key not in _CACHE:
        _CACHE[key] = Parameters({})  # a callable that passes its parameters to itself
        _CACHE[key] = _Reader(value if isinstance(value, type) else None, owner, function, depth).read()
    return _CACHE[key]


class _Reader:
    def __init__(self, cls: type | None, owner: type | None, function: types.FunctionType, depth: int) -> None:
        self.cls, self.owner, self.function, self.depth = cls, owner, function, depth
        self.names: Mapping[str, Any] = function.__globals__
        self.known: dict[str, Usage] = {}
        self.tables: dict[str, ast.expr] = {}
        self.constructing = cls is not None
        self.result = Parameters({})

    def read(self) -> Parameters:
        node = function_node(self.function)
        if node is None:
            return self.result
        arguments = node.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        if self.cls is not None:
            listed = listed[1:]
        self.result.of = {argument.arg: Usage() for argument in listed}
        self.known = dict(self.result.of)
        self.result.kwargs = arguments.kwarg.arg if arguments.kwarg else None
        for statement in node.body:
            self._visit(statement)
        self.constructing = False
        if self.cls is not None:
            kept = {text: usage for text, usage in self.known.items() if text.startswith("self.")}
            if kept:
                for method in self._methods():
                    self.known = dict(kept)
                    self._visit_body(method)
        for usage in self.result.of.values():
            if usage.tested_callable:
                usage.called, usage.factory, usage.layer = None, False, False
        return self.result

    def _methods(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        assert self.cls is not None
        names = [name for name in dict.fromkeys(n for c in self.cls.__mro__ for n in vars(c)) if name != "__init__"]
        for name in names:
            owner = next(c for c in self.cls.__mro__ if name in vars(c))
            if owner.__module__.partition(".")[0] in ("torch", "builtins"):
                continue
            value = vars(owner)[name]
            function = value
            if isinstance(value, property):
                function = value.fget
            elif isinstance(value, staticmethod | classmethod):
                function = value.__func__
            if isinstance(function, types.FunctionType) and (node := function_node(function)) is not None:
                yield node

    def _visit_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self._visit(statement)

    # --- Which value an expression is -------------------------------------------------------------------------------

    def _of(self, node: ast.AST | None) -> Usage | None:
        """The usage that an expression stands for, if it is a parameter or a part of one."""
        match node:
            case ast.Name() | ast.Attribute() if (known := self.known.get(ast.unparse(node))) is not None:
                return known
            case ast.Attribute(value=base, attr=name) if (owner := self._of(base)) is not None:
                if name in _TEXT_METHODS:
                    owner.text = True
                elif name in _DICT_METHODS:
                    owner.mapping = True
                elif name in _LIST_METHODS:
                    owner.sequence = True
                elif name in ("shape", "ndim", "dtype", "device", "size", "dim"):
                    owner.tensor = True
                return owner.attributes.setdefault(name, Usage())
            case ast.Subscript(value=base, slice=key) if (owner := self._of(base)) is not None:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    owner.mapping = True
                    return owner.keys.setdefault(key.value, Usage())
                owner.sequence = True
                if isinstance(key, ast.Slice):
                    return owner
                if isinstance(key, ast.Constant) and isinstance(key.value, int):
                    owner.length = max(owner.length or 0, key.value + 1 if key.value >= 0 else -key.value)
                return owner.of_items()
            case ast.BoolOp(op=ast.Or(), values=[first, *_]):
                return self._of(first)
            case ast.IfExp(body=body, orelse=other):
                return self._of(body) or self._of(other)
            case ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self._of(value)
            case ast.Call(func=ast.Attribute(value=base, attr="get" | "pop"), args=[ast.Constant(value=str(key)), *_]):
                owner = self._of(base)
                if owner is not None:
                    owner.mapping = True
                    return owner.keys.setdefault(key, Usage())
            case ast.Call(func=ast.Attribute(value=base, attr="lower" | "upper" | "strip")) if (
                self._of(base) is not None
            ):
                owner = self._of(base)
                assert owner is not None
                owner.text = True
                return owner
            case ast.Call(func=ast.Name(id="getattr"), args=[base, ast.Constant(value=str(name)), *_]):
                owner = self._of(base)
                if owner is not None:
                    return owner.attributes.setdefault(name, Usage())
            case ast.Call(
                func=ast.Name(id="default" | "cast_tuple" | "to_2tuple" | "pair" | "list" | "tuple"), args=[first, *_]
            ):
                # Helpers by these names give their first argument back, or one that may stand for it.
                return self._of(first)
        return None

    # --- What is done with it -----------------------------------------------------------------------------------------

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                for child in ast.iter_child_nodes(node):
                    self._visit(child)
                return
            case ast.Assign(targets=targets, value=value):
                self._visit(value)
                for target in targets:
                    self._assign(target, value)
                return
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._visit(value)
                self._assign(target, value)
                return
            case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
                self._visit(source)
                self._loop(target, source)
            case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops) | ast.SetComp(generators=loops):
                for loop in loops:
                    self._visit(loop)
                self._visit(node.elt)
                return
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not self.constructing:
                for part in ast.walk(test):
                    if isinstance(part, ast.Name | ast.Attribute) and (used := self._of(part)) is not None:
                        used.decides = True
            case ast.Compare():
                self._compare(node)
            case ast.Subscript(value=container, slice=key) if (used := self._of(key)) is not None:
                self._look_up(used, container)
            case ast.BinOp():
                self._arithmetic(node)
            case ast.UnaryOp(op=ast.USub(), operand=operand) if (used := self._of(operand)) is not None:
                used.number += 1
            case ast.Call():
                self._call(node)
            case ast.Match(subject=subject, cases=cases) if (used := self._of(subject)) is not None:
                for case in cases:
                    for pattern in ast.walk(case.pattern):
                        if isinstance(pattern, ast.MatchValue) and isinstance(pattern.value, ast.Constant):
                            used.options[pattern.value.value] = None
            case ast.Attribute() | ast.Subscript() if isinstance(node.ctx, ast.Load):
                self._of(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            used = self._of(value)
            if used is not None:
                used.sequence = True
                if not any(isinstance(part, ast.Starred) for part in target.elts):
                    used.length = len(target.elts)
                for part in target.elts:
                    self.known[ast.unparse(part)] = used.of_items()
            elif isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                for part, item in zip(target.elts, value.elts, strict=True):
                    self._assign(part, item)
            return
        text = ast.unparse(target)
        used = self._of(value)
        if used is not None:
            self.known[text] = used
            if text.startswith("self.") and used.called is not None and self.constructing is False:
                used.layer = True
        elif isinstance(value, ast.Dict | ast.List | ast.Tuple | ast.Set):
            self.tables[text] = value
        elif text in self.known and text not in self.result.of:
            del self.known[text]

    def _loop(self, target: ast.expr, source: ast.expr) -> None:
        match source:
            case ast.Call(func=ast.Name(id="zip"), args=several):
                together = [usage for usage in map(self._of, several) if usage is not None]
                names = [ast.unparse(item) for item in several]
                for usage in together:
                    usage.sequence = True
                    usage.same_length |= {*names}
                parts = target.elts if isinstance(target, ast.Tuple) else []
                for part, inner in zip(parts, several, strict=False):
                    self._loop(part, inner)
                return
            case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
                if isinstance(target, ast.Tuple) and len(target.elts) == 2:
                    self._loop(target.elts[1], inner)
                return
            case ast.Call(func=ast.Name(id="reversed" | "list" | "tuple" | "sorted"), args=[inner]):
                self._loop(target, inner)
                return
            case ast.Call(func=ast.Attribute(value=base, attr="items")) if (used := self._of(base)) is not None:
                used.mapping = True
                return
        used = self._of(source)
        if used is None:
            return
        items = used.of_items()
        if isinstance(target, ast.Tuple | ast.List):
            items.sequence, items.length = True, len(target.elts)
            for part in target.elts:
                self.known[ast.unparse(part)] = items.of_items()
        else:
            self.known[ast.unparse(target)] = items

    def _compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for index, op in enumerate(node.ops):
            for one, other in ((sides[index], sides[index + 1]), (sides[index + 1], sides[index])):
                used = self._of(one)
                if used is None:
                    continue
                if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    used.number += 1
                elif isinstance(op, ast.In | ast.NotIn) and one is sides[index]:
                    self._look_up(used, other)
                elif isinstance(other, ast.Constant):
                    if other.value is None:
                        used.may_be_none = True
                    elif isinstance(other.value, str):
                        used.options[other.value] = None
                elif hasattr(type(value := self._value(other)), "__members__"):
                    used.options[value] = None

    def _look_up(self, used: Usage, container: ast.expr) -> None:
        if isinstance(container, ast.Call) and isinstance(container.func, ast.Attribute):
            container = container.func.value  # TABLE.keys()
        table = self.tables.get(ast.unparse(container), container)
        match table:
            case ast.Dict(keys=keys):
                for key in keys:
                    if isinstance(key, ast.Constant):
                        used.options[key.value] = None
                return
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                for item in items:
                    if isinstance(item, ast.Constant) and item.value is not None:
                        used.options[item.value] = None
                if isinstance(container, ast.List | ast.Tuple | ast.Set) or used.options:
                    return
        value = self._value(container)
        if isinstance(value, dict | set | frozenset) or (isinstance(value, list | tuple) and used.text):
            listed = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
            used.options |= dict.fromkeys([item for item in listed if isinstance(item, str | int)][:_MOST_OPTIONS])
        elif isinstance(value, type) and hasattr(value, "__members__"):
            used.options |= dict.fromkeys(list(value.__members__)[:_MOST_OPTIONS])
        elif self._of(container) is not None or isinstance(value, list | tuple):
            used.number += 1

    def _arithmetic(self, node: ast.BinOp) -> None:
        for one, other in ((node.left, node.right), (node.right, node.left)):
            used = self._of(one)
            if used is None:
                continue
            if isinstance(other, ast.List | ast.Tuple) and isinstance(node.op, ast.Add):
                used.sequence = True
            elif isinstance(other, ast.Constant | ast.JoinedStr) and isinstance(getattr(other, "value", ""), str):
                used.text = True
            elif isinstance(node.op, ast.Mod | ast.FloorDiv):
                used.number += 2
                if one is node.left and isinstance(other, ast.Name):
                    used.divisors.add(other.id)
            elif not isinstance(node.op, ast.BitOr | ast.BitAnd | ast.MatMult):
                used.number += 1
            if not self.constructing and not isinstance(other, ast.Constant) and not used.number:
                used.tensor = True

    def _call(self, node: ast.Call) -> None:
        used = self._of(node.func)
        if used is not None:
            used.called = max(used.called or 0, len(node.args) + len(node.keywords))
            if self.constructing:
                used.factory = True
            else:
                used.layer = True
            return
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if (isinstance(node.func, ast.Name) or name in ("isfunction", "ismethod")) and self._builtin(name, node.args):
            return
        kwargs = self.result.kwargs
        if isinstance(node.func, ast.Attribute) and kwargs is not None and ast.unparse(node.func.value) == kwargs:
            if node.func.attr == "pop" and len(node.args) == 1 and isinstance(node.args[0], ast.Constant):
                self.result.required_keys.setdefault(str(node.args[0].value), Usage())
            return
        callee = self._callee(node.func)
        if callee is None:
            return
        names = [p.name for p in positional_parameters(callee)]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "__init__" and _is_self(node.args[:1]):
            given = node.args[1:]
        else:
            given = node.args
        for index, argument in enumerate(given):
            if isinstance(argument, ast.Starred):
                self._spread(argument.value, callee, names[index:])
                break
            if (used := self._of(argument)) is not None:
                if isinstance(callee, type) and len(given) + len(node.keywords) == 1:
                    _convert(used, callee)
                self._passed(used, callee, names[index] if index < len(names) else None)
        explicit = frozenset({*names[: len(given)], *(k.arg for k in node.keywords if k.arg)})
        for keyword in node.keywords:
            if keyword.arg is not None:
                if (used := self._of(keyword.value)) is not None:
                    self._passed(used, callee, keyword.arg)
            elif kwargs is not None and ast.unparse(keyword.value) == kwargs:
                self.result.sinks.append((callee, explicit))
            elif (used := self._of(keyword.value)) is not None:
                self._keywords(used, callee, explicit)

    def _builtin(self, name: str, arguments: list[ast.expr]) -> bool:
        first = self._of(arguments[0]) if arguments else None
        if name in ("range", "int", "float", "abs", "round", "bool"):
            for used in map(self._of, arguments):
                if used is not None and name != "bool":
                    used.number += 1
        elif name in ("len", "enumerate", "sum", "sorted", "reversed", "list", "tuple", "iter", "map", "filter"):
            used = self._of(arguments[-1]) if arguments and name in ("map", "filter") else first
            if used is not None:
                used.of_items()
            if name == "map" and first is not None:
                first.called = 1
        elif name in ("max", "min") and len(arguments) == 1 and first is not None:
            first.of_items().number += 1
        elif name == "zip":
            for used in map(self._of, arguments):
                if used is not None:
                    used.sequence = True
                    used.same_length |= {ast.unparse(a) for a in arguments}
        elif name in ("isinstance", "issubclass") and first is not None and len(arguments) == 2:
            value = self._value(arguments[1])
            classes = value if isinstance(value, tuple) else (value,)
            first.classes = (*first.classes, *(c for c in classes if isinstance(c, type) and c not in first.classes))
        elif name in ("callable", "isfunction", "ismethod") and first is not None:
            first.tested_callable = True
        elif name == "getattr" and len(arguments) > 1 and (key := self._of(arguments[1])) is not None:
            owner = self._value(arguments[0])
            usual = [n for n in ("relu", "ReLU", "gelu", "tanh", "mean", "Linear") if hasattr(owner, n)]
            key.options |= dict.fromkeys(usual)
            key.text = True
        else:
            return False
        return True

    def _passed(self, used: Usage, callee: Any, name: str | None) -> None:
        """A value that another callable takes as its parameter is used as that one uses it."""
        module = getattr(callee, "__module__", None) or ""
        if module.partition(".")[0] == "torch" or isinstance(callee, types.BuiltinFunctionType):
            _by_torch(used, callee, name)
        elif name is not None and self.depth > 0:
            inner = usage_of(callee, self.depth - 1).of.get(name)
            if inner is not None:
                used.merge(inner)

    def _spread(self, value: ast.expr, callee: Any, names: list[str]) -> None:
        used = self._of(value)
        if used is None:
            return
        used.sequence = True
        if callee in (torch.nn.Sequential, torch.nn.ModuleList):
            used.of_items().layer = True
        elif names:
            used.length = used.length or len(names)
            for name in names:
                self._passed(used.of_items(), callee, name)

    def _keywords(self, used: Usage, callee: Any, explicit: frozenset[str]) -> None:
        used.mapping = True
        if self.depth <= 0:
            return
        inner = usage_of(callee, self.depth - 1)
        for parameter in positional_parameters(callee, every=True):
            if parameter.default is parameter.empty and parameter.name not in explicit:
                used.keys.setdefault(parameter.name, Usage()).merge(inner.of.get(parameter.name, Usage()))

    # --- What a name means --------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        """A module's names and attributes of them; `self.CONSTANT` of the class."""
        match node:
            case ast.Name(id=name):
                builtins = self.names.get("__builtins__", {})
                fallback = builtins.get(name) if isinstance(builtins, dict) else getattr(builtins, name, None)
                return self.names.get(name, fallback)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if self.cls is not None:
                return inspect.getattr_static(self.cls, name, None)
            case ast.Attribute(value=base, attr=name):
                owner = self._value(base)
                try:
                    return getattr(owner, name, None) if owner is not None else None
                except BaseException:  # a lazy module whose part can't be loaded
                    return None
            case ast.Tuple(elts=items):
                values = tuple(self._value(item) for item in items)
                return values if all(value is not None for value in values) else None
        return None

    def _callee(self, node: ast.expr) -> Any:
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                if self.cls is None or self.owner is None:
                    return None
                order = self.cls.__mro__
                after = order[order.index(self.owner) + 1 :]
                parent = next((c for c in after if name in vars(c)), None)
                if parent is None or parent.__module__.partition(".")[0] in ("builtins",):
                    return None
                return parent if name == "__init__" else getattr(parent, name)
            case ast.Attribute(value=base, attr="__init__"):
                value = self._value(base)
                return value if isinstance(value, type) else None
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if self.cls is not None:
                value = inspect.getattr_static(self.cls, name, None)
                return value if isinstance(value, types.FunctionType) else None
        value = self._value(node)
        return value if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) else None


def positional_parameters(callee: Any, *, every: bool = False) -> list[inspect.Parameter]:
    """Parameters that a call may fill by position, without `self`; `every`: also those by keyword only."""
    function = callee
    if isinstance(callee, type):
        found = initialiser(callee)
        function = found[1] if found is not None else None
    if function is None:
        return []
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except Exception:
        return []
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    packed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in parameters if p.kind not in packed and (every or p.kind is not p.KEYWORD_ONLY)]


def _convert(used: Usage, cls: type) -> None:
    """`Notation(text)`: whatever makes a `Notation` will do."""
    if cls.__module__.partition(".")[0] not in ("torch", "builtins") and not issubclass(cls, torch.nn.Module):
        used.converted = (*used.converted, *((cls,) if cls not in used.converted else ()))


def _by_torch(used: Usage, callee: Any, name: str | None) -> None:
    if callee in (torch.nn.Sequential,):
        used.layer = True
    elif callee is torch.nn.ModuleList:
        used.of_items().layer = True
    elif isinstance(callee, type) and issubclass(callee, torch.nn.Module):
        parameter = next((p for p in positional_parameters(callee, every=True) if p.name == name), None)
        annotation = str(parameter.annotation) if parameter is not None else ""
        if "Module" in annotation or name in ("module", "encoder_layer", "decoder_layer"):
            used.layer = True
        elif "float" in annotation or name in ("p", "eps", "momentum"):
            used.real = True
        elif "bool" in annotation or name in ("bias", "affine", "inplace"):
            used.options |= {False: None, True: None}
        elif "str" in annotation and "int" not in annotation:
            used.text = True
        else:
            used.number += 1
    elif getattr(callee, "__name__", "") in ("zeros", "ones", "randn", "rand", "empty", "arange", "linspace", "eye"):
        used.number += 1


def _is_self(arguments: list[ast.expr]) -> bool:
    return bool(arguments) and isinstance(arguments[0], ast.Name) and arguments[0].id == "self"


def package_modules(name: str) -> list[types.ModuleType]:
    """The modules of a package that are loaded, in the order of their names."""
    top = name.partition(".")[0]
    return [
        module
        for key, module in sorted(sys.modules.items())
        if (key == top or key.startswith(f"{top}.")) and isinstance(module, types.ModuleType)
    ]
