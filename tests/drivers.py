"""A driver that answers as `nvidia-smi -q -x` does, with GPUs that are made up: the one edge behind which is a GPU.

Everything else in tests of devices is real: locks, processes, databases.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FIRST = "GPU-aaaaaaaa-0000-0000-0000-000000000001"
SECOND = "GPU-bbbbbbbb-0000-0000-0000-000000000002"

_PROCESS = """
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>{pid}</pid>
\t\t\t\t<type>{kind}</type>
\t\t\t\t<process_name>{name}</process_name>
\t\t\t\t<used_memory>512 MiB</used_memory>
\t\t\t</process_info>"""
_GPU = """
\t<gpu id="00000000:{number:02X}:00.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<product_architecture>Hopper</product_architecture>
\t\t<mig_mode>
\t\t\t<current_mig>{mig}</current_mig>
\t\t\t<pending_mig>{mig}</pending_mig>
\t\t</mig_mode>
\t\t<uuid>{uuid}</uuid>
\t\t<minor_number>{minor}</minor_number>
\t\t<fb_memory_usage>
\t\t\t<total>143771 MiB</total>
\t\t\t<reserved>600 MiB</reserved>
\t\t\t<used>{used} MiB</used>
\t\t\t<free>143000 MiB</free>
\t\t</fb_memory_usage>
\t\t<bar1_memory_usage>
\t\t\t<total>262144 MiB</total>
\t\t\t<used>1 MiB</used>
\t\t\t<free>262143 MiB</free>
\t\t</bar1_memory_usage>
\t\t<processes>{processes}
\t\t</processes>
\t</gpu>"""
_LOG = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Mon Nov 30 12:00:00 2026</timestamp>
\t<driver_version>570.124.06</driver_version>
\t<attached_gpus>{count}</attached_gpus>{gpus}
</nvidia_smi_log>
"""
Process = tuple[int, str, str]  # pid, type (C computes, G draws), name


def gpu(uuid: str, minor: int = 0, *, used: int = 1, processes: Sequence[Process] = (), mig: str = "Disabled") -> str:
    """What the driver says of one GPU; `used` in MiB."""
    told = "".join(_PROCESS.format(pid=pid, kind=kind, name=name) for pid, kind, name in processes)
    return _GPU.format(number=minor + 1, uuid=uuid, minor=minor, used=used, processes=told, mig=mig)


class Driver:
    """Stands for the driver of one machine; `command` goes into the setting `nvidia_smi`."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._answer = directory / "answer.xml"
        self._program = directory / "nvidia-smi"
        self._program.write_text(f'#!/bin/sh\n[ "$*" = "-q -x" ] && exec cat {self._answer}\n')
        self._program.chmod(0o755)
        self.lists()

    @property
    def command(self) -> str:
        return str(self._program)

    def lists(self, *gpus: str) -> None:
        """From now on it lists these. Whole or not at all, as workers ask at any time."""
        draft = self._answer.with_suffix(".draft")
        draft.write_text(_LOG.format(count=len(gpus), gpus="".join(gpus)))
        draft.rename(self._answer)

    def fails(self) -> None:
        """From now on it has lost its devices."""
        self._program.write_text("#!/bin/sh\necho 'Unable to determine the device handle: GPU is lost'; exit 15\n")

    def hangs(self) -> None:
        """From now on it gives no answer."""
        self._program.write_text("#!/bin/sh\nexec sleep 600\n")
