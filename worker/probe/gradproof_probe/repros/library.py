"""The script for a failure found outside of an analysis, from a Function and example inputs instead of expressions.

Few numbers are written out. More are drawn anew, of the same kind and range: then the coordinate that was reported
means nothing, and the script looks for one itself.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from gradproof_probe.gradients.situations import Situation
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.repros.case import literal
from gradproof_probe.repros.situation import situation_repro
from gradproof_probe.request import Target

WRITTEN_OUT: Final = 200  # numbers of all inputs together: about 4,000 characters


def library_repro(
    function: Any,
    inputs: Sequence[Any],
    *,
    seed: int,
    summary: str,
    situation: Situation,
    cause: str,
    worst: Mapping[str, Any] | None,
    second_order: bool = False,
    single: bool = False,
) -> str | None:
    """None where another process couldn't import the function, or an input can't be written down."""
    if not importable(function):
        return None
    drawn = sum(item.numel() for item in inputs if isinstance(item, torch.Tensor)) > WRITTEN_OUT
    expressions = [expression(item, number, drawn=drawn) for number, item in enumerate(inputs)]
    if any(item is None for item in expressions):
        return None
    of_autograd = inspect.isclass(function) and issubclass(function, torch.autograd.Function)
    module, qualname = function.__module__, function.__qualname__
    return situation_repro(
        Target(
            name=f"{module}:{qualname}",
            kind="autograd_function" if of_autograd else "function",
            path="",
            line=1,
            import_root="",
            module=module,
            qualname=qualname,
        ),
        Recipe("declared", "A", None, tuple(item for item in expressions if item is not None), "given by the caller"),
        seed=seed,
        summary=summary,
        situation=situation,
        cause=cause,
        worst=None if drawn else worst,
        second_order=second_order,
        single=single,
    )


def importable(function: Any) -> bool:
    """Whether module and name lead to it again, from another process too."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module in ("__main__", "builtins"):
        return False
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found is function


def expression(value: Any, number: int, *, drawn: bool) -> str | None:
    """Source text that gives the input again, or one like it."""
    if not isinstance(value, torch.Tensor):
        return literal(value)
    if value.layout != torch.strided or value.device.type != "cpu":
        return None
    shape, dtype = tuple(value.shape), str(value.dtype)
    if not value.numel():
        text = f"torch.zeros({shape}, dtype={dtype})"
    elif drawn:
        text = _like(value.detach(), f"generator=torch.Generator().manual_seed({number})")
    else:
        text = f"torch.tensor({_numbers(value.detach().tolist())}, dtype={dtype})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _numbers(value: Any) -> str | None:
    if isinstance(value, list):
        return f"[{', '.join(str(_numbers(item)) for item in value)}]"
    if isinstance(value, complex):
        return f"complex({_numbers(value.real)}, {_numbers(value.imag)})"
    return literal(value)


def _like(value: torch.Tensor, generator: str) -> str:
    """As many numbers of the same type, sign, middle and width."""
    shape, dtype = tuple(value.shape), value.dtype
    if dtype == torch.bool:
        return f"(torch.rand({shape}, {generator}) < {float(value.double().mean()):.3g})"
    if dtype.is_complex:
        return f"(torch.randn({shape}, {generator}, dtype={dtype}) * {float(value.abs().double().std()):.3g})"
    finite = value.double().nan_to_num(0.0, 0.0, 0.0)
    least, most = finite.min().item(), finite.max().item()
    if not dtype.is_floating_point:
        return f"torch.randint({int(least)}, {int(most) + 1}, {shape}, {generator}, dtype={dtype})"
    if least >= 0:
        return f"(torch.rand({shape}, {generator}, dtype={dtype}) * {most - least:.6g} + {least:.6g})"
    middle, width = finite.mean().item(), finite.std().item()
    return f"(torch.randn({shape}, {generator}, dtype={dtype}) * {width:.6g} + {middle:.6g})"
