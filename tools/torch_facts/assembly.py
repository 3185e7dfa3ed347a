"""Puts what was found into the two documents that the analyzer reads.

This module must not look at torch itself.
"""

from __future__ import annotations

from torch_facts import names, operations
from torch_facts.operations import Cases


def names_document(version: str) -> dict[str, object]:
    """`names`: the names in each public module, in one string; `open`: modules that may answer to any name."""
    listed, unlisted = names.existing_names()
    return {"torch": version, "names": {module: " ".join(items) for module, items in listed.items()}, "open": unlisted}


def operations_document(version: str) -> dict[str, object]:
    """`operations`: Python name → cases; the other keys: names that share a property, told by their key.

    A case maps the kinds of the arguments (see `measurement.Observation`) to {argument that requires gradients: what
    is kept}.
    """
    observed = operations.observe_everything()
    table, bound = operations.read_derivatives()
    merged: dict[str, Cases] = {**observed.cases, **operations.observe_modules(), **operations.observe_in_place_flags()}
    for name, cases in table.items():
        merged[name] = _both(merged[name], cases) if name in merged else cases
    return {
        "torch": version,
        "operations": {name: _plain(cases) for name, cases in merged.items()},
        "writing": operations.writing_names(bound),
        "viewing": operations.viewing_names(bound),
        "in_place_flag": operations.in_place_flags(),
        "single_result": operations.single_results(bound),
        # Only operations that give the same number of results in every call, of which some never require gradients.
        "results": {
            name: next(iter(flags))
            for name, flags in observed.outputs.items()
            if len(flags) == 1 and len(next(iter(flags))) > 1 and "-" in next(iter(flags))
        },
        "never_differentiable": sorted(name for name, never in observed.never_differentiable.items() if never),
    }


def _both(observed: Cases, table: Cases) -> Cases:
    """What both sources say of a call that both know; what the only one that knows it says otherwise."""
    merged = {kinds: dict(case) for kinds, case in observed.items()}
    for kinds, case in table.items():
        known = merged.setdefault(kinds, {})
        for argument, kept in case.items():
            known[argument] = known[argument] & kept if argument in known else kept
    return merged


def _plain(cases: Cases) -> dict[str, dict[str, str]]:
    return {
        kinds: {argument: " ".join(sorted(kept)) for argument, kept in case.items()} for kinds, case in cases.items()
    }
