"""What a person reads about the environment that a run had, the same in every format. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from services.reports.document import EnvironmentInfo

# What somebody looks at before asking for the JSON.
_MOST = 12


def environment_facts(info: EnvironmentInfo | None) -> Iterator[str]:
    """Sentences about the repository's own requirements; none where nobody asked for them."""
    if info is None:
        return
    if info.reason is not None:
        yield f"the repository's requirements were not installed: {info.reason}"
    elif info.packages:
        yield f"installed for this run: {_some(info.packages)}"
    if info.kept:
        yield f"kept as the interpreter has it: {_some(info.kept)}"
    for refused in info.refused[:_MOST]:
        yield f"not installed: {refused.text or refused.place} ({refused.reason})"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
