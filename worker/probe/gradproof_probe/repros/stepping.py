"""Scripts for training steps: what each step finds in the gradients, watched from outside of the function that trains.

Several calls go through the same model and optimizer. Backward passes, clipping and steps are noted with the gradients
that are there; each kind of failure is one question about these notes.
"""

from __future__ import annotations

from typing import Any, Final

_WATCH: Final = '''
from torch.optim.optimizer import register_optimizer_step_pre_hook

watching = []
optimizers, rates = [], []  # that there are, and what each begins with
notes = []  # (act, gradients by parameter, more)
scale = [1.0]  # of the loss that the gradients are of
factor = [1.0]  # by which gradients are made larger


def gradients():
    """By parameter, those of every optimizer; what is zero or None is left out."""
    parameters = [p for item in optimizers for group in item.param_groups for p in group["params"]]
    return {id(p): p.grad.detach().clone() for p in parameters if p.grad is not None and p.grad.any()}


def watch_making(original):
    def made(self, *args, **kwargs):
        original(self, *args, **kwargs)
        optimizers.append(self)
        rates.append(self.param_groups[0].get("lr"))

    return made


def nodes(roots):
    seen, waiting = set(), [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(seen)


def watch_backward(original):
    def backward(tensors, grad_tensors=None, *args, **kwargs):
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        notes.append(("backward", gradients(), nodes(roots)))
        if factor[0] != 1 and grad_tensors is None:
            grad_tensors = [torch.full_like(root, factor[0]) for root in roots]
        original(tensors, grad_tensors, *args, **kwargs)
        notes.append(("after backward", gradients(), None))

    return backward


def watch_clip(original, by_value):
    def clip(parameters, *args, **kwargs):
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        limit = args[0] if args else kwargs.get("clip_value" if by_value else "max_norm")
        notes.append(("clip", gradients(), (float(limit), by_value, {id(p) for p in given}, scale[0])))
        return original(given, *args, **kwargs)

    return clip


def note_step(optimizer, *_):
    notes.append(("step", gradients(), (optimizer.param_groups[0].get("lr"), scale[0])))


class Scaler(torch.amp.GradScaler):
    """Works on the CPU where there is no CUDA; torch's own would be switched off."""

    def __init__(self, device="cuda", *args, **kwargs):
        usable = device != "cuda" or torch.cuda.is_available()
        super().__init__(device if usable else "cpu", *args, **kwargs)

    def scale(self, outputs):
        result = super().scale(outputs)
        scale[0] = self.get_scale()
        return result

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        scale[0] = 1.0


def watch():
    """Before anything of the repository is imported: it may take names out of torch then."""
    watching.append(True)
    torch.optim.Optimizer.__init__ = watch_making(torch.optim.Optimizer.__init__)
    torch.autograd.backward = watch_backward(torch.autograd.backward)
    for home in (torch.nn.utils, torch.nn.utils.clip_grad):
        home.clip_grad_norm_ = watch_clip(home.clip_grad_norm_, False)
        home.clip_grad_value_ = watch_clip(home.clip_grad_value_, True)
    torch.amp.GradScaler = torch.amp.grad_scaler.GradScaler = Scaler
    torch.cuda.amp.GradScaler = lambda *args, **kwargs: Scaler("cuda", *args, **kwargs)
    register_optimizer_step_pre_hook(note_step)
'''

_CALLS: Final = '''
def kept(value):
    return list(value) if hasattr(value, "__next__") else value


def call(times=CALLS):
    """The same model and optimizer for all calls, new copies of the data for each."""
    if not watching:
        watch()
    target = make()
    args, kwargs = inputs()
    loaders = {n for n, value in [*enumerate(args), *kwargs.items()] if hasattr(value, "__next__")}
    args, kwargs = [kept(value) for value in args], {name: kept(value) for name, value in kwargs.items()}
    for _ in range(times):
        given = each((args, kwargs), lambda t: t if t.requires_grad else t.clone())
        given = [iter(v) if n in loaders else v for n, v in enumerate(given[0])], {
            name: iter(v) if name in loaders else v for name, v in given[1].items()}
        reseed(SEED)
        target(*given[0], **given[1])
'''

_NOT_CLEARED: Final = """
def main():
    call()
    used, stale = {}, 0
    for act, now, _ in notes:
        if act == "step":
            used = now
        elif act == "backward":
            stale += any(key in used and torch.equal(value, used[key]) for key, value in now.items())
            used = {}
    report("backward passes that add to gradients which the step before has used", 0, stale, failed=stale > 0)
"""

_LOST: Final = """
def main():
    call()
    waiting, lost = {}, 0
    for act, now, _ in notes:
        if act == "after backward":
            waiting = now
        elif act in ("backward", "step"):
            lost += bool(waiting) and not any(key in now for key in waiting)
            waiting = {}
    report("backward passes whose gradients were gone before any step has seen them", 0, lost, failed=lost > 0)
"""

_CLIPPED: Final = """
def excess():
    \"\"\"(the limit, the size at the step) where they are farthest apart.\"\"\"
    call(3)
    clips = [more for act, _, more in notes if act == "clip"]
    found = [(1.0, 0.0)]
    for now in (now for act, now, _ in notes if act == "step"):
        for limit, by_value, keys, _ in clips:
            parts = [value.double() for key, value in now.items() if key in keys]
            if parts:
                sizes = [float(p.abs().max()) if by_value else float(p.norm()) for p in parts]
                size = max(sizes) if by_value else sum(s * s for s in sizes) ** 0.5
                found.append((limit, size))
    return max(found, key=lambda pair: pair[1] / pair[0])


def main():
    try:
        limit, size = excess()
    except RuntimeError as error:  # as clipping by value does where there is no gradient yet
        report("calls in a row", "no error", str(error).splitlines()[0], failed=True)
    if 0 < size <= 1.001 * limit:  # clipping would not show: with larger gradients, then
        factor[0] = 10 * limit / size
        notes.clear()
        limit, size = excess()
    report("the largest size of gradients at a step, beside the limit that they are clipped to", f"at most {limit:g}",
           size, failed=size > 1.01 * limit)
"""

_CLIPPED_SCALED: Final = """
def main():
    call()
    factors = [more[3] for act, _, more in notes if act == "clip" and more[0] < more[3]]
    largest = max(factors, default=1.0)
    report("how many times too large gradients are where they are clipped", 1.0, largest, failed=largest > 1)
"""

_STEP_SCALED: Final = """
def main():
    try:
        call(1)
    except AssertionError:
        pass  # the scaler has seen no step, and says so
    largest = max((more[1] for act, _, more in notes if act == "step"), default=1.0)
    report("how many times too large gradients are at optimizer.step()", 1.0, largest, failed=largest > 1)
"""

_SCHEDULED: Final = """
def main():
    call(1)
    first = next((more[0] for act, _, more in notes if act == "step"), None)
    report("the rate of the first step", rates[0], first, failed=first != rates[0])
"""

_GROWING: Final = """
def main():
    error = ""
    try:
        call()
    except RuntimeError as caught:
        error = str(caught).splitlines()[0]
    sizes = [more for act, _, more in notes if act == "backward"]
    growing = len(sizes) >= 3 and sizes[0] < sizes[1] < sizes[2]
    report("nodes of the graph that each backward pass goes through", [sizes[0]] * 3, f"{sizes} {error}".strip(),
           failed=growing or bool(error))
"""

_RAISES: Final = """
def main():
    error = "no error"
    try:
        call()
    except (RuntimeError, AssertionError) as caught:
        error = f"{type(caught).__name__}: {str(caught).splitlines()[0]}"
    report("calls in a row", "no error", error, failed=error != "no error")
"""

_BROADCAST: Final = """
def main():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(1)
    said = [str(item.message).splitlines()[0][:200] for item in caught if "target size" in str(item.message)]
    report("what torch says of the shapes of a loss", [], said[:1], failed=bool(said))
"""

_BODIES: Final = {
    "gradients_not_cleared": _NOT_CLEARED,
    "gradients_cleared_before_step": _LOST,
    "step_before_backward": _LOST,
    "clip_after_step": _CLIPPED,
    "clip_before_backward": _CLIPPED,
    "clip_before_unscale": _CLIPPED_SCALED,
    "step_on_scaled_gradients": _STEP_SCALED,
    "scheduler_before_step": _SCHEDULED,
    "graph_grows": _GROWING,
    "graph_of_an_earlier_step": _GROWING,
    "scaler_update_missing": _RAISES,
    "unscaled_twice": _RAISES,
    "detached_loss": _RAISES,
    "loss_broadcast": _BROADCAST,
}


def stepping_body(cause: str) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants; None where there is none for this cause."""
    body = _BODIES.get(cause)
    if body is None:
        return None
    return "\n\n\n".join(part.strip("\n") for part in (_WATCH, _CALLS, body)), {"CALLS": 8}
