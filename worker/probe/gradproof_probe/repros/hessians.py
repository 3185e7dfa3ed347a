"""The body for a wrong Hessian-vector product: reverse over reverse against differences of the gradient."""

from __future__ import annotations

from typing import Final

HESSIAN: Final = """
def gradient(shift=0.0, twice=False):
    \"\"\"The gradients of the weighted outputs, with inputs and parameters moved by `shift` along a direction.\"\"\"
    target, args, kwargs, inputs, parameters = build()
    leaves = [*inputs, *(p for _, p in parameters)]
    generator = torch.Generator().manual_seed(5)
    directions = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in leaves]
    with torch.no_grad():
        for tensor, direction in zip(leaves, directions):
            tensor += shift * direction
    outputs = run(target, args, kwargs)
    found = gradients(outputs, leaves, weights(outputs), create_graph=twice)
    return found, leaves, directions


first, leaves, directions = gradient(twice=True)
like = [t if g is None else g for g, t in zip(first, leaves)]
weight = [None if g is None else w for g, w in zip(first, weights(like, seed=11))]
total = sum((w * g).sum() for g, w in zip(first, weight) if g is not None)
try:
    second = torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else [None] * len(leaves)
except RuntimeError as error:
    report("differentiating the gradient", "no error", error, True)
got = float(sum((g * d).sum() for g, d in zip(second, directions) if g is not None))


def along(shift):
    return float(sum((w * g).sum() for g, w in zip(gradient(shift)[0], weight) if g is not None and w is not None))


expected = min(((along(h) - along(-h)) / (2 * h) for h in (1e-4, 1e-5, 1e-6)), key=lambda value: abs(value - got))
report("a Hessian-vector product: by differences of the gradient, and by autograd", expected, got,
       abs(expected - got) > 1e-4 * max(abs(expected), abs(got)))
"""
