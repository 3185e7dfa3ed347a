"""Under autocast: what is a fault there, and what only looks like one."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gradproof_probe.checks.autocast import Autocast
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.training.careful_products import CarefulProducts
from gradproof_probe.training.cuda_autocast import cuda_lists
from gradproof_probe.training.rounding_mode import Rounding

from tests.probe.checking import run_check
from tests.probe.conftest import FIXTURES

X = ("torch.randn(6, 8)",)
PAIR = ("torch.randn(3, 8)", "torch.randn(8, 4)")


def load(path: Path) -> ModuleType:
    """A fixture as a module that can be found by its name."""
    name = f"fixture_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


FILE = FIXTURES / "autocasting.py"


def checked(name: str, inputs: tuple[str, ...] = X, file: Path = FILE) -> CheckResult:
    return run_check(Autocast(), getattr(load(file), name), inputs)


def line_of(name: str, file: Path = FILE) -> int:
    lines = file.read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# LINE {name}"))


def test_a_healthy_network_passes_with_its_errors_by_type() -> None:
    result = checked("Healthy")
    assert result.verdict == "pass", result
    rows = {(row["dtype"], row["of"]): row for row in result.evidence["errors"] if row["inputs"] == "float32"}
    for dtype, largest in (("bfloat16", 5e-2), ("float16", 5e-3)):
        row = rows[(dtype, "output")]
        assert 0 < row["error"] < largest
        assert row["error"] < 3 * row["rounding_alone"]


@pytest.mark.parametrize(
    ("name", "inputs", "cause"),
    [
        ("FilledMask", ("torch.randn(2, 4, 8)",), "does_not_fit"),
        ("Scattered", X, "mixed_dtypes"),
        ("SquaredSum", ("torch.randn(4, 64)",), "not_finite_under_autocast"),
        ("HalfDecorated", PAIR, "unpaired_custom_autocast"),
    ],
)
def test_a_fault_under_autocast_fails_at_its_line(name: str, inputs: tuple[str, ...], cause: str) -> None:
    result = checked(name, inputs)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", cause)
    assert result.line == line_of(name), result.summary


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("FittingMask", ("torch.randn(2, 4, 8)",)),
        ("ScatteredAlike", X),
        ("NormalisedWide", ("torch.randn(2, 3, 2, 2)",)),
        ("SquaredSumWide", ("torch.randn(4, 64)",)),
        ("Paired", PAIR),
        ("IllConditioned", X),
        ("SwitchedOff", X),
        ("Dropping", X),
    ],
)
def test_what_is_right_under_autocast_passes(name: str, inputs: tuple[str, ...]) -> None:
    result = checked(name, inputs)
    assert result.verdict == "pass", result


def test_an_eps_that_float16_loses_is_told_with_its_line_and_no_failure() -> None:
    # Nobody knows whether a pixel of zeros comes here in half precision, and on CUDA the norm is float32.
    result = checked("Normalised", ("torch.randn(2, 3, 2, 2)",))
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("inconclusive", "protection_lost_in_half")
    assert result.line == line_of("Normalised")


def test_another_computation_under_autocast_fails_beyond_rounding() -> None:
    result = checked("OtherUnderAutocast")
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("fail", "differs_under_autocast")
    assert result.diagnosis.numbers["error"] > 10 * result.diagnosis.numbers["rounding_alone"]


def test_where_autocast_casts_nothing_nothing_was_compared() -> None:
    result = checked("Elementwise")
    assert result.verdict == "skipped", result
    assert "half_inputs" not in result.evidence


def test_an_eps_that_half_inputs_lose_is_told_and_no_failure() -> None:
    result = checked("VanishingFloor")
    assert result.verdict == "skipped", result
    assert "too small for float16" in result.evidence["half_inputs"]["float16"]


def test_randomness_in_eval_mode_is_never_a_pass() -> None:
    assert checked("AlwaysDropping").verdict == "inconclusive"


def test_a_function_that_says_nothing_of_autocast_in_a_source_without_any_is_inconclusive() -> None:
    file = FIXTURES / "undecorated" / "functions.py"
    result = checked("Product", PAIR, file)
    assert result.diagnosis is not None, result
    assert (result.verdict, result.diagnosis.cause) == ("inconclusive", "function_without_autocast")
    assert result.line == line_of("Product", file)


def test_the_casts_of_cuda_hold_inside_and_are_gone_after() -> None:
    x, weight = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)

    def types() -> tuple[torch.dtype, torch.dtype, bool]:
        with torch.autocast("cpu", dtype=torch.float16):
            made = x @ weight
            return made.dtype, made.norm(dim=-1).dtype, torch.is_autocast_enabled("cuda")

    outside = types()
    with cuda_lists():
        assert types() == (torch.float16, torch.float32, True)
    assert types() == outside == (torch.float16, torch.float16, False)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
def test_rounding_keeps_the_digits_of_the_type_but_not_its_range(dtype: torch.dtype, unit: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, dtype=torch.float64, generator=generator)
    with Rounding(dtype):
        got: Any = x * 1.0
        small, large = x * 1e-12, x * 1e12
        added = x.clone().add_(1.0)
    torch.testing.assert_close(got, x.to(dtype).to(torch.float64), rtol=0, atol=0)
    wanted = (x.to(dtype).to(torch.float64) + 1).to(dtype).to(torch.float64)
    torch.testing.assert_close(added, wanted, rtol=0, atol=0)
    for made, factor in ((small, 1e-12), (large, 1e12)):
        assert 0 < float((made / (x * factor) - 1).abs().max()) <= unit


@pytest.fixture(params=["wrong", "not finite"])
def faulty_half_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Matrices in bfloat16 are multiplied wrongly on this machine."""

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        found = (a.float().unsqueeze(-1) * b.float().unsqueeze(0)).sum(1) if a.dtype == torch.bfloat16 else None
        if found is None:
            return (a.unsqueeze(-1) * b.unsqueeze(0)).sum(1)
        found[0] = 5 * found[0] if request.param == "wrong" else torch.inf
        return found.to(a.dtype)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is overridden
        library.impl("mm", multiply, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("faulty_half_kernel")
def test_a_half_kernel_of_this_machine_that_is_wrong_is_no_fault_of_the_code() -> None:
    result = checked("Multiplies")
    assert result.verdict == "inconclusive", result
    assert result.diagnosis is not None
    assert result.diagnosis.cause == "half_kernel"


def test_products_in_half_precision_are_those_of_float32_rounded() -> None:
    a, b = torch.randn(9, 33).bfloat16(), torch.randn(33, 5).bfloat16()
    with CarefulProducts():
        found = a @ b
    assert torch.equal(found, (a.float() @ b.float()).bfloat16())
    image, weight = torch.randn(2, 3, 5, 5).half(), torch.randn(4, 3, 3, 3).half().requires_grad_()
    with CarefulProducts():
        output = torch.conv2d(image, weight)
        (gradient,) = torch.autograd.grad(output, weight, torch.ones_like(output))
    exact = weight.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(torch.conv2d(image.float(), exact).sum(), exact)
    assert gradient.dtype == torch.float16
    torch.testing.assert_close(gradient, expected.half())
