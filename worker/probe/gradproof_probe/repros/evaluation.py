"""Scripts for what calls in evaluation mode leave behind, or draw at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_RANDOM: Final = """
def main():
    target = mode(make(), False)
    seen = []
    for draw in (0, 1):
        args, kwargs = inputs()
        reseed(SEED + 100 + draw)
        seen.append(tensors(target(*args, **kwargs)))
    worst = apart(*seen)
    report("two calls in evaluation mode with the same input: largest difference", 0.0, worst, failed=worst > 0)
"""

_MODE: Final = """
def main():
    target = mode(make(), False)
    args, kwargs = inputs()
    target(*args, **kwargs)
    switched = [name or "the module itself" for name, part in target.named_modules() if part.training]
    report("parts in training mode after a call in evaluation mode", [], switched, failed=bool(switched))
"""

_GRADIENTS: Final = """
def main():
    target = mode(make(), False)
    args, kwargs = inputs()
    target(*args, **kwargs)
    now = torch.is_grad_enabled()
    report("whether gradients are recorded after a call", True, now, failed=not now)
"""

_SETTINGS: Final = """
def settings():
    return {
        "default dtype": torch.get_default_dtype(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "TF32": (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32),
    }


def main():
    target = mode(make(), False)
    args, kwargs = inputs()
    before = settings()
    target(*args, **kwargs)
    after = settings()
    changed = {name: value for name, value in after.items() if value != before[name]}
    expected = {name: before[name] for name in changed}
    report("settings of the whole process after a call", expected, changed, failed=bool(changed))
"""

_RESEEDED: Final = """
def drawn():
    found = [torch.rand(3).tolist(), random.random()]
    return found + [sys.modules["numpy"].random.rand()] if "numpy" in sys.modules else found


def main():
    target = mode(make(), False)
    seen = []
    for draw in (0, 1):
        args, kwargs = inputs()
        reseed(SEED + 100 + draw)
        target(*args, **kwargs)
        seen.append(drawn())
    same = [a for a, b in zip(*seen) if a == b]
    report("random numbers that are the same after two calls, though these began with other seeds", [], same,
           failed=bool(same))
"""

_WRITTEN: Final = """
def main():
    target = mode(make(), False)
    args, kwargs = inputs()
    given = tensors([args, kwargs])
    before = [tensor.detach().clone() for tensor in given]
    with torch.no_grad():
        target(*args, **kwargs)
    written = [number for number, (a, b) in enumerate(zip(given, before)) if not torch.equal(a, b)]
    report("tensors among the arguments that the call has changed (numbers)", [], written, failed=bool(written))
"""

_MOVED: Final = """
def state(target):
    return {name: value.detach().clone() for name, value in [*target.named_parameters(), *target.named_buffers()]}


def main():
    target = mode(make(), False)
    states = []
    for change in (None, lambda tensor: 1.7 * tensor + 0.3):  # the first call may make what is made lazily
        args, kwargs = inputs(change)
        reseed(SEED + 100)
        with torch.no_grad():
            target(*args, **kwargs)
        states.append(state(target))
    moved = [name for name, value in states[0].items() if not torch.equal(value, states[1][name])]
    report("parameters and buffers that a call in evaluation mode changes", [], moved, failed=bool(moved))
"""

BODIES: Final[Mapping[str, str]] = {
    "dropout_in_eval": _RANDOM,
    "dropout_out_of_reach": _RANDOM,
    "mode_changed": _MODE,
    "grad_mode_changed": _GRADIENTS,
    "setting_changed": _SETTINGS,
    "generator_reseeded": _RESEEDED,
    "input_written": _WRITTEN,
    "parameter_changed": _MOVED,
    "statistic_moves_in_eval": _MOVED,
}


def evaluation_body(cause: str) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none for this cause."""
    body = BODIES.get(cause)
    return None if body is None else (body, {})
