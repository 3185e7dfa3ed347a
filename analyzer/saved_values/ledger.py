"""Keeps the books: what each operation keeps of which storage, and which writes then break a promise.

The entries come from the generated facts. This module must not know statements or expressions.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from analyzer.facts import operations
from analyzer.facts.loader import NUMBER, OTHER, RESULT, STRING, TENSOR, UNKNOWN
from analyzer.saved_values.model import Differentiable, Keep, Kept, Overwrite, State, Storage, Value
from analyzer.syntax import FunctionNode
from analyzer.tensor_writes import Write

_NO_TENSOR = frozenset({NUMBER, STRING, OTHER})


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
        self._found: dict[tuple[ast.AST, Kept, bool], Overwrite] = {}

    @property
    def overwrites(self) -> list[Overwrite]:
        """Everything found so far, in source order."""
        return sorted(self._found.values(), key=lambda found: getattr(found.write.node, "lineno", 0))

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
            base = arguments[0]
            result.storage, result.hidden, result.keeps = base.storage, base.hidden, base.keeps
            return result
        noted = self.keep_inputs(name, arguments, node, keywords=bool(keywords))
        noted += self.keep_result(name, arguments, result, node, keywords=bool(keywords))
        result.keeps = (*inherited(arguments), *noted)
        return self._with_parts(name, result)

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
        for source, kept in self.facts.kept(name, kinds, keywords=keywords).items():
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
        if value.leaf and self.recording:
            # Torch refuses this write at once, whatever was kept: where the program runs, it needs no gradient.
            return
        kept = [keep for keep in self.kept(value) if keep.degree > Differentiable.NO]
        if kept:
            keep = max(kept, key=lambda item: item.degree)
            key = (write.node, keep.side, value.hidden)
            known = self._found.get(key)
            if known is None or known.keep.degree < keep.degree:
                name = ast.unparse(write.target)
                self._found[key] = Overwrite(write, keep, name, value.hidden, self._function)
            # One finding for each tensor: after the first write the promise is broken.
            self.state.kept[value.storage] = ()
        if self.recording and not value.hidden:
            value.degree = max(value.degree, degree)

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
