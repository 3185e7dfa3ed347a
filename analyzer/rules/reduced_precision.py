"""Half precision by accident, or without what it needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword
from analyzer.placement import SIZED_FACTORIES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import quoted
from analyzer.rules.module_examples import with_body
from analyzer.syntax import terminal_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.up = nn.Linear(width, width)\n\n    def forward(self, x):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
_FIRST = 11


# Factories of floats; `arange` and `randint` give integers, which keep the dtype of what they meet.
_FLOATING = tuple(
    name
    for name in SIZED_FACTORIES
    if name not in ("arange", "range", "randint", "randperm", "tril_indices", "triu_indices", "full")
)


class FactoryWithoutDtype(Rule):
    """A float32 tensor made in a `forward` that meets tensors of the model's dtype, and a layer after that."""

    id = "GP603"
    name = "factory-without-dtype"
    severity = Severity.NOTE
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = tuple(f"{name}(" for name in _FLOATING)
    documentation = Documentation(
        what_it_does=(
            "Finds float tensors that a module's `forward` makes with `device=` but without `dtype=`, and adds to or "
            "multiplies with an input or a layer's result."
        ),
        why_is_this_bad=(
            "In a model in half precision the result is promoted to float32 (measured: float16 times a float32 "
            "vector): twice the memory, and the next linear layer raises because its weights are half."
        ),
        faulty_example=_forward("noise = torch.randn(4, device=x.device)\nreturn self.up(x) + noise"),
        right_example=_forward("noise = torch.randn(4, device=x.device, dtype=x.dtype)\nreturn self.up(x) + noise"),
        fix_safety="Safe: in float32 nothing changes.",
    )
    valid = (
        _forward("noise = torch.randn(4, device=x.device, dtype=x.dtype)\nreturn self.up(x) + noise"),
        _forward("steps = torch.arange(4, device=x.device)\nreturn self.up(x) + steps"),
        _forward("noise = torch.randn(4, device=x.device).to(x.dtype)\nreturn self.up(x) + noise"),
        _forward("noise = torch.randn_like(x)\nreturn self.up(x) + noise"),
        _forward("keep = torch.rand(4, device=x.device) > 0.5\nreturn self.up(x) * keep"),
        _HEAD + "def noisy(x: torch.Tensor):\n    return x + torch.randn(4, device=x.device)\n",
    )
    invalid = (
        Invalid(_forward("noise = torch.randn(4, device=x.device)\nreturn self.up(x) + noise"), (_FIRST,)),
        Invalid(_forward("return self.up(x) * torch.linspace(0, 1, 4, device=x.device)"), (_FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every factory of floats on the device of an input."""
        code, places = forward_code(file), placement(file)
        for call in file.calls(*_FLOATING):
            function = file.enclosing_function(call)
            device = keyword(call, "device")
            if function is None or device is None or not code.runs_in_forward(function):
                continue
            if keyword(call, "dtype") is not None or any(item.arg is None for item in call.keywords):
                continue
            if not (file.qualified_name(call.func) or "").startswith("torch."):
                continue
            operation = _promoting(file, call)
            other = next((side for side in _sides(operation) if places.follows(side)), None) if operation else None
            if operation is None or other is None:
                continue
            yield Hit(
                call,
                f"`{file.source(call.func)}` without `dtype=` gives float32, which promotes `{quoted(file, other)}` in "
                "a half-precision model. Pass the dtype along with the device.",
                related=((operation, "promoted here"),),
                fix=_with_dtype(file, call, device),
            )


def _sides(operation: ast.BinOp) -> tuple[ast.expr, ast.expr]:
    return operation.left, operation.right


def _promoting(file: FileContext, call: ast.Call) -> ast.BinOp | None:
    """The sum or product that the new tensor takes part in, as it is."""
    node: ast.expr = call
    parent = file.parent(node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        function = file.enclosing_function(call)
        loads = placement(file).loads(function, parent.targets[0].id) if function is not None else []
        if len(loads) != 1 or file.values.single_definition(loads[0]) is not call:
            return None
        node, parent = loads[0], file.parent(loads[0])
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        return parent
    return None


def _with_dtype(file: FileContext, call: ast.Call, device: ast.expr) -> Rewrite | None:
    source = file.source(call)
    if not (isinstance(device, ast.Attribute) and device.attr == "device") or "\n" in source:
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(call, f"{source[:-1]}, dtype={file.source(device.value)}.dtype)"),))


_AUTOCAST = re.compile(r"(^|\.)(autocast|maybe_autocast)$")
_HALF = frozenset({"torch.float16", "torch.half"})


class AutocastMisuse(Rule):
    """Autocast around a backward pass, or over a model that was made half already."""

    id = "GP611"
    name = "autocast-misuse"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ()
    triggers = ("autocast",)
    documentation = Documentation(
        what_it_does=(
            "Finds float16 autocast in a training step that calls `backward()` without a gradient scaler, and "
            "`backward()` inside the autocast block (a note)."
        ),
        why_is_this_bad=(
            "Gradients below 6e-8 are zero in float16: without scaling most of them vanish, and the model trains "
            "badly without an error. Backward under autocast is not recommended by torch: operations of the user in "
            "hooks and custom Functions run in low precision once more."
        ),
        faulty_example=(
            _HEAD + "def step(model, x, optimizer):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
            "        loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n"
        ),
        right_example=(
            _HEAD + "def step(model, x, optimizer, scaler):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
            "        loss = model(x).mean()\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n"
            "    scaler.update()\n"
        ),
        fix_safety="No automatic fix: a scaler has to live as long as the training, or bfloat16 has to be chosen.",
    )
    valid = (
        _HEAD + "def step(model, x, scaler):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        loss = model(x).mean()\n    scaler.scale(loss).backward()\n",
        _HEAD + "def step(model, x):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = model(x).mean()\n    loss.backward()\n",
        _HEAD + "def step(model, x, accelerator):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        loss = model(x).mean()\n    accelerator.backward(loss)\n",
        _HEAD + "def score(model, x):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        return model(x).mean()\n",
        _HEAD
        + "def step(model, x):\n    with torch.autocast('cpu', enabled=False):\n        model(x).mean().backward()\n",
    )
    invalid = (
        Invalid(
            _HEAD + "def step(model, x, optimizer):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
            "        loss = model(x).mean()\n    loss.backward()\n    optimizer.step()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def step(model, x):\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
            "        loss = model(x).mean()\n        loss.backward()\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def step(model, x):\n    with torch.cuda.amp.autocast():\n        loss = model(x).mean()\n"
            "    loss.backward()\n",
            (8,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every `backward()` of a function with autocast."""
        if re.search(r"scaler|GradScaler|accelerat|deepspeed|fabric|\.scale\(", file.text, re.I):
            return
        for call in file.calls("backward"):
            function = file.enclosing_function(call)
            if function is None or not isinstance(call.func, ast.Attribute) or file.enclosing_autograd_function(call):
                continue
            blocks = list(_autocasts(file, function))
            inside = next((block for block, _ in blocks if block in file.ancestors(call)), None)
            half = next((block for block, is_half in blocks if is_half), None)
            if half is not None:
                yield Hit(
                    call,
                    "The loss is computed in float16 and no scaler scales it: gradients below 6e-8 become zero. Scale "
                    "the loss (`torch.amp.GradScaler`), or use bfloat16.",
                    hypothesis={"symbol": file.symbol(call)},
                    related=((half, "float16 from here"),),
                )
            elif inside is not None:
                yield Hit(
                    call,
                    "torch recommends to leave autocast before `backward()`: hooks and custom Functions run in low "
                    "precision once more.",
                    severity=Severity.NOTE,
                    confidence=Confidence.LOW,
                    related=((inside, "autocast from here"),),
                )


def _autocasts(file: FileContext, function: ast.AST) -> Iterator[tuple[ast.With, bool]]:
    """(block, whether it computes in float16) for every autocast block of a function that is not switched off."""
    for block in file.nodes(ast.With):
        if function not in file.ancestors(block):
            continue
        for item in block.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or not _AUTOCAST.search(file.qualified_name(call.func) or ""):
                continue
            if is_constant(keyword(call, "enabled"), value=False):
                continue
            yield block, _is_half_autocast(file, call)


def _is_half_autocast(file: FileContext, call: ast.Call) -> bool:
    """float16 by name, or as the default of CUDA's autocast."""
    dtype = keyword(call, "dtype")
    if dtype is not None:
        return file.qualified_name(dtype) in _HALF
    chosen = call.args[0] if call.args else keyword(call, "device_type")
    by_name = (file.qualified_name(call.func) or "").endswith("cuda.amp.autocast")
    return by_name or (_is_literal_cuda(chosen) and terminal_name(call.func) == "autocast")


def _is_literal_cuda(chosen: ast.expr | None) -> bool:
    """Whether a device type is written out as `'cuda'`."""
    return isinstance(chosen, ast.Constant) and chosen.value == "cuda"
