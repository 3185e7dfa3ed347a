"""Another device without having one: tensors of torch's fake mode say that they lie on it and hold no values.

Forward only: autograd on fake tensors of a device that torch was built without ends the process. A fake tensor has no
values either, so what branches on them can't be run so.
"""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gradproof_probe.harness.recipe import Built
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors, transform

_DEVICE: Final = torch.device("cuda", 1)
_MISMATCH: Final = re.compile(r"same device|Mismatch|different device")


class OtherDevice:
    """GP602, GP618, GP621: a tensor that is made elsewhere than where the inputs lie, and meets them."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        devices: set[str] = set()
        calls: list[int] = []

        def watch(role: str, value: Any) -> Any:
            if role == "before":
                calls.append(1)
            elif role == "result":
                devices.update(str(tensor.device) for _, tensor in tensors(value) if tensor.ndim)
            return value

        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def move(built: Built) -> None:
            def moved(tensor: torch.Tensor) -> torch.Tensor:
                with mode:
                    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_DEVICE)

            for module in built.instance.modules() if built.instance is not None else ():
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        module._parameters[name] = torch.nn.Parameter(moved(parameter), requires_grad=False)
                for name, buffer in module._buffers.items():
                    module._buffers[name] = None if buffer is None else moved(buffer)
            call = built.call

            def elsewhere(*args: Any, **kwargs: Any) -> Any:
                with torch.no_grad(), mode:
                    return call(*transform(args, moved), **transform(kwargs, moved))

            built.call = elsewhere

        with bench.watching(suspect, watch):
            seen = bench.call(change=move, backward=False)
        if not calls:
            return not_reached(f"on another device no call came to this line{': ' + seen.words if seen.error else ''}")
        stray = sorted(devices - {str(_DEVICE)})
        here = seen.place is not None and seen.place.path == suspect.path and seen.place.line == suspect.line
        if here and not stray and _MISMATCH.search(str(seen.error)):
            return confirmed(f"with module and inputs on {_DEVICE} this line raises: {seen.words}", error=seen.words)
        if stray and seen.error is not None and _MISMATCH.search(str(seen.error)):
            return confirmed(
                f"with module and inputs on {_DEVICE}, what this line makes lies on {', '.join(stray)}, and the call "
                f"raises: {seen.words}",
                device=stray[0],
            )
        if seen.error is not None:
            return not_reached(f"without values the call can't be run: {seen.words}")
        if stray:
            return held(f"what this line makes lies on {', '.join(stray)}, and nothing that lies on {_DEVICE} meets it")
        return held(f"with module and inputs on {_DEVICE}, what this line makes lies there too")
