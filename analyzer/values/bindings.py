"""Which assignments a name may stand for at a place of a function: def-use over branches and loops.

An assignment reaches a use if it stands before it and is not hidden by a later one that always runs, if it is not in
the other branch of the same `if`, or if both are in one loop. This module must not know what values mean.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analyzer.syntax import FunctionNode, leaves

# Of the assignments before a use so many are looked at, the last ones: generated code has thousands to one name, and
# asking for each use about each of them takes time that grows with the square (4,000 took more than 20 s).
_MOST_LOOKED_AT = 200
# What a name may be after more assignments than these that all reach it is anything.
MOST_REACHING = 32
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_WITH_BLOCKS = frozenset(
    {ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match}
)
_Path = tuple[tuple[ast.AST, str], ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """One assignment to a name.

    `value` is the expression assigned (None: unknown, such as a loop variable). `element` is the position in it for
    `a, b = value`. `statement` is where it happens. `masked`: only the places selected by `index` are assigned.
    """

    name: str
    statement: ast.stmt
    value: ast.expr | None
    element: int | None = None
    operator: ast.operator | None = None
    index: ast.expr | None = None


class FunctionBindings:
    """All assignments in a function (or module) body, functions inside it left out."""

    def __init__(self, scope: FunctionNode | ast.Module) -> None:
        self.scope = scope
        self._bindings: dict[str, list[Binding]] = {}
        self._places: dict[ast.stmt, tuple[int, _Path]] = {}
        self._orders: dict[str, list[int]] = {}
        self._reaching: dict[tuple[str, ast.stmt], tuple[list[Binding], bool]] = {}
        self._visit(scope.body, ())

    def names(self) -> Iterator[str]:
        return iter(self._bindings)

    def all(self, name: str) -> Sequence[Binding]:
        return self._bindings.get(name, ())

    def reaching(self, name: str, statement: ast.stmt | None) -> tuple[list[Binding], bool]:
        """(assignments that a use of `name` in `statement` may see, whether it may also see none of them).

        Without a statement (or with one from elsewhere): all assignments of the scope. Where there are more than
        anybody looks through, one of unknown value stands for them.
        """
        bindings = self._bindings.get(name)
        if not bindings:
            return [], True
        place = self._places.get(statement) if statement is not None else None
        if place is None or statement is None:
            return (list(bindings), False) if len(bindings) <= MOST_REACHING else ([_unknown(bindings[-1])], False)
        order, path = place
        if len(bindings) == 1 and bindings[0].index is None:
            other_order, other_path = self._places[bindings[0].statement]
            if other_order < order and path[: len(other_path)] == other_path:
                return [bindings[0]], False  # assigned once, in this block or in one around it: two names in three
        known = self._reaching.get((name, statement))
        if known is None:
            known = self._reaching[name, statement] = self._found(name, bindings, order, path)
        return known

    def _found(self, name: str, bindings: Sequence[Binding], order: int, path: _Path) -> tuple[list[Binding], bool]:
        found: list[Binding] = []
        dominating: _Path | None = None
        hidden_by: list[_Path] = []
        before = bisect_left(self._orders_of(name, bindings), order)
        for position in range(before - 1, -1, -1):
            binding = bindings[position]
            if before - position > _MOST_LOOKED_AT or len(found) > MOST_REACHING:
                return [_unknown(binding)], True
            _, other_path = self._places[binding.statement]
            if _exclusive(path, other_path) or self._leaves_before(other_path, path):
                continue
            if any(other_path[: len(hiding)] == hiding for hiding in hidden_by):
                continue  # assigned again before its block ends
            found.append(binding)
            if binding.index is not None:
                continue
            certain = _certain_from(other_path, hidden_by)
            hidden_by.append(certain)
            if path[: len(certain)] == certain:
                dominating = certain
                break
        found.extend(self._from_last_round(bindings[before:], order, path, dominating))
        if len(found) > MOST_REACHING:
            return [_unknown(found[0])], True
        return found, dominating is None

    def _orders_of(self, name: str, bindings: Sequence[Binding]) -> list[int]:
        """The positions of the assignments to a name, which are kept in the order of the text."""
        known = self._orders.get(name)
        if known is None:
            known = self._orders[name] = [self._places[binding.statement][0] for binding in bindings]
        return known

    def order(self, statement: ast.stmt) -> int:
        """The position of a statement in the body; -1 for one from elsewhere."""
        place = self._places.get(statement)
        return place[0] if place is not None else -1

    def _from_last_round(
        self, bindings: Sequence[Binding], order: int, path: _Path, dominating: _Path | None
    ) -> Iterator[Binding]:
        """Assignments further down in a loop around the use, seen from its second round on."""
        for depth, (owner, field) in enumerate(path):
            if not isinstance(owner, _LOOPS) or field != "body":
                continue
            if dominating is not None and len(dominating) > depth:
                return  # assigned afresh in every round before the use
            inside = path[: depth + 1]
            for binding in bindings:
                other_order, other_path = self._places[binding.statement]
                if other_order > order and other_path[: depth + 1] == inside:
                    yield binding
            return

    @staticmethod
    def _leaves_before(binding_path: _Path, use_path: _Path) -> bool:
        """Whether the block of an assignment always leaves (return, raise) before the use can see it."""
        for depth, step in enumerate(binding_path):
            if use_path[depth : depth + 1] == (step,):
                continue
            owner, field = step
            return leaves(getattr(owner, field))
        return False

    def _visit(self, block: Sequence[ast.stmt], path: _Path) -> None:
        for statement in block:
            self._places[statement] = (len(self._places), path)
            self._bind(statement)
            if type(statement) not in _WITH_BLOCKS:
                continue
            for field in ("body", "orelse", "finalbody"):
                inner = getattr(statement, field, None)
                if inner:
                    # What stands in `with` and `finally` always runs: it is no branch.
                    plain = isinstance(statement, (ast.With, ast.AsyncWith)) or field == "finalbody"
                    self._visit(inner, path if plain else (*path, (statement, field)))
            for handler in getattr(statement, "handlers", ()):
                self._visit(handler.body, (*path, (handler, "body")))
            for case in getattr(statement, "cases", ()):
                self._visit(case.body, (*path, (case, "body")))

    def _add(self, binding: Binding) -> None:
        self._bindings.setdefault(binding.name, []).append(binding)

    def _bind(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._bind_target(target, statement.value, statement)
        elif isinstance(statement, ast.Expr):
            self._bind_in_place(statement)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._bind_target(statement.target, statement.value, statement)
        elif isinstance(statement, ast.AugAssign):
            name = _assigned_name(statement.target)
            if name is not None:
                self._add(Binding(name, statement, statement.value, operator=statement.op))
            elif isinstance(statement.target, ast.Subscript):
                self._bind_target(statement.target, None, statement)
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            self._bind_target(statement.target, None, statement)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._bind_target(item.optional_vars, None, statement)

    def _bind_in_place(self, statement: ast.Expr) -> None:
        """`x.clamp_(min=1)` leaves in `x` what the call returns."""
        call = statement.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            method = call.func.attr
            name = _assigned_name(call.func.value)
            if name is not None and method.endswith("_") and not method.endswith("__"):
                self._add(Binding(name, statement, call))

    def _bind_target(self, target: ast.expr, value: ast.expr | None, statement: ast.stmt) -> None:
        if isinstance(target, ast.Starred):
            self._bind_target(target.value, None, statement)
        elif isinstance(target, (ast.Tuple, ast.List)):
            given = value.elts if isinstance(value, (ast.Tuple, ast.List)) else None
            starred = any(isinstance(element, ast.Starred) for element in target.elts)
            for position, element in enumerate(target.elts):
                if given is not None and len(given) == len(target.elts) and not starred:
                    self._bind_target(element, given[position], statement)
                else:
                    name = _assigned_name(element)
                    if name is not None:
                        known = value if not starred else None
                        self._add(Binding(name, statement, known, element=position))
                    else:
                        self._bind_target(element, None, statement)
        elif isinstance(target, ast.Subscript):
            name = _assigned_name(target.value)
            if name is not None:
                self._add(Binding(name, statement, value, index=target.slice))
        else:
            name = _assigned_name(target)
            if name is not None:
                self._add(Binding(name, statement, value))


def _unknown(binding: Binding) -> Binding:
    return Binding(binding.name, binding.statement, None)


def _certain_from(path: _Path, assigned: Sequence[_Path]) -> _Path:
    """The outermost block in which an assignment at `path` is certain to have happened.

    That is its own block, or the one around an `if` whose other branch assigns too or leaves.
    """
    while path:
        owner, field = path[-1]
        if not isinstance(owner, ast.If):
            break
        other = "orelse" if field == "body" else "body"
        block = getattr(owner, other)
        if not leaves(block) and (*path[:-1], (owner, other)) not in assigned:
            break
        path = path[:-1]
    return path


def _assigned_name(target: ast.expr) -> str | None:
    """`x`, or `self.x` for an attribute of a plain name."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        return f"{target.value.id}.{target.attr}"
    return None


def _exclusive(use: _Path, other: _Path) -> bool:
    """Whether two places are in different branches of one `if`."""
    for mine, theirs in zip(use, other, strict=False):
        if mine == theirs:
            continue
        return mine[0] is theirs[0] and isinstance(mine[0], ast.If)
    return False
