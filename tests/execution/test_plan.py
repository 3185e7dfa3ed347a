"""The checks that a service plans are the ones that its probe has."""

from __future__ import annotations

from gradproof_probe.checks import ALL_CHECKS

from services.checks.documentation import all_checks
from services.checks.plan import BY_DEFAULT, CHECKS, checks_by_device_class


def test_every_check_of_the_probe_is_planned_and_documented_in_its_order() -> None:
    names = tuple(check.name for check in ALL_CHECKS)
    assert names == CHECKS
    assert tuple(check.name for check in all_checks()) == CHECKS


def test_what_is_not_asked_for_is_not_planned() -> None:
    assert checks_by_device_class((), []) == {"cpu": BY_DEFAULT}
    assert "portrait" not in BY_DEFAULT
    assert checks_by_device_class(("portrait",), []) == {"cpu": ("portrait",)}
    assert checks_by_device_class(("nan_gradient",), ["h200"]) == {"cpu": ("nan_gradient",)}
