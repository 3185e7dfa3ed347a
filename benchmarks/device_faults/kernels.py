"""Kernels that a device might have: those of another library that are as good, reduced formats, and faults.

Each is a dispatch mode under which the simulated device computes; it sees the CPU tensors that the device's hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from gradproof_probe.devices.reduced import ReducedProducts, as_bfloat16
from gradproof_probe.simulated_device import tf32_kernels
from torch.utils._python_dispatch import TorchDispatchMode

_CHUNKS: Final = 4
_EPS: Final = 1e-5  # of layer norm

Kernel = Callable[..., Any]  # given the operation and its arguments


class Kernels(TorchDispatchMode):
    """While open, these operations are computed by these functions. `used` says whether one was."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        super().__init__()
        self.used = False
        self._kernels = kernels

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kernel = self._kernels.get(func.overloadpacket.__name__)
        if kernel is None:
            return func(*args, **(kwargs or {}))
        self.used = True
        return kernel(func, *args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class Variation:
    """`verdict` and `cause` are what has to be said; of a fault also the operation, and whether in backward."""

    name: str
    make: Callable[[], TorchDispatchMode]
    verdict: str
    cause: str | None = None
    operation: str = ""
    phase: str = ""


def split_k() -> TorchDispatchMode:
    """Products summed in four parts, as kernels for tall matrices do."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = [x @ y for x, y in zip(a.chunk(_CHUNKS, -1), b.chunk(_CHUNKS, -2), strict=True)]
        return torch.stack(parts[::-1]).cumsum(0)[-1]

    def added(_func: Any, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_scales: Any) -> torch.Tensor:
        return bias + product(a, b)

    def plain(_func: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return product(a, b)

    return Kernels({"mm": plain, "bmm": plain, "addmm": added})


def other_libm() -> TorchDispatchMode:
    """Elementary functions off by up to one unit in the last place, the same at every run."""

    def shifted(func: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        generator = torch.Generator().manual_seed(result.numel())
        way = torch.randint(-1, 2, result.shape, generator=generator)
        return torch.where(way == 0, result, torch.nextafter(result, result + way))

    names = ("exp", "tanh", "sigmoid", "log", "erf", "gelu", "silu", "_softmax", "_log_softmax", "sin", "cos", "rsqrt")
    return Kernels(dict.fromkeys(names, shifted))


def atomics() -> TorchDispatchMode:
    """Sums in another order at every run."""
    generator = torch.Generator().manual_seed(1)

    def summed(func: Any, value: torch.Tensor, dims: Any = None, *rest: Any, **kwargs: Any) -> Any:
        axis = (dims[0] if dims else 0) if value.dim() else None
        if axis is None:
            return func(value, dims, *rest, **kwargs)
        order = torch.randperm(value.shape[axis], generator=generator)
        moved = value.index_select(axis, order)
        return func(moved, *rest, **kwargs) if dims is None else func(moved, dims, *rest, **kwargs)

    def gathered(func: Any, gradient: torch.Tensor, indices: torch.Tensor, *rest: Any) -> Any:
        rows = gradient.reshape(-1, gradient.shape[-1])
        order = torch.randperm(len(rows), generator=generator)
        return func(rows[order], indices.reshape(-1)[order], *rest)

    return Kernels({"sum": summed, "mean": summed, "embedding_dense_backward": gathered})


def layer_norm_backward_without_eps() -> TorchDispatchMode:
    def backward(func: Any, *args: Any) -> Any:
        rstd = args[4]
        return func(*args[:4], (rstd**-2 - _EPS) ** -0.5, *args[5:])

    return Kernels({"native_layer_norm_backward": backward})


def tanh_gelu() -> TorchDispatchMode:
    def gelu(func: Any, value: torch.Tensor, **_kwargs: Any) -> Any:
        return func(value, approximate="tanh")

    return Kernels({"gelu": gelu})


def half_softmax() -> TorchDispatchMode:
    def softmax(func: Any, value: torch.Tensor, *rest: Any) -> Any:
        return func(value.half(), *rest).to(value.dtype)

    return Kernels({"_softmax": softmax})


VARIATIONS: Final = (
    Variation("the CPU's own", lambda: Kernels({}), "pass"),
    Variation("split-K order", split_k, "pass"),
    Variation("1-ulp libm", other_libm, "pass"),
    Variation("order noise (atomics)", atomics, "pass"),
    Variation("TF32 products", tf32_kernels, "pass", "tf32"),
    Variation("bfloat16 products", lambda: ReducedProducts(as_bfloat16), "inconclusive", "reduced_precision"),
    Variation(
        "layer norm backward without eps",
        layer_norm_backward_without_eps,
        "fail",
        "kernel_fault",
        "native_layer_norm_backward",
        "backward",
    ),
    Variation("tanh-GELU for GELU", tanh_gelu, "fail", "kernel_fault", "gelu", "forward"),
    Variation("half-precision softmax", half_softmax, "fail", "kernel_fault", "_softmax", "forward"),
)
