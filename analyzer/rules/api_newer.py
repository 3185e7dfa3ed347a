"""Names that the oldest torch a project promises to run with does not have (GP908)."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.facts import history
from analyzer.findings import Confidence, Severity
from analyzer.requirements import release, script_bound
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.torch_names import torch_names
from analyzer.version_guards import asked_names, is_guarded, is_unread_annotation

_SCRIPT = "# /// script\n# dependencies = ['torch>={}']\n# ///\n"


class NewerThanDeclared(Rule):
    id = "GP908"
    name = "newer-than-declared-torch"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    torch_versions = "2.0 to 2.13"
    triggers = ("torch",)
    documentation = Documentation(
        what_it_does=(
            "Compares each name of torch that a file uses with the oldest torch that its project declares "
            "(`torch>=2.1` in `pyproject.toml`, `setup.cfg`, `setup.py`, `requirements.txt`, or in the metadata of a "
            "script), and finds names that came later. Code that tests for the name or for a version is left alone, "
            "and so is a project that declares nothing."
        ),
        why_is_this_bad=(
            "Whoever installs the oldest version that is allowed gets an `ImportError` or `AttributeError` that the "
            "author never sees. The list of names was made by comparing the versions of torch from 2.0 to 2.13."
        ),
        faulty_example=_SCRIPT.format("2.1") + "from torch import nn\n\nnorm = nn.RMSNorm(8)\n",
        right_example=_SCRIPT.format("2.4") + "from torch import nn\n\nnorm = nn.RMSNorm(8)\n",
        fix_safety="No automatic fix: either the declaration or the code must change.",
    )
    valid = (
        "from torch import nn\nnorm = nn.RMSNorm(8)\n",
        _SCRIPT.format("2.6") + "from torch import nn\nnorm = nn.RMSNorm(8)\n",
        _SCRIPT.format("2.0") + "from torch import nn\nif hasattr(nn, 'RMSNorm'):\n    norm = nn.RMSNorm(8)\n",
        _SCRIPT.format("2.0") + "import torch\nif torch.__version__ >= '2.4':\n    norm = torch.nn.RMSNorm(8)\n",
        _SCRIPT.format("1.13") + "try:\n    from torch.func import vmap\nexcept ImportError:\n    vmap = None\n",
        _SCRIPT.format("2.0") + "import torch\nx = torch.compile(torch.nn.Linear(2, 2))\n",
        "# torch>=1.0 would do\nfrom torch import nn\nnorm = nn.RMSNorm(8)\n",
    )
    invalid = (
        Invalid(_SCRIPT.format("2.3") + "from torch import nn\nnorm = nn.RMSNorm(8)\n", (5,)),
        Invalid(_SCRIPT.format("1.13") + "import torch\nf = torch.compile(print)\ng = torch.compile(print)\n", (5,)),
        Invalid(_SCRIPT.format("1.13") + "from torch.func import vmap\nf = vmap(print)\n", (4,)),
        Invalid(_SCRIPT.format("2.0") + "import torch\nt = torch.float8_e4m3fn\n", (5,)),
        Invalid(_SCRIPT.format("2.2") + "from torch.amp import GradScaler\nscaler = GradScaler('cuda')\n", (4,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first place of each name that is too new."""
        declared = script_bound(file.text) or file.minimum_torch
        if declared is None:
            return
        oldest = release(declared)
        found = torch_names(file)
        places = sorted([*found.imports, *found.chains], key=lambda item: (item[0].lineno, item[0].col_offset))  # type: ignore[attr-defined]
        asked = asked_names(file)
        told: set[str] = set()
        for node, dotted in places:
            newer = _newer_part(dotted, oldest)
            if newer is None or newer[0] in told:
                continue
            name, since = newer
            told.add(name)
            if name.rpartition(".")[2] in asked or is_guarded(file, node) or is_unread_annotation(file, node):
                continue
            yield Hit(
                node,
                f"`{name}` came with torch {since}, and the project declares torch >= {declared}.",
                hypothesis={"name": name},
            )


def _newer_part(dotted: str, oldest: tuple[int, int]) -> tuple[str, str] | None:
    """The first part of a dotted name that is newer than a version, and since when it exists."""
    parts = dotted.split(".")
    for length in range(2, len(parts) + 1):
        name = ".".join(parts[:length])
        since = history().since(name)
        if since is not None and release(since) > oldest:
            return name, since
    return None
