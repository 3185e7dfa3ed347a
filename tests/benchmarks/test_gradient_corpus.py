"""The gradient benchmark knows its answers: right Functions are right, wrong ones are wrong where they say so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from benchmarks.gradient import main
from benchmarks.mutants import FORMULA, KINDS, Edit, Kind, Mutant, Right, mutants, rights
from benchmarks.mutants.checkers import Answer, fast, in_fork
from benchmarks.mutants.corpus import candidates, wrong
from benchmarks.mutants.summary import document
from benchmarks.mutants.triggers import pull

BY_NAME = {right.name: right for right in rights()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def apply(right: Right, *arguments: object) -> object:
    given = [value.clone() if right.in_place and isinstance(value, torch.Tensor) else value for value in arguments]
    return right.function.apply(*given)


# gradcheck refuses a sparse gradient of a dense input.
DENSE = [name for name in BY_NAME if name != "SparseEmbedding"]


@pytest.mark.parametrize("name", DENSE)
def test_right_functions_have_right_first_and_second_derivatives(name: str) -> None:
    right = BY_NAME[name]
    assert gradcheck(lambda *values: apply(right, *values), right.inputs(14))
    if not right.once:
        assert gradgradcheck(lambda *values: apply(right, *values), right.inputs(14))


def test_the_sparse_gradient_is_the_dense_one() -> None:
    sparse, dense = BY_NAME["SparseEmbedding"], BY_NAME["EmbeddingLookup"]
    inputs = sparse.inputs(30)
    (found,), (expected,) = (pull(right, right.function, inputs) for right in (sparse, dense))
    assert found is not None
    assert found.is_sparse
    assert expected is not None
    torch.testing.assert_close(found.to_dense(), expected)


@pytest.mark.parametrize("name", BY_NAME)
def test_right_functions_are_finite_in_every_regime_that_they_name(name: str) -> None:
    right = BY_NAME[name]
    for regime in right.regimes:
        found = apply(right, *right.inputs(30, regime))
        outputs = found if isinstance(found, tuple) else (found,)
        assert all(bool(torch.isfinite(output).all()) for output in outputs), regime


@pytest.mark.parametrize("name", BY_NAME)
def test_every_hand_written_slip_stands_in_its_source_and_changes_the_gradient(name: str) -> None:
    made = {mutant.slip for mutant in mutants(BY_NAME[name], lambda kind: kind == FORMULA)}
    assert made == {slip.name for slip in BY_NAME[name].slips}


def test_every_kind_is_wrong_for_some_function() -> None:
    found: set[str] = set()
    for name in ("HyperbolicTangent", "GatedByNeed", "AddRow", "SineAndCosine", "BlockwiseSine"):
        found |= {
            mutant.kind for mutant in mutants(BY_NAME[name], lambda kind, known=frozenset(found): kind not in known)
        }
    assert found == {kind.name for kind in KINDS} | {FORMULA}


def test_a_kind_that_changes_nothing_is_no_mutant() -> None:
    harmless = Kind("harmless", "ordinary", Edit(after="gradients[{slot}] = gradients[{slot}] * 1.0"), ())
    (made,) = candidates(BY_NAME["Square"], [harmless])
    assert not wrong(made)


def test_mutants_are_written_in_all_three_forms() -> None:
    made = {mutant.form: mutant for mutant in mutants(BY_NAME["Square"])}
    assert set(made) == {"text", "subclass", "closure"}


def test_a_mutant_written_as_text_stands_alone() -> None:
    made = next(mutant for mutant in mutants(BY_NAME["LayerNorm"]) if mutant.form == "text")
    text = Path(made.function.forward.__code__.co_filename).read_text(encoding="utf-8")
    assert "benchmarks" not in text
    assert f"class {made.name}(Function)" in text


def test_inputs_are_the_same_in_every_run_and_differ_by_seed() -> None:
    right = BY_NAME["Attention"]
    assert torch.equal(right.inputs(30)[0], right.inputs(30)[0])
    assert not torch.equal(right.inputs(30)[0], right.inputs(30, seed=1)[0])


def test_a_check_that_kills_its_process_counts_as_an_objection() -> None:
    def dies() -> Answer:
        os._exit(3)

    assert in_fork(dies).objected


def test_fast_gradcheck_is_asked_about_a_mutant_and_objects() -> None:
    made: Mutant = next(mutant for mutant in mutants(BY_NAME["Square"]) if mutant.kind == "factor 2")
    assert fast(made.right, made.function, made.inputs(30)).objected
    assert not fast(made.right, made.right.function, made.inputs(30)).objected


def test_diagnosis_counts_the_first_cause_only() -> None:
    record = {
        "function": "F", "kind": "sign", "group": "ordinary", "form": "text", "mutant": "F_sign", "check": "gradproof",
        "elements": 30, "verdict": "fail", "objected": True, "located": True, "expected": ["wrong_sign"],
    }  # fmt: skip
    records = [record | {"causes": ["wrong_sign"]}, record | {"causes": ["rounded", "wrong_sign"]}]
    assert document(records)["diagnosis"]["shares"]["standard slips"] == [1, 2]


def test_kinds_of_another_module_are_measured_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "further.py").write_text(
        "from benchmarks.mutants import Edit, Kind\n"
        "from benchmarks.mutants.corpus import candidates\n"
        "KINDS = [Kind('cubed', 'ordinary', Edit(after='gradients[{slot}] = gradients[{slot}] ** 3'), ())]\n"
        "def mutants(right):\n    return candidates(right, KINDS)\n"
    )
    code = main(["--held-out", str(tmp_path / "further.py"), "--functions", "mish", "--sizes", "30"])
    assert code == 0
    assert "cubed" in capsys.readouterr().out
