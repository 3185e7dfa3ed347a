"""The script for micro-batches that do not add up to their batch: the same samples, one micro-batch a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_BODY: Final = """
import inspect

from torch.optim.optimizer import register_optimizer_step_pre_hook


def set_count(target, args, kwargs, value):
    \"\"\"The number of micro-batches in a step, wherever it is.\"\"\"
    if KIND == "argument":
        bound = inspect.signature(target).bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments[NAME] = value
        return list(bound.args), dict(bound.kwargs)
    plain = inspect.unwrap(target)
    if KIND == "attribute":
        where = [*args, *kwargs.values()][PATH[0]] if isinstance(PATH[0], int) else kwargs[PATH[0]]
        for name in PATH[1:-1]:
            where = where[name] if isinstance(where, dict) else getattr(where, name)
        where.__setitem__(NAME, value) if isinstance(where, dict) else setattr(where, NAME, value)
    elif KIND == "global":
        plain.__globals__[NAME] = value
    else:
        code = plain.__code__
        plain.__code__ = code.replace(co_consts=tuple(value if type(c) is int and c == COUNT else c
                                                      for c in code.co_consts))
    return args, kwargs


def merged(batches):
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(batches) if first.dim() else first
    if isinstance(first, dict):
        return {key: merged([batch[key] for batch in batches]) for key in first}
    return type(first)(merged(list(parts)) for parts in zip(*batches)) if isinstance(first, (list, tuple)) else first


def steps(count, only=None):
    \"\"\"(how many backward passes there were, the gradient) of each step; `only`: these batches, as one.\"\"\"
    target = make()
    args, kwargs = inputs()
    args, kwargs = set_count(target, args, kwargs, count)
    for item in [*args, *kwargs.values()]:
        for part in item.modules() if isinstance(item, torch.nn.Module) else ():
            if "dropout" in type(part).__module__ or "batchnorm" in type(part).__module__:
                part.eval()
                part.train = lambda mode=True, part=part: part
    if LOADER is not None:
        holder = args if isinstance(LOADER, int) else kwargs
        batches = list(holder[LOADER])
        holder[LOADER] = batches if only is None else [merged([batches[n] for n in only])]
    found, passes = [], [0]
    backward = torch.autograd.backward

    def counted(*given, **named):
        passes[0] += 1
        return backward(*given, **named)

    def note(optimizer, *_):
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # all gradients are those of one point
        if passes[0]:
            gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            found.append((passes[0], torch.cat([g.detach().double().flatten() for g in gradients])))
            passes[0] = 0

    torch.autograd.backward = counted
    handle = register_optimizer_step_pre_hook(note)
    try:
        reseed(SEED)
        target(*args, **kwargs)
        own = [p for item in [*args, *kwargs.values()] if isinstance(item, torch.nn.Module) for p in item.parameters()]
        if passes[0] and not found:  # its caller steps
            gradients = [p.grad.detach().double().flatten() for p in own if p.grad is not None]
            found.append((passes[0], torch.cat(gradients)))
    finally:
        torch.autograd.backward = backward
        handle.remove()
    return found


def main():
    done, worst = 0, (1.0, 0.0)
    for number, gradient in steps(COUNT):
        whole = steps(ONE, list(range(done, done + number)))[0][1]
        done += number
        multiple = float(gradient @ whole / (whole @ whole))
        worst = max(worst, (multiple, float((gradient - whole).norm() / whole.norm())), key=lambda pair: pair[1])
    report("the gradient of a step as a multiple of that of the same samples as one batch, and how far it is from it",
           (1.0, 0.0), worst, failed=worst[1] > 1e-3)
"""


def accumulating_body(evidence: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where the check knows no number that makes one micro-batch."""
    count = evidence.get("count")
    if not isinstance(count, Mapping) or evidence.get("batches") == "calls":
        return None
    return _BODY, {
        "KIND": count["kind"],
        "NAME": count["name"],
        "PATH": count["path"],
        "COUNT": count["value"],
        "ONE": count["set_to"],
        "LOADER": count["loader"],
    }
