"""Names under `torch` that do not exist in the torch whose names were listed.

What exists is generated (`analyzer.facts`); nothing is known here but where a program says that it will cope.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.facts import names
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import dotted_name

# A test of any of these kinds says that the author knows that the name may be absent.
_GUARD_WORDS = re.compile(
    r"version|hasattr|getattr|available|_exists|has_|torch_?\d|TYPE_CHECKING|is_torch|_gt_|_ge_", re.I
)
_CATCHING = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_ASKING = frozenset({"hasattr", "getattr", "setattr", "delattr", "patch", "find_spec", "import_module", "importorskip"})


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
            "devices that another package adds to torch."
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
        "import torch\n\ntry:\n    rfft = torch.rfft\nexcept AttributeError:\n    rfft = torch.fft.rfft\n",
        "import torch\n\nif torch.__version__ < '1.8':\n    spectrum = torch.rfft(torch.ones(4), 1)\n",
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
        "import torch\n\nprint(hasattr(torch, 'rfft') and torch.rfft)\n",
        "import torch\n\nuse = torch.backends.cudnn.benchmark, torch.float8_e5m2, torch.Tensor.mT, torch.nn.Module.a\n",
        "try:\n    from torch import custom_grad\nexcept ImportError:\n    custom_grad = None\nuse(custom_grad.x)\n",
    )
    invalid = (
        Invalid("import torch\n\n\ndef f(x):\n    return torch.custom_grad(x)\n", (5,)),
        Invalid("from torch import custom_grad\n", (1,)),
        Invalid("from torch._six import container_abcs\n", (1,)),
        Invalid("import torch.nn as nn\n\nlayer = nn.LayerNorm2d(3)\n", (3,)),
        Invalid(
            "import torch\nfrom torch.nn import functional as F\n\n\ndef f(x):\n    return F.logsumexp(x, 1)\n", (6,)
        ),
        Invalid("import torch\n\n\ndef f(x):\n    return torch.rfft(x, 1)\n", (5,)),
        Invalid("import torch\n\nx = torch.optim.lr_schedular.StepLR(None, 1)\n", (3,)),
        Invalid("import torch.nn.functionnal as F\n", (1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every chain of names and every import that starts at torch."""
        imports = list(self._imports(file))
        uses = [*imports, *self._attributes(file)]
        if not uses:
            return
        asked = _asked_names(file)
        stored = [node for node in file.nodes(ast.Attribute) if isinstance(node.ctx, (ast.Store, ast.Del))]
        settled = {file.qualified_name(node) for node in stored}
        devices = {device for _, dotted in uses if (device := _foreign_device(dotted)) is not None}
        for node, dotted in uses:
            missing = names().missing(dotted)
            if missing is None or missing.name in asked:
                continue
            full = f"{missing.parent}.{missing.name}"
            if full in settled or full in devices or _is_unread_annotation(file, node):
                continue
            if isinstance(node, ast.alias):
                # What an import says, or guards, need not be said again where the name is used.
                settled.add(full)
            if _is_guarded(file, node):
                continue
            hint = f"; did you mean {missing.suggestion}?" if missing.suggestion else ""
            yield Hit(node, f"{full} does not exist in torch {names().version}{hint}", hypothesis={"name": full})

    def _attributes(self, file: FileContext) -> Iterator[tuple[ast.AST, str]]:
        for node in file.nodes(ast.Attribute):
            if not isinstance(node.ctx, ast.Load) or isinstance(file.parent(node), ast.Attribute):
                continue
            # The longest chain of plain names that the attribute ends in.
            dotted = file.qualified_name(node)
            if dotted is not None and dotted.startswith("torch."):
                yield node, dotted
        for node in file.nodes(ast.Attribute):
            # A chain that is assigned to or called upon further: `torch.backends.cudnn.enabled = True`.
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                dotted = file.qualified_name(node.value)
                if dotted is not None and dotted.startswith("torch."):
                    yield node.value, dotted

    def _imports(self, file: FileContext) -> Iterator[tuple[ast.AST, str]]:
        for statement in file.nodes(ast.Import):
            for alias in statement.names:
                if alias.name.startswith("torch."):
                    yield alias, alias.name
        for source in file.nodes(ast.ImportFrom):
            if source.level or source.module is None or source.module.partition(".")[0] != "torch":
                continue
            for alias in source.names:
                yield alias, source.module if alias.name == "*" else f"{source.module}.{alias.name}"


def _asked_names(file: FileContext) -> frozenset[str]:
    """Names that some call of the file asks for or sets by a string: `hasattr(torch, "rfft")`."""
    found: set[str] = set()
    for call in file.calls(*_ASKING):
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.update(argument.value.split("."))
    return frozenset(found)


def _foreign_device(dotted: str) -> str | None:
    """`torch.npu` of `torch.npu.empty_cache`: a package adds it, with functions of the names of `torch.cuda`."""
    parts = dotted.split(".")
    if len(parts) == 3 and not names().has("torch", parts[1]) and names().has("torch.cuda", parts[2]):
        return f"torch.{parts[1]}"
    return None


def _is_unread_annotation(file: FileContext, node: ast.AST) -> bool:
    """Whether the place is an annotation that Python does not evaluate (`from __future__ import annotations`)."""
    if "annotations" not in file.imports or file.imports["annotations"] != "__future__.annotations":
        return False
    child = node
    for outer in file.ancestors(node):
        if child is getattr(outer, "annotation", None) or child is getattr(outer, "returns", None):
            return True
        if isinstance(outer, ast.stmt):
            return False
        child = outer
    return False


def _is_guarded(file: FileContext, node: ast.AST) -> bool:
    """Whether a condition or a handler around the place, or an earlier way out, shows that the name may be absent."""
    child = node
    for outer in file.ancestors(node):
        if _guards(outer, child) or _leaves_before(outer, child):
            return True
        child = outer
    return False


def _guards(outer: ast.AST, child: ast.AST) -> bool:
    found = False
    match outer:
        case ast.If() | ast.IfExp() | ast.While():
            found = _asks(outer.test)
        case ast.BoolOp():
            found = any(_asks(value) for value in outer.values if value is not child)
        case ast.Try():
            found = child in outer.body and any(_catches(handler) for handler in outer.handlers)
        case ast.ExceptHandler():
            found = _catches(outer)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            found = any(_asks(decorator) for decorator in outer.decorator_list)
        case ast.With() | ast.AsyncWith():
            found = any(_asks_to_fail(item) for item in outer.items)
    return found


def _asks(test: ast.AST) -> bool:
    return _GUARD_WORDS.search(ast.unparse(test)) is not None


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any((dotted_name(kind) or "").rpartition(".")[2] in _CATCHING for kind in kinds)


def _leaves_before(outer: ast.AST, child: ast.AST) -> bool:
    """`if torch_is_old: return …` (or raise), or `assert hasattr(torch, …)`, before the place in the same block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(outer, name, None)
        if isinstance(block, list) and child in block:
            return any(_is_way_out(statement) for statement in block[: block.index(child)])
    return False


def _is_way_out(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return _asks(statement.test)
    leaves = isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Return, ast.Raise))
    return leaves and _asks(statement.test)  # type: ignore[attr-defined]


def _asks_to_fail(item: ast.withitem) -> bool:
    text = ast.unparse(item.context_expr)
    return "raises" in text or "suppress" in text
