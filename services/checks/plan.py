"""Which checks run on which class of device. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from services.jobs.model import CPU_CLASS

# In the order of running: what tells most in a second of a target comes first (what each costs stands in its class).
CHECKS = (
    "gradcheck",
    "gradgradcheck",
    "nan_gradient",
    "finding_search",
    "eval_side_effects",
    "state_dict",
    "gradient_flow",
    "batch_consistency",
    "training_step",
    "checkpoint_equivalence",
    "accumulation_equivalence",
    "memory",
    "hvp",
    "autocast",
    "export_equivalence",
    "ddp_consistency",
    "portrait",
    "compile_equivalence",
    "device_compare",
)
# What judges nothing, and is long: it is run where somebody asks for it.
_ON_REQUEST = ("portrait",)
BY_DEFAULT = tuple(check for check in CHECKS if check not in _ON_REQUEST)
# The analysis had no time left for a target, which was never begun: a reason for not running, as the probe's are.
BUDGET_SPENT = "budget spent"
# The reasons that say of a target that nobody tried it.
NOT_BEGUN = (BUDGET_SPENT, "cancelled", "not found")
_NEEDS_A_DEVICE = ("device_compare",)


def checks_by_device_class(asked: Collection[str], gpu_classes: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Device class -> the checks to run there, in their fixed order; classes with nothing to do are left out.

    `asked` is empty for all that run by default. Without any GPU the device comparison is planned for the CPU all the
    same: the probe then looks at placement, or says `skipped` with the reason, which is more than saying nothing.
    """
    wanted = tuple(check for check in CHECKS if check in (asked or BY_DEFAULT))
    on_devices = tuple(check for check in wanted if check in _NEEDS_A_DEVICE)
    plan = {CPU_CLASS: tuple(check for check in wanted if not gpu_classes or check not in _NEEDS_A_DEVICE)}
    plan |= dict.fromkeys(gpu_classes, on_devices)
    return {device_class: checks for device_class, checks in plan.items() if checks}
