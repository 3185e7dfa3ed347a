"""The GPUs of this machine: which there are, who holds which, and whether one is fit for the next job.

CUDA itself is used in sandboxes only; what is known here comes from nvidia-smi and from locks.
"""

from __future__ import annotations

from worker.devices.errors import DeviceBusyError, InventoryError, NoSuchDeviceError
from worker.devices.inventory import Gpu, chosen, driver_libraries, read_inventory, visible
from worker.devices.nodes import cuda_device_nodes

__all__ = [
    "DeviceBusyError",
    "Gpu",
    "InventoryError",
    "NoSuchDeviceError",
    "chosen",
    "cuda_device_nodes",
    "driver_libraries",
    "read_inventory",
    "visible",
]
