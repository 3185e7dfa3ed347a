"""Custom Functions: what they keep on ctx past autograd, and what they write to without saying so."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch

from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors, transform


class KeptOnContext:
    """GP302: a tensor on ctx is not watched by autograd (a later write goes unseen), and an output there never dies."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        kept: list[torch.Tensor] = []

        def watch(role: str, value: Any) -> Any:
            if role == "result":
                kept.extend(tensor for _, tensor in tensors(value))
            return value

        with bench.watching(suspect, watch):
            outputs, inputs, error = _applied(bench)
        if outputs is None:
            return not_reached(f"the call raises: {error}")
        if not kept:
            return not_reached("no call came to this line")
        written = self._goes_unseen(outputs, inputs, kept)
        memory = {tensor.untyped_storage().data_ptr() for tensor in kept}
        if any(output.untyped_storage().data_ptr() in memory for output in outputs) and self._never_dies(bench):
            return confirmed("the Function's own output is kept on ctx: the two hold each other, and after the last "
                             "reference is gone the tensor is still alive")  # fmt: skip
        return written

    @staticmethod
    def _goes_unseen(outputs: list[torch.Tensor], inputs: list[torch.Tensor], kept: list[torch.Tensor]) -> Answer:
        live = [output for output in outputs if output.requires_grad]
        wanted = [value for value in inputs if value.requires_grad]
        if not live or not wanted:
            return not_reached("no output depends on an input")
        ones = [torch.ones_like(output) for output in live]
        try:
            before = torch.autograd.grad(live, wanted, ones, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            return not_reached(f"backward raises: {error}")
        with torch.no_grad():
            for tensor in kept:
                if tensor.is_floating_point():
                    tensor.mul_(2.0).add_(1.0)
        try:
            after = torch.autograd.grad(live, wanted, ones, retain_graph=True, allow_unused=True)
        except RuntimeError:
            return held("a write to the tensor between forward and backward is noticed: backward raises")
        for first, second in zip(before, after, strict=True):
            if first is not None and second is not None and not torch.allclose(first, second, equal_nan=True):
                return confirmed(
                    "writing to this tensor between forward and backward changes the gradient, and nothing is raised: "
                    "save_for_backward would notice"
                )
        return held("a write to the tensor between forward and backward changes no gradient")

    @staticmethod
    def _never_dies(bench: Bench) -> bool:
        gc.collect()
        gc.disable()
        try:
            outputs, _, _ = _applied(bench)
            if not outputs:
                return False
            remains = weakref.ref(outputs[0].untyped_storage())
            watched = weakref.ref(outputs[0])
            del outputs
            return watched() is not None and remains is not None
        finally:
            gc.enable()


class UnmarkedWrite:
    """GP307: forward writes to its input, and autograd is not told."""

    def settle(self, bench: Bench, _suspect: Suspect) -> Answer:
        outputs, inputs, error = _applied(bench, copies=True)
        if outputs is None:
            return not_reached(f"the call raises: {error}")
        changed = [number for number, (now, then) in enumerate(self._pairs(inputs)) if not torch.equal(now, then)]
        if not changed:
            return held("forward left every input as it was")
        unseen = [number for number in changed if not any(inputs[2 * number] is output for output in outputs)]
        if unseen:
            return confirmed("forward changes an input and does not return it marked as dirty: whoever uses that input "
                             "again gets values that autograd knows nothing of")  # fmt: skip
        return held("the input that is changed is marked and returned")

    @staticmethod
    def _pairs(inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return list(zip(inputs[::2], inputs[1::2], strict=True))


def _applied(bench: Bench, *, copies: bool = False) -> tuple[list[torch.Tensor] | None, list[torch.Tensor], str]:
    """The outputs of one call, the tensors it was given (each with a copy from before, if asked for), or the error."""
    given: list[torch.Tensor] = []

    def make(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.detach().clone()
        if value.is_floating_point():
            value = value.requires_grad_().clone()
        given.extend([value, value.detach().clone()] if copies else [value])
        return value

    try:
        built = bench.built()
        args = [transform(value, make) for value in built.args]
        kwargs = {name: transform(value, make) for name, value in built.kwargs.items()}
        result = built.call(*args, **kwargs)
    except ExpressionError as error:
        return None, [], str(error.cause)
    except Exception as error:
        return None, [], str(error)
    return [tensor for _, tensor in tensors(result)], given, ""
