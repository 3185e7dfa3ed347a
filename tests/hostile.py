"""A repository of hostile modules beside a right one: what each does or is, and the words its report must hold.

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
    "writes": "open(__file__, 'w').write('raise SystemExit')\n",
    "patches": (
        "import torch\ntorch.autograd.grad = torch.Tensor.backward = torch.autograd.backward = None\n"
        "torch.isfinite = torch.allclose = lambda *arguments, **keywords: True\n"
    ),
    "torch": "",
    "gradproof_probe": "",
    "json": "",
    "connects": ("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)\n"),
}

_ENDLESS: Final = """
from torch import nn


class Tree(nn.Module):
    def __init__(self, depth: int = 3):
        super().__init__()
        self.inner = Tree(depth)

    def forward(self, x):
        return self.inner(x)
"""

# Any of these words must stand in what the report says about the target of the module.
EXPECTED: Final = {
    "exits": ("exit",),
    "segfaults": ("SIGSEGV",),
    "forks": ("timed out", "killed", "limit"),
    "sleeps": ("timed out", "limit"),
    "allocates": ("memory",),
    "prints": ("timed out", "limit", "output"),
    "writes": ("Read-only file system",),
    "patches": ("crashed",),
    # Names that torch, the probe and the standard library have taken: the file is imported under another one.
    "torch": ("agrees",),
    "gradproof_probe": ("agrees",),
    "json": ("agrees",),
    "endless": ("RecursionError",),
    "connects": ("submitted code runs without network",),
}

# Those of them that only a limit of time ends.
ENDLESS: Final = frozenset({"forks", "sleeps", "prints"})


def files() -> dict[str, str]:
    """Paths and contents of the repository."""
    modules = {
        f"{module}.py": at_import + _LAYER.format(name=module.title()) for module, at_import in _AT_IMPORT.items()
    }
    return modules | {"endless.py": _ENDLESS, "right.py": _LAYER.format(name="Right")}
