"""A backend's kernels: healthy ones stay silent, a wrong one is named by its operation."""

from __future__ import annotations

import pytest

from benchmarks.compile_faults import compared
from benchmarks.device_faults import models
from benchmarks.device_faults.kernels import VARIATIONS

MODELS = dict(zip((kind.__name__ for kind, _ in models.MODELS), models.MODELS, strict=True))


@pytest.mark.parametrize(
    ("model", "kernels", "operation"),
    [
        ("MLP", "split-K order", ""),
        ("MLP", "1-ulp libm", ""),
        ("MLP", "tanh-GELU for GELU", "gelu"),
        ("MLP", "layer norm backward without eps", "layer_norm"),
        ("TokenAttention", "half-precision softmax", "softmax"),
        ("Encoder", "TF32 products", "multi_head_attention_forward"),
    ],
)
def test_what_a_backend_computes_with_is_told(model: str, kernels: str, operation: str) -> None:
    kind, inputs = MODELS[model]
    row = compared(kind, inputs, next(item for item in VARIATIONS if item.name == kernels))
    assert row.used
    assert row.right, row
    assert row.operation == operation
    assert (row.ratio <= 6) == (not operation)
