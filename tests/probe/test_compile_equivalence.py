"""Compiled against eager execution, run as the worker runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

CHECK = "compile_equivalence"
MORE = ("Cached", "SnappedForces", "Branching", "DrawingOtherwise")
SOURCE = (FIXTURES / "compiled.py").read_text(encoding="utf-8").splitlines()


def line(name: str) -> int:
    return next(number for number, text in enumerate(SOURCE, 1) if text.endswith(f"# LINE {name}"))


def suspected(name: str, rule: str, method: str, **said: Any) -> dict[str, Any]:
    """What the service sends of a finding at the marked line."""
    text = SOURCE[line(name) - 1].partition("  # LINE")[0]
    return {
        "rule": rule,
        "fingerprint": f"print-{name}",
        "path": "compiled.py",
        "symbol": f"compiled.{name}.{method}",
        "severity": "warning",
        "line": line(name),
        "end_line": line(name),
        "start_column": len(text) - len(text.lstrip()) + 1,
        "end_column": len(text) + 1,
        **said,
    }


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    names = ("Plain", "Broken", "Compiling", "Refusing", "Outside", "UpdatesInPlace", "Assigns", "CompilingInEval")
    batch = [entry("module", f"compiled:{name}", checks=[CHECK]) for name in (*names, *MORE)]
    batch += [
        entry("module", f"compiled:{name}", constructor=f"{name}()", inputs=(inputs,), checks=[CHECK])
        for name, inputs in (
            ("IllConditioned", "torch.rand(3, 4) + 0.5"),
            ("SlightlyOff", "torch.rand(3, 4) + 0.5"),
            ("DropsPaths", "torch.randn(8, 4)"),
            ("DropsApart", "torch.randn(8, 4)"),
            ("Overlapping", "torch.randn(2, 10)"),
            ("Counts", "torch.randn(3, 4)"),
            ("CountsOnce", "torch.randn(3, 4)"),
        )
    ]
    for name in ("HookedLate", "HookedWhole"):
        hooked = entry("module", f"compiled:{name}", checks=[CHECK])
        hooked["hypotheses"] = [suspected(name, "GP511", "tap")]
        batch.append(hooked)
    next(item for item in batch if item["job"] == "Assigns")["hypotheses"] = [
        suspected("Assigns", rule, "forward", fingerprint=rule) for rule in ("GP512", "GP514")
    ]
    batch.append(entry("autograd_function", "textbook:Quadratic", checks=[CHECK]))
    batch.append(entry("autograd_function", "compiled:Snap", checks=[CHECK], inputs=("torch.randn(3, 4)",)))
    return speak(FIXTURES, batch, limits={"inductor_s": 0})


def failed(spoken: Spoken, name: str) -> tuple[str, str, int]:
    result = spoken.result(name, CHECK)
    assert result["diagnosis"] is not None, result
    return result["verdict"], result["diagnosis"]["cause"], result["line"]


def test_the_same_bits_pass_and_say_that_inductor_did_not_run(spoken: Spoken) -> None:
    result = spoken.result("Plain", CHECK)
    assert result["verdict"] == "pass", result
    assert "bitwise equal to eager in train mode" in result["summary"]
    assert result["evidence"]["eval"] == "not compiled: it gives the same bits as train mode"
    assert "inductor not run: 0 s are left" in result["summary"]
    assert result["evidence"]["aot_eager train"]["graphs"] >= 1
    (units,) = result["evidence"]["units_apart"]
    assert (units["compared"], units["against"], units["dtype"]) == ("compiled (aot_eager)", "eager", "float32")
    assert units["buckets"] == [{"up_to": 0, "elements": units["elements"], "beyond": 0}]
    assert units["elements"] > 0


def test_a_custom_function_is_compiled_as_well(spoken: Spoken) -> None:
    assert spoken.result("Quadratic", CHECK)["verdict"] == "pass"


def test_graph_breaks_are_listed_with_their_submitted_lines(spoken: Spoken) -> None:
    result = spoken.result("Broken", CHECK)
    assert result["verdict"] == "pass", result
    breaks = result["evidence"]["graph_breaks"]
    lines = [place for item in breaks for place in item["lines"]]
    assert any("print(" in SOURCE[int(place.rpartition(":")[2]) - 1] for place in lines), breaks
    (branch,) = spoken.result("Branching", CHECK)["evidence"]["graph_breaks"]
    assert branch["lines"] == [f"compiled.py:{line('Branching')}"], branch


def test_code_that_asks_whether_it_is_compiled_fails_where_it_asks(spoken: Spoken) -> None:
    verdict, cause, at = failed(spoken, "Compiling")
    assert (verdict, cause) == ("fail", "asks_whether_compiled")
    assert "is_compiling()" in SOURCE[at - 1]
    # Two draws of the same noise are no fault that two runs could show.
    assert failed(spoken, "DrawingOtherwise")[:2] == ("inconclusive", "asks_whether_compiled")


def test_a_value_that_dynamo_computes_otherwise_is_found_at_its_line(spoken: Spoken) -> None:
    assert failed(spoken, "Cached") == ("fail", "compile_differs", line("Cached"))
    result = spoken.result("Cached", CHECK)
    assert result["diagnosis"]["numbers"]["operation"] == "mul"
    units = result["evidence"]["units_apart"]
    assert [item["compared"] for item in units] == ["compiled (aot_eager)", "compiled (eager)"]
    assert units[0]["largest"] > 2**20
    assert units[0]["percent_beyond"] > 1


def test_a_rounding_that_eager_magnifies_as_well_is_no_other_result(spoken: Spoken) -> None:
    result = spoken.result("IllConditioned", CHECK)
    assert result["verdict"] == "pass", result
    assert "as eager does where inputs are off by one unit" in result["evidence"]["rounding"][0]
    assert spoken.result("SlightlyOff", CHECK)["verdict"] == "fail"


def test_a_mode_that_computes_something_else_is_compiled_too(spoken: Spoken) -> None:
    assert failed(spoken, "CompilingInEval")[:2] == ("fail", "asks_whether_compiled")
    assert "eager in eval mode" in spoken.result("CompilingInEval", CHECK)["summary"]


def test_an_error_that_only_compiled_code_raises_fails_at_its_line(spoken: Spoken) -> None:
    verdict, cause, at = failed(spoken, "Refusing")
    assert (verdict, cause) == ("fail", "compile_raises")
    assert "reshape(7, 13)" in SOURCE[at - 1]


def test_a_write_to_memory_that_elements_share_fails_at_its_line(spoken: Spoken) -> None:
    assert failed(spoken, "Overlapping") == ("fail", "overlapping_write", line("Overlapping"))


def test_a_buffer_that_compiled_backward_reads_after_its_update_is_named_with_its_line(spoken: Spoken) -> None:
    # pytorch pull request 197039 describes it; live in torch 2.13.
    assert failed(spoken, "UpdatesInPlace") == ("fail", "buffer_read_after_update", line("UpdatesInPlace"))
    assert spoken.result("Assigns", CHECK)["verdict"] == "pass"


def test_random_numbers_that_compiled_code_draws_once_for_two_are_named_with_their_line(spoken: Spoken) -> None:
    assert failed(spoken, "DropsPaths") == ("fail", "random_numbers_shared", line("DropsPaths"))
    assert spoken.result("DropsApart", CHECK)["verdict"] == "pass"


def test_calls_that_are_each_compiled_anew_are_told_with_guard_and_line(spoken: Spoken) -> None:
    assert failed(spoken, "Counts") == ("fail", "recompiles_at_each_call", line("Counts"))
    again = spoken.result("Counts", CHECK)["evidence"]["recompilations"]
    assert [item["call"] for item in again] == [2, 3, 4]
    assert again[0]["guard"].startswith("self.seen == ")
    assert spoken.result("CountsOnce", CHECK)["verdict"] == "pass"


def test_a_hook_that_a_compiled_module_never_runs_confirms_the_finding(spoken: Spoken) -> None:
    assert failed(spoken, "HookedLate") == ("fail", "hook_after_compile", line("HookedLate"))
    assert [item["outcome"] for item in spoken.result("HookedLate", CHECK)["evidence"]["hypotheses"]] == ["confirmed"]
    result = spoken.result("HookedWhole", CHECK)
    assert (result["verdict"], result["evidence"]["hypotheses"][0]["outcome"]) == ("pass", "not_reproduced"), result


def test_what_ran_and_is_right_refutes_a_finding_and_what_did_not_run_does_not(spoken: Spoken) -> None:
    settled = spoken.result("Assigns", CHECK)["evidence"]["hypotheses"]
    assert {item["rule"]: item["outcome"] for item in settled} == {"GP512": "not_reproduced", "GP514": "not_reached"}
    assert "inductor not run" in next(item["text"] for item in settled if item["rule"] == "GP514")


def test_nothing_captured_is_never_a_pass(spoken: Spoken) -> None:
    assert failed(spoken, "Outside")[:2] == ("inconclusive", "nothing_compiled")


def test_a_custom_backward_that_compile_drops_is_found_where_it_is_applied(spoken: Spoken) -> None:
    # pytorch issue 193279, live in torch 2.13: func.grad inside a compiled region ignores the Function's backward.
    assert failed(spoken, "SnappedForces") == ("fail", "custom_backward_dropped", line("SnappedForces"))
    # The Function itself, in a repository that uses torch.func somewhere.
    assert failed(spoken, "Snap")[:2] == ("fail", "custom_backward_dropped")


@pytest.fixture
def alone(tmp_path: Path) -> Callable[..., Path]:
    """A repository with nothing but these classes, and no word of compiling."""

    def make(*names: str) -> Path:
        text = "\n".join(SOURCE)
        parts = [f"class {part}" for part in text.split("\nclass ")[1:]]
        kept = [part for part in parts if part.split("(")[0].removeprefix("class ") in names]
        assert len(kept) == len(names)
        (tmp_path / "alone.py").write_text(
            "import torch\nfrom torch import nn\n\n\n" + "\n".join(kept), encoding="utf-8"
        )
        return tmp_path

    return make


def test_a_fault_of_the_compiler_does_not_fail_where_nobody_compiles(alone: Callable[..., Path]) -> None:
    batch = [
        entry("module", "alone:UpdatesInPlace", checks=[CHECK]),
        entry("module", "alone:Counts", checks=[CHECK], constructor="Counts()", inputs=("torch.randn(3, 4)",)),
        entry("autograd_function", "alone:Snap", checks=[CHECK], inputs=("torch.randn(3, 4)",)),
        entry("autograd_function", "alone:Twice", checks=[CHECK], inputs=("torch.randn(3, 4)",)),
    ]
    spoken = speak(alone("UpdatesInPlace", "Counts", "Snap", "Twice"), batch)
    assert failed(spoken, "UpdatesInPlace")[:2] == ("inconclusive", "buffer_read_after_update")
    assert "Nothing in this repository uses torch.compile" in spoken.result("UpdatesInPlace", CHECK)["summary"]
    assert spoken.result("Counts", CHECK)["verdict"] == "pass"
    assert len(spoken.result("Counts", CHECK)["evidence"]["recompilations"]) == 3
    assert spoken.result("Snap", CHECK)["verdict"] == "pass"
    assert "drops its backward" in spoken.result("Snap", CHECK)["evidence"]["under torch.func.vjp"]
    assert spoken.result("Twice", CHECK)["evidence"]["under torch.func.vjp"].startswith("the same")


def test_inductor_is_judged_against_float64() -> None:
    half = ("torch.full((3, 5), 1e-5, dtype=torch.float16)",)
    batch = [
        entry("module", "compiled:Plain", checks=[CHECK]),
        entry("module", "compiled:HalfFloor", checks=[CHECK], constructor="HalfFloor()", inputs=half),
    ]
    spoken = speak(FIXTURES, batch, limits={"inductor_s": 240})
    result = spoken.result("Plain", CHECK)
    assert result["verdict"] == "pass", result
    assert "inductor agrees" in result["summary"]
    assert result["evidence"]["inductor_s"] > 0
    captured, generated = result["evidence"]["units_apart"]
    assert (captured["compared"], generated["compared"]) == ("compiled (aot_eager)", "compiled (inductor)")
    assert captured["largest"] == 0
    assert generated["largest"] < 2**12  # 64 measured
    assert generated["percent_beyond"] == 0
    # Here it is eager that is far from the reference.
    assert failed(spoken, "HalfFloor") == ("fail", "eager_not_finite", line("HalfFloor"))
    (_, generated) = spoken.result("HalfFloor", CHECK)["evidence"]["units_apart"]
    assert (generated["dtype"], generated["not_finite"]) == ("float16", 15)
