"""One result out of many: the gravest, with the option that it came with."""

from __future__ import annotations

from typing import Any

import pytest
from gradproof_probe.variants import MOST_VARIANTS, gravest, variant_recipes

USUAL = {"verdict": "pass", "summary": "right", "evidence": {"trials": 3}, "repro": None, "duration_s": 1.0}


def said(verdict: str, **changes: Any) -> dict[str, Any]:
    return {**USUAL, "verdict": verdict, "summary": f"it is {verdict}", "repro": "# script", **changes}


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        (["pass", "fail", "inconclusive"], "fail"),
        (["pass", "inconclusive", "error"], "inconclusive"),
        (["error", "skipped", "pass"], "pass"),
        ([], "pass"),
    ],
)
def test_the_gravest_verdict_wins_and_what_could_not_be_built_counts_nothing(verdicts: list[str], worst: str) -> None:
    result = gravest(USUAL, [(f"mode={index}", said(verdict)) for index, verdict in enumerate(verdicts)])
    assert result["verdict"] == worst


def test_a_graver_result_names_its_option_and_brings_its_script() -> None:
    result = gravest(USUAL, [("reduction='mean'", said("pass")), ("reduction='sum'", said("fail"))])
    assert result["summary"] == "with reduction='sum': it is fail"
    assert result["evidence"]["option"] == "reduction='sum'"
    assert result["evidence"]["options"] == {"reduction='mean'": "pass", "reduction='sum'": "fail"}
    assert (result["repro"], result["duration_s"]) == ("# script", 3.0)


def test_a_result_that_stays_lists_what_was_tried_beside_it() -> None:
    result = gravest(USUAL, [("reduction='sum'", said("pass"))])
    assert (result["summary"], result["evidence"]) == ("right", {"trials": 3, "options": {"reduction='sum'": "pass"}})


def test_a_variant_is_the_same_harness_built_in_another_way() -> None:
    variants = [{"constructor": f"Loss({n})", "inputs": ["x"], "option": f"n={n}"} for n in range(20)]
    recipe = {"constructor": "Loss()", "inputs": ["y"], "provenance": "a:1", "variants": variants, "code": "Loss()"}
    found = variant_recipes(recipe)
    assert len(found) == MOST_VARIANTS
    option, first = found[0]
    assert option == "n=0"
    assert (first["constructor"], first["inputs"], first["provenance"]) == ("Loss(0)", ["x"], "a:1; with n=0")
    assert (first["variants"], first["code"]) == ([], "")
