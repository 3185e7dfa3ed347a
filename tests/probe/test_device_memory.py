"""Memory of a device that does not suffice is an error of the surroundings, however it is told."""

from __future__ import annotations

import json

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

CHECK = "device_compare"
SHORT = ("Large", "WrapsItUp", "AsksTheLibrary", "LaterOnly")


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    batch = [
        entry("module", f"device_memory:{name}", checks=[CHECK], inputs=["torch.randn(3, 4)"], constructor=f"{name}()")
        for name in (*SHORT, "RaisesForAnotherReason")
    ]
    whole = {
        "protocol": 1, "source_root": str(FIXTURES), "device": "sim", "device_memory": 2**30, "isolated": False,
        "batch": batch,
    }  # fmt: skip
    return speak(FIXTURES, batch, request=json.dumps(whole).encode())


@pytest.mark.parametrize("name", SHORT)
def test_too_little_memory_is_no_fault_of_the_code(spoken: Spoken, name: str) -> None:
    result = spoken.result(name, CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("error", "out_of_memory"), result
    assert "a check may take 1 GiB of it" in result["summary"]


def test_another_error_on_the_device_is_still_told_as_that(spoken: Spoken) -> None:
    result = spoken.result("RaisesForAnotherReason", CHECK)
    assert result["diagnosis"]["cause"] == "device_raises", result
