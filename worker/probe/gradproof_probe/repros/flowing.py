"""Scripts for parameters that decide the output and get no gradient, and for hooks that spoil one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LOST: Final = """
def run(shift=0.0):
    \"\"\"The floating outputs, and the parameter, moved by `shift` of its size in a direction of random signs.\"\"\"
    target = mode(make(), True)
    parameter = dict(target.named_parameters())[PARAMETER]
    generator = torch.Generator().manual_seed(SEED + 29)
    signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
    with torch.no_grad():
        parameter += shift * (float(parameter.square().mean().sqrt()) or 0.1) * signs
    args, kwargs = inputs(leaf)
    reseed(SEED)
    return [o for o in tensors(target(*args, **kwargs)) if o.is_floating_point()], parameter


def main():
    outputs, parameter = run()
    live = [o for o in outputs if o.requires_grad]
    found = torch.autograd.grad(live, [parameter], random_like(live), allow_unused=True)[0] if live else None
    size = 0.0 if found is None else float(found.norm())
    steps = [sign * step for step in (1e-3, 0.1, 1.0, 10.0) for sign in (1, -1)]
    moved = next((way for step in steps if (way := apart(outputs, run(step)[0])) > 1e-7), 0.0)
    report(f"the outputs move by {moved:.3g} of their size with {PARAMETER}: the size of its gradient", "above zero",
           "no gradient" if found is None else size, failed=moved > 0 and size == 0)
"""

_HOOKS: Final = """
def gradients(copies):
    \"\"\"Of all parameters; `copies`: hooks on tensors are shown a copy of the gradient.\"\"\"
    register = torch.Tensor.register_hook
    if copies:
        torch.Tensor.register_hook = lambda tensor, hook: register(tensor, lambda gradient: hook(gradient.clone()))
    try:
        target = mode(make(), True)
        args, kwargs = inputs(leaf)
        reseed(SEED)
        outputs = [o for o in tensors(target(*args, **kwargs)) if o.requires_grad]
        wanted = [*[p for p in target.parameters() if p.requires_grad], *tensors([args, kwargs])]
        wanted = [t for t in wanted if t.requires_grad]
        found = torch.autograd.grad(outputs, wanted, random_like(outputs), allow_unused=True)
        return [g for g in found if g is not None]
    finally:
        torch.Tensor.register_hook = register


def main():
    worst = apart(gradients(copies=True), gradients(copies=False))
    report("gradients with hooks that are shown copies, and with hooks that are shown the gradients themselves: "
           "largest difference", 0.0, worst, failed=worst > 1e-6)
"""

_RAISES: Final = """
def main():
    target = make()
    target.train()
    args, kwargs = inputs(leaf)
    reseed(SEED)
    outputs = [o for o in tensors(target(*args, **kwargs)) if o.requires_grad]
    try:
        torch.autograd.backward(outputs, random_like(outputs))
        error = "no error"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    report("backward", "no error", error, failed=error != "no error")
"""


def flowing_body(cause: str, numbers: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none for this cause."""
    if cause in ("detached", "zero_gradient", "zero_derivative", "missing_gradient") and "parameter" in numbers:
        return _LOST, {"PARAMETER": str(numbers["parameter"])}
    if cause == "hook_writes_gradient":
        return _HOOKS, {}
    return (_RAISES, {}) if cause == "hook_raises" else None
