"""Names under `torch` that do not exist in the torch whose names were listed.

What exists is generated (`analyzer.facts`); nothing is known here but where a program says that it will cope.
"""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import history, names
from analyzer.findings import Confidence, Severity
from analyzer.missing_names import missing_uses
from analyzer.rules.base import Documentation, Hit, Invalid, Rule


class NonexistentTorchName(Rule):
    """A dotted name under `torch` that the listed torch does not have."""

    id = "GP901"
    name = "nonexistent-torch-name"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    triggers = ("torch",)
    documentation = Documentation(
        what_it_does=(
            "Looks up every dotted name under `torch`, through imports and aliases (`F.…`, `nn.…`), in the list of "
            "names that the installed torch 2.13 answers to. Names that the code tests for (`hasattr`, a version "
            "test, `try`/`except`) are left alone, and so is what is inside `torch.ops`, `torch._C`, classes, and "
            "devices that another package adds to torch. Names that older versions had are GP902's."
        ),
        why_is_this_bad=(
            "The name raises `AttributeError` or `ImportError` when the line runs, often long after import. Names "
            "that were removed years ago, or that never existed, come with copied snippets and generated code: "
            "`torch.custom_grad` is one that reads as if it had to exist."
        ),
        faulty_example=("import torch\n\n\n@torch.custom_grad\ndef square(x):\n    return x * x\n"),
        right_example=(
            "import torch\n\n\nclass Square(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return x * x\n\n    @staticmethod\n"
            "    def backward(ctx, grad):\n        (x,) = ctx.saved_tensors\n        return 2 * grad * x\n"
        ),
        fix_safety="No automatic fix: the message names the closest name that exists, which may not be what was meant.",
    )
    valid = (
        "import torch\n\nif hasattr(torch, 'custom_grad'):\n    grad = torch.custom_grad\n",
        "import torch\n\ntry:\n    from torch import custom_grad\nexcept ImportError:\n    custom_grad = None\n",
        "import torch\n\ntry:\n    new = torch.custom_grad\nexcept AttributeError:\n    new = torch.sum\n",
        "import torch\n\nif torch.__version__ < '1.8':\n    spectrum = torch.custom_grad(torch.ones(4), 1)\n",
        "import torch\n\nTORCH_VERSION = (2, 13)\n"
        "parse = torch.custom_parse if TORCH_VERSION < (1, 8) else torch.jit.load\n",
        "import torch\n\nrun = torch.ops.mine.custom_grad\nlow = torch._C._custom_grad\nk = torch.classes.mine.K\n",
        "import torch.utils.tensorboard\nfrom torch.onnx import symbolic_helper\n\n"
        "writer = torch.utils.tensorboard.SummaryWriter\n",
        "import torch.nn.functional as F\n\n\ndef f(torch, x):\n    return torch.custom_grad(x) + F.relu(x)\n",
        "import torch\n\nif torch.npu.is_available():\n    module = torch.npu\n",
        "import torch\n\nassert hasattr(torch.onnx, 'dynamo_export')\noptions = torch.onnx.ExportOptions()\n",
        "import torch\n\ntorch.Tensor.custom_grad = lambda self: self\nprint(torch.Tensor.custom_grad)\n",
        "from __future__ import annotations\nfrom torch import nn\n\n\ndef f(model: nn.modul) -> nn.modul:\n    pass\n",
        "import torch\n\nprint(hasattr(torch, 'custom_grad') and torch.custom_grad)\n",
        "import torch\n\nuse = torch.backends.cudnn.benchmark, torch.float8_e5m2, torch.Tensor.mT, torch.nn.Module.a\n",
        "try:\n    from torch import custom_grad\nexcept ImportError:\n    custom_grad = None\nuse(custom_grad.x)\n",
    )
    invalid = (
        Invalid("import torch\n\n\ndef f(x):\n    return torch.custom_grad(x)\n", (5,)),
        Invalid("from torch import custom_grad\n", (1,)),
        Invalid("import torch.nn as nn\n\nlayer = nn.LayerNorm2d(3)\n", (3,)),
        Invalid(
            "import torch\nfrom torch.nn import functional as F\n\n\ndef f(x):\n    return F.logsumexp(x, 1)\n", (6,)
        ),
        Invalid("import torch\n\nx = torch.optim.lr_schedular.StepLR(None, 1)\n", (3,)),
        Invalid("import torch.nn.functionnal as F\n", (1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every chain of names and every import that starts at torch."""
        for use in missing_uses(file):
            if history().until(use.full) is None:
                hint = f"; did you mean {use.suggestion}?" if use.suggestion else ""
                message = f"{use.full} does not exist in torch {names().version}{hint}"
                yield Hit(use.node, message, hypothesis={"name": use.full})
