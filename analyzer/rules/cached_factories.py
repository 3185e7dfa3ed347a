"""Functions with a cache whose tensors stay where the first call made them.

This module must not judge caches in attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.placement import FACTORIES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "from functools import lru_cache\nimport torch\n\n\n"
_CACHED = "@lru_cache(maxsize=8)\ndef ramp(n):\n    return torch.linspace(0, 1, n)\n\n\n"
_CACHES = frozenset({"lru_cache", "cache"})


class CachedWithoutDevice(Rule):
    """`@lru_cache` around a function that makes a tensor and is not told the device."""

    id = "GP624"
    name = "cached-without-device"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    triggers = ("lru_cache", "cache")
    documentation = Documentation(
        what_it_does=(
            "Finds functions under `functools.lru_cache` or `cache` that make their tensor without `device=`, and "
            "whose callers use the result as it is."
        ),
        why_is_this_bad=(
            "The tensor lies on the CPU, or wherever the default device was at the first call, and every later call "
            "gets the same one: joined with an input on a GPU it raises."
        ),
        faulty_example=_HEAD + _CACHED + "def fade(x):\n    return x * ramp(x.shape[-1])\n",
        right_example=_HEAD
        + _CACHED.replace("(n)", "(n, device)").replace("1, n)", "1, n, device=device)")
        + "def fade(x):\n    return x * ramp(x.shape[-1], x.device)\n",
        fix_safety="No automatic fix: the device becomes a parameter of the function, and part of the key.",
    )
    valid = (
        documentation.right_example,
        _HEAD + _CACHED + "def fade(x):\n    return x * ramp(x.shape[-1]).to(x.device)\n",
        _HEAD + _CACHED + "def fade(x):\n    r = ramp(x.shape[-1]).to(x)\n    return x * r\n",
        _HEAD + _CACHED,
        _HEAD + _CACHED + "print(ramp(4))\n",
        _HEAD + _CACHED.replace("torch.linspace(0, 1, n)", "[0] * n") + "def fade(x):\n    return x * ramp(4)\n",
        _HEAD
        + _CACHED.replace("torch.linspace(0, 1, n)", "torch.linspace(0, 1, n).tolist()")
        + "def fade(x):\n    return x * ramp(x.shape[-1])[0]\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (5,)),
        Invalid(
            _HEAD + _CACHED + "def fade(x: torch.Tensor):\n    r = ramp(x.shape[-1]).unsqueeze(0)\n"
            "    return torch.cat((x, r), dim=0)\n",
            (5,),
        ),
        Invalid(
            _HEAD + "@lru_cache\ndef grid(h, w):\n    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w))\n"
            "    return torch.stack((xs, ys), dim=-1)\n\n\ndef add(x):\n    return x + grid(4, 4).permute(2, 0, 1)\n",
            (5,),
        ),
        Invalid(
            "import functools\nimport torch\n\n\n@functools.cache\ndef eye(n):\n    table = torch.eye(n)\n"
            "    return table * 2\n\n\ndef turn(x):\n    return x @ eye(x.size(-1))\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for function in file.functions:
            decorator = next((d for d in function.decorator_list if _is_cache(file, d)), None)
            if decorator is None or "device" in file.source(function) or not _returns_factory(file, function):
                continue
            use = next(_plain_uses(file, function), None)
            if use is not None:
                yield Hit(
                    decorator,
                    f"`{function.name}` keeps a tensor that was made without `device=`, and line {use.lineno} uses it "
                    f"as it is: on a GPU that raises. Make the device a parameter, and so a part of the key.",
                    related=((use, "used as it is"),),
                )


def _is_cache(file: FileContext, decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return terminal_name(called) in _CACHES and (file.qualified_name(called) or "").startswith("functools.")


def _returns_factory(file: FileContext, function: FunctionNode) -> bool:
    if not any(file.enclosing_function(call) is function for call in file.calls(*FACTORIES)):
        return False
    return any(
        placement(file).made_on_cpu(item.value) is not None or _is_joined(file, item.value)
        for item in file.returns_of(function)
    )


def _is_joined(file: FileContext, value: ast.expr | None) -> bool:
    """`torch.stack((xs, ys), dim=-1)` of what the function made."""
    return isinstance(value, ast.Call) and file.qualified_name(value.func) in ("torch.stack", "torch.cat")


def _plain_uses(file: FileContext, function: FunctionNode) -> Iterator[ast.Call]:
    """Calls of the function in other functions that move the result nowhere."""
    for call in file.calls(function.name):
        user = file.enclosing_function(call)
        if user is None or user is function or not isinstance(call.func, ast.Name):
            continue
        statement = file.statement(call)
        if statement is not None and not any(word in file.source(statement) for word in (".to(", ".cuda(", "device")):
            yield call
