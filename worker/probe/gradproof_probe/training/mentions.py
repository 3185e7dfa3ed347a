"""Whether submitted source speaks of something at all: who never says autocast is not held to it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gradproof_probe.gradients.attribution import Place
from gradproof_probe.source_texts import source_texts


@cache
def mentions(source_root: Path, pattern: str) -> tuple[Place, ...]:
    """The lines that match outside of comments."""
    wanted = re.compile(pattern)
    found = []
    for item in source_texts(source_root).python:
        if wanted.search(item.text):
            found += [
                Place(item.path, line)
                for line, words in enumerate(item.text.splitlines(), 1)
                if wanted.search(words.partition("#")[0])
            ]
    return tuple(found)
