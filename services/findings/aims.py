"""What the fault that a rule suspects looks like when it is run: which diagnoses it leads to, what a pass is worth.

The words are those of the probe's diagnoses. A failing check whose cause a rule's fault can't lead to says nothing
about the finding; a passing check refutes a finding only where it could not have passed with the fault. Rules that
are not listed accept any failure and are refuted by none; an empty set of causes accepts no failure, and leaves the
rule to a search that was aimed at it. This module must not know findings or targets.
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
        *("constant_offset", "held_constant", "dropped_part", "different_epsilon", "rounded"),
        *("transposed", "flipped", "permuted", "shifted", "swapped_gradients", "swapped_grad_outputs", "nan_gradient"),
        *("gradient_where_constant", "unexpected_gradient", "wrong_second_order", "not_finite", "clipped"),
    }
)
# Ways in which right values become wrong between forward and backward, or between one call and another.
_STATE: Final = frozenset(
    {
        *("state_outside_ctx", "stale_saved_value", "random_backward", "mode_dependent"),
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

# A graph that goes from one call into the next: what holds it, what grows, what raises.
_CARRIED: Final = frozenset({"graph_kept_by_history", "graph_grows", "graph_of_an_earlier_step"})
_CARRYING: Final = ("memory", "training_step")
# No gradient, or a gradient of zero, in a module whose output follows its parameters.
_CUT: Final = frozenset({"detached", "zero_gradient", "zero_derivative"})
_RANDOM_IN_EVALUATION: Final = frozenset({"dropout_in_eval", "dropout_out_of_reach"})
# Values that a device gives and the CPU does not, whatever the operation.
_OTHER_ON_DEVICE: Final = frozenset({"kernel_fault", "device_differs"})
_MEETS_CPU: Final = frozenset({"device_raises"})
# A step over micro-batches that is held against the same samples as one batch.
_WHOLE_BATCH: Final = ("accumulation_equivalence",)
# What a checkpoint comes to where its function does not do the same again; to a gradient check it is a gradient that
# is right the first time only.
_NOT_THE_SAME_AGAIN: Final = frozenset({"state_changed", "recomputation_raises", "recomputation_differs"})
_IN_OTHER_WORDS: Final = frozenset({"wrong_second_order", "random_backward", "backward_not_repeatable"})
_COMPILED: Final = frozenset({"compile_raises", "compile_differs"})

# Checks that point at the line of the fault itself, where they point at another line than the first of their target: a
# finding of another line is another fault. (A gradient check often knows no better than the end of a backward, and what
# a state dict leaves out is told at the line that sets it first.)
PRECISE: Final = frozenset(
    {
        *("eval_side_effects", "gradient_flow", "batch_consistency", "training_step", "memory"),
        *("checkpoint_equivalence", "accumulation_equivalence", "autocast", "export_equivalence", "ddp_consistency"),
        *("compile_equivalence", "device_compare"),
    }
)


@dataclass(frozen=True, slots=True)
class Aim:
    """`causes`: the diagnoses that the fault leads to. `also`: checks that may come upon the fault besides those that
    the rule names. What another check says in one of these words confirms nothing, but is the same story in a target
    where the finding is confirmed.

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
_SINGULAR: Final = Aim(frozenset({"nan_gradient", "nan_output", "nan_constant"}), also=("gradcheck",))
# In half precision the same happens to ordinary values.
_SINGULAR_IN_HALF: Final = Aim(
    frozenset({"nan_gradient", "nan_output", "nan_constant", "not_finite_under_autocast", "does_not_fit"}),
    also=("gradcheck",),
)
_SINGULAR_RULES: Final = (
    *(f"GP{number}" for number in range(101, 118)),
    *("GP120", "GP121", "GP122", "GP125", "GP128", "GP129", "GP130", "GP131", "GP132", "GP142"),
    *("GP208", "GP325"),
)
_SECOND_ORDER: Final = frozenset({"wrong_second_order"})
_GRADCHECK: Final = ("gradcheck",)

_GRADIENT_AIMS: Final[dict[str, Aim]] = {
    **dict.fromkeys(_SINGULAR_RULES, _SINGULAR),
    "GP119": _SINGULAR_IN_HALF,
    # `binary_cross_entropy` raises under autocast on CUDA.
    "GP123": Aim(_SINGULAR_IN_HALF.causes | {"mixed_dtypes"}, also=("gradcheck",)),
    # A gradient that ends early is missing, whole or in part; a straight-through estimate is off by what was meant.
    **dict.fromkeys(("GP201", "GP202", "GP203"), Aim(_VALUES | _CUT | {"detached_loss"}, also=("training_step",))),
    "GP204": Aim(_VALUES | _CUT | {"straight_through"}),
    "GP207": Aim(_SECOND_ORDER | {"missing_gradient", "backward_raises"}),
    # These raise in the first backward, whatever the input (measured on torch 2.13: a trailing None alone is legal).
    "GP301": Aim(_RAISES, refuted_by=_GRADCHECK),
    "GP303": Aim(_RAISES, refuted_by=_GRADCHECK),
    "GP327": Aim(_RAISES, refuted_by=_GRADCHECK),
    # Harmless until somebody writes to the tensor between forward and backward; and then a pass says nothing of the
    # memory that a tensor on ctx keeps alive.
    "GP302": Aim(
        frozenset({"stale_saved_value", "saved_tensor_mutated", "backward_not_repeatable", "reference_cycle"})
        | _SECOND_ORDER
    ),
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
    "GP408": Aim(_RAISES | _WRITES | {"input_written"}),
    "GP412": Aim(_RAISES | _STATE),
    "GP413": Aim(_RAISES | _VALUES | _WRITES),
}
_CUT_AIMS: Final[dict[str, Aim]] = {
    "GP205": Aim(frozenset({"unregistered_parameters", "left_behind"}), also=("device_compare",)),
    # A flag that nobody reads shows in what still trains, which only a search asks for.
    "GP206": Aim(frozenset()),
    "GP209": Aim(frozenset({"gradient_lost_between_ranks", "detached"})),
    # `gradient_flow` takes what is sampled for meant.
    "GP210": Aim(frozenset()),
    "GP318": Aim(frozenset({"unpaired_custom_autocast", "mixed_dtypes"})),
    "GP320": Aim(frozenset({"hook_writes_gradient", "hook_raises"})),
    "GP328": Aim(frozenset({"custom_backward_dropped"})),
    "GP330": Aim(frozenset({"detached"})),
    **dict.fromkeys(("GP411", "GP415"), Aim(_CARRIED | {"graph_kept_between_steps"}, also=(*_CARRYING, "gradcheck"))),
}
_COMPILE_AIMS: Final[dict[str, Aim]] = {
    # A break is no difference: it is found by asking Dynamo. A recording bakes the value in.
    **dict.fromkeys(
        ("GP501", "GP502", "GP503"), Aim(frozenset({"baked_in", "compile_raises"}), also=("export_equivalence",))
    ),
    "GP504": Aim(_COMPILED),
    "GP505": Aim(_COMPILED | {"random_state_not_preserved"}, also=("checkpoint_equivalence",)),
    # What is counted is in no state dict, and counted twice by a checkpoint.
    "GP506": Aim(
        frozenset({"recompiles_at_each_call", "compile_differs", "unsaved_number", "state_changed"}),
        also=("state_dict", "checkpoint_equivalence"),
    ),
    "GP507": Aim(_COMPILED),
    "GP508": Aim(_COMPILED | {"custom_function_differs"}),
    "GP511": Aim(frozenset({"hook_after_compile"})),
    "GP512": Aim(frozenset({"compile_raises", "depends_on_memory_layout"})),
    "GP513": Aim(frozenset({"step_at_edge"})),
    "GP514": Aim(frozenset({"depends_on_memory_layout", "compile_differs", "overlapping_write"})),
    # Rounding at another place is no failure.
    "GP515": Aim(frozenset()),
}
_DEVICE_AIMS: Final[dict[str, Aim]] = {
    "GP118": Aim(frozenset({"does_not_fit", "not_finite_under_autocast"})),
    "GP126": Aim(frozenset({"not_finite_under_autocast"})),
    "GP127": Aim(frozenset({"differs_under_autocast"}) | _OTHER_ON_DEVICE),
    "GP601": Aim(frozenset({"hard_coded_device"}) | _MEETS_CPU),
    "GP602": Aim(frozenset({"factory_without_device"}) | _MEETS_CPU),
    "GP603": Aim(frozenset()),
    "GP604": Aim(
        frozenset({"left_behind", "unsaved_random_attribute", "unsaved_statistic", "random_state_differs"})
        | _MEETS_CPU,
        also=("ddp_consistency",),
    ),
    "GP605": Aim(_OTHER_ON_DEVICE),
    # A copy or a stream that nobody waits for gives other numbers now and then.
    **dict.fromkeys(("GP606", "GP620"), Aim(_OTHER_ON_DEVICE)),
    # What no device repeats is `inconclusive`, with the name of the operation.
    "GP607": Aim(frozenset()),
    **dict.fromkeys(("GP609", "GP612", "GP622", "GP623"), Aim(_OTHER_ON_DEVICE)),
    "GP610": Aim(frozenset({"numpy_round_trip"}) | _MEETS_CPU),
    "GP613": Aim(_OTHER_ON_DEVICE | {"device_dependent_code"}),
    "GP614": Aim(_OTHER_ON_DEVICE | {"setting_changed", "generator_reseeded"}),
    "GP615": Aim(frozenset({"left_behind", "factory_without_device"}) | _MEETS_CPU),
    "GP616": Aim(frozenset({"left_behind"}) | _MEETS_CPU),
    "GP617": Aim(frozenset({"unsaved_flag", "unsaved_number"})),
    "GP618": Aim(frozenset({"hard_coded_device"}) | _MEETS_CPU),
    "GP619": Aim(frozenset({"not_finite_under_autocast", "differs_under_autocast", "does_not_fit"})),
    "GP621": Aim(frozenset({"generator_on_cpu"}) | _MEETS_CPU),
    "GP624": Aim(frozenset({"factory_without_device", "left_behind"}) | _MEETS_CPU),
    "GP625": Aim(frozenset({"unsaved_statistic"})),
}
_TRAINING_AIMS: Final[dict[str, Aim]] = {
    # A loss is compared with what it should have been by a search alone.
    **dict.fromkeys(("GP124", "GP141"), Aim(frozenset())),
    "GP701": Aim(frozenset({"gradients_not_cleared"})),
    "GP702": Aim(frozenset({"graph_kept_by_history"})),
    "GP703": Aim(_CARRIED),
    "GP704": Aim(frozenset({"clip_after_step", "clip_before_backward"})),
    "GP705": Aim(frozenset({"clip_before_unscale"})),
    "GP706": Aim(
        frozenset({"accumulation_not_divided", "accumulation_scaled"}),
        refuted_by=_WHOLE_BATCH,
        kind=TargetKind.FUNCTION,
    ),
    # Evaluation mode that a training loop never leaves: no call of a module shows that.
    "GP708": Aim(frozenset()),
    "GP709": Aim(frozenset({"scheduler_before_step"})),
    "GP710": Aim(frozenset({"step_on_scaled_gradients", "scaler_update_missing"})),
    # Who goes past the wrapper synchronises nothing; how data are shared out is no check's affair.
    "GP711": Aim(frozenset({"ranks_drift", "gradients_left_out"})),
    "GP713": Aim(frozenset({"loss_broadcast"})),
    **dict.fromkeys(("GP714", "GP731"), Aim(_RANDOM_IN_EVALUATION)),
    "GP715": Aim(frozenset({"reduced_over_batch"})),
    "GP717": Aim(_CARRIED),
    "GP718": Aim(frozenset({"batch_axis_reshaped", "copies_in_other_order"})),
    # What is never used is no failure by itself.
    **dict.fromkeys(("GP719", "GP724", "GP728"), Aim(frozenset())),
    "GP720": Aim(_RANDOM_IN_EVALUATION),
    "GP721": Aim(frozenset({"copies_in_other_order"})),
    "GP722": Aim(frozenset({"broadcast_over_batch"})),
    "GP723": Aim(frozenset({"gradients_cleared_before_step"}), refuted_by=_WHOLE_BATCH, kind=TargetKind.FUNCTION),
    "GP725": Aim(frozenset({"samples_taken_for_steps"})),
    "GP726": Aim(frozenset({"batch_axis_reshaped", "copies_in_other_order"})),
    "GP727": Aim(frozenset({"gradients_cleared_before_step", "step_before_backward"})),
    "GP729": Aim(frozenset({"padding_is_seen", "future_is_seen"})),
    "GP730": Aim(frozenset({"statistic_moves_in_eval", "parameter_changed"})),
    "GP732": Aim(frozenset({"statistic_moves_in_eval"})),
    "GP733": Aim(frozenset({"statistic_moves_in_eval", "batch_statistics_in_eval"})),
    **dict.fromkeys(("GP734", "GP735"), Aim(frozenset({"reduced_over_batch"}))),
    "GP738": Aim(
        frozenset({"window_shifted", "last_window_divided_by_all"}),
        refuted_by=_WHOLE_BATCH,
        kind=TargetKind.FUNCTION,
    ),
    "GP739": Aim(frozenset({"padding_is_seen"})),
    "GP740": Aim(frozenset({"padding_is_seen", "unequal_weights"})),
}
_CHECKPOINT_AIMS: Final[dict[str, Aim]] = {
    **dict.fromkeys(("GP801", "GP802"), Aim(frozenset({"no_gradient_through_reentrant"}))),
    "GP803": Aim(_IN_OTHER_WORDS | {"random_state_not_preserved"}),
    "GP804": Aim(_NOT_THE_SAME_AGAIN | _IN_OTHER_WORDS | {"buffer_updated_twice"}),
    **dict.fromkeys(("GP805", "GP806"), Aim(_NOT_THE_SAME_AGAIN | _IN_OTHER_WORDS)),
    # The Function draws by itself: to a gradient check its backward is a random one, or that of another network.
    "GP807": Aim(frozenset({"random_backward", "random_state_not_preserved"}) | _VALUES, also=("gradcheck",)),
}

AIMS: Final[dict[str, Aim]] = {
    **_GRADIENT_AIMS,
    **_CUT_AIMS,
    **_COMPILE_AIMS,
    **_DEVICE_AIMS,
    **_TRAINING_AIMS,
    **_CHECKPOINT_AIMS,
}
