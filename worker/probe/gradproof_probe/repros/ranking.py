"""Scripts for what several processes make otherwise than one: two gloo processes on this machine, and one."""

from __future__ import annotations

from typing import Any, Final

_PROCESSES: Final = """
import re
import tempfile

import torch.distributed as dist


def work(rank, world, folder):
    os.environ.update(GLOO_SOCKET_IFNAME="lo", RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    store = dist.FileStore(os.path.join(folder, f"store{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.save(one_rank(rank, world), os.path.join(folder, f"{world}-{rank}"))
    dist.barrier()


def ranks(world):
    \"\"\"What `one_rank` returns in each of `world` processes.\"\"\"
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    work(rank, world, folder)
                    status = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(status)
            children.append(child)
        if any([os.waitpid(child, 0)[1] for child in children]):
            raise RuntimeError("a process has failed")
        return [torch.load(os.path.join(folder, f"{world}-{rank}")) for rank in range(world)]


def trained(value, depth=0):
    \"\"\"The parameters in the arguments, those of an optimizer too.\"\"\"
    if isinstance(value, torch.nn.Module):
        return [p for p in value.parameters() if p.requires_grad]
    if isinstance(value, torch.optim.Optimizer):
        return [p for group in value.param_groups for p in group["params"] if p.requires_grad]
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        value = list(vars(value).values()) if depth < 2 and hasattr(value, "__dict__") else []
    return list({id(p): p for item in value for p in trained(item, depth + 1)}.values())


def told(target, args, kwargs):
    \"\"\"The arguments, with the number of ranks and the own rank where one is called so.\"\"\"
    def one(name, value):
        if type(value) is not int:
            return value
        if re.search(r"world_?size|n(um)?_?(procs|processes|gpus?|replicas|ranks)$", name):
            return dist.get_world_size()
        return dist.get_rank() if re.search(r"rank$", name) else value

    names = [*getattr(getattr(target, "__code__", None), "co_varnames", ()), *[""] * len(args)]
    return [one(n, v) for n, v in zip(names, args)], {name: one(name, value) for name, value in kwargs.items()}


def share(rank, world):
    \"\"\"The own part of the batch.\"\"\"
    args, kwargs = inputs()
    size = next(t.shape[0] for t in tensors([args, kwargs]) if t.dim() and not t.requires_grad)
    own = lambda t: not t.requires_grad and t.dim() and t.shape[0] == size
    return each((args, kwargs), lambda t: t[: size - size % 2].chunk(world)[rank] if own(t) else t)
"""

_AVERAGE: Final = """
def one_rank(rank, world):
    target, (args, kwargs) = make(), inputs()
    args, kwargs = told(target, args, kwargs)
    parameters = trained([args, kwargs])
    for number, parameter in enumerate(parameters):
        generator = torch.Generator().manual_seed(1000 * rank + number)
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    before = [p.grad.clone() for p in parameters]
    target(*args, **kwargs)
    return before, [p.grad.clone() for p in parameters]


def main():
    found = ranks(2)
    expected = [(a + b) / 2 for a, b in zip(*(before for before, _ in found))]
    off = [apart(expected, after) for _, after in found]
    report("gradients in both ranks: difference from the average", [0.0, 0.0], off, failed=max(off) > 1e-4)
"""

_LOSS: Final = """
def connect():
    \"\"\"In a group of one, what is gathered is the own part, with its graph: the gradient that should come out.\"\"\"
    dist.all_gather = lambda outputs, tensor, *args, **kwargs: outputs.__setitem__(0, tensor)
    dist.all_gather_into_tensor = lambda output, tensor, *args, **kwargs: output.copy_(tensor)


def one_rank(rank, world):
    if world == 1:
        connect()
    target, (args, kwargs) = make(), share(rank, world)
    args, kwargs = told(target, args, kwargs)
    for module in [m for m in [*args, *kwargs.values()] if isinstance(m, torch.nn.Module)]:
        module.eval()
    parameters = trained([args, kwargs])
    if not parameters:
        args, kwargs = each((args, kwargs), lambda t: leaf(t) if t.is_floating_point() else t)
    wanted = parameters or [t for t in tensors([args, kwargs]) if t.requires_grad]
    reseed(SEED)
    scalars = [t for t in tensors(target(*args, **kwargs)) if t.requires_grad and t.numel() == 1]
    sum(t.sum() for t in scalars).backward()
    return bool(parameters), [torch.zeros_like(t) if t.grad is None else t.grad for t in wanted]


def main():
    (of_parameters, first), (_, second) = ranks(2)
    whole = ranks(1)[0][1]
    if of_parameters:
        average = [(a + b) / 2 for a, b in zip(first, second)]
    else:
        average = [torch.cat([a, b]) / 2 for a, b in zip(first, second)]
    worst = apart(whole, average)
    report("the gradient of one process with the whole batch, and the average of two ranks: largest difference", 0.0,
           worst, failed=worst > 1e-4)
"""

_STEP: Final = """
def one_rank(rank, world):
    target, (args, kwargs) = make(), share(rank, world)
    args, kwargs = told(target, args, kwargs)
    parameters = trained([args, kwargs])
    if WRAPPED:
        wrap = torch.nn.parallel.DistributedDataParallel
        args = [wrap(value) if isinstance(value, torch.nn.Module) else value for value in args]
        kwargs = {name: wrap(v) if isinstance(v, torch.nn.Module) else v for name, v in kwargs.items()}
    before = [p.detach().clone() for p in parameters]
    reseed(SEED)
    target(*args, **kwargs)
    return [p.detach() - old for p, old in zip(parameters, before)]


def main():
    first, second = ranks(2)
    between = apart(first, second)
    moved = apart(ranks(1)[0], first)
    report("one step: difference between the ranks, and from the step of one process with the whole batch", (0.0, 0.0),
           (between, moved), failed=max(between, moved) > 1e-3)
"""

_TENSORS: Final = """
def one_rank(rank, world):
    target, (args, kwargs) = make(), inputs()
    args, kwargs = told(target, *each((args, kwargs), lambda t: t * (1 + rank) if t.is_floating_point() else t))
    given = [t.clone() for t in tensors([args, kwargs])]
    found = tensors(target(*args, **kwargs))
    return given, [t.detach() for t in found or tensors([args, kwargs])]


def main():
    found = ranks(2)
    average = [(a + b) / 2 for a, b in zip(*(given for given, _ in found))]
    got = [t for t in found[0][1] if t.shape == average[0].shape]
    worst = apart(average[: len(got)], got)
    report("what it gives, and the average over the ranks: largest difference", 0.0, worst, failed=worst > 1e-4)
"""

_STATE: Final = """
def one_rank(rank, world):
    target = make(SEED + 1000 * rank).eval()
    with torch.no_grad():
        for value in [*target.parameters(), *target.buffers()]:  # as DistributedDataParallel does
            dist.broadcast(value, src=0)
    args, kwargs = inputs()
    reseed(SEED + 100)
    return [t.detach() for t in tensors(target(*args, **kwargs))]


def main():
    worst = apart(*ranks(2))
    report("outputs of two ranks with the same parameters, buffers and inputs: largest difference", 0.0, worst,
           failed=worst > 1e-4)
"""

_BODIES: Final = {"average": _AVERAGE, "loss": _LOSS, "step": _STEP, "tensors": _TENSORS, "module": _STATE}


def ranking_body(kind: str, *, wrapped: bool) -> tuple[str, dict[str, Any]] | None:
    """The body of the script, with its constants. `kind`: how the check ran it in several ranks."""
    body = _BODIES.get(kind)
    return None if body is None else (_PROCESSES.strip("\n") + "\n\n\n" + body.strip("\n"), {"WRAPPED": wrapped})
