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
# Ways in which the values of a gradient are wrong: a formula with a slip in it, or values that were spoilt.
_VALUES: Final = frozenset(
    {
        *("wrong_gradient", "wrong_coordinates", "wrong_elements", "wrong_block", "wrong_region", "wrong_tail"),
        *("wrong_formula", "wrong_factor", "wrong_term", "wrong_reduction", "wrong_sign", "scaled_gradient"),
        *("missing_gradient", "missing_term", "missing_factor", "missing_conjugate", "extra_term", "extra_factor"),
        *("constant_offset", "held_constant", "dropped_part", "different_epsilon", "mean_instead_of_sum", "rounded"),
        *("transposed", "flipped", "permuted", "shifted", "swapped_gradients", "swapped_grad_outputs", "nan_gradient"),
        *("gradient_where_constant", "unexpected_gradient", "wrong_second_order", "not_finite", "clipped"),
    }
)
# Ways in which right values become wrong between forward and backward, or between one call and another.
_STATE: Final = frozenset(
    {
        *("state_outside_ctx", "stale_saved_value", "random_backward", "order_dependent", "mode_dependent"),
        "backward_not_repeatable",
    }
)
_WRITES: Final = frozenset(
    {"saved_tensor_mutated", "input_mutated", "grad_output_mutated", "stale_saved_value", "backward_not_repeatable"}
)
_LAYOUTS: Final = frozenset({"grad_output_layout", "input_layout"})
_CIRCUMSTANCES: Final = frozenset(
    {
        *("requires_grad_subset", "unused_output", "size_dependent", "shape_dependent", "dtype_dependent"),
        *("autocast_dependent", "aliasing", "value_dependent", "argument_dependent", "grad_output_dependent"),
    }
)


@dataclass(frozen=True, slots=True)
class Aim:
    """`causes`: the diagnoses that the fault leads to. `also`: checks that may come upon the fault besides those that
    the rule names.

    `refuted_by`: checks that can't pass, on this kind of target, with the fault in it. `searched_by`: checks that
    provoke the fault in all ways that they know, so that a pass refutes a doubt about a line of backward which they
    came by.
    """

    causes: frozenset[str]
    also: tuple[str, ...] = ()
    refuted_by: tuple[str, ...] = ()
    searched_by: tuple[str, ...] = ()
    kind: TargetKind = TargetKind.AUTOGRAD_FUNCTION


# Values or gradients that aren't finite: whoever sees one has found a singular point, searched or not.
_SINGULAR: Final = Aim(frozenset({"nan_gradient", "nan_output"}), also=("gradcheck",))
_SINGULAR_RULES: Final = (
    *(f"GP{number}" for number in range(101, 118)),
    *("GP119", "GP120", "GP121", "GP122", "GP123", "GP125", "GP128", "GP129", "GP130", "GP131", "GP132", "GP142"),
    *("GP208", "GP325"),
)
_SECOND_ORDER: Final = frozenset({"wrong_second_order"})
_GRADCHECK: Final = ("gradcheck",)

AIMS: Final[dict[str, Aim]] = {
    **dict.fromkeys(_SINGULAR_RULES, _SINGULAR),
    # A gradient that ends early is missing, whole or in part; a straight-through estimate is off by what was meant.
    **dict.fromkeys(("GP201", "GP202", "GP203"), Aim(_VALUES)),
    "GP204": Aim(_VALUES | {"surrogate", "straight_through"}),
    "GP207": Aim(_SECOND_ORDER | {"missing_gradient", "backward_raises"}),
    # These raise in the first backward, whatever the input (measured on torch 2.13: a trailing None alone is legal).
    "GP301": Aim(_RAISES, refuted_by=_GRADCHECK),
    "GP303": Aim(_RAISES, refuted_by=_GRADCHECK),
    "GP327": Aim(_RAISES, refuted_by=_GRADCHECK),
    # Harmless until somebody writes to the tensor between forward and backward; and then a pass says nothing of the
    # memory that a tensor on ctx keeps alive.
    "GP302": Aim(frozenset({"stale_saved_value", "saved_tensor_mutated", "backward_not_repeatable"}) | _SECOND_ORDER),
    "GP304": Aim(frozenset({"missing_gradient", "missing_term", "requires_grad_subset"})),
    # Of different shapes, swapped gradients are refused by the engine.
    "GP305": Aim(_VALUES | {"backward_raises", "requires_grad_subset"}, searched_by=_GRADCHECK),
    "GP306": Aim(_WRITES | _VALUES | {"aliasing", "grad_output_layout"}, searched_by=_GRADCHECK),
    # Shows only when the input is used again after the Function, which a check of the Function alone does not do.
    "GP307": Aim(_VALUES | _WRITES | {"aliasing"}),
    "GP308": Aim(_VALUES | _WRITES | _RAISES),
    "GP309": Aim(_VALUES | {"unused_output"}),
    "GP310": Aim(_RAISES | {"unused_output"}, searched_by=_GRADCHECK),
    # Refused at once where backward is once_differentiable; silent otherwise, and then no pass is possible.
    "GP311": Aim(_SECOND_ORDER | {"backward_raises"}, also=_GRADCHECK, refuted_by=("gradgradcheck",)),
    "GP321": Aim(_SECOND_ORDER, also=_GRADCHECK, refuted_by=("gradgradcheck",)),
    "GP312": Aim(_RAISES | _VALUES),
    "GP313": Aim(_RAISES),
    "GP314": Aim(_STATE | _VALUES, searched_by=_GRADCHECK),
    "GP315": Aim(_STATE | _VALUES),
    "GP317": Aim(_LAYOUTS | {"backward_raises"}, searched_by=_GRADCHECK),
    "GP319": Aim(_RAISES | {"missing_gradient", "missing_term"}),
    "GP322": Aim(_RAISES, searched_by=_GRADCHECK),
    "GP323": Aim(_RAISES | _CIRCUMSTANCES),
    "GP324": Aim(_VALUES | {"ignores_grad_output", "not_linear", "grad_output_dependent"}, searched_by=_GRADCHECK),
    "GP326": Aim(_WRITES | _VALUES | {"backward_raises"}, searched_by=_GRADCHECK),
    "GP329": Aim(_RAISES | {"requires_grad_subset"}, searched_by=_GRADCHECK),
    "GP331": Aim(_RAISES | _CIRCUMSTANCES, searched_by=_GRADCHECK),
    "GP332": Aim(_RAISES | {"missing_gradient", "missing_term"}),
    "GP333": Aim(_VALUES | {"backward_raises"}, searched_by=_GRADCHECK),
    # Silent by nature: a write past autograd raises nothing.
    **dict.fromkeys(("GP401", "GP402", "GP403"), Aim(_VALUES | _WRITES)),
    # Loud by nature, but only where the line is reached: a pass may have gone another way.
    **dict.fromkeys(("GP404", "GP405", "GP406", "GP407", "GP414"), Aim(_RAISES)),
    "GP408": Aim(_RAISES | _WRITES),
    "GP412": Aim(_RAISES | _STATE),
    "GP413": Aim(_RAISES | _VALUES | _WRITES),
}
