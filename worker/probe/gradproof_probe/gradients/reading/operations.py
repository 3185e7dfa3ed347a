"""What functions and methods with a known name make of what is given to them, and what asking them tells."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from gradproof_probe.gradients.reading.clue import Relation
from gradproof_probe.gradients.reading.comparing import compare, same_values, truth, whole
from gradproof_probe.gradients.reading.meanings import (
    ELEMENTS,
    INVERTIBLE,
    UNKNOWN,
    Known,
    Many,
    Mask,
    Meaning,
    Quantity,
    Rest,
    before,
    is_tensor,
    stepped,
    words,
)
from gradproof_probe.gradients.reading.notes import Notes


@dataclass(slots=True)
class Call:
    """`name(*given, **named)`; of a method, the object is the first that is given."""

    notes: Notes
    name: str
    given: list[Meaning]
    named: dict[str, Meaning]
    node: ast.AST

    def at(self, place: int, name: str = "") -> Meaning:
        if name and name in self.named:
            return self.named[name]
        return self.given[place] if place < len(self.given) else UNKNOWN

    def tensor(self) -> Quantity | None:
        """The tensor that it is about: the first one that is given."""
        for item in (*self.given, *self.named.values()):
            if isinstance(item, Quantity) and item.kind in ELEMENTS:
                return item
            if isinstance(item, Mask):
                return replace(item.of, derived=True)
            if isinstance(item, Many):
                inner = next((part for part in item.items if is_tensor(part)), None)
                if isinstance(inner, Quantity):
                    return inner
        return None


def operate(call: Call) -> Meaning:
    """What the call stands for. Functions without an entry make something new of their first tensor."""
    flag = _FLAGS.get(call.name)
    if flag is not None:
        call.notes.clue("flag", call.node, detail=flag)
        return Quantity("flag", detail=flag)
    entry = _OPERATIONS.get(call.name)
    if entry is not None:
        return entry(call)
    name = call.name.rstrip("_")
    if name != call.name and name in _OPERATIONS:
        return _OPERATIONS[name](call)
    return _derived(call)


def ask(notes: Notes, meaning: Meaning, name: str, node: ast.AST) -> Meaning:
    """`meaning.name` of a tensor, read and not called."""
    if not isinstance(meaning, Quantity):
        return UNKNOWN
    if meaning.kind not in ELEMENTS:
        return meaning
    call = Call(notes, name, [meaning], {}, node)
    if name == "shape":
        return _sizes(meaning)
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name](call)
    return replace(meaning, derived=True)


def flag_attribute(notes: Notes, name: str, node: ast.AST) -> Meaning | None:
    """Switches that are attributes of torch's modules."""
    flag = {"allow_tf32": "float32_precision", "deterministic": "deterministic", "training": "training"}.get(name)
    if flag is None:
        return None
    notes.clue("flag", node, detail=flag)
    return Quantity("flag", detail=flag)


def block(notes: Notes, of: Meaning, size: Meaning, node: ast.AST) -> None:
    """`of` is cut into pieces of `size`."""
    if isinstance(size, Known) and isinstance(size.value, int) and size.value > 1:
        if isinstance(of, Quantity) and of.kind in {"size", "numel"}:
            notes.about(of, node, number=size.value, relation="block")
        elif isinstance(of, Quantity) and of.kind in ELEMENTS and of.kind != "count":
            notes.clue("size", node, number=size.value, argument=of.argument, relation="block")
        elif not isinstance(of, Known):
            notes.clue("size", node, number=size.value, relation="block", derived=True)


def _sizes(tensor: Quantity) -> Quantity:
    if tensor.detail in _COUNTED:
        return tensor
    argument = tensor.argument if tensor.kind == "value" else _cotangent(tensor)
    return Quantity("shape", argument, axis=0, moved=tensor.moved or tensor.derived, derived=tensor.derived)


def _cotangent(tensor: Quantity) -> str:
    """The name by which sizes of a cotangent are known: it is no parameter of forward."""
    return f"grad {tensor.argument}"


# Of these, not the values but their number is asked for.
_COUNTED: Final = frozenset({"unique", "unique_consecutive", "nonzero"})


def _owner(tensor: Quantity) -> str:
    return tensor.argument if tensor.kind == "value" else _cotangent(tensor)


# Operations


def _same(call: Call) -> Meaning:
    return call.at(0)


def _derived(call: Call) -> Meaning:
    tensor = call.tensor()
    return replace(tensor, derived=True, detail="") if tensor is not None else UNKNOWN


def _moved(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Many):
        first = call.tensor() or UNKNOWN
    for item in (*call.given[1:], *call.named.values()):
        call.notes.has_role(item)
    if isinstance(first, Quantity) and first.kind in ELEMENTS:
        return replace(first, moved=True)
    return first if isinstance(first, Mask) else UNKNOWN


def _step(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Known) and isinstance(first.value, int | float):
        return _of_number(call.name, first)
    if not isinstance(first, Quantity):
        return _derived(call)
    operand = call.at(1)
    name = {"pow": "pow", "float_power": "pow", "add": "add", "mul": "mul", "div": "div", "multiply": "mul"}.get(
        call.name.rstrip("_"), call.name.rstrip("_")
    )
    if name in {"pow", "add", "mul", "div"}:
        if isinstance(operand, Known) and isinstance(operand.value, int | float):
            return stepped(first, name, float(operand.value))
        return replace(first, derived=True)
    if name == "absolute":
        name = "abs"
    return stepped(first, name)


def _of_number(name: str, number: Known) -> Meaning:
    if name in {"int", "float", "abs", "round"}:
        convert: Any = {"int": int, "float": float, "abs": abs, "round": round}[name]
        try:
            return Known(convert(number.value), number.origin)
        except (ValueError, OverflowError):
            return UNKNOWN
    if name in {"sqrt", "exp", "log", "log2", "tanh"}:
        try:
            return Known(getattr(math, name)(number.value))
        except (ValueError, OverflowError):
            return UNKNOWN
    return UNKNOWN


def _reduced(call: Call) -> Meaning:
    first = call.at(0)
    for item in call.given[1:]:
        call.notes.has_role(item)
    if isinstance(first, Mask):
        # How many elements, or which share of them.
        call.notes.instead(first.clues, detail="share")
        return replace(first.of, derived=True, detail="share", steps=())
    if isinstance(first, Many):
        # sum([a, b]), max(shape): of the first that is known.
        first = next((item for item in first.items if isinstance(item, Quantity)), UNKNOWN)
    if not isinstance(first, Quantity):
        return _derived(call)
    if first.kind == "shape":
        kind: Quantity = Quantity("size", first.argument, derived=True)
        return replace(kind, kind="numel", derived=False) if call.name == "prod" else kind
    if first.kind not in ELEMENTS:
        return first
    name = {"amax": "max", "amin": "min", "vector_norm": "norm", "var": "std", "nansum": "sum"}.get(
        call.name, call.name
    )
    if name == "sum" and first.steps and first.steps[-1] in {("square", 0.0), ("pow", 2.0)}:
        # A sum of squares is the square of a norm.
        return replace(first, detail="norm", steps=(*first.steps[:-1], ("square", 0.0)), moved=True)
    return replace(first, detail=first.detail or name, moved=True)


def _extreme(call: Call) -> Meaning:
    """`max` and `min`: of one tensor a reduction, of two things a bound."""
    only = call.at(0)
    if len(call.given) == 1 and isinstance(only, Known):
        values = [item for item in _values(only) if isinstance(item, int | float)]
        return Known((min if call.name == "min" else max)(values), only.origin) if values else UNKNOWN
    pair = [item for item in call.given if not (isinstance(item, Known) and item.value is None)]
    if len(pair) == 2 and not (is_tensor(pair[0]) and isinstance(pair[1], Known) and "dim" in call.named):
        one, other = pair
        if isinstance(one, Known) and isinstance(other, Known) and _numbers(one, other):
            return Known({"max": max, "min": min}.get(call.name, max)(one.value, other.value))
        quantity, bound = (other, one) if isinstance(one, Known) else (one, other)
        if isinstance(quantity, Quantity) and isinstance(bound, Known):
            if is_tensor(quantity) and isinstance(bound.value, int) and not isinstance(bound.value, bool):
                call.notes.has_role(bound)  # x.max(1): an axis
                return replace(quantity, detail=quantity.detail or call.name, moved=True)
            _bounded(call.notes, quantity, bound, call.node)
            return quantity
        return quantity
    return _reduced(call)


def _values(known: Known) -> list[Any]:
    value = known.value
    if type(value) in {list, tuple, set, frozenset}:
        return list(value)[:64]
    return []


def _entries(call: Call) -> Meaning:
    """`TABLE.values()`, `TABLE.keys()` of a dictionary that holds constants; `values()` of a sparse tensor."""
    first = call.at(0)
    if isinstance(first, Known):
        call.notes.consulted(first, call.node)
        if type(first.value) is dict:
            return Known(tuple(getattr(first.value, call.name)())[:64], first.origin)
        return UNKNOWN
    return first


def _numbers(*items: Known) -> bool:
    return all(isinstance(item.value, int | float) for item in items)


def _bounded(notes: Notes, quantity: Meaning, bound: Meaning, node: ast.AST) -> None:
    if isinstance(quantity, Quantity) and isinstance(bound, Quantity) and bound.kind == "value":
        compare(notes, quantity, ">", bound, node)
    if isinstance(quantity, Quantity) and isinstance(bound, Known) and isinstance(bound.value, int | float):
        for number in before(quantity.steps, float(bound.value))[:2] or [float(bound.value)]:
            notes.about(quantity, node, number=number, relation="bound")


def _clamped(call: Call) -> Meaning:
    first = call.at(0)
    for item in (*call.given[1:3], *(call.named[name] for name in _BOUND_NAMES if name in call.named)):
        _bounded(call.notes, first, item, call.node)
    return first if isinstance(first, Quantity) else _derived(call)


_BOUND_NAMES: Final = (
    "min",
    "max",
    "min_val",
    "max_val",
    "lambd",
    "threshold",
    "delta",
    "beta",
    "margin",
    "a_min",
    "a_max",
)


def _loss(call: Call) -> Meaning:
    """Thresholds of the difference of two tensors: `smooth_l1_loss(x, y, beta=…)`."""
    first = call.tensor()
    for name in _BOUND_NAMES:
        if name in call.named and first is not None:
            _bounded(call.notes, replace(first, derived=True), call.named[name], call.node)
    return replace(first, derived=True) if first is not None else UNKNOWN


def _relu6(call: Call) -> Meaning:
    for number in (0.0, 6.0):
        _bounded(call.notes, call.at(0), Known(number), call.node)
    return call.at(0)


def _hard(call: Call) -> Meaning:
    for number in (-3.0, 3.0):
        _bounded(call.notes, call.at(0), Known(number), call.node)
    return call.at(0)


def _numel(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Quantity):
        if first.kind == "shape":
            return Quantity("numel", first.argument, derived=first.derived)
        if first.kind in ELEMENTS:
            if first.detail in _COUNTED:
                return first
            return Quantity("numel", _owner(first), derived=first.derived)
    return UNKNOWN


def _size(call: Call) -> Meaning:
    first, axis = call.at(0), call.at(1, "dim")
    call.notes.has_role(axis)
    if not is_tensor(first) or not isinstance(first, Quantity):
        return UNKNOWN
    if first.detail in _COUNTED:
        return first
    if len(call.given) < 2 and "dim" not in call.named:
        return _sizes(first)
    number = axis.value if isinstance(axis, Known) and isinstance(axis.value, int) else None
    moved = first.moved or first.derived
    return Quantity("size", _owner(first), axis=number, moved=moved or number is None, derived=first.derived)


def _rank(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Quantity) and (first.kind in ELEMENTS or first.kind == "shape"):
        return Quantity("rank", _owner(first) if first.kind in ELEMENTS else first.argument, derived=first.derived)
    return UNKNOWN


def _length(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Many):
        return Known(len(first.items))
    if isinstance(first, Rest):
        return UNKNOWN
    if isinstance(first, Known):
        call.notes.consulted(first, call.node)
        # len() of a cache counts; of a constant it is a constant.
        if isinstance(first.value, str | tuple | list | dict | set | frozenset):
            return Known(len(first.value), first.origin)
        return UNKNOWN
    if isinstance(first, Quantity):
        if first.kind == "shape":
            return Quantity("rank", first.argument, derived=first.derived)
        if first.kind in ELEMENTS:
            if first.detail in _COUNTED:
                return first
            return Quantity("size", _owner(first), axis=0, moved=first.moved or first.derived)
    return UNKNOWN


def _asked(kind: str, detail: str = "") -> Callable[[Call], Meaning]:
    """A question about a tensor's memory that is telling in itself, whatever the answer is compared with."""

    def act(call: Call) -> Meaning:
        first = call.tensor()
        if first is None:
            return UNKNOWN
        said = detail
        if any("channels_last" in str(getattr(item, "value", "")) for item in (*call.given, *call.named.values())):
            said = "channels_last"
        # Whose memory: that of the incoming gradient or of an input.
        whose = "cotangent" if first.kind == "cotangent" else "input"
        call.notes.clue(
            "contiguous" if kind == "contiguous" else "stride",
            call.node,
            detail=said,
            argument=first.argument,
            constant=whose,
        )
        return Quantity("contiguous" if kind == "contiguous" else "stride", first.argument, detail=said)

    return act


def _dtype(call: Call) -> Meaning:
    first = call.tensor()
    return Quantity("dtype", _owner(first)) if first is not None else UNKNOWN


def _dtype_asked(call: Call) -> Meaning:
    first = call.tensor()
    if first is not None:
        call.notes.clue("dtype", call.node, argument=_owner(first), detail="asked")
        return Quantity("dtype", _owner(first), derived=True)
    dtype = call.at(0)
    if isinstance(dtype, Quantity) and dtype.kind == "dtype":
        call.notes.about(dtype, call.node, detail="asked")
        return replace(dtype, derived=True)
    return UNKNOWN


def _requires_grad(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Quantity) and first.kind == "value" and not first.derived:
        call.notes.clue("requires_grad", call.node, argument=first.argument)
        return Quantity("requires_grad", first.argument)
    return UNKNOWN


def _compared(call: Call) -> Meaning:
    sign = _METHOD_SIGNS[call.name.rstrip("_")]
    return compare(call.notes, call.at(0), sign, call.at(1, "other"), call.node)


def _equal(call: Call) -> Meaning:
    return same_values(call.notes, call.at(0), call.at(1, "other"), call.node)


def _close(call: Call) -> Meaning:
    return compare(call.notes, call.at(0), "==", call.at(1, "other"), call.node)


def _all(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Many) and first.items:
        first = first.items[0]
    if isinstance(first, Mask):
        return whole(call.notes, first)
    if isinstance(first, Quantity) and first.kind == "requires_grad":
        return first
    return (
        replace(first, detail=first.detail or "all")
        if isinstance(first, Quantity) and first.kind in ELEMENTS
        else UNKNOWN
    )


def _any(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Many) and first.items:
        first = first.items[0]
    if isinstance(first, Mask):
        call.notes.trail.extend(first.clues)
        return UNKNOWN
    return (
        replace(first, detail=first.detail or "any")
        if isinstance(first, Quantity) and first.kind in ELEMENTS
        else first
    )


def _not_finite(call: Call) -> Meaning:
    first = call.tensor()
    if first is None:
        return UNKNOWN
    places = call.notes.clue(first.kind, call.node, detail="not finite", argument=first.argument)  # type: ignore[arg-type]
    return Mask(first, "==", None, places)


def _filled(number: float | None, place: int = 0) -> Callable[[Call], Meaning]:
    """A tensor of one number everywhere is compared with like that number."""

    def act(call: Call) -> Meaning:
        if number is not None:
            return Known(number)
        value = call.at(place, "fill_value")
        return Known(value.value) if isinstance(value, Known) else UNKNOWN

    return act


def _where(call: Call) -> Meaning:
    truth(call.notes, call.at(0), call.node)
    for item in (call.at(1, "input"), call.at(2, "other")):
        if isinstance(item, Quantity) and item.kind in ELEMENTS:
            return replace(item, derived=True)
    return _derived(call)


def _parts(call: Call) -> Meaning:
    """`split(64)`, `unfold(0, 8, 8)`, `narrow(0, 256, n)`: block sizes."""
    name = call.name
    places = {"split": (1,), "tensor_split": (), "unfold": (2, 3), "narrow": (2, 3), "chunk": ()}.get(name, ())
    for place in places:
        block(call.notes, call.at(0), call.at(place, "split_size" if name == "split" else ""), call.node)
    return _moved(call)


def _range(call: Call) -> Meaning:
    numbers = call.given
    if len(numbers) > 2:
        block(call.notes, numbers[1], numbers[2], call.node)
    over = numbers[0] if len(numbers) == 1 else (numbers[1] if len(numbers) > 1 else UNKNOWN)
    # The loop's variable: a place along that size, which is compared like the size itself.
    return over if isinstance(over, Quantity) and over.kind in {"size", "numel"} else UNKNOWN


def _bits(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Quantity) and first.kind in {"size", "numel"}:
        call.notes.about(first, call.node, relation="power of two")
        return stepped(first, "log2" if call.name == "log2" else "bit_length")
    return UNKNOWN


def _logarithm(call: Call) -> Meaning:
    first = call.at(0)
    if isinstance(first, Quantity) and first.kind in {"size", "numel"} and call.name == "log2":
        return _bits(call)
    return _step(call)


def _sorted(call: Call) -> Meaning:
    first = call.at(0)
    if is_tensor(first) and isinstance(first, Quantity):
        return stepped(first, "sort")
    return first


def _state(call: Call) -> Meaning:
    """Methods that ask or change a container: `cache.get(key)`, `next(counter)`."""
    first = call.at(0)
    call.notes.consulted(first, call.node)
    if isinstance(first, Known) and first.origin is not None and call.name in _CHANGING:
        call.notes.written(first.origin, call.node)
    return UNKNOWN if isinstance(first, Known) else _derived(call)


_CHANGING: Final = frozenset(
    words("append add update setdefault pop popitem popleft appendleft clear extend insert remove next")
)


def _divided(call: Call) -> Meaning:
    first, unit = call.at(0), call.at(1)
    if isinstance(first, Quantity) and isinstance(unit, Known) and isinstance(unit.value, int) and unit.value > 0:
        block(call.notes, first, unit, call.node)
        return Many((stepped(first, "floordiv", unit.value), stepped(first, "mod", unit.value)))
    return UNKNOWN


def _begins(call: Call) -> Meaning:
    first, text = call.at(0), call.at(1)
    if isinstance(first, Quantity) and first.kind == "value" and isinstance(text, Known):
        call.notes.clue("argument", call.node, argument=first.argument, constant=text.value)
    return UNKNOWN


def _isinstance(call: Call) -> Meaning:
    first, kind = call.at(0), call.at(1)
    if isinstance(first, Quantity) and first.kind == "value" and not first.derived and isinstance(kind, Known):
        call.notes.clue("argument", call.node, argument=first.argument, constant=kind.value)
    return UNKNOWN


def _elements(call: Call) -> Meaning:
    """`list(x)`, `tuple(shape)`, `enumerate(parts)`: what it holds stays what it is."""
    return call.at(0)


def _address(call: Call) -> Meaning:
    first = call.tensor()
    if first is None:
        return UNKNOWN
    call.notes.clue(
        "value" if first.kind == "value" else "cotangent", call.node, detail="address", argument=first.argument
    )
    return UNKNOWN


def _version(call: Call) -> Meaning:
    call.notes.clue("flag", call.node, detail="version")
    return UNKNOWN


_METHOD_SIGNS: Final[dict[str, Relation]] = {
    "eq": "==",
    "ne": "!=",
    "not_equal": "!=",
    "lt": "<",
    "less": "<",
    "le": "<=",
    "less_equal": "<=",
    "gt": ">",
    "greater": ">",
    "ge": ">=",
    "greater_equal": ">=",
}
_FLAGS: Final = {
    **dict.fromkeys(
        (
            "is_autocast_enabled",
            "is_autocast_cpu_enabled",
            "is_autocast_cache_enabled",
            "get_autocast_dtype",
            "get_autocast_gpu_dtype",
            "get_autocast_cpu_dtype",
        ),
        "autocast",
    ),
    "is_grad_enabled": "grad_enabled",
    "is_inference_mode_enabled": "inference",
    "is_inference": "inference",
    "are_deterministic_algorithms_enabled": "deterministic",
    "get_deterministic_debug_mode": "deterministic",
    "is_anomaly_enabled": "anomaly",
    "is_anomaly_check_nan_enabled": "anomaly",
    "get_default_dtype": "default_dtype",
    "get_float32_matmul_precision": "float32_precision",
    **dict.fromkeys(("current_thread", "get_ident", "get_native_id", "main_thread"), "thread"),
    **dict.fromkeys(
        (
            "rand",
            "randn",
            "randint",
            "randperm",
            "rand_like",
            "randn_like",
            "randint_like",
            "bernoulli",
            "multinomial",
            "initial_seed",
            "get_rng_state",
            "random",
            "uniform",
            "gauss",
            "default_rng",
            "getrandbits",
            "choice",
        ),
        "random",
    ),
}
_ATTRIBUTES: Final[dict[str, Callable[[Call], Meaning]]] = {
    "ndim": _rank,
    "dtype": _dtype,
    "itemsize": _dtype_asked,
    "requires_grad": _requires_grad,
    "is_leaf": _asked("stride", "view"),
    "_base": _asked("stride", "view"),
    "_version": _version,
    "grad_fn": _same,
    "data": _same,
    "real": _same,
    "values": _same,
    **dict.fromkeys(("T", "mT", "H", "mH"), _moved),
}
_OPERATIONS: Final[dict[str, Callable[[Call], Meaning]]] = {
    **dict.fromkeys(
        words(
            "contiguous detach clone to type type_as cpu cuda requires_grad_ item tolist long alias view_as as_tensor "
            "tensor numpy resolve_conj resolve_neg data bool half bfloat16 double float32 positive Parameter "
            "retain_grad copy deepcopy dequantize to_dense coalesce"
        ),
        _same,
    ),
    **dict.fromkeys(
        words(
            "view reshape flatten unflatten transpose t permute movedim moveaxis swapaxes swapdims squeeze unsqueeze "
            "expand repeat repeat_interleave flip roll select index_select gather unbind tril triu diagonal diag cat "
            "stack concat ravel expand_as reshape_as broadcast_to masked_select take take_along_dim fliplr flipud "
            "rot90 adjoint view_as_real as_strided rearrange"
        ),
        _moved,
    ),
    **dict.fromkeys(
        sorted(
            INVERTIBLE - {"len", "log2", "rsub", "rdiv", "floordiv", "bit_length"}
            | {"absolute", "float", "float_power", "multiply"}
        ),
        _step,
    ),
    **dict.fromkeys(
        words(
            "amax amin sum mean std var norm vector_norm prod median nansum argmax argmin count_nonzero unique nonzero "
            "unique_consecutive topk kthvalue aminmax logsumexp"
        ),
        _reduced,
    ),
    **dict.fromkeys(("max", "min", "maximum", "minimum", "fmax", "fmin"), _extreme),
    **dict.fromkeys(words("clamp clip clamp_min clamp_max hardtanh threshold hardshrink softshrink"), _clamped),
    **dict.fromkeys(words("smooth_l1_loss huber_loss softplus margin_ranking_loss hinge_embedding_loss"), _loss),
    "relu6": _relu6,
    **dict.fromkeys(("hardsigmoid", "hardswish"), _hard),
    **dict.fromkeys(("numel", "nelement", "__len__"), _numel),
    "size": _size,
    **dict.fromkeys(("dim", "ndimension", "ndim"), _rank),
    "len": _length,
    "log2": _logarithm,
    "stride": _asked("stride"),
    "is_contiguous": _asked("contiguous"),
    "is_non_overlapping_and_dense": _asked("stride"),
    "storage_offset": _asked("stride", "offset"),
    "untyped_storage": _asked("stride", "offset"),
    "storage": _asked("stride", "offset"),
    "_is_view": _asked("stride", "view"),
    **dict.fromkeys(("data_ptr", "id"), _address),
    **dict.fromkeys(
        ("is_floating_point", "element_size", "is_complex", "finfo", "promote_types", "result_type", "can_cast"),
        _dtype_asked,
    ),
    **dict.fromkeys(_METHOD_SIGNS, _compared),
    "equal": _equal,
    **dict.fromkeys(("isclose", "allclose"), _close),
    "all": _all,
    "any": _any,
    **dict.fromkeys(("isnan", "isinf", "isfinite", "isneginf", "isposinf"), _not_finite),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), _filled(1.0)),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), _filled(0.0)),
    **dict.fromkeys(("full", "full_like"), _filled(None, 1)),
    "new_full": _filled(None, 2),
    "where": _where,
    **dict.fromkeys(("split", "unfold", "narrow", "chunk", "tensor_split"), _parts),
    "range": _range,
    "arange": _range,
    **dict.fromkeys(("bit_length", "bit_count", "bin"), _bits),
    **dict.fromkeys(("sort", "argsort", "msort"), _sorted),
    **dict.fromkeys((*_CHANGING - {"add"}, "get"), _state),
    "isinstance": _isinstance,
    **dict.fromkeys(("values", "keys"), _entries),
    "divmod": _divided,
    **dict.fromkeys(("startswith", "endswith"), _begins),
    **dict.fromkeys(("lower", "upper", "strip", "str", "repr"), _elements),
    **dict.fromkeys(
        ("list", "tuple", "set", "frozenset", "enumerate", "reversed", "iter", "sorted", "Size"), _elements
    ),
}
