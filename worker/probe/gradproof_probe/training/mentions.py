"""Whether submitted source speaks of something at all: who never says autocast is not held to it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from gradproof_probe.gradients.attribution import Place

_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 2_000_000


@cache
def mentions(source_root: Path, pattern: str) -> tuple[Place, ...]:
    """The lines that match outside of comments."""
    wanted = re.compile(pattern)
    found = []
    for number, file in enumerate(sorted(source_root.rglob("*.py"))):
        if number >= _MOST_FILES:
            break
        try:
            text = file.read_text(encoding="utf-8") if file.stat().st_size <= _MOST_BYTES else ""
        except (OSError, ValueError):
            continue
        if not wanted.search(text):
            continue
        path = str(file.relative_to(source_root))
        found += [
            Place(path, line)
            for line, words in enumerate(text.splitlines(), 1)
            if wanted.search(words.partition("#")[0])
        ]
    return tuple(found)
