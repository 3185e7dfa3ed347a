"""The script for checkpoints whose recomputation is not what forward was: the same steps with and without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BODY: Final = """
def direct(*args, **kwargs):
    yield  # what `checkpoint` does around its function: nothing


class Reentrant:
    @staticmethod
    def apply(function, preserve, *args):
        return function(*args)


def steps(recompute):
    \"\"\"Outputs, gradients and buffers of two forward and backward passes.\"\"\"
    import torch.utils.checkpoint as checkpoints

    kept = checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction
    if not recompute:
        checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = direct, Reentrant
    try:
        target, found = make(), {}
        module = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
        module.train()
        for owner, name in TURNED_ON:
            setattr(module.get_submodule(owner), name, True)
        for number in (1, 2):
            args, kwargs = inputs(leaf if INPUTS_NEED_GRADIENTS else None)
            wanted = {f"input {n}": t for n, t in enumerate(tensors([args, kwargs])) if t.requires_grad}
            wanted |= {name: p for name, p in module.named_parameters() if p.requires_grad}
            for tensor in wanted.values():
                tensor.grad = None
            reseed(SEED)
            # Clones, since the call may write to its inputs.
            output = target(*each(args, torch.clone), **each(kwargs, torch.clone))
            outputs = [o for o in tensors(output) if o.requires_grad]
            found |= {f"step {number}: output {n}": o.detach().clone() for n, o in enumerate(outputs)}
            if outputs:
                torch.autograd.backward(outputs, random_like(outputs))
            for name, tensor in wanted.items():
                found[f"step {number}: gradient of {name}"] = None if tensor.grad is None else tensor.grad.clone()
            found |= {f"step {number}: buffer {name}": b.clone() for name, b in module.named_buffers()}
        return found
    finally:
        checkpoints._checkpoint_without_reentrant_generator, checkpoints.CheckpointFunction = kept


def main():
    expected = steps(recompute=False)
    try:
        got = steps(recompute=True)
    except Exception as error:
        report("two steps with the checkpoint", "no error", f"{type(error).__name__}: {error}", failed=True)
    off = {}
    for name, value in expected.items():
        if (value is None) != (got.get(name) is None):
            off[name] = "missing"
        elif value is not None and apart([value], [got[name]]) > 2e-6:
            off[name] = apart([value], [got[name]])
    report("what differs, relative to its size, between two steps with the checkpoint and without it", {}, off,
           failed=bool(off))
"""


def checkpoint_body(cause: str, evidence: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The body of the script, with its constants."""
    turned_on = [str(name).rpartition(".")[::2] for name in evidence.get("turned_on", [])]
    as_data = cause == "no_gradient_through_reentrant" and "without_gradient" in evidence
    return _BODY, {"TURNED_ON": turned_on, "INPUTS_NEED_GRADIENTS": not as_data}
