"""What the submitted source has a word of: who is concerned by a fault of the compiler is who compiles."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 5000
_MOST_BYTES: Final = 2**20
_COMPILES: Final = re.compile(
    rb"\btorch\s*\.\s*(?:compile\b|compiler\b|_dynamo\b|_inductor\b)|\bfrom\s+torch\s+import\s[^\n]*\bcompile\b"
    rb"|\b(?:model|module|net|self)\.compile\s*\("
)
_TRANSFORMS: Final = re.compile(rb"\btorch\s*\.\s*func\b|\bfrom\s+torch\s+import\s[^\n]*\bfunc\b|\bfunctorch\b")


def compiles(source_root: Path) -> bool:
    """Whether any Python file or notebook of the repository has a word of `torch.compile`."""
    return _speaks_of(_COMPILES, source_root)


def uses_transforms(source_root: Path) -> bool:
    """Whether any Python file or notebook of the repository has a word of `torch.func`."""
    return _speaks_of(_TRANSFORMS, source_root)


def _speaks_of(pattern: re.Pattern[bytes], source_root: Path) -> bool:
    seen = 0
    for directory, names, files in os.walk(source_root):
        names[:] = [name for name in names if not name.startswith(".") and name != "__pycache__"]
        for name in files:
            if not name.endswith((".py", ".ipynb")):
                continue
            seen += 1
            if seen > _MOST_FILES:
                return False
            try:
                with Path(directory, name).open("rb") as file:
                    if pattern.search(file.read(_MOST_BYTES)):
                        return True
            except OSError:
                continue
    return False
