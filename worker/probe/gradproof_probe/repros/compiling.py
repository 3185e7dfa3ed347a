"""Scripts for what torch.compile makes otherwise: two calls in a row, plain and compiled, with everything compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_OBSERVED: Final = """
def observed(wrap=lambda call: call, dtype=None):
    \"\"\"Outputs, gradients, buffers and inputs of two calls in a row.\"\"\"
    torch.set_default_dtype(dtype or torch.float32)
    target, found = make(), {}
    module = target if isinstance(target, torch.nn.Module) else torch.nn.Module()
    module.to(dtype).train(TRAINING) if dtype else module.train(TRAINING)
    call = wrap(target)
    for number in range(CALLS):
        torch.set_default_dtype(torch.float32)
        args, kwargs = inputs(lambda t: leaf(changed(t).to(dtype or t.dtype)))
        torch.set_default_dtype(dtype or torch.float32)
        wanted = [(f"input {n}", t) for n, t in enumerate(tensors([args, kwargs])) if t.requires_grad]
        wanted += [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        copies = each((args, kwargs), torch.clone)
        reseed(SEED)
        outputs = tensors(call(*copies[0], **copies[1]))
        found |= {f"call {number}: output {n}": o.detach().clone() for n, o in enumerate(outputs)}
        live = [o for o in outputs if o.requires_grad]
        reseed(SEED)
        weights = random_like(live)
        got = torch.autograd.grad(live, [t for _, t in wanted], weights, allow_unused=True) if live else []
        found |= {f"call {number}: gradient of {name}": g for (name, _), g in zip(wanted, got) if g is not None}
        found |= {f"call {number}: input {n} after": t.detach().clone() for n, t in enumerate(tensors(list(copies)))}
        found |= {f"call {number}: buffer {name}": b.clone() for name, b in module.named_buffers()}
    return found


def compiled(call):
    plain = call if isinstance(call, torch.nn.Module) or hasattr(call, "__code__") else lambda *a, **k: call(*a, **k)
    return torch.compile(plain, backend=BACKEND)
"""

_BITS: Final = (
    _OBSERVED
    + """

def main():
    expected = observed()
    try:
        got = observed(compiled)
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        report(f"two calls compiled with backend {BACKEND}", "no error", said, failed=True)
    largest = max((float(v.norm()) for k, v in expected.items() if "gradient" in k), default=0.0)
    off = {}
    for name in [*expected, *(name for name in got if name not in expected)]:
        if name not in expected or name not in got:
            off[name] = "missing"
        else:
            error = apart([expected[name]], [got[name]])
            if "gradient" in name and error < 1:  # a gradient of zero, but for rounding, is nothing to be relative to
                error *= min(1.0, float(expected[name].norm()) / max(1e-6 * largest, 1e-30))
            if error > 2e-6:
                off[name] = error
    report(f"what differs between eager and compiled code (backend {BACKEND}), relative to its size", {}, off,
           failed=bool(off))
"""
)

_PRECISION: Final = (
    _OBSERVED
    + """

def main():
    import torch._inductor.config as settings

    settings.fallback_random = True
    true, plain, got = observed(dtype=torch.float64), observed(), observed(compiled)
    largest = max((float(v.norm()) for k, v in true.items() if "gradient" in k), default=0.0)

    def error(found, name):
        value, reference = found[name].double(), true[name].double()
        return float((value - reference).norm()) / max(float(reference.norm()), 1e-6 * largest, 1e-30)

    names = [name for name in true if name in plain and name in got and true[name].is_floating_point()]
    worst = max(names, key=lambda name: error(got, name) / max(error(plain, name), 2**-23))
    report(f"{worst}: error of eager and of compiled code (backend {BACKEND}), against float64", error(plain, worst),
           error(got, worst), failed=error(got, worst) > 6 * max(error(plain, worst), 2**-23))
"""
)

_FINITE: Final = (
    _OBSERVED
    + """

def main():
    plain, got = observed(), observed(compiled)
    bad = [name for name, value in plain.items() if name in got and not value.isfinite().all()
           and got[name].isfinite().all()]
    report(f"what is finite compiled (backend {BACKEND}), and not in eager", [], bad, failed=bool(bad))
"""
)

RECOMPILED: Final = """
def main():
    from torch._dynamo.utils import counters

    target, graphs = make(), []
    call = torch.compile(target, backend="eager")
    for _ in range(4):
        args, kwargs = inputs(leaf)
        reseed(SEED)
        call(*args, **kwargs)
        graphs.append(counters["stats"]["unique_graphs"])
    report("graphs that were compiled, after each of four calls with the same inputs", [graphs[0]] * 4, graphs,
           failed=len(set(graphs)) == 4)
"""

_TRANSFORMED: Final = """
def main():
    target, (args, _) = make(), inputs()
    moved = [n for n, value in enumerate(args) if isinstance(value, torch.Tensor) and value.is_floating_point()]

    def call(*values):
        given = dict(zip(moved, values))
        return tensors(target(*[given.get(n, value) for n, value in enumerate(args)]))[0]

    values = [args[n].detach() for n in moved]
    reseed(SEED)
    weight = random_like([call(*values)])[0]

    def gradient(*values):
        return torch.func.vjp(call, *values)[1](weight)

    reseed(SEED)
    expected = gradient(*values)
    reseed(SEED)
    worst = apart(expected, torch.compile(gradient, backend="eager")(*values))
    report("torch.func.vjp, plain and compiled: largest difference", 0.0, worst, failed=worst > 1e-3)
"""

_HOOKED: Final = """
NAMES = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
         "register_full_backward_pre_hook", "register_backward_hook")


def ran_after(wrap):
    \"\"\"How often a hook runs that is registered after the first call.\"\"\"
    target, ran = make(), []
    owner = next(m for m in target.modules() if OWNER in {base.__name__ for base in type(m).__mro__})
    call = wrap(target)

    def step():
        args, kwargs = inputs(leaf)
        reseed(SEED)
        live = [o for o in tensors(call(*each(args, torch.clone), **each(kwargs, torch.clone))) if o.requires_grad]
        torch.autograd.backward(live, [torch.ones_like(o) for o in live]) if live else None

    step()
    originals = {name: getattr(torch.nn.Module, name) for name in NAMES}
    for name in NAMES:
        setattr(torch.nn.Module, name, lambda module, hook, *a, _name=name, **k: originals[_name](
            module, lambda *given, **named: (ran.append(_name), hook(*given, **named))[1], *a, **k))
    getattr(owner, METHOD)(*ARGUMENTS)
    for name, original in originals.items():
        setattr(torch.nn.Module, name, original)
    step()
    return len(ran)


def main():
    plain = ran_after(lambda call: call)
    got = ran_after(lambda call: torch.compile(call, backend="eager"))
    report(f"runs of the hook that {METHOD} registers after the first call: plain, and compiled", plain, got,
           failed=got < plain)
"""

_LATE_HOOK: Final = re.compile(r"call, (\w+)\((.*)\) registers a hook")
_MODE: Final = re.compile(r"in eval mode|, eval mode")
_BACKEND: Final = re.compile(r"backend (eager|aot_eager)")
_SAME: Final = "def changed(tensor):\n    return tensor\n"
_EDGES: Final = """
def changed(tensor):
    \"\"\"At whole multiples of a width, which binary floats can't hold.\"\"\"
    generator = torch.Generator().manual_seed(SEED)
    return (torch.randint(0, 16, tensor.shape, generator=generator).double() * WIDTH).to(tensor)
"""


def compiling_body(
    cause: str, text: str, evidence: Mapping[str, Any], suspicions: Mapping[str, Mapping[str, Any]]
) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none. `suspicions`: those aimed at, by rule."""
    inductor = "inductor" in evidence
    backend = _BACKEND.search(text)
    constants: dict[str, Any] = {
        "BACKEND": "inductor" if inductor else backend[1] if backend else "aot_eager",
        "TRAINING": _MODE.search(text) is None,
        "CALLS": 2,
    }
    if cause == "recompiles_at_each_call":
        return RECOMPILED, {}
    if cause == "custom_backward_dropped" and "torch.func.vjp" in text:
        return _TRANSFORMED, {}
    if cause == "hook_after_compile":
        match = _LATE_HOOK.search(text)
        symbol = str(suspicions.get("GP511", {}).get("symbol", ""))
        if match is None or "." not in symbol:
            return None
        owner, method = symbol.split(".")[-2], match[1]
        return _HOOKED.replace("ARGUMENTS", f"[{match[2]}]"), {"OWNER": owner, "METHOD": method}
    if cause == "differs_after_another_shape":
        return None  # which of the inputs grew is in no evidence
    if cause == "step_at_edge" and (width := suspicions.get("GP513", {}).get("width")) is not None:
        return _EDGES.strip("\n") + "\n\n\n" + _BITS.strip("\n"), {**constants, "WIDTH": width, "CALLS": 1}
    body = _FINITE if cause == "eager_not_finite" else _PRECISION if inductor and cause != "step_at_edge" else _BITS
    return _SAME + "\n\n" + body.strip("\n"), constants
