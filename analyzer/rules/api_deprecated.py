"""Names that torch calls deprecated (GP903): generated from its own marks, warnings and manual.

How a call is rewritten is read from torch's message; nothing is known here by hand.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import SAME_ARGUMENTS, Deprecation, deprecations, history, signatures
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.requirements import release, script_bound
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.torch_names import torch_names
from analyzer.version_guards import asked_names, is_guarded


class DeprecatedTorchName(Rule):
    id = "GP903"
    name = "deprecated-torch-name"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("torch",)
    documentation = Documentation(
        what_it_does=(
            "Finds uses of functions and classes that torch 2.13 marks as deprecated: with `@deprecated`, with a "
            "warning that comes at every call, or in its manual (these are notes). Code that tests for a version or "
            "for the name, or that catches a failing import, is left alone. Inside `warnings.catch_warnings()` it is a "
            "note."
        ),
        why_is_this_bad=(
            "The name goes away in a later version, and until then every run prints a `FutureWarning` that hides "
            "others. `torch.cuda.amp.autocast()` also keeps the code on CUDA, where `torch.amp.autocast` takes the "
            "device."
        ),
        faulty_example=(
            "import torch\n\n\ndef step(net, x):\n    with torch.cuda.amp.autocast():\n        return net(x).sum()\n"
        ),
        right_example=(
            "import torch\n\n\ndef step(net, x):\n    with torch.amp.autocast('cuda'):\n        return net(x).sum()\n"
        ),
        fix_safety=(
            "Safe: offered where torch's own message says how the call is rewritten, or that the new name takes the "
            "same arguments, and where an import of the file leads to the new name."
        ),
    )
    valid = (
        "import torch\n\n\ndef f(x):\n    with torch.amp.autocast('cuda', dtype=torch.bfloat16):\n        return x\n",
        "import torch\n\nif torch.__version__ < '2.4':\n    scaler = torch.cuda.amp.GradScaler()\n",
        "import torch\n\nif hasattr(torch.amp, 'GradScaler'):\n    scaler = torch.amp.GradScaler('cuda')\nelse:\n"
        "    scaler = torch.cuda.amp.GradScaler()\n",
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n    from torch.cuda.amp import autocast\n\n\n"
        "def f(x):\n    with autocast('cuda'):\n        return x\n",
        "import torch.nn as nn\n\n\ndef f(w):\n    return nn.init.normal_(w), nn.utils.clip_grad_norm_([w], 1.0)\n",
        "from mine import autocast\n\n\ndef f(x):\n    with autocast():\n        return x\n",
        "import torch\n\n\ndef f(torch, x):\n    return torch.ger(x, x)\n",
        "import torch.nn as nn\n\nTABLE = {'uniform': nn.init.uniform}\n\n\ndef f(m: nn.NLLLoss2d):\n    return m\n",
        # `torch.amp.GradScaler` came with 2.3
        "# /// script\n# dependencies = ['torch>=2.1']\n# ///\nimport torch\nscaler = torch.cuda.amp.GradScaler()\n",
        # imported and handed on, never used here
        "from torch.cuda.amp import GradScaler\n\n__all__ = ['GradScaler']\n",
        "import torch\n\n\ndef f(w):\n    return torch.nn.utils.parametrizations.weight_norm(w)\n",
    )
    invalid = (
        Invalid("import torch\n\ndef f(x, b):\n    with torch.cuda.amp.autocast(enabled=b):\n        return x\n", (4,)),
        Invalid("from torch.cuda.amp import autocast\n\n\ndef f(x):\n    with autocast():\n        return x\n", (5,)),
        Invalid("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n", (3,)),
        Invalid("import torch.nn as nn\n\n\ndef f(w):\n    nn.init.xavier_uniform(w)\n", (5,)),
        Invalid("import torch\n\n\ndef f(ps):\n    torch.nn.utils.clip_grad_norm(ps, 1.0)\n", (5,)),
        Invalid("import torch\n\n\ndef used():\n    return torch.cuda.memory_cached()\n", (5,)),
        Invalid(
            "import torch\n\n\nclass F(torch.autograd.Function):\n    @staticmethod\n    @torch.cuda.amp.custom_fwd\n"
            "    def forward(ctx, x):\n        return x\n",
            (6,),
        ),
        Invalid(
            "import torch\n\n\nclass F(torch.autograd.Function):\n    @staticmethod\n"
            "    @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)\n    def forward(ctx, x):\n        return x\n",
            (6,),
        ),
        Invalid("import torch\n\n\ndef f(a):\n    return torch.qr(a)\n", (5,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every use of a deprecated name; an import alone raises no warning."""
        asked: frozenset[str] | None = None
        for node, dotted in torch_names(file).uses:
            entry = deprecations().deprecated(dotted)
            if entry is None or not _runs(file, node) or _is_needed(file, entry):
                continue
            if asked is None:
                asked = asked_names(file)
            last = dotted.rpartition(".")[2]
            if last in asked or entry.replacement.rpartition(".")[2] in asked or is_guarded(file, node):
                continue
            if isinstance(node, ast.Name) and _import_is_guarded(file, node.id):
                continue
            hint = f"Use `{entry.replacement}`." if entry.replacement else f"Torch says: {entry.said}"
            yield Hit(
                node,
                f"`{dotted}` is deprecated in torch {deprecations().version}. {hint}",
                severity=None if entry.warns and not _is_silenced(file, node) else Severity.NOTE,
                hypothesis={"name": dotted},
                fix=_fix(file, node, entry),
            )


def _runs(file: FileContext, node: ast.expr) -> bool:
    """Whether the name is called, decorates or is a base class: to name it in a table or an annotation warns nobody."""
    parent = file.parent(node)
    if isinstance(parent, ast.Call):
        return parent.func is node
    return isinstance(parent, ast.ClassDef) or _decorates(file, node)


def _is_silenced(file: FileContext, node: ast.expr) -> bool:
    """Whether the use runs inside `with warnings.catch_warnings():`: somebody knows.

    What stands in a function that is only defined there runs later.
    """
    child: ast.AST = node
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorates = not isinstance(outer, ast.Lambda) and child in outer.decorator_list
            if not decorates:
                return False
        elif isinstance(outer, (ast.With, ast.AsyncWith)) and child in outer.body:
            entered = [item.context_expr for item in outer.items]
            if any(
                isinstance(call, ast.Call) and file.qualified_name(call.func) == "warnings.catch_warnings"
                for call in entered
            ):
                return True
        child = outer
    return False


def _is_needed(file: FileContext, entry: Deprecation) -> bool:
    """Whether the oldest torch that the project runs with lacks the replacement."""
    declared = script_bound(file.text) or file.minimum_torch
    since = history().since(entry.replacement)
    return declared is not None and since is not None and release(since) > release(declared)


def _import_is_guarded(file: FileContext, name: str) -> bool:
    """Whether the import that binds a name stands under a guard: it is one of two ways to get it."""
    for statement in file.nodes(ast.ImportFrom):
        if any((alias.asname or alias.name) == name for alias in statement.names) and is_guarded(file, statement):
            return True
    return False


def _fix(file: FileContext, node: ast.expr, entry: Deprecation) -> Rewrite | None:
    """The call as torch's message writes it: `'cuda', args...` puts something before the arguments."""
    spelled = file.spelling(entry.replacement) if entry.replacement and entry.arguments else None
    if spelled is None:
        return None
    if entry.arguments == SAME_ARGUMENTS:
        return Rewrite(FixSafety.SAFE, (Replacement(node, spelled),))
    before, _, after = (part.strip(" ,") for part in entry.arguments.partition(SAME_ARGUMENTS))
    call = file.parent(node)
    if isinstance(call, ast.Call) and call.func is node:
        arguments = _arguments(file, call, before, after, entry.replacement)
        return Rewrite(FixSafety.SAFE, (Replacement(call, f"{spelled}({arguments})"),)) if arguments else None
    if _decorates(file, node) and after:
        return Rewrite(FixSafety.SAFE, (Replacement(node, f"{spelled}({after})"),))
    return None


def _arguments(file: FileContext, call: ast.Call, before: str, after: str, new: str) -> str | None:
    """The arguments of the new call; None where they can't be carried over."""
    given = [file.source(argument) for argument in call.args]
    given.extend(f"{keyword.arg}={file.source(keyword.value)}" for keyword in call.keywords if keyword.arg)
    if len(given) != len(call.args) + len(call.keywords) or any("\n" in text for text in given):
        return None
    if call.args and before and not _same_order(file.qualified_name(call.func) or "", new, len(call.args)):
        return None
    return ", ".join(part for part in (before, *given, after) if part)


def _same_order(old: str, new: str, count: int) -> bool:
    """Whether positional arguments keep their meaning one place further: `autocast(True)` does not."""
    known = signatures()
    if not (known.known(old) and known.known(new)):
        return False
    return known.positions(old)[:count] == known.positions(new)[1 : count + 1]


def _decorates(file: FileContext, node: ast.expr) -> bool:
    parent = file.parent(node)
    return isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and node in parent.decorator_list
