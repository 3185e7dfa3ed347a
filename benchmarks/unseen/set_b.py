"""The second set: what each Function is called with, and where its gradient is wrong.

The Functions stand in `kinds_b`, a module a kind, so that a checker that reads source has source to read. A line
here names one of them, with inputs where those of its original won't do. See `benchmarks.unseen` before changing any.
"""

from __future__ import annotations

from typing import Final

import torch

from benchmarks.unseen.cases import Cases, How
from benchmarks.unseen.kinds_b import (
    aspect,
    autocast,
    changed_input,
    conjugate,
    empty_input,
    forward_mode,
    global_flags,
    head_size,
    inactive_rows,
    index_contents,
    mixed_dtypes,
    one_signed,
    parity,
    reused_buffer,
    second_order_condition,
    size_one,
    storage_layout,
    unequal_lengths,
    value_structure,
    warm_up,
)
from benchmarks.unseen.plain import ordinary
from benchmarks.unseen.proofs import (
    after_calls,
    all_negative,
    all_positive,
    anomaly_detection,
    deterministic,
    double_by_default,
    environment_variable,
    every_row,
    every_third,
    first_input_as,
    four_threads,
    gradient_kept,
    medium_precision,
    second_order,
    six_gradients_kept,
    under_autocast,
    written_between,
    wrong_jvp,
)
from benchmarks.unseen.values import causal_mask, complex_normal, distinct, integers, normal, positive

CASES: Final = Cases()
wrong, right = CASES.wrong, CASES.right

# size_one: a dimension of size one, which squeezes and divisors take for something else.
wrong(size_one.BatchNorm1, trigger=lambda: (normal(8, 1), normal(1), normal(1, seed=4), 1e-05), indirect=True)
wrong(size_one.Linear2, trigger=lambda: (normal(1, 8), normal(5, 8), normal(5)), indirect=True)
wrong(size_one.KLDivergence3, trigger=lambda: (normal(1, 5), torch.softmax(normal(1, 5, seed=1), -1)), indirect=True)
wrong(size_one.RMSNorm4, trigger=lambda: (normal(6, 1), normal(1), 0.5), indirect=True)
wrong(size_one.BatchNorm5, trigger=lambda: (normal(1, 6), normal(6), normal(6), 1.0))
wrong(size_one.Attention6, trigger=lambda: (normal(2, 6, 8), normal(2, 1, 8), normal(2, 1, 8, seed=3), 0.35))
wrong(size_one.CausalConv7, trigger=lambda: (normal(2, 3, 10), normal(3, 1)))
wrong(size_one.CrossEntropy8, trigger=lambda: (normal(1, 5), integers(5, 1), "mean"), indirect=True)
right(size_one.RightBatchNorm9, inputs=lambda: (normal(8, 1), normal(1), normal(1, seed=4), 1e-05))

# empty_input: a dimension of size zero.
wrong(empty_input.LayerNorm1, trigger=lambda: (normal(0, 8), normal(8), normal(8), 1e-05), indirect=True)
wrong(empty_input.Linear2, trigger=lambda: (normal(0, 8), normal(5, 8), normal(5)), indirect=True)
wrong(empty_input.MatMul3, trigger=lambda: (normal(0, 6), normal(6, 5)))
wrong(empty_input.Embedding4, trigger=lambda: (normal(10, 4), integers(10, 0)), indirect=True)
wrong(empty_input.Scale5, trigger=lambda: (normal(0, 8), normal(8)))
wrong(empty_input.LowRank6, trigger=lambda: (normal(0, 8), normal(8, 3), normal(3, 6), 0.5))
wrong(empty_input.CausalConv7, trigger=lambda: (normal(0, 3, 10), normal(3, 4)), indirect=True)
right(empty_input.RightRMSNorm8)

# conjugate: complex inputs: a conjugate is missing or too many.
wrong(conjugate.Scale1, trigger=lambda: (complex_normal(6, 8), complex_normal(8)))
wrong(conjugate.MatMul2, trigger=lambda: (complex_normal(4, 6), complex_normal(6, 5)), indirect=True)
wrong(conjugate.Linear3, trigger=lambda: (complex_normal(6, 8), complex_normal(5, 8), complex_normal(5)), indirect=True)
wrong(conjugate.Tanh4, trigger=lambda: (0.3 * complex_normal(6, 6),), indirect=True)
wrong(
    conjugate.Bilinear5,
    trigger=lambda: (complex_normal(6, 4), complex_normal(4, 5), complex_normal(6, 5)),
    indirect=True,
)
right(conjugate.RightIntensity6)
wrong(conjugate.Intensity7, trigger=lambda: (complex_normal(6, 6),))
wrong(conjugate.Intensity8, trigger=lambda: (complex_normal(6, 6),), indirect=True)

# changed_input: a tensor written to between forward and backward, unseen by autograd's version check.
wrong(changed_input.Gelu1, proof=written_between(0))
wrong(changed_input.LogCosh2, proof=written_between(0))
wrong(changed_input.UnitNormalize3, proof=written_between(0), indirect=True)
wrong(changed_input.MatMul4, proof=written_between(1), indirect=True)
wrong(changed_input.Tanh5, proof=written_between(0, output=True))
wrong(changed_input.Rotary6, proof=written_between(1), indirect=True)
wrong(changed_input.Embedding7, proof=written_between(1), indirect=True)
wrong(changed_input.SquaredError8, proof=written_between(1), indirect=True)
right(changed_input.RightGelu9)

# index_contents: contents of an index: repeated, negative, unsorted or missing entries.
wrong(
    index_contents.Embedding1,
    inputs=lambda: (normal(10, 4), distinct(10, 8)),
    trigger=lambda: (normal(10, 4), integers(4, 8)),
    indirect=True,
)
wrong(index_contents.Embedding2, trigger=lambda: (normal(10, 4), integers(10, 12) - 10), indirect=True)
wrong(
    index_contents.Embedding3,
    inputs=lambda: (normal(10, 4), integers(10, 12).sort().values),
    trigger=lambda: (normal(10, 4), torch.tensor([3, 3, 1, 3, 0, 1, 7, 7, 7, 2, 0, 9])),
    indirect=True,
)
wrong(
    index_contents.SegmentMean4,
    inputs=lambda: (normal(12, 4), torch.arange(12) % 5, 5),
    trigger=lambda: (normal(12, 4), torch.tensor([0, 2, 4] * 4), 5),
    indirect=True,
)
wrong(
    index_contents.SegmentMean5,
    inputs=lambda: (normal(12, 4), integers(5, 12).sort().values, 5),
    trigger=lambda: (normal(12, 4), integers(5, 12), 5),
    indirect=True,
)
wrong(
    index_contents.CrossEntropy6,
    inputs=lambda: (normal(8, 5), 1 + integers(4, 8), "mean"),
    trigger=lambda: (normal(8, 5), integers(2, 8), "mean"),
)
wrong(index_contents.CrossEntropy7, trigger=lambda: (normal(8, 5), torch.full((8,), 2), "mean"))
right(index_contents.RightGather8)
wrong(index_contents.Gather9, trigger=lambda: (normal(5, 8), integers(3, 5, 6)), indirect=True)

# inactive_rows: a cotangent with zeros in it, as where only some rows take part in the loss.
wrong(inactive_rows.LayerNorm1, how=every_row(3))
wrong(inactive_rows.BatchNorm2, how=every_row(3), indirect=True)
wrong(inactive_rows.CumulativeSum3, how=every_third(-1), indirect=True)
wrong(inactive_rows.LinearScan4, how=every_third(1))
wrong(inactive_rows.CausalConv5, how=every_third(-1))
wrong(inactive_rows.Softmax6, how=every_third(-1))
wrong(inactive_rows.Linear7, how=every_row(2), indirect=True)
wrong(inactive_rows.Attention8, how=every_row(2))
right(inactive_rows.RightLinear9)

# aspect: square, tall and wide matrices.
wrong(aspect.MatMul1, trigger=lambda: (normal(4, 5), normal(5, 5)), indirect=True)
wrong(aspect.Linear2, trigger=lambda: (normal(6, 5), normal(5, 5), normal(5)))
wrong(aspect.Bilinear3, trigger=lambda: (normal(6, 4), normal(4, 4), normal(6, 4, seed=7)), indirect=True)
wrong(aspect.LowRank4, trigger=lambda: (normal(2, 8), normal(8, 3), normal(3, 6), 0.5))
wrong(aspect.PairwiseSquared5, trigger=lambda: (normal(5, 4), normal(5, 4, seed=2)))
wrong(aspect.Softmax6, trigger=lambda: (normal(6, 6), -1))
wrong(aspect.WeightedMean7, trigger=lambda: (normal(6, 6), positive(6, 6)), indirect=True)
wrong(aspect.BatchNorm8, trigger=lambda: (normal(5, 9), normal(9), normal(9), 1e-05))
wrong(aspect.Attention9, trigger=lambda: (normal(2, 10, 8), normal(2, 10, 8, seed=1), normal(2, 10, 8, seed=2), 0.35))

# head_size: sizes that no kernel was built for.
wrong(
    head_size.MaskedAttention1,
    trigger=lambda: (normal(2, 6, 12), normal(2, 6, 12, seed=1), normal(2, 6, 12, seed=2), normal(6, 6)),
    indirect=True,
)
wrong(head_size.RMSNorm2, trigger=lambda: (normal(6, 10), normal(10), 1e-05), indirect=True)
wrong(head_size.LayerNorm3, trigger=lambda: (normal(6, 12), normal(12), normal(12), 1e-05), indirect=True)
wrong(head_size.UnitNormalize4, trigger=lambda: (normal(5, 11), 1e-06), indirect=True)
wrong(head_size.SwiGLU5, trigger=lambda: (normal(4, 12), normal(4, 12, seed=1)), indirect=True)
wrong(head_size.CausalConv6, trigger=lambda: (normal(2, 3, 10), normal(3, 6)), indirect=True)
wrong(
    head_size.Attention7,
    trigger=lambda: (normal(2, 6, 72), normal(2, 6, 72, seed=1), normal(2, 6, 72, seed=2), 0.1),
    indirect=True,
)

# unequal_lengths: lengths that are equal in the usual call: queries and keys, kernel and signal.
wrong(
    unequal_lengths.Attention1,
    trigger=lambda: (normal(2, 4, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.35),
    indirect=True,
)
wrong(
    unequal_lengths.MaskedAttention2,
    inputs=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(6, 6)),
    trigger=lambda: (normal(2, 4, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(4, 6)),
    indirect=True,
)
wrong(unequal_lengths.CausalConv3, trigger=lambda: (normal(2, 3, 3), normal(3, 5)))
wrong(unequal_lengths.Conv1d4, trigger=lambda: (normal(2, 3, 3), normal(4, 3, 3)))
wrong(
    unequal_lengths.CrossEntropy5,
    inputs=lambda: (normal(5, 8), integers(8, 5), "mean"),
    trigger=lambda: (normal(9, 4), integers(4, 9), "mean"),
    indirect=True,
)
wrong(unequal_lengths.LowRank6, trigger=lambda: (normal(5, 8), normal(8, 6), normal(6, 4), 0.5), indirect=True)
wrong(unequal_lengths.PairwiseSquared7, trigger=lambda: (normal(4, 4), normal(7, 4, seed=2)), indirect=True)
right(
    unequal_lengths.RightMaskedAttention8,
    inputs=lambda: (normal(2, 4, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(4, 6)),
)

# storage_layout: inputs that are transposed, sliced, expanded or offset in their storage.
wrong(storage_layout.LogCosh1, trigger=lambda: (normal(6, 7).t(),), indirect=True)
wrong(storage_layout.Gelu2, trigger=lambda: (normal(7, 8)[2:],), indirect=True)
wrong(storage_layout.Softmax3, trigger=lambda: (normal(8, 5).t(), -1))
wrong(storage_layout.Linear4, trigger=lambda: (normal(6, 8), normal(8, 5).t(), normal(5)))
wrong(storage_layout.RMSNorm5, trigger=lambda: (normal(49)[1:].view(6, 8), normal(8), 1e-05), indirect=True)
wrong(storage_layout.SwiGLU6, trigger=lambda: (normal(4, 16)[:, :8], normal(4, 8)), indirect=True)
wrong(storage_layout.Scale7, trigger=lambda: (normal(1, 8).expand(6, 8), normal(8)))
wrong(
    storage_layout.Attention8,
    trigger=lambda: (normal(2, 6, 8), normal(2, 8, 6, seed=1).transpose(1, 2), normal(2, 6, 8, seed=2), 0.35),
)
right(storage_layout.RightLogCosh9)

# autocast: a call under autocast.
wrong(autocast.Linear1, proof=under_autocast(single=False))
wrong(autocast.RMSNorm2, proof=under_autocast(lambda: (normal(6, 8) * 0.3, normal(8), 1e-05), single=False))
wrong(autocast.MatMul3, proof=under_autocast(), indirect=True)
wrong(autocast.LowRank4, proof=under_autocast(), indirect=True)
wrong(autocast.SwiGLU5, proof=under_autocast(single=False), indirect=True)
wrong(autocast.LogSumExp6, proof=under_autocast(single=False))
wrong(autocast.Attention7, proof=under_autocast(), indirect=True)

# global_flags: switches outside the call: determinism, threads, precision, default dtype, environment.
wrong(global_flags.Embedding1, how=How(context=deterministic))
wrong(global_flags.CausalConv2, how=How(context=deterministic))
wrong(global_flags.LayerNorm3, how=How(context=four_threads), indirect=True)
wrong(global_flags.RMSNorm4, how=How(context=four_threads), indirect=True)
wrong(global_flags.UnitNormalize5, how=How(context=anomaly_detection))
wrong(global_flags.MatMul6, how=How(context=medium_precision))
wrong(global_flags.Linear7, how=How(context=medium_precision), indirect=True)
wrong(global_flags.Softplus8, how=How(context=double_by_default), indirect=True)
wrong(global_flags.GroupNorm9, how=How(context=environment_variable))

# reused_buffer: a gradient handed out from scratch memory that the next backward overwrites.
wrong(reused_buffer.Tanh1, proof=gradient_kept, indirect=True)
wrong(reused_buffer.Linear2, proof=gradient_kept, indirect=True)
wrong(reused_buffer.LogSoftmax3, proof=gradient_kept)
wrong(reused_buffer.CumulativeSum4, proof=six_gradients_kept, indirect=True)
wrong(reused_buffer.RMSNorm5, proof=gradient_kept, indirect=True)
wrong(reused_buffer.LayerNorm6, proof=gradient_kept, indirect=True)

# value_structure: structure in the values: symmetric, sorted, constant, one-hot or normalised inputs.
wrong(
    value_structure.MatMul1,
    inputs=lambda: (normal(4, 5), normal(5, 5)),
    trigger=lambda: (normal(4, 5), normal(5, 5) + normal(5, 5).t()),
)
wrong(value_structure.LogSumExp2, trigger=lambda: (normal(5, 8).sort(-1, descending=True).values, -1))
wrong(
    value_structure.KLDivergence3,
    trigger=lambda: (normal(6, 5), torch.eye(5, dtype=torch.float64)[integers(5, 6)]),
    indirect=True,
)
wrong(value_structure.WeightedMean4, trigger=lambda: (normal(6, 8), torch.full((6, 8), 0.5, dtype=torch.float64)))
wrong(value_structure.Scale5, trigger=lambda: (normal(6, 8), torch.ones(8, dtype=torch.float64)))
wrong(
    value_structure.Linear6,
    trigger=lambda: (normal(6, 8), normal(5, 8), torch.zeros(5, dtype=torch.float64)),
    indirect=True,
)
wrong(
    value_structure.LowRank7,
    trigger=lambda: (normal(5, 8), normal(8, 3), torch.zeros(3, 6, dtype=torch.float64), 0.5),
    indirect=True,
)
wrong(value_structure.LinearScan8, trigger=lambda: (torch.full((2, 8, 3), 0.5, dtype=torch.float64), normal(2, 8, 3)))
wrong(value_structure.UnitNormalize9, trigger=lambda: (torch.nn.functional.normalize(normal(5, 8), dim=-1), 1e-12))
wrong(
    value_structure.LayerNorm10,
    trigger=lambda: (normal(6, 8), torch.ones(8, dtype=torch.float64), normal(8), 1e-05),
    indirect=True,
)

# second_order_condition: a second derivative that is wrong on a condition.
wrong(second_order_condition.Softplus1, proof=second_order(lambda: (normal(6, 8), 3.0)))
wrong(second_order_condition.RMSNorm2, proof=second_order(lambda: (normal(2, 4, 8), normal(8), 1e-05)))
wrong(
    second_order_condition.Attention3,
    proof=second_order(lambda: (normal(2, 6, 8), normal(2, 7, 8, seed=1), normal(2, 7, 8, seed=2), 0.35)),
    indirect=True,
)
wrong(second_order_condition.Tanh4, proof=second_order(lambda: (normal(9, 9),)))
wrong(second_order_condition.Softmax5, proof=second_order(lambda: (normal(5, 8), 0)))
wrong(
    second_order_condition.PowerLaw6,
    proof=second_order(lambda: (positive(5, 6), 1 + integers(3, 6).double())),
    indirect=True,
)
wrong(second_order_condition.MatMul7, proof=second_order(lambda: (normal(3, 4, 6), normal(3, 6, 5))))
wrong(second_order_condition.SwiGLU8, proof=second_order(lambda: (3 * normal(4, 8), normal(4, 8, seed=1))))
wrong(
    second_order_condition.Linear9, proof=second_order(lambda: (normal(20, 8), normal(5, 8), normal(5))), indirect=True
)
wrong(second_order_condition.PseudoHuber10, proof=second_order(lambda: (normal(6, 5), normal(6, 5, seed=1), 1.5)))

# forward_mode: a jvp that is wrong on a condition.
right(forward_mode.RightSoftplus1)
wrong(forward_mode.Softplus2, proof=wrong_jvp(lambda: (normal(6, 8), 3.0), (0,)), indirect=True)
right(forward_mode.RightSwiGLU3)
wrong(forward_mode.SwiGLU4, proof=wrong_jvp(lambda: ordinary("SwiGLU"), (0,)))
wrong(forward_mode.CumulativeSum5, proof=wrong_jvp(lambda: (normal(5, 8), -2), (0,)))
wrong(forward_mode.MatMul6, proof=wrong_jvp(lambda: (normal(3, 4, 6), normal(3, 6, 5)), (0, 1)))
wrong(forward_mode.Scale7, proof=wrong_jvp(lambda: (normal(6, 8), normal(6, 1)), (0, 1)))
wrong(forward_mode.Gelu8, proof=wrong_jvp(lambda: (torch.full((5, 8), 3.6, dtype=torch.float64),), (0,)))
wrong(forward_mode.Linear9, proof=wrong_jvp(lambda: (normal(7, 8), normal(5, 8), normal(5)), (0, 1, 2)), indirect=True)

# mixed_dtypes: inputs of different dtypes in one call.
wrong(mixed_dtypes.Scale1, proof=first_input_as(torch.bfloat16, 1), indirect=True)
wrong(mixed_dtypes.RMSNorm2, proof=first_input_as(torch.float32, 1))
wrong(mixed_dtypes.SwiGLU3, proof=first_input_as(torch.bfloat16, 1), indirect=True)
wrong(mixed_dtypes.PseudoHuber4, proof=first_input_as(torch.float32, 1), indirect=True)
wrong(mixed_dtypes.PowerLaw5, proof=first_input_as(torch.float32, 1))
wrong(
    mixed_dtypes.LayerNorm6,
    reference=lambda x, w, b, e: (
        (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + e) * w + b
    ),
    proof=first_input_as(torch.bfloat16, 2),
    indirect=True,
)
wrong(mixed_dtypes.WeightedMean7, proof=first_input_as(torch.float32, 1))

# one_signed: a cotangent whose values all have one sign.
wrong(one_signed.Softmax1, how=all_positive())
wrong(one_signed.CumulativeSum2, how=all_positive())
wrong(one_signed.LogSumExp3, how=all_negative(), indirect=True)
wrong(one_signed.Linear4, how=all_negative())
wrong(one_signed.Attention5, how=all_positive())
wrong(one_signed.WeightedMean6, how=all_positive(), indirect=True)
wrong(one_signed.RMSNorm7, how=all_negative(), indirect=True)
wrong(one_signed.MeanVariance8, how=all_positive())

# parity: odd and even lengths.
wrong(parity.LogSoftmax1, trigger=lambda: (normal(5, 7),), indirect=True)
wrong(parity.LayerNorm2, trigger=lambda: (normal(7, 8), normal(8), normal(8), 1e-05), indirect=True)
right(parity.RightPowerSpectrum3)
wrong(parity.PowerSpectrum4, trigger=lambda: (normal(5, 9),), indirect=True)
wrong(parity.PowerSpectrum5, trigger=lambda: (normal(5, 9),), indirect=True)
right(parity.RightSameConv6)
right(parity.RightSameConv7, inputs=lambda: (normal(2, 3, 8), normal(4, 3, 4)))
wrong(parity.SameConv8, trigger=lambda: (normal(2, 3, 8), normal(4, 3, 4)), indirect=True)
wrong(parity.SameConv9, trigger=lambda: (normal(2, 3, 8), normal(4, 3, 4)), indirect=True)
right(parity.RightPairPool10)
wrong(parity.PairPool11, trigger=lambda: (normal(5, 9),), indirect=True)
wrong(parity.LinearScan12, trigger=lambda: (torch.sigmoid(normal(2, 7, 3)), normal(2, 7, 3)), indirect=True)

# warm_up: another path after some calls.
wrong(warm_up.Gelu1, proof=after_calls(6))
wrong(warm_up.Softmax2, proof=after_calls(8), indirect=True)
wrong(warm_up.RMSNorm3, proof=after_calls(20), indirect=True)
wrong(warm_up.Linear4, proof=after_calls(8), indirect=True)
wrong(warm_up.LogCosh5, proof=after_calls(14))
wrong(warm_up.SquaredError6, proof=after_calls(30), indirect=True)
wrong(warm_up.LayerNorm7, proof=after_calls(9))
right(warm_up.RightLinear8)
