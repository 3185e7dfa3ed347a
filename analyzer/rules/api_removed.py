"""Names that torch had once and has no more, and functions of torch that only raise (GP902).

Both are generated: names by comparing the versions of torch, functions by reading the installed one. By hand are only
the few replacements that torch itself does not name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.facts import deprecations, history, names
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.missing_names import missing_uses
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.torch_names import torch_names
from analyzer.version_guards import asked_names, is_guarded

# What stands in for a removed name with the same arguments and the same results.
_SAME = {
    "torch.set_deterministic": "torch.use_deterministic_algorithms",
    "torch.is_deterministic": "torch.are_deterministic_algorithms_enabled",
    "torch.Assert": "torch._assert",
    "torch._six.inf": "torch.inf",
}
# What stands in for it otherwise, in words.
_OTHERWISE = {
    "torch._six": "the standard library (`collections.abc`, `str`, `math.inf`)",
    "torch.rfft": "`torch.fft.rfft`, or `torch.fft.fft` for `onesided=False`, which return complex tensors",
    "torch.irfft": "`torch.fft.irfft`, which takes complex tensors",
    "torch.ifft": "`torch.fft.ifft`, which takes complex tensors",
    "torch.eig": "`torch.linalg.eig`, which returns complex tensors",
    "torch.symeig": "`torch.linalg.eigh`, which reads the lower triangle by default",
    "torch.matrix_rank": "`torch.linalg.matrix_rank`",
    "torch.solve": "`torch.linalg.solve`, with the arguments in the other order and one result",
    "torch.lstsq": "`torch.linalg.lstsq`, with the arguments in the other order",
}


class RemovedTorchName(Rule):
    """A name that older versions of torch had."""

    id = "GP902"
    name = "removed-torch-name"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("torch",)
    documentation = Documentation(
        what_it_does=(
            "Finds names that earlier versions of torch had (the message says until which) and torch 2.13 lacks, and "
            "functions that are still there but do nothing except raise (`torch.symeig`, `torch.lstsq`). Code that "
            "tests for the name or for a version is left alone."
        ),
        why_is_this_bad=(
            "The line raises `AttributeError`, `ImportError` or `RuntimeError` as soon as it runs on a current torch, "
            "although it worked where it was written."
        ),
        faulty_example="import torch\n\n\ndef spectrum(a):\n    values, vectors = torch.symeig(a, eigenvectors=True)\n"
        "    return values, vectors\n",
        right_example="import torch\n\n\ndef spectrum(a):\n    values, vectors = torch.linalg.eigh(a)\n"
        "    return values, vectors\n",
        fix_safety=(
            "Safe where another name of torch takes the same arguments and gives the same result. For the others, "
            "whose arguments or results changed, the message names the replacement."
        ),
    )
    valid = (
        "import torch\n\nif hasattr(torch, 'rfft'):\n    spectrum = torch.rfft(torch.ones(4), 1)\n",
        "import torch\n\ntry:\n    rfft = torch.rfft\nexcept AttributeError:\n    rfft = torch.fft.rfft\n",
        "import torch\n\nif torch.__version__ < '1.8':\n    spectrum = torch.rfft(torch.ones(4), 1)\n",
        "try:\n    from torch._six import inf\nexcept ImportError:\n    from torch import inf\n",
        "import torch\n\n\ndef f(a):\n    return torch.linalg.eigh(a), torch.fft.rfft(a), torch.linalg.lstsq(a, a)\n",
        "import torch\n\n\ndef f(a):\n    try:\n        return torch.symeig(a)\n    except RuntimeError:\n"
        "        return torch.linalg.eigh(a)\n",
        "import numpy as torch\n\n\ndef f(a):\n    return torch.symeig(a)\n",
        "import torch\n\ntorch.rfft = lambda x, n: torch.fft.rfft(x)\nprint(torch.rfft(torch.ones(4), 1))\n",
    )
    invalid = (
        Invalid("import torch\n\n\ndef f(x):\n    return torch.rfft(x, 1)\n", (5,)),
        Invalid("from torch._six import container_abcs\n", (1,)),
        Invalid("import torch\nfrom torch import _six\n", (2,)),
        Invalid("import torch\n\n\ndef f(a):\n    return torch.symeig(a)\n", (5,)),
        Invalid("from torch import lstsq\n\n\ndef f(a, b):\n    return lstsq(b, a)\n", (5,)),
        Invalid("import torch\n\ntorch.set_deterministic(True)\n", (3,)),
        Invalid("import torch\nimport torch._six\n\nlimit = -torch._six.inf\n", (2,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """What is missing and was there once; then what is there and only raises."""
        for use in missing_uses(file):
            until = history().until(use.full)
            if until is None:
                continue
            same = f"`{_SAME[use.full]}`" if use.full in _SAME else ""
            instead = same or _OTHERWISE.get(use.full) or (f"`{use.suggestion}`" if use.suggestion else "")
            hint = f" Use {instead}." if instead else ""
            message = f"`{use.full}` was last in torch {until}: torch {names().version} does not have it.{hint}"
            yield Hit(use.node, message, hypothesis={"name": use.full}, fix=_fix(file, use.node, use.full))
        yield from self._raising(file)

    def _raising(self, file: FileContext) -> Iterator[Hit]:
        asked: frozenset[str] | None = None
        for node, dotted in torch_names(file).uses:
            gone = deprecations().removed(dotted)
            if gone is None:
                continue
            if asked is None:
                asked = asked_names(file)
            if dotted.rpartition(".")[2] in asked or _is_tried(file, node) or is_guarded(file, node):
                continue
            instead = _OTHERWISE.get(dotted) or (f"`{gone.replacement}`" if gone.replacement else "")
            hint = f" Use {instead}." if instead else f" {gone.said}"
            message = f"`{dotted}` only raises in torch {deprecations().version}: it was removed.{hint}"
            yield Hit(node, message, hypothesis={"name": dotted})


def _fix(file: FileContext, node: ast.AST, full: str) -> Rewrite | None:
    replacement = _SAME.get(full)
    spelled = file.spelling(replacement) if replacement is not None else None
    if spelled is None or not isinstance(node, ast.expr):
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(node, spelled),))


def _is_tried(file: FileContext, node: ast.AST) -> bool:
    """Whether whatever the call raises is caught: the code has another way."""
    child = node
    for outer in file.ancestors(node):
        if isinstance(outer, ast.Try) and child in outer.body:
            return True
        child = outer
    return False
