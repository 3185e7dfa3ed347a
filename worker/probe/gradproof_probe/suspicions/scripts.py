"""The stand-alone script for a confirmed finding, where a short one shows it: with torch and the repository alone."""

from __future__ import annotations

from typing import Final

from gradproof_probe.repro import gradient_repro, whole_script
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer

_NO_GRADIENT: Final = """
target, args, kwargs, inputs, parameters = build()
outputs = run(target, args, kwargs)
leaves = [*((f"input {number}", leaf) for number, leaf in enumerate(inputs)), *parameters]
found = gradients(outputs, [leaf for _, leaf in leaves], weights(outputs)) if outputs else [None] * len(leaves)
lost = [name for (name, _), gradient in zip(leaves, found) if gradient is None or not gradient.any()]
report("inputs and parameters that get no gradient", [], lost, bool(lost))
"""

_EVALUATION: Final = """
target, args, kwargs, inputs, parameters = build()
if isinstance(target, torch.nn.Module):
    target.eval()
seen = []
for seed in (1, 2):
    torch.manual_seed(seed)
    seen.append(tensors([target(*each(args, torch.clone), **each(kwargs, torch.clone))]))
worst = max((float((a - b).abs().max()) for a, b in zip(*seen)), default=0.0)
report("two calls in evaluation mode with the same input: largest difference", 0.0, worst, worst > 0)
"""

_WRITTEN: Final = """
target, args, kwargs, inputs, parameters = build()
given = each([args, kwargs], lambda t: t.detach().clone())
before = each(given, torch.clone)
reseed(0)
target(*given[0], **given[1])
pairs, old = [], []
each(before, lambda t: old.append(t) or t)
each(given, lambda t: pairs.append(t) or t)
written = [number for number, (a, b) in enumerate(zip(pairs, old)) if not torch.equal(a, b)]
report("inputs that the call has changed (numbers)", [], written, bool(written))
"""

_BODIES: Final = {"no gradient": _NO_GRADIENT, "evaluation": _EVALUATION, "written": _WRITTEN}
# What a gradient check has a script for already.
_CAUSES: Final = {"raises": "backward_raises", "two steps": "graph_kept_between_steps"}


def finding_repro(bench: Bench, answer: Answer) -> str | None:
    """None where no short script shows it."""
    target, recipe, seed = bench.resolved.target, bench.recipe, bench.seed
    if answer.shown_by in _CAUSES:
        return gradient_repro(
            target,
            recipe,
            seed=seed,
            cause=_CAUSES[answer.shown_by],
            summary=answer.text,
            worst=None,
            numbers={},
            single=True,
        )
    body = _BODIES.get(answer.shown_by)
    if body is None:
        return None
    return whole_script(target, recipe, body, seed=seed, summary=answer.text, dtype="float32")
