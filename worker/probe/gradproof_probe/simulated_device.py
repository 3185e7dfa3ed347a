"""A pretend device, for tests of the device path on machines without one. Never CUDA: its name is `sim`.

Tensors on `sim:0` wrap CPU tensors; every operation is computed on the CPU, so that what is tested is the way (moves,
factories, mixed devices that raise, reports), not a GPU. Faults can be switched on: products rounded as TF32 rounds
its operands, or one operation with a wrong kernel.

`install` changes the process for good (a backend can be named once): only in a child of its own. Uses torch's
experimental Python backend for PrivateUse1, which needs torch 2.10 or newer.
"""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_map

DEVICE: Final = "sim:0"
FAULT_VARIABLE: Final = "GRADPROOF_SIMULATED_FAULT"
FAULTS: Final = ("none", "tf32", "kernel")
# TF32 keeps 10 of float32's 23 bits of the fraction of each operand of a product.
TF32_DROPPED_BITS: Final = 13
PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
# The operation that the wrong kernel is for: off by 1 part in 1000, far beyond float32 and plausible for a bug.
WRONG_KERNEL: Final = ("gelu", "tanh", "sigmoid", "_softmax", "native_layer_norm", "relu", "mul")


class SimulatedTensor(torch.Tensor):
    """Says that it lives on `sim:0`; holds its numbers in a CPU tensor."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(DEVICE),
            requires_grad=False,
        )
        made.raw = raw
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SimulatedTensor({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def install() -> None:
    """Name the backend and route its operations here. Raises `RuntimeError` where torch has no Python backends."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    except ImportError as error:
        raise RuntimeError("this torch has no Python backends: the simulated device needs 2.10 or newer") from error
    _setup_privateuseone_for_python_backend("sim")
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    _KEPT.append(library)  # its registrations end with it
    torch.__future__.set_swap_module_params_on_conversion(True)


_KEPT: Final[list[Any]] = []
# What `torch.backends.cuda.matmul.allow_tf32` is to CUDA.
SETTINGS: Final = {"allow_tf32": True}


def fault() -> str:
    """Which fault is switched on, from the environment: the device has no other way to be told."""
    chosen = os.environ.get(FAULT_VARIABLE, "none")
    return chosen if chosen in FAULTS else "none"


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.aten._to_copy.default or func is torch.ops.aten.copy_.default:
        return _move(func, args, kwargs)
    flat, _ = tree_flatten((args, kwargs))
    mine = [item for item in flat if isinstance(item, SimulatedTensor)]
    strange = [
        item
        for item in flat
        if isinstance(item, torch.Tensor) and not isinstance(item, SimulatedTensor) and item.dim() > 0
    ]
    if mine and strange:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu!"
        )
    on_device = bool(mine) or any(isinstance(item, torch.device) and item.type == "sim" for item in flat)
    name = func.overloadpacket.__name__
    plain_args, plain_kwargs = tree_map(_unwrap, (args, kwargs))
    if fault() == "tf32" and SETTINGS["allow_tf32"] and name in PRODUCTS:
        plain_args = tree_map(as_tf32, plain_args)
    result = func(*plain_args, **plain_kwargs)
    if fault() == "kernel" and name in WRONG_KERNEL:
        result = tree_map(_slightly_wrong, result)
    if not on_device:
        return result
    if func._schema.is_mutable and flat and isinstance(flat[0], SimulatedTensor) and not name.startswith("set_"):
        return flat[0] if isinstance(result, torch.Tensor) else tree_map(_wrap, result)
    return tree_map(_wrap, result)


def _move(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is torch.ops.aten.copy_.default:
        _unwrap(args[0]).copy_(_unwrap(args[1]))
        return args[0]
    source = args[0]
    wanted = kwargs.get("device")
    here = isinstance(source, SimulatedTensor) if wanted is None else torch.device(wanted).type == "sim"
    options = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    copied = torch.ops.aten._to_copy.default(_unwrap(source), **options)
    return SimulatedTensor(copied) if here else copied


def _unwrap(value: Any) -> Any:
    if isinstance(value, SimulatedTensor):
        return value.raw
    if isinstance(value, torch.device) and value.type == "sim":
        return torch.device("cpu")
    return value


def _wrap(value: Any) -> Any:
    return (
        SimulatedTensor(value) if isinstance(value, torch.Tensor) and not isinstance(value, SimulatedTensor) else value
    )


def as_tf32(value: Any) -> Any:
    """Round the operand to TF32's 10 bits of fraction, to nearest."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    bits = value.contiguous().view(torch.int32)
    half = 1 << (TF32_DROPPED_BITS - 1)
    return ((bits + half) & ~((1 << TF32_DROPPED_BITS) - 1)).view(torch.float32)


def _slightly_wrong(value: Any) -> Any:
    return value * 1.001 if isinstance(value, torch.Tensor) and value.is_floating_point() else value
