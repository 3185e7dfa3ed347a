"""The ways of calling a Function and of pulling a cotangent back through it that a backward may get wrong, as data.

A backward is rarely wrong for everything. It misreads strides, forgets that only one input requires grad, handles the
tail of a block badly, holds for float32 alone (checks facts, section 6). A `Situation` names one such circumstance, or
several at once: then every field that is not at its default is a suspect, and the smallest situation that still
fails tells which of them it was. This module describes; it must not run anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

Layout = Literal["contiguous", "transposed", "strided", "offset", "sliced", "expanded", "channels_last"]
LAYOUTS: Final[tuple[Layout, ...]] = ("transposed", "strided", "offset", "sliced", "expanded", "channels_last")

ValueKind = Literal[
    "ordinary",  # as given
    "jittered",  # as given plus noise of a thousandth of its root mean square
    "scaled",  # times `number`
    "shifted",  # plus `number`
    "positive",  # absolute values
    "negative",  # minus absolute values
    "rounded",  # to multiples of `number`: ties and exact integers
    "some_zero",  # every third element exactly zero
    "around",  # `number` exactly, a little less, a little more, in turn, so that both sides of a test are met
    "constant",  # every element `number`
    "equal_rows",  # the first row again and again
    "zero_row",  # the first row zero: padding
    "sorted",  # ascending along the last axis
    "one_hot",  # one element of each row 1, the others 0
    "masked",  # every third element -inf: what is masked out before a softmax
]
# What becomes of tensors that hold indices, labels or masks.
Others = Literal[
    "as given",
    "reversed",  # the same entries backwards
    "equal",  # the first entry everywhere: one label, one row of a table
    "sorted",
    "zeros",
    "distinct",  # as far as the largest entry allows
    "inverted",  # masks alone: the opposite
    "all",  # masks alone: everything true
    "none",  # masks alone: everything false
    "row_none",  # masks alone: the first row false
]
# What becomes of one input's shape where a forward broadcasts.
Broadcast = Literal[
    "axis 0", "axis 1", "axis 2", "axis 3",  # this axis becomes 1
    "leading",  # the first axis is taken away
    "single",  # one element
    "full",  # the shape of the largest input
    "raised",  # a leading axis of size 2 more
]  # fmt: skip
CotangentKind = Literal[
    "random",
    "ones",
    "zeros",
    "one_hot",  # a single 1
    "zero_rows",  # every second row zero
    "scaled",  # random, times `number`
    "constant",  # one number everywhere: `number`, or a random one where that is 0
    "positive",
    "negative",
    "around",  # `number` exactly, a little less, a little more
]
Sequence = Literal[
    "once",
    "interleaved",  # forward of other inputs between this forward and its backward
    "after_another",  # forward and backward of other inputs before
    "repeated",  # forward and backward of the same inputs, several times
    "second_backward",  # twice over one graph
    "output_written",  # the output is written to in place between forward and backward
    "input_written",  # the input is written to in place between forward and backward
    "other_seed",  # the generators stand elsewhere when backward begins
    "create_graph",  # first-order gradients with create_graph=True
    "used_twice",  # f(x) + f(x) in one graph
    "inference_first",  # a call under no_grad before
    "other_thread",  # backward is called from another thread
    "after_update",  # a call with other values in the same memory before: what an optimiser does between steps
]


@dataclass(frozen=True, slots=True)
class Values:
    """How the values of floating inputs are made from the given ones. `only`: of this input alone, by its number."""

    kind: ValueKind = "ordinary"
    number: float = 0.0
    only: int | None = None


@dataclass(frozen=True, slots=True)
class Cotangent:
    """What is pulled back. `outputs`: those outputs alone get one, by their numbers; None for all."""

    kind: CotangentKind = "random"
    number: float = 0.0
    layout: Layout = "contiguous"
    outputs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """One call and one pull-back; the defaults are the ordinary ones.

    `resize`: each dimension of the first size, in every tensor, gets the second (equal sizes are taken to be the same
    dimension). `rank`: 1 puts a dimension of size 2 in front of every tensor that has the highest rank (`rank_of`: or
    of all, or of the first), -1 takes the first index of their leading dimension. `broadcast`: what happens to the
    shape of single inputs, by their numbers. `others`: what happens to tensors of integers and booleans. `wanted`: the
    numbers of the inputs that require grad; None for all. `alias`: inputs with rows of the first's length are the very
    same tensor. `dtype_of`: this input alone has the dtype. `written`: for `input_written`, this argument alone, by
    its position; None for all inputs. `arguments`: other values for arguments that are no tensors, by position.
    `flags`: process-wide switches, by the names of `FLAGS`.
    """

    values: Values = Values()
    resize: tuple[tuple[int, int], ...] = ()
    rank: int = 0
    rank_of: Literal["highest", "all", "first"] = "highest"
    broadcast: tuple[tuple[int, Broadcast], ...] = ()
    others: Others = "as given"
    input_layout: Layout = "contiguous"
    cotangent: Cotangent = Cotangent()
    wanted: tuple[int, ...] | None = None
    dtype: Literal["float64", "float32", "float16", "bfloat16", "complex128"] = "float64"
    dtype_of: int | None = None
    autocast: Literal["", "forward", "throughout"] = ""
    alias: bool = False
    sequence: Sequence = "once"
    written: int | None = None
    arguments: tuple[tuple[int, Any], ...] = ()
    flags: tuple[str, ...] = ()
    # Why it is tried, for the report: "backward compares numel() with 65536". Not part of what is done.
    because: str = field(default="", compare=False)

    def changed(self) -> tuple[str, ...]:
        """The names of the fields that differ from the ordinary situation."""
        return tuple(
            item.name
            for item in fields(self)
            if item.compare and getattr(self, item.name) != getattr(ORDINARY, item.name)
        )

    def without(self, name: str) -> Situation:
        """The same with one field back at its default."""
        return replace(self, **{name: getattr(ORDINARY, name)})

    def made_of(self) -> tuple[Any, ...]:
        """What decides which arguments are made: the same for situations that can share them."""
        fields_of = (getattr(self, name) for name in (*COMPUTED, "dtype", "dtype_of"))
        return tuple(repr(value) if isinstance(value, tuple) else value for value in fields_of)

    def merged(self, other: Situation) -> Situation:
        """Both at once; where both change a field, `other`'s."""
        return replace(self, **{name: getattr(other, name) for name in other.changed()})

    def parts(self) -> list[Situation]:
        """One situation for each field that is changed, the fields that only qualify another with it."""
        found = []
        for name in self.changed():
            if name not in QUALIFIERS:
                names = [name, *(qualifier for qualifier, of in QUALIFIERS.items() if of == name)]
                found.append(replace(ORDINARY, **{item: getattr(self, item) for item in names}))
        return found

    def describe(self) -> str:
        """In words: "for a transposed incoming gradient, in float32". Empty for the ordinary situation."""
        said = [_WORDS[name](self) for name in self.changed()]
        return ", ".join(item for item in said if item)


ORDINARY: Final = Situation()
# Fields that decide what is computed, whatever the type: which numbers, of which shapes, with which arguments.
COMPUTED: Final = ("values", "resize", "rank", "rank_of", "broadcast", "others", "arguments")
# Fields that mean something together with another one alone.
QUALIFIERS: Final = {"rank_of": "rank", "dtype_of": "dtype", "written": "sequence"}

# Process-wide switches that code asks for, with the words for them.
FLAGS: Final = {
    "deterministic": "with torch.use_deterministic_algorithms(True)",
    "anomaly": "under torch.autograd.detect_anomaly()",
    "default_float32": "with float32 as the default dtype",
    "float32_precision_high": 'with torch.set_float32_matmul_precision("high")',
}

_VALUE_WORDS: Final[dict[str, str]] = {
    "jittered": "inputs moved a little",
    "scaled": "inputs times {number:g}",
    "shifted": "inputs plus {number:g}",
    "positive": "positive inputs",
    "negative": "negative inputs",
    "rounded": "inputs that are multiples of {number:g}",
    "some_zero": "inputs with exact zeros",
    "around": "inputs at and around {number:g}",
    "constant": "inputs that are all {number:g}",
    "equal_rows": "inputs with equal rows",
    "zero_row": "inputs with a row of zeros",
    "sorted": "sorted inputs",
    "one_hot": "one-hot inputs",
    "masked": "inputs of which some are -inf",
}
_COTANGENT_WORDS: Final[dict[str, str]] = {
    "random": "",
    "ones": "all ones",
    "zeros": "all zeros",
    "one_hot": "a single one",
    "zero_rows": "rows of zeros",
    "scaled": "random times {number:g}",
    "constant": "one number everywhere",
    "positive": "positive",
    "negative": "negative",
    "around": "at and around {number:g}",
}
_SEQUENCE_WORDS: Final[dict[str, str]] = {
    "interleaved": "when another forward comes between forward and backward",
    "after_another": "after a call with other inputs",
    "repeated": "when called again",
    "second_backward": "in a second backward over the same graph",
    "output_written": "when the output is written to in place before backward",
    "input_written": "when an input is written to in place before backward",
    "other_seed": "when random generators stand elsewhere as backward begins",
    "create_graph": "with create_graph=True",
    "used_twice": "when it is used twice in one graph",
    "inference_first": "after a call under no_grad",
    "other_thread": "when backward runs in another thread",
    "after_update": "after a call with other values in the same tensor",
}


_OTHER_WORDS: Final[dict[str, str]] = {
    "reversed": "with indices and masks backwards",
    "equal": "when all indices are equal",
    "sorted": "with sorted indices",
    "zeros": "when all indices are 0",
    "distinct": "when all indices differ",
    "inverted": "with inverted masks",
    "all": "with masks that are all true",
    "none": "with masks that are all false",
    "row_none": "with a row of a mask all false",
}


def _say_broadcast(number: int, what: str) -> str:
    words = {
        "leading": "has no leading dimension",
        "single": "is a single element",
        "full": "has the full shape",
        "raised": "has one dimension more",
    }
    return f"when input {number} " + words.get(what, f"has size 1 in {what}")


def _say_cotangent(situation: Situation) -> str:
    cotangent = situation.cotangent
    words = _COTANGENT_WORDS[cotangent.kind].format(number=cotangent.number)
    parts = [f"for {_article(cotangent.layout)} incoming gradient" if cotangent.layout != "contiguous" else ""]
    parts += [f"for an incoming gradient that is {words}" if words else ""]
    if cotangent.outputs is not None:
        parts.append(f"when only output {', '.join(map(str, cotangent.outputs))} is used")
    return ", ".join(part for part in parts if part)


def _article(layout: str) -> str:
    words = {
        "transposed": "a transposed",
        "strided": "a strided (sliced)",
        "offset": "an offset (sliced)",
        "sliced": "a contiguous (sliced from a batch)",
        "expanded": "an expanded (stride 0)",
        "channels_last": "a channels_last",
    }
    return words[layout]


_WORDS: Final[dict[str, Callable[[Situation], str]]] = {
    "values": lambda s: "for " + _VALUE_WORDS[s.values.kind].format(number=s.values.number),
    "resize": lambda s: "for " + ", ".join(f"size {new} instead of {old}" for old, new in s.resize),
    "rank_of": lambda _: "",
    "broadcast": lambda s: ", ".join(_say_broadcast(number, what) for number, what in s.broadcast),
    "others": lambda s: _OTHER_WORDS[s.others],
    "rank": lambda s: "with one dimension more" if s.rank > 0 else "with one dimension less",
    "input_layout": lambda s: f"for {_article(s.input_layout)} input",
    "cotangent": _say_cotangent,
    "wanted": lambda s: f"when only input {', '.join(map(str, s.wanted or ()))} requires grad",
    "dtype": lambda s: f"in {s.dtype}" if s.dtype_of is None else f"when input {s.dtype_of} alone is {s.dtype}",
    "dtype_of": lambda _: "",
    "written": lambda s: f"(argument {s.written})",
    "autocast": lambda s: "under autocast" + (", backward too" if s.autocast == "throughout" else ""),
    "alias": lambda _: "when the same tensor is given for several inputs",
    "sequence": lambda s: _SEQUENCE_WORDS[s.sequence],
    "arguments": lambda s: "with " + ", ".join(f"argument {index} = {value!r}" for index, value in s.arguments),
    "flags": lambda s: ", ".join(FLAGS[name] for name in s.flags),
}
