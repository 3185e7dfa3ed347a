"""Other constructor arguments after an error: the guard that raised is solved; what it said in words comes second.

Changes expressions; evaluates nothing but the names of classes in them.
"""

from __future__ import annotations

import ast
import copy
import enum
import inspect
import linecache
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from gradproof_probe.harness.conditions import Answer, Change, UnknownValueError, evaluate, solve
from gradproof_probe.harness.constructor_parameters import KnownParameter
from gradproof_probe.harness.names import PLACE_OF_A_FILE, constructor_value
from gradproof_probe.harness.objects import reference
from gradproof_probe.harness.raised_conditions import frames_of, guards
from gradproof_probe.harness.sources import tree_of
from gradproof_probe.harness.usage import Usage, initialiser

if TYPE_CHECKING:
    from gradproof_probe.harness.constructors import Constructors

MOST: Final = 14
_MOST_AXES: Final = 5
_PER_GUARD: Final = 6
# By what was raised: values that an argument of another kind would have. Expressions.
_PLACES: Final = frozenset({"device", "dtype", "generator"})  # where and how, not what: their defaults are right
_SEQUENCES: Final = ("(8, 8)", "(1, 1)", "(2, 2, 2)", "[4, 8]")
_TENSORS: Final = ("torch.randn(8, 8)", "torch.nn.Parameter(torch.randn(8, 8))")
_OBJECTS: Final = ("torch.nn.Linear(8, 8)", "torch.nn.Identity()", "torch.nn.ReLU")
_TEXTS: Final = ("'relu'", "'mean'", "'none'", "'same'", "'batch'")
_NUMBERS: Final = ("8", "4", "2", "1", "16", "3", "64", "0.5")
Changed = tuple[str, str, str]  # expression, why, found by


class ConstructorRepair:
    """Repairs of the expressions of one class."""

    def __init__(self, owner: Constructors) -> None:
        self.owner = owner

    def changed(self, error: BaseException, expression: str) -> Iterator[Changed]:
        """At most fourteen changed expressions, the likeliest first."""
        try:
            tree = ast.parse(expression, mode="eval").body
        except SyntaxError:
            return
        if isinstance(tree, ast.Call):
            found = tuple(self._by_key(error, tree))
            if not found:
                found = (*self._by_call(error, tree), *self._by_guards(error, tree), *self._by_message(error, tree))
            yield from islice(dict.fromkeys(found), MOST)

    # --- Mappings that we made ------------------------------------------------------------------------------------

    def _by_key(self, error: BaseException, tree: ast.Call) -> Iterator[Changed]:
        """A key that a mapping of ours lacks: composed of parts (`side + finger`), so that no reading finds it."""
        if not isinstance(error, KeyError) or not error.args or not isinstance(error.args[0], str | int):
            return
        key = error.args[0]
        asked = [set(value) for level in frames_of(error) for value in _mappings(level.frame) if key not in value]
        for place, node in enumerate(ast.walk(tree)):
            if not isinstance(node, ast.Dict) or {getattr(k, "value", None) for k in node.keys} not in asked:
                continue
            changed = copy.deepcopy(tree)
            mapping = next(n for index, n in enumerate(ast.walk(changed)) if index == place)
            assert isinstance(mapping, ast.Dict)
            named = constructor_value(key) if isinstance(key, str) else None
            like = mapping.values[-1] if mapping.values and named is None else None
            mapping.keys.append(ast.Constant(key))
            mapping.values.append(like or ast.parse(named or "8", mode="eval").body)
            yield ast.unparse(changed), f"the key {key!r:.60} is asked for", "guards"

    # --- The call itself ----------------------------------------------------------------------------------------------

    def _by_call(self, error: BaseException, tree: ast.Call) -> Iterator[Changed]:
        """Arguments that a call further in lacks or doesn't know."""
        if not isinstance(error, TypeError):
            return
        match = re.search(r"missing \d+ required (?:keyword-only|positional) arguments?: (.*)", str(error))
        given = {k.arg for k in tree.keywords}
        if match:
            names = [name for name in re.findall(r"'(\w+)'", match[1]) if name not in given]
            if names:
                values = {name: self._value(name) for name in names}
                yield self._with(tree, values), f"{', '.join(names)} also asked for", "repair"
                prefixed = {f"{prefix}{name}": text for prefix in self._prefixes() for name, text in values.items()}
                if prefixed:
                    yield self._with(tree, prefixed), f"{', '.join(names)} also asked for, with a prefix", "repair"
        match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if match and match[1] in given:
            fewer = copy.deepcopy(tree)
            fewer.keywords = [k for k in fewer.keywords if k.arg != match[1]]
            yield ast.unparse(fewer), f"{match[1]} not known", "repair"

    def misused(self, error: BaseException, expression: str) -> Iterator[Changed]:
        """What a call of the instance says of an argument that it was built with, which no input mends."""
        tree = ast.parse(expression, mode="eval").body
        if not isinstance(tree, ast.Call):
            return
        for guard in guards(error):
            for answer in islice(solve(guard.condition, guard.names), _PER_GUARD):
                kept = [kept_argument(change) for change in answer]
                values = {
                    name: text
                    for name, change in zip(kept, answer, strict=True)
                    if name is not None
                    and self.owner.parameter(name) is not None
                    and (text := self._kept(change)) is not None
                }
                if len(values) == len(answer):
                    said = ", ".join(f"{change.text} {_said(change)}" for change in answer)
                    yield self._with(tree, values), f"{said} for `{guard.text[:120]}`", "guards"

    def _kept(self, change: Change) -> str | None:
        if not change.text.endswith(".ndim"):
            return self._written(change.value, None)
        rank = change.value
        return f"torch.rand({', '.join(['2'] * rank)})" if isinstance(rank, int) and 0 < rank <= _MOST_AXES else None

    def _prefixes(self) -> list[str]:
        """Texts such as `enc_` in the module: keyword arguments by this beginning go to a part of the model."""
        tree = tree_of(str(getattr(self.owner.shared.module, "__file__", "")))
        found: dict[str, None] = {}
        for node in ast.walk(tree) if tree is not None else ():
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and re.fullmatch(r"[a-z]{2,12}_", node.value)
            ):
                found[node.value] = None
        return list(found)[:4]

    def _value(self, name: str) -> str:
        known = self.owner.parameter(name)
        if known is None:
            known = KnownParameter(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY), Usage(), None)
        return self.owner.values.choices(known.parameter, known.usage, known.function)[0].expression

    def _with(self, tree: ast.Call, values: Mapping[str, str]) -> str:
        changed = copy.deepcopy(tree)
        for name, text in values.items():
            value = ast.parse(text, mode="eval").body
            for keyword in changed.keywords:
                if keyword.arg == name:
                    keyword.value = value
                    break
            else:
                changed.keywords.append(ast.keyword(name, value))
        return ast.unparse(changed)

    # --- Guards -------------------------------------------------------------------------------------------------------

    def _by_guards(self, error: BaseException, tree: ast.Call) -> Iterator[Changed]:
        calls = self._constructor_calls(tree)
        for guard in guards(error):
            call = calls.get(guard.code)
            if call is None:
                continue
            for answer in islice(solve(guard.condition, guard.names), _PER_GUARD):
                for text in self._answered(tree, call, guard.code, answer, guard.names):
                    said = ", ".join(f"{change.text} {_said(change)}" for change in answer)
                    yield text, f"{said} for `{guard.text[:120]}`", "guards"

    def _constructor_calls(self, tree: ast.Call) -> dict[CodeType, ast.Call]:
        """The calls in an expression by the code that they run: which of nested constructors it was that raised."""
        found: dict[CodeType, ast.Call] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                cls = self.owner.cls if node is tree else self._class(node.func)
                defined = initialiser(cls) if cls is not None else None
                if defined is not None:
                    found.setdefault(defined[1].__code__, node)
        return found

    def _class(self, node: ast.expr) -> type | None:
        try:
            value = eval(ast.unparse(node), self.owner.shared.names)
        except BaseException:
            return None
        return value if isinstance(value, type) else None

    def _answered(
        self, tree: ast.Call, call: ast.Call, code: CodeType, answer: Answer, names: Mapping[str, Any]
    ) -> Iterator[str]:
        """The whole expression with the changes made in one of its calls."""
        alternatives: list[dict[str, str]] = [{}]
        for change in answer:
            name = self._argument(change, code)
            if name is None:
                return
            texts = list(islice(self._texts(change, name, call, names), 3))
            alternatives = [{**values, name: text} for values in alternatives for text in texts]
        for values in alternatives[:4]:
            if values:
                yield self._replaced(tree, call, code, values)

    def _argument(self, change: Change, code: CodeType) -> str | None:
        """The parameter that a change speaks of: by its name, or as a key of `**kwargs`."""
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        kwargs = (
            code.co_varnames[code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)]
            if (code.co_flags & 0x08)
            else None
        )
        if change.root in parameters:
            return change.root
        match = re.match(rf"{kwargs}\['(\w+)'\]", change.text) if kwargs else None
        return match[1] if match else None

    def _texts(self, change: Change, name: str, call: ast.Call, names: Mapping[str, Any]) -> Iterator[str]:
        """Expressions for an argument that make a change come true."""
        current = next((k.value for k in call.keywords if k.arg == name), None)
        inner = _steps(change.subject, name)
        known = self.owner.parameter(name)
        if inner is None:
            yield from self._resized(change, current, names.get(name))
        elif inner:
            yield from self._inside(change, inner, current, names.get(name))
        elif change.relation == "equals":
            text = self._written(change.value, current)
            if text is not None:
                yield text
        elif change.relation == "given":
            yield from self._given(name)
        elif change.relation == "instance":
            yield from self._of_classes(change.value, name, names.get(name), current)
        elif change.relation == "callable":
            usage = copy.copy(known.usage) if known is not None else Usage()
            usage.called, usage.factory = usage.called or 1, True
            yield from (choice.expression for choice in self.owner.values.callables(name, usage))
        elif change.relation == "attribute":
            usage = copy.copy(known.usage) if known is not None else Usage()
            usage.attributes = {**usage.attributes, str(change.value): Usage()}
            yield from (c.expression for c in self.owner.values.objects(usage, module=usage.layer))

    def _resized(self, change: Change, current: ast.expr | None, value: Any) -> Iterator[str]:
        """`len(name)` should be a number."""
        if change.relation != "equals" or not isinstance(change.value, int) or not 0 < change.value <= 32:
            return
        items = current.elts if isinstance(current, ast.Tuple | ast.List) and current.elts else None
        if items is None:
            if not isinstance(value, list | tuple) or not value:
                return
            texts = [self._written(item, None) for item in value]
            if None in texts:
                return
            items = [ast.parse(str(text), mode="eval").body for text in texts]
        kind = ast.List if isinstance(current, ast.List) or isinstance(value, list) else ast.Tuple
        yield ast.unparse(kind([items[index % len(items)] for index in range(change.value)], ast.Load()))

    def _inside(self, change: Change, steps: list[str | int], current: ast.expr | None, value: Any) -> Iterator[str]:
        """A part of an argument: an item of a sequence, an attribute or key of an object that we made."""
        if change.relation == "instance" and {tuple, list} & {*change.value} and isinstance(steps[0], int):
            # An item that should itself be a sequence; the others are like it.
            if isinstance(current, ast.Tuple | ast.List) and len(steps) == 1:
                pairs = [ast.List([item, item], ast.Load()) for item in current.elts]
                yield ast.unparse(ast.Tuple([*pairs], ast.Load()))
            return
        if change.relation != "equals" or len(steps) != 1:
            return
        step, text = steps[0], self._written(change.value, None)
        if text is None:
            return
        new = ast.parse(text, mode="eval").body
        if isinstance(step, int) and isinstance(value, list | tuple) and -len(value) <= step < len(value):
            texts = [self._written(item, None) for item in value]
            if None not in texts:
                items = [ast.parse(str(item), mode="eval").body for item in texts]
                items[step] = new
                kind = ast.List if isinstance(value, list) else ast.Tuple
                yield ast.unparse(kind(items, ast.Load()))
        elif isinstance(step, str) and isinstance(current, ast.Call):
            match current.func:
                case ast.Call(func=ast.Name(id="type"), args=[name, bases, ast.Dict() as fields]):  # made by layer_with
                    made = ast.Call(ast.Name("type", ast.Load()), [name, bases, _with_key(fields, step, new)], [])
                    yield ast.unparse(ast.Call(made, current.args, current.keywords))
                case _:
                    yield self._with(current, {step: text})
        elif isinstance(step, str) and isinstance(current, ast.Dict):
            yield ast.unparse(_with_key(current, step, new))

    def _given(self, name: str) -> Iterator[str]:
        known = self.owner.parameter(name)
        if known is None:
            yield self._value(name)
            return
        for choice in self.owner.choices(known)[:3]:
            if choice.expression != "None":
                yield choice.expression

    def _of_classes(self, classes: tuple[type, ...], name: str, value: Any, current: ast.expr | None) -> Iterator[str]:
        for cls in classes[:4]:
            if cls in (tuple, list) and isinstance(value, int | float | str) and not isinstance(value, bool):
                item = repr(value) if current is None else ast.unparse(current)
                yield f"({item}, {item})" if cls is tuple else f"[{item}, {item}]"
            else:
                parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=cls)
                known = self.owner.parameter(name)
                usage = known.usage if known is not None else Usage()
                yield from (c.expression for c in self.owner.values.choices(parameter, usage, None)[:2] if not c.weak)

    def _written(self, value: Any, current: ast.expr | None) -> str | None:
        """An expression for a value: plain ones as they are, classes and members by their names."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
            return repr(value)
        if isinstance(value, list | tuple) and type(value) in (list, tuple, torch.Size):
            parts = [self._written(item, None) for item in value]
            if any(part is None for part in parts):
                return None
            inside = ", ".join(map(str, parts))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(parts) == 1 else ''})"
        return reference(value, self.owner.shared.names) if current is None or not callable(value) else None

    def _replaced(self, tree: ast.Call, call: ast.Call, code: CodeType, values: Mapping[str, str]) -> str:
        text = ast.unparse(tree)
        named = _by_keyword(call, code)
        changed = self._with(named, values)
        if call is tree:
            return changed
        return text.replace(ast.unparse(call), changed)

    # --- Words --------------------------------------------------------------------------------------------------------

    def _by_message(self, error: BaseException, tree: ast.Call) -> Iterator[Changed]:
        given = {item.arg: ast.unparse(item.value) for item in tree.keywords if item.arg}
        names = [known.name for known in self.owner.parameters]
        names = [name for name in names if name not in _PLACES and not PLACE_OF_A_FILE.search(name)]
        suspects = _suspects(error, names) or [name for name in names if name in given]
        values = _alternatives(error)
        for name in suspects:
            known = self.owner.parameter(name)
            own = [c.expression for c in self.owner.choices(known)[:3]] if known is not None else []
            is_object = known is not None and (known.usage.layer or bool(known.usage.own_attributes))
            for value in dict.fromkeys((*own, *(() if is_object else values))):
                if given.get(name) != value:
                    yield self._with(tree, {name: value}), f"{name}={value} after {type(error).__name__}", "repair"


def _mappings(frame: FrameType) -> list[dict[Any, Any]]:
    return [value for value in frame.f_locals.values() if type(value) is dict]


def kept_argument(change: Change) -> str | None:
    """`size` where a change asks another value or rank of `self.size`: mostly the constructor's argument so named."""
    match = re.fullmatch(r"self\.(\w+?)(?:\.ndim)?", change.text) if change.relation == "equals" else None
    return match[1] if match else None


def _with_key(mapping: ast.Dict, key: str, value: ast.expr) -> ast.Dict:
    kept = [
        (k, v)
        for k, v in zip(mapping.keys, mapping.values, strict=True)
        if not (isinstance(k, ast.Constant) and k.value == key)
    ]
    return ast.Dict([*(k for k, _ in kept), ast.Constant(key)], [*(v for _, v in kept), value])


def _said(change: Change) -> str:
    if change.relation == "equals":
        return f"= {change.value!r:.60}"
    if change.relation == "instance":
        return "is a " + " or ".join(cls.__name__ for cls in change.value[:4])
    return {"given": "is given", "callable": "is callable"}.get(change.relation, f"has {change.value}")


def _steps(subject: ast.expr, name: str) -> list[str | int] | None:
    """The way from an argument to the subject: attributes, keys and indices. None for its length."""
    steps: list[str | int] = []
    node = subject
    while True:
        match node:
            case ast.Call():
                return None
            case ast.Attribute(value=base, attr=attribute):
                steps.insert(0, attribute)
                node = base
            case ast.Subscript(value=base, slice=ast.Constant(value=int() | str() as key)):
                if isinstance(base, ast.Name) and key == name and base.id != name:
                    return steps  # kwargs['name']
                steps.insert(0, key)
                node = base
            case ast.Subscript(value=base, slice=key):
                try:
                    steps.insert(0, evaluate(key, {}))
                except UnknownValueError:
                    return [*steps, ""]
                node = base
            case _:
                return steps


def _by_keyword(call: ast.Call, code: CodeType) -> ast.Call:
    """The call with its positional arguments named, so that each can be replaced."""
    parameters = code.co_varnames[1 : code.co_argcount]
    if not call.args or len(call.args) > len(parameters) or any(isinstance(a, ast.Starred) for a in call.args):
        return call
    named = copy.deepcopy(call)
    named.keywords = [*(ast.keyword(n, v) for n, v in zip(parameters, named.args, strict=False)), *named.keywords]
    named.args = []
    return named


def _alternatives(error: BaseException) -> tuple[str, ...]:
    message = str(error)
    if re.search(r"not iterable|not subscriptable|has no len|cannot unpack|must be a sequence|to unpack", message):
        return _SEQUENCES
    if re.search(r"object has no attribute '(to|shape|size|dim|ndim|device|dtype|numel)'", message):
        return (*_TENSORS, *_OBJECTS)
    if re.search(r"not callable|object has no attribute|is not a Module subclass", message):
        return (
            (*_OBJECTS, *_TEXTS[:1], "None")
            if "'int'" in message or "'float'" in message
            else (*_OBJECTS, *_NUMBERS[:2])
        )
    if isinstance(error, KeyError | NotImplementedError) or re.search(
        r"unknown|not supported|invalid|unsupported|must be one of|not found", message, re.IGNORECASE
    ):
        options = re.findall(r"'(\w+)'", message)
        return (*(f"'{option}'" for option in options[:4]), *_TEXTS, "None")
    return _NUMBERS


def _suspects(error: BaseException, names: list[str]) -> list[str]:
    """Parameters named in the failing lines, from the innermost frame outwards."""
    lines = [linecache.getline(level.code.co_filename, level.line) for level in frames_of(error)]
    found: dict[str, None] = {}
    for line in [*reversed(lines), str(error)]:
        for word in re.findall(r"\w+", line):
            if word in names:
                found[word] = None
    return list(found)
