"""`torch.load` that does not say whether it may run code (GP905)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.requirements import release, script_bound
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule

_SAFE_BY_DEFAULT = (2, 6)
_END_OF_CALL = re.compile(r"\s*,?\s*\)")


class LoadWithoutWeightsOnly(Rule):
    id = "GP905"
    name = "load-without-weights-only"
    severity = Severity.NOTE
    confidence = Confidence.HIGH
    torch_versions = "<2.6"
    fix = FixSafety.UNSAFE
    triggers = ("load",)
    documentation = Documentation(
        what_it_does=(
            "Finds calls of `torch.load` without `weights_only`. A note: from torch 2.6 on the default is `True`, and "
            "the call only behaves differently from one version to the next."
        ),
        why_is_this_bad=(
            "Before torch 2.6 the call unpickles whatever the file holds, and a pickle can run any code. From 2.6 on "
            "the same call refuses files that hold more than tensors, which worked where it was written."
        ),
        faulty_example="import torch\n\n\ndef restore(path):\n    return torch.load(path, map_location='cpu')\n",
        right_example=(
            "import torch\n\n\ndef restore(path):\n    return torch.load(path, map_location='cpu', weights_only=True)\n"
        ),
        fix_safety="Unsafe: a file that holds other objects than tensors is refused with `weights_only=True`.",
    )
    valid = (
        "import torch\ndef f(p):\n    return torch.load(p, weights_only=True)\n",
        "import torch\ndef f(p):\n    return torch.load(p, weights_only=False)\n",
        "import torch\ndef f(p, **options):\n    return torch.load(p, **options)\n",
        "import torch\nimport numpy as np\ndef f(p):\n    return np.load(p), torch.jit.load(p)\n",
        "import torch\ndef f(load, p):\n    return load(p)\n",
        "import torch\nif torch.__version__ >= '2.6':\n    x = torch.load('a')\n",
        "# /// script\n# dependencies = ['torch>=2.6']\n# ///\nimport torch\nx = torch.load('a')\n",
    )
    invalid = (
        Invalid("import torch\ndef f(p):\n    return torch.load(p)\n", (3,)),
        Invalid(
            "import torch\ndef f(p):\n    return torch.load(\n        p,\n        map_location='cpu',\n    )\n", (3,)
        ),
        Invalid("import torch\ndef f(p):\n    return torch.load((p))\n", (3,)),
        Invalid("from torch import load\ndef f(p):\n    return load(p, 'cpu')\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call of `torch.load` that leaves it to the version."""
        declared = script_bound(file.text) or file.minimum_torch
        if declared is not None and release(declared) >= _SAFE_BY_DEFAULT:
            return
        for call in file.calls("load"):
            if file.qualified_name(call.func) != "torch.load" or _says(call) or _is_versioned(file, call):
                continue
            yield Hit(
                call,
                "`torch.load` without `weights_only` runs any code in the file before torch 2.6, and refuses files "
                "with other objects than tensors from 2.6 on. Say which is meant.",
                fix=_fix(file, call),
            )


def _says(call: ast.Call) -> bool:
    return any(keyword.arg is None or keyword.arg == "weights_only" for keyword in call.keywords) or not call.args


def _is_versioned(file: FileContext, call: ast.Call) -> bool:
    return any(
        isinstance(outer, ast.If) and "version" in ast.unparse(outer.test).lower() for outer in file.ancestors(call)
    )


def _fix(file: FileContext, call: ast.Call) -> Rewrite | None:
    """The keyword put after the last argument."""
    last = call.keywords[-1].value if call.keywords else call.args[-1]
    text, end = file.source(call), file.source(last)
    at = text.rindex(end) + len(end)
    # Parentheses around the argument, or a comment after it, would take the keyword in.
    if isinstance(last, ast.Starred) or _END_OF_CALL.fullmatch(text[at:]) is None:
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{text[:at]}, weights_only=True{text[at:]}"),))
