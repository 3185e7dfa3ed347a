"""Where no argument would help, the reason says so: not installed, left to subclasses, nothing to differentiate."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from types import ModuleType
from typing import Any

import pytest
from gradproof_probe.harness.synthesis import find_recipe
from gradproof_probe.harness.wanted_files import wants_file
from gradproof_probe.importing import NotRunnableError, Resolved, import_target
from gradproof_probe.offline import go_offline
from gradproof_probe.request import Target

from tests.probe.conftest import FIXTURES


@pytest.fixture(scope="module")
def module() -> ModuleType:
    sys.path.insert(0, str(FIXTURES))
    try:
        return importlib.import_module("refusing")
    finally:
        sys.path.remove(str(FIXTURES))


def refused(module: ModuleType, name: str) -> NotRunnableError:
    value = getattr(module, name)
    kind: Any = "module" if isinstance(value, type) else "function"
    target = Target(f"refusing:{name}", kind, "refusing.py", 1, "", "refusing", name)
    with pytest.raises(NotRunnableError) as caught:
        find_recipe(Resolved(target, module, value), None, seed=0, deadline=time.monotonic() + 60)
    return caught.value


def test_a_name_that_a_failed_import_would_have_bound_names_the_package(module: ModuleType) -> None:
    error = refused(module, "needs_optional")
    assert error.reason == "missing dependency"
    assert "not_installed_anywhere" in error.detail


def test_what_only_a_subclass_has_is_left_abstract(module: ModuleType) -> None:
    assert refused(module, "Generic").reason == "abstract"


def test_what_no_class_has_is_no_abstract_class(module: ModuleType) -> None:
    assert refused(module, "Forgetful").reason == "inputs unsolved"


@pytest.mark.parametrize("name", ["through_numpy", "scheduled"])
def test_what_leaves_torch_has_nothing_to_differentiate(module: ModuleType, name: str) -> None:
    assert refused(module, name).reason == "no differentiable output"


def test_a_method_of_its_own_that_only_raises_is_left_to_subclasses(module: ModuleType) -> None:
    assert refused(module, "Unwritten").reason == "abstract"


def test_a_call_that_is_not_implemented_for_these_values_is_unsolved(module: ModuleType) -> None:
    assert refused(module, "Choosy").reason == "inputs unsolved"


def test_a_forward_that_only_hands_on_to_none_is_no_forward(module: ModuleType) -> None:
    assert refused(module, "Trained").reason == "no forward"


def test_a_name_that_none_stands_in_for_names_the_package(module: ModuleType) -> None:
    error = refused(module, "Tokenised")
    assert error.reason == "missing dependency"
    assert "not_installed_anywhere.Tokens" in error.detail


def test_a_base_that_object_stands_in_for_names_the_package(module: ModuleType) -> None:
    target = Target("refusing:Derived", "module", "refusing.py", 1, "", "refusing", "Derived")
    with pytest.raises(NotRunnableError) as caught:
        import_target(FIXTURES, target)
    assert caught.value.reason == "missing dependency"
    assert "not_installed_anywhere.Pretrained is a base of Derived" in caught.value.detail


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("FromFile", "weights.bin"),
        ("FromCheckedFile", "AssertionError"),
        ("Downloaded", "LocalEntryNotFoundError"),
        ("from_file", "give me another"),
    ],
)
def test_what_ends_at_a_file_that_is_not_there_needs_files(module: ModuleType, name: str, asked: str) -> None:
    error = refused(module, name)
    assert error.reason == "needs files"
    assert asked in error.detail


def test_a_file_that_can_be_left_out_is_left_out(module: ModuleType) -> None:
    target = Target("refusing:FromOptionalFile", "module", "refusing.py", 1, "", "refusing", "FromOptionalFile")
    found = find_recipe(Resolved(target, module, module.FromOptionalFile), None, seed=0, deadline=time.monotonic() + 60)
    assert found.constructor is not None


def test_a_download_is_refused_at_once_and_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, getattr(socket, name))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    go_offline()
    with pytest.raises(urllib.error.URLError) as caught:
        urllib.request.urlopen("http://example.invalid/weights.bin")
    assert wants_file(caught.value)
