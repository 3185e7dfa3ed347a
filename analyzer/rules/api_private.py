"""Private parts of torch in use (GP906)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from analyzer.context import FileContext
from analyzer.facts import names
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.torch_names import torch_names
from analyzer.version_guards import is_guarded

_COMPILER = "torch._dynamo"


class PrivateTorchName(Rule):
    id = "GP906"
    name = "private-torch-name"
    severity = Severity.NOTE
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("torch._", "_")
    documentation = Documentation(
        what_it_does=(
            "Notes each private name of torch that a file uses (`torch._dynamo.disable`, "
            "`torch.optim.lr_scheduler._LRScheduler`), once, and names the public one where torch 2.13 has one of the "
            "same name. Tests, and code that asks whether the name is there, are left alone."
        ),
        why_is_this_bad="What begins with an underscore changes without notice from one version to the next.",
        faulty_example="import torch\n\n\n@torch._dynamo.disable\ndef f(x):\n    return x.tolist()\n",
        right_example="import torch\n\n\n@torch.compiler.disable\ndef f(x):\n    return x.tolist()\n",
        fix_safety=(
            "Safe for names of `torch._dynamo` that `torch.compiler` offers too: these call the former. Others are "
            "only named."
        ),
    )
    valid = (
        "import torch\n@torch.compiler.disable\ndef f(x):\n    return x.tolist()\n",
        "import torch\nif hasattr(torch, '_dynamo'):\n    torch._dynamo.reset()\n",
        "import torch\ntry:\n    from torch._dynamo import disable\nexcept ImportError:\n    disable = None\n",
        "import torch\nprint(torch.__version__, torch.nn.Module.__init__)\n",
        "from ._C import ops\nimport _torch\nprint(ops, _torch._x)\n",
    )
    invalid = (
        Invalid("import torch\n@torch._dynamo.disable\ndef f(x):\n    return x\n", (2,)),
        Invalid("import torch\ntorch._dynamo.reset()\ntorch._dynamo.reset()\n", (2,)),
        Invalid("from torch.optim.lr_scheduler import _LRScheduler\nclass S(_LRScheduler):\n    pass\n", (1,)),
        Invalid("import torch\ndef f(x):\n    return torch._foreach_add([x], 1)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first place of each private name."""
        if any(part.startswith("test") for part in PurePosixPath(file.path).parts):
            return
        found = torch_names(file)
        seen: set[str] = set()
        places = sorted([*found.imports, *found.chains], key=lambda item: (item[0].lineno, item[0].col_offset))  # type: ignore[attr-defined]
        for node, dotted in places:
            private = _private_part(dotted)
            if private is None or private in seen or is_guarded(file, node):
                continue
            seen.add(private)
            public = _public_name(dotted)
            hint = f" `{public}` is public." if public else ""
            yield Hit(
                node,
                f"`{private}` is private to torch and may change with any version.{hint}",
                hypothesis={"name": private},
                fix=_fix(file, dotted, public),
            )


def _private_part(dotted: str) -> str | None:
    """The name up to what comes after its private part: `torch._dynamo.disable`."""
    parts = dotted.split(".")
    for index, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            return ".".join(parts[: index + 2])
    return None


def _public_name(dotted: str) -> str | None:
    parent, _, last = dotted.rpartition(".")
    if parent == _COMPILER and names().has("torch.compiler", last):
        return f"torch.compiler.{last}"
    bare = last.lstrip("_")
    return f"{parent}.{bare}" if last.startswith("_") and bare and names().has(parent, bare) else None


def _fix(file: FileContext, dotted: str, public: str | None) -> Rewrite | None:
    """Every place of the name at once: only the first is told."""
    spelled = file.spelling(public) if public is not None and dotted.startswith(f"{_COMPILER}.") else None
    places = [node for node, name in torch_names(file).chains if name == dotted]
    imported = any(name == dotted for _, name in torch_names(file).imports)
    if spelled is None or imported or not places:
        return None
    return Rewrite(FixSafety.SAFE, tuple(Replacement(node, spelled) for node in places))
