"""A pretend device, for the device path on machines without one. Never CUDA: its name is `sim`.

Tensors on `sim:0` wrap CPU tensors; every operation is computed on the CPU, so that what is tested is the way (moves,
factories, mixed devices that raise, reports), not a GPU. It can be given wrong kernels: a dispatch mode under which its
operations are computed.

`install` changes the process for good (a backend can be named once): only in a child of its own. Uses torch's
experimental Python backend for PrivateUse1, which needs torch 2.10 or newer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from gradproof_probe.devices.cells import CELLS
from gradproof_probe.devices.reduced import ReducedProducts, as_tf32

DEVICE: Final = "sim:0"
FAULT_VARIABLE: Final = "GRADPROOF_SIMULATED_FAULT"
# The operation that the wrong kernel is for: off by 1 part in 1000, far beyond float32 and plausible for a bug.
WRONG_KERNEL: Final = ("gelu", "tanh", "sigmoid", "_softmax", "native_layer_norm", "relu", "mul")
# What CUDA takes from the CPU beside tensors without dimensions: indices, and lengths that it needs there.
_INDEXING: Final = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
_LENGTHS: Final = (
    *("_pack_padded_sequence", "_pad_packed_sequence", "_pack_padded_sequence_backward"),
    *("_ctc_loss", "_use_cudnn_ctc_loss", "tensor_split"),
)


class SimulatedTensor(torch.Tensor):
    """Says that it lives on `sim:0`; holds its numbers in a CPU tensor."""

    raw: torch.Tensor
    # torch's own would turn what `.cpu()` gives into this class again.
    __torch_function__ = torch._C._disabled_torch_function_impl

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


class _Backend:
    """What torch asks of `torch.sim`. Its random numbers are the CPU's."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        """The CPU's generator is seeded already."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


def install() -> None:
    """Name the backend and route its operations here. Raises `RuntimeError` where torch has no Python backends."""
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    except ImportError as error:
        raise RuntimeError("this torch has no Python backends: the simulated device needs 2.10 or newer") from error
    _setup_privateuseone_for_python_backend("sim", backend_module=_Backend())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    _KEPT.append(library)  # its registrations end with it
    torch.__future__.set_swap_module_params_on_conversion(True)
    _chosen_by_environment()


_KEPT: Final[list[Any]] = []
# What `torch.backends.cuda.matmul.allow_tf32` is to CUDA.
SETTINGS: Final = {"allow_tf32": True}
_KERNELS: Final[list[TorchDispatchMode]] = []


@contextmanager
def computing_under(kernels: TorchDispatchMode) -> Iterator[None]:
    """While open, this is what the device's kernels are: a mode that sees the CPU tensors which its tensors hold."""
    _KERNELS.append(kernels)
    try:
        yield
    finally:
        _KERNELS.remove(kernels)


def tf32_kernels() -> TorchDispatchMode:
    """Products as TF32 has them, until TF32 is switched off."""
    return ReducedProducts(as_tf32, lambda: SETTINGS["allow_tf32"])


class WrongKernel(TorchDispatchMode):
    """One operation off by 1 part in 1000."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return tree_map(_slightly_wrong, result) if func.overloadpacket.__name__ in WRONG_KERNEL else result


def _chosen_by_environment() -> None:
    """The device has no other way to be told, in a process that tests start."""
    chosen = os.environ.get(FAULT_VARIABLE)
    if chosen == "tf32":
        _KERNELS.append(tf32_kernels())
    elif chosen == "kernel":
        _KERNELS.append(WrongKernel())


def _kernels() -> AbstractContextManager[Any]:
    return _KERNELS[-1] if _KERNELS else nullcontext()


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    # Below autograd (inside another mode, in inference mode) operations come here that are made of others, moves too.
    composed = func.decompose(*args, **kwargs)
    if composed is not NotImplemented:
        return composed
    if func is torch.ops.aten._to_copy.default or func is torch.ops.aten.copy_.default:
        return _move(func, args, kwargs)
    flat, _ = tree_flatten((args, kwargs))
    name = func.overloadpacket.__name__
    mine = [item for item in flat if isinstance(item, SimulatedTensor)]
    if mine and name not in _LENGTHS:
        _refuse_mixed((args[0], args[2:]) if name in _INDEXING else flat)
    on_device = bool(mine) or any(isinstance(item, torch.device) and item.type == "sim" for item in flat)
    plain_args, plain_kwargs = tree_map(_unwrap, (args, kwargs))
    with _kernels():
        result = CELLS.get(name, func)(*plain_args, **plain_kwargs)
    if not on_device:
        return result
    if torch.Tag.inplace_view in func.tags and isinstance(flat[0], SimulatedTensor):
        _reshape_outside(func, args, kwargs)
    if name == "_pack_padded_sequence":
        return _wrap(result[0]), result[1]  # the sizes of the batches stay on the CPU
    if func._schema.is_mutable and flat and isinstance(flat[0], SimulatedTensor) and not name.startswith("set_"):
        return flat[0] if isinstance(result, torch.Tensor) else tree_map(_wrap, result)
    return tree_map(_wrap, result)


def _reshape_outside(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """`transpose_` and its like change a shape in place: that of the tensor that says it is on the device, too."""
    with no_dispatch():
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)  # noqa: FBT003 - torch's
        try:
            func(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _refuse_mixed(values: Any) -> None:
    found = [item for item in tree_flatten(values)[0] if isinstance(item, torch.Tensor)]
    if any(not isinstance(item, SimulatedTensor) and item.dim() > 0 for item in found):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu!"
        )


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


def _slightly_wrong(value: Any) -> Any:
    return value * 1.001 if isinstance(value, torch.Tensor) and value.is_floating_point() else value
