"""Which places of a snapshot running a target may come to: helpers, layers that it builds, methods that it inherits.

More rather than less: a name that is read counts as called, and of a class that is referred to all methods count that
its life begins with. What is only found while running (a method of something that is handed in) is not seen. This
module must not know rules or findings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from analyzer.findings import TargetDeclaration
from analyzer.outline import Outline
from analyzer.references import DefinitionOutline
from analyzer.snapshot import Place, SnapshotOutline

# A model of fifty layers comes to 150 definitions; beyond 400 a finding says little about one target.
_MOST_DEFINITIONS: Final = 400
_MOST_TARGETS: Final = 5_000
# Where the life of an object begins, and what autograd and torch.nn call by themselves.
_ENTRIES: Final = frozenset(
    {
        *("__init__", "__new__", "__post_init__", "__call__", "forward", "backward", "setup_context", "jvp", "vmap"),
        *("reset_parameters", "build", "extra_repr"),
    }
)

Span = tuple[str, int, int]


def reaches_of(snapshot: SnapshotOutline, targets: Iterable[TargetDeclaration]) -> Mapping[str, tuple[Span, ...]]:
    """By name of a target: the spans outside of it that running it may come to, the nearest first."""
    graph = _Graph(snapshot)
    found: dict[str, tuple[Span, ...]] = {}
    for number, target in enumerate(target for target in targets if target.eligible):
        if number == _MOST_TARGETS:
            break
        spans = graph.reached(target)
        if spans:
            found[target.name] = spans
    return found


# A function of a module, or the class at this place together with the methods that are called from outside.
_Node = tuple[str, str]


class _Graph:
    def __init__(self, snapshot: SnapshotOutline) -> None:
        self._snapshot = snapshot
        self._methods: dict[str, frozenset[str]] = {}
        self._nodes: dict[_Node, tuple[tuple[Span, ...], tuple[_Node, ...]]] = {}

    def reached(self, target: TargetDeclaration) -> tuple[Span, ...]:
        outline = self._snapshot.modules.get(target.module)
        if outline is None:
            return ()
        start = self._node(outline, target.qualname)
        if start is None:
            return ()
        seen: set[_Node] = {start}
        spans: dict[Span, None] = {}
        pending = deque([start])
        while pending and len(spans) < _MOST_DEFINITIONS:
            own, onward = self._expanded(pending.popleft())
            for path, first, last in own:
                if path != target.path or last < target.line or first > target.end_line:
                    spans[path, first, last] = None
            for node in onward:
                if node not in seen:
                    seen.add(node)
                    pending.append(node)
        return tuple(spans)

    def _node(self, outline: Outline, name: str) -> _Node | None:
        """The node that a name in a file leads to: `C` and `C.method` alike to the class."""
        place = self._snapshot.find_class(outline, name)
        if place is not None:
            return self._key(place), ""
        found = self._snapshot.find_definition(outline, name)
        if found is None:
            beginning, _, method = name.rpartition(".")
            place = self._snapshot.find_class(outline, beginning) if beginning.strip(".") else None
            return (self._key(place), method) if place is not None else None
        home, definition = found
        owner, _, method = definition.qualname.rpartition(".")
        module = self._snapshot.located(home)[1]
        return (f"{module}.{owner}", method) if owner else (f"{module}.{definition.qualname}", "")

    def _key(self, place: Place) -> str:
        return f"{self._snapshot.located(place[0])[1]}.{place[1].qualname}"

    def _expanded(self, node: _Node) -> tuple[tuple[Span, ...], tuple[_Node, ...]]:
        known = self._nodes.get(node)
        if known is None:
            place = self._snapshot.class_at(node[0])
            known = self._nodes[node] = self._of_class(place, node[1]) if place is not None else self._of_function(node)
        return known

    def _of_function(self, node: _Node) -> tuple[tuple[Span, ...], tuple[_Node, ...]]:
        found = self._snapshot.definition_at(node[0])
        if found is None:
            return (), ()
        outline, definition = found
        return (_span(outline, definition),), tuple(self._onward(outline, [definition], ()))

    def _of_class(self, place: Place, method: str) -> tuple[tuple[Span, ...], tuple[_Node, ...]]:
        """The methods of a class that are called, from its entries or from one `method` on, and where they lead."""
        lineage = self._snapshot.lineage(place)
        plain = not any("forward" in item.methods for _, item in lineage)
        pending = list(dict.fromkeys(name for _, item in lineage for name in sorted(item.methods))) if plain else []
        pending = [method] if method else pending or sorted(_ENTRIES)
        called: set[str] = set()
        spans: dict[Span, None] = {}
        onward: dict[_Node, None] = {}
        far: dict[str, None] = {}
        reached: list[tuple[Outline, DefinitionOutline]] = []
        while pending:
            name = pending.pop()
            if name in called:
                continue
            called.add(name)
            for owner in lineage:
                if name not in owner[1].methods:
                    continue
                definition = self._snapshot.definition(owner, name)
                if definition is None:
                    continue
                spans[_span(owner[0], definition)] = None
                reached.append((owner[0], definition))
                pending.extend(definition.own)
                far.update(dict.fromkeys(definition.far))
                if "super" not in definition.own:
                    break
        if not method:
            for owner in lineage:
                body = self._snapshot.definition(owner)
                if body is not None:
                    reached.append((owner[0], body))
        for outline, definition in reached:
            onward.update(dict.fromkeys(self._onward(outline, [definition], far)))
        return tuple(spans), tuple(onward)

    def _onward(
        self, outline: Outline, definitions: Iterable[DefinitionOutline], far: Iterable[str]
    ) -> Iterable[_Node]:
        called = {name for name in far if name not in _ENTRIES}
        for definition in definitions:
            for name in definition.references:
                node = self._node(outline, name)
                if node is None:
                    continue
                yield node
                if called:
                    # `self.encoder.encode(x)`: the class of the encoder is referred to where it is built.
                    for method in sorted(called & self._methods_at(node[0])):
                        yield node[0], method

    def _methods_at(self, name: str) -> frozenset[str]:
        """The methods of the class of this full name, inherited ones included; none for anything else."""
        known = self._methods.get(name)
        if known is None:
            place = self._snapshot.class_at(name)
            lineage = self._snapshot.lineage(place) if place is not None else []
            known = self._methods[name] = frozenset(method for _, item in lineage for method in item.methods)
        return known


def _span(outline: Outline, definition: DefinitionOutline) -> Span:
    return outline.path, definition.line, definition.end_line
