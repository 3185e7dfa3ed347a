"""Arguments of layers on graphs: features of nodes, edges as pairs of node numbers, and what belongs to each edge.

`edge_index` is the common word for a table of 2 x edges; its sizes and the range of its numbers follow from no line of
a layer's code, but from the other arguments. Nothing is decided where the code or the words say otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gradproof_probe.harness.axes import Axis

if TYPE_CHECKING:
    from gradproof_probe.harness.demanded import Slot

_EDGE_TABLE: Final = re.compile(r"(^|_)edge(_label)?_ind(ex|ices)(_\d)?$")
_OF_EDGES: Final = re.compile(r"^edge_(attrs?|features?|feats?|embeddings?|emb)$")
_NUMBER_OF_EDGES: Final = re.compile(r"^edge_(weights?|lengths?|types?|norm|distances?)$")
_NUMBER_OF_NODES: Final = re.compile(r"^(batch|node_types?|z|x_batch|.*_batch)$")
_NODES: Final = 4  # at least as many as the numbers in a table of edges can name


def as_graph(slots: Sequence[Slot]) -> None:
    """Give the arguments of a call that takes a table of edges the sizes that belong together."""
    tables = [slot for slot in slots if _EDGE_TABLE.search(slot.argument.name)]
    if not tables:
        return
    for slot in tables:
        if slot.argument.kind in ("list", "tuple"):
            # Only its rows are used, which a pair of tensors has as well.
            slot.argument, slot.items = replace(slot.argument, kind="int", items=()), []
    nodes, edges = Axis(symbol="nodes"), Axis(symbol="edges")
    nodes.least, edges.least = _NODES, _NODES
    for slot in slots:
        if not slot.is_tensor:
            continue
        name = slot.argument.name
        if _EDGE_TABLE.search(name):
            _number(slot, [Axis(2), edges], _NODES)
        elif _OF_EDGES.search(name):
            _shape(slot, [edges, Axis()])
        elif _NUMBER_OF_EDGES.search(name):
            if name.startswith("edge_type"):
                _number(slot, [edges], 2)
            else:
                _shape(slot, [edges])
        elif _NUMBER_OF_NODES.search(name):
            _number(slot, [nodes], 1)  # all nodes in one graph: in order, as a batch of graphs has to be
        elif slot.argument.kind == "float":
            _shape(slot, [nodes, Axis(3) if name in ("pos", "coords") else Axis()])


def _shape(slot: Slot, axes: list[Axis]) -> bool:
    if not slot.form.set_rank(len(axes)):
        return False
    for index, axis in enumerate(axes):
        slot.form.axis(index).join(axis)
    return True


def _number(slot: Slot, axes: list[Axis], high: int) -> None:
    if slot.form.dtype in ("", "int", "index") and _shape(slot, axes):
        slot.argument = replace(slot.argument, kind="int", high=slot.form.high or high)
