"""Another device against the CPU: the whole path on a simulated one, and never a comparison without one."""

from __future__ import annotations

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

CHECK = "device_compare"
BATCH = [entry("module", f"devices:{name}", checks=[CHECK]) for name in ("Whole", "LeftBehind")]


@pytest.fixture(scope="module")
def healthy() -> Spoken:
    return speak(FIXTURES, BATCH, device="sim")


def test_a_healthy_device_passes_under_its_own_name(healthy: Spoken) -> None:
    result = healthy.result("Whole", CHECK)
    assert (result["verdict"], result["device"]) == ("pass", "simulated"), result
    assert healthy.lines[0]["devices"] == ["cpu", "simulated"]


def test_random_numbers_move_the_comparison_to_eval_mode(healthy: Spoken) -> None:
    assert healthy.result("Whole", CHECK)["evidence"]["mode"] == "eval"


def test_a_tensor_left_on_the_cpu_fails_at_the_line_that_meets_it(healthy: Spoken) -> None:
    result = healthy.result("LeftBehind", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "device_placement")
    source = (FIXTURES / "devices.py").read_text(encoding="utf-8").splitlines()
    assert "self.net(x) * self.scale" in source[result["line"] - 1]


def test_rounding_as_tf32_does_is_explained_and_passes() -> None:
    spoken = speak(FIXTURES, BATCH[:1], device="sim", environment={"GRADPROOF_SIMULATED_FAULT": "tf32"})
    result = spoken.result("Whole", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("pass", "tf32"), result
    assert result["evidence"]["worst"]["device_error"] > 1e-5


def test_a_wrong_kernel_fails() -> None:
    spoken = speak(FIXTURES, BATCH[:1], device="sim", environment={"GRADPROOF_SIMULATED_FAULT": "kernel"})
    result = spoken.result("Whole", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "device_differs"), result


def test_the_cpu_is_never_compared_with_itself() -> None:
    result = speak(FIXTURES, BATCH[:1]).result("Whole", CHECK)
    assert result["verdict"] == "skipped"
    assert "no device to compare the CPU with" in result["summary"]


def test_cuda_without_a_device_is_skipped_with_the_reason() -> None:
    spoken = speak(FIXTURES, BATCH[:1], device="cuda", environment={"CUDA_VISIBLE_DEVICES": ""})
    result = spoken.result("Whole", CHECK)
    assert (result["verdict"], result["device"]) == ("skipped", "cuda")
    assert "no CUDA device is visible" in result["summary"]
