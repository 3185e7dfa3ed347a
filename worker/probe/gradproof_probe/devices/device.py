"""The device that a run was asked to compare with, or why there is none. The CPU is never one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gradproof_probe import simulated_device
from gradproof_probe.devices.memory import bound_memory


@dataclass(frozen=True, slots=True)
class Device:
    """`name` is torch's, `label` the one in reports."""

    name: str
    label: str

    @property
    def kind(self) -> str:
        return torch.device(self.name).type

    def described(self) -> str:
        """The model of a GPU, for the record."""
        return torch.cuda.get_device_name() if self.kind == "cuda" else self.label


@dataclass(frozen=True, slots=True)
class NoDevice:
    label: str
    why: str


def find_device(asked: str, memory: int = 0) -> Device | NoDevice:
    """`memory` bounds what this process may take of a CUDA device, in bytes."""
    if asked == "cpu":
        return NoDevice("cpu", "this run has no device to compare the CPU with")
    if asked == "sim":
        try:
            simulated_device.install()
        except RuntimeError as error:
            return NoDevice("simulated", str(error))
        return Device(simulated_device.DEVICE, "simulated")
    if not torch.cuda.is_available():
        return NoDevice("cuda", "no CUDA device is visible to this process")
    bound_memory(memory)
    return Device("cuda", "cuda")
