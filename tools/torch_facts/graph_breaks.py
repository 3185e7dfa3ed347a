"""Which of torch's own numbered graph breaks a rule of the analyzer speaks of.

The numbers come from the registry in the installed torch; only the kinds are named here, by their titles in it. A
title that the registry does not have (any more) is an error, so that a rule can't go on citing what torch gave up.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

REGISTRY = Path(torch.__file__).parent / "_dynamo" / "graph_break_registry.json"

KINDS: dict[str, tuple[str, ...]] = {
    "GP501": ("Data-dependent branching",),
    "GP502": (
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
        "Tensor.tolist() with non-integer tensor",
    ),
    "GP503": ("Dynamic shape operator",),
    "GP504": (
        "Failed to trace builtin operator",
        "logging.Logger method not supported for non-export cases",
        "Attempted to call function marked as skipped",
        "Attempted to copy.deepcopy a tensor",
        "Unsupported method call",
    ),
    "GP505": ("Attempted to call function marked as skipped", "Data dependent operator"),
    "GP506": ("Dynamo recompile limit exceeded",),
    "GP507": (
        "Unsupported Tensor.backward() call",
        "using `torch.autograd.grad` with `torch._dynamo.config.trace_autograd_ops=False`",
        "requires_grad_() intermediate leaked as output",
    ),
    "GP508": ("Data-dependent branching",),
}


def graph_breaks_document(version: str) -> dict[str, object]:
    """`rules`: rule → [[number, title], …]; `registered`: how many kinds of break this torch knows."""
    registry = json.loads(REGISTRY.read_text("utf-8"))
    numbers = {entries[0]["Gb_type"]: number for number, entries in registry.items()}
    missing = sorted({title for titles in KINDS.values() for title in titles} - set(numbers))
    if missing:
        message = f"the registry of torch {version} has no graph break titled {missing}"
        raise SystemExit(message)
    rules = {rule: [[numbers[title], title] for title in titles] for rule, titles in KINDS.items()}
    return {"torch": version, "rules": rules, "registered": len(registry)}
