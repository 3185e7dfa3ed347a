"""Scripts for confirmed suspicions of static rules: what the rule warns of, in the way in which a check shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gradproof_probe.repros.checkpoints import checkpoint_body
from gradproof_probe.repros.compiling import RECOMPILED
from gradproof_probe.repros.evaluation import evaluation_body
from gradproof_probe.repros.placing import placing_body
from gradproof_probe.repros.remembering import remembering_body
from gradproof_probe.repros.sampling import SAMPLES
from gradproof_probe.repros.saving import saving_body

Body = tuple[str, dict[str, Any]]

_HALF: Final = """
def call(dtype, factor):
    target = make()
    if isinstance(target, torch.nn.Module):
        target.eval().to(dtype)
    args, kwargs = inputs(lambda t: (factor * t).to(dtype))
    reseed(SEED)
    return [t.float() for t in tensors(target(*args, **kwargs)) if t.is_floating_point()]


def main():
    error = "no error"
    for factor in FACTORS:
        wide = call(torch.float32, factor)
        try:
            half = call(torch.float16, factor)
        except RuntimeError as caught:
            error = f"{type(caught).__name__}: {str(caught).splitlines()[0]}"
            break
        bad = sum(int((w.isfinite() & ~h.isfinite()).sum()) for w, h in zip(wide, half))
        if bad and all(w.abs().max() < 65504 for w in wide if w.numel()):
            error = f"{bad} numbers that are not finite, with inputs {factor:g} times as large"
            break
    report("a call in float16 whose result fits into it", "no error", error, failed=error != "no error")
"""

_BREAKS: Final = """
def main():
    from torch._dynamo.utils import counters

    args, kwargs = inputs(leaf)
    reseed(SEED)
    torch.compile(make(), backend="eager")(*args, **kwargs)
    reasons = [str(reason).splitlines()[0] for reason in counters["graph_break"]]
    graphs = counters["stats"]["unique_graphs"]
    report("graphs that one call is compiled to, and why it breaks", (1, []), (graphs, reasons),
           failed=bool(reasons) or graphs > 1)
"""

_SLOPE: Final = """
def weighted(shift=0.0):
    \"\"\"The weighted sum of the outputs, all that is differentiated moved along a direction, and both.\"\"\"
    target = make()
    args, kwargs = inputs(leaf)
    own = list(target.parameters()) if isinstance(target, torch.nn.Module) else []
    leaves = [t for t in [*tensors([args, kwargs]), *own] if t.requires_grad]
    directions = random_like(leaves, 5)
    with torch.no_grad():
        for tensor, direction in zip(leaves, directions):
            tensor += shift * direction
    reseed(SEED)
    outputs = tensors(target(*each(args, torch.clone), **each(kwargs, torch.clone)))
    outputs = [o for o in outputs if o.is_floating_point()]
    return sum((w * o).sum() for w, o in zip(random_like(outputs), outputs)), leaves, directions


def main():
    torch.set_default_dtype(torch.float64)
    total, leaves, directions = weighted()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    got = float(sum((g * d).sum() for g, d in zip(found, directions) if g is not None))
    expected = float((weighted(1e-5)[0] - weighted(-1e-5)[0]) / 2e-5)
    report("the derivative along a direction: by differences, and by autograd", expected, got,
           failed=abs(expected - got) > 1e-4 * max(abs(expected), abs(got)))
"""

_MIXING: Final = ("GP718", "GP721", "GP722", "GP725", "GP726", "GP734", "GP735")
_CHECKPOINTS: Final = tuple(f"GP80{number}" for number in range(1, 8))
_AS_DATA: Final = ("GP801", "GP802")
_REENTRANT: Final = "no_gradient_through_reentrant"
_DEVICES: Final = ("GP602", "GP604", "GP615", "GP616", "GP618", "GP624")
_SPOILT: Final = ("GP302", "GP307", "GP401", "GP402", "GP403", "GP413")
_BROKEN: Final = ("GP501", "GP502", "GP503", "GP504", "GP505", "GP507")


def suspected_body(rule: str, text: str, numbers: Mapping[str, Any], samples: tuple[int, int] | None) -> Body | None:
    """The body of the script, with its constants; None where no short one shows it.

    `samples`: how many the given inputs have, and a number that no other axis has.
    """
    found: Body | None = None
    if rule in _MIXING and samples is not None:
        found = SAMPLES, {"GIVEN": samples[0], "SAMPLES": samples[1], "AXIS": 0}
    elif rule in _CHECKPOINTS:
        as_data = rule in _AS_DATA
        found = checkpoint_body(_REENTRANT if as_data else "", {"without_gradient": []} if as_data else {})
    elif rule in ("GP118", "GP126"):
        found = _HALF, {"FACTORS": (numbers["factor"],) if "factor" in numbers else (1, 16, 256, 4096)}
    elif rule == "GP506":
        found = RECOMPILED, {}
    elif rule in _BROKEN:
        found = _BREAKS, {}
    elif rule in ("GP730", "GP733"):
        found = evaluation_body("statistic_moves_in_eval")
    elif rule in ("GP411", "GP415"):
        found = remembering_body({})
    elif rule in ("GP408", "GP412"):
        found = evaluation_body("input_written")
    elif rule in _SPOILT:
        found = _SLOPE, {}
    elif rule == "GP205":
        found = saving_body("unregistered_parameters", {"differs": ""})
    elif "load_state_dict() into a new instance" in text:
        found = saving_body("unsaved_flag", {"mode": "training" if "in training mode" in text else "evaluation"})
    elif rule in _DEVICES:
        found = placing_body("left_behind", text)
    return found
