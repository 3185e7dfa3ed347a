"""The standard situations that every Function is tried in, in the order of what they tell for their cost.

Most faults of hand-written backwards show in one of a few circumstances (checks facts, sections 5 and 6); each list
below holds those that share a reference, so that one graph of the oracle serves many pulls. This module only lists.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from gradproof_probe.gradients.situations import Broadcast, Cotangent, Layout, Others, Situation, Values

# Beyond the blocks that kernels work in: 256, 1024, 4096 elements, with a tail.
LONG: Final = 4_200
# No made input is larger than this, whatever the clue: 8 MiB of float64.
LARGEST: Final = 2**20
# Sequences of calls. `create_graph` takes another path in Functions that look whether grad is enabled.
SEQUENCES: Final = (
    Situation(sequence="second_backward"),
    Situation(sequence="interleaved"),
    Situation(sequence="after_another"),
    Situation(sequence="repeated"),
    Situation(sequence="inference_first"),
    Situation(sequence="create_graph"),
    Situation(sequence="other_seed"),
    Situation(sequence="used_twice"),
    # Last: it makes its own memory, and goes with no layout of inputs.
    Situation(sequence="after_update"),
)
VALUES: Final = (
    Values("scaled", 10.0),
    Values("scaled", 1e-3),
    Values("negative"),
    Values("positive"),
    Values("some_zero"),
    Values("equal_rows"),
    Values("rounded", 1.0),
    Values("sorted"),
    Values("zero_row"),
    Values("shifted", 3.0),
    Values("shifted", -3.0),
    Values("constant", 1.0),
    Values("one_hot"),
    Values("masked"),
)
FLAGS: Final = (
    Situation(flags=("deterministic",)),
    Situation(flags=("anomaly",)),
    Situation(flags=("float32_precision_high",)),
)
OTHERS: Final[tuple[Others, ...]] = (
    "reversed",
    "equal",
    "sorted",
    "zeros",
    "distinct",
    "inverted",
    "all",
    "none",
    "row_none",
)
BROADCASTS: Final[tuple[Broadcast, ...]] = (
    "full", "axis 0", "axis 1", "axis 2", "axis 3", "leading", "single", "raised",
)  # fmt: skip


def pulls(outputs: Sequence[torch.Tensor]) -> list[Situation]:
    """Cotangents of other layouts and values, for ordinary inputs."""
    found = [
        Situation(cotangent=Cotangent(layout="transposed")),
        Situation(cotangent=Cotangent("ones", layout="expanded")),
        Situation(cotangent=Cotangent(layout="strided")),
        Situation(cotangent=Cotangent("ones")),
        Situation(cotangent=Cotangent(layout="expanded")),
        Situation(cotangent=Cotangent(layout="offset")),
        Situation(cotangent=Cotangent(layout="sliced")),
        # Zeros hide what other changes do: these come last, where little is left to go with them.
        Situation(cotangent=Cotangent("one_hot")),
        Situation(cotangent=Cotangent("zero_rows")),
        Situation(cotangent=Cotangent("zeros")),
    ]
    if any(output.dim() in (4, 5) for output in outputs):
        found.append(Situation(cotangent=Cotangent(layout="channels_last")))
    live = [index for index, output in enumerate(outputs) if output.requires_grad and output.numel()]
    if len(live) > 1:
        found += [Situation(cotangent=Cotangent(outputs=(index,))) for index in live]
    return found


def combined(*lists: Sequence[Situation]) -> list[Situation]:
    """The first of each list at once, the second of each, …: what changes other things can be tried together.

    A fault in one of them shows all the same, and is then looked for in the parts. It halves the time.
    """
    found = []
    for items in itertools.zip_longest(*lists):
        present = [item for item in items if item is not None]
        merged = present[0]
        for item in present[1:]:
            merged = merged.merged(item)
        found.append(merged)
    return found


def subsets(count: int) -> list[Situation]:
    """Each variable alone, and all but each."""
    if count < 2:
        return []
    chosen: list[tuple[int, ...]] = [(index,) for index in range(count)]
    if count > 2:
        chosen += [tuple(other for other in range(count) if other != index) for index in range(count)]
    return [Situation(wanted=item) for item in chosen]


def layouts(inputs: Sequence[torch.Tensor]) -> list[Situation]:
    """The same input values in other memory."""
    plain: tuple[Layout, ...] = ("transposed", "strided", "offset")
    found = [Situation(input_layout=layout) for layout in plain]
    found.append(Situation(values=Values("equal_rows"), input_layout="expanded"))
    found.append(Situation(input_layout="sliced"))
    if any(item.dim() in (4, 5) for item in inputs):
        found.append(Situation(input_layout="channels_last"))
    return found


def written(args: Sequence[Any]) -> list[Situation]:
    """Each tensor among the arguments written to between forward and backward, by itself: the others stay whole."""
    tensors = [index for index, item in enumerate(args) if isinstance(item, torch.Tensor) and item.numel()]
    return [Situation(sequence="output_written"), *(Situation(sequence="input_written", written=i) for i in tensors)]


def others(tensors: Sequence[torch.Tensor]) -> list[Situation]:
    """Other entries in tensors of integers and booleans."""
    masks = any(item.dtype == torch.bool for item in tensors)
    indices = any(not (item.is_floating_point() or item.is_complex() or item.dtype == torch.bool) for item in tensors)
    kinds = [kind for kind in OTHERS if (masks if kind in ("inverted", "all", "none", "row_none") else indices)]
    return [Situation(others=kind) for kind in kinds]


def broadcasts(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Situation]:
    """Each of several inputs in each shape that may broadcast with the others."""
    if len(inputs) < 2 or not _broadcasting(inputs, outputs):
        return []
    found = []
    for number, item in enumerate(inputs[:4]):
        for what in BROADCASTS:
            if what.startswith("axis") and int(what[5:]) >= item.dim():
                continue
            if what in ("leading", "single", "raised") and item.dim() < (2 if what == "leading" else 1):
                continue
            found.append(Situation(broadcast=((number, what),)))
    return found


def _broadcasting(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether outputs have the shape that the inputs broadcast to, as element-wise functions of several inputs have.

    A loss or a filter that takes other shapes without complaint promises nothing about them.
    """
    try:
        shape = torch.broadcast_shapes(*(item.shape for item in inputs))
    except RuntimeError:
        return False
    return len(shape) > 0 and all(output.shape == shape for output in outputs)


def arguments(args: Sequence[Any]) -> list[Situation]:
    """Numbers and switches among the arguments, changed: those that nothing in the source compares with anything."""
    found: list[Situation] = []
    for index, item in enumerate(args):
        if isinstance(item, bool):
            found.append(Situation(arguments=((index, not item),)))
        elif isinstance(item, float) and math.isfinite(item):
            found += [Situation(arguments=((index, item * factor),)) for factor in (2.0, 0.5)]
        elif isinstance(item, int):
            found += [Situation(arguments=((index, item + step),)) for step in (1, -1)]
    return found[:12]


def aliases(inputs: Sequence[torch.Tensor]) -> list[Situation]:
    """The same tensor for several inputs, where shapes allow it."""
    shapes = [(item.dim(), item.shape[-1] if item.dim() else 0, item.dtype) for item in inputs]
    return [Situation(alias=True)] if len(set(shapes)) < len(shapes) else []


def _batch_of_one(variables: Sequence[torch.Tensor]) -> list[Situation]:
    """The leading dimension alone, where its length is that of another one as well."""
    largest = max(variables, key=lambda item: item.numel(), default=None)
    if largest is None or largest.dim() < 2 or largest.shape[0] < 2:
        return []
    lead = largest.shape[0]
    if all(size != lead for item in variables for size in item.shape[1:]):
        return []
    leading: list[tuple[int, Broadcast]] = [
        (number, "axis 0")
        for number, item in enumerate(variables)
        if item.dim() == largest.dim() and item.shape[0] == lead
    ]
    return [Situation(broadcast=tuple(leading))]


def sizes(inputs: Sequence[torch.Tensor], variables: Sequence[torch.Tensor]) -> list[Situation]:
    """Each dimension 1, a little longer, and so long that there are some thousand elements."""
    lengths = list(dict.fromkeys(size for item in inputs for size in item.shape if size > 0))
    found: list[Situation] = []
    for length in lengths[:5]:
        found += [Situation(resize=((length, other),)) for other in (1, length + 1) if other != length]
    found += [Situation(resize=((length, long(inputs, length, LONG)),)) for length in _ends(inputs)]
    if len(lengths) > 1:
        found.append(Situation(resize=tuple((length, 1) for length in lengths if length != 1)))
    found += [Situation(resize=((length, 0),)) for length in _ends(inputs)]
    found += _batch_of_one(variables)
    return [item for item in found if all(old != new for old, new in item.resize)]


def _ends(inputs: Sequence[torch.Tensor]) -> list[int]:
    """First and last length of the largest input: what grows with the batch, and what rows are made of."""
    largest = max(inputs, key=lambda item: item.numel(), default=None)
    if largest is None or largest.dim() == 0:
        return []
    return list(dict.fromkeys((largest.shape[-1], largest.shape[0])))


def long(inputs: Sequence[torch.Tensor], length: int, elements: int) -> int:
    """What this dimension has to become for the largest input that has it to hold just more than `elements`.

    Where the length stands for several dimensions at once, growth is their product: it ends at twice as many elements.
    """
    holding = max((item.numel() // max(length, 1) for item in inputs if length in item.shape), default=1)
    # An odd number: no tail is a whole block.
    longer = max(length, elements // max(holding, 1) + 1) | 1
    while longer > length + 1 and grown(inputs, ((length, longer),)) > 2 * elements:
        longer = max(length + 1, int(longer * 0.7)) | 1
    return longer


def grown(inputs: Sequence[torch.Tensor], resize: Sequence[tuple[int, int]]) -> int:
    """The elements of the largest input after a resize."""
    lengths = dict(resize)
    return max((math.prod(lengths.get(size, size) for size in item.shape) for item in inputs), default=0)


def ranks(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> list[Situation]:
    """One dimension more, one less, of what works element by element, as far as shapes tell.

    A matrix routine that is given a batch of matrices without complaint may be wrong there, but nobody said it could.
    """
    if len({tuple(item.shape) for item in [*inputs, *outputs]}) != 1:
        return []
    highest = max((item.dim() for item in inputs), default=0)
    return [Situation(rank=1), *([Situation(rank=-1)] if highest > 1 else [])]


def values() -> list[Situation]:
    """Other numbers in the inputs."""
    return [Situation(values=item) for item in VALUES]


def mixed(count: int) -> list[Situation]:
    """One input alone in float32."""
    return [Situation(dtype="float32", dtype_of=index) for index in range(count)] if count > 1 else []


# Cotangents without zeros: they go with other values of inputs, and hide nothing there.
DENSE: Final = (
    Situation(cotangent=Cotangent("scaled", 1e4)),
    Situation(cotangent=Cotangent("scaled", 1e-4)),
    Situation(cotangent=Cotangent("positive")),
    Situation(cotangent=Cotangent("negative")),
    Situation(cotangent=Cotangent("constant")),
)
LOW_PRECISION: Final = (
    Situation(dtype="float32"),
    Situation(dtype="bfloat16"),
    Situation(dtype="float16"),
    Situation(dtype="float32", autocast="forward"),
    Situation(dtype="float32", autocast="throughout"),
)
