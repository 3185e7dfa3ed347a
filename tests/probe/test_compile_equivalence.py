"""Compiled against eager execution, run as the worker runs it."""

from __future__ import annotations

import pytest

from tests.probe.conftest import CASES, FIXTURES, Spoken, entry, speak

CHECK = "compile_equivalence"


@pytest.fixture(scope="module")
def spoken() -> Spoken:
    names = ("Plain", "Broken", "Compiling", "Refusing", "Outside", "UpdatesInPlace", "Assigns", "CompilingInEval")
    batch = [entry("module", f"compiled:{name}", checks=[CHECK]) for name in names]
    batch += [
        entry("module", f"compiled:{name}", constructor=f"{name}()", inputs=("torch.rand(3, 4) + 0.5",), checks=[CHECK])
        for name in ("IllConditioned", "SlightlyOff")
    ]
    batch.append(entry("autograd_function", "textbook:Quadratic", checks=[CHECK]))
    return speak(FIXTURES, batch, limits={"inductor_s": 0})


def test_the_same_bits_pass_and_say_that_inductor_did_not_run(spoken: Spoken) -> None:
    result = spoken.result("Plain", CHECK)
    assert result["verdict"] == "pass", result
    assert "bitwise equal to eager in train mode" in result["summary"]
    assert result["evidence"]["eval"] == "not compiled: it gives the same bits as train mode"
    assert "inductor not run: 0 s are left" in result["summary"]
    assert result["evidence"]["aot_eager train"]["graphs"] >= 1


def test_a_custom_function_is_compiled_as_well(spoken: Spoken) -> None:
    assert spoken.result("Quadratic", CHECK)["verdict"] == "pass"


def test_graph_breaks_are_listed_with_their_submitted_lines(spoken: Spoken) -> None:
    result = spoken.result("Broken", CHECK)
    assert result["verdict"] == "pass", result
    breaks = result["evidence"]["graph_breaks"]
    source = (FIXTURES / "compiled.py").read_text(encoding="utf-8").splitlines()
    lines = [place for item in breaks for place in item["lines"]]
    assert any("print(" in source[int(place.rpartition(":")[2]) - 1] for place in lines), breaks


def test_another_result_under_compile_fails(spoken: Spoken) -> None:
    result = spoken.result("Compiling", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "compile_differs")


def test_a_rounding_that_eager_magnifies_as_well_is_no_other_result(spoken: Spoken) -> None:
    result = spoken.result("IllConditioned", CHECK)
    assert result["verdict"] == "pass", result
    assert "as eager does where inputs are off by one unit" in result["evidence"]["rounding"][0]
    assert spoken.result("SlightlyOff", CHECK)["verdict"] == "fail"


def test_a_mode_that_computes_something_else_is_compiled_too(spoken: Spoken) -> None:
    result = spoken.result("CompilingInEval", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "compile_differs")
    assert "eager in eval mode" in result["summary"]


def test_an_error_that_only_compiled_code_raises_fails_at_its_line(spoken: Spoken) -> None:
    result = spoken.result("Refusing", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "compile_raises"), result
    source = (FIXTURES / "compiled.py").read_text(encoding="utf-8").splitlines()
    assert "reshape(7, 13)" in source[result["line"] - 1]


def test_a_buffer_that_compiled_backward_reads_after_its_update_is_named_with_its_line(spoken: Spoken) -> None:
    # pytorch pull request 197039 describes it; live in torch 2.13.
    result = spoken.result("UpdatesInPlace", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("fail", "buffer_read_after_update"), result
    source = (FIXTURES / "compiled.py").read_text(encoding="utf-8").splitlines()
    assert source[result["line"] - 1].endswith("# LINE UpdatesInPlace")
    assert spoken.result("Assigns", CHECK)["verdict"] == "pass"


def test_nothing_captured_is_never_a_pass(spoken: Spoken) -> None:
    result = spoken.result("Outside", CHECK)
    assert (result["verdict"], result["diagnosis"]["cause"]) == ("inconclusive", "nothing_compiled")


def test_a_custom_backward_that_compile_drops_is_found() -> None:
    # pytorch issue 193279, live in torch 2.13: func.grad inside a compiled region ignores the Function's backward.
    batch = [entry("module", "case_202:LatticeForceField", checks=[CHECK])]
    assert speak(CASES, batch).result("LatticeForceField", CHECK)["verdict"] == "fail"


def test_inductor_is_judged_against_float64() -> None:
    spoken = speak(FIXTURES, [entry("module", "compiled:Plain", checks=[CHECK])], limits={"inductor_s": 240})
    result = spoken.result("Plain", CHECK)
    assert result["verdict"] == "pass", result
    assert "inductor agrees" in result["summary"]
    assert result["evidence"]["inductor_s"] > 0
