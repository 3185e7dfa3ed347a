"""Another device against the CPU: differences explained or located, on a simulated one, and never a comparison without
one: then only where tensors lie is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from gradproof_probe.checks.device_compare import DeviceCompare

from tests.fixtures.probe import placed as placed_fixture
from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES, ROOT, Spoken, entry, speak

CHECK = "device_compare"
BATCH = [entry("module", f"devices:{name}", checks=[CHECK]) for name in ("Whole", "LeftBehind")]

# -- without a device

FAULTY = {
    "PlainAttribute": "left_behind",
    "ListOfLayers": "left_behind",
    "GlobalTable": "left_behind",
    "CachedMask": "left_behind",
    "Factory": "factory_without_device",
    "Doubled": "factory_without_device",
    "windowed": "factory_without_device",
    "OnlyOnCuda": "factory_without_device",
    "WrittenDevice": "hard_coded_device",
    "FirstDevice": "hard_coded_device",
    "ByNumber": "hard_coded_device",
    "ThroughNumpy": "numpy_round_trip",
    "AsksNumpy": "numpy_round_trip",
    "CpuGenerator": "generator_on_cpu",
    "PlainNoise": "factory_without_device",
}
INNOCENT = (
    *("Buffer", "MovedAtUse", "MovedByApply", "FactoryMoved", "Indexed", "Packed", "Guarded", "ByMachine"),
    *("ChosenDevice", "NumpyAndBack", "as_picture", "CachedByDevice", "Recurrent", "branching"),
    *("ToCurrent", "ByIndex"),
    *("CurrentDevice", "GivenWeight", "PlainFactory", "PlainNumpy", "MadeThere", "Checkpointed", "HiddenTeacher"),
)


ARGUMENTS = {"GivenWeight": "torch.ones(8)", "HiddenTeacher": "nn.Linear(8, 8)"}
ON_CUDA = ("OnlyOnCuda", "FirstDevice", "CurrentDevice", "Guarded", "ByMachine", "ByNumber", "ToCurrent", "ByIndex")


def file_of(name: str) -> str:
    if name.startswith("Plain") and name != "PlainAttribute":
        return "placed_nowhere"
    return "placed_on_cuda" if name in ON_CUDA else "placed"


def placed_entry(name: str) -> dict[str, Any]:
    inputs = ["torch.randn(3, 5, 8)" if name == "Packed" else "torch.randn(3, 8)"]
    is_module = name[0].isupper()
    constructor = f"{name}({ARGUMENTS.get(name, '')})" if is_module else None
    kind = "module" if is_module else "function"
    return entry(kind, f"{file_of(name)}:{name}", checks=[CHECK], inputs=inputs, constructor=constructor)


@pytest.fixture(scope="module")
def placed() -> Spoken:
    return speak(FIXTURES, [placed_entry(name) for name in (*FAULTY, *INNOCENT)])


@pytest.mark.parametrize("name", FAULTY)
def test_a_tensor_that_stays_on_the_cpu_fails_where_it_comes_from(placed: Spoken, name: str) -> None:
    result = placed.result(name, CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", FAULTY[name]), result
    source = (FIXTURES / f"{file_of(name)}.py").read_text(encoding="utf-8").splitlines()
    assert source[result["line"] - 1].endswith(f"# FAULT {name}"), result


@pytest.mark.parametrize("name", INNOCENT)
def test_what_is_moved_or_meant_stays_silent_and_is_called_no_comparison(placed: Spoken, name: str) -> None:
    result = placed.result(name, CHECK)
    assert (result["verdict"], result["device"]) == ("skipped", "cpu"), result
    assert "no device to compare the CPU with" in result["summary"]


@pytest.mark.parametrize("name", ["MadeThere", "Checkpointed", "Packed"])
def test_ordinary_code_runs_to_its_end_on_the_simulated_device(placed: Spoken, name: str) -> None:
    evidence = placed.result(name, CHECK)["evidence"]
    assert evidence["looked"] == ["the simulated device (forward and backward)"], evidence


def test_the_summary_says_what_was_looked_at(placed: Spoken) -> None:
    result = placed.result("Buffer", CHECK)
    assert "only placement was looked at, nothing wrong found" in result["summary"]
    assert "the simulated device (forward and backward)" in result["evidence"]["looked"]


def test_a_file_that_speaks_of_no_device_is_told_what_it_would_take(placed: Spoken) -> None:
    result = placed.result("PlainFactory", CHECK)
    assert "arange at line 10 is given no device" in result["summary"]
    assert result["evidence"]["noted"] == ["placed_nowhere.py:10 factory_without_device"]


@pytest.mark.parametrize(("source", "verdict"), [("declared", "fail"), ("synthesised", "skipped")])
def test_a_tensor_that_was_guessed_for_a_number_is_not_held_against_a_factory(source: Any, verdict: str) -> None:
    inputs = ["8", "offset=torch.rand(9, dtype=torch.float64)"]
    result = run_check(DeviceCompare(), placed_fixture.schedule, inputs, source=source)
    assert result.verdict == verdict, result
    assert "linspace at line" in result.summary


# -- with one


@pytest.fixture(scope="module")
def healthy() -> Spoken:
    return speak(FIXTURES, BATCH, device="sim")


def test_a_healthy_device_passes_under_its_own_name(healthy: Spoken) -> None:
    result = healthy.result("Whole", CHECK)
    assert (result["verdict"], result["device"]) == ("pass", "simulated"), result
    assert healthy.lines[0]["devices"] == ["cpu", "simulated"]


def test_random_numbers_move_the_comparison_to_eval_mode(healthy: Spoken) -> None:
    assert healthy.result("Whole", CHECK)["evidence"]["mode"] == "eval"


def test_the_device_has_to_have_been_used(healthy: Spoken) -> None:
    assert healthy.result("Whole", CHECK)["evidence"]["operations"] > 10


def test_a_tensor_left_on_the_cpu_fails_at_the_line_that_keeps_it(healthy: Spoken) -> None:
    result = healthy.result("LeftBehind", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "left_behind")
    source = (FIXTURES / "devices.py").read_text(encoding="utf-8").splitlines()
    assert "self.scale = nn.Linear" in source[result["line"] - 1]


def test_cuda_without_a_device_is_skipped_with_the_reason() -> None:
    spoken = speak(FIXTURES, BATCH[:1], device="cuda", environment={"CUDA_VISIBLE_DEVICES": ""})
    result = spoken.result("Whole", CHECK)
    assert (result["verdict"], result["device"]) == ("skipped", "cuda")
    assert "no CUDA device is visible" in result["summary"]


def test_rounding_as_tf32_does_is_explained_and_passes() -> None:
    spoken = speak(FIXTURES, BATCH[:1], device="sim", environment={"GRADPROOF_SIMULATED_FAULT": "tf32"})
    result = spoken.result("Whole", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("pass", "tf32"), result
    assert result["evidence"]["tensors"][0]["device_error"] > 1e-5
    with_tf32, without = result["evidence"]["units_apart"]
    assert (with_tf32["compared"], without["compared"]) == ("simulated", "simulated with TF32 off")
    assert with_tf32["percent_beyond"] > 10
    assert without["percent_beyond"] == 0


# -- kernels


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.probe.judging_devices"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {said["run"]: said for said in map(json.loads, done.stdout.splitlines())}


def line_of(mark: str) -> int:
    source = (FIXTURES / "judged_devices.py").read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(source, 1) if line.endswith(f"# AT {mark}"))


def said(result: dict[str, Any]) -> tuple[str, str | None]:
    return result["verdict"], result["diagnosis"] and result["diagnosis"]["cause"]


@pytest.mark.parametrize("kernels", ["the CPU's own", "split-K order", "1-ulp libm", "order noise (atomics)"])
def test_other_healthy_kernels_pass(judged: dict[str, dict[str, Any]], kernels: str) -> None:
    result = judged[f"Normed with {kernels}"]
    assert said(result) == ("pass", None), result
    (units,) = result["evidence"]["units_apart"]
    assert (units["compared"], units["against"], units["dtype"]) == ("simulated", "the CPU", "float32")
    assert units["percent_beyond"] == 0


def test_fused_recurrent_cells_pass(judged: dict[str, dict[str, Any]]) -> None:
    assert said(judged["Recurrent with the CPU's own"]) == ("pass", None), judged["Recurrent with the CPU's own"]


def test_products_that_cannot_be_had_in_full_are_no_verdict(judged: dict[str, dict[str, Any]]) -> None:
    result = judged["Normed with bfloat16 products"]
    assert said(result) == ("inconclusive", "reduced_precision"), result
    assert result["evidence"]["format"] == "bfloat16"


@pytest.mark.parametrize(
    ("kernels", "operation", "mark"),
    [
        ("layer norm backward without eps", "native_layer_norm_backward in backward", "layer_norm"),
        ("tanh-GELU for GELU", "gelu in forward", "gelu"),
        ("half-precision softmax", "_softmax in forward", "softmax"),
    ],
)
def test_a_wrong_kernel_is_named_with_the_line_that_calls_it(
    judged: dict[str, dict[str, Any]], kernels: str, operation: str, mark: str
) -> None:
    result = judged[f"Normed with {kernels}"]
    assert said(result) == ("fail", "kernel_fault"), result
    assert operation in result["summary"]
    assert result["line"] == line_of(mark)
    (units,) = result["evidence"]["units_apart"]
    assert units["largest"] > 2**16  # as healthy kernels: 1,304 at most
    assert units["percent_beyond"] > 50


def test_code_that_asks_where_it_runs_is_named(judged: dict[str, dict[str, Any]]) -> None:
    result = judged["AsksWhere with the CPU's own"]
    assert said(result) == ("fail", "device_dependent_code"), result
    assert result["line"] == line_of("scale")


def test_equal_values_in_another_order_are_a_tie(judged: dict[str, dict[str, Any]]) -> None:
    assert said(judged["Ranked with the CPU's own"])[0] != "fail"
    result = judged["Ranked with another order of equals"]
    assert result["verdict"] != "fail", result
    assert result["diagnosis"]["cause"] == "tie"


def test_another_choice_between_different_values_is_no_tie(judged: dict[str, dict[str, Any]]) -> None:
    result = judged["RankedValues with the smallest"]
    assert said(result) == ("fail", "kernel_fault"), result
    assert result["line"] == line_of("argmax")


def test_a_difference_below_the_spread_of_the_device_is_not_held_against_it(judged: dict[str, dict[str, Any]]) -> None:
    result = judged["Normed with noise"]
    assert said(result) == ("inconclusive", "nondeterministic"), result
    assert re.search(r"\((addmm|mm)\)", result["summary"])


@pytest.mark.parametrize("run", ["Chaotic", "AmplifiedRounding"])
def test_what_no_device_computes_well_is_not_blamed(judged: dict[str, dict[str, Any]], run: str) -> None:
    assert judged[f"{run} with 1-ulp libm"]["verdict"] in ("inconclusive", "pass")
    assert said(judged["Chaotic with 1-ulp libm"]) == ("inconclusive", "ill_conditioned")


def test_switches_that_the_code_sets_are_noted_and_put_back(judged: dict[str, dict[str, Any]]) -> None:
    result = judged["SwitchesTF32 with the CPU's own"]
    assert any("cuda.matmul" in name for name in result["evidence"]["settings_in_call"])
    assert result["allow_tf32_after"] is False
