"""A repository of hostile modules beside a right one: what each does at import, and the words its report must hold.

Each module is harmless outside its first lines and small limits; it is only ever run in the sandbox.
"""

from __future__ import annotations

from typing import Final

_LAYER = """
import torch
from torch import nn


class {name}(nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))
"""

_AT_IMPORT: Final = {
    "exits": "import sys\nsys.exit(7)\n",
    "segfaults": "import ctypes\nctypes.string_at(0)\n",
    "forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    "sleeps": "import time\ntime.sleep(3600)\n",
    "allocates": (
        "import mmap\nblocks = []\nfor _ in range(480):\n    block = mmap.mmap(-1, 64 << 20)\n"
        "    for page in range(0, 64 << 20, 4096):\n        block[page] = 1\n    blocks.append(block)\n"
    ),
    "prints": "while True:\n    print('x' * 100_000)\n",
    "connects": ("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)\n"),
}

# Any of these words must stand in what the report says about the target of the module.
EXPECTED: Final = {
    "exits": ("exit",),
    "segfaults": ("SIGSEGV",),
    "forks": ("timed out", "killed", "limit"),
    "sleeps": ("timed out", "limit"),
    "allocates": ("memory",),
    "prints": ("timed out", "limit", "output"),
    "connects": ("unreachable", "OSError", "not permitted"),
}


def files() -> dict[str, str]:
    """Paths and contents of the repository."""
    modules = {
        f"{module}.py": at_import + _LAYER.format(name=module.title()) for module, at_import in _AT_IMPORT.items()
    }
    return modules | {"right.py": _LAYER.format(name="Right")}
