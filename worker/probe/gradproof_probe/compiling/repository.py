"""What the submitted source has a word of: who is concerned by a fault of the compiler is who compiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gradproof_probe.source_texts import source_texts

_COMPILES: Final = re.compile(
    r"\btorch\s*\.\s*(?:compile\b|compiler\b|_dynamo\b|_inductor\b)|\bfrom\s+torch\s+import\s[^\n]*\bcompile\b"
    r"|\b(?:model|module|net|self)\.compile\s*\("
)
_TRANSFORMS: Final = re.compile(r"\btorch\s*\.\s*func\b|\bfrom\s+torch\s+import\s[^\n]*\bfunc\b|\bfunctorch\b")


def compiles(source_root: Path) -> bool:
    """Whether any Python file or notebook of the repository has a word of `torch.compile`."""
    return _speaks_of(_COMPILES, source_root)


def uses_transforms(source_root: Path) -> bool:
    """Whether any Python file or notebook of the repository has a word of `torch.func`."""
    return _speaks_of(_TRANSFORMS, source_root)


def _speaks_of(pattern: re.Pattern[str], source_root: Path) -> bool:
    texts = source_texts(source_root)
    return any(pattern.search(item.text) for item in (*texts.python, *texts.notebooks))
