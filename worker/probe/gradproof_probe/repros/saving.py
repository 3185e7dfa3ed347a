"""Scripts for what a state dict leaves out: a new instance that loads it computes something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LOADED: Final = """
def main():
    first, second = make(), make(SEED + 1000)  # another seed: what the constructor draws is not saved by itself
    second.load_state_dict(first.state_dict())
    seen = []
    for target in (first, second):
        args, kwargs = inputs()
        reseed(SEED + 100)
        seen.append(tensors(target.eval()(*args, **kwargs)))
    worst = apart(*seen)
    report("output of a new instance that loads the state dict: largest difference", 0.0, worst, failed=worst > 1e-4)
"""

_NOT_REGISTERED: Final = """
def trained(value):
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    if items == [value]:
        found = value.parameters() if isinstance(value, torch.nn.Module) else tensors(value)
        return [tensor for tensor in found if tensor.requires_grad]
    return [tensor for item in items for tensor in trained(item)]


def main():
    target = make()
    owner, _, name = ATTRIBUTE.rpartition(".")
    holder = target.get_submodule(owner)
    kept = trained(getattr(holder, name))
    registered = {id(parameter) for parameter in target.parameters()}
    args, kwargs = inputs()
    outputs = [o for o in tensors(target(*args, **kwargs)) if o.requires_grad]
    found = torch.autograd.grad(outputs, kept, random_like(outputs), allow_unused=True) if outputs and kept else []
    wanting = [t for t, g in zip(kept, found) if g is not None and g.any()]
    missing = [tuple(t.shape) for t in wanting if id(t) not in registered]
    report(f"tensors of {ATTRIBUTE} that get a gradient and are not in parameters() (shapes)", [], missing,
           failed=bool(missing))
"""

_STEPS: Final = """
def train(target):
    \"\"\"Two steps of gradient descent.\"\"\"
    for draw in (0, 1):
        args, kwargs = inputs()
        reseed(SEED + 100 + draw)
        outputs = [o for o in tensors(target(*args, **kwargs)) if o.requires_grad]
        parameters = [p for p in target.parameters() if p.requires_grad]
        if not outputs or not parameters:
            continue
        found = torch.autograd.grad(outputs, parameters, random_like(outputs, 17), allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, found):
                if gradient is not None and 0 < gradient.norm() < float("inf"):
                    parameter -= 0.01 * max(float(parameter.norm()), 1e-3) / float(gradient.norm()) * gradient
"""

_TRAINED: Final = (
    _STEPS
    + """

def main():
    trained = make().train()
    train(trained)
    loaded = make().train()
    loaded.load_state_dict({name: value.clone() for name, value in trained.state_dict().items()})
    seen = []
    for target in (trained, loaded):
        args, kwargs = inputs(lambda tensor: 1.7 * tensor + 0.3)
        reseed(SEED + 107)
        seen.append(tensors(target.train(TRAINING)(*args, **kwargs)))
    worst = apart(*seen)
    report("output after two training steps, of the trained module and of a new one that loads its state dict: "
           "largest difference", 0.0, worst, failed=worst > 1e-4)
"""
)

_BY_USE: Final = (
    _STEPS
    + """

def main():
    trained = make().train()
    train(trained)
    try:
        make().load_state_dict(trained.state_dict())
        error = "no error"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    report("loading the state dict of a module that was called into a new one", "no error", error,
           failed=error != "no error")
"""
)

_NOT_SAVEABLE: Final = """
def main():
    import io

    try:
        torch.save(make().state_dict(), io.BytesIO())
        error = "no error"
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    report("saving the state dict", "no error", error, failed=error != "no error")
"""


def saving_body(cause: str, numbers: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none for this cause."""
    if cause == "unregistered_parameters" and "differs" not in numbers:
        return _NOT_REGISTERED, {"ATTRIBUTE": str(next(iter(numbers.get("attributes", [])), ""))}
    if cause in ("unregistered_parameters", "unsaved_random_buffer", "unsaved_random_attribute"):
        return _LOADED, {}
    if cause in ("unsaved_flag", "unsaved_number", "unsaved_statistic"):
        return _TRAINED, {"TRAINING": numbers.get("mode") == "training"}
    if cause == "state_changes_by_use":
        return _BY_USE, {}
    return (_NOT_SAVEABLE, {}) if cause == "not_saveable" else None
