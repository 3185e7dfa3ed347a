"""Distances in units in the last place, and their histogram: against the order of all numbers, step by step."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gradproof_probe.equivalence.observation import Observation
from gradproof_probe.equivalence.units import BOUNDS, FARTHEST, Units, distances
from hypothesis import given
from hypothesis import strategies as st

TYPES = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}
REAL = pytest.mark.parametrize("dtype", TYPES, ids=str)
# The bits of the first infinity of a type, without the sign.
INFINITY = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000, torch.float64: 0x7FF << 52}
INTEGERS = {16: torch.int16, 32: torch.int32, 64: torch.int64}


def number(dtype: torch.dtype, bits: int) -> torch.Tensor:
    """The number of one element that has these bits."""
    width = TYPES[dtype]
    signed = bits - 2**width if bits >= 2 ** (width - 1) else bits
    return torch.tensor([signed], dtype=INTEGERS[width]).view(dtype)


def steps(dtype: torch.dtype, bits: int) -> int:
    """How many numbers lie between zero and the number with these bits, read with Python's integers alone."""
    negative, size = divmod(bits, 2 ** (TYPES[dtype] - 1))
    return -size if negative else size


def histogram(one: torch.Tensor, other: torch.Tensor, **changes: Any) -> dict[str, Any]:
    """Of two outputs, held to `share` (0) of what `reference` (the first) has."""
    options = {"reference": one, "share": 0.0, "name": "output"} | changes
    name, share = str(options["name"]), float(options["share"])
    units = Units("one", "other")
    units.add(seen(name, one), seen(name, other), seen(name, options["reference"]), lambda _name: share)
    (told,) = units.to_evidence()
    return told


def seen(name: str, value: Any) -> Observation:
    return Observation({name: value})


def counts(told: dict[str, Any]) -> dict[int | None, int]:
    return {bucket["up_to"]: bucket["elements"] for bucket in told["buckets"]}


def two_numbers(dtype: torch.dtype) -> st.SearchStrategy[tuple[int, int]]:
    """Bits of finite numbers with either sign; near zero, near powers of two and at the ends more often."""
    top = 2 ** (TYPES[dtype] - 1)
    ends = (0, 1, 2, INFINITY[dtype] - 1, *(INFINITY[dtype] // 2 + offset for offset in (-1, 0, 1)))
    size = st.one_of(st.sampled_from(ends), st.integers(0, 40), st.integers(0, INFINITY[dtype] - 1))
    signed = st.builds(lambda bits, negative: bits + top * negative, size, st.integers(0, 1))
    return st.tuples(signed, signed)


@REAL
@given(data=st.data())
def test_a_distance_is_that_of_the_places_in_the_order_of_all_numbers(dtype: torch.dtype, data: st.DataObject) -> None:
    one, other = data.draw(two_numbers(dtype))
    expected = abs(steps(dtype, one) - steps(dtype, other))
    assert int(distances(number(dtype, one), number(dtype, other))) == min(expected, FARTHEST)
    told = histogram(number(dtype, one), number(dtype, other))
    assert told["largest"] == min(expected, FARTHEST)
    assert counts(told) == {next((end for end in BOUNDS if expected <= end), None): 1}


@REAL
def test_the_ends_of_a_type_are_further_apart_than_any_other_numbers(dtype: torch.dtype) -> None:
    last = INFINITY[dtype] - 1
    told = histogram(number(dtype, last), number(dtype, last + 2 ** (TYPES[dtype] - 1)))
    assert told["largest"] == min(2 * last, FARTHEST)


@given(start=st.floats(width=32, allow_nan=False, allow_infinity=False), way=st.integers(-40, 40))
def test_a_distance_is_the_number_of_steps_to_the_next_number(start: float, way: int) -> None:
    value = numpy.float32(start)
    taken = 0
    for _ in range(abs(way)):
        following = numpy.nextafter(value, numpy.float32(math.copysign(math.inf, way)))
        if math.isfinite(following):
            value, taken = following, taken + 1
    assert int(distances(torch.tensor([start]), torch.tensor([float(value)]))) == taken


@REAL
def test_zeros_are_one_number_and_subnormal_numbers_are_numbers(dtype: torch.dtype) -> None:
    sign = 2 ** (TYPES[dtype] - 1)
    told = histogram(
        torch.cat([number(dtype, bits) for bits in (sign, sign + 1, 1, 0)]),
        torch.cat([number(dtype, bits) for bits in (0, 1, 3, 7)]),
    )
    assert counts(told) == {0: 1, 2: 2, 8: 1}


@REAL
def test_infinities_and_nan_have_no_distance_but_to_their_like(dtype: torch.dtype) -> None:
    nan, inf = math.nan, math.inf
    one = torch.tensor([nan, inf, -inf, nan, inf, inf, 1.0, 2.0], dtype=dtype)
    other = torch.tensor([nan, inf, -inf, inf, -inf, 1.0, nan, 2.0], dtype=dtype)
    told = histogram(one, other)
    assert (counts(told), told["not_finite"], told["largest"], told["worst"]) == ({0: 4}, 4, 0, "output")
    assert told["elements"] == 8
    largest = number(dtype, INFINITY[dtype] - 1)  # the number before infinity is as far from it as any
    assert histogram(largest, torch.tensor([inf], dtype=dtype))["not_finite"] == 1


def test_buckets_end_at_powers_of_two_and_the_last_has_no_end() -> None:
    start = struct.unpack("<i", struct.pack("<f", 1.0))[0]
    apart = [0, 1, 2, 3, 4, 5, 8, 9, 2**23, 2**23 + 1, 2**24, 2**24 + 1, 2**29]
    other = torch.tensor([start + units for units in apart], dtype=torch.int32).view(torch.float32)
    told = histogram(torch.ones(len(apart)), other)
    assert counts(told) == {0: 1, 1: 1, 2: 1, 4: 2, 8: 2, 16: 1, 2**23: 1, None: 4}
    assert told["largest"] == 2**29


def test_complex_numbers_are_counted_by_parts_and_views_as_what_they_show() -> None:
    one = torch.complex(torch.ones(3), torch.full((3,), 2.0))
    other = torch.complex(torch.ones(3), torch.nextafter(torch.full((3,), 2.0), torch.tensor(9.0)))
    told = histogram(one, other)
    assert (told["dtype"], told["elements"], counts(told)) == ("complex64", 6, {0: 3, 1: 3})
    assert counts(histogram(one, torch.conj(torch.conj_physical(one)))) == {0: 6}
    assert counts(histogram(torch.ones(2, 3).t(), torch.ones(3, 2))) == {0: 6}
    negated = torch.imag(torch.conj(one))  # -2 in memory that holds 2
    assert counts(histogram(negated, torch.nextafter(torch.full((3,), -2.0), torch.tensor(0.0)))) == {1: 3}


def test_large_tensors_are_counted_in_pieces_and_to_the_last_number() -> None:
    one = torch.ones(2**17 + 3)
    other = one.clone()
    other[[0, 2**16 - 1, 2**16, -1]] = 1.5
    told = histogram(one, other)
    assert (told["elements"], counts(told)) == (2**17 + 3, {0: 2**17 - 1, 2**22: 4})


def test_beyond_is_what_is_further_off_than_a_share_of_itself_and_of_its_tensor() -> None:
    one = torch.tensor([1000.0, 1.0, 1.0, 1e-6], dtype=torch.float64)  # of a root mean square of 500
    moved = one + torch.tensor([0.9, 0.4, 0.6, 0.4])
    told = histogram(one, moved, share=1e-3)
    assert [bucket["beyond"] for bucket in told["buckets"]] == [1]
    assert told["percent_beyond"] == 25.0
    # Against a reference that the second is nearer to: only what differs can be beyond.
    assert histogram(one, moved, share=1e-3, reference=moved)["percent_beyond"] == 0
    assert histogram(one, one.clone(), share=1e-3, reference=moved)["percent_beyond"] == 0


def test_a_gradient_of_nought_is_held_to_the_largest_one() -> None:
    def beyond(name: str, off: float) -> float:
        reference = Observation({"gradient a": torch.ones(4), name: torch.zeros(4)})
        got = Observation({"gradient a": torch.ones(4), name: torch.full((4,), off)})
        units = Units("one", "other")
        units.add(reference, got, reference, lambda _name: 1.0)
        return float(units.to_evidence()[0]["percent_beyond"])

    assert (beyond("gradient b", 9e-7), beyond("gradient b", 1.1e-6)) == (0, 50)
    assert beyond("output", 9e-7) == 50


def plain(value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"output": value}


@pytest.mark.parametrize(
    ("got", "left_out"),
    [
        (lambda: plain(torch.ones(3)), 1),
        (lambda: plain(torch.ones(2, dtype=torch.float64)), 1),
        (lambda: plain(torch.ones(2).to_sparse()), 1),
        (dict, 1),
        (lambda: plain(torch.ones(2)) | {"gradient x": torch.ones(2)}, 1),
        (lambda: plain(torch.ones(2)) | {"input after": torch.ones(2), "buffer b": torch.ones(2)}, 0),
    ],
    ids=["shape", "type", "layout", "missing", "more", "no result"],
)
def test_what_has_no_counterpart_is_left_out(got: Callable[[], dict[str, torch.Tensor]], left_out: int) -> None:
    expected = Observation(plain(torch.ones(2)))
    units = Units("one", "other")
    units.add(expected, Observation(got()), expected, lambda _name: 0.0)
    (told,) = units.to_evidence()
    assert told["left_out"] == left_out
    assert told["elements"] == (0 if left_out and "gradient x" not in got() else 2)


def test_calls_and_modes_are_counted_together_and_whole_numbers_not_at_all() -> None:
    one = Observation({"call 1: output": torch.ones(2), "call 2: output": torch.arange(3)})
    other = Observation({"call 1: output": torch.full((2,), 1.5), "call 2: output": torch.arange(3)})
    units = Units("aot_eager", "eager")
    units.add(one, one, one, lambda _name: 0.0, said="train mode, ")
    units.add(one, Observation({"call 1: output": torch.ones(2) + 1e-6}), one, lambda _name: 0.0, said="train mode, ")
    units.add(one, other, one, lambda _name: 0.0, said="eval mode, ")
    units.add(one, Observation({"call 1: output": torch.ones(2) + 1e-6}), one, lambda _name: 0.0, said="train mode, ")
    (told,) = units.to_evidence()
    assert (told["elements"], told["worst"], told["largest"]) == (8, "eval mode, call 1: output", 2**22)
    assert (told["compared"], told["against"]) == ("aot_eager", "eager")
