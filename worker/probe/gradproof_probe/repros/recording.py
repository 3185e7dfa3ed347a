"""The script for recordings that baked a Python value in: a trace of one call, compared with eager at other inputs."""

from __future__ import annotations

from typing import Any, Final

_BODY: Final = """
def others(example, redrawn):
    floats = lambda change: [change(t) if t.is_floating_point() else t for t in example]
    yield "other values", redrawn
    yield "the other sign", floats(lambda t: -t)
    yield "10 times as large", floats(lambda t: 10 * t)
    yield "a hundredth of it", floats(lambda t: 0.01 * t)
    yield "zeros", floats(torch.zeros_like)
    yield "masks inverted", [~t if t.dtype == torch.bool else t for t in example]
    for axis, words in ((0, "batch"), (1, "length")):
        if example[0].dim() > axis and example[0].shape[axis] > 1:
            size = example[0].shape[axis]
            alike = [t.dim() > axis and t.shape[axis] == size for t in example]
            yield f"twice the {words}", [torch.cat([t, t], axis) if a else t for t, a in zip(example, alike)]
            yield f"half the {words}", [t.narrow(axis, 0, size // 2) if a else t for t, a in zip(example, alike)]


def main():
    target = make()
    if isinstance(target, torch.nn.Module):
        target.eval().requires_grad_(False)
    args, kwargs = inputs()
    example = [t.detach() for t in tensors([args, kwargs])]

    def call(*values):
        given = iter(values)
        full_args, full_kwargs = each((args, kwargs), lambda _: next(given))
        return tuple(tensors(target(*full_args, **full_kwargs)))

    recorded = RECORD(call, tuple(example))
    redrawn = [t.detach() for t in tensors(list(inputs(seed=SEED + 1)))]
    off = {}
    for words, values in others(example, redrawn):
        try:
            reseed(SEED)
            expected = call(*[t.clone() for t in values])
            reseed(SEED)
            got = tensors(recorded(*[t.clone() for t in values]))
        except Exception:
            continue  # one of the two says that it does not take these
        if all(t.isfinite().all() for t in expected) and apart(expected, got) > 1e-3:
            off[words] = apart(expected, got)
    report("inputs at which the recording gives other numbers than eager, and by how much", {}, off, failed=bool(off))
"""

_TRACE: Final = """
def RECORD(call, example):
    return torch.jit.trace(call, example, check_trace=False)
"""
_EXPORT: Final = """
class Part(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *values):
        return self.call(*values)


def RECORD(call, example):
    return torch.export.export(Part(call), example, strict=False).module()
"""


def recording_body(text: str) -> tuple[str, dict[str, Any]]:
    """The body of the script, with its constants. `text` says how it was recorded."""
    record = _EXPORT if "recorded by torch.export" in text else _TRACE
    return (record.strip("\n") + "\n\n\n" + _BODY.strip("\n")).replace("RECORD", "record"), {}
