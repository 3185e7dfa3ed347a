"""Matrix products and convolutions in half precision as they should be: computed in float32, then rounded.

torch's kernels for half types on a CPU depend on what the machine's instructions are, and some are wrong (torch 2.13:
the gradient of a bfloat16 convolution's weight for a 2x2 image reads memory that nobody wrote). A difference that is
gone here is such a kernel's, and no fault of the submitted code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gradproof_probe.devices.reduced import PRODUCTS
from gradproof_probe.training.cuda_autocast import HALF


class CarefulProducts(TorchDispatchMode):
    """While it is active, no half kernel multiplies matrices or convolves."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch asks; True would import torch._dynamo at the first operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func.overloadpacket.__name__ not in PRODUCTS:
            return func(*args, **given)
        narrow = {item.dtype for item in args if isinstance(item, torch.Tensor) and item.dtype in HALF}
        if not narrow:
            return func(*args, **given)
        dtype = narrow.pop()

        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float() if tensor.dtype in HALF else tensor

        found = func(*tree_map_only(torch.Tensor, widened, args), **tree_map_only(torch.Tensor, widened, given))
        return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype), found)
