"""A package of which one third-party module is missing: what doesn't need it is checked, what needs it says so."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from gradproof_probe.missing_modules import StandIns

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

NAMES = ("Net", "Needs", "Inherits", "InheritsBeside", "PassesOver")


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    batch = [entry("module", f"package.net:{name}") for name in NAMES]
    return speak(FIXTURES / "incomplete", batch)


def test_a_module_that_does_not_need_it_is_checked(spoken: Spoken) -> None:
    assert spoken.result("Net")["verdict"] == "pass"


def test_the_provenance_names_what_was_only_a_stand_in_and_leaves_optional_modules_absent(spoken: Spoken) -> None:
    provenance = spoken.harness("Net")["provenance"]
    assert "absent_compiler, absent_transforms" in provenance
    assert "absent_option" not in provenance


def test_a_module_that_needs_it_is_not_run_and_names_it(spoken: Spoken) -> None:
    not_run = spoken.not_run("Needs")
    assert not_run["reason"] == "missing dependency"
    assert "absent_transforms is not installed" in not_run["detail"]


@pytest.mark.parametrize("name", ["Inherits", "InheritsBeside"])
def test_a_class_that_is_made_of_it_is_not_run_and_names_it(spoken: Spoken, name: str) -> None:
    not_run = spoken.not_run(name)
    assert not_run["reason"] == "missing dependency"
    assert "absent_transforms is not installed, and absent_transforms.functional.Backbone" in not_run["detail"]


def test_a_class_that_only_inherits_beside_it_is_checked(spoken: Spoken) -> None:
    assert spoken.result("PassesOver")["verdict"] == "pass"


def test_a_stand_in_is_newer_than_any_version_that_is_required_and_lies_nowhere() -> None:
    module = StandIns(["absent"]).create_module(ModuleSpec("absent.part", None))
    assert tuple(int(number) for number in module.__version__.split(".")[:2]) >= (2, 0)
    assert not Path(str(module.__file__)).exists()
    assert not hasattr(module, "__wrapped__"), "what looks at objects must not take it for one of another kind"
