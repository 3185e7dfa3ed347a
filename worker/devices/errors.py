"""What can be wrong with devices."""

from __future__ import annotations

from services.problems import BadInputError, SurroundingsError


class InventoryError(SurroundingsError):
    """Nobody can say which GPUs there are, or how they are."""

    code = "device-inventory"
    title = "The GPUs can't be looked at"


class NoSuchDeviceError(BadInputError):
    """A device was asked for that this machine does not have."""

    code = "no-such-device"
    title = "There is no such device"


class DeviceBusyError(SurroundingsError):
    """Every device that would do is held by somebody else."""

    code = "device-busy"
    title = "The device is in use"
