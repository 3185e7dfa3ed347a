"""One script per failure that shows it with torch and the repository alone: no Gradproof needed, nothing random left.

The script builds the target as the harness did, in float64, and ends with status 1 if the failure shows, 0 if not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.lines import REPRO
from gradproof_probe.repros.library import library_repro
from gradproof_probe.repros.plain_script import target_expression
from gradproof_probe.repros.script_texts import EACH, RESEED
from gradproof_probe.repros.situation import situation_repro
from gradproof_probe.request import Target

__all__ = ["gradient_repro", "library_repro", "situation_repro"]

_HEAD: Final = '''"""{summary}

Run it with the root of the repository as argument (or from there): python repro.py [ROOT]
"""
import importlib
import os
import random
import sys

import torch

ROOT = sys.argv[1] if len(sys.argv) > 1 else "."
sys.path.insert(0, os.path.join(ROOT, {import_root!r}))
torch.set_default_dtype(torch.{dtype})
module = importlib.import_module({module!r})
names = {{**vars(module), "torch": torch, "arguments": lambda *args, **kwargs: (args, kwargs)}}


{reseed}

{each}

def tensors(value):
    found = []
    each(value if isinstance(value, (torch.Tensor, dict, list, tuple)) else vars(value), lambda t: found.append(t) or t)
    return [t for t in found if (t.is_floating_point() or t.is_complex()) and t.requires_grad]


def build():
    """The target and its inputs, the same ones every time."""
    reseed({seed})
    target = eval({constructor!r}, names)
    parameters = []
    if isinstance(target, torch.nn.Module):
        target.to(torch.{dtype})
        parameters = [(name, p) for name, p in target.named_parameters() if p.requires_grad]
    reseed({seed} + 1)
    args, kwargs = eval("arguments(" + {inputs!r} + ")", names)
    leaf = lambda t: t.to(torch.{dtype}).requires_grad_() if t.is_floating_point() else t
    args, kwargs = each(list(args), leaf), each(kwargs, leaf)
    return target, args, kwargs, tensors([args, kwargs]), parameters


def run(target, args, kwargs):
    """Differentiable outputs; the inputs are cloned, so that the call may write to them."""
    reseed({seed})
    return tensors([target(*each(args, torch.clone), **each(kwargs, torch.clone))])


def weights(outputs, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o.dtype) for o in outputs]


def gradients(outputs, leaves, weight, **options):
    return torch.autograd.grad(outputs, leaves, weight, allow_unused=True, **options)


def report(what, expected, got, failed):
    print(what)
    print("  expected:", expected)
    print("  got:     ", got)
    sys.exit(1 if failed else 0)

'''

_DIFFERENCE: Final = '''
def evaluate(shift=0.0):
    """The weighted sum of the outputs with one coordinate moved by `shift`, and the leaf of that coordinate."""
    target, args, kwargs, inputs, parameters = build()
    leaf = {leaf}
    with torch.no_grad():
        leaf[{index}] += shift
    outputs = run(target, args, kwargs)
    return sum((w * o).sum() for w, o in zip(weights(outputs), outputs)), leaf


value, leaf = evaluate()
(gradient,) = torch.autograd.grad(value, [leaf])
got = gradient[{index}].item()
step = {step} * max(1.0, abs(leaf[{index}].item()))
expected = ((evaluate(step)[0] - evaluate(-step)[0]) / (2 * step)).item()
report({variable!r} + " at {index}: derivative by differences, and what autograd returns", expected, got,
       abs(expected - got) > {tolerance} * max(abs(expected), abs(got)))
'''

_RAISES: Final = """
try:
    target, args, kwargs, inputs, parameters = build()
    outputs = run(target, args, kwargs)
    gradients(outputs, [*inputs, *(p for _, p in parameters)], weights(outputs))
except Exception as error:
    report("one forward and one backward", "no error", f"{type(error).__name__}: {error}", True)
report("one forward and one backward", "no error", "no error", False)
"""

_TWO_PASSES: Final = """
target, args, kwargs, inputs, parameters = build()
leaves = [*inputs, *(p for _, p in parameters)]
reseed({seed})
called = each(args, torch.clone)
outputs = tensors([target(*called, **each(kwargs, torch.clone))])
weight = weights(outputs)
given = [t.clone() for t in weight]
before = [t.detach().clone() for t in tensors([called])]
first = gradients(outputs, leaves, weight, retain_graph=True)
changed = [i for i, (a, b) in enumerate(zip(weight, given)) if not torch.equal(a, b)]
written = [i for i, (a, b) in enumerate(zip(tensors([called]), before)) if not torch.equal(a, b)]
try:
    second = gradients(outputs, leaves, given, retain_graph=True)
    same = all(a is None or torch.allclose(a, b) for a, b in zip(first, second))
except RuntimeError as error:
    same = f"the second pass raises {{error}}"
report("gradients given to backward that it changed, inputs that it changed, same result of a second pass",
       ([], [], True), (changed, written, same), bool(changed or written or same is not True))
"""

_LAYOUT: Final = """
def strided(t):
    wide = t.new_full((*t.shape, 2), float("nan"))
    wide[..., 0] = t
    return wide[..., 0] if t.dim() else t.clone()


def transposed(t):
    return t.transpose(0, -1).contiguous().transpose(0, -1) if t.dim() > 1 else strided(t)


def expanded(t):
    return t.reshape(-1)[:1].reshape(()).expand(t.shape)


def pull(change, ones):
    target, args, kwargs, inputs, parameters = build()
    outputs = run(target, args, kwargs)
    weight = [torch.ones_like(o) for o in outputs] if ones else weights(outputs)
    return gradients(outputs, [*inputs, *(p for _, p in parameters)], [change(w) for w in weight])


ones = {layout!r} == "expanded"
expected = pull(torch.Tensor.contiguous, ones)
try:
    got = pull({layout}, ones)
    differ = max(float((a - b).abs().max()) for a, b in zip(expected, got) if a is not None and b is not None)
except Exception as error:
    report("backward with a {layout} incoming gradient", "no error", f"{{type(error).__name__}}: {{error}}", True)
report("largest difference between a {layout} and a contiguous incoming gradient", 0.0, differ, differ > 1e-9)
"""

_LINEAR: Final = """
def pull(factor):
    target, args, kwargs, inputs, parameters = build()
    outputs = run(target, args, kwargs)
    return gradients(outputs, [*inputs, *(p for _, p in parameters)], [factor * w for w in weights(outputs)])


once, twice = pull(1.0), pull(2.0)
pairs = [(a, b) for a, b in zip(once, twice) if a is not None and b is not None]
worst = max(float((2 * a - b).abs().max()) for a, b in pairs)
report("an incoming gradient twice as large: largest deviation from twice the result", 0.0, worst,
       worst > 1e-9 * max(float(b.abs().max()) for _, b in pairs))
"""

_TWO_STEPS: Final = """
target, args, kwargs, inputs, parameters = build()
try:
    for step in (1, 2):
        outputs = run(target, args, kwargs)
        gradients(outputs, [*inputs, *(p for _, p in parameters)], weights(outputs))
except RuntimeError as error:
    report(f"forward and backward, step {step}", "no error", str(error), True)
report("two steps of forward and backward", "no error", "no error", False)
"""

_NOT_FINITE: Final = """
target, args, kwargs, inputs, parameters = build()
outputs = run(target, args, kwargs)
leaves = [*inputs, *(p for _, p in parameters)]
found = gradients(outputs, leaves, weights(outputs))
bad = [i for i, g in enumerate(found) if g is not None and not g.isfinite().all()]
report("gradients that aren't finite though the outputs are (numbers of the leaves)", [], bad, bool(bad))
"""


def gradient_repro(
    target: Target,
    recipe: Recipe,
    *,
    seed: int,
    cause: str,
    summary: str,
    worst: Mapping[str, Any] | None,
    numbers: Mapping[str, Any],
    single: bool,
) -> str | None:
    """The script, or None where the cause has no short demonstration."""
    body = _body(cause, worst, numbers, seed, single=single)
    if body is None:
        return None
    dtype = "float32" if single else "float64"
    return whole_script(target, recipe, body, seed=seed, summary=summary, dtype=dtype)


def whole_script(target: Target, recipe: Recipe, body: str, *, seed: int, summary: str, dtype: str) -> str | None:
    """`body` after the head that builds target and inputs in this type; None if it is longer than a report may hold."""
    head = _HEAD.format(
        summary=_printable(f"{target.name}: {summary}"),
        import_root=target.import_root or ".",
        dtype=dtype,
        module=target.module,
        seed=seed,
        constructor=target_expression(target, recipe),
        inputs=", ".join(recipe.inputs),
        reseed=RESEED,
        each=EACH,
    )
    script = head + body
    return script if len(script) <= REPRO else None


def _body(
    cause: str, worst: Mapping[str, Any] | None, numbers: Mapping[str, Any], seed: int, *, single: bool
) -> str | None:
    if cause in ("forward_raises", "backward_raises", "constructor_raises"):
        return _RAISES
    if cause in ("grad_output_mutated", "saved_tensor_mutated", "backward_not_repeatable"):
        return _TWO_PASSES.format(seed=seed)
    if cause == "grad_output_layout":
        return _LAYOUT.format(layout=numbers.get("layout", "transposed"))
    if cause in ("ignores_grad_output", "not_linear"):
        return _LINEAR
    if cause == "graph_kept_between_steps":
        return _TWO_STEPS
    if cause == "nan_gradient":
        return _NOT_FINITE
    if worst is None:
        return None
    ordinal, name = worst.get("ordinal"), worst["variable"]
    leaf = f"inputs[{ordinal}]" if worst.get("kind") == "input" else f"dict(parameters)[{name!r}]"
    # Differences in float32 see 1e-7 of the value in each term: a step of 1e-2 leaves 1e-5.
    step, tolerance = ("1e-2", "1e-2") if single else ("1e-5", "1e-5")
    index = tuple(worst["index"])
    return _DIFFERENCE.format(leaf=leaf, index=index if index else "()", variable=name, step=step, tolerance=tolerance)


def _printable(text: str) -> str:
    """For a docstring: no quotes that end it, no escapes."""
    return text.replace("\\", "/").replace('"""', "'''")[:500].rstrip('"')
