"""Which failures of different checks are one fault: what one check counts, another sees raise, a third differentiates.

Only words; this module must not know findings, targets or places.
"""

from __future__ import annotations

from typing import Final

# Each set is one fault by the words of several checks. The same word of two checks is one fault too.
_KINDS: Final = (
    # A graph that goes on from one call into the next.
    {
        *("graph_kept_by_history", "graph_grows", "graph_of_an_earlier_step", "graph_kept_between_steps"),
        "state_changed",
    },
    {"input_written", "input_mutated"},
    {"statistic_moves_in_eval", "batch_statistics_in_eval"},
    # A gradient that ends before it has come to its parameter.
    {
        *("detached", "zero_gradient", "zero_derivative", "missing_gradient", "missing_term", "held_constant"),
        *("dropped_part", "detached_loss"),
    },
    # A tensor that the module does not know of: not moved, not saved, not the same in two processes.
    {
        *("left_behind", "unregistered_parameters", "unsaved_random_attribute", "unsaved_statistic"),
        "random_state_differs",
    },
    {"random_state_not_preserved", "random_backward", "recomputation_differs"},
    {"custom_function_differs", "custom_backward_dropped", "function_without_autocast", "unpaired_custom_autocast"},
)


def same_fault(first: str, second: str) -> bool:
    """Whether two causes, each of another check at one place, tell of one fault."""
    return first == second or any(first in kind and second in kind for kind in _KINDS)
