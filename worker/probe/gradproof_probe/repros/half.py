"""The script for what fails under autocast: forward under it, backward outside, beside the same in full precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BODY: Final = """
def run(mixed):
    \"\"\"Outputs, and the gradients of inputs and parameters.\"\"\"
    target = make()
    if isinstance(target, torch.nn.Module):
        target.train(TRAINING)
    args, kwargs = inputs(leaf)
    own = list(target.parameters()) if isinstance(target, torch.nn.Module) else []
    wanted = [t for t in [*tensors([args, kwargs]), *own] if t.requires_grad]
    reseed(SEED)
    device = "cuda" if torch.cuda.is_available() and wanted and wanted[0].is_cuda else "cpu"
    with torch.autocast(device, dtype=DTYPE, enabled=mixed):
        outputs = [o for o in tensors(target(*args, **kwargs)) if o.is_floating_point()]
    live = [o for o in outputs if o.requires_grad]
    scale = 2.0**-12 if mixed else 1.0  # training scales the loss: a gradient must not overflow for that reason alone
    weights = [w * scale for w in random_like([o.float() for o in live])]
    found = torch.autograd.grad([o.float() for o in live], wanted, weights, allow_unused=True) if live else []
    return [o.detach().float() for o in outputs], [g.float() for g in found if g is not None]


def main():
    outputs, gradients = run(mixed=False)
    try:
        half_outputs, half_gradients = run(mixed=True)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        report(f"forward and backward under autocast to {DTYPE}", "no error", said, failed=True)
    finite = all(t.isfinite().all() for t in [*outputs, *gradients])
    bad = sum(not t.isfinite().all() for t in [*half_outputs, *half_gradients]) if finite else 0
    worst = apart(outputs, half_outputs)
    report(f"under autocast to {DTYPE}: tensors that are not finite, and the largest error of an output",
           (0, f"at most {LIMIT:g}"), (bad, worst), failed=bad > 0 or worst > LIMIT)
"""

# From where the check takes an error for more than rounding.
_LIMITS: Final = {"bfloat16": 0.12, "float16": 0.05}


def half_body(numbers: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants."""
    dtype = str(numbers.get("dtype"))
    if dtype not in _LIMITS:
        return None
    limit = max(_LIMITS[dtype], 0.9 * float(numbers["error"])) if "error" in numbers else _LIMITS[dtype]
    constants = {"LIMIT": limit, "TRAINING": evidence.get("mode", "train") == "train"}
    return _BODY.replace("DTYPE", f"torch.{dtype}"), constants
