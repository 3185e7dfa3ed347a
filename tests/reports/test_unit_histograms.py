"""Units in the last place, as a chart and in a sentence: what is drawn, what is said of it, and what is no count."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from services.reports.document import CheckInfo, Diagnosis
from services.reports.sources import NoSources
from services.reports.unit_histograms import HEIGHT, WIDTH, UnitHistogram, unit_histograms, unit_sentences
from services.reports.view import target_view
from tests.reports.samples import check, norm, report_of


def bucket(up_to: object, elements: object, beyond: object = 0) -> dict[str, object]:
    return {"up_to": up_to, "elements": elements, "beyond": beyond}


def record(*buckets: object, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "compared": "compiled (inductor)",
        "against": "eager",
        "dtype": "float32",
        "buckets": list(buckets),
        "largest": 4,
        "worst": "gradient weight",
    }
    return values | changes


def measured(*records: object, **changes: Any) -> CheckInfo:
    values: dict[str, Any] = {"check": "compile_equivalence", "evidence": {"units_apart": list(records)}}
    return check(**values | changes)


def only(*records: object, **changes: Any) -> UnitHistogram:
    (told,) = unit_histograms([measured(*records, **changes)])
    return told


ROUNDED = (bucket(0, 60), bucket(1, 30), bucket(4, 10))
WRONG = (bucket(0, 2048), bucket(2, 2045, 1), bucket(4096, 2, 2), bucket(None, 1, 1))
WHY = Diagnosis(cause="tf32", text="TF32")


@pytest.mark.parametrize(
    ("buckets", "changes", "sentence"),
    [
        ((bucket(0, 4096),), {}, "All 4,096 numbers are the same."),
        ((), {}, "There were no numbers to compare."),
        (
            ROUNDED,
            {},
            "60 % of the 100 numbers agree exactly; the others are up to 4 units apart, none further than the check "
            "allows: that is rounding.",
        ),
        (
            WRONG,
            {"verdict": "fail"},
            "50 % of the 4,096 numbers agree exactly; 4 are further off than the check allows, 3 of them by more than "
            "1,024 units: that is not rounding.",
        ),
        (
            (bucket(0, 2), bucket(2048, 2, 2)),
            {"verdict": "fail"},
            "50 % of the 4 numbers agree exactly; 2 are further off than the check allows, by more than 1,024 units: "
            "that is not rounding.",
        ),
        (
            (bucket(0, 999), bucket(1, 1, 1)),
            {"largest": 1},
            "More than 99 % of the 1,000 numbers agree exactly; 1 is further off than the check allows, by up to 1 "
            "unit: the check judges whole tensors, and takes it for rounding.",
        ),
        (
            (bucket(4, 5, 5),),
            {"verdict": "inconclusive"},
            "None of the 5 numbers agree exactly; 5 are further off than the check allows, by up to 4 units: the check "
            "says why that decides nothing.",
        ),
        (
            (bucket(0, 1), bucket(4, 999, 5)),
            {"diagnosis": WHY},
            "Less than 1 % of the 1,000 numbers agree exactly; 5 are further off than the check allows, by up to 4 "
            "units: the check says why that is no fault.",
        ),
        (
            (bucket(0, 15),),
            {"largest": 0, "not_finite": 15, "left_out": 1},
            "50 % of the 30 numbers agree exactly. 15 are infinite or NaN on one side only. 1 result had no "
            "counterpart of the same shape and type.",
        ),
    ],
    ids=["same", "none", "rounding", "fault", "far", "tail", "undecided", "explained", "not finite"],
)  # fmt: skip
def test_a_sentence_says_how_to_read_it(buckets: tuple[object, ...], changes: dict[str, Any], sentence: str) -> None:
    told = {key: changes.pop(key) for key in ("largest", "not_finite", "left_out") if key in changes}
    assert only(record(*buckets, **told), **changes).sentence == sentence


def test_bars_stand_on_the_ground_within_the_picture_and_a_single_number_has_one() -> None:
    bars = only(record(*WRONG), verdict="fail").bars
    assert [bar.label for bar in bars[:5]] == ["0", "1", "2", "3 to 4", "5 to 8"]
    assert (bars[-1].label, bars[-1].tick) == ("more than 8,388,608", "more")
    ground = bars[1].y
    assert (bars[1].elements, ground) == (0, HEIGHT - 18)
    assert bars[0].y == min(bar.y for bar in bars) == 14
    assert 14 < bars[-1].y < ground - 5
    assert (bars[0].beyond_y, bars[-1].beyond_y) == (ground, bars[-1].y)
    assert (bars[0].height, bars[0].beyond_height, bars[1].height) == (ground - 14, 0, 0)
    assert all(one.x + one.width < other.x for one, other in pairwise(bars))
    assert bars[-1].x + bars[-1].width <= WIDTH


def test_charts_that_lie_beside_each_other_have_the_same_columns_and_what_is_the_same_has_none() -> None:
    charts = unit_histograms(
        [
            measured(record(bucket(0, 9)), record(*ROUNDED)),
            measured(
                record(bucket(2, 1), bucket(2**14, 10**6), compared="cuda"), check="device_compare", device="cuda"
            ),
        ]
    )
    assert [len(chart.bars) for chart in charts] == [0, 16, 16]
    assert [line.label for line in charts[1].lines] == ["1", "10"]
    assert [line.label for line in charts[2].lines] == ["1", "100", "10k", "1M"]
    assert [chart.title for chart in charts[1:]] == [
        "float32 on cpu, compiled (inductor) against eager",
        "float32, cuda against eager",
    ]
    assert len(only(record(*ROUNDED)).bars) == 12


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        record(compared=3),
        record(dtype=""),
        record(buckets="x"),
        record(bucket(3, 1)),
        record(bucket(True, 1)),
        record(bucket(0.0, 1)),
        record(bucket([], 1)),
        record({"elements": 1, "beyond": 0}),
        record("bucket"),
        record(bucket(0, -1)),
        record(bucket(0, 10**400)),
        record(bucket(0, True)),
        record(bucket(0, 1, None)),
        record(*[bucket(0, 1)] * 27),
    ],
)
def test_counts_are_read_in_their_shape_only(wrong: object) -> None:
    assert unit_histograms([measured(wrong)]) == ()
    assert unit_sentences(measured(wrong)) == ()
    assert unit_histograms([check(evidence={"units_apart": wrong})]) == ()


def test_lies_stay_within_bounds_and_hostile_words_are_shown() -> None:
    told = only(record(bucket(1, 3, 10**18), largest=10**400, not_finite="x", left_out=-1, worst="\u202e" * 900))
    assert (told.beyond, told.largest, told.not_finite, told.left_out) == (3, 0, 0, 0)
    assert told.worst.startswith("[U+202E]")
    assert len(told.worst) == 80
    assert len(unit_histograms([measured(*[record(*ROUNDED)] * 20), measured(record(*ROUNDED))])) == 12


def test_where_nothing_is_drawn_the_evidence_is_told_in_words() -> None:
    told = norm(checks=(measured(record(*ROUNDED)), measured("odd", check="device_compare")))
    target = report_of((), (told,)).targets[0]
    rows = {item.info.check: dict(item.evidence)["units apart"] for item in target_view(target, NoSources(), ()).checks}
    assert rows["compile_equivalence"].startswith(
        "float32 on cpu, compiled (inductor) against eager: 60 % of the 100 numbers agree exactly; "
    )
    assert rows["device_compare"] == "odd"
