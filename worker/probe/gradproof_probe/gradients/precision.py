"""What the operations of a run tell about its derivatives: where a float64 run computes in less (then small steps see
rounding, and only large ones a derivative), where its values jump, and which triangle of a matrix is not read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradproof_probe.gradients.attribution import Place, calling_line

# Unit roundoff times a few: one cast, then sums of it.
COARSE: Final = {
    torch.float32: 2.5e-7,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
    torch.complex64: 2.5e-7,
}
# Values that jump where their input moves: rounding, signs, positions, comparisons.
STEPS: Final = frozenset(
    {
        "round",
        "floor",
        "ceil",
        "trunc",
        "fix",
        "sign",
        "sgn",
        "heaviside",
        "floor_divide",
        "argmax",
        "argmin",
        "argsort",
        "topk",
        "sort",
        "searchsorted",
        "bucketize",
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "bernoulli",
        "multinomial",
        "one_hot",
        "nonzero",
        "isclose",
        "remainder",
        "fmod",
        "unique_dim",
        "_unique2",
        "msort",
        "kthvalue",
        "median",
        "nanmedian",
        "mode",
        "quantile",
        "cummax",
        "cummin",
        "hardshrink",
        "threshold",
    }
)
# These read one triangle of a matrix that ought to be symmetric; torch's gradient is that of the symmetric matrix.
ONE_TRIANGLE: Final = frozenset(
    {
        "_linalg_eigh",
        "linalg_eigh",
        "linalg_cholesky_ex",
        "linalg_cholesky",
        "cholesky",
        "linalg_ldl_factor_ex",
        "cholesky_inverse",
        "linalg_eigvalsh",
    }
)
_TORCH_OWN: Final = ("aten", "prim", "prims", "c10d", "_c10d_functional", "profiler", "inductor", "higher_order")


@dataclass(slots=True)
class Narrow:
    """The narrowest floating type that was computed in after wider ones had come in, and the operation.

    The dictionaries name operations, each with the submitted line of its first use; `foreign` are operators that are
    not torch's own, whose derivatives somebody else wrote.
    """

    dtype: torch.dtype | None = None
    operation: str = ""
    place: Place | None = None
    random: set[str] = field(default_factory=set)
    steps: dict[str, Place | None] = field(default_factory=dict)
    one_triangle: dict[str, Place | None] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)


class PrecisionTrace(TorchDispatchMode):
    """Notes casts of float64 values to narrower floats, operations that draw random numbers, and the others above.

    Lines are named where `source_root` is given.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks; True would import torch._dynamo at the first operation (2 s in every child)."""
        return False

    def __init__(self, source_root: Path | None = None) -> None:
        super().__init__()
        self.narrow = Narrow()
        self._root = source_root

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        namespace, _, rest = str(func).partition(".")
        name = rest.partition(".")[0] or namespace
        noted = self.narrow
        if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, kwargs or {}):
            noted.random.add(name)
        if namespace not in _TORCH_OWN:
            noted.foreign.add(f"{namespace}.{name}")
        floating = any(isinstance(item, torch.Tensor) and item.is_floating_point() for item in args)
        if name in STEPS and floating and name not in noted.steps:
            noted.steps[name] = self._line()
        if name in ONE_TRIANGLE and name not in noted.one_triangle:
            noted.one_triangle[name] = self._line()
        wide = any(isinstance(item, torch.Tensor) and item.dtype in (torch.float64, torch.complex128) for item in args)
        if wide and isinstance(result, torch.Tensor):
            if result.dtype in COARSE:
                current = noted.dtype
                if current is None or COARSE[result.dtype] > COARSE[current]:
                    noted.dtype, noted.operation, noted.place = result.dtype, str(func), self._line()
            elif name == "_to_copy" and not result.dtype.is_floating_point and result.dtype != torch.complex128:
                noted.steps.setdefault(f"to {str(result.dtype).removeprefix('torch.')}", self._line())
        return result

    def _line(self) -> Place | None:
        return None if self._root is None else calling_line(self._root)


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it could draw a dropout, as attention can, and is asked for none."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            value = args[number] if number < len(args) else kwargs.get("dropout_p", argument.default_value)
            return not value
    return False
