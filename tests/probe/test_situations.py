"""A situation is data: what it changes, what it consists of, what it is called; and the standard lists of them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest
import torch
from gradproof_probe.gradients import battery
from gradproof_probe.gradients.situations import (
    FLAGS,
    LAYOUTS,
    ORDINARY,
    QUALIFIERS,
    Cotangent,
    CotangentKind,
    Others,
    Sequence,
    Situation,
    ValueKind,
    Values,
)
from gradproof_probe.gradients.subject import plain

MIXED = Situation(values=Values("negative"), rank=1, rank_of="all", cotangent=Cotangent("ones"), sequence="repeated")
# Each field that means something by itself, changed; those that qualify another one go along.
CHANGES = {
    "values": Situation(values=Values("scaled", 2.0)),
    "resize": Situation(resize=((4, 9),)),
    "rank": Situation(rank=1, rank_of="first"),
    "broadcast": Situation(broadcast=((0, "axis 0"),)),
    "others": Situation(others="equal"),
    "input_layout": Situation(input_layout="transposed"),
    "cotangent": Situation(cotangent=Cotangent("ones")),
    "wanted": Situation(wanted=(1,)),
    "dtype": Situation(dtype="float32", dtype_of=1),
    "autocast": Situation(autocast="forward"),
    "alias": Situation(alias=True),
    "sequence": Situation(sequence="input_written", written=0),
    "arguments": Situation(arguments=((1, 3),)),
    "flags": Situation(flags=("anomaly",)),
}


def zeros(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.zeros(shape) for shape in shapes]


# The data


def test_the_ordinary_situation_changes_nothing_and_needs_no_words() -> None:
    assert ORDINARY.changed() == ()
    assert ORDINARY.parts() == []
    assert ORDINARY.describe() == ""


def test_why_it_is_tried_is_no_part_of_what_is_done() -> None:
    told = Situation(alias=True, because="backward compares data_ptr()")
    assert told == Situation(alias=True)
    assert told.changed() == ("alias",)


def test_every_field_is_among_the_changes_below() -> None:
    names = {item.name for item in fields(Situation) if item.compare}
    assert names == {*CHANGES, *QUALIFIERS}
    for qualifier, of in QUALIFIERS.items():
        assert qualifier in CHANGES[of].changed()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_has_words_and_is_its_own_only_part(name: str) -> None:
    situation = CHANGES[name]
    assert set(situation.changed()) <= {name, *QUALIFIERS}
    assert situation.describe()
    assert situation.parts() == [situation]
    assert name not in situation.without(name).changed()


def test_a_mixture_falls_apart_into_parts_that_make_it_up_again() -> None:
    parts = MIXED.parts()
    assert parts == [
        Situation(values=Values("negative")),
        Situation(rank=1, rank_of="all"),
        Situation(cotangent=Cotangent("ones")),
        Situation(sequence="repeated"),
    ]
    whole = ORDINARY
    for part in parts:
        whole = whole.merged(part)
    assert whole == MIXED


def test_merging_keeps_what_the_other_does_not_change() -> None:
    merged = MIXED.merged(Situation(values=Values("positive"), alias=True))
    assert merged == replace(MIXED, values=Values("positive"), alias=True)


def test_taking_a_field_away_leaves_the_others() -> None:
    assert MIXED.without("values") == replace(MIXED, values=Values())
    assert MIXED.without("cotangent").cotangent == Cotangent()


def test_every_kind_of_everything_can_be_described() -> None:
    described = [Situation(values=Values(kind, 2.0)) for kind in get_args(ValueKind)[1:]]
    described += [Situation(cotangent=Cotangent(kind, 2.0)) for kind in get_args(CotangentKind)[1:]]
    described += [Situation(cotangent=Cotangent(layout=layout)) for layout in LAYOUTS]
    described += [Situation(input_layout=layout) for layout in LAYOUTS]
    described += [Situation(sequence=sequence) for sequence in get_args(Sequence)[1:]]
    described += [Situation(others=kind) for kind in get_args(Others)[1:]]
    described += [Situation(broadcast=((0, what),)) for what in battery.BROADCASTS]
    described += [Situation(flags=(flag,)) for flag in FLAGS]
    words = [item.describe() for item in described]
    assert all(words)
    assert len(set(words)) == len(words), "no two situations are called the same"


def test_the_plain_form_keeps_what_is_computed_and_drops_how_it_is_asked_for() -> None:
    situation = Situation(
        values=Values("negative"),
        resize=((3, 5),),
        input_layout="strided",
        cotangent=Cotangent("ones", layout="expanded", outputs=(0,)),
        wanted=(0,),
        sequence="repeated",
        flags=("anomaly",),
    )
    assert plain(situation) == Situation(
        values=Values("negative"), resize=((3, 5),), cotangent=Cotangent("ones", outputs=(0,))
    )


# The lists


def test_combining_tries_the_first_of_each_list_at_once_and_loses_none() -> None:
    pulls = [Situation(cotangent=Cotangent("ones")), Situation(cotangent=Cotangent("zeros"))]
    calls = [Situation(sequence="repeated")]
    assert battery.combined(pulls, calls) == [pulls[0].merged(calls[0]), pulls[1]]
    lists = (battery.pulls(zeros((2, 3))), battery.SEQUENCES, battery.layouts(zeros((2, 3))))
    together = [part for item in battery.combined(*lists) for part in item.parts()]
    alone = [part for items in lists for item in items for part in item.parts()]
    assert [part for part in alone if part not in together] == []


def test_each_output_is_pulled_alone_where_there_are_several() -> None:
    first, second = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    alone = [item.cotangent.outputs for item in battery.pulls([first, second])]
    assert [item for item in alone if item is not None] == [(0,), (1,)]
    constant = torch.zeros(3)
    assert all(item.cotangent.outputs is None for item in battery.pulls([first, constant]))


def test_channels_last_is_tried_on_images_only() -> None:
    def has(shape: tuple[int, ...]) -> bool:
        return any(item.cotangent.layout == "channels_last" for item in battery.pulls(zeros(shape)))

    assert [has((2, 3)), has((2, 3, 4, 4)), has((2, 3, 4, 4, 4))] == [False, True, True]


def test_every_input_is_wanted_alone_and_left_out_alone() -> None:
    assert battery.subsets(1) == []
    assert [item.wanted for item in battery.subsets(2)] == [(0,), (1,)]
    assert [item.wanted for item in battery.subsets(3)] == [(0,), (1,), (2,), (1, 2), (0, 2), (0, 1)]


def test_every_tensor_is_written_to_by_itself() -> None:
    found = battery.written([torch.zeros(2), 3, torch.zeros(0), torch.tensor([1])])
    assert [(item.sequence, item.written) for item in found] == [
        ("output_written", None),
        ("input_written", 0),
        ("input_written", 3),
    ]


def test_indices_and_masks_are_changed_each_in_its_own_way() -> None:
    indices, mask = torch.tensor([0, 1]), torch.tensor([True, False])
    assert battery.others(zeros((2,))) == []
    assert {item.others for item in battery.others([mask])} == {"inverted", "all", "none", "row_none"}
    assert "equal" in {item.others for item in battery.others([indices])}
    assert "inverted" not in {item.others for item in battery.others([indices])}


def test_shapes_are_broadcast_where_the_output_has_the_shape_that_all_broadcast_to() -> None:
    matrix, row = zeros((3, 4), (4,))
    found = [item.broadcast[0] for item in battery.broadcasts([matrix, row], zeros((3, 4)))]
    assert (0, "axis 0") in found
    assert (1, "single") in found
    assert (1, "leading") not in found
    assert battery.broadcasts([matrix, row], zeros(())) == []
    assert battery.broadcasts([matrix], zeros((3, 4))) == []
    assert battery.broadcasts(zeros((3, 4), (4, 5)), zeros((3, 5))) == []


def test_switches_are_turned_and_numbers_changed() -> None:
    found = [
        item.arguments[0] for item in battery.arguments([torch.zeros(2), True, 2, 0.5, float("inf"), "mean", None])
    ]
    assert found == [(1, False), (2, 3), (2, 1), (3, 1.0), (3, 0.25)]


def test_the_same_tensor_is_given_twice_where_rows_are_of_one_length() -> None:
    assert battery.aliases(zeros((3, 4), (3, 4))) == [Situation(alias=True)]
    assert battery.aliases(zeros((3, 4), (4, 5))) == []


def test_sizes_are_one_a_little_more_thousands_and_none() -> None:
    tensors = zeros((3, 4))
    resizes = [item.resize for item in battery.sizes(tensors, tensors)]
    assert ((3, 1),) in resizes
    assert ((4, 5),) in resizes
    assert ((3, 1), (4, 1)) in resizes
    assert ((4, 0),) in resizes
    grown = [battery.grown(tensors, resize) for resize in resizes]
    assert max(grown) > 4096
    assert max(grown) % 256, "no whole number of blocks"
    assert all(old != new for resize in resizes for old, new in resize)


@pytest.mark.parametrize("shape", [(3, 4), (8, 8), (5, 5, 5), (2, 3, 16, 16)])
def test_a_length_that_stands_for_several_dimensions_grows_no_further_than_it_has_to(shape: tuple[int, ...]) -> None:
    tensors = zeros(shape)
    length = shape[-1]
    longer = battery.long(tensors, length, 4200)
    assert longer % 2 == 1
    assert longer > length
    assert battery.grown(tensors, ((length, longer),)) <= 2 * 4200


def test_ranks_are_changed_of_what_works_element_by_element() -> None:
    assert [item.rank for item in battery.ranks(zeros((3, 4)), zeros((3, 4)))] == [1, -1]
    assert [item.rank for item in battery.ranks(zeros((4,)), zeros((4,)))] == [1]
    assert battery.ranks(zeros((3, 4), (4, 5)), zeros((3, 5))) == []


def test_one_input_alone_is_of_another_type_where_there_are_several() -> None:
    assert battery.mixed(1) == []
    assert [(item.dtype, item.dtype_of) for item in battery.mixed(2)] == [("float32", 0), ("float32", 1)]
