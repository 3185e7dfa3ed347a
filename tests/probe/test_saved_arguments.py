"""A number that the harness guessed and the Function saved is the harness's mistake, never the author's fault."""

from __future__ import annotations

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

RIGHT = ("Norm", "Scaled", "Renamed")
WRONG = ("SavesDefault", "SavesAnnotated", "SavesComputed")


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    return speak(
        FIXTURES, [entry("autograd_function", f"saved:{name}") for name in (*RIGHT, *WRONG, "CallsInBackward")]
    )


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_saved_gets_a_tensor_whatever_its_name(spoken: Spoken, name: str) -> None:
    assert spoken.harness(name)["inputs"][1].startswith("torch.randn(")
    assert spoken.result(name)["verdict"] == "pass", spoken.result(name)


@pytest.mark.parametrize("name", WRONG)
def test_a_number_that_the_author_saves_stays_a_fault(spoken: Spoken, name: str) -> None:
    result = spoken.result(name)
    assert result["verdict"] == "fail"
    assert "save_for_backward can only save" in result["summary"]


def test_a_function_of_ours_that_backward_calls_otherwise_is_no_fault(spoken: Spoken) -> None:
    assert spoken.harness("CallsInBackward")["inputs"][0].startswith("lambda")
    assert spoken.result("CallsInBackward")["verdict"] == "pass", spoken.result("CallsInBackward")
