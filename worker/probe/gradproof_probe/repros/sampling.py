"""Scripts for samples of a batch, and positions of a sequence, that know what they must not: one is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SAMPLES: Final = """
def resized(tensor):
    \"\"\"As many samples as no other axis has, so that the size tells which axis they are along.\"\"\"
    axis = min(AXIS, tensor.dim() - 1)
    if tensor.dim() == 0 or tensor.shape[axis] != GIVEN:
        return tensor
    samples = []
    for number in range(SAMPLES):
        sample = tensor.select(axis, number % GIVEN)
        if number >= GIVEN and tensor.is_floating_point():
            sample = sample * (0.4 + 0.55 * torch.rand(sample.shape, generator=torch.Generator().manual_seed(number)))
        samples.append(sample.to(tensor.dtype))
    return torch.stack(samples, axis)


def changed(tensor, sample):
    axis = min(AXIS, tensor.dim() - 1)
    if tensor.dim() == 0 or tensor.shape[axis] != SAMPLES:
        return tensor
    tensor = tensor.clone()
    own = tensor.select(axis, sample)
    if tensor.is_floating_point():
        own.mul_(1.3 + 1.7 * torch.rand(own.shape, generator=torch.Generator().manual_seed(3)).to(own))
    elif tensor.dtype == torch.bool:
        own.copy_((torch.arange(own.numel()) % 2 == 0).reshape(own.shape))
    else:
        own.copy_(tensor.select(axis, sample - 1).clone())
    return tensor


def call(change):
    args, kwargs = inputs()
    given = each(each((args, kwargs), resized), change)
    reseed(SEED + 100)
    return tensors(mode(make(), False)(*given[0], **given[1]))


def main():
    worst = 0.0
    for sample in (0, SAMPLES - 1):
        for before, after in zip(call(lambda t: t), call(lambda t: changed(t, sample))):
            axes = [axis for axis, size in enumerate(before.shape) if size == SAMPLES]
            if axes:
                others = [n for n in range(SAMPLES) if n != sample]
                index = torch.tensor(others)
                worst = max(worst, apart([before.index_select(axes[0], index)], [after.index_select(axes[0], index)]))
    report("outputs of the other samples when one sample changes: largest difference", 0.0, worst, failed=worst > 1e-4)
"""

_FUTURE: Final = """
def main():
    def later_changed(tensor):
        if tensor.dim() <= AXIS or tensor.shape[AXIS] != LENGTH or tensor.dtype == torch.bool:
            return tensor
        tensor = tensor.clone()
        part = tensor.narrow(AXIS, BEGIN, LENGTH - BEGIN)
        if tensor.is_floating_point():
            part.mul_(1.3 + torch.rand(part.shape, generator=torch.Generator().manual_seed(3)).to(part))
        else:
            values = tensor.unique()
            part.copy_(values[(torch.searchsorted(values, part.contiguous()) + 1) % len(values)])
        return tensor

    seen = []
    for change in (lambda t: t, later_changed):
        args, kwargs = each(inputs(), change)
        reseed(SEED + 100)
        seen.append(tensors(mode(make(), False)(*args, **kwargs)))
    worst = max((apart([a.narrow(AXIS, 0, BEGIN)], [b.narrow(AXIS, 0, BEGIN)]) for a, b in zip(*seen)
                 if a.dim() > AXIS and a.shape[AXIS] == LENGTH), default=0.0)
    report(f"outputs before position {BEGIN} when later positions change: largest difference", 0.0, worst,
           failed=worst > 1e-4)
"""

_PADDING: Final = """
import inspect


def given(shown):
    \"\"\"The arguments by name, and the mask or lengths that hide the first sample from BEGIN on.\"\"\"
    target = mode(make(), False)
    args, kwargs = inputs()
    names = list(inspect.signature(getattr(target, "forward", target)).parameters)
    found = {**dict(zip(names, args)), **kwargs}
    mask = found[ARGUMENT]
    if mask.dim() == 1:
        hidden = torch.full_like(mask, LENGTH)
        hidden[0] = BEGIN
    else:
        hidden = torch.full_like(mask, shown)
        hidden[0, BEGIN:] = not shown
    return target, found, hidden


def call(shown, change):
    target, found, hidden = given(shown)
    for name, value in found.items():
        if name != ARGUMENT and isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == LENGTH:
            value = found[name] = value.clone()
            part = value[0, BEGIN:]
            if change and value.is_floating_point():
                part.mul_(1.3 + torch.rand(part.shape, generator=torch.Generator().manual_seed(3)).to(part))
            elif change and value.dtype != torch.bool:
                values = value.unique()
                part.copy_(values[(torch.searchsorted(values, part.contiguous()) + 1) % len(values)])
    found[ARGUMENT] = hidden
    reseed(SEED + 100)
    with torch.no_grad():
        return tensors(target(**found))


def main():
    worst = []
    for shown in (True, False):  # which of the two hides, is for the code to say: one of them has to
        before, after = call(shown, False), call(shown, True)
        if any(t.isnan().any() for t in before):
            continue
        pairs = [(a[:, :BEGIN], b[:, :BEGIN]) if a.dim() > 1 and a.shape[1] == LENGTH else (a, b)
                 for a, b in zip(before, after)]
        worst.append(apart([a for a, _ in pairs], [b for _, b in pairs]))
    least = min(worst, default=0.0)
    report(f"outputs when what {ARGUMENT} hides changes: largest difference", 0.0, least, failed=least > 1e-4)
"""


def sampling_body(
    cause: str, numbers: Mapping[str, Any], evidence: Mapping[str, Any], given: int | None
) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none. `given`: samples in the given inputs."""
    if cause == "future_is_seen":
        constants = {"LENGTH": numbers["length"], "BEGIN": numbers["changed_from"], "AXIS": numbers.get("axis", 1)}
        return _FUTURE, constants
    if cause == "padding_is_seen":
        constants = {"ARGUMENT": numbers["argument"], "LENGTH": numbers["length"], "BEGIN": numbers["hidden_from"]}
        return _PADDING, constants
    if "samples" not in numbers or given is None:
        return None
    return SAMPLES, {"SAMPLES": numbers["samples"], "GIVEN": given, "AXIS": evidence.get("axis", 0)}
