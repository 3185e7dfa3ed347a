"""What the run through a function works with: values, the storages they lie in, and what was kept of them.

This module must not know syntax trees beyond holding a node to point at.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from analyzer.facts.loader import UNKNOWN
from analyzer.syntax import FunctionNode
from analyzer.tensor_writes import Write


class Differentiable(IntEnum):
    """How sure it is that a value requires gradients."""

    NO = 0
    POSSIBLE = 1  # it comes in as an argument
    LIKELY = 2  # it went through a module whose parameters we can't see
    CERTAIN = 3  # it went through parameters


class Kept(Enum):
    """Which side of an operation was kept."""

    INPUT = "input"
    RESULT = "result"


@dataclass(frozen=True, eq=False, slots=True)
class Keep:
    """An operation needs this tensor in backward, as it was then."""

    side: Kept
    operation: str
    node: ast.AST
    degree: Differentiable


@dataclass(frozen=True, slots=True)
class Overwrite:
    """A write to a tensor that an operation has kept; `hidden` when it goes through `.data`."""

    write: Write
    keep: Keep
    name: str
    hidden: bool
    function: FunctionNode

    @property
    def in_forward(self) -> bool:
        """Whether the function is the forward of a module, whose arguments are activations as a rule."""
        arguments = self.function.args.args
        return self.function.name == "forward" and bool(arguments) and arguments[0].arg == "self"


@dataclass(eq=False, slots=True)
class Storage:
    """Memory, by identity."""


@dataclass(eq=False, slots=True)
class Value:
    """What an expression gives.

    `kind` is a letter of the facts (tensor, number, other, unknown). `hidden`: seen through `.data`. `bound`: a name
    refers to it. `parts`: the items of a tuple. `leaf`: it is a parameter itself. `keeps`: what was kept to make it,
    its unnamed parts included.
    """

    storage: Storage = field(default_factory=Storage)
    kind: str = UNKNOWN
    degree: Differentiable = Differentiable.NO
    hidden: bool = False
    bound: bool = False
    parts: tuple[Value, ...] | None = None
    leaf: bool = False
    keeps: tuple[Keep, ...] = ()


@dataclass(slots=True)
class State:
    """The names at one point of the run, and what of each storage backward still needs."""

    names: dict[str, Value]
    kept: dict[Storage, tuple[Keep, ...]]

    def copy(self) -> State:
        return State(dict(self.names), dict(self.kept))


def merged(first: State, second: State) -> State:
    """What is true whichever of the two ways was gone: only what both kept is still kept."""
    names: dict[str, Value] = {}
    for name in first.names.keys() | second.names.keys():
        one, other = first.names.get(name), second.names.get(name)
        if one is None or other is None:
            # Seen in one branch only, by reading it: the same thing in the other.
            names[name] = one or other or Value()
        elif one is other:
            names[name] = one
        else:
            kind = one.kind if one.kind == other.kind else UNKNOWN
            names[name] = Value(kind=kind, degree=max(one.degree, other.degree), bound=True)
    kept = {
        storage: tuple(keep for keep in keeps if keep in second.kept.get(storage, ()))
        for storage, keeps in first.kept.items()
    }
    return State(names, kept)
