"""The script for memory that grows: what is alive after equal calls, with Python's collector off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BODY: Final = """
import gc


def alive():
    \"\"\"How many tensors there are, and how many nodes the graphs behind them have.\"\"\"
    found = [item for item in gc.get_objects() if isinstance(item, torch.Tensor)]
    nodes, waiting = set(), [tensor.grad_fn for tensor in found if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(found), len(nodes)


def call(target):
    \"\"\"Forward and backward; everything that was returned is dropped.\"\"\"
    args, kwargs = inputs(leaf)
    outputs = [o for o in tensors(target(*args, **kwargs)) if o.requires_grad]
    if BACKWARD and outputs:
        own = [p for p in target.parameters() if p.requires_grad] if isinstance(target, torch.nn.Module) else []
        wanted = [t for t in [*tensors([args, kwargs]), *own] if t.requires_grad]
        torch.autograd.grad(outputs, wanted, random_like(outputs), allow_unused=True)


def main():
    target = make()
    gc.disable()
    counts = []
    for number in range(15):
        call(target)
        if number in (2, 8, 14):
            counts.append(alive())
    growing = any(first + 6 <= second and second + 6 <= third for first, second, third in zip(*counts))
    report("tensors that are alive, and nodes of their graphs, after 3, 9 and 15 equal calls", [counts[0]] * 3, counts,
           failed=growing)
"""


def remembering_body(evidence: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The body of the script, with its constants."""
    return _BODY, {"BACKWARD": "backward" not in evidence}
