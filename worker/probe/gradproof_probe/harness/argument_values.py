"""Values to try for one constructor parameter: what its annotation, its use, its name and the repository say.

Gives expressions and why; runs nothing except through `instances`, by which a class of the package is built in turn.
"""

from __future__ import annotations

import ast
import collections.abc
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.harness.mined_values import EMPTY, calls_of, values_named
from gradproof_probe.harness.names import PLACE_OF_A_FILE, constructor_value
from gradproof_probe.harness.objects import classes_with, concrete, layer_with, namespace, reference
from gradproof_probe.harness.usage import Usage, unwrapped

PLURAL: Final = re.compile(
    r"(dims|widths|channels_list|depths|layers_list|sizes|stages|filters|features_list|hidden_dims|fmaps|"
    r"mults|channels_per_layer|num_blocks|strides|paddings|kernels)$"
)
_MODEL: Final = re.compile(
    r"^(fn|func|f|net|model|module|layer|block|backbone|encoder|decoder|base|network|inner|transformer|trunk|body|head|"
    r"teacher|student|generator|discriminator|vae|vit|unet|.*_(net|model|module|encoder|decoder|backbone|network))$",
    re.IGNORECASE,
)
_NORM: Final = re.compile(r"norm", re.IGNORECASE)
_ACTIVATION: Final = re.compile(r"act|nonlin|gate|relu", re.IGNORECASE)
_LENGTH: Final = 2
_OBJECT_FIELDS: Final = 24


@dataclass(frozen=True, slots=True)
class Choice:
    """An expression for a parameter. `found_by`: names, usage or values. `weak`: nothing spoke for it."""

    expression: str
    found_by: str
    weak: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """Where values are made: the names of the target's module, its package, and how a class is built."""

    names: Mapping[str, Any]
    package: str
    root: Path | None
    target: type | None
    instances: Callable[[type, int], list[str]]


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", text) is not None


def _is_integer(text: str) -> bool:
    return re.fullmatch(r"-?\d+", text) is not None


class ArgumentValues:
    """`depth`: how many more times a value may be an object that is itself constructed."""

    def __init__(self, scope: Scope, depth: int) -> None:
        self.scope = scope
        self.depth = depth

    def choices(self, parameter: inspect.Parameter, usage: Usage, function: Any) -> list[Choice]:
        """At most eight, the best first, never none."""
        found: dict[str, Choice] = {}
        for choice in self._choices(parameter, usage, function):
            found.setdefault(choice.expression, choice)
            if len(found) >= 8:
                break
        return list(found.values())

    def _choices(self, parameter: inspect.Parameter, usage: Usage, function: Any) -> Iterator[Choice]:
        annotation = resolved_annotation(parameter, function)
        name = parameter.name
        if PLACE_OF_A_FILE.search(name):
            yield Choice("'missing'", "names")
            return
        annotated = list(self._by_annotation(annotation, name, usage))
        if annotated and not self._mined_instead(annotation):
            yield from annotated
        if self._mined_instead(annotation):
            yield from self._mined(name, kind=str)
        if annotation is parameter.empty or not annotated or self._mined_instead(annotation):
            yield from self._by_usage(name, usage)
        yield from annotated
        if annotation in (int, float):
            yield from self._mined(name)
            return
        if annotated and _is_described(annotation):
            return  # a number in place of what only its class can be
        yield from self._by_text(parameter)
        by_name = constructor_value(name)
        if by_name is not None:
            yield Choice(by_name, "names")
        yield from self._mined(name)
        yield Choice("8", "names", weak=True)

    def _mined_instead(self, annotation: Any) -> bool:
        """A class of text-like notation of the package: the texts that the repository gives for it say more."""
        return isinstance(annotation, type) and issubclass(annotation, tuple | str) and annotation not in (tuple, str)

    # --- Annotation ---------------------------------------------------------------------------------------------------

    def _by_annotation(self, annotation: Any, name: str, usage: Usage) -> Iterator[Choice]:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation in (inspect.Parameter.empty, Any, None, type(None), object):
            return
        if isinstance(annotation, typing.TypeVar):
            yield from self._by_annotation(annotation.__bound__, name, usage)
        elif isinstance(annotation, typing.NewType):
            yield from self._by_annotation(annotation.__supertype__, name, usage)
        elif origin is typing.Annotated:
            yield from self._by_annotation(arguments[0], name, usage)
        elif origin is typing.Literal:
            yield from (Choice(repr(value), "names") for value in arguments if value is not None)
        elif origin in (typing.Union, types.UnionType):
            yield from self._by_arms([a for a in arguments if a is not type(None)], name, usage)
        elif origin is type or annotation is type:
            yield from self._classes(arguments[0] if arguments else None, name, usage)
        elif origin is collections.abc.Callable or annotation is collections.abc.Callable:
            if arguments and arguments[-1] in (int, float):
                yield Choice("lambda *_: " + ("2" if arguments[-1] is int else "0.5"), "names")
            yield from self.callables(name, usage)
        elif _is_sequence(origin or annotation):
            yield from self._sequence_of(origin or annotation, arguments, name, usage)
        elif _is_mapping(origin or annotation):
            yield from self._mapping_of(arguments, name, usage)
            yield from self._mapping(name, usage)
        elif isinstance(origin or annotation, type):
            yield from self._by_class(origin or annotation, name, usage)

    def _by_arms(self, arms: list[Any], name: str, usage: Usage) -> Iterator[Choice]:
        """The arm that the name's own value fits comes first; the others follow in their order."""
        by_name = constructor_value(name)
        if PLURAL.search(name) and not usage.classes:
            arms = sorted(arms, key=lambda arm: not _is_sequence(typing.get_origin(arm) or arm))
        elif by_name is not None and _is_integer(by_name) and int in arms:
            arms = [int, *(arm for arm in arms if arm is not int)]
        for arm in arms:
            yield from self._by_annotation(arm, name, usage)

    def _by_class(self, annotation: type, name: str, usage: Usage) -> Iterator[Choice]:
        by_name = constructor_value(name)
        if issubclass(annotation, enum.Enum):
            for member in annotation:
                if (text := reference(member, self.scope.names)) is not None:
                    yield Choice(text, "names")
        elif annotation is bool:
            yield Choice("True" if by_name == "True" else "False", "names")
        elif annotation is int:
            yield from (Choice(repr(o), "usage") for o in usage.options if type(o) is int)
            yield Choice(by_name if by_name is not None and _is_integer(by_name) else "8", "names")
        elif annotation is float:
            yield Choice(by_name if by_name is not None and is_number(by_name) else "0.5", "names")
        elif annotation is str:
            yield from self._texts(name, usage)
        elif issubclass(annotation, torch.Tensor):
            yield Choice("torch.randn(8, 8)" if not usage.length else f"torch.randn({usage.length})", "names")
            yield from (Choice(text, "names") for text in ("torch.rand(2)", "torch.rand(2, 2)", "torch.rand(8)"))
        elif annotation is torch.device:
            yield Choice("torch.device('cpu')", "names")
        elif annotation is torch.dtype:
            yield Choice("torch.float32", "names")
        elif annotation is torch.nn.Module:
            yield from self._layers(name, usage)
        elif annotation.__module__ != "builtins":
            yield from self._instances(annotation, usage)

    def _instances(self, annotation: type, usage: Usage) -> Iterator[Choice]:
        if self.depth > 0:
            for cls in concrete(annotation, self.scope.package):
                yield from (Choice(text, "names") for text in self.scope.instances(cls, self.depth - 1))
        if usage.own_attributes:
            yield from self.objects(usage, module=issubclass(annotation, torch.nn.Module))

    def _sequence_of(self, kind: Any, arguments: tuple[Any, ...], name: str, usage: Usage) -> Iterator[Choice]:
        items = list(arguments)
        if kind is tuple and items and items[-1] is not Ellipsis:
            single = singular(name)
            texts = [self._item(item, single, usage.item or Usage()) for item in items]
            yield Choice(_tuple(texts), "names")
            return
        item = items[0] if items else inspect.Parameter.empty
        yield from self._sequences(name, usage, item, "[]" if kind in (list, collections.abc.MutableSequence) else "()")

    def _mapping_of(self, arguments: tuple[Any, ...], name: str, usage: Usage) -> Iterator[Choice]:
        """Objects of a class by made-up names, where the annotation has them and no key is asked for."""
        if len(arguments) == 2 and arguments[0] is str and _is_described(arguments[1]) and not usage.keys:
            item = next((c.expression for c in self._by_annotation(arguments[1], singular(name), Usage())), None)
            if item is not None:
                yield Choice(f"{{'first': {item}, 'second': {item}}}", "names")

    def _item(self, annotation: Any, name: str, usage: Usage) -> str:
        return next((choice.expression for choice in self._by_annotation(annotation, name, usage)), None) or next(
            choice.expression for choice in self._by_usage_or_name(name, usage)
        )

    def _by_usage_or_name(self, name: str, usage: Usage) -> Iterator[Choice]:
        yield from self._by_usage(name, usage)
        by_name = constructor_value(name)
        yield Choice(by_name or "8", "names", weak=by_name is None)

    # --- Use ----------------------------------------------------------------------------------------------------------

    def _by_usage(self, name: str, usage: Usage) -> Iterator[Choice]:
        options = [option for option in usage.options if option != "" and isinstance(option, str | bool | enum.Enum)]
        by_name = constructor_value(name)
        yield from self._converted(usage)
        plain_number = bool(usage.number) and not usage.sequence and not usage.own_attributes
        if options and not (plain_number and by_name is not None and is_number(by_name)):
            yield from self._options(options)
        own = [cls for cls in usage.classes if cls.__module__.partition(".")[0] == self.scope.package.partition(".")[0]]
        if own and self.depth > 0:
            for cls in own:
                yield from (Choice(text, "usage") for text in self.scope.instances(cls, self.depth - 1))
        if usage.is_shaped and not usage.number:
            yield from self._tensors(name)
            return
        if usage.factory and usage.own_attributes:
            yield from self._classes(None, name, usage)
        if usage.own_attributes and not usage.number:
            yield from self.objects(usage, module=usage.layer or bool(_MODEL.search(name)))
        if usage.mapping and not usage.own_attributes:
            yield from self._mapping(name, usage)
        if usage.sequence and not usage.mapping and not usage.own_attributes:
            if usage.classes and (by_name is None or is_number(by_name)):
                yield Choice(by_name or "8", "usage")  # `x if isinstance(x, tuple) else (x, x)`: a number will do
            yield from self._sequences(name, usage, inspect.Parameter.empty, "()")
        if usage.factory and not usage.number:
            yield from self.callables(name, usage)
        if usage.layer and not usage.own_attributes and not usage.sequence:
            yield from self._layers(name, usage)
        if usage.text:
            yield from self._texts(name, usage)
        if usage.real and not usage.number:
            yield Choice(by_name if by_name is not None and is_number(by_name) else "0.1", "usage")
        if usage.tensor and not usage.number and not usage.layer:
            yield Choice("torch.randn(8, 8)", "usage")
        if usage.number:
            yield Choice(
                by_name if by_name is not None and is_number(by_name) else "8", "usage" if not by_name else "names"
            )

    @staticmethod
    def _tensors(name: str) -> Iterator[Choice]:
        """A matrix; of embeddings one row for each word, as the widths elsewhere go by their names."""
        sizes = ("vocab_size", "hidden_size") if "embed" in name else ("input_dim", "input_dim")
        rows, columns = (constructor_value(size) or "8" for size in sizes)
        yield Choice(f"torch.randn({rows}, {columns})", "usage")
        yield Choice(f"torch.nn.Parameter(torch.randn({rows}, {columns}))", "usage")

    def _converted(self, usage: Usage) -> Iterator[Choice]:
        """Where a class is made of nothing but this value: what the repository makes that class of."""
        for cls in usage.converted if self.scope.root is not None else ():
            for arguments in calls_of(self.scope.root, cls.__name__):
                call = ast.parse(f"f{arguments}", mode="eval").body
                if not (isinstance(call, ast.Call) and len(call.args) == 1 and not call.keywords):
                    continue
                text = ast.unparse(call.args[0])
                if text not in EMPTY and not any(int(number) > 64 for number in re.findall(r"\d+", text)):
                    yield Choice(text, "values")

    def _options(self, options: list[Any]) -> Iterator[Choice]:
        for option in options:
            text = reference(option, self.scope.names) if isinstance(option, enum.Enum) else repr(option)
            if text is not None:
                yield Choice(text, "usage")

    def _texts(self, name: str, usage: Usage) -> Iterator[Choice]:
        yield from self._options([option for option in usage.options if isinstance(option, str)])
        yield from self._mined(name, kind=str)
        usual = "'mean'" if name == "reduction" else "'relu'" if _ACTIVATION.search(name) else "'same'"
        yield Choice(usual, "names", weak=True)

    def _mined(self, name: str, kind: type | None = None) -> Iterator[Choice]:
        if self.scope.root is None:
            return
        for text in values_named(self.scope.root, name):
            asked = (kind is str) == (text[:1] in "'\"")
            # Of widths in a tuple a layer may make one tensor: (64, 128, 256, 512) would have a billion elements.
            inside = [int(number) for number in re.findall(r"\d+", text)] if text[:1] in "([{" else []
            if asked and (0 < float(text) <= 64 if is_number(text) else max(inside, default=0) <= 64):
                yield Choice(text, "values")

    def _sequences(self, name: str, usage: Usage, item: Any, brackets: str) -> Iterator[Choice]:
        single, inner = singular(name), usage.item or Usage()
        text = self._item(item, single, inner)
        length = usage.length or _LENGTH
        found_by = "usage" if usage.sequence else "names"
        texts = [text] * length
        if _is_integer(text) and re.search(r"dim|width|channels|features|hidden|units|filters", name):
            texts = [str(int(text) + 4 * index) for index in range(length)]  # distinct widths: 8, 12, 16
        if text[:1] == "'" and not inner.options:
            for choice in self._mined(name):
                if choice.expression[:1] in "[(":
                    yield choice
            texts = [repr(word) for word in ("first", "second", "third", "fourth", "fifth", "sixth")[:length]]
        yield Choice(_bracketed(texts, brackets), found_by)
        if usage.length is None:
            for other in (3, 1, 4, 6):
                yield Choice(_bracketed([text] * other, brackets), found_by)
        if len(set(texts)) > 1:
            yield Choice(_bracketed([text] * length, brackets), found_by)

    def _mapping(self, name: str, usage: Usage) -> Iterator[Choice]:
        if usage.keys:
            values = {key: self._field(key, inner) for key, inner in list(usage.keys.items())[:_OBJECT_FIELDS]}
            yield Choice("{" + ", ".join(f"{key!r}: {text}" for key, text in values.items()) + "}", "usage")
        for choice in self._mined(name):
            if choice.expression.startswith("{"):
                yield choice
        yield Choice("{}", "usage", weak=True)

    def _field(self, name: str, usage: Usage) -> str:
        inner = ArgumentValues(self.scope, self.depth - 1)
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        if usage.called is not None and not usage.number:
            return "torch.nn.Identity()"
        return inner.choices(parameter, usage, None)[0].expression

    def objects(self, usage: Usage, *, module: bool) -> Iterator[Choice]:
        """A class of the package with the attributes, or one made for them."""
        wanted = usage.own_attributes
        base = torch.nn.Module if module else object
        if self.depth > 0:
            scope = self.scope
            for cls in classes_with(scope.package, wanted, base, excluding=scope.target, names=scope.names):
                yield from (Choice(text, "usage") for text in self.scope.instances(cls, self.depth - 1))
        if self.depth >= 0:
            fields = {key: self._field(key, inner) for key, inner in list(wanted.items())[:_OBJECT_FIELDS]}
            yield Choice(layer_with(fields) if module else namespace(fields), "usage")

    def _layers(self, name: str, usage: Usage) -> Iterator[Choice]:
        if usage.own_attributes:
            yield from self.objects(usage, module=True)
        by_name = constructor_value(name)
        found_by = "usage" if usage.layer else "names"
        if by_name is not None and re.search(r"nn\.\w+\(", by_name):
            yield Choice(by_name, found_by)
        if usage.sequence:
            yield Choice("[torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)]", found_by)
        yield Choice("torch.nn.Linear(8, 8)", found_by)
        yield Choice("torch.nn.Conv2d(3, 3, 3, padding=1)", found_by)
        yield Choice("torch.nn.Identity()", found_by)

    def callables(self, name: str, usage: Usage) -> Iterator[Choice]:
        found_by = "usage" if usage.called is not None else "names"
        if usage.factory:
            yield from self._classes(None, name, usage)
        elif usage.called == 2:
            yield Choice("torch.add", found_by)
        by_name = constructor_value(name)
        if by_name is not None and "nn." in by_name:
            yield Choice(by_name, found_by)
        yield from (Choice("torch.tanh", found_by), Choice("torch.nn.Linear(8, 8)", found_by))

    def _classes(self, bound: Any, name: str, usage: Usage) -> Iterator[Choice]:
        """A class, by its name or by how many arguments it is called with."""
        found_by = "usage" if usage.factory else "names"
        scope = self.scope
        own: list[type] = []
        for arm in typing.get_args(bound) or (bound,):
            if isinstance(arm, type) and arm.__module__.partition(".")[0] not in ("torch", "builtins"):
                own += concrete(arm, scope.package)
        if usage.own_attributes:
            wanted = usage.own_attributes
            own += classes_with(scope.package, wanted, torch.nn.Module, excluding=scope.target, names=scope.names)
        for cls in own:
            if (text := reference(cls, scope.names)) is not None:
                yield Choice(text, found_by)
        if _NORM.search(name):
            yield from (Choice("torch.nn.LayerNorm", found_by), Choice("torch.nn.BatchNorm2d", found_by))
        elif _ACTIVATION.search(name):
            yield Choice("torch.nn.Tanh", found_by)
        called = usage.called if usage.called is not None else 1
        order = ("torch.nn.Tanh", "torch.nn.LayerNorm", "torch.nn.Linear", "torch.nn.Conv2d")
        yield from (Choice(text, found_by) for text in (*order[min(called, 3) :], *order))

    # --- Name ---------------------------------------------------------------------------------------------------------

    def _by_text(self, parameter: inspect.Parameter) -> Iterator[Choice]:
        """An annotation that couldn't be resolved is still text with words in it."""
        if PLURAL.search(parameter.name):
            yield from self._sequences(parameter.name, Usage(), inspect.Parameter.empty, "()")
        annotation = parameter.annotation
        if not isinstance(annotation, str):
            return
        by_name = constructor_value(parameter.name)
        if re.search(r"tuple|list|sequence|iterable", annotation, re.IGNORECASE):
            yield from self._sequences(parameter.name, Usage(), inspect.Parameter.empty, "()")
        elif "Tensor" in annotation:
            yield Choice("torch.randn(8, 8)", "names")
        elif "Module" in annotation:
            yield from self._layers(parameter.name, Usage())
        elif re.search(r"callable", annotation, re.IGNORECASE):
            yield from self.callables(parameter.name, Usage())
        for word, text in (("bool", "False"), ("int", "8"), ("float", "0.5")):
            if re.search(rf"\b{word}\b", annotation) and not (by_name is not None and is_number(by_name)):
                yield Choice(text, "names")


def resolved_annotation(parameter: inspect.Parameter, function: Any) -> Any:
    """The annotation as an object where the names in it can be found; the empty mark otherwise."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        names = dict(getattr(unwrapped(function), "__globals__", {})) if function is not None else {}
        text, annotation = annotation, _evaluated(annotation, names)
        if annotation is parameter.empty and "|" in text:
            # A name that is imported for type checkers only doesn't take the other arms of its union with it.
            known = [arm for arm in _arms(text) if _evaluated(arm, names) is not parameter.empty]
            annotation = _evaluated(" | ".join(known), names)
    if isinstance(annotation, typing.ForwardRef | str):
        return parameter.empty
    return annotation


def _evaluated(text: str, names: dict[str, Any]) -> Any:
    try:
        return eval(text, names)
    except BaseException:
        return inspect.Parameter.empty


def _arms(annotation: str) -> list[str]:
    """`int`, `list[int | str]` and `None` of `int | list[int | str] | None`."""
    try:
        node = ast.parse(annotation.strip(), mode="eval").body
    except SyntaxError:
        return [annotation]
    arms: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        arms.insert(0, ast.unparse(node.right))
        node = node.left
    return [ast.unparse(node), *arms]


def _is_described(annotation: Any) -> bool:
    """A class of a package, or an optional one: not a number, text, sequence, layer or tensor."""
    arms = [arm for arm in typing.get_args(annotation) if arm is not type(None)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return len(arms) == 1 and _is_described(arms[0])
    cls = typing.get_origin(annotation) or annotation
    if not isinstance(cls, type) or cls.__module__.partition(".")[0] in ("builtins", "typing", "collections"):
        return False
    return not issubclass(cls, torch.nn.Module | torch.Tensor | str | tuple | int | float)


def singular(name: str) -> str:
    """`hidden_dims` holds values such as `hidden_dim`."""
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


def _is_sequence(kind: Any) -> bool:
    return kind in (tuple, list, set, frozenset) or (
        isinstance(kind, type)
        and issubclass(kind, collections.abc.Iterable)
        and kind.__module__ in ("collections.abc", "typing")
        and not issubclass(kind, collections.abc.Mapping)
    )


def _is_mapping(kind: Any) -> bool:
    """A mapping of any kind; a package's own class that is one too is made as its constructor says."""
    own = isinstance(kind, type) and kind.__module__.partition(".")[0] in ("collections", "typing")
    return kind is dict or (own and issubclass(kind, collections.abc.Mapping))


def _tuple(texts: list[str]) -> str:
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


def _bracketed(texts: list[str], brackets: str) -> str:
    return f"[{', '.join(texts)}]" if brackets == "[]" else _tuple(texts)
