"""`custom_fwd` and `custom_bwd`, which only work as a pair (GP318)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_edits import decorated
from analyzer.rules.autograd_examples import indented
from analyzer.rules.base import Documentation, Hit, Invalid, Rewrite, Rule
from analyzer.syntax import FunctionNode

_HOMES = ("torch.amp.", "torch.amp.autocast_mode.", "torch.cuda.amp.", "torch.cuda.amp.autocast_mode.")
_HEAD = (
    "import torch\nfrom torch.amp import custom_bwd, custom_fwd\nfrom torch.autograd import Function\n\n\n"
    "class Op(Function):\n"
)


def _pair(forward: str, backward: str) -> str:
    """A Function with a decorator, or none, on each of its methods. Forward starts on line 9."""

    def decorator(text: str) -> str:
        return f"    @{text}\n" if text else ""

    return (
        f"{_HEAD}    @staticmethod\n{decorator(forward)}    def forward(ctx, x, w):\n"
        f"{indented('ctx.save_for_backward(x, w)')}{indented('return x @ w')}\n"
        f"    @staticmethod\n{decorator(backward)}    def backward(ctx, grad):\n"
        f"{indented('x, w = ctx.saved_tensors')}{indented('return grad @ w.t(), x.t() @ grad')}"
    )


@dataclass(frozen=True, slots=True)
class _Decorator:
    """One use of custom_fwd or custom_bwd; `device` is its device type, if that is written out."""

    node: ast.expr
    name: str
    generic: bool
    device: str | None
    has_device: bool
    casts: bool


class UnpairedAutocast(Rule):
    """custom_fwd without custom_bwd, the other way round, or for two devices."""

    id = "GP318"
    name = "unpaired-custom-autocast"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("autocast",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("custom_fwd", "custom_bwd")
    documentation = Documentation(
        what_it_does=(
            "Finds a custom `torch.autograd.Function` with `custom_bwd` on backward and no `custom_fwd` on forward (an "
            "error), with `custom_fwd` alone (a warning; a note with `cast_inputs`, where forward runs without "
            "autocast), "
            "with two different device types, and `torch.amp.custom_fwd` without `device_type`."
        ),
        why_is_this_bad=(
            "`custom_bwd` reads from the context what `custom_fwd` left there and raises `AttributeError: "
            "_fwd_used_autocast` without it. `custom_fwd` alone lets backward run in another precision than forward: "
            "`expected m1 and m2 to have the same dtype` as soon as backward runs outside the autocast block, where it "
            "belongs."
        ),
        faulty_example=_pair("", "custom_bwd(device_type='cuda')"),
        right_example=_pair("custom_fwd(device_type='cuda')", "custom_bwd(device_type='cuda')"),
        fix_safety="Unsafe: adds the missing decorator, which changes the precision that the method runs in.",
    )
    valid = (
        _pair("custom_fwd(device_type='cuda')", "custom_bwd(device_type='cuda')"),
        _pair("", ""),
        _pair("torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"),
        _pair("torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)", "torch.cuda.amp.custom_bwd"),
        _pair("custom_fwd(device_type=DEVICE)", "custom_bwd(device_type='cuda')"),
        _pair("other.custom_fwd", ""),
        # the base class has the other half
        _HEAD.replace("class Op(Function)", "class Op(Base)") + "    @staticmethod\n"
        "    @custom_bwd(device_type='cuda')\n    def backward(ctx, grad):\n        return grad\n",
    )
    invalid = (
        Invalid(_pair("", "custom_bwd(device_type='cuda')"), (13,)),
        Invalid(_pair("custom_fwd(device_type='cuda')", ""), (8,)),
        Invalid(_pair("torch.cuda.amp.custom_fwd", ""), (8,)),
        Invalid(_pair("custom_fwd(device_type='cuda')", "custom_bwd(device_type='cpu')"), (14,)),
        Invalid(_pair("custom_fwd", "custom_bwd"), (8, 14)),
        Invalid(_pair("custom_fwd(cast_inputs=torch.float32)", "custom_bwd(device_type='cuda')"), (8,)),
        # only a note: forward runs without autocast, and so does backward in its usual place
        Invalid(_pair("custom_fwd(device_type='cuda', cast_inputs=torch.float32)", ""), (8,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Both methods of every Function."""
        for function in autograd_functions(file):
            if function.forward is None or function.backward is None or not function.is_readable:
                continue
            first = next(_decorators(file, function.forward), None)
            second = next(_decorators(file, function.backward), None)
            for item in (first, second):
                if item is not None and item.generic and not item.has_device:
                    yield _hit(
                        function, item, f"`torch.amp.{item.name}` needs `device_type`: this raises TypeError on import."
                    )
            yield from _half(function, first, second)


def _half(function: AutogradFunction, first: _Decorator | None, second: _Decorator | None) -> Iterator[Hit]:
    forward, backward = function.forward, function.backward
    assert forward is not None
    assert backward is not None
    if first is None and second is not None and second.name == "custom_bwd":
        message = "`custom_bwd` without `custom_fwd` on forward raises AttributeError in every backward pass."
        yield _hit(function, second, message, fix=_other(function, second, forward))
    elif first is not None and second is None and first.name == "custom_fwd":
        message = (
            "`custom_fwd` without `custom_bwd` on backward: backward then runs in another precision than forward "
            "when it "
            "is called outside the autocast block."
        )
        severity = Severity.NOTE if first.casts else Severity.WARNING
        yield _hit(function, first, message, severity=severity, fix=_other(function, first, backward))
    elif first is not None and second is not None and first.device and second.device and first.device != second.device:
        message = (
            f"backward is wrapped for `{second.device}` and forward for `{first.device}`: neither protects the other."
        )
        yield _hit(function, second, message, severity=Severity.WARNING)


def _decorators(file: FileContext, method: FunctionNode) -> Iterator[_Decorator]:
    for node in method.decorator_list:
        called = node.func if isinstance(node, ast.Call) else node
        qualified = file.qualified_name(called) or ""
        home, _, name = qualified.rpartition(".")
        if name not in {"custom_fwd", "custom_bwd"} or f"{home}." not in _HOMES:
            continue
        given = {item.arg: item.value for item in node.keywords} if isinstance(node, ast.Call) else {}
        device = given.get("device_type")
        yield _Decorator(
            node,
            name,
            generic="cuda" not in home,
            device=str(device.value) if isinstance(device, ast.Constant) else None,
            has_device="device_type" in given or None in given,
            casts="cast_inputs" in given,
        )


def _hit(
    function: AutogradFunction,
    item: _Decorator,
    message: str,
    severity: Severity | None = None,
    fix: Rewrite | None = None,
) -> Hit:
    return Hit(
        item.node,
        message,
        severity=severity,
        hypothesis={"function": function.name, "decorator": item.name, "symbol": function.file.symbol(function.node)},
        related=((function.node, "the Function"),),
        fix=fix,
    )


def _other(function: AutogradFunction, item: _Decorator, method: FunctionNode) -> Rewrite | None:
    """The missing half, for the same device; that of `torch.cuda.amp` is deprecated, and this one goes with it."""
    file = function.file
    name = "custom_fwd" if item.name == "custom_bwd" else "custom_bwd"
    spelling = file.spelling(f"torch.amp.{name}")
    device = item.device if item.generic else "cuda"
    if spelling is None or device is None:
        return None
    edit = decorated(file, method, f"{spelling}(device_type={device!r})")
    return Rewrite(FixSafety.UNSAFE, (edit,)) if edit is not None else None
