"""Autocast on the CPU as it is on CUDA, where nearly all mixed precision is trained: a fault that only the CPU's own
lists of casts make is none that anybody meets.

CUDA computes norms, exponentials, sums and softmax in float32, and knows operations that promote their operands; the
CPU's lists lack them. What code says of `cuda` (custom_fwd, autocast switched off for a block) is taken for the CPU.
Everything is put back on leaving. This module must not run submitted code itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.amp import autocast_mode

HALF: Final = (torch.float16, torch.bfloat16)

# ATen/autocast_mode.h, for CUDA: in float32, in the low type, and in the widest type of the operands.
_IN_FLOAT32: Final = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "softplus", "layer_norm"),
    *("native_layer_norm", "group_norm", "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim"),
    *("cosine_similarity", "pdist", "dist", "renorm", "logsumexp", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "softmax.int", "log_softmax.int", "sum", "sum.dim_IntList"),
    *("norm.Scalar", "norm.ScalarOpt_dim"),
)
_IN_LOW: Final = (
    *("addmv", "addr", "mv", "chain_matmul", "linalg_multi_dot"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
_PROMOTED: Final = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "index_put", "scatter_add", "tensordot"),
)


@contextmanager
def cuda_lists() -> Iterator[None]:
    """Registers what the CPU's lists lack, and lets `cuda` mean the CPU, for `torch.autocast("cpu")` inside."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    known = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))
    try:
        for names, cast in ((_IN_FLOAT32, _to_float32), (_IN_LOW, _to_low), (_PROMOTED, _to_widest)):
            for name in names:
                operation = _operation(name)
                if operation is not None and f"aten::{name}" not in known:
                    library.impl(name, _kernel(operation, cast))
        with ExitStack() as stack:
            _rename(stack)
            yield
    finally:
        library._destroy()


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return getattr(found, overload or "default", None)


def _kernel(operation: Any, cast: Callable[[list[torch.Tensor]], torch.dtype | None]) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            floating = [item for item in _flat([args, list(kwargs.values())]) if item.dtype in (*HALF, torch.float32)]
            dtype = cast(floating)
            if dtype is None:
                return operation(*args, **kwargs)
            change = functools.partial(_cast_all, dtype=dtype)
            return operation(*map(change, args), **{name: change(value) for name, value in kwargs.items()})

    return kernel


def _to_float32(floating: list[torch.Tensor]) -> torch.dtype | None:
    return torch.float32 if any(item.dtype in HALF for item in floating) else None


def _to_low(floating: list[torch.Tensor]) -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if floating else None


def _to_widest(floating: list[torch.Tensor]) -> torch.dtype | None:
    return functools.reduce(torch.promote_types, [item.dtype for item in floating]) if len(floating) > 1 else None


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for part in value for item in _flat(part)] if isinstance(value, list | tuple) else []


def _cast_all(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in (*HALF, torch.float32) else value
    return type(value)(_cast_all(item, dtype) for item in value) if type(value) in (list, tuple) else value


def _rename(stack: ExitStack) -> None:
    """What asks for CUDA is told of the CPU."""
    initialise, enabled, cast = autocast_mode.autocast.__init__, torch.is_autocast_enabled, autocast_mode._cast

    @functools.wraps(initialise)
    def made(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        cuda = device_type == "cuda"
        given = torch.get_autocast_dtype("cpu") if cuda and dtype is None else dtype
        initialise(self, "cpu" if cuda else device_type, given, *args, **kwargs)

    def asked(device_type: str = "cuda") -> bool:
        return bool(enabled("cpu" if device_type == "cuda" else device_type))

    dtype_of = torch.get_autocast_dtype

    def low(device_type: str = "cuda") -> Any:
        return dtype_of("cpu" if device_type == "cuda" else device_type)

    def casting(value: Any, device_type: str, dtype: Any) -> Any:
        return cast(value, "cpu" if device_type == "cuda" else device_type, dtype)

    for home, name, value in (
        (autocast_mode.autocast, "__init__", made),
        (autocast_mode, "_cast", casting),
        (torch, "is_autocast_enabled", asked),
        (torch, "get_autocast_dtype", low),
        (torch, "get_autocast_gpu_dtype", low),
    ):
        stack.callback(setattr, home, name, getattr(home, name))
        setattr(home, name, value)
