"""Whether the author knows that a result is not finite: a docstring that says so, or a warning raised there.

What is told is no fault. A sentence about keeping such values away tells the opposite and doesn't count.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place

_NOT_FINITE: Final = re.compile(
    r"(?<![\w.-])(nans?|inf|infinity|undefined|not defined|ill-defined|degenerate|not unique|non-unique)(?![\w-])", re.I
)
_KEPT_AWAY: Final = re.compile(
    r"avoid|prevent|protect|guard|instead of|rather than|never|without|stab|safe|replac|ignor|skip|remov|\bno\b|"
    r"numerical|epsilon|\beps\b|float\(|default",
    re.I,
)
_SENTENCE: Final = re.compile(r"(?<=[.;!?])\s+|\n\s*\n|\n\s*(?:-|\*|>>>)\s")
_TORCH: Final = str(Path(torch.__file__).parent) + "/"
# Warnings from C++ carry the line of the caller, and this.
_FROM_TORCH: Final = "Triggered internally"


def told(documents: Sequence[str]) -> str | None:
    """The sentence that says of the result, or of the input, that it isn't finite or defined."""
    for document in documents:
        for sentence in _SENTENCE.split(document):
            if _NOT_FINITE.search(sentence) and not _KEPT_AWAY.search(sentence):
                return " ".join(sentence.split())
    return None


def documents_of(target: Any) -> list[str]:
    """The docstrings of a function, or of a class, its constructor and its call."""
    own = target if isinstance(target, type) or not isinstance(target, torch.nn.Module) else type(target)
    members = [own, *(vars(own).get(name) for name in ("__init__", "forward"))] if isinstance(own, type) else [own]
    found = [vars(item).get("__doc__") if isinstance(item, type) else getattr(item, "__doc__", "") for item in members]
    return [text for text in found if isinstance(text, str)]


def documents_at(place: Place | None, source_root: Path) -> list[str]:
    """The docstrings of the functions and classes around a line."""
    if place is None:
        return []
    try:
        tree = ast.parse((source_root / place.path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    return [text for node in around if (text := ast.get_docstring(node))]


@contextmanager
def listening() -> Iterator[list[str]]:
    """What the code under search warns of meanwhile, and torch doesn't, each once."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield said
    for one in heard:
        text = str(one.message)
        outdated = issubclass(one.category, DeprecationWarning | PendingDeprecationWarning | FutureWarning)
        if not outdated and _FROM_TORCH not in text and not one.filename.startswith(_TORCH) and text not in said:
            said.append(text)
