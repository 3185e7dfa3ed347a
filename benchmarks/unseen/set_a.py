"""The first set: what each Function is called with, and where its gradient is wrong.

The Functions stand in `kinds_a`, a module a kind, so that a checker that reads source has source to read. A line
here names one of them, with inputs where those of its original won't do. See `benchmarks.unseen` before changing any.
"""

from __future__ import annotations

from typing import Final

import torch

from benchmarks.unseen.cases import Cases, How
from benchmarks.unseen.kinds_a import (
    aliased_operands,
    argument_value,
    cache_key,
    exact_zero,
    gradient_limits,
    grid_limit,
    integer_values,
    magnitude,
    masked_inf,
    outstanding_forwards,
    power_of_two,
    rank,
    recorded_gradient,
    second_backward,
    single_precision,
    tail_block,
    tied_values,
    unbroadcast,
    uniform_cotangent,
    unused_output,
)
from benchmarks.unseen.proofs import (
    RECORDED,
    after_another_call,
    backward_twice,
    constant,
    expanded,
    finite_outputs,
    same_tensor,
    scaled,
    several_forwards,
    two_dimensions,
)
from benchmarks.unseen.values import (
    causal_mask,
    integers,
    large,
    normal,
    positive,
    rotary,
    single,
    tied,
    whole,
    with_minus_infinity,
    with_zeros,
)

CASES: Final = Cases()
wrong, right = CASES.wrong, CASES.right

# tail_block: work in blocks: the rows or columns after the last whole block are lost or counted wrongly.
wrong(
    tail_block.LayerNorm1,
    inputs=lambda: (normal(8, 8), normal(8, seed=1), normal(8, seed=2), 1e-05),
    trigger=lambda: (normal(11, 8), normal(8, seed=1), normal(8, seed=2), 1e-05),
    indirect=True,
)
wrong(
    tail_block.RMSNorm2,
    inputs=lambda: (normal(8, 8), normal(8, seed=1), 1e-05),
    trigger=lambda: (normal(9, 8), normal(8, seed=1), 1e-05),
    indirect=True,
)
wrong(tail_block.Softmax3, inputs=lambda: (normal(5, 16), -1), trigger=lambda: (normal(5, 19), -1))
wrong(
    tail_block.Linear4,
    inputs=lambda: (normal(32, 6), normal(5, 6), normal(5)),
    trigger=lambda: (normal(37, 6), normal(5, 6), normal(5)),
    indirect=True,
)
wrong(
    tail_block.Attention5,
    trigger=lambda: (normal(2, 6, 8), normal(2, 8, 8, seed=1), normal(2, 8, 8, seed=2), 0.35),
    indirect=True,
)
wrong(
    tail_block.CausalConv6,
    inputs=lambda: (normal(2, 3, 12), normal(3, 4)),
    trigger=lambda: (normal(2, 3, 11), normal(3, 4)),
    indirect=True,
)
wrong(tail_block.CumulativeSum7, inputs=lambda: (normal(5, 8), -1), trigger=lambda: (normal(5, 10), -1), indirect=True)
wrong(
    tail_block.GroupNorm8,
    inputs=lambda: (normal(2, 6, 8), normal(6), 3, 1e-05),
    trigger=lambda: (normal(2, 6, 9), normal(6), 3, 1e-05),
)
wrong(
    tail_block.LayerNorm9, trigger=lambda: (normal(13, 8), normal(8, seed=1), normal(8, seed=2), 1e-05), indirect=True
)

# power_of_two: reductions and divisors that are right only for powers of two or multiples of the vector width.
wrong(power_of_two.Softmax1, trigger=lambda: (normal(5, 6), -1), indirect=True)
wrong(power_of_two.RMSNorm2, trigger=lambda: (normal(5, 12), normal(12), 1e-05), indirect=True)
wrong(power_of_two.LayerNorm3, trigger=lambda: (normal(5, 11), normal(11), normal(11), 1e-05), indirect=True)
wrong(power_of_two.UnitNormalize4, trigger=lambda: (normal(5, 7), 1e-06), indirect=True)
wrong(power_of_two.MeanVariance5, trigger=lambda: (normal(6, 10),), indirect=True)
wrong(power_of_two.LogSoftmax6, trigger=lambda: (normal(5, 7),), indirect=True)
wrong(power_of_two.SwiGLU7, trigger=lambda: (normal(4, 6), normal(4, 6)), indirect=True)
wrong(power_of_two.GroupNorm8, trigger=lambda: (normal(2, 6, 4), normal(6), 3, 1e-05), indirect=True)
wrong(power_of_two.PairwiseSquared9, trigger=lambda: (normal(6, 5), normal(5, 5)), indirect=True)

# cache_key: a cache whose key lacks an argument: the second caller gets what was made for the first.
wrong(
    cache_key.Softplus1,
    proof=after_another_call(lambda: (normal(6, 8), 1.5), lambda: (normal(6, 8), 3.0)),
    indirect=True,
)
wrong(
    cache_key.UnitNormalize2,
    proof=after_another_call(lambda: (normal(5, 8), 1e-06), lambda: (normal(5, 8), 2.0)),
    indirect=True,
)
wrong(
    cache_key.Attention3,
    proof=after_another_call(
        lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.35),
        lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 1.0),
    ),
    indirect=True,
)
wrong(
    cache_key.CrossEntropy4,
    proof=after_another_call(
        lambda: (normal(8, 5), integers(5, 8), "mean"), lambda: (normal(8, 5), integers(5, 8), "sum")
    ),
    indirect=True,
)
wrong(
    cache_key.LogSumExp5, proof=after_another_call(lambda: (normal(6, 6), -1), lambda: (normal(6, 6), 0)), indirect=True
)
wrong(
    cache_key.LowRank6,
    proof=after_another_call(
        lambda: (normal(5, 8), normal(8, 3), normal(3, 6), 0.5), lambda: (normal(5, 8), normal(8, 3), normal(3, 6), 2.0)
    ),
    indirect=True,
)
wrong(
    cache_key.PseudoHuber7,
    proof=after_another_call(
        lambda: (normal(6, 5), normal(6, 5, seed=1), 0.8), lambda: (normal(6, 5), normal(6, 5, seed=1), 0.3)
    ),
    indirect=True,
)
wrong(
    cache_key.Rotary8,
    proof=after_another_call(
        lambda: (normal(2, 6, 8), *rotary(6, 4)), lambda: (normal(2, 6, 8), *(t * 0.7 for t in rotary(6, 4)))
    ),
    indirect=True,
)

# unused_output: several outputs, of which one takes no part in the loss.
wrong(unused_output.MeanVariance1, trigger=lambda: (normal(6, 8),), how=How(used=(1,)))
wrong(unused_output.MeanVariance2, trigger=lambda: (normal(6, 8),), how=How(used=(0,)))
wrong(unused_output.SoftmaxAndLse3, trigger=lambda: (normal(5, 8),), how=How(used=(1,)))
wrong(unused_output.SoftmaxAndLse4, trigger=lambda: (normal(5, 8),), how=How(used=(0,)))
wrong(unused_output.Polar5, trigger=lambda: (normal(5, 6), normal(5, 6, seed=1)), how=How(used=(0,)))
wrong(unused_output.Polar6, trigger=lambda: (normal(5, 6), normal(5, 6, seed=1)), how=How(used=(1,)))
right(unused_output.RightGatedNorm7)
wrong(unused_output.GatedNorm8, trigger=lambda: (normal(5, 8),), how=How(used=(0,)))

# exact_zero: backwards that divide by, compare with or skip values of exactly zero.
wrong(exact_zero.RowProduct1, trigger=lambda: (with_zeros(6, 6, every=6),))
wrong(exact_zero.SwiGLU2, trigger=lambda: (normal(4, 8), with_zeros(4, 8)))
wrong(exact_zero.Scale3, trigger=lambda: (normal(6, 8), with_zeros(8)), indirect=True)
wrong(exact_zero.WeightedMean4, trigger=lambda: (normal(6, 8), positive(6, 8) * (with_zeros(6, 8) != 0)), indirect=True)
wrong(
    exact_zero.Embedding5,
    inputs=lambda: (normal(10, 4), 1 + integers(9, 12)),
    trigger=lambda: (normal(10, 4), integers(3, 12)),
    indirect=True,
)
wrong(exact_zero.Tanh6, trigger=lambda: (with_zeros(6, 6),), indirect=True)
wrong(exact_zero.Gelu7, trigger=lambda: (with_zeros(5, 8),), indirect=True)
wrong(
    exact_zero.LinearScan8,
    trigger=lambda: (torch.sigmoid(normal(2, 8, 3)) * (with_zeros(2, 8, 3) != 0), normal(2, 8, 3)),
)
wrong(
    exact_zero.MaskedAttention9, trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8), normal(2, 6, 8), with_zeros(6, 6))
)

# masked_inf: inputs or masks that contain minus infinity.
wrong(masked_inf.Softmax1, trigger=lambda: (with_minus_infinity(5, 8), -1), indirect=True)
wrong(masked_inf.LogSumExp2, trigger=lambda: (with_minus_infinity(5, 8), -1), indirect=True)
wrong(masked_inf.LogSoftmax3, proof=finite_outputs)
wrong(
    masked_inf.MaskedAttention4,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(6, 6)),
    indirect=True,
)
wrong(
    masked_inf.MaskedAttention5,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(6, 6)),
)
wrong(
    masked_inf.MaskedAttention6,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(6, 6)),
)
wrong(masked_inf.CrossEntropy7, trigger=lambda: (with_minus_infinity(8, 5), torch.full((8,), 4), "mean"), indirect=True)
wrong(masked_inf.SoftmaxAndLse8, trigger=lambda: (with_minus_infinity(5, 8),), indirect=True)

# tied_values: equal values among the inputs of a smooth function.
wrong(tied_values.LogSumExp1, trigger=lambda: (tied(5, 8), -1), indirect=True)
wrong(tied_values.Softmax2, trigger=lambda: (tied(5, 8), -1))
wrong(tied_values.LogMeanDifference3, trigger=lambda: (normal(5, 6), normal(5, 6)))
wrong(tied_values.PairwiseSquared4, trigger=lambda: (normal(6, 4), normal(5, 4)[[0, 1, 1, 2, 0]]), indirect=True)
wrong(tied_values.RMSNorm5, trigger=lambda: (normal(6, 1).expand(6, 8).contiguous(), normal(8), 1e-05), indirect=True)
wrong(tied_values.LogCosh6, trigger=lambda: (tied(7, 6),), indirect=True)
wrong(tied_values.PseudoHuber7, trigger=lambda: (tied(6, 5), tied(6, 5, seed=1), 0.8), indirect=True)
wrong(tied_values.MeanVariance8, trigger=lambda: (tied(6, 8),), indirect=True)

# uniform_cotangent: shortcuts for a cotangent that has one value everywhere, as from a sum.
wrong(uniform_cotangent.Softmax1, trigger=lambda: (normal(5, 8), -1), how=constant(0.7))
wrong(uniform_cotangent.Gelu2, trigger=lambda: (normal(5, 8),), how=expanded(0.3), indirect=True)
wrong(uniform_cotangent.LayerNorm3, trigger=lambda: (normal(6, 8), normal(8), normal(8), 1e-05), how=constant(-1.3))
wrong(
    uniform_cotangent.Attention4,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.35),
    how=constant(2.0),
)
wrong(uniform_cotangent.Linear5, trigger=lambda: (normal(6, 8), normal(5, 8), normal(5)), how=constant(0.5))
wrong(uniform_cotangent.CausalConv6, trigger=lambda: (normal(2, 3, 10), normal(3, 4)), how=constant(1.0), indirect=True)
wrong(uniform_cotangent.WeightedMean7, trigger=lambda: (normal(6, 8), positive(6, 8)), how=constant(3.0))
wrong(uniform_cotangent.CumulativeSum8, trigger=lambda: (normal(5, 8), -1), how=constant(0.5))

# outstanding_forwards: several forwards before the first backward: the next forward replaces what is kept.
wrong(outstanding_forwards.Tanh1, proof=several_forwards(6), indirect=True)
wrong(outstanding_forwards.Gelu2, proof=several_forwards(2), indirect=True)
wrong(outstanding_forwards.LogCosh3, proof=several_forwards(2, last_first=True), indirect=True)
wrong(outstanding_forwards.Softmax4, proof=several_forwards(12), indirect=True)
wrong(outstanding_forwards.CumulativeSum5, proof=two_dimensions, indirect=True)
wrong(outstanding_forwards.UnitNormalize6, proof=several_forwards(9), indirect=True)
wrong(outstanding_forwards.RMSNorm7, proof=several_forwards(3), indirect=True)

# second_backward: a second backward through the same graph meets what the first one left behind.
wrong(second_backward.Linear1, proof=backward_twice)
wrong(second_backward.Attention2, proof=backward_twice)
wrong(second_backward.LowRank3, proof=backward_twice, indirect=True)
wrong(second_backward.UnitNormalize4, proof=backward_twice, indirect=True)
wrong(second_backward.LogSumExp5, proof=backward_twice, indirect=True)
wrong(second_backward.CausalConv6, proof=backward_twice, indirect=True)
wrong(second_backward.BatchNorm7, proof=backward_twice)
wrong(second_backward.CrossEntropy8, proof=backward_twice, indirect=True)

# magnitude: large inputs: another branch, a clamp or a table takes over.
wrong(magnitude.Gelu1, trigger=lambda: (torch.cat([normal(4, 8), torch.full((1, 8), 25.0, dtype=torch.float64)]),))
wrong(
    magnitude.Softplus2,
    trigger=lambda: (torch.full((6, 8), 11.0, dtype=torch.float64) + normal(6, 8), 1.5),
    indirect=True,
)
wrong(magnitude.UnitNormalize3, trigger=lambda: (large(5, 8, by=90), 1e-06))
wrong(
    magnitude.Attention4,
    trigger=lambda: (large(2, 6, 8, by=12), normal(2, 6, 8, seed=1) * 12, normal(2, 6, 8, seed=2), 0.35),
)
wrong(magnitude.LogCosh5, trigger=lambda: (large(7, 6),), indirect=True)
wrong(magnitude.RMSNorm6, trigger=lambda: (large(6, 8, by=200), normal(8), 1e-05))
wrong(magnitude.LogSoftmax7, trigger=lambda: (large(5, 8, by=12),), indirect=True)
wrong(magnitude.PseudoHuber8, trigger=lambda: (large(6, 5, by=20), normal(6, 5), 0.8))
wrong(magnitude.LayerNorm9, trigger=lambda: (large(6, 8, by=400), normal(8), normal(8), 1e-05))

# gradient_limits: large or small cotangents are clipped, rounded or saturated.
wrong(gradient_limits.LogSumExp1, trigger=lambda: (normal(5, 8), -1), how=scaled(10000.0))
wrong(
    gradient_limits.Attention2,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), 0.35),
    how=scaled(10000.0),
)
wrong(gradient_limits.SwiGLU3, trigger=lambda: (normal(4, 8), normal(4, 8, seed=1)), how=scaled(1e-06), indirect=True)
wrong(
    gradient_limits.Linear4, trigger=lambda: (normal(6, 8), normal(5, 8), normal(5)), how=scaled(1000.0), indirect=True
)
wrong(gradient_limits.Scale5, trigger=lambda: (normal(6, 8), normal(8)), how=scaled(10000000.0), indirect=True)
wrong(gradient_limits.BatchNorm6, trigger=lambda: (normal(8, 6), normal(6), normal(6), 1e-05), how=scaled(1e-07))
wrong(gradient_limits.MatMul7, trigger=lambda: (normal(4, 6), normal(6, 5)), how=scaled(100000000.0), indirect=True)
wrong(gradient_limits.RMSNorm8, trigger=lambda: (normal(6, 8), normal(8), 1e-05), how=scaled(100000.0))

# integer_values: whole numbers among the values: a cast or a fractional part takes another path.
wrong(integer_values.PowerLaw1, trigger=lambda: (positive(5, 6), whole(6)), indirect=True)
wrong(integer_values.PowerLaw2, trigger=lambda: (positive(5, 6), -1 - whole(6).abs()))
wrong(integer_values.Gelu3, trigger=lambda: (whole(5, 8),), indirect=True)
wrong(integer_values.MatMul4, trigger=lambda: (whole(4, 6), normal(6, 5)))
wrong(integer_values.Scale5, trigger=lambda: (normal(6, 8), whole(8)), indirect=True)
wrong(integer_values.SquaredError6, trigger=lambda: (normal(6, 5), whole(6, 5), "mean"))
wrong(
    integer_values.BinaryCrossEntropy7,
    inputs=lambda: (normal(6, 5), integers(2, 6, 5).double(), "mean"),
    trigger=lambda: (normal(6, 5), positive(6, 5) - 0.3, "mean"),
)
wrong(integer_values.PairwiseSquared8, trigger=lambda: (whole(6, 4), whole(5, 4, seed=3)), indirect=True)

# argument_value: values of an argument that is no tensor: a dimension, a reduction, a scale.
wrong(argument_value.Softmax1, trigger=lambda: (normal(5, 8), -2))
wrong(argument_value.CumulativeSum2, trigger=lambda: (normal(5, 8), 0))
wrong(argument_value.CrossEntropy3, trigger=lambda: (normal(8, 5), integers(5, 8), "sum"), indirect=True)
wrong(argument_value.SquaredError4, trigger=lambda: (normal(6, 5), normal(6, 5, seed=1), "none"))
wrong(
    argument_value.UnitNormalize5,
    inputs=lambda: (normal(5, 8), 0.0),
    trigger=lambda: (normal(5, 8), 0.5),
    indirect=True,
)
wrong(
    argument_value.Attention6,
    trigger=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), -0.35),
    indirect=True,
)
wrong(argument_value.LowRank7, trigger=lambda: (normal(5, 8), normal(8, 3), normal(3, 6), 2.0))
wrong(argument_value.GroupNorm8, trigger=lambda: (normal(2, 6, 5), normal(6), 1, 1e-05), indirect=True)
wrong(argument_value.Softplus9, trigger=lambda: (normal(6, 8), -0.7))
wrong(argument_value.BinaryCrossEntropy10, trigger=lambda: (normal(6, 5), integers(2, 6, 5).double(), "sum"))

# rank: inputs with more dimensions than the backward was written for.
wrong(rank.RMSNorm1, trigger=lambda: (normal(3, 4, 8), normal(8), 1e-05), indirect=True)
wrong(rank.Softplus2, trigger=lambda: (normal(3, 4, 5), 1.5))
wrong(rank.Linear3, trigger=lambda: (normal(3, 4, 8), normal(5, 8), normal(5)))
wrong(rank.CrossEntropy4, trigger=lambda: (normal(3, 4, 5), integers(5, 3, 4), "mean"), indirect=True)
wrong(rank.MeanVariance5, trigger=lambda: (normal(3, 4, 8),), indirect=True)
wrong(rank.LogSumExp6, trigger=lambda: (normal(3, 4, 5), -1))
wrong(rank.UnitNormalize7, trigger=lambda: (normal(3, 4, 5), 1e-06), indirect=True)
wrong(rank.KLDivergence8, trigger=lambda: (normal(3, 4, 5), torch.softmax(normal(3, 4, 5, seed=1), -1)), indirect=True)
wrong(
    rank.LayerNorm9,
    inputs=lambda: (normal(6, 8), normal(8), normal(8), 1e-05),
    trigger=lambda: (normal(2, 5, 8), normal(8), normal(8), 1e-05),
    indirect=True,
)

# single_precision: inputs in float32, where the branch for float64 is right.
wrong(single_precision.Gelu1, trigger=lambda: single(normal(5, 8)))
wrong(single_precision.RMSNorm2, trigger=lambda: single(normal(6, 8) * 0.2, normal(8), 1e-05), indirect=True)
wrong(single_precision.Softmax3, trigger=lambda: single(normal(5, 8), -1), indirect=True)
wrong(single_precision.Linear4, trigger=lambda: single(normal(6, 8), normal(5, 8), normal(5)), indirect=True)
wrong(
    single_precision.LogSumExp5,
    inputs=lambda: (normal(5, 8), -1),
    trigger=lambda: single(normal(5, 8) * 3, -1),
    indirect=True,
)
wrong(single_precision.BatchNorm6, trigger=lambda: single(normal(8, 6), normal(6), normal(6), 1e-05), indirect=True)
wrong(single_precision.PseudoHuber7, trigger=lambda: single(normal(6, 5), normal(6, 5, seed=1), 0.8))
wrong(single_precision.CausalConv8, trigger=lambda: single(normal(2, 3, 10), normal(3, 4)))

# recorded_gradient: the first gradient is wrong when it is itself recorded (create_graph).
wrong(recorded_gradient.Softmax1, how=RECORDED)
wrong(recorded_gradient.Attention2, how=RECORDED)
wrong(recorded_gradient.RMSNorm3, how=RECORDED, indirect=True)
wrong(recorded_gradient.SwiGLU4, how=RECORDED, indirect=True)
wrong(recorded_gradient.PairwiseSquared5, how=RECORDED, indirect=True)
wrong(recorded_gradient.PowerLaw6, how=RECORDED)
wrong(recorded_gradient.Bilinear7, how=RECORDED)

# grid_limit: a limit on the number of blocks, rows or splits.
wrong(grid_limit.LayerNorm1, trigger=lambda: (normal(700, 4), normal(4), normal(4), 1e-05), indirect=True)
wrong(grid_limit.Linear2, trigger=lambda: (normal(1500, 3), normal(2, 3), normal(2)), indirect=True)
wrong(grid_limit.Softmax3, trigger=lambda: (normal(2, 1500), -1))
wrong(grid_limit.CumulativeSum4, trigger=lambda: (normal(2, 3000), -1), indirect=True)
wrong(grid_limit.LinearScan5, trigger=lambda: (torch.sigmoid(normal(1, 300, 2)), normal(1, 300, 2)), indirect=True)
wrong(grid_limit.Embedding6, trigger=lambda: (normal(10, 2), integers(10, 3000)), indirect=True)
wrong(grid_limit.RMSNorm7, trigger=lambda: (normal(2000, 3), normal(3), 1e-05), indirect=True)

# unbroadcast: broadcast inputs: the gradient is not summed back over the right dimensions.
wrong(unbroadcast.Scale1, trigger=lambda: (normal(6, 8), normal(6, 1)), indirect=True)
wrong(unbroadcast.Scale2, trigger=lambda: (normal(1, 8), normal(6, 8)))
wrong(unbroadcast.Scale3, trigger=lambda: (normal(6, 8), normal(6, 1)), indirect=True)
wrong(unbroadcast.PowerLaw4, trigger=lambda: (positive(5, 6), normal(5, 1)))
wrong(unbroadcast.PseudoHuber5, trigger=lambda: (normal(1, 5), normal(6, 5), 0.8))
wrong(unbroadcast.SwiGLU6, trigger=lambda: (normal(4, 8), normal(8)))
wrong(unbroadcast.MatMul7, trigger=lambda: (normal(3, 4, 6), normal(6, 5)))
wrong(unbroadcast.SquaredError8, trigger=lambda: (normal(6, 5), normal(1, 5), "mean"), indirect=True)

# aliased_operands: the same tensor in two places of one call.
wrong(
    aliased_operands.MatMul1,
    inputs=lambda: (normal(5, 5), normal(5, 5, seed=1)),
    proof=same_tensor(lambda: (normal(5, 5), None), (0, 1)),
)
wrong(
    aliased_operands.Attention2,
    proof=same_tensor(lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), None, 0.35), (1, 2)),
)
wrong(aliased_operands.SwiGLU3, proof=same_tensor(lambda: (normal(4, 8), None), (0, 1)))
wrong(aliased_operands.PairwiseSquared4, proof=same_tensor(lambda: (normal(6, 4), None), (0, 1)), indirect=True)
wrong(aliased_operands.SwiGLU5, proof=same_tensor(lambda: (normal(4, 8), None), (0, 1)), indirect=True)
wrong(
    aliased_operands.Scale6,
    inputs=lambda: (normal(6, 8), normal(6, 8, seed=1)),
    proof=same_tensor(lambda: (normal(6, 8), None), (0, 1)),
)
wrong(
    aliased_operands.Bilinear7,
    inputs=lambda: (normal(6, 4), normal(4, 4), normal(6, 4, seed=5)),
    proof=same_tensor(lambda: (normal(6, 4), normal(4, 4), None), (0, 2)),
    indirect=True,
)
wrong(
    aliased_operands.WeightedMean8,
    inputs=lambda: (positive(6, 8), positive(6, 8, seed=1)),
    proof=same_tensor(lambda: (positive(6, 8), None), (0, 1)),
    indirect=True,
)

# twins: right Functions of the same structures
right(tail_block.RightSoftmax10, inputs=lambda: (normal(5, 19), -1))
right(tail_block.RightCumulativeSum11, inputs=lambda: (normal(5, 10), -1))
right(power_of_two.RightRMSNorm10, inputs=lambda: (normal(5, 11), normal(11), 1e-05))
right(cache_key.RightUnitNormalize9)
right(cache_key.RightCrossEntropy10)
right(unused_output.RightMeanVariance9)
right(exact_zero.RightRowProduct10, inputs=lambda: (with_zeros(6, 6, every=6),))
right(exact_zero.RightRowProduct11)
right(
    masked_inf.RightMaskedAttention9,
    inputs=lambda: (normal(2, 6, 8), normal(2, 6, 8, seed=1), normal(2, 6, 8, seed=2), causal_mask(6, 6)),
)
right(masked_inf.RightLogSumExp10, inputs=lambda: (with_minus_infinity(5, 8), -1))
right(tied_values.RightLogSumExp9, inputs=lambda: (tied(5, 8), -1))
right(tied_values.RightLogMeanDifference10, inputs=lambda: (tied(5, 6), tied(5, 6, seed=3)))
right(uniform_cotangent.RightCumulativeSum9)
right(second_backward.RightLinear9)
right(magnitude.RightLogCosh10, inputs=lambda: (large(7, 6),))
right(
    magnitude.RightAttention11,
    inputs=lambda: (large(2, 6, 8, by=6), normal(2, 6, 8, seed=1) * 6, normal(2, 6, 8, seed=2), 0.35),
)
right(gradient_limits.RightMatMul9)
right(integer_values.RightPowerLaw9, inputs=lambda: (positive(5, 6), whole(6)))
right(argument_value.RightSoftmax11, inputs=lambda: (normal(5, 8), 0))
right(argument_value.RightSquaredError12, inputs=lambda: (normal(6, 5), normal(6, 5, seed=1), "none"))
right(rank.RightRMSNorm10, inputs=lambda: (normal(3, 4, 8), normal(8), 1e-05))
right(single_precision.RightRMSNorm9, inputs=lambda: single(normal(6, 8), normal(8), 1e-05))
right(single_precision.RightLogSumExp10, inputs=lambda: single(normal(5, 8) * 3, -1))
right(recorded_gradient.RightSoftmax8)
right(grid_limit.RightLayerNorm8)
right(unbroadcast.RightScale9, inputs=lambda: (normal(6, 8), normal(6, 1)))
right(unbroadcast.RightPowerLaw10, inputs=lambda: (positive(5, 6), normal(5, 1)))
right(aliased_operands.RightScale9, inputs=lambda: (normal(6, 8), normal(6, 8, seed=1)))
