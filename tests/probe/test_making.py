"""The tensors of a situation: each kind is what its name says, at any rank and size, and the same every time."""

from __future__ import annotations

import ast
from typing import Any, get_args

import pytest
import torch
from gradproof_probe.gradients.making import (
    changed_rank,
    laid_out,
    make_cotangent,
    make_values,
    resized,
)
from gradproof_probe.gradients.situations import LAYOUTS, CotangentKind, ValueKind
from gradproof_probe.repros.sources import source_of

VALUE_KINDS: tuple[str, ...] = get_args(ValueKind)
COTANGENT_KINDS: tuple[str, ...] = get_args(CotangentKind)
SHAPES = [(), (1,), (7,), (0,), (3, 0), (1, 5), (4, 1), (4, 5), (2, 3, 4), (2, 3, 4, 5), (2, 1, 2, 3, 2)]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128]


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", VALUE_KINDS)
def test_values_keep_shape_and_dtype_and_draw_nothing_from_the_global_generator(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    base = numbers(shape, dtype)
    before, state = base.clone(), torch.get_rng_state()
    made = make_values(kind, 0.5, base)
    assert (made.shape, made.dtype) == (base.shape, base.dtype)
    assert made.isfinite().all() or kind == "masked"
    assert same(made, make_values(kind, 0.5, base))
    assert same(base, before), "the given tensor is not written to"
    assert torch.equal(torch.get_rng_state(), state)


BASE = numbers((4, 5))
MEANINGS: dict[str, Any] = {
    "masked": lambda made: bool(made.view(-1)[::3].isinf().all()) and bool(made.view(-1)[1::3].isfinite().all()),
    "ordinary": lambda made: torch.equal(made, BASE),
    "jittered": lambda made: bool(0 < (made - BASE).abs().max() < 1e-2),
    "scaled": lambda made: torch.equal(made, BASE * 0.5),
    "shifted": lambda made: torch.equal(made, BASE + 0.5),
    "positive": lambda made: torch.equal(made, BASE.abs()),
    "negative": lambda made: torch.equal(made, -BASE.abs()),
    "rounded": lambda made: not (made % 0.5).any() and bool((made - BASE).abs().max() <= 0.25),
    "some_zero": lambda made: torch.equal(made.view(-1) == 0, torch.arange(20) % 3 == 0),
    "around": lambda made: torch.equal(
        (made.view(-1) - 0.5).sign(), torch.tensor([0.0, -1, 1]).repeat(7)[:20].double()
    ),
    "constant": lambda made: bool((made == 0.5).all()),
    "equal_rows": lambda made: torch.equal(made, BASE[:1].expand(4, 5)),
    "zero_row": lambda made: torch.equal(made[1:], BASE[1:]) and not made[0].any(),
    "sorted": lambda made: torch.equal(made, BASE.sort(dim=-1).values),
    "one_hot": lambda made: bool((made.sum(-1) == 1).all()) and bool((made.amax(-1) == 1).all()),
}


@pytest.mark.parametrize("kind", VALUE_KINDS)
def test_values_are_what_their_name_says(kind: str) -> None:
    assert MEANINGS[kind](make_values(kind, 0.5, BASE))


def test_values_around_zero_lie_on_both_sides_and_none_alike() -> None:
    made = make_values("around", 0.0, numbers((30,)))
    assert made.max() > 0 > made.min()
    assert len(set(made[made != 0].tolist())) == 20


def test_integers_and_masks_keep_their_values() -> None:
    for base in (torch.arange(6), torch.tensor([True, False])):
        assert all(make_values(kind, 0.5, base) is base for kind in VALUE_KINDS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", COTANGENT_KINDS)
def test_cotangents_are_contiguous_and_depend_on_the_seed_alone(
    kind: str, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    like = numbers(shape, dtype).requires_grad_()
    state = torch.get_rng_state()
    made = make_cotangent(kind, 0.5, like, 5)
    assert (made.shape, made.dtype, made.requires_grad) == (like.shape, like.dtype, False)
    assert made.is_contiguous()
    assert same(made, make_cotangent(kind, 0.5, like, 5))
    assert torch.equal(torch.get_rng_state(), state)
    if kind == "random" and like.numel():
        assert not same(made, make_cotangent(kind, 0.5, like, 6))


def test_cotangents_are_what_their_name_says() -> None:
    like = numbers((4, 5))
    made = {kind: make_cotangent(kind, 0.5, like, 5) for kind in COTANGENT_KINDS}
    drawn = made["random"]
    assert 0.5 < float(drawn.std()) < 2
    assert same(made["ones"], torch.ones_like(like))
    assert not made["zeros"].any()
    assert made["one_hot"].sum() == made["one_hot"].max() == 1
    assert same(made["zero_rows"][::2], drawn[::2])
    assert not made["zero_rows"][1::2].any()
    assert same(made["scaled"], drawn * 0.5)
    assert same(made["positive"], drawn.abs())
    assert same(made["negative"], -drawn.abs())
    assert made["constant"].unique().numel() == 1
    assert set((made["around"] - 0.5).sign().view(-1).tolist()) == {-1.0, 0.0, 1.0}


def test_one_row_alone_is_not_zeroed_for_then_nothing_would_be_pulled_back() -> None:
    assert make_cotangent("zero_rows", 0.0, numbers((1, 5)), 5).all()


def test_sizes_change_in_every_dimension_of_that_length_at_once() -> None:
    given = numbers((3, 4, 3))
    made = resized(given, ((3, 4), (4, 7)), 1)
    assert made.shape == (4, 7, 4)
    assert same(made[:3, :4, :3], given), "what was given stays"
    assert same(made, resized(given, ((3, 4), (4, 7)), 1))


def test_repeated_values_differ_but_keep_sign_zero_infinity_and_upper_bound() -> None:
    given = torch.tensor([0.9, -0.5, 0.0, -float("inf")], dtype=torch.float64)
    made = resized(given, ((4, 12),), 1)
    again = made[4:].view(2, 4)
    assert torch.equal(again.sign(), given.sign().expand(2, 4))
    assert (again[:, :2].abs() < given[:2].abs()).all()
    assert (again[0, :2] != again[1, :2]).all()
    assert torch.equal(again[:, 3], given[3].expand(2))


def test_repeated_indices_stay_valid_and_masks_stay_masks() -> None:
    assert resized(torch.arange(3), ((3, 7),), 1).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert resized(torch.tensor([True, False]), ((2, 3),), 1).tolist() == [True, False, True]


def test_smaller_empty_and_untouched_sizes() -> None:
    given = numbers((5, 4))
    assert same(resized(given, ((5, 2),), 1), given[:2])
    assert resized(given, ((5, 0),), 1).shape == (0, 4)
    assert resized(numbers((0, 4)), ((0, 3),), 1).shape == (3, 4)
    assert resized(given, ((6, 2),), 1) is given


def test_a_rank_more_keeps_the_given_block_first_and_a_rank_less_takes_it_back() -> None:
    given = numbers((3, 4))
    wider = changed_rank(given, 1)
    assert wider.shape == (2, 3, 4)
    assert not torch.equal(wider[0].abs(), wider[1].abs())
    assert changed_rank(torch.arange(3), 1).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert same(changed_rank(given, -1), given[0])
    scalar = numbers(())
    assert changed_rank(scalar, -1) is scalar


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_memory_holds_the_same_values(layout: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    given = numbers(shape, dtype)
    made = laid_out(given, layout)
    assert (made.shape, made.dtype) == (given.shape, given.dtype)
    if layout != "expanded":
        assert same(made, given)
    if given.numel() > 1 and layout not in ("channels_last", "expanded"):
        assert not made.is_contiguous() or made.storage_offset() > 0
        assert same(laid_out(made, "contiguous"), given)
        assert laid_out(made, "contiguous").is_contiguous()


def test_layouts_are_what_their_name_says() -> None:
    given = numbers((4, 5))
    assert laid_out(given, "transposed").stride() == (1, 4)
    assert laid_out(given, "strided").stride() == (10, 2)
    assert laid_out(given, "offset").stride() == (6, 1)
    assert laid_out(given, "sliced").is_contiguous()
    assert laid_out(given, "sliced").storage_offset() > 0
    assert laid_out(given, "offset").storage_offset() == 1
    assert laid_out(numbers((2, 3, 4, 5)), "channels_last").stride() == (60, 1, 15, 3)
    assert laid_out(given, "channels_last") is given


def test_expanded_memory_has_stride_zero_and_says_by_its_values_what_it_kept() -> None:
    assert laid_out(torch.ones(4, 5), "expanded").stride() == (0, 0)
    given = numbers((4, 5))
    rows = laid_out(given, "expanded")
    assert rows.stride() == (0, 1)
    assert same(rows, given[:1].expand(4, 5))
    assert laid_out(given[:1], "expanded").stride()[1] == 0
    assert laid_out(numbers((7,)), "expanded").stride() == (0,)


def test_the_source_text_is_whole_and_makes_the_same_numbers() -> None:
    text = source_of(make_values, make_cotangent, resized, changed_rank, laid_out)
    defined = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert len(defined) == len(set(defined))
    names: dict[str, Any] = {"torch": torch}
    exec("from __future__ import annotations\n" + text, names)
    given = numbers((4, 5))
    for kind in VALUE_KINDS:
        assert same(names["make_values"](kind, 0.5, given), make_values(kind, 0.5, given))
    for kind in COTANGENT_KINDS:
        assert same(names["make_cotangent"](kind, 0.5, given, 5), make_cotangent(kind, 0.5, given, 5))
    for layout in LAYOUTS:
        assert names["laid_out"](given, layout).stride() == laid_out(given, layout).stride()
    assert same(names["resized"](given, ((4, 9),), 2), resized(given, ((4, 9),), 2))
    assert same(names["changed_rank"](given, 1), changed_rank(given, 1))


def test_only_what_is_called_is_in_the_source_text() -> None:
    assert source_of(changed_rank).count("def ") == 2
    assert "def drawn_in" in source_of(changed_rank)
