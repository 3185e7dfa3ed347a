"""The nodes of an autograd graph, from the results of a call back to what it began with. This must not judge them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes_behind(results: Iterable[torch.Tensor], most: int | None = None) -> Iterator[Any]:
    """Each once, the nearest first; no more than `most`."""
    return itertools.islice(_walked(result.grad_fn for result in results), most)


def _walked(ends: Iterable[Any]) -> Iterator[Any]:
    waiting = deque(ends)
    seen: set[Any] = set()  # holds them: torch makes the object of a node anew once nobody does
    while waiting:
        node = waiting.popleft()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
