"""Changes to arguments that an error message suggests. Text in, changed arguments out; nothing is run here.

What needs the frames of the error is in `frame_repair`, what needs a condition in `guards`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gradproof_probe.harness.arguments import Argument, Arguments
from gradproof_probe.harness.names import WIDTH

_NUMBER: Final = r"(\d+)"
_SHAPE: Final = r"\[([\d, ]*)\]"


def repairs(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    """(changed arguments, what the message said), most likely first."""
    for rule in _RULES:
        yield from rule(message, arguments)


def _set_axis(arguments: Arguments, index: int, axis: int, size: int) -> Arguments | None:
    argument = arguments[index]
    rank = len(argument.shape)
    if not argument.is_tensor or not -rank <= axis < rank or size < 1 or size > 4096 or argument.shape[axis] == size:
        return None
    shape = list(argument.shape)
    shape[axis] = size
    return _with(arguments, index, argument.with_shape(tuple(shape)))


def _with(arguments: Arguments, index: int, argument: Argument) -> Arguments:
    return (*arguments[:index], argument, *arguments[index + 1 :])


def _offer(changed: Arguments | None, text: str) -> Iterator[tuple[Arguments, str]]:
    if changed is not None:
        yield changed, text


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(",") if item.strip())


def _matmul(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(
        rf"mat1 and mat2 shapes cannot be multiplied \({_NUMBER}x{_NUMBER} and {_NUMBER}x{_NUMBER}\)", message
    )
    if match:
        _, have, want, other = map(int, match.groups())
        text = f"matrix product wants {want} features, got {have}"
        for index, argument in enumerate(arguments):
            if argument.is_tensor and argument.shape and argument.shape[-1] == have:
                yield from _offer(_set_axis(arguments, index, -1, want), text)
        if not any(argument.is_tensor and have in argument.shape for argument in arguments):
            yield from _shifted(arguments, have, want)
        for index, argument in enumerate(arguments):
            if argument.is_tensor and argument.shape:
                yield from _offer(_set_axis(arguments, index, -1, want), text)
                # Channels behind a flatten: the product of all but the batch is what is asked for.
                yield from _offer(_flattened(arguments, index, have, want), text)
                yield from _offer(_set_axis(arguments, index, -1, other), text)
    match = re.search(
        rf"size mismatch, got input \({_NUMBER}\), mat \({_NUMBER}x{_NUMBER}\), vec \({_NUMBER}\)", message
    )
    if match:
        want = int(match[3])
        for index, argument in enumerate(arguments):
            if argument.is_tensor and argument.shape:
                yield from _offer(_set_axis(arguments, index, -1, want), f"product wants {want} elements")
    match = re.search(
        r"Expected size for first two dimensions of batch2 tensor to be: " + _SHAPE + " but got: " + _SHAPE, message
    )
    if match:
        sizes, found = _shape(match[1]), _shape(match[2])
        for index, argument in enumerate(arguments):
            if argument.is_tensor and len(argument.shape) == 3:
                for axis in (0, 1):
                    if argument.shape[axis] == found[axis] != sizes[axis]:
                        yield from _offer(_set_axis(arguments, index, axis, sizes[axis]), "batched product")
        for index, argument in enumerate(arguments if sizes[0] != found[0] else ()):
            if argument.is_tensor and argument.shape[:1] == sizes[:1]:
                text = f"the other factor is a batch of {found[0]}"
                yield from _offer(_set_axis(arguments, index, 0, found[0]), text)


def _shifted(arguments: Arguments, have: int, want: int) -> Iterator[tuple[Arguments, str]]:
    """A size that no argument has is computed of one: something was concatenated to it, or it was multiplied."""
    yield from _shifted_together(arguments, have, want)
    for index, argument in enumerate(arguments):
        for axis in (-1, 1) if argument.is_tensor and len(argument.shape) > 1 else ():
            size = argument.shape[axis]
            for wanted in (size + want - have, size * want // have if size * want % have == 0 else 0):
                text = f"axis {axis} of {size} becomes {have}, {want} is wanted"
                yield from _offer(_set_axis(arguments, index, axis, wanted), text)


def _shifted_together(arguments: Arguments, have: int, want: int) -> Iterator[tuple[Arguments, str]]:
    """All that have the same size there were concatenated: three of 8 channels are 24, three of 1 are 3."""
    for axis in (-1, 1):
        sizes = [a.shape[axis] for a in arguments if a.kind == "float" and len(a.shape) > 1]
        if len(sizes) < 2:
            continue
        # Where one of them is broadcast the count isn't whole: as many as come nearest.
        times = max(round(have / max(sizes)), 1)
        size = want // times if want % times == 0 else 1 if times >= want else 0
        if size and any(other != size for other in sizes):
            changed = tuple(
                a.with_shape(tuple(size if place == axis % len(a.shape) else n for place, n in enumerate(a.shape)))
                if a.kind == "float" and len(a.shape) > 1
                else a
                for a in arguments
            )
            yield changed, f"axis {axis} of all becomes {have}, {want} is wanted"


def _flattened(arguments: Arguments, index: int, have: int, want: int) -> Arguments | None:
    argument = arguments[index]
    size = 1
    for item in argument.shape[1:]:
        size *= item
    if len(argument.shape) < 3 or size == 0 or (have % size and size % have):
        return None
    side = round((want / have) ** 0.5 * argument.shape[-1])
    return _with(arguments, index, argument.with_shape((*argument.shape[:-2], side, side))) if 0 < side < 257 else None


def _channels(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(rf"expected input{_SHAPE} to have {_NUMBER} channels, but got {_NUMBER} channels", message)
    if match:
        got, want, have = _shape(match[1]), int(match[2]), int(match[3])
        text = f"convolution wants {want} channels"
        for index, argument in enumerate(arguments):
            if argument.is_tensor and argument.shape == got:
                yield from _offer(_set_axis(arguments, index, 1, want), text)
        for index, argument in enumerate(arguments):
            if argument.is_tensor:
                for axis, size in enumerate(argument.shape):
                    if size == have:
                        yield from _offer(_set_axis(arguments, index, axis, want), text)
                yield from _offer(_set_axis(arguments, index, 1, want), text)
        if not any(argument.is_tensor and have in argument.shape for argument in arguments):
            yield from _shifted(arguments, have, want)
    match = re.search(rf"running_mean should contain {_NUMBER} elements not {_NUMBER}", message)
    if match:
        have, want = int(match[1]), int(match[2])
        for index, argument in enumerate(arguments):
            if argument.is_tensor and len(argument.shape) > 1 and argument.shape[1] == have:
                yield from _offer(_set_axis(arguments, index, 1, want), f"batch norm wants {want} channels")
    match = re.search(
        rf"Expected weight to be a vector of size equal to the number of channels in input, .* of shape \[{_NUMBER}\]",
        message,
    )
    if match:
        for index, argument in enumerate(arguments):
            if argument.is_tensor:
                yield from _offer(_set_axis(arguments, index, 1, int(match[1])), "normalisation over channels")


def _normalized(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(
        rf"Given normalized_shape={_SHAPE}, expected input with shape \[[^\]]*\], but got input of size\s*{_SHAPE}",
        message,
    )
    if match:
        want, got = _shape(match[1]), _shape(match[2])
        for index, argument in enumerate(arguments):
            if not argument.is_tensor:
                continue
            if argument.shape == got or not any(a.shape == got for a in arguments):
                kept = argument.shape[: max(0, len(argument.shape) - len(want))]
                yield _with(arguments, index, argument.with_shape((*kept, *want))), f"layer norm over {want}"
        if want and got and not any(a.shape == got for a in arguments):
            yield from _shifted(arguments, got[-1], want[-1])
    match = re.search(rf"input\.size\(-1\) must be equal to input_size\. Expected {_NUMBER}, got {_NUMBER}", message)
    if match:
        for index, argument in enumerate(arguments):
            if argument.is_tensor:
                yield from _offer(_set_axis(arguments, index, -1, int(match[1])), f"recurrent layer wants {match[1]}")
    match = re.search(
        rf"expecting embedding dimension of {_NUMBER}, but got {_NUMBER}|embed(?:_dim|ding).*?{_NUMBER}.*?{_NUMBER}",
        message,
    )
    if match:
        features = int(match[1] or match[3])
        for index, argument in enumerate(arguments):
            if argument.is_tensor:
                yield from _offer(_set_axis(arguments, index, -1, features), f"attention wants {features} features")


def _sizes(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(
        rf"size of tensor a \({_NUMBER}\) must match the size of tensor b \({_NUMBER}\) at non-singleton dimension",
        message,
    ) or re.search(
        rf"[Ee]xpanded size of the tensor \({_NUMBER}\) must match the existing size \({_NUMBER}\)",
        message,
    )
    pair: tuple[int, int] | None = (int(match[1]), int(match[2])) if match else None
    if pair is None:
        match = re.search(
            rf"Sizes of tensors must match except in dimension \d+\. Expected size {_NUMBER} but got size {_NUMBER}",
            message,
        )
        pair = (int(match[1]), int(match[2])) if match else None
    if pair is None:
        match = re.search(
            rf"einsum\(\): subscript \w has size {_NUMBER} for operand .* with previously seen size {_NUMBER}",
            message,
        )
        pair = (int(match[1]), int(match[2])) if match else None
    if pair is None:
        match = re.search(
            rf"[Ee]xpected input batch_size \({_NUMBER}\) to match target batch_size \({_NUMBER}\)", message
        )
        pair = (int(match[2]), int(match[1])) if match else None
    if pair is not None:
        for have, want in (pair, pair[::-1]):
            for index in reversed(range(len(arguments))):
                argument = arguments[index]
                if argument.is_tensor:
                    for axis in reversed(range(len(argument.shape))):
                        if argument.shape[axis] == have:
                            yield from _offer(
                                _set_axis(arguments, index, axis, want), f"sizes {have} and {want} must match"
                            )
    if re.search(r"same batch size|batch size", message):
        for index, argument in enumerate(arguments):
            if argument.is_tensor and argument.shape and argument.shape[0] != 1:
                yield from _offer(_set_axis(arguments, index, 0, 1), "a batch of one")
    match = re.search(
        rf"Target size \(torch\.Size\({_SHAPE}\)\) must be the same as input size \(torch\.Size\({_SHAPE}\)\)", message
    )
    if match:
        target, wanted = _shape(match[1]), _shape(match[2])
        for index in reversed(range(len(arguments))):
            if arguments[index].is_tensor and arguments[index].shape == target:
                yield _with(arguments, index, replace(arguments[index], shape=wanted)), "target has the input's size"


def _ranks(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    wanted: list[int] = []
    match = re.search(rf"not enough values to unpack \(expected (?:at least )?{_NUMBER}, got {_NUMBER}\)", message)
    if match:
        wanted = [int(match[1])]
    match = re.search(rf"too many values to unpack \(expected {_NUMBER}", message)
    if match:
        wanted = [int(match[1])]
    match = re.search(
        rf"[Ee]xpected (?:\w+ )?{_NUMBER}D?(?:-D|D)?(?:,? \(?\w*\)?)?(?: or {_NUMBER}D)?.*?(?:got|but)", message
    )
    if match and not wanted:
        wanted = [int(item) for item in match.groups() if item and int(item) < 6]
    match = re.search(r"[Ee]xpected (\d)D \(unbatched\) or (\d)D \(batched\)", message)
    if match:
        wanted = [int(match[2]), int(match[1])]
    match = re.search(r"only supports (\d)D and (\d)D sizes", message)
    if match:
        wanted = [int(match[1]), int(match[2])]
    match = re.search(rf"Wrong shape: expected {_NUMBER} dims\. Received {_NUMBER}-dim tensor", message)
    if match:
        wanted = [int(match[1])]
    match = re.search(
        r"number of dimensions in the tensor input .*input\.dim\(\) = (\d) is not equal to len\(dims\) = (\d)",
        message,
    )
    if match:
        wanted = [int(match[2])]
    match = re.search(
        r"the number of subscripts in the equation \((\d)\) does not match the number of dimensions \((\d)\)",
        message,
    )
    if match and match[1]:
        wanted = [int(match[1])]
    match = re.search(r"Dimension out of range \(expected to be in range of \[-\d, \d\], but got (-?\d)\)", message)
    if match:
        axis = int(match[1])
        wanted = [axis + 1 if axis >= 0 else -axis]
    if re.search(r"too many indices for tensor of dimension (\d)|IndexError", message):
        match = re.search(r"too many indices for tensor of dimension (\d)", message)
        if match:
            wanted = [int(match[1]) + 1]
    if re.search(
        r"matrix_chain|must be at least 2-D|2D tensors expected|self must be a matrix|t\(\) expects a tensor with <= 2",
        message,
    ):
        wanted = [2]
    if re.search(r"batch1 must be a 3D tensor|both arguments to matmul need to be at least 1D", message):
        wanted = [3]
    for rank in wanted:
        for index, argument in enumerate(arguments):
            if argument.is_tensor and len(argument.shape) != rank:
                yield (
                    _with(arguments, index, argument.with_shape(of_rank(argument.shape, rank))),
                    f"{rank} axes wanted",
                )
        if len(arguments) > 1:
            every = tuple(a.with_shape(of_rank(a.shape, rank)) if a.is_tensor else a for a in arguments)
            yield every, f"{rank} axes wanted everywhere"


def _alike(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    """One came batched and another not: those of one kind all have the shape of the one with the most axes."""
    if not re.search(r"[Ff]or (?:un)?batched|the batch number of|both (?:be )?(?:un)?batched", message):
        return
    for kind in ("int", "float"):
        same = [argument for argument in arguments if argument.kind == kind]
        if len({len(argument.shape) for argument in same}) > 1:
            shape = max((argument.shape for argument in same), key=len)
            changed = tuple(
                a.with_shape(shape) if a.kind == kind and len(a.shape) < len(shape) else a for a in arguments
            )
            yield changed, "all are batched"


def of_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The same last axis with other leading axes; a new image is 3 x 16 x 16."""
    last = shape[-1] if shape else WIDTH
    return {
        0: (),
        1: (last,),
        2: (3, last),
        3: (2, 5, last),
        4: (2, 3, 16, 16) if len(shape) < 4 else (2, *shape[-3:]),
        5: (2, 3, 4, 16, 16),
    }.get(rank, (2,) * rank)


def _added(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    """What is added by index: slices of what it is added to, one for each number of the index."""
    match = re.search(
        rf"source tensor shape must match self tensor shape, .* Got self.shape = {_SHAPE} source.shape = {_SHAPE}",
        message,
    )
    taken, given = (_shape(match[1]), _shape(match[2])) if match else ((), ())
    count = re.search(
        rf"Number of indices \({_NUMBER}\) should be equal to source.size\(dim\): \({_NUMBER}\), for dim: {_NUMBER}",
        message,
    )
    for index, argument in enumerate(arguments):
        if given and argument.is_tensor and argument.shape == given:
            slices = argument.with_shape((given[0], *taken[1:]))
            yield _with(arguments, index, slices), f"slices of {taken} are added"
        if count and argument.is_tensor and argument.shape[int(count[3]) :][:1] == (int(count[2]),):
            yield from _offer(_set_axis(arguments, index, int(count[3]), int(count[1])), f"{count[1]} are added")


def _expected(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    """`Expected shape: ['B', '3', '3'] Actual shape: [2, 5, 5]` and the like: its numbers are taken, symbols not."""
    match = re.search(
        r"(?:[Ee]xpected|must (?:be|have)|should (?:be|have)|[Rr]equired)[^\[(]{0,60}[\[(]([^\])]{1,80})[\])].{0,80}?"
        r"(?:[Aa]ctual|[Gg]ot|[Rr]eceived|[Gg]iven|but|found)[^\[(]{0,60}(?:torch\.Size\()?[\[(]([\d, ]*)[\])]",
        message,
    )
    if not match:
        return
    symbols = [item.strip().strip("'\"") for item in match[1].split(",") if item.strip()]
    actual = _shape(match[2])
    starred = "*" in symbols or "..." in symbols
    symbols = [item for item in symbols if item not in ("*", "...")]
    for index, argument in enumerate(arguments):
        if argument.is_tensor and argument.shape == actual:
            kept = max(len(actual) - len(symbols), 1) if starred else 0
            front = argument.shape[:kept] or ((2,) if starred else ())
            usual = of_rank(argument.shape, len(symbols)) if len(symbols) <= 5 else (2,) * len(symbols)
            sizes = [int(item) if item.isdigit() else usual[place] for place, item in enumerate(symbols)]
            yield _with(arguments, index, argument.with_shape((*front, *sizes))), f"the shape {match[1]} is asked for"


def _dtypes(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    if re.search(
        r"expected scalar type Long|Expected dtype int|must be (?:integers|long)|"
        r"expected tensor for argument #1 'indices'|"
        r"tensors used as indices must be long|Expected floating point type for target with class probabilities|"
        r"\"(?:nll_loss|one_hot|embedding|scatter|gather)[^\"]*\" not implemented|dtype int64 for index|"
        r"expected dtype int64|one_hot is only applicable to index tensor|index must be|only integer tensors|"
        r"can't (?:be )?convert.*to an? (?:int|index)|an index",
        message,
    ):
        for index in reversed(range(len(arguments))):
            if arguments[index].kind == "float":
                yield _with(arguments, index, replace(arguments[index], kind="int", high=4)), "integers wanted"
    if re.search(r"(?:int|long|integer|discrete)\b.{0,80}(?:got|received|but).{0,60}float", message):
        for index in reversed(range(len(arguments))):
            if arguments[index].kind == "float":
                yield _with(arguments, index, replace(arguments[index], kind="int", high=2)), "integers wanted"
    if re.search(r"bool|masked_fill_? only supports|mask tensor|where expected condition", message):
        for index in reversed(range(len(arguments))):
            if arguments[index].kind in ("float", "int"):
                yield _with(arguments, index, replace(arguments[index], kind="bool")), "a mask wanted"
    if re.search(
        r"expected scalar type (?:Float|Double)|Long|mixed dtype|same d(?:ata)?type|Only Tensors of floating|"
        r"floating point",
        message,
    ):
        for index, argument in enumerate(arguments):
            if argument.kind in ("int", "bool"):
                yield _with(arguments, index, replace(argument, kind="float")), "floating point wanted"
    match = re.search(
        r"index out of range|(?:Target|index) \d+ is out of bounds|Class values must be smaller",
        message,
    )
    if match:
        for index, argument in enumerate(arguments):
            if argument.kind == "int" and argument.high > 2:
                yield _with(arguments, index, replace(argument, high=2)), "smaller indices wanted"
    if re.search(
        r"all elements of (?:input|target) should be between 0 and 1|between 0 and 1|\[0, ?1\]|"
        r"greater (?:than )?or equal to 0|non-?negative|must be positive|should be positive",
        message,
    ):
        for index, argument in enumerate(arguments):
            if argument.kind == "float" and argument.values == "normal":
                yield _with(arguments, index, replace(argument, values="unit")), "values in [0, 1] wanted"
        yield tuple(replace(a, values="unit") if a.kind == "float" else a for a in arguments), "values in [0, 1] wanted"


def _divisible(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(rf"can't divide axis of length {_NUMBER} in chunks of {_NUMBER}", message)
    if match:
        have, chunk = int(match[1]), int(match[2])
        for index, argument in enumerate(arguments):
            if argument.is_tensor and have in argument.shape:
                rounded = tuple(-(-size // chunk) * chunk if size == have else size for size in argument.shape)
                yield _with(arguments, index, argument.with_shape(rounded)), f"axis divisible by {chunk}"
            elif argument.is_tensor and len(argument.shape) >= 3 and have:
                # What is left of an image after the layers before: all of it has to be so many times as large.
                factor = chunk // math.gcd(have, chunk)
                side = max(argument.shape[-2:]) * factor
                if side <= 512:
                    yield (
                        _with(arguments, index, argument.with_shape((*argument.shape[:-2], side, side))),
                        f"{factor}-fold",
                    )
    if re.search(
        r"divisible|multiple of|evenly|must be divided|is invalid for input of size|Kernel size can't be greater|"
        r"too small|Calculated padded input size|non-positive|doesn't match model|Input image",
        message,
    ):
        for side in (16, 32, 64, 128, 256):
            for index, argument in enumerate(arguments):
                if argument.is_tensor and len(argument.shape) >= 4 and argument.shape[-2:] != (side, side):
                    yield (
                        _with(arguments, index, argument.with_shape((*argument.shape[:-2], side, side))),
                        f"image side {side}",
                    )
        for index, argument in enumerate(arguments):
            if argument.is_tensor and len(argument.shape) == 3 and argument.shape[1] != 16:
                yield from _offer(_set_axis(arguments, index, 1, 16), "length 16")
                yield from _offer(_set_axis(arguments, index, 2, 16), "length 16")
    match = re.search(rf"shape '\[[\d, -]+\]' is invalid for input of size {_NUMBER}", message)
    if match:
        for size in (8, 4, 16):
            for index, argument in enumerate(arguments):
                if argument.is_tensor and argument.shape:
                    yield from _offer(_set_axis(arguments, index, -1, size), f"last axis {size}")


def _kinds(message: str, arguments: Arguments) -> Iterator[tuple[Arguments, str]]:
    match = re.search(r"unexpected keyword argument '(\w+)'", message)
    if match:
        kept = tuple(a for a in arguments if not (a.keyword and a.name == match[1]))
        if len(kept) < len(arguments):
            yield kept, f"no argument {match[1]}"
    if re.search(
        r"'(?:float|int|NoneType|bool)' object has no attribute|must be Tensor, not (?:float|int|bool)|"
        r"'(?:float|int)' object is not (?:iterable|subscriptable)",
        message,
    ):
        for index, argument in enumerate(arguments):
            if argument.kind == "literal":
                yield (
                    _with(arguments, index, replace(argument, kind="float", shape=(3, WIDTH))),
                    f"{argument.name} is a tensor",
                )
    if "negative dimension" in message or "must be non-negative" in message:
        for index, argument in enumerate(arguments):
            if argument.kind == "literal" and argument.text.startswith("-"):
                yield _with(arguments, index, replace(argument, text="8")), f"{argument.name} is a size"
    if "save_for_backward can only save" in message:
        for index, argument in enumerate(arguments):
            for shape in ((), (WIDTH,), (3, WIDTH)) if argument.guessed and argument.kind == "literal" else ():
                yield (
                    _with(arguments, index, replace(argument, kind="float", shape=shape)),
                    f"{argument.name} is a tensor",
                )
    if re.search(
        r"only one element tensors can be converted|only integer tensors of a single element|not Tensor|type Tensor|"
        r"must be (?:int|float|bool|str|tuple of ints|a number|real number)|[Bb]ool(?:ean)? value of Tensor with more|"
        r"invalid combination of arguments|cannot be interpreted as an integer|must be (?:\w+ )?integer|is_integer|"
        r"unsupported operand type|negative dimension|only supports 0-dimensional",
        message,
    ):
        for index in reversed(range(len(arguments))):
            argument = arguments[index]
            if argument.is_tensor:
                for text in ("2", "0.7", "-1") if "bool," not in message else ("False", "2"):
                    yield (
                        _with(arguments, index, replace(argument, kind="literal", text=text, guessed=True)),
                        f"{argument.name} is a number",
                    )
    if "must be torch.dtype" in message:
        for index, argument in enumerate(arguments):
            if argument.is_tensor:
                text = "torch.get_default_dtype()"
                yield _with(arguments, index, replace(argument, kind="literal", text=text)), "a type is wanted"
    if re.search(r"'Tensor' object is not callable", message):
        for index in reversed(range(len(arguments))):
            if arguments[index].is_tensor:
                yield (
                    _with(arguments, index, replace(arguments[index], kind="literal", text="torch.tanh")),
                    "a function",
                )


_RULES: Final = (
    _alike,
    _added,
    _expected,
    _channels,
    _normalized,
    _matmul,
    _ranks,
    _dtypes,
    _divisible,
    _sizes,
    _kinds,
)
