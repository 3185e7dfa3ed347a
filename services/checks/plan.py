"""Which checks run on which class of device. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from services.jobs.model import CPU_CLASS

CHECKS = ("gradcheck", "gradgradcheck", "nan_gradient", "finding_search", "compile_equivalence", "device_compare")
# The analysis had no time left for a target, which was never begun: a reason for not running, as the probe's are.
BUDGET_SPENT = "budget spent"
# The reasons that say of a target that nobody tried it.
NOT_BEGUN = (BUDGET_SPENT, "cancelled", "not found")
_NEEDS_A_DEVICE = ("device_compare",)


def checks_by_device_class(asked: Collection[str], gpu_classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Device class -> the checks to run there, in their fixed order; classes with nothing to do are left out.

    `asked` is empty for all checks. Without any GPU the device comparison is planned for the CPU all the same: the
    probe then says `skipped`, with the reason, which is more than saying nothing.
    """
    wanted = tuple(check for check in CHECKS if not asked or check in asked)
    on_devices = tuple(check for check in wanted if check in _NEEDS_A_DEVICE)
    plan = {CPU_CLASS: tuple(check for check in wanted if not gpu_classes or check not in _NEEDS_A_DEVICE)}
    plan |= dict.fromkeys(gpu_classes, on_devices)
    return {device_class: checks for device_class, checks in plan.items() if checks}
