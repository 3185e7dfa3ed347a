"""What a sandbox must see and be told so that CUDA works inside, on the one device that is lent to it."""

from __future__ import annotations

from collections.abc import Mapping

from worker.devices.inventory import Gpu, driver_libraries
from worker.devices.nodes import cuda_device_nodes


def device_nodes(device: str, gpu: Gpu | None) -> tuple[str, ...]:
    """Device files: those of the lent GPU; without one, where nobody could ask the driver, those of all."""
    if device != "cuda":
        return ()
    return cuda_device_nodes() if gpu is None else gpu.nodes()


def device_environment(device: str, gpu: Gpu | None) -> Mapping[str, str]:
    """The device by its UUID, so that no way of counting can mean another, and where the driver's library lies."""
    if device != "cuda":
        return {}
    libraries = driver_libraries()
    return {
        **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu.uuid}),
        **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
    }
