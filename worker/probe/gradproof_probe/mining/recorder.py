"""Watches code run: which classes and functions of the package are built and called, and with what.

A profile function sees every Python frame begin, also the ones that torch's C++ begins (`Function.forward`), and
changes nothing about the code. Calls are written down at once, while their arguments are what they were. A recorder
never raises into the code that it watches, and keeps no argument alive longer than the object built with it.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch

from gradproof_probe.mining.expressions import Arguments, UnwritableError, Writer
from gradproof_probe.trees import tensors

CALLS: Final = 6  # of one target with arguments of different kinds or shapes; more show nothing new
TRIES: Final = 40  # calls of one target that are looked at at all: a loop over a million points is one example
ENCLOSING: Final = 60  # frames up to which the caller is looked for
LARGE: Final = 2048  # elements of an input above which a smaller one is offered as well
SMALL_DIM: Final = 16

_IGNORED: Final = object()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a target, written down. `forms` are constructor and inputs, the preferred ones first."""

    target: str
    kind: str
    forms: tuple[tuple[str | None, tuple[str, ...]], ...]
    inside: str | None
    floats: int
    elements: int
    single: int  # dimensions of size one, in which a mistake about that dimension can't be seen

    def to_wire(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "kind": self.kind,
            "forms": [[constructor, list(inputs)] for constructor, inputs in self.forms],
            "inside": self.inside,
            "floats": self.floats,
            "elements": self.elements,
            "single": self.single,
        }


class Built:
    """Arguments of constructions, by object. Objects that no weak reference can name aren't known."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Arguments]] = {}

    def of(self, value: object) -> Arguments | None:
        entry = self._known.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def note(self, value: object, arguments: Arguments) -> None:
        key = id(value)
        try:
            self._known[key] = (weakref.ref(value, lambda _: self._known.pop(key, None)), arguments)
        except TypeError:
            return

    def copied(self, original: torch.nn.Module, copy: torch.nn.Module) -> None:
        for one, other in zip(original.modules(), copy.modules(), strict=False):
            arguments = self.of(one)
            if arguments is not None and type(one) is type(other):
                self.note(other, arguments)


@dataclass(slots=True)
class _Seen:
    looked_at: int = 0
    signatures: set[Any] = field(default_factory=set)


class Recorder:
    """`heard` is given each call of a target defined under `source_root`; with `smaller`, in a smaller form too."""

    def __init__(
        self,
        source_root: Path,
        heard: Callable[[Call], None],
        *,
        wanted: frozenset[str] | None = None,
        smaller: bool = True,
    ) -> None:
        self._root = f"{source_root.resolve()}/"
        self._heard = heard
        self._wanted = wanted
        self._smaller = smaller
        self.built = Built()
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._samples: dict[type, Arguments] = {}
        self.unusable: dict[str, str] = {}
        self._seen: dict[str, _Seen] = {}
        # By id: hashing a code object hashes its constants, at every call of every function.
        self._kinds: dict[int, tuple[CodeType, Callable[[FrameType], None] | object]] = {}
        self._own: dict[type, bool] = {}

    def only_built(self, value: object) -> bool:
        """Whether this is a module of the package that was built and hasn't been called."""
        return isinstance(value, torch.nn.Module) and self._is_own(type(value)) and value not in self._called

    def sample(self, kind: type) -> Arguments | None:
        """What another object of the same class was called with."""
        return self._samples.get(kind)

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            entry = self._kinds.get(id(code))
            if entry is None:
                entry = (code, self._classify(code))
                self._kinds[id(code)] = entry
            if entry[1] is _IGNORED:
                return
            try:
                entry[1](frame)  # type: ignore[operator]
            except Exception as error:
                self.unusable.setdefault("?", f"{type(error).__name__}: {error}")
        elif event == "return" and frame.f_code is _DEEPCOPY and isinstance(argument, torch.nn.Module):
            original = frame.f_locals.get("x")
            if isinstance(original, torch.nn.Module) and original is not argument:
                self.built.copied(original, argument)

    def _classify(self, code: CodeType) -> Callable[[FrameType], None] | object:
        name = code.co_name
        own = self._inside(code.co_filename)
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            return _IGNORED
        if name == "__init__" and code.co_argcount:
            return self._construction
        if name == "forward" and code.co_argcount:
            return self._forward
        if code is _APPLY:
            return self._apply
        if own and "." not in code.co_qualname and "<" not in code.co_qualname:
            return self._function
        return _IGNORED

    def _inside(self, filename: str) -> bool:
        return filename.startswith(self._root) or str(Path(filename).absolute()).startswith(self._root)

    def _is_own(self, kind: type) -> bool:
        known = self._own.get(kind)
        if known is None:
            module = sys.modules.get(kind.__module__)
            known = module is not None and self._inside(getattr(module, "__file__", None) or "/")
            self._own[kind] = known
        return known

    def _construction(self, frame: FrameType) -> None:
        code = frame.f_code
        value = frame.f_locals.get(code.co_varnames[0])
        kind = type(value)
        if not isinstance(value, torch.nn.Module) and not self._is_own(kind):
            return
        if self.built.of(value) is None:  # else the constructor of a base class, called by the derived one's
            self.built.note(value, _given(frame, _method(kind, "__init__", code), skip=1))

    def _forward(self, frame: FrameType) -> None:
        code = frame.f_code
        value = frame.f_locals.get(code.co_varnames[0])
        kind = type(value)
        if not isinstance(value, torch.nn.Module) or not self._is_own(kind):
            return
        target = f"{kind.__module__}:{kind.__qualname__}"
        if value in self._called and not self._is_wanted(target):
            return
        arguments = _given(frame, _method(kind, "forward", code), skip=1)
        self._called.add(value)
        self._samples.setdefault(kind, arguments)
        if not self._is_wanted(target):
            return
        self._note(frame, target, "module", arguments, module=value)

    def _apply(self, frame: FrameType) -> None:
        kind = frame.f_locals["cls"]
        target = f"{kind.__module__}:{kind.__qualname__}"
        if self._is_own(kind) and self._is_wanted(target):
            arguments = Arguments(tuple(frame.f_locals["args"]), {})
            self._note(frame, target, "autograd_function", arguments)

    def _function(self, frame: FrameType) -> None:
        name = frame.f_code.co_name
        module = frame.f_globals.get("__name__")
        target = f"{module}:{name}"
        if not self._is_wanted(target):
            return
        function = _unwrapped(frame.f_globals.get(name), frame.f_code)
        if function is None:
            return  # a function of a function, or one that was replaced since
        arguments = _given(frame, function, skip=0)
        if self._wanted is None and not _floating(arguments):
            return
        self._note(frame, target, "function", arguments)

    def _is_wanted(self, target: str) -> bool:
        return (self._wanted is None or target in self._wanted) and "<locals>" not in target

    def _note(
        self, frame: FrameType, target: str, kind: str, arguments: Arguments, module: torch.nn.Module | None = None
    ) -> None:
        seen = self._seen.setdefault(target, _Seen())
        seen.looked_at += 1
        if seen.looked_at > TRIES or len(seen.signatures) >= CALLS:
            return
        construction = None if module is None else self.built.of(module)
        signature = (_signature(arguments), None if construction is None else _signature(construction))
        if signature in seen.signatures:
            return
        if module is not None and construction is None:
            self.unusable.setdefault(target, "its construction wasn't seen")
            return
        with torch.no_grad():
            forms = list(self._forms(target, arguments, construction))
        if not forms:
            return
        seen.signatures.add(signature)
        floating = _floating(arguments)
        elements = sum(tensor.numel() for tensor in floating)
        single = sum(size == 1 for tensor in floating for size in tensor.shape[1:])
        self._heard(
            Call(target, kind, tuple(dict.fromkeys(forms)), self._enclosing(frame), len(floating), elements, single)
        )

    def _forms(
        self, target: str, arguments: Arguments, construction: Arguments | None
    ) -> Iterator[tuple[str | None, tuple[str, ...]]]:
        """Smaller where it is large, drawn anew, and as it was given: one of them runs, and is then the one kept."""
        module, _, qualname = target.partition(":")
        names: Mapping[str, Any] = vars(sys.modules[module])
        sizes = {size for tensor in _all_tensors(arguments) for size in tensor.shape}
        writers = [Writer(names, self.built), Writer(names, self.built, exact=True)]
        if self._smaller and any(tensor.numel() > LARGE for tensor in _all_tensors(arguments)):
            few = _fewer(arguments)
            small = {size: _smaller(size) for size in sizes}
            resizes = [
                lambda shape: tuple(small.get(size, size) if at else few(size) for at, size in enumerate(shape)),
                lambda shape: tuple(size if at else few(size) for at, size in enumerate(shape)),
            ]
            writers[:0] = [Writer(names, self.built, resize=resize) for resize in resizes]
        for writer in writers:
            # Tensors of a construction keep their sizes: the module's other parameters go with them.
            builder = Writer(names, self.built, exact=writer.exact)
            try:
                constructor = None if construction is None else builder.call(qualname, construction)
                yield constructor, writer.arguments(arguments)
            except UnwritableError as error:
                self.unusable.setdefault(target, str(error))

    def _enclosing(self, frame: FrameType) -> str | None:
        """The nearest class or function of the package in whose body the call was made."""
        at, count = frame.f_back, 0
        while at is not None and count < ENCLOSING:
            code = at.f_code
            if self._inside(code.co_filename):
                module = at.f_globals.get("__name__")
                if code.co_argcount and code.co_varnames[0] == "self":
                    kind = type(at.f_locals.get("self"))
                    if at.f_locals.get("self") is not frame.f_locals.get("self"):
                        return f"{kind.__module__}:{kind.__qualname__}"
                elif "." not in code.co_qualname and "<" not in code.co_qualname:
                    return f"{module}:{code.co_name}"
            at, count = at.f_back, count + 1
        return None


_DEEPCOPY: Final = inspect.unwrap(__import__("copy").deepcopy).__code__
_APPLY: Final = torch.autograd.Function.apply.__func__.__code__


def _given(frame: FrameType, function: Any, *, skip: int) -> Arguments:
    """The arguments of a frame that has just begun; those that are the defaults are taken as not given."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[skip : code.co_argcount]
    by_name_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    at = code.co_argcount + code.co_kwonlyargcount
    more: tuple[Any, ...] = ()
    if code.co_flags & inspect.CO_VARARGS:
        more = tuple(values.get(code.co_varnames[at], ()))
        at += 1
    others: Mapping[str, Any] = values.get(code.co_varnames[at], {}) if code.co_flags & inspect.CO_VARKEYWORDS else {}
    defaults = tuple(getattr(function, "__defaults__", None) or ())
    default = dict(zip(names[len(names) - len(defaults) :], defaults, strict=False)) if defaults else {}
    default |= getattr(function, "__kwdefaults__", None) or {}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    by_position = True
    for index, name in enumerate(names):
        if name in default and values[name] is default[name] and not more:
            # The rest goes by name, unless it can only go by position.
            by_position = index + 1 < code.co_posonlyargcount - skip
            if not by_position:
                continue
        if by_position:
            positional.append(_copied(values[name]))
        else:
            named[name] = _copied(values[name])
    for name in by_name_only:
        if not (name in default and values[name] is default[name]):
            named[name] = _copied(values[name])
    named |= {str(name): _copied(value) for name, value in others.items()}
    return Arguments((*positional, *map(_copied, more)), named)


def _copied(value: Any) -> Any:
    """Containers are copied: code that takes its options out of a dict would leave us an empty one."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _method(kind: type, name: str, code: CodeType) -> Any:
    for base in kind.__mro__:
        found = _unwrapped(vars(base).get(name), code)
        if found is not None:
            return found
    return None


def _unwrapped(value: Any, code: CodeType) -> Any:
    """The function with this very code behind `value`'s decorators."""
    for _ in range(8):
        if getattr(value, "__code__", None) is code:
            return value
        value = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)
        if value is None:
            return None
    return None


def _all_tensors(arguments: Arguments) -> list[torch.Tensor]:
    return [tensor for _, tensor in tensors([list(arguments.positional), dict(arguments.named)])]


def _floating(arguments: Arguments) -> list[torch.Tensor]:
    return [tensor for tensor in _all_tensors(arguments) if tensor.is_floating_point() or tensor.is_complex()]


def _signature(arguments: Arguments) -> Any:
    """Equal for calls that show the same thing: types, shapes, and the plain values."""
    return (
        tuple(_trait(value) for value in arguments.positional),
        tuple((name, _trait(value)) for name, value in arguments.named.items()),
    )


def _trait(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.dtype)
    if value is None or isinstance(value, bool | int | str | float):
        return repr(value)[:80]
    if isinstance(value, list | tuple) and depth < 3:
        return (type(value).__name__, *(_trait(item, depth + 1) for item in value[:16]))
    if isinstance(value, dict) and depth < 3:
        return tuple((str(key)[:80], _trait(item, depth + 1)) for key, item in list(value.items())[:16])
    return type(value).__qualname__


def _fewer(arguments: Arguments) -> Callable[[int], int]:
    """Two examples of a batch are enough: the first dimension that all tensors of rank two and more share."""
    firsts = {tensor.shape[0] for tensor in _all_tensors(arguments) if tensor.dim() >= 2}
    common = next(iter(firsts)) if len(firsts) == 1 else 0
    return lambda size: min(size, 2) if size == common else size


def _smaller(size: int) -> int:
    """Halved until it is small: divisibility by the halves' divisors stays as far as it can."""
    while size > SMALL_DIM and size % 2 == 0:
        size //= 2
    return min(size, 2 * SMALL_DIM)
