"""The module that the examples of the checkpoint rules are written in. It holds no rule."""

_HEAD = "import random\nimport torch\nimport torch.nn as nn\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.body = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3))\n"
    "        self.plain = nn.Linear(width, width)\n"
    "        self.normed = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))\n"
    "        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])\n"
    "        self.register_buffer('volt', torch.zeros(width))\n        self.calls = 0\n\n"
    "    def forward(self, x):\n"
)
# The first line of `body`, and that of `after`, in what `module` makes of a body of one line.
FIRST, AFTER = 18, 20
VOLT = "def step(self, x):\n    self.volt.mul_(0.9).add_(x.detach().mean(0))\n    return self.plain(x)\n"
LOOP = "for block in self.blocks:\n    x = checkpoint(lambda y: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"


def module(body: str, *, after: str = "") -> str:
    """The source of a module with this `forward`, and with further methods after it."""
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    method = "".join(f"    {line}\n" if line else "\n" for line in after.splitlines())
    return f"{_HEAD}{_BLOCK}{forward}" + (f"\n{method}" if method else "")
