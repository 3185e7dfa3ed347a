"""A recipe: constructor and inputs as expressions, evaluated in the submitted module's own names plus `torch`.

Expressions, not objects: they can be shown, stored and put into a script that runs without Gradproof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from gradproof_probe.importing import Resolved
from gradproof_probe.seeding import reseed

Source = Literal["declared", "mined", "synthesised"]
Grade = Literal["A", "B", "C"]
# How the provenance names values that were fallen back to because ordinary ones gave nothing finite.
FALLBACK_VALUES: Final = "values: "


@dataclass(frozen=True, slots=True)
class Variant:
    """The same target with another value of a mode argument; `option` names it: `reduction='sum'`."""

    constructor: str | None
    inputs: tuple[str, ...]
    option: str

    def to_wire(self) -> dict[str, Any]:
        return {"constructor": self.constructor, "inputs": list(self.inputs), "option": self.option}


@dataclass(frozen=True, slots=True)
class Recipe:
    """`inputs` are argument expressions: `torch.randn(2, 3)` or, by keyword, `mask=None`.

    `reason` says what is missing where the recipe runs but has no gradient. `found_by` is one of `FOUND_BY`, for
    counting. `code` builds and calls the target outside Gradproof.
    """

    source: Source
    grade: Grade
    constructor: str | None
    inputs: tuple[str, ...]
    provenance: str
    reason: str | None = None
    found_by: str = "names"
    variants: tuple[Variant, ...] = ()
    code: str = ""

    @property
    def fell_back(self) -> bool:
        """Whether the values are ours, and no word of the author's: ordinary ones gave nothing finite."""
        return self.source == "synthesised" and FALLBACK_VALUES in self.provenance

    def to_wire(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "grade": self.grade,
            "constructor": self.constructor,
            "inputs": list(self.inputs),
            "provenance": self.provenance,
            "reason": self.reason,
            "found_by": self.found_by,
            "variants": [variant.to_wire() for variant in self.variants],
            "code": self.code,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_wire` wrote."""
        variants = tuple(
            Variant(item["constructor"], tuple(item["inputs"]), item["option"]) for item in wire.get("variants", ())
        )
        return cls(**{**wire, "inputs": tuple(wire["inputs"]), "variants": variants})


@dataclass(slots=True)
class Built:
    """A target ready to be called: `call(*args, **kwargs)`. `instance` is the module, if it is one."""

    call: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    instance: torch.nn.Module | None


class ExpressionError(Exception):
    """An expression of the recipe raised: `part` says which, `cause` what."""

    def __init__(self, part: str, cause: BaseException) -> None:
        super().__init__(f"{part}: {type(cause).__name__}: {cause}")
        self.part = part
        self.cause = cause


def names_of(resolved: Resolved) -> dict[str, Any]:
    """The submitted module's names, with `torch` and the target's own last name on top."""
    names = dict(vars(resolved.module))
    names["torch"] = torch
    names.setdefault(resolved.target.qualname.rpartition(".")[2], resolved.value)
    return names


def build(resolved: Resolved, recipe: Recipe, *, seed: int) -> Built:
    """Evaluate the recipe under the current default dtype. Raises `ExpressionError`."""
    instance = construct(resolved, recipe.constructor, seed=seed)
    args, kwargs = make_inputs(resolved, recipe.inputs, seed=seed)
    return Built(caller(resolved, instance), args, kwargs, instance)


def construct(resolved: Resolved, constructor: str | None, *, seed: int) -> torch.nn.Module | None:
    if resolved.target.kind != "module":
        return None
    expression = constructor or f"{resolved.target.qualname}()"
    reseed(seed)
    try:
        instance = eval(expression, names_of(resolved))
    except BaseException as error:
        raise ExpressionError("constructor", error) from error
    if not isinstance(instance, torch.nn.Module):
        raise ExpressionError("constructor", TypeError(f"it gives {type(instance).__name__}, not a torch.nn.Module"))
    return instance


def make_inputs(resolved: Resolved, inputs: tuple[str, ...], *, seed: int) -> tuple[list[Any], dict[str, Any]]:
    """Each expression may be `value`, `name=value` or `*values`, as in a call."""
    reseed(seed + 1)
    names = names_of(resolved)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    names["_gradproof_collect"] = lambda *a, **k: (a, k)
    for index, expression in enumerate(inputs):
        try:
            more, named = eval(f"_gradproof_collect({expression}\n)", names)
        except BaseException as error:
            raise ExpressionError(f"input {index} `{expression}`", error) from error
        args += more
        kwargs |= named
    return args, kwargs


def caller(resolved: Resolved, instance: torch.nn.Module | None) -> Callable[..., Any]:
    if instance is not None:
        return instance
    if resolved.target.kind == "autograd_function":
        apply: Callable[..., Any] = resolved.value.apply
        return apply
    function: Callable[..., Any] = resolved.value
    return function


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Constants that model code makes (`torch.zeros(3)`) follow the default dtype: promotion needs it as well."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
