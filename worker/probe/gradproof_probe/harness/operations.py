"""What torch's functions and the methods of tensors demand of their operands, and the form of what they give.

By name alone, and only what holds for every call of that name: an operation that isn't here gives nothing away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from gradproof_probe.harness.axes import Axis, Form
from gradproof_probe.harness.layers import replaced
from gradproof_probe.harness.patterns import einsum
from gradproof_probe.harness.values import (
    UNKNOWN,
    Constant,
    Items,
    Parameter,
    RankOf,
    ShapeOf,
    Size,
    axis_of,
    form_of,
    number_of,
    peek_form,
)

Values = Sequence[Any]
Named = Mapping[str, Any]
Operation = Callable[[Values, Named], Any]

# The result has the operand's shape.
SAME: Final = frozenset(
    [
        "relu",
        "gelu",
        "silu",
        "tanh",
        "sigmoid",
        "softmax",
        "log_softmax",
        "dropout",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "abs",
        "neg",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "clamp",
        "clamp_min",
        "clamp_max",
        "clone",
        "detach",
        "contiguous",
        "float",
        "double",
        "half",
        "to",
        "type",
        "type_as",
        "cpu",
        "cuda",
        "requires_grad_",
        "elu",
        "leaky_relu",
        "softplus",
        "logsigmoid",
        "hardtanh",
        "hardswish",
        "mish",
        "selu",
        "normalize",
        "square",
        "sign",
        "floor",
        "ceil",
        "round",
        "nan_to_num",
        "cumsum",
        "cumprod",
        "erf",
        "erfc",
        "reciprocal",
        "flip",
        "roll",
        "requires_grad",
        "zeros_like",
        "ones_like",
        "randn_like",
        "rand_like",
        "empty_like",
        "full_like",
        "bernoulli",
        "tril",
        "triu",
        "isnan",
        "isfinite",
        "logical_not",
        "mul_",
        "add_",
        "sub_",
        "div_",
        "masked_fill",
        "masked_fill_",
        "alpha_dropout",
        "feature_dropout",
        "conj",
        "layer_norm",
        "group_norm",
        "batch_norm",
        "instance_norm",
        "rms_norm",
        "fill_",
        "zero_",
        "copy_",
        "as_tensor",
        "asarray",
        "threshold",
        "prelu",
        "log2",
        "log10",
        "exp2",
        "logit",
    ]
)
# The result's elements are the operand's own.
VIEWS: Final = frozenset(
    ("transpose", "swapaxes", "permute", "t", "T", "mT", "unsqueeze", "squeeze", "view", "reshape", "expand", "flatten")
) | {"chunk"}
INTEGER: Final = frozenset(["long", "int", "short"])
# The operands have one shape, up to broadcasting.
TOGETHER: Final = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "where",
        "maximum",
        "minimum",
        "pow",
        "atan2",
        "lerp",
        "addcmul",
        "addcdiv",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "kl_div",
        "cosine_similarity",
        "dist",
        "hypot",
        "fmod",
        "remainder",
        "true_divide",
        "logaddexp",
        "xlogy",
    ]
)
REDUCTIONS: Final = frozenset(
    [
        "sum",
        "mean",
        "std",
        "var",
        "amax",
        "amin",
        "prod",
        "max",
        "min",
        "argmax",
        "argmin",
        "norm",
        "logsumexp",
        "median",
        "all",
        "any",
        "nansum",
        "nanmean",
        "topk",
        "sort",
        "argsort",
        "unbind",
        "softmin",
        "var_mean",
        "std_mean",
        "vector_norm",
        "cummax",
        "cummin",
        "kthvalue",
    ]
)


def apply(name: str, values: Values, named: Named) -> Any:
    """The value that the operation gives, after noting what it demands. What can't be read gives `UNKNOWN`."""
    try:
        result = _applied(name, values, named)
    except (IndexError, ValueError, ZeroDivisionError):
        # Called with other arguments than any torch operation of this name takes, or another function's name.
        return UNKNOWN
    operand = peek_form(values[0]) if values and name in VIEWS else None
    for form in result.values if isinstance(result, Items) else [result]:
        if isinstance(form, Form) and operand is not None and form is not operand:
            form.base = form.base or operand
    return result


def _applied(name: str, values: Values, named: Named) -> Any:
    operation = OPERATIONS.get(name)
    if operation is not None:
        result = operation(values, named)
        return UNKNOWN if result is None else result
    if not values:
        return UNKNOWN
    if name in INTEGER:
        # What is made an integer here may be given as any number.
        return form_of(values[0]) or UNKNOWN
    if name in SAME:
        return form_of(values[0]) or UNKNOWN
    if name in TOGETHER:
        return together(values[0], values[1]) if len(values) > 1 else form_of(values[0]) or UNKNOWN
    if name in REDUCTIONS:
        return _reduction(values, named)
    return UNKNOWN


def together(left: Any, right: Any) -> Any:
    """Operands of an elementwise operation: one form where one is known only; nothing is asked where both are."""
    first, second = peek_form(left), peek_form(right)
    if first is None or second is None:
        return first or second or UNKNOWN
    if first.rank is not None and second.rank is not None:
        return _broadcast(first, second)
    if not isinstance(left, Parameter) and not isinstance(right, Parameter):
        _agree_at_the_back(first, second)
    return first if first.rank is not None or len(first.axes) >= len(second.axes) else second


def _broadcast(first: Form, second: Form) -> Form:
    longer, shorter = (first, second) if (first.rank or 0) >= (second.rank or 0) else (second, first)
    axes = [longer.axis(index) for index in range(longer.rank or 0)]
    for index in range(1, (shorter.rank or 0) + 1):
        mine, theirs = longer.axis(-index), shorter.axis(-index)
        if mine.known() == 1:
            axes[-index] = theirs
        elif theirs.known() != 1:
            mine.join(theirs)
    return Form.of(axes)


def _agree_at_the_back(first: Form, second: Form) -> None:
    for index in range(-4, 0):
        mine, theirs = first.axes.get(index), second.axes.get(index)
        if mine is not None and theirs is not None and 1 not in (mine.known(), theirs.known()):
            mine.join(theirs)


def _integers(values: Values) -> list[int]:
    found: list[int] = []
    for value in values:
        if isinstance(value, Items):
            found += _integers(value.values)
        elif isinstance(value, Constant) and isinstance(value.value, list | tuple):
            found += [item for item in value.value if isinstance(item, int)]
        elif (number := number_of(value)) is not None:
            found.append(number)
    return found


def _argument(values: Values, named: Named, place: int, *names: str) -> Any:
    return next((named[name] for name in names if name in named), values[place] if len(values) > place else None)


def _reduction(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    if form is None:
        return UNKNOWN
    given = _argument(values, named, 1, "dim", "axis")
    dims = _integers([given]) if given is not None else []
    if not dims:
        return Form.of([]) if given is None else UNKNOWN
    for dim in dims:
        form.axis(dim)
    keep = named.get("keepdim")
    if isinstance(keep, Constant) and keep.value:
        for dim in dims:
            form = replaced(form, dim, Axis(1))
        return form
    if form.rank is None:
        return Form(None, max(0, form.least_rank - len(dims)))
    gone = {dim % form.rank for dim in dims}
    return Form.of(form.axis(index) for index in range(form.rank) if index not in gone)


def _transpose(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    dims = _integers([_argument(values, named, 1, "dim0"), _argument(values, named, 2, "dim1")])
    if form is None or len(dims) != 2:
        return None
    first, second = form.axis(dims[0]), form.axis(dims[1])
    return replaced(replaced(form, dims[0], second), dims[1], first)


def _transposed(values: Values, _named: Named) -> Any:
    """`.t()`, `.T`: two axes."""
    form = form_of(values[0])
    if form is None or not form.set_rank(2):
        return None
    return Form.of([form.axis(1), form.axis(0)])


def _matrix_transposed(values: Values, _named: Named) -> Any:
    return _transpose([values[0], Constant(-1), Constant(-2)], {})


def _permute(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    dims = _integers([named["dims"]] if "dims" in named else values[1:])
    if form is None or not dims or not form.set_rank(len(dims)) or max(dims) >= len(dims):
        return None
    return Form.of(form.axis(dim) for dim in dims)


def _matmul(values: Values, _named: Named) -> Any:
    if len(values) < 2:
        return None
    first, second = form_of(values[0]), form_of(values[1])
    if first is None or second is None:
        return None
    if second.rank == 1:
        first.axis(-1).join(second.axis(-1))
        return None
    second.least_rank = max(second.least_rank, 2) if second.rank is None else second.least_rank
    if second.rank is None or second.rank >= 2:
        first.axis(-1).join(second.axis(-2))
    if first.rank is not None and second.rank is not None and first.rank == second.rank:
        for index in range(first.rank - 2):
            if 1 not in (first.axis(index).known(), second.axis(index).known()):
                first.axis(index).join(second.axis(index))
    return replaced(first, -1, second.axis(-1)) if first.rank != 1 else None


def _product(rank: int) -> Operation:
    def apply(values: Values, named: Named) -> Any:
        for value in values[:2]:
            form = form_of(value)
            if form is not None:
                form.set_rank(rank)
        return _matmul(values, named)

    return apply


def _linear(values: Values, named: Named) -> Any:
    form, weight = form_of(values[0]), form_of(_argument(values, named, 1, "weight"))
    if form is None or weight is None:
        return None
    weight.set_rank(2)
    form.axis(-1).join(weight.axis(1))
    return replaced(form, -1, weight.axis(0))


def _convolution(rank: int) -> Operation:
    def apply(values: Values, named: Named) -> Any:
        form, weight = form_of(values[0]), form_of(_argument(values, named, 1, "weight"))
        if form is None:
            return None
        form.set_rank(rank)
        if weight is None:
            return Form(rank, rank, {0: form.axis(0)})
        weight.set_rank(rank)
        groups = number_of(named["groups"]) if "groups" in named else 1
        if groups == 1:
            form.axis(1).join(weight.axis(1))
        elif "groups" in named:
            weight.axis(1).fix(1)
            form.axis(1).join(weight.axis(0))
        return Form(rank, rank, {0: form.axis(0), 1: weight.axis(0)})

    return apply


def _pool(rank: int) -> Operation:
    def apply(values: Values, _named: Named) -> Any:
        form = form_of(values[0])
        if form is None:
            return None
        form.set_rank(rank)
        return Form(rank, rank, {0: form.axis(0), 1: form.axis(1)})

    return apply


def _listed(value: Any) -> list[Form]:
    items = value.values if isinstance(value, Items) else []
    return [form for item in items if (form := form_of(item)) is not None]


def _cat(values: Values, named: Named) -> Any:
    forms = _listed(values[0]) if values else []
    given = _argument(values, named, 1, "dim", "axis")
    along = number_of(given) if given is not None else 0
    if not forms or along is None:
        return None
    for form in forms:
        form.axis(along)
    first = next((form for form in forms if form.rank is not None), forms[0])
    for form in forms:
        if first.rank is not None:
            form.set_rank(first.rank)
        if form is not first and first.rank is not None and form.rank == first.rank:
            for index in range(first.rank):
                if index != along % first.rank:
                    first.axis(index).join(form.axis(index))
    return replaced(first, along, Axis())


def _stack(values: Values, named: Named) -> Any:
    forms = _listed(values[0]) if values else []
    given = _argument(values, named, 1, "dim", "axis")
    along = number_of(given) if given is not None else 0
    if not forms or along is None:
        return None
    for form in forms[1:]:
        forms[0].same(form)
    axes = forms[0].all_axes()
    if axes is None:
        return Form(None, forms[0].least_rank + 1)
    place = along if along >= 0 else along + len(axes) + 1
    return Form.of([*axes[:place], Axis(len(forms)), *axes[place:]])


def _unsqueeze(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    dim = number_of(_argument(values, named, 1, "dim"))
    if form is None or dim is None:
        return None
    axes = form.all_axes()
    if axes is None:
        form.least_rank = max(form.least_rank, dim if dim >= 0 else -dim - 1)
        return Form(None, form.least_rank + 1, base=form, offset=1)
    place = dim if dim >= 0 else dim + len(axes) + 1
    return Form.of([*axes[:place], Axis(1), *axes[place:]])


def _squeeze(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    dim = number_of(_argument(values, named, 1, "dim"))
    if form is None or dim is None or form.rank is None:
        return None
    return Form.of(form.axis(index) for index in range(form.rank) if index != dim % form.rank)


def _view(values: Values, named: Named) -> Any:
    """Leading sizes that are the tensor's own are kept; what the rest holds is one product on both sides."""
    form = form_of(values[0])
    wanted: list[Any] = []
    for value in [*values[1:], *named.values()]:
        if isinstance(value, Items):
            wanted += value.values
        elif isinstance(value, Constant) and isinstance(value.value, list | tuple):
            wanted += [Constant(item) for item in value.value]
        else:
            wanted.append(value)
    if form is None or not wanted or any(isinstance(item, ShapeOf) or item is UNKNOWN for item in wanted):
        return None
    axes = [None if number_of(item) == -1 else axis_of(item) or Axis() for item in wanted]
    result = Form.of(axis if axis is not None else Axis() for axis in axes)
    mine = form.all_axes()
    if mine is None:
        return result
    start = 0
    while start < min(len(mine), len(axes)) and (axis := axes[start]) is not None:
        if axis.root() is not mine[start].root():
            break
        start += 1
    rest, parts = mine[start:], [axis for axis in axes[start:] if axis is not None]
    if len(rest) == 1 and len(parts) > 1 and len(parts) == len(axes) - start and not rest[0].root().parts:
        rest[0].root().parts = tuple(parts)
    elif len(rest) == 1 and len(parts) == 1 and len(axes) - start == 2 and (size := parts[0].known()) is not None:
        rest[0].root().divisors.add(size)
    elif rest and len(axes) - start == 1:
        product = result.axis(start)
        product.root().parts = product.root().parts or tuple(rest)
    return result


def _expand(values: Values, _named: Named) -> Any:
    wanted: list[Any] = []
    for value in values[1:]:
        wanted += value.values if isinstance(value, Items) else [value]
    if not wanted or any(isinstance(item, ShapeOf) or item is UNKNOWN for item in wanted):
        return None
    return Form.of(axis_of(item) or Axis() for item in wanted)


def _flatten(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    start = number_of(_argument(values, named, 1, "start_dim") or Constant(0))
    end = number_of(_argument(values, named, 2, "end_dim") or Constant(-1))
    if form is None or start is None or end is None:
        return None
    axes = form.all_axes()
    if axes is None:
        form.axis(start)
        return Form(None, (start if start >= 0 else 0) + 1)
    start, end = start % max(len(axes), 1), end % max(len(axes), 1)
    product = Axis()
    product.parts = tuple(axes[start : end + 1])
    return Form.of([*axes[:start], product, *axes[end + 1 :]])


def _chunk(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    count = number_of(_argument(values, named, 1, "chunks"))
    dim = number_of(_argument(values, named, 2, "dim") or Constant(0))
    if form is None or count is None or dim is None or not 0 < count < 20:
        return None
    part = Axis()
    axis = form.axis(dim).root()
    if not axis.parts and axis.size is None:
        axis.parts = (Axis(count), part)
    elif axis.size is not None and axis.size % count == 0:
        part.fix(axis.size // count)
    return Items([replaced(form, dim, part) for _ in range(count)])


def _size(values: Values, _named: Named) -> Any:
    form = form_of(values[0])
    if form is None:
        return None
    if len(values) > 1:
        index = number_of(values[1])
        return Size(form.axis(index)) if index is not None else None
    return ShapeOf(form)


def _rank(values: Values, _named: Named) -> Any:
    form = form_of(values[0])
    return RankOf(form) if form is not None else None


def _einsum(values: Values, _named: Named) -> Any:
    text = [item.value for item in values if isinstance(item, Constant) and isinstance(item.value, str)]
    operands = [item for item in values if not isinstance(item, Constant) or not isinstance(item.value, str)]
    if len(operands) == 1 and isinstance(operands[0], Items):
        operands = operands[0].values
    return einsum(text[0], operands) if text else None


def _cross_entropy(values: Values, named: Named) -> Any:
    scores, target = form_of(values[0]), form_of(_argument(values, named, 1, "target"))
    if scores is None or target is None:
        return None
    target.want("int", scores.axis(1).known() or 2)
    axes = scores.all_axes()
    if axes is not None and target.set_rank(max(len(axes) - 1, 0)):
        for index, axis in enumerate(axis for place, axis in enumerate(axes) if place != 1):
            target.axis(index).join(axis)
    else:
        scores.axis(0).join(target.axis(0))
    return Form.of([])


def _indexed(place: int) -> Operation:
    """`gather(x, dim, index)`, `index_select(x, dim, index)`, `embedding(index, weight)`."""

    def apply(values: Values, named: Named) -> Any:
        form, index = form_of(values[0]), form_of(_argument(values, named, place, "index"))
        dim = number_of(_argument(values, named, 1, "dim"))
        if index is not None:
            index.want("int", form.axis(dim).known() or 2 if form is not None and dim is not None else None)
        return index if place == 2 else None

    return apply


def _index_add(values: Values, named: Named) -> Any:
    """`x.index_add(dim, index, source)`: a slice of the source for each number of the index."""
    form, index = form_of(values[0]), form_of(_argument(values, named, 2, "index"))
    source, dim = form_of(_argument(values, named, 3, "source")), number_of(_argument(values, named, 1, "dim"))
    if index is not None:
        index.set_rank(1)
        index.want("int", form.axis(dim).known() or 2 if form is not None and dim is not None else None)
    if form is None or source is None or form.rank is None or dim is None or not source.set_rank(form.rank):
        return form
    for place in range(form.rank):
        if place != dim % form.rank:
            source.axis(place).join(form.axis(place))
    if index is not None:
        source.axis(dim).join(index.axis(0))
    return form


def _gather(values: Values, named: Named) -> Any:
    form, index = form_of(values[0]), form_of(_argument(values, named, 2, "index"))
    _indexed(2)(values, named)
    if form is not None and index is not None and form.rank is None and index.rank is None:
        # They have one rank, and the code shows no more axes than these.
        index.set_rank(max(form.least_rank, index.least_rank))
    if form is not None and index is not None and index.rank is not None:
        form.set_rank(index.rank)
    dim = number_of(_argument(values, named, 1, "dim"))
    if form is not None and index is not None and dim is not None and form.rank is not None:
        index.set_rank(form.rank)
        for place in range(form.rank):
            if place != dim % form.rank:
                form.axis(place).join(index.axis(place))
    return index


def _lookup(values: Values, named: Named) -> Any:
    index, weight = form_of(values[0]), form_of(_argument(values, named, 1, "weight"))
    if index is not None:
        if weight is not None:
            weight.set_rank(2)
        index.want("int", weight.axis(0).known() or 2 if weight is not None else None)
    return None


def _one_hot(values: Values, named: Named) -> Any:
    form = form_of(values[0])
    classes = axis_of(_argument(values, named, 1, "num_classes") or UNKNOWN)
    if form is None:
        return None
    form.want("int", (classes.known() if classes is not None else None) or 2)
    axes = form.all_axes()
    return Form.of([*axes, classes or Axis()]) if axes is not None else Form(None, form.least_rank + 1)


def _complex_pairs(values: Values, _named: Named) -> Any:
    form = form_of(values[0])
    if form is not None:
        form.axis(-1).fix(2)
    return None


def _is_complex(values: Values, _named: Named) -> Any:
    form = form_of(values[0])
    if form is not None:
        form.want("complex")
    return None


def _square(values: Values, _named: Named) -> Any:
    form = form_of(values[0])
    if form is not None:
        form.axis(-1).join(form.axis(-2))
    return form


def _cross(values: Values, _named: Named) -> Any:
    forms = [form for value in values[:2] if (form := form_of(value)) is not None]
    for form in forms:
        form.axis(-1).fix(3)
    if len(forms) == 2:
        forms[0].same(forms[1])
    return forms[0] if forms else None


def _attention(values: Values, _named: Named) -> Any:
    forms = [form_of(value) for value in values[:3]]
    query, key, value = [*forms, None, None, None][:3]
    if query is None or key is None or value is None:
        return None
    for form in (query, key, value):
        form.set_rank(4)
    for index in (0, 1, 3):
        query.axis(index).join(key.axis(index))
    for index in (0, 1, 2):
        key.axis(index).join(value.axis(index))
    return replaced(query, -1, value.axis(-1))


def _distances(values: Values, _named: Named) -> Any:
    forms = [form for value in values[:2] if (form := form_of(value)) is not None]
    if len(forms) < 2:
        return None
    forms[0].axis(-1).join(forms[1].axis(-1))
    for form in forms:
        form.least_rank = max(form.least_rank, 2)
    return None


def _grid_sample(values: Values, named: Named) -> Any:
    form, grid = form_of(values[0]), form_of(_argument(values, named, 1, "grid"))
    if form is None:
        return None
    form.set_rank(4)  # of a volume as well it would be 5: rare, and then the error says so
    if grid is None:
        return None
    grid.set_rank(4)
    grid.axis(-1).fix(2)
    form.axis(0).join(grid.axis(0))
    return Form.of([form.axis(0), form.axis(1), grid.axis(1), grid.axis(2)])


OPERATIONS: Final[dict[str, Operation]] = {
    "transpose": _transpose,
    "swapaxes": _transpose,
    "permute": _permute,
    "t": _transposed,
    "T": _transposed,
    "mT": _matrix_transposed,
    "matmul": _matmul,
    "mm": _product(2),
    "bmm": _product(3),
    "linear": _linear,
    "conv1d": _convolution(3),
    "conv2d": _convolution(4),
    "conv3d": _convolution(5),
    "max_pool1d": _pool(3),
    "avg_pool1d": _pool(3),
    "max_pool2d": _pool(4),
    "avg_pool2d": _pool(4),
    "adaptive_avg_pool2d": _pool(4),
    "pixel_shuffle": _pool(4),
    "cat": _cat,
    "concat": _cat,
    "concatenate": _cat,
    "stack": _stack,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "view": _view,
    "reshape": _view,
    "expand": _expand,
    "flatten": _flatten,
    "chunk": _chunk,
    "size": _size,
    "dim": _rank,
    "ndimension": _rank,
    "einsum": _einsum,
    "cross_entropy": _cross_entropy,
    "nll_loss": _cross_entropy,
    "gather": _gather,
    "scatter": _gather,
    "scatter_add": _gather,
    "index_select": _indexed(2),
    "index_add": _index_add,
    "embedding": _lookup,
    "one_hot": _one_hot,
    "view_as_complex": _complex_pairs,
    "view_as_real": _is_complex,
    "inverse": _square,
    "det": _square,
    "cholesky": _square,
    "eigh": _square,
    "slogdet": _square,
    "cross": _cross,
    "scaled_dot_product_attention": _attention,
    "cdist": _distances,
    "grid_sample": _grid_sample,
}


def plain(name: str) -> str:
    """`add_` and `torch.add` are `add`."""
    return re.sub(r"(?<=\w)_$", "", name.rpartition(".")[2])
