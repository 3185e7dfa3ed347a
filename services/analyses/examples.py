"""Whether a repository holds examples of its own that are worth running for the calls they make.

Told from names and from a few words in the files: running them costs a sandbox, and the probe looks closely anyway.
Too many a "yes" costs seconds, a wrong "no" costs harnesses. This module must not parse anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

_TEXTS: Final = (".md", ".rst", ".txt")
# A fence of Python, an interpreter's prompt, the directive of Sphinx.
_IN_TEXTS: Final = (b"```py", b"``` py", b"~~~py", b">>> ", b"code-block:: py", b"code:: py")
# A doctest, an example in a docstring, a script's own part.
_IN_MODULES: Final = (b">>> ", b"```", b"__main__", b"Example:", b"Examples:", b"Usage:", b"::\n")
# Larger ones are data, and files beyond the number are not what a reader is meant to start with.
_MOST_BYTES: Final = 2**20
_MOST_TEXTS: Final = 200


def is_text(path: Path) -> bool:
    """Whether a file may be one that tells people how to use the code; a wheel's METADATA holds its README."""
    return path.suffix.lower() in _TEXTS or path.name == "METADATA"


def has_examples(root: Path, modules: Iterable[str], texts: Iterable[Path]) -> bool:
    """Whether one of the `modules` (paths of files that are read), or a text beside them, seems to show a call."""
    for name in modules:
        if _shows_by_name(PurePosixPath(name)) or _holds(root / name, _IN_MODULES):
            return True
    shallow = sorted(texts, key=lambda path: (len(path.parts), path))
    return any(_holds(path, _IN_TEXTS) for path in shallow[:_MOST_TEXTS])


def _shows_by_name(path: PurePosixPath) -> bool:
    return (
        path.suffix == ".ipynb"
        or path.name.startswith("test_")
        or path.stem.endswith("_test")
        or not {"tests", "test", "examples", "example", "demo", "demos"}.isdisjoint(path.parts[:-1])
    )


def _holds(path: Path, words: tuple[bytes, ...]) -> bool:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError:
        return False
    return any(word in text for word in words)
