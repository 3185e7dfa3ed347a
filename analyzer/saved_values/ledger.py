"""Keeps the books: what each operation keeps of which storage, and which writes then break a promise.

The entries come from the generated facts. This module must not know statements or expressions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from analyzer.facts import operations
from analyzer.facts.loader import NUMBER, OTHER, RESULT, STRING, TENSOR, UNKNOWN
from analyzer.saved_values.model import (
    Carried,
    Differentiable,
    Keep,
    Kept,
    Mutation,
    Obstacle,
    Overwrite,
    Refusal,
    Route,
    State,
    Storage,
    Trace,
    Value,
)
from analyzer.syntax import FunctionNode
from analyzer.tensor_writes import Write

_NO_TENSOR = frozenset({NUMBER, STRING, OTHER})
# These go away where another view picks some of the elements; the others stay with every view.
_OF_ONE_SHAPE = frozenset({Obstacle.SHARED, Obstacle.WINDOWS})
_SHAPE_CHANGING = frozenset({"select", "narrow", "squeeze", "diagonal", "unfold", "expand"})


class Ledger:
    """The books of one function.

    `recording` is off where no gradients are recorded: nothing is kept there. `inference` is on where no backward can
    follow: writes are free there.
    """

    def __init__(self, function: FunctionNode, *, recording: bool) -> None:
        self.state = State({}, {})
        self.recording = recording
        self.inference = False
        self.facts = operations()
        self._function = function
        self._found: dict[tuple[ast.AST, Kept, Route], Overwrite] = {}
        self._refused: dict[ast.AST, Refusal] = {}
        self._mutations: dict[tuple[ast.AST, str], Mutation] = {}
        self._changed: dict[Storage, list[Mutation]] = {}
        self._reads: dict[str, list[ast.AST]] = {}
        self._carried: dict[str, Carried] = {}
        self.second_names: set[frozenset[str]] = set()
        self._filled: dict[ast.AST, tuple[Storage, Write, Differentiable]] = {}

    @property
    def trace(self) -> Trace:
        """Everything found so far, each kind in source order."""
        return Trace(
            overwrites=tuple(sorted(self._found.values(), key=_line_of_write)),
            refusals=tuple(sorted(self._refused.values(), key=_line_of_write)),
            mutations=tuple(sorted(self._mutations.values(), key=_line_of_write)),
            carried=(*self._carried.values(), *self._carried_by_writes()),
        )

    # --- entries -----------------------------------------------------------------------------------------------

    def kept(self, value: Value) -> tuple[Keep, ...]:
        """What backward still needs of the storage that a value lies in."""
        return self.state.kept.get(value.storage, ())

    def operation(
        self, name: str, arguments: Sequence[Value], node: ast.AST, *, keywords: Sequence[Value] = ()
    ) -> Value:
        """The result of an operation that makes a new tensor or a view, after noting what it keeps."""
        for value in arguments[:1]:
            if value.kind == UNKNOWN:
                value.kind = TENSOR
        if self.facts.never_differentiable(name):
            self.cut_unnamed(arguments)
            return Value(kind=TENSOR)
        degree = max((value.degree for value in (*arguments, *keywords)), default=Differentiable.NO)
        result = Value(kind=TENSOR, degree=degree if self.recording else Differentiable.NO)
        if arguments and self.facts.views(name):
            return self._as_view(name, arguments[0], result)
        noted = self.keep_inputs(name, arguments, node, keywords=bool(keywords))
        noted += self.keep_result(name, arguments, result, node, keywords=bool(keywords))
        result.keeps = (*inherited(arguments), *noted)
        return self._with_parts(name, result)

    def _as_view(self, name: str, base: Value, result: Value) -> Value:
        view = base.view(kind=TENSOR)
        view.degree = result.degree
        if name.rpartition(".")[2] in _SHAPE_CHANGING and view.obstacle in _OF_ONE_SHAPE:
            view.obstacle = view.cause = None
        return view

    def _with_parts(self, name: str, result: Value) -> Value:
        flags = self.facts.results(name)
        if not flags:
            return result
        rest = [Value(kind=TENSOR, degree=result.degree if flag else Differentiable.NO) for flag in flags[1:]]
        return Value(degree=result.degree, parts=(result, *rest), keeps=result.keeps)

    def keep_inputs(
        self, name: str, arguments: Sequence[Value], node: ast.AST, *, keywords: bool = False, skip: int = -1
    ) -> list[Keep]:
        """Notes the arguments that the operation keeps, without the one at position `skip`."""
        noted: list[Keep] = []
        for position, degree in self._degrees(name, arguments, keywords=keywords).items():
            if position.isdigit() and int(position) != skip and int(position) < len(arguments):
                keep = Keep(Kept.INPUT, name, node, degree)
                self._note(arguments[int(position)], keep)
                noted.append(keep)
        return noted

    def keep_result(
        self, name: str, arguments: Sequence[Value], result: Value, node: ast.AST, *, keywords: bool = False
    ) -> list[Keep]:
        """Notes the result, if the operation keeps it."""
        degree = self._degrees(name, arguments, keywords=keywords).get(RESULT)
        if degree is None:
            return []
        keep = Keep(Kept.RESULT, name, node, degree)
        self._note(result, keep)
        return [keep]

    def keep_weight(self, weight: Value, name: str, node: ast.AST, degree: Differentiable) -> None:
        """Notes that a layer keeps a weight of its own, for the sake of an input of this degree."""
        if self.recording and degree > Differentiable.NO:
            self._note(weight, Keep(Kept.INPUT, name, node, degree))

    def _note(self, value: Value, keep: Keep) -> None:
        if value.kind not in _NO_TENSOR:
            self.state.kept[value.storage] = (*self.kept(value), keep)

    def _degrees(self, name: str, arguments: Sequence[Value], *, keywords: bool) -> dict[str, Differentiable]:
        """What is kept → how sure it is that it is.

        A tensor that is kept for the sake of another one (`x` in `x * w`) counts only when that other one went
        through a module: an argument on its own may well be data.
        """
        if not self.recording:
            return {}
        kinds = [value.kind for value in arguments]
        found = self._kept_degrees(name, arguments, "".join(kinds), keywords=keywords)
        for position, kind in enumerate(kinds):
            place = str(position)
            found.pop(place, None)
            if kind in _NO_TENSOR:
                continue
            # Whether it is kept matters only if it is a tensor.
            as_tensor = "".join([*kinds[:position], TENSOR, *kinds[position + 1 :]])
            degree = self._kept_degrees(name, arguments, as_tensor, keywords=keywords).get(place)
            if degree is not None:
                found[place] = degree
        return found

    def _kept_degrees(
        self, name: str, arguments: Sequence[Value], kinds: str, *, keywords: bool
    ) -> dict[str, Differentiable]:
        found: dict[str, Differentiable] = {}
        known = self.facts.kept(name, kinds, keywords=keywords)
        if not known and name.startswith("torch.nn.") and kinds.startswith(TENSOR):
            # Of a cell that is given its state: the state it makes itself otherwise is kept just so.
            known = self.facts.kept(name, TENSOR)
        for source, kept in known.items():
            if source == "parameters":
                degree = Differentiable.CERTAIN
            elif source.isdigit() and int(source) < len(arguments):
                degree = arguments[int(source)].degree
            else:
                continue
            for item in kept:
                own = item in {source, RESULT} or degree >= Differentiable.LIKELY
                if own and degree > Differentiable.NO:
                    found[item] = max(found.get(item, Differentiable.NO), degree)
        return found

    # --- strokes -----------------------------------------------------------------------------------------------

    def write(self, write: Write, value: Value, degree: Differentiable = Differentiable.NO) -> None:
        """A tensor is changed in place; `degree` is that of what is written into it."""
        if value.kind in _NO_TENSOR or self.inference:
            return
        self._note_refusal(write, value, degree)
        if value.leaf and self.recording and value.route is Route.OPEN:
            # Torch refuses this write at once, whatever was kept: where the program runs, it needs no gradient.
            return
        self._note_overwrite(write, value)
        # One finding for each tensor: after the first write the promise is broken.
        self.state.kept[value.storage] = ()
        self._note_mutation(write, value)
        if self.recording and value.route is Route.OPEN:
            value.degree = max(value.degree, degree)
            if value.storage.attribute and degree and not value.leaf:
                known = self._filled.get(write.node)
                self._filled[write.node] = (
                    value.storage,
                    write,
                    max(degree, known[2]) if known is not None else degree,
                )

    def replace(self, write: Write, value: Value) -> None:
        """`x.data = …`: what was kept of `x` as an input is another tensor from now on.

        What was kept as a result stays: autograd keeps a result as a tensor of its own that shares the memory.
        """
        if value.kind not in _NO_TENSOR and not self.inference:
            self._note_overwrite(write, value, only=Kept.INPUT)

    def _note_overwrite(self, write: Write, value: Value, *, only: Kept | None = None) -> None:
        kept = [keep for keep in self.kept(value) if keep.degree > Differentiable.NO and only in {None, keep.side}]
        if not kept:
            return
        keep = max(kept, key=lambda item: item.degree)
        key = (write.node, keep.side, value.route)
        known = self._found.get(key)
        if known is None or known.keep.degree < keep.degree:
            name = ast.unparse(write.target)
            alone = self._alone(write, value)
            self._found[key] = Overwrite(self._function, write, keep, name, value.route, only is not None, alone)

    def _alone(self, write: Write, value: Value) -> bool:
        root = _root(write.target)
        sharing = {name for name, known in self.state.names.items() if known.storage is value.storage}
        return sharing <= {root} and not value.storage.attribute

    def _note_refusal(self, write: Write, value: Value, degree: Differentiable) -> None:
        if value.route is not Route.OPEN:
            return
        obstacle = Obstacle.LEAF if value.leaf else value.obstacle
        if obstacle is None:
            return
        if obstacle in _OF_ONE_SHAPE:
            needed = Differentiable.CERTAIN  # it happens with and without gradients
        elif self.recording:
            needed = value.degree if obstacle is Obstacle.LEAF else max(value.degree, degree)
        else:
            return
        known = self._refused.get(write.node)
        if needed and (known is None or known.degree < needed):
            name = ast.unparse(write.target)
            self._refused[write.node] = Refusal(
                self._function, write, name, obstacle, value.cause, needed, self._alone(write, value)
            )

    def _note_mutation(self, write: Write, value: Value) -> None:
        if value.route is Route.NUMPY:
            return
        name = ast.unparse(write.target)
        root = _root(write.target)
        names = self.state.names
        same = {
            other
            for pair in self.second_names
            if root in pair
            for other in pair - {root}
            if other in names and root in names and names[other].storage is value.storage is names[root].storage
        }
        if "inplace=True" in write.how and root:
            same.add(root)  # who writes `h = self.act(x)` does not mean to change `x`
        storage = value.storage
        known = self._mutations.get((write.node, name))
        if known is None:
            known = self._mutations[write.node, name] = Mutation(
                function=self._function,
                write=write,
                name=name,
                value=value,
                recording=self.recording,
                aliases=frozenset(same),
            )
        if known.aliases and known not in self._changed.setdefault(storage, []):
            self._changed[storage].append(known)

    # --- readings ----------------------------------------------------------------------------------------------

    def read(self, name: ast.Name, value: Value) -> None:
        """A name is read: of a tensor that was changed under another name, it is no longer what it was."""
        for mutation in self._changed.get(value.storage, ()):
            if mutation.read_again is None and name.id in mutation.aliases:
                mutation.read_again, mutation.read_as = name, name.id

    def read_attribute(self, name: str, node: ast.AST, value: Value) -> None:
        """An attribute of `self` is read; what counts is what it was when the function began."""
        if value.storage.attribute == name:
            self._reads.setdefault(name, []).append(node)

    def assign_attribute(self, name: str, value: Value, statement: ast.stmt, *, is_buffer: bool) -> None:
        """An attribute of `self` is assigned; if it was read before, the next call reads what it is given here."""
        reads = self._reads.get(name)
        if not reads or not self.recording or self.inference or value.kind in _NO_TENSOR:
            return
        degree = _degree_of(value)
        known = self._carried.get(name)
        if degree and (known is None or known.degree < degree):
            given = getattr(statement, "value", None)
            self._carried[name] = Carried(self._function, name, reads[0], statement, given, degree, is_buffer)

    def _carried_by_writes(self) -> Iterator[Carried]:
        """Attributes that are filled in place with what carries a history, and read besides."""
        for storage, write, degree in self._filled.values():
            name = storage.attribute
            inside = set(ast.walk(write.node))
            reads = [node for node in self._reads.get(name, ()) if node not in inside]
            statement = write.node
            if reads and name not in self._carried and isinstance(statement, (ast.stmt, ast.expr)):
                given = getattr(statement, "value", None)
                yield Carried(self._function, name, reads[0], statement, given, degree, storage.buffer)

    def cut(self, value: Value) -> None:
        """Nothing flows back through this value: what was kept to make it is not needed."""
        if not value.keeps:
            return
        dead = set(value.keeps)
        affected: list[Storage] = [storage for storage, kept in self.state.kept.items() if not dead.isdisjoint(kept)]
        for storage in affected:
            self.state.kept[storage] = tuple(keep for keep in self.state.kept[storage] if keep not in dead)

    def cut_unnamed(self, values: Sequence[Value]) -> None:
        """The same for those values that no name refers to: nobody else can use them."""
        for value in values:
            if not value.bound:
                self.cut(value)


def inherited(arguments: Sequence[Value]) -> list[Keep]:
    """What was kept to make the unnamed ones among these values."""
    return [keep for value in arguments if not value.bound for keep in value.keeps]


def _line_of_write(found: Overwrite | Refusal | Mutation) -> int:
    return getattr(found.write.node, "lineno", 0)


def _degree_of(value: Value) -> Differentiable:
    if value.parts is not None:
        return max((_degree_of(part) for part in value.parts), default=Differentiable.NO)
    return value.degree


def _root(expression: ast.expr) -> str:
    """The name at the beginning of `x`, `x.view(-1)`, `x[0].mul_(2)`; "" for attributes and anything else."""
    while not isinstance(expression, ast.Name):
        if isinstance(expression, (ast.Subscript, ast.Attribute)):
            expression = expression.value
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func.value
        else:
            return ""
    return expression.id
