"""`gradproof check` runs code: in the sandbox, with honest words for whatever becomes of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import structlog

from api.cli.main import run
from tests import hostile

SCALED = """import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output * weight, 2 * grad_output * x
"""

SINGULAR = """import torch


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class Similarity(torch.nn.Module):
    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return _unit(query) @ _unit(key).transpose(-2, -1)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    return place


def report_of(directory: Path, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["check", str(directory), "--format", "json", *arguments])
    return code, json.loads(capfd.readouterr().out)


def test_a_wrong_backward_is_found_at_its_line(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (directory / "ops.py").write_text(SCALED)
    code, report = report_of(directory, capfd, "--checks", "gradcheck")
    assert code == 1
    (target,) = report["targets"]
    (check,) = target["checks"]
    assert (check["verdict"], check["path"], check["line"]) == ("fail", "ops.py", 13)
    assert check["diagnosis"]["cause"] == "scaled_gradient"
    assert report["tool"]["sandbox"] in ("bwrap-root", "bwrap-user")


def test_what_is_logged_on_the_way_does_not_get_into_the_report(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (directory / "ops.py").write_text(SCALED)
    taken = tmp_path / "taken"
    taken.write_text("no directory")
    monkeypatch.setenv("GRADPROOF_COMPILED_HEADERS_HOME", str(taken))
    structlog.reset_defaults()  # as in a process of its own: what nobody set up writes to stdout
    code, report = report_of(directory, capfd, "--checks", "gradcheck,compile_equivalence")
    assert code == 1
    assert {check["check"] for check in report["targets"][0]["checks"]} == {"gradcheck", "compile_equivalence"}


def test_a_search_confirms_a_finding_in_a_helper_with_the_input_that_shows_it(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "layers.py").write_text(SINGULAR)
    code, report = report_of(directory, capfd, "--checks", "nan_gradient")
    assert code == 1
    (finding,) = report["findings"]
    assert (finding["rule"], finding["start_line"], finding["verdict"]) == ("GP102", 5, "confirmed")
    assert "row of zeros" in finding["evidence"]["input"]
    assert finding["evidence"]["birth"] == "nan in div, layers.py:5"
    (check,) = report["targets"][0]["checks"]
    assert (check["verdict"], check["path"], check["line"]) == ("fail", "layers.py", 5)


def test_without_a_sandbox_only_when_asked_for_and_the_report_says_so(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "ops.py").write_text(SCALED.replace("2 * grad_output * x", "grad_output * x"))
    code, report = report_of(directory, capfd, "--checks", "gradcheck", "--no-sandbox")
    assert code == 0
    assert report["tool"]["sandbox"] == "off"
    assert report["targets"][0]["checks"][0]["verdict"] == "pass"


def test_a_device_that_is_not_there_is_skipped_and_never_passed(
    directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (directory / "ops.py").write_text(SCALED)
    _, report = report_of(directory, capfd, "--checks", "device_compare")
    (check,) = report["targets"][0]["checks"]
    assert check["verdict"] == "skipped"
    assert "no device" in check["summary"]


def said_of(report: dict[str, Any]) -> dict[str, str]:
    """By module: why its target was not run, and what its checks say."""
    return {
        target["path"].removesuffix(".py"): " ".join(
            [str(target["not_run_reason"]), target["not_run_detail"], *(each["summary"] for each in target["checks"])]
        )
        for target in report["targets"]
    }


def other_words(said: dict[str, str], modules: Collection[str]) -> dict[str, str]:
    """Of these modules, those of which something else is said than what is expected."""
    return {
        module: said[module] for module in modules if not any(word in said[module] for word in hostile.EXPECTED[module])
    }


def test_hostile_modules_end_in_words_and_the_right_one_beside_them_is_checked(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADPROOF_SANDBOX_MEMORY", str(1 << 30))
    for path, text in hostile.files().items():
        if path.removesuffix(".py") not in hostile.ENDLESS:
            (directory / path).write_text(text)
    _, report = report_of(directory, capfd, "--checks", "gradcheck")
    assert not other_words(said_of(report), hostile.EXPECTED.keys() - hostile.ENDLESS)
    (right,) = (target for target in report["targets"] if target["path"] == "right.py")
    assert [check["verdict"] for check in right["checks"]] == ["pass"]


def test_modules_that_never_end_are_stopped_by_a_limit(
    directory: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Apart from the others: a limit that is short enough to be waited for cuts off what a busy machine is slow with.
    for name, value in {"CHECK_WALL": "4", "TARGET_WALL": "4", "SANDBOX_MEMORY": str(1 << 30)}.items():
        monkeypatch.setenv(f"GRADPROOF_{name}", value)
    for module in hostile.ENDLESS:
        (directory / f"{module}.py").write_text(hostile.files()[f"{module}.py"])
    _, report = report_of(directory, capfd, "--checks", "gradcheck")
    assert not other_words(said_of(report), hostile.ENDLESS)


def test_what_has_not_changed_is_not_run_again(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (directory / "kept.py").write_text(SCALED)
    (directory / "changed.py").write_text(SINGULAR)
    _, first = report_of(directory, capfd, "--checks", "gradcheck")
    _, second = report_of(directory, capfd, "--checks", "gradcheck")
    assert first["tool"]["torch_imports"] >= 1
    assert second["tool"]["torch_imports"] == 0
    assert first["analysis"]["peak_memory_bytes"] > 100 * 2**20
    assert second["analysis"]["peak_memory_bytes"] is None
    assert [target["reused"] for target in second["targets"]] == [True, True]
    told = [{**target, "reused": False, "duration_s": None} for target in first["targets"]]
    assert [{**target, "reused": False, "duration_s": None} for target in second["targets"]] == told
    assert all(target["duration_s"] > 0 for target in first["targets"])
    assert second["findings"] == first["findings"]

    (directory / "changed.py").write_text(SINGULAR.replace("-2, -1", "-1, -2"))
    _, third = report_of(directory, capfd, "--checks", "gradcheck")
    assert {target["path"]: target["reused"] for target in third["targets"]} == {"changed.py": False, "kept.py": True}

    _, fourth = report_of(directory, capfd, "--checks", "gradcheck", "--no-cache")
    assert [target["reused"] for target in fourth["targets"]] == [False, False]
