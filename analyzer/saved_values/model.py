"""What the run through a function works with: values, the storages they lie in, and what was kept of them.

This module must not know syntax trees beyond holding a node to point at.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from analyzer.facts.loader import OTHER, TENSOR, UNKNOWN
from analyzer.layers import Attribute
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


class Route(Enum):
    """How a write reaches the memory of a tensor: in the open, or past autograd's version counter."""

    OPEN = ""
    DATA = ".data"
    NUMPY = ".numpy()"


class Obstacle(Enum):
    """Why an in-place write to a value is refused, or does more than its author meant."""

    LEAF = "leaf"  # a parameter, or a view of one
    PARTS = "parts"  # one of several views that one call gave
    SHARED = "shared"  # expanded: several elements in one place
    WINDOWS = "windows"  # overlapping windows of `unfold`
    FUNCTION_VIEW = "function view"  # a view that a custom Function returned
    OUT = "out"  # `out=` of an operation that records gradients


@dataclass(frozen=True, slots=True)
class _InFunction:
    function: FunctionNode

    @property
    def in_forward(self) -> bool:
        """Whether the function is the forward of a module, whose arguments are activations as a rule."""
        arguments = self.function.args.args
        return self.function.name == "forward" and bool(arguments) and arguments[0].arg == "self"


@dataclass(frozen=True, slots=True)
class Overwrite(_InFunction):
    """A write to a tensor that an operation has kept.

    `replaced`: by `x.data = …`, which leaves the old memory be. `alone`: no other name shares the memory.
    """

    write: Write
    keep: Keep
    name: str
    route: Route
    replaced: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Refusal(_InFunction):
    """A write that meets an obstacle; `cause` is where the obstacle arose, `degree` how sure a gradient is."""

    write: Write
    name: str
    obstacle: Obstacle
    cause: ast.AST | None
    degree: Differentiable
    alone: bool


@dataclass(frozen=True, slots=True)
class Carried(_InFunction):
    """An attribute that is read, and then assigned a value with its history: the next call reads that."""

    attribute: str
    read: ast.AST
    statement: ast.stmt | ast.expr
    value: ast.expr | None
    degree: Differentiable
    is_buffer: bool


@dataclass(eq=False, slots=True)
class Storage:
    """Memory, by identity. `argument` and `attribute`: whose it was when the function began; `buffer`: a buffer's."""

    argument: str = ""
    attribute: str = ""
    buffer: bool = False


@dataclass(eq=False, slots=True)
class Value:
    """What an expression gives.

    `kind` is a letter of the facts (tensor, number, other, unknown). `route`: how a write to it reaches its memory.
    `bound`: a name refers to it. `parts`: the items of a tuple. `each`: what every item is, where their number is not
    known. `leaf`: it is a parameter itself. `keeps`: what was kept to make it, its unnamed parts included. `obstacle`:
    what stands in the way of writing to it, and `cause`, where that arose. `module`: what it is, for a layer.
    """

    storage: Storage = field(default_factory=Storage)
    kind: str = UNKNOWN
    degree: Differentiable = Differentiable.NO
    route: Route = Route.OPEN
    bound: bool = False
    parts: tuple[Value, ...] | None = None
    each: Value | None = None
    leaf: bool = False
    keeps: tuple[Keep, ...] = ()
    obstacle: Obstacle | None = None
    cause: ast.AST | None = None
    module: Attribute | None = None

    def require_gradient(self, *, required: bool) -> None:
        """`x.requires_grad = …`: what had no history becomes a leaf, or stops being one."""
        self.leaf = required and (self.leaf or (self.kind != OTHER and self.degree is Differentiable.NO))
        if required:
            self.degree = Differentiable.CERTAIN

    def part(self) -> Value:
        """One item, where it is not known which."""
        if self.each is None:
            return Value(degree=self.degree)
        each = self.each
        return Value(storage=each.storage, kind=each.kind, degree=each.degree, obstacle=each.obstacle, cause=each.cause)

    def view(self, *, kind: str | None = None) -> Value:
        """The same memory, seen in another shape."""
        return Value(
            storage=self.storage,
            kind=self.kind if kind is None else kind,
            degree=self.degree,
            route=self.route,
            leaf=self.leaf,
            keeps=self.keeps,
            obstacle=self.obstacle,
            cause=self.cause,
        )


@dataclass(eq=False, slots=True)
class Mutation:
    """A write to memory that something else may know as well.

    `value` is what was written, as it is at the end of the run. `aliases`: other names of the very same
    value, given before the write; `read_again` is where one of them is read after it, under the name `read_as`.
    """

    function: FunctionNode
    write: Write
    name: str
    value: Value
    recording: bool
    aliases: frozenset[str]
    read_again: ast.Name | None = None
    read_as: str = ""

    @property
    def argument(self) -> str:
        return self.value.storage.argument

    @property
    def attribute(self) -> str:
        return self.value.storage.attribute

    @property
    def known_tensor(self) -> bool:
        """Whether anything in the whole function shows that it is a tensor."""
        return self.value.kind == TENSOR


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run through one function, or all functions of a file, has found."""

    overwrites: tuple[Overwrite, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    carried: tuple[Carried, ...] = ()


@dataclass(slots=True)
class State:
    """The names at one point of the run, and what of each storage backward still needs."""

    names: dict[str, Value]
    kept: dict[Storage, tuple[Keep, ...]]

    def copy(self) -> State:
        return State(dict(self.names), dict(self.kept))


def _one_way(name: str, value: Value) -> Value:
    """What a name stands for that one of two ways has brought up.

    An attribute that one way has assigned is, by the other, what it was when the function began.
    """
    attribute = name.removeprefix("self.")
    if attribute in {name, value.storage.attribute}:
        return value
    return Value(storage=Storage(attribute=attribute), kind=value.kind, degree=value.degree, bound=True)


def merged(first: State, second: State) -> State:
    """What is true whichever of the two ways was gone: only what both kept is still kept."""
    names: dict[str, Value] = {}
    for name in first.names.keys() | second.names.keys():
        one, other = first.names.get(name), second.names.get(name)
        if one is other and one is not None:
            names[name] = one
        elif one is None or other is None:
            # Seen in one branch only, by reading it: the same thing in the other.
            names[name] = _one_way(name, one or other or Value())
        else:
            kind = one.kind if one.kind == other.kind else UNKNOWN
            names[name] = Value(kind=kind, degree=max(one.degree, other.degree), bound=True)
    kept: dict[Storage, tuple[Keep, ...]] = {}
    for storage, keeps in first.kept.items():
        others = second.kept.get(storage, ())
        kept[storage] = keeps if keeps is others else tuple(keep for keep in keeps if keep in others)
    return State(names, kept)
