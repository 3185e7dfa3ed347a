"""Calls that torch's functions and classes do not take (GP904): checked against the signatures of the listed torch."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import signatures
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.torch_names import torch_names
from analyzer.version_guards import is_guarded

# NumPy's names for what torch calls otherwise; only functions that are parsed in C++ take both.
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "axes": "dims"}
# Below this share of matching letters, difflib's matches are accidents.
_ALIKE = 0.75


class WrongTorchCall(Rule):
    id = "GP904"
    name = "torch-call-does-not-fit"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("torch",)
    documentation = Documentation(
        what_it_does=(
            "Checks the arguments of every call of a torch function or class against the signatures of torch 2.13, "
            "all overloads included: keywords that do not exist, too many positional arguments, required ones that "
            "are missing, one given twice. Calls with `*args` or `**kwargs` and calls behind a version test are left "
            "alone, and so is what takes anything. `axis` for `dim` is right where torch's C++ parser takes it "
            "(`torch.sum`), and wrong where it does not (`F.softmax`)."
        ),
        why_is_this_bad="The call raises `TypeError` when it runs, which may be in a branch that no test reaches.",
        faulty_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef f(x):\n    return F.softmax(x, axis=-1)\n"
        ),
        right_example=(
            "import torch\nimport torch.nn.functional as F\n\n\ndef f(x):\n    return F.softmax(x, dim=-1)\n"
        ),
        fix_safety="Safe, and offered for `axis`, `axes` and `keepdims`: the call raised before.",
    )
    valid = (
        "import torch\nimport torch.nn.functional as F\ndef f(x):\n    return torch.sum(x, axis=0, keepdims=True)\n",
        "import torch\ndef f(x):\n    return torch.cat([x, x], axis=1), torch.zeros(2, 3, 4, dtype=x.dtype)\n",
        "import torch\ndef f(x, **options):\n    return torch.softmax(x, **options)\n",
        "import torch\ndef f(*xs):\n    return torch.cat(*xs)\n",
        "import torch\nif torch.__version__ >= '2.20':\n"
        "    x = torch.zeros(2, memory_format=torch.contiguous_format)\n",
        "import torch\nfrom torch import nn\nlayer = nn.Linear(2, out_features=3, bias=False, device='cpu')\n",
        "import torch\ndef f(x, y):\n    return torch.max(x, y), torch.max(x, 0, keepdim=True), torch.max(x)\n",
        "import torch\ndef f(x):\n    return torch.add(x, 2, x)\n",
        "import torch\ndef load(p):\n"
        "    return torch.load(p, map_location='cpu', weights_only=True, encoding='latin1')\n",
        "from functools import partial\nfrom torch import nn\nnorm = partial(nn.LayerNorm, eps=1e-6)\n",
        "def f(torch, x):\n    return torch.softmax(x, colour=1)\n",
        "import torch\ntry:\n    x = torch.zeros(2, copy=True)\nexcept Exception:\n    x = torch.zeros(2)\n",
        "import torch\ndef f(x):\n"
        "    return torch.einsum('ij,jk->ik', x, x), torch.arange(0, 10, 2), torch.where(x > 0)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(n):\n    return torch.zeros(n, 3, memory_format=torch.contiguous_format)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.tensor(x, copy=True)\n", (3,)),
        Invalid("import torch\ndef f(a, b):\n    return torch.concatenate(a, b, dim=0)\n", (3,)),
        Invalid("import torch.nn.functional as F\ndef f(x):\n    return F.softmax(x, axis=-1)\n", (3,)),
        Invalid("import torch.nn.functional as F\ndef f(x):\n    return F.normalize(x, axis=-1)\n", (3,)),
        Invalid("from torch import nn\nlayer = nn.Linear(2, 3, biass=False)\n", (2,)),
        Invalid("from torch import nn\nlayer = nn.Linear(2)\n", (2,)),
        Invalid("from torch import nn\nlayer = nn.LayerNorm(2, epsilon=1e-6)\n", (2,)),
        Invalid("import torch\ndef f(x):\n    return torch.stack([x, x], 0, 1)\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return torch.softmax(x, -1, dim=1)\n", (3,)),
        Invalid("import torch\nopt = torch.optim.Adam([torch.ones(1)], learning_rate=1e-3)\n", (2,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call of something whose signature is known."""
        known = signatures()
        for call, name in torch_names(file).calls:
            if not known.known(name):
                continue
            keywords = [keyword.arg for keyword in call.keywords]
            if None in keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
                continue
            given = [keyword for keyword in keywords if keyword is not None]
            if known.accepts(name, len(call.args), given) or is_guarded(file, call):
                continue
            yield Hit(
                call,
                f"{_complaint(name, len(call.args), given)} (torch {known.version}): this raises `TypeError`.",
                hypothesis={"name": name},
                fix=_fix(file, call, name),
            )


def _complaint(name: str, positional: int, keywords: list[str]) -> str:
    known = signatures()
    unknown = known.unknown_keywords(name, keywords)
    if unknown:
        alike = difflib.get_close_matches(unknown[0], known.keywords(name), n=1, cutoff=_ALIKE)
        meant = _NUMPY_NAMES.get(unknown[0])
        meant = meant if meant in known.keywords(name) else next(iter(alike), None)
        hint = f"; did you mean `{meant}`?" if meant else ""
        return f"`{name}` has no parameter `{unknown[0]}`{hint}"
    most = known.most_positional(name)
    if most is not None and positional > most:
        return f"`{name}` takes at most {most} positional arguments, not {positional}"
    missing = known.missing(name, positional, keywords)
    if missing:
        return f"`{name}` needs `{missing[0]}`"
    return f"`{name}` takes no such combination of arguments"


def _fix(file: FileContext, call: ast.Call, name: str) -> Rewrite | None:
    """NumPy's keyword under torch's name, where that is all that is wrong."""
    known = signatures()
    keywords = [keyword.arg or "" for keyword in call.keywords]
    renamed = [_NUMPY_NAMES.get(keyword, keyword) for keyword in keywords]
    text = file.source(call)
    if renamed == keywords or call.lineno != call.end_lineno or not text.isascii():
        return None
    if not known.accepts(name, len(call.args), renamed):
        return None
    for keyword in reversed(call.keywords):
        new = _NUMPY_NAMES.get(keyword.arg or "")
        if new is not None:
            at = keyword.col_offset - call.col_offset
            text = text[:at] + new + text[at + len(keyword.arg or "") :]
    return Rewrite(FixSafety.SAFE, (Replacement(call, text),))
