"""What the fault that a rule suspects looks like when it is run: which diagnoses it leads to, what a pass is worth.

The words are those of the probe's diagnoses. A failing check whose cause a rule's fault can't lead to says nothing
about the finding; a passing check refutes a finding only where it could not have passed with the fault. Rules that
are not listed accept any failure and are refuted by none. This module must not know findings or targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from analyzer.findings import TargetKind

_RAISES: Final = frozenset({"backward_raises", "forward_raises", "constructor_raises"})
_WRONG: Final = frozenset(
    {
        *("wrong_gradient", "wrong_coordinates", "wrong_sign", "scaled_gradient", "missing_gradient", "missing_term"),
        *("transposed", "flipped", "swapped_gradients", "nan_gradient", "gradient_where_constant"),
        *("saved_tensor_mutated", "backward_not_repeatable"),
    }
)


@dataclass(frozen=True, slots=True)
class Aim:
    """`causes`: the diagnoses that the fault leads to. `refuted_by`: checks that can't pass, on this kind, with it.

    `also`: checks that may come upon the fault besides those that the rule names.
    """

    causes: frozenset[str]
    also: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()
    kind: TargetKind = TargetKind.AUTOGRAD_FUNCTION


# A gradient that isn't finite although the output is: whoever sees it has found a singular point, searched or not.
_SINGULAR: Final = Aim(frozenset({"nan_gradient"}), also=("gradcheck",))

AIMS: Final[dict[str, Aim]] = {
    **dict.fromkeys(("GP101", "GP102", "GP103", "GP104", "GP107", "GP114"), _SINGULAR),
    # Both raise in the first backward, whatever the input (measured on torch 2.13: a trailing None alone is legal).
    "GP301": Aim(_RAISES, refuted_by=("gradcheck",)),
    "GP303": Aim(_RAISES, refuted_by=("gradcheck",)),
    # Harmless until somebody writes to the tensor between forward and backward, which no check does yet.
    "GP302": Aim(frozenset({"saved_tensor_mutated", "backward_not_repeatable"})),
    # Shows only when the input is used again after the Function, which gradcheck of the Function alone does not do.
    "GP307": Aim(_WRONG),
    # Silent by nature: a write through `.data` raises nothing.
    "GP401": Aim(_WRONG),
    # Loud by nature, but only where the line is reached: a pass may have gone another way.
    "GP404": Aim(_RAISES),
    "GP405": Aim(_RAISES),
}
