"""Do the samples of a batch know each other? One is changed, and what belongs to the others must stay as it is.

Where it doesn't, the operations at which the change leaves its sample are found; what they gave is put back for the
other samples, and the ones for which that makes the outputs right are the cause. Whether the samples are meant to meet
is read from names. This module must not know how a result is reported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.seeding import reseed, state, unchanged
from gradproof_probe.suspicions.bench import close
from gradproof_probe.training.batch_words import line_of, meant, over_batch, says_batch_first
from gradproof_probe.training.dependence import Comparison, DivergedError, Operation, Recording, Way, differs
from gradproof_probe.training.instances import Instances
from gradproof_probe.training.samples import (
    Batch,
    batch_along,
    confined,
    following_axes,
    in_blocks,
    one_sample_kept,
)
from gradproof_probe.trees import tensors

_ROUNDS: Final = 4
_MOST_CAUSES: Final = 8
_LAYOUT: Final = frozenset({"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "contiguous"})
_ALONG: Final = frozenset(
    {"softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp", "normalize", "gumbel_softmax", "softmin", "cummax"}
)
_REDUCING: Final = frozenset(
    {"mean", "sum", "max", "min", "amax", "amin", "std", "var", "norm", "std_mean", "var_mean", "median", "logsumexp"}
    | {"vector_norm", "linalg_vector_norm", "linalg_norm", "nansum", "nanmean", "aminmax", "quantile", "prod", "argmax"}
)
_IN_STEPS: Final = frozenset({"gru", "lstm", "rnn_tanh", "rnn_relu"})
_HEADS: Final = "multi_head_attention_forward"
_ATTENTION: Final = "scaled_dot_product_attention"
_COPYING: Final = frozenset({"repeat", "tile", "cat", "concat", "concatenate", "expand", "stack"})
_ELEMENTWISE: Final = frozenset(
    {"add", "sub", "mul", "div", "true_divide", "masked_fill", "masked_fill_", "where", "add_", "mul_", "sub_", "div_"}
    | {"__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rmul__", "__rsub__", "__and__", "__or__"}
    | {"__iadd__", "__imul__", "__isub__", "rsub", "maximum", "minimum", "logical_and", "logical_or"}
)
_SLIPS: Final = frozenset({"batch_axis_reshaped", "copies_in_other_order", "broadcast_over_batch"})
_NORMALISING: Final = frozenset({"batch_norm", "group_norm", "instance_norm"})
# The rank at which these take the first axis for the samples.
_RANKS: Final = {
    **{f"conv{n}d": n + 2 for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": n + 2 for n in (1, 2, 3)},
    **{f"max_pool{n}d": n + 2 for n in (1, 2, 3)},
    **{f"avg_pool{n}d": n + 2 for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": n + 2 for n in (1, 2, 3)},
}


@dataclass(slots=True)
class _Runs:
    """A batch with its recorded run, and where each output has its samples. `resized`: another size works too."""

    batch: Batch
    recording: Recording
    outputs: list[torch.Tensor]
    axes: list[int | None]
    resized: bool


class Samples:
    """One comparison of the samples of a module's batch. Raises what the submitted code raises."""

    def __init__(self, instances: Instances, *, seed: int) -> None:
        self._instances = instances
        self._seed = seed
        self._root = instances.source_root
        self._module = instances.fresh()
        self._stateless = True
        self._size = 0
        self._differentiates = self._draws = False
        self.evidence: dict[str, Any] = {}

    def run(self) -> Answer:
        try:
            return self._run()
        except RuntimeError as error:
            if not re.search(r"does not require grad|no_grad mode", str(error)):
                raise
            # It differentiates inside, which torch refuses under no_grad.
            self._differentiates, self._size = True, 0
            return self._run()

    def _run(self) -> Answer:
        first = self._along(0)
        evidence = "" if first is None or first[1] is None else self._batch_first(*first)
        if first is not None and (first[1] is None or evidence):
            return self._told(*first, evidence)
        # Sequences may come with the steps first.
        reason = self.evidence.pop("reason", "no input has an axis of samples")
        second = self._along(1)
        if second is not None and second[1] is None and second[0].resized:
            self.evidence |= {"samples": second[0].batch.size, "axis": 1}
            return Answer("pass", "separate", "along the second axis of the inputs, samples do not know each other")
        if first is None:
            return Answer("skipped", "no_samples", reason)
        return self._told(*first, evidence)

    def _told(self, runs: _Runs, way: Way | None, evidence: str) -> Answer:
        self.evidence |= {"samples": runs.batch.size, "axis": runs.batch.axis}
        self.evidence |= {} if runs.resized else {"other_sizes": "raise"}
        if way is None:
            found = self._alone(runs)
            if found.verdict == "inconclusive" and not (self._instances.is_module or self._batch_first(runs, None)):
                return _no_samples()
            return found
        self.evidence["batch_first"] = evidence
        if self._instances.is_module:
            return self._judge(runs, way, evidence)
        if not evidence:
            return _no_samples()
        found = self._judge(runs, way, evidence)
        # A function has no evaluation mode, and its purpose may be a figure of the whole batch.
        by_purpose = found.cause == "batch_statistics_in_eval" or found.numbers.get("operations", [""])[0] in _REDUCING
        if by_purpose or (
            found.cause == "reduced_over_batch" and over_batch(self._instances.definitions(self._module))
        ):
            found.verdict = "inconclusive"
        return found

    # --- running ---

    def _along(self, axis: int) -> tuple[_Runs, Way | None] | None:
        """The runs along an axis, and how a change of one sample gets to others; None for that if it doesn't.

        None for both where it can't be told.
        """
        args, kwargs = self._instances.arguments()
        batch = batch_along(args, kwargs, axis)
        if batch is None:
            self.evidence.setdefault("reason", "no input has an axis of samples beside another one")
            return None
        runs = self._runs(batch)
        if runs is None:
            return None
        depends, astray = False, None
        for sample in dict.fromkeys((0, runs.batch.size - 1)):
            way = self._compare(runs, sample)
            if way is None:
                return None
            for (now, then), output_axis in zip(way.outputs, runs.axes, strict=True):
                changed = differs(now, then)
                if output_axis is not None and changed is not None:
                    depends = True
                    if output_axis not in confined(changed, runs.batch.size) and astray is None:
                        astray = way
        if not depends:
            self.evidence["reason"] = "the outputs that have an axis of samples do not depend on the sample changed"
            return None
        return runs, astray

    def _runs(self, batch: Batch) -> _Runs | None:
        given = self._call(batch) if batch.size > 1 else None
        larger, outputs = self._larger(batch, given)
        if larger is None:
            if given is None:
                self.evidence.setdefault("reason", "it takes batches of one sample only")
                return None
            larger, outputs = batch, given
            axes: list[int | None] = [
                axis if output.ndim > axis and output.shape[axis] == batch.size else None
                for output in given
                for axis in [batch.axis]
            ]
        else:
            small = given if given is not None else self._call(batch)
            if len(small) != len(outputs):
                return None
            axes = following_axes(small, outputs, (batch.size, larger.size))
        if all(axis is None for axis in axes):
            self.evidence.setdefault(
                "reason", "no output keeps the samples apart: it reduces over the batch, or compares"
            )
            return None
        recording = Recording(self._root)
        recorded = self._call(larger, recording)
        if not _alike(recorded, outputs):
            # It carries something from call to call: a new instance for each.
            self._stateless = False
            recording = Recording(self._root)
            recorded = self._call(larger, recording)
            again = self._call(larger)
            if not _alike(recorded, again):
                self.evidence.setdefault("reason", "two calls with the same input give different outputs")
                return None
        return _Runs(larger, recording, recorded, axes, resized=larger is not batch)

    def _larger(self, batch: Batch, given: list[torch.Tensor] | None) -> tuple[Batch | None, list[torch.Tensor]]:
        """The batch with another number of samples, with which the call works."""
        whole = [batch]
        if not self._instances.is_module and len(batch.members) > 1:
            # What a function is given beside may be weights: where it works with more samples of its first tensor
            # alone, these are all.
            whole.insert(0, Batch(batch.args, batch.kwargs, batch.axis, batch.size, (batch.first,), batch.first))
        for size in list(batch.spare_sizes())[:2]:
            if size == batch.size:
                continue
            left_out = [m for m in batch.members if m != batch.first and batch.tensors()[m].ndim > 2]
            for larger in (
                *(item.resized(size) for item in whole),
                *(batch.resized(size, without=m) for m in left_out[:2]),
            ):
                outputs = self._tried(larger)
                if outputs is not None and (given is None or len(given) == len(outputs)):
                    return larger, outputs
        return None, []

    def _tried(self, batch: Batch) -> list[torch.Tensor] | None:
        try:
            return self._call(batch)
        except Exception:  # sizes that don't fit are what is asked
            return None

    def _call(self, batch: Batch, mode: Any = None) -> list[torch.Tensor]:
        return self._run_module(batch.copied(), mode)

    def _run_module(self, batch: Batch, mode: Any) -> list[torch.Tensor]:
        if not self._stateless or batch.size != self._size:
            # What a module keeps from a call may have the size of that call's batch.
            self._module, self._size = self._instances.fresh(), batch.size
        reseed(self._seed + 100)
        before = state()
        with torch.set_grad_enabled(self._differentiates), mode if mode is not None else nullcontext():
            result = self._module(*batch.args, **batch.kwargs)
        self._draws |= not unchanged(before)
        return [value.detach().clone() for _, value in tensors(result)]

    def _compare(self, runs: _Runs, sample: int, repaired: Sequence[int] = ()) -> Way | None:
        """The way of a change of one sample; None if the code takes another way then."""
        size = runs.batch.size
        for modest in (False, True):
            changed = runs.batch.changed(sample, modest=modest)
            comparison = Comparison(
                runs.recording,
                self._root,
                lambda mask: bool(confined(mask, size, sample)),
                repaired=repaired,
                repair=lambda now, then: one_sample_kept(now, then, size, sample),
            )
            comparison.begin(list(zip(changed.tensors(), runs.batch.tensors(), strict=True)))
            try:
                outputs = self._run_module(changed, comparison)
            except DivergedError:
                return self._outputs_alone(runs, changed)
            except Exception:  # noqa: S112 - the values may be outside of what it takes
                continue
            if len(outputs) != len(runs.outputs):
                return None
            comparison.way.outputs = list(zip(outputs, runs.outputs, strict=True))
            return comparison.way
        self.evidence.setdefault("reason", "the call takes no other values for one sample")
        return None

    def _outputs_alone(self, runs: _Runs, changed: Batch) -> Way | None:
        outputs = self._run_module(changed.copied(), None)
        if [o.shape for o in outputs] != [o.shape for o in runs.outputs]:
            self.evidence.setdefault("reason", "the call takes another way through the code with other values")
            return None
        return Way(outputs=list(zip(outputs, runs.outputs, strict=True)))

    # --- what it means ---

    def _batch_first(self, runs: _Runs, way: Way | None) -> str:
        said = says_batch_first(self._instances.definitions(self._module))
        if said:
            return said
        size = runs.batch.size
        for operation in way.seen if way is not None else ():
            rank = 2 if operation.name == "embedding" else _RANKS.get(operation.name)
            # An embedding's indices come second, after its weights.
            tensor, mask = operation.inputs[min(operation.name == "embedding", len(operation.inputs) - 1)]
            ranked = tensor.ndim == rank or (operation.name in _NORMALISING and tensor.ndim > 2)
            if mask is not None and ranked and 0 in confined(mask, size):
                return f"{operation.name} takes the first axis for the samples"
        return ""

    def _causes(self, runs: _Runs, way: Way) -> list[Operation]:
        """The operations without which the outputs keep the samples apart."""
        sample = self._sample(runs)
        found: dict[int, Operation] = {item.number: item for item in way.astray}
        chosen = list(found)[:_MOST_CAUSES]
        for number in chosen:
            if self._separate(runs, sample, [number]):
                return [found[number]]
        for _ in range(_ROUNDS):
            if not chosen or len(chosen) > _MOST_CAUSES or not self._instances.more():
                return []
            following = self._compare(runs, sample, chosen)
            if following is None:
                return []
            if self._is_separate(runs, following):
                break
            more = [item for item in following.astray if item.number not in found]
            if not more:
                return []
            found |= {item.number: item for item in more}
            chosen += [item.number for item in more]
        else:
            return []
        for number in list(chosen):
            rest = [item for item in chosen if item != number]
            if rest and self._separate(runs, sample, rest):
                chosen = rest
        return [found[number] for number in sorted(chosen)]

    def _sample(self, runs: _Runs) -> int:
        first = self._compare(runs, 0)
        return 0 if first is not None and not self._is_separate(runs, first) else runs.batch.size - 1

    def _separate(self, runs: _Runs, sample: int, repaired: Sequence[int]) -> bool:
        way = self._compare(runs, sample, repaired) if self._instances.more() else None
        return way is not None and self._is_separate(runs, way)

    def _is_separate(self, runs: _Runs, way: Way) -> bool:
        for (now, then), axis in zip(way.outputs, runs.axes, strict=True):
            changed = differs(now, then)
            if axis is not None and changed is not None and axis not in confined(changed, runs.batch.size):
                return False
        return True

    def _judge(self, runs: _Runs, way: Way, evidence: str) -> Answer:
        again = "when only one sample of the batch changes, the outputs of others change too"
        causes = self._causes(runs, way) if way.astray and runs.recording.whole else []
        if not causes:
            return Answer("inconclusive", "samples_mixed", f"{again}; no operation could be shown to be the cause")
        operation = causes[0]
        place = next((item.place for item in causes if item.place is not None), None)
        numbers = {
            "operations": [item.name for item in causes],
            "samples": runs.batch.size,
            "in_place_of": [list(tensor.shape) for tensor, _ in operation.inputs][:3],
        }
        kind, text = _kind(operation, runs.batch.size)
        if kind == "copies_in_other_order":
            place = next((item.place for item in way.seen if _copies(item, runs.batch.size)), None) or place
        named = [definition.__name__ for definition in self._instances.definitions(self._module)]
        # What lines up wrongly is no decision, whatever the names speak of.
        slip = kind in _SLIPS
        word = "" if slip else meant([*named, operation.function, line_of(place, self._root)])
        if kind == "batch_statistics_in_eval":
            return Answer("fail", kind, f"{text}: {again}", place, numbers)
        if word:
            return Answer(
                "inconclusive", "mixed_by_design", f"{again}, as the word {word!r} tells: {text}", place, numbers
            )
        if not self._is_certain(runs, kind, operation):
            text = f"{text}; the sizes of the inputs may be meant otherwise"
            return Answer("inconclusive", "samples_mixed", f"{again}: {text}", place, numbers)
        if kind in ("samples_compared", "batch_statistics") or place is None:
            return Answer("inconclusive", kind, f"{again}: {text}", place, numbers)
        if not evidence and not slip:
            text = f"{text}; nothing says that the first axis is that of the samples"
            return Answer("inconclusive", "samples_mixed", f"{again}: {text}", place, numbers)
        return Answer("fail", kind, f"{text}: {again}", place, numbers)

    def _is_certain(self, runs: _Runs, kind: str, operation: Operation) -> bool:
        """Whether no other axis has the size of the batch by chance: it can be changed, or the author chose it.

        Then too, only a mask that lines up with another axis is surely none of that axis.
        """
        if runs.resized:
            return True
        masked = any(tensor.dtype == torch.bool for tensor, mask in operation.inputs if mask is not None)
        return self._instances.source != "synthesised" and (masked or kind != "broadcast_over_batch")

    def _alone(self, runs: _Runs) -> Answer:
        """Separate samples; what is left is a batch of one."""
        text = f"each of {runs.batch.size} samples has its own output, whatever the others are"
        done = Answer("pass", "separate", text)
        if not runs.resized:
            return done
        lone = runs.batch.resized(1)
        watch = Recording(self._root)
        try:
            outputs = self._call(lone, watch)
        except Exception as error:
            self.evidence["alone"] = f"raises {type(error).__name__}"
            return Answer("inconclusive", "alone_raises", f"{text}; but a batch of one raises {type(error).__name__}")
        for output, expected, axis in zip(outputs, runs.outputs, runs.axes, strict=False):
            if axis is None or not (output.is_floating_point() or output.is_complex()):
                continue
            part = expected.narrow(axis, 0, expected.shape[axis] // runs.batch.size)
            if output.shape != part.shape:
                shapes = f"{tuple(output.shape)} for one sample, {tuple(expected.shape)} for {runs.batch.size}"
                text = f"{text}; but for a batch of one the axis of samples is dropped: {shapes}"
                return Answer("inconclusive", "batch_of_one", text)
            if not self._draws and not close(output, part, 1e-3):
                text = f"{text}; but a sample alone gives something else than in a batch: its size enters the output"
                return Answer("inconclusive", "batch_size_enters", text)
        self.evidence["alone"] = "drawn anew" if self._draws else "equal"
        return done


def _no_samples() -> Answer:
    return Answer("skipped", "no_samples", "nothing says that the first axis of the function's inputs is a batch")


def _alike(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and differs(a, b) is None for a, b in zip(first, second, strict=True)
    )


def _kind(operation: Operation, size: int) -> tuple[str, str]:
    """(the stable word, what the operation does) of one that a change of one sample leaves."""
    name = operation.name
    if name == "batch_norm":
        return _normalised(operation)
    if name in _LAYOUT:
        return _rearranged(operation, size)
    if _in_two_orders(operation, size):
        return "copies_in_other_order", (
            f"{name} brings rows of single samples together with copies of the whole batch laid one after another "
            "(repeat), so that samples get each other's rows: repeat_interleave"
        )
    if (name in _ELEMENTWISE or name == _ATTENTION) and _misaligned(operation, size):
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor, mask in operation.inputs if mask is not None)
        return "broadcast_over_batch", (
            f"{name} of {shapes} lines up the samples of one with another axis of the other, which has the same size "
            "here"
        )
    attends = _HEADS in (name, *operation.through)
    if name in _IN_STEPS or (attends and name in (_HEADS, _ATTENTION, "bmm", "baddbmm")):
        return "samples_taken_for_steps", (
            f"{'multi-head attention' if attends else name} takes the first axis for the steps of a sequence here, and "
            "it holds the samples (batch_first=True is missing, or a transpose)"
        )
    if name in _ALONG or name in _REDUCING:
        over = "the axis of the samples" if name in _ALONG else "the samples as well"
        return "reduced_over_batch", f"{name} runs over {over}"
    return "samples_compared", f"{name} brings samples together"


def _normalised(operation: Operation) -> tuple[str, str]:
    args = operation.args
    # torch.batch_norm takes nine arguments by position, the function of torch.nn three.
    place = 3 if len(args) > 5 else 1
    running = operation.kwargs.get("running_mean", args[place] if len(args) > place else None)
    if running is not None:
        text = "batch norm computes with the statistics of the batch in evaluation mode, though it has running ones"
        return "batch_statistics_in_eval", text
    return "batch_statistics", "batch norm without running statistics computes with those of the batch"


def _in_two_orders(operation: Operation, size: int) -> bool:
    """Whether along the first axis of its operands the rows of one sample lie together in one, and apart in another."""
    blocks = {
        in_blocks(mask, 0, size)
        for tensor, mask in operation.inputs
        if mask is not None and tensor.ndim and tensor.shape[0] > size and 0 in confined(mask, size)
    }
    # The queries of torch's own attention have their samples along the second axis; masks are numbered by sample.
    return len(blocks) > 1 or (operation.name == _HEADS and False in blocks)


def _copies(operation: Operation, size: int) -> bool:
    """Whether an operation lays copies of the whole batch one after another."""
    if operation.name not in _COPYING:
        return False
    return any(not in_blocks(operation.changed, axis, size) for axis in confined(operation.changed, size))


def _rearranged(operation: Operation, size: int) -> tuple[str, str]:
    """A layout that had its samples along a later axis, and is given a first axis of their number."""
    tensor, mask = operation.inputs[0] if operation.inputs else (operation.output, None)
    axes = [] if mask is None else [axis for axis in confined(mask, size) if tensor.shape[axis] == size]
    shapes = f"{tuple(tensor.shape)} to {tuple(operation.output.shape)}"
    if axes and 0 not in axes and operation.output.ndim and operation.output.shape[0] == size:
        return "batch_axis_reshaped", (
            f"{operation.name} from {shapes} puts parts of several samples into one row: the samples are along axis "
            f"{axes[0]} before, and have to be brought to the front first (transpose)"
        )
    blocks = [] if mask is None else [in_blocks(mask, axis, size) for axis in confined(mask, size)]
    if blocks and not any(blocks) and operation.output.ndim and operation.output.shape[0] == size:
        return "copies_in_other_order", (
            f"{operation.name} from {shapes} takes copies of each sample to lie together, but the whole batch was "
            "copied one time after another (repeat), so that samples get each other's rows: repeat_interleave"
        )
    return "samples_compared", f"{operation.name} from {shapes} puts parts of several samples together"


def _misaligned(operation: Operation, size: int) -> bool:
    """Whether the samples of one operand meet an axis of another that is neither theirs nor of size one."""
    operands = [(tensor, mask) for tensor, mask in operation.inputs if mask is not None]
    if operation.name == _ATTENTION:
        given = operation.kwargs.get("attn_mask", operation.args[3] if len(operation.args) > 3 else None)
        operands = [item for item in operands if item[0] is operation.args[0] or item[0] is given]
    if len(operands) != 2:
        return False
    (first, first_mask), (second, second_mask) = operands
    own, others = _places(first, first_mask, size), _places(second, second_mask, size)
    if not own or not others or set(own) & set(others):
        return False
    return any(
        place <= tensor.ndim and tensor.shape[tensor.ndim - place] > 1
        for places, tensor in ((own, second), (others, first))
        for place in places
    )


def _places(tensor: torch.Tensor, mask: torch.Tensor, size: int) -> list[int]:
    """Where the samples are, counted from the last axis."""
    return [tensor.ndim - axis for axis in confined(mask, size) if tensor.shape[axis] == size]
