"""Right values in a wrong order: transposed, reversed, shifted, read row by row where they lie column by column."""

from __future__ import annotations

from itertools import permutations
from typing import Final

from gradproof_probe.gradients.naming.difference import Difference
from gradproof_probe.gradients.naming.pairs import Named

_LARGEST_SHIFT: Final = 3


def reordered(item: Difference) -> Named | None:
    # Few wrong elements are no order: a row of equal ones is its own reversal but for one.
    if not item.is_wrong or item.analytic.numel() < 3 or int(item.wrong.sum()) * 4 < int(item.telling.sum()):
        return None
    if item.complete and not _same_values(item):
        return _shifted(item)
    return _transposed(item) or _flipped(item) or _shifted(item) or _permuted(item)


def _same_values(item: Difference) -> bool:
    """Whether one can be a reordering of the other: their sums and sums of squares agree."""
    size = item.r.abs()
    room = 1e-6 * float(size.sum()) + item.floor * item.r.numel()
    if abs(complex(item.a.sum()) - complex(item.r.sum())) > room:
        return False
    squares = float((size * size).sum())
    return abs(float((item.a.abs() ** 2).sum()) - squares) <= 1e-6 * squares + 2 * item.floor * float(size.sum())


def _transposed(item: Difference) -> Named | None:
    axes = len(item.shape)
    if axes < 2 or axes > 4:
        return None
    for order in permutations(range(axes)):
        if order == tuple(range(axes)) or item.analytic.numel() in item.shape:
            continue
        turned = item.reference.permute(order)
        numbers = {"axes": [axis for axis in range(axes) if order[axis] != axis], "order": list(order)}
        if tuple(turned.shape) == item.shape and item.equals(turned):
            moved = [axis for axis in range(axes) if order[axis] != axis]
            said = "transposed" if axes == 2 else f"transposed (axes {', '.join(map(str, moved))})"
            return Named(
                "transposed",
                f"the gradient for {item.name} is the derivative {said}",
                numbers,
                "look for a `.t()`, `.mT` or `transpose` too many or too few, or indices in the wrong order",
            )
        if tuple(turned.shape) != item.shape and item.equals(turned.reshape(item.shape)):
            return Named(
                "transposed",
                f"the gradient for {item.name} has the derivative's values in the order of its transpose: its shape "
                "is right, the elements are not in their places",
                numbers,
                "look for a `view`, `reshape` or `empty_like` where a `transpose` belongs",
            )
    return None


def _flipped(item: Difference) -> Named | None:
    long = [axis for axis, length in enumerate(item.shape) if length > 1]
    choices = [[axis] for axis in long]
    choices += [long] if len(long) > 1 else []
    choices += [long[-2:]] if len(long) > 2 else []
    for axes in choices:
        if item.equals(item.reference.flip(axes)):
            said = f"along axis {axes[0]}" if len(axes) == 1 else f"along axes {', '.join(map(str, axes))}"
            return Named(
                "flipped",
                f"the gradient for {item.name} is reversed {said}",
                {"axis": axes[0], "axes": axes},
                "look for a `flip`, a reversed loop or scan, or a kernel that is turned round in forward alone",
            )
    return None


def _shifted(item: Difference) -> Named | None:
    for axis, length in enumerate(item.shape):
        shifts = list(range(1, min(_LARGEST_SHIFT, length - 2) + 1))
        if length % 2 == 0 and length // 2 > _LARGEST_SHIFT:
            shifts.append(length // 2)  # halves exchanged: gates
        for shift in shifts:
            for step in (shift, -shift):
                kept = length - shift
                # Five elements in common: a run of few could agree because they are zero.
                if kept * (item.analytic.numel() // length) < 5:
                    continue
                mine = item.analytic.narrow(axis, max(step, 0), kept)
                theirs = item.reference.narrow(axis, max(-step, 0), kept)
                if item.complete and float((mine - theirs).abs().max()) > item.floor + 1e-4 * item.largest:
                    continue
                if item.equals(item.reference.roll(step, axis)):
                    return _shift_name(item, axis, step, "round the end (rolled)")
                both = theirs.isfinite() & mine.isfinite()
                told = both & (theirs.abs() > 1e-6 * item.scale)
                if int(told.sum()) >= 5 and item.explains((mine - theirs)[both]):
                    return _shift_name(item, axis, step, "")
    return None


def _shift_name(item: Difference, axis: int, step: int, said: str) -> Named:
    if said and abs(step) * 2 == item.shape[axis]:
        return Named(
            "shifted",
            f"the gradient for {item.name} has its two halves along axis {axis} exchanged",
            {"axis": axis, "shift": step},
            "look for the order of the halves in `chunk`, `split` or `cat`",
        )
    by = f"{abs(step)} element{'s' if abs(step) > 1 else ''}"
    where = "towards the end" if step > 0 else "towards the start"
    return Named(
        "shifted",
        f"the gradient for {item.name} is shifted by {by} {where} along axis {axis}{' ' + said if said else ''}",
        {"axis": axis, "shift": step},
        "look for an index that is off by one, padding on the wrong side, or a `roll` in the wrong direction",
    )


def _permuted(item: Difference) -> Named | None:
    """Along an axis the same values in another order, row by row another: an index that is used the wrong way."""
    if not item.complete or item.r.is_complex() or int(item.telling.sum()) < 5:
        return None
    for axis, length in enumerate(item.shape):
        if length > 1 and item.explains(item.analytic.sort(axis).values - item.reference.sort(axis).values):
            return Named(
                "permuted",
                f"the gradient for {item.name} has the right values in wrong places along axis {axis}",
                {"axis": axis},
                "an index or a permutation is applied where its inverse belongs: `gather` for `scatter`, an argsort "
                "once instead of twice",
            )
    return None
