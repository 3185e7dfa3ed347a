"""The target in two ranks, each with half of a batch, and alone with the whole: what each came to, as tensors.

How it is run depends on what it takes: a function that averages gradients is given some, a loss is differentiated, a
training step is called once, a module is kept equal as DistributedDataParallel keeps it. This module must not judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import distributed

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.harness.recipe import Built, build
from gradproof_probe.seeding import reseed
from gradproof_probe.training.collectives import Collectives, connected_alone
from gradproof_probe.training.instances import Instances, outputs_differ
from gradproof_probe.training.plain_optimizers import plain_optimizers
from gradproof_probe.training.ranks import Found
from gradproof_probe.training.step_arguments import StepArguments
from gradproof_probe.trees import tensors, transform

WORLD: Final = 2
_MOST_ATTRIBUTES: Final = 500
_MOST_VALUES: Final = 100
_MOST_TEXT: Final = 2000
Kind = Literal["average", "loss", "step", "tensors", "module"]
_WORLD_SIZE: Final = re.compile(
    r"world_?size|n_?(procs|gpus?|replicas|ranks)$|num_(procs|processes|gpus?|replicas|ranks)$"
)
_RANK: Final = re.compile(r"(local_|global_)?rank$|gpu(_id)?$")


class NotSharedError(Exception):
    """The inputs have no batch that could be shared out among the ranks."""


@dataclass(slots=True)
class Run:
    """One way of running the target; `wrapped`: its modules are in DistributedDataParallel."""

    context: CheckContext
    kind: Kind
    seed: int
    wrapped: bool = False

    def in_rank(self, rank: int, found: Found) -> None:
        """To be called in each of two ranks."""
        with Collectives(self.context.source_root) as spoken:
            if self.kind == "module":
                self._module_in_rank(rank, found)
            else:
                found.tensors |= self._function(rank, found)
        found.words["collectives"] = spoken.to_words()

    def alone(self, _rank: int, found: Found) -> None:
        """To be called in a group of one: with the whole batch, twice, and with each half."""
        if self.kind == "module":
            self._module_alone(found)
            return
        with connected_alone(self.context.source_root):
            for name, part, draw in (("whole", None, 0), ("again", None, 1), ("half 0", 0, 0), ("half 1", 1, 0)):
                values = self._function(part, Found(), draw=draw)
                found.tensors |= {f"{name} {key}": value for key, value in values.items()}

    # --- functions ---------------------------------------------------------------------------------------------

    def _function(self, part: int | None, found: Found, draw: int = 0) -> dict[str, torch.Tensor]:
        with plain_optimizers():
            return self._called(part, found, draw)

    def _called(self, part: int | None, found: Found, draw: int) -> dict[str, torch.Tensor]:
        built = build(self.context.resolved, self.context.recipe, seed=self.seed)
        arguments = StepArguments(built)
        parameters = _parameters(arguments.holders())
        args, kwargs = arguments.for_call()
        named = _named_arguments(built, args)
        if self.kind == "average":
            _fill(parameters, part or 0)
        elif self.kind == "tensors":
            args, kwargs = (transform(value, lambda t: _of_rank(t, part or 0)) for value in (args, kwargs))
        else:
            args, kwargs = _shared((args, kwargs), part)
        if self.kind == "loss":
            for module in _modules(arguments.holders()):
                module.eval()
            if not parameters:
                args, kwargs = (transform(value, _leaf) for value in (args, kwargs))
        args = [_told(named.get(index, ""), value) for index, value in enumerate(args)]
        kwargs = {name: _told(name, value) for name, value in kwargs.items()}
        if self.wrapped:
            args = [_in_wrapper(value) for value in args]
            kwargs = {name: _in_wrapper(value) for name, value in kwargs.items()}
        before = {name: value.detach().clone() for name, value in parameters.items()}
        given = {path: value.detach().clone() for path, value in tensors([args, kwargs]) if not value.requires_grad}
        local = {f"local {name}": _copied(value.grad) for name, value in parameters.items() if value.grad is not None}
        reseed(self.seed + draw)
        with torch.enable_grad():
            result = built.call(*args, **kwargs)
        found.words["wrote"] = any(
            not torch.equal(given[path], value) for path, value in tensors([args, kwargs]) if path in given
        )
        if self.kind == "average":
            return local | {f"gradient {n}": _copied(p.grad) for n, p in parameters.items() if p.grad is not None}
        if self.kind == "step":
            return {f"update {name}": value.detach() - before[name] for name, value in parameters.items()}
        if self.kind == "loss":
            return _differentiated(result, parameters, (args, kwargs))
        after = {path: value.detach().clone() for path, value in tensors([args, kwargs]) if path in given}
        outputs = {f"output{path}": value.detach().clone() for path, value in tensors(result)}
        return (
            outputs
            | {f"given{path}": value for path, value in given.items()}
            | {f"after{path}": value for path, value in after.items()}
        )

    # --- modules -----------------------------------------------------------------------------------------------

    def _module_in_rank(self, rank: int, found: Found) -> None:
        instances = Instances(self.context)
        module = instances.fresh(draw=rank)
        for value in [*module.parameters(), *module.buffers()]:
            _from_first(value.detach())
        outputs, again = instances.call(module), instances.call(module)
        found.words["random"] = bool(outputs_differ(outputs, again))
        found.tensors |= {f"same {number}": value for number, value in enumerate(outputs)}
        found.words["attributes"] = _loose(module)
        module.train()
        gradients = self._module_gradients(instances, module, rank, [value.shape for value in outputs])
        found.words["unused"] = sorted(set(dict(_trained(module))) - set(gradients))
        for name, parameter in _trained(module):
            gradient = gradients.get(name)
            own = torch.zeros_like(parameter) if gradient is None else gradient
            found.tensors[f"gradient {name}"] = _added(own.detach()) / WORLD
        for name, buffer in module.named_buffers():
            found.tensors[f"buffer {name}"] = buffer.detach().clone()

    def _module_alone(self, found: Found) -> None:
        instances = Instances(self.context)
        shapes = [value.shape for value in instances.call(instances.fresh())]
        for part in (0, 1, None):
            name = "whole" if part is None else f"half {part}"
            module = instances.fresh().train()
            gradients = self._module_gradients(instances, module, part, shapes)
            for key, parameter in _trained(module):
                value = gradients.get(key)
                found.tensors[f"{name} gradient {key}"] = torch.zeros_like(parameter) if value is None else value

    def _module_gradients(
        self, instances: Instances, module: torch.nn.Module, part: int | None, shapes: Sequence[torch.Size]
    ) -> dict[str, torch.Tensor]:
        """Of the mean over the batch of the outputs, each with a random weight of its own.

        `shapes`: of the outputs for the whole batch. Layers that drop at random are left in eval mode, so that a half
        can be compared with the whole.
        """
        for layer in module.modules():
            if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
                layer.eval()
        args, kwargs = instances.arguments()
        size = _batch_size((args, kwargs))
        given = _shared((args, kwargs), part)
        reseed(self.seed)
        outputs = [value for _, value in tensors(module(*given[0], **given[1]))]
        generator = torch.Generator().manual_seed(self.seed + 11)
        terms = []
        for number, value in enumerate(outputs):
            if not value.requires_grad or not value.is_floating_point():
                continue
            axis = _batch_axis(value.shape, shapes[number] if number < len(shapes) else value.shape, size, part)
            whole = list(value.shape)
            if axis is not None:
                whole[axis] = size - size % WORLD
            weights = torch.randn(whole, generator=generator, dtype=torch.float64).to(value.dtype)
            if axis is not None and part is not None:
                weights = weights.chunk(WORLD, dim=axis)[part]
            terms.append((value * weights).sum() / (1 if axis is None else value.shape[axis]))
        wanted = _trained(module)
        if not terms or not wanted:
            return {}
        found = torch.autograd.grad(sum(terms[1:], terms[0]), [value for _, value in wanted], allow_unused=True)
        return {name: value for (name, _), value in zip(wanted, found, strict=True) if value is not None}


# --- arguments -----------------------------------------------------------------------------------------------------


def _parameters(holders: Iterable[Any]) -> dict[str, torch.Tensor]:
    """By name, what is trained among the arguments."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for number, holder in enumerate(holders):
        named: list[tuple[str, Any]]
        if isinstance(holder, torch.nn.Module):
            named = list(holder.named_parameters())
        elif isinstance(holder, torch.optim.Optimizer):
            groups = [parameter for group in holder.param_groups for parameter in group["params"]]
            named = [(f"parameter {index}", value) for index, value in enumerate(groups)]
        else:
            named = [(f"parameter {number}", holder)]
        for name, value in named:
            if value.requires_grad and id(value) not in seen:
                seen.add(id(value))
                found[name if name not in found else f"{number}: {name}"] = value
    return found


def _modules(holders: Iterable[Any]) -> list[torch.nn.Module]:
    return [holder for holder in holders if isinstance(holder, torch.nn.Module)]


def has_parameters(built: Built) -> bool:
    return bool(_parameters(StepArguments(built).holders()))


def has_data(built: Built) -> bool:
    """Whether there are tensors among the arguments that are no parameters."""
    return any(not value.requires_grad for _, value in tensors([built.args, built.kwargs]))


def has_optimizer(built: Built) -> bool:
    return any(isinstance(holder, torch.optim.Optimizer) for holder in StepArguments(built).holders())


def _named_arguments(built: Built, args: list[Any]) -> dict[int, str]:
    """The parameter names of positional arguments."""
    code = getattr(built.call, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]
    return dict(enumerate(names[: len(args)]))


def _told(name: str, value: Any) -> Any:
    """The size of the group and the own rank, where an argument is called so."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if _WORLD_SIZE.search(name):
        return distributed.get_world_size()
    return distributed.get_rank() if _RANK.search(name) else value


def _in_wrapper(value: Any) -> Any:
    if isinstance(value, torch.nn.Module) and any(p.requires_grad for p in value.parameters()):
        return torch.nn.parallel.DistributedDataParallel(value)
    return value


def _batch_size(value: Any) -> int:
    """The length of the first axis of the first tensor that has one. Raises `NotSharedError`."""
    for _, item in tensors(value):
        if item.ndim and not item.requires_grad:
            if item.shape[0] < WORLD:
                break
            return int(item.shape[0])
    raise NotSharedError("no input has a batch of two samples or more")


def _shared(value: Any, part: int | None) -> Any:
    """The batch without what does not go into the number of ranks; of it the own part, unless `part` is None."""
    size = _batch_size(value)
    even = size - size % WORLD

    def share(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.requires_grad or tensor.shape[0] != size:
            return tensor
        return tensor[:even].clone() if part is None else tensor[:even].chunk(WORLD)[part].clone()

    return transform(value, share)


def _batch_axis(shape: torch.Size, whole: torch.Size, size: int, part: int | None) -> int | None:
    """The axis of an output along which the samples lie."""
    own = (size - size % WORLD) // (1 if part is None else WORLD)
    for axis in range(len(shape)):
        shared_out = torch.Size((*shape[:axis], size, *shape[axis + 1 :]))
        if shape[axis] == own and shared_out == whole:
            return axis
    return None


def _fill(parameters: dict[str, torch.Tensor], rank: int) -> None:
    """A gradient of its own for each parameter in each rank."""
    for number, parameter in enumerate(parameters.values()):
        generator = torch.Generator().manual_seed(1000 * rank + number)
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)


def _of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor * (1 + rank) if tensor.is_floating_point() or tensor.is_complex() else tensor


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_() if tensor.is_floating_point() else tensor


def _copied(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.detach().clone()


def _differentiated(result: Any, parameters: dict[str, torch.Tensor], given: Any) -> dict[str, torch.Tensor]:
    """The gradients of the scalars that it returned; empty if there is none."""
    scalars = [value for _, value in tensors(result) if value.requires_grad and value.numel() == 1]
    if not scalars:
        return {}
    wanted = dict(parameters)
    wanted |= {f"input {path}": value for path, value in tensors(given) if value.is_leaf and value.requires_grad}
    total: Any = sum(value.sum() for value in scalars)
    total.backward()
    # None where nothing comes back in one rank may be something in one process: it counts as zero.
    return {
        f"gradient {name}": torch.zeros_like(value) if value.grad is None else _copied(value.grad)
        for name, value in wanted.items()
    }


def _from_first(value: torch.Tensor) -> None:
    """The value of rank 0, as DistributedDataParallel hands it out when it wraps a module."""
    sent = torch.view_as_real(value) if value.is_complex() else value
    sent = sent.contiguous().clone()
    distributed.broadcast(sent, src=0)
    value.copy_(torch.view_as_complex(sent) if value.is_complex() else sent)


def _added(value: torch.Tensor) -> torch.Tensor:
    sent = (torch.view_as_real(value) if value.is_complex() else value).contiguous().clone()
    distributed.all_reduce(sent)
    return torch.view_as_complex(sent) if value.is_complex() else sent


def _trained(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value) for name, value in module.named_parameters() if value.requires_grad]


def _loose(module: torch.nn.Module) -> dict[str, list[str]]:
    """By name, attributes outside of what is registered: their class, and something that tells other values apart."""
    found: dict[str, list[str]] = {}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if not key.startswith("_") and key != "training" and len(found) < _MOST_ATTRIBUTES:
                held = _held(value)
                if held is not None:
                    found[f"{name}.{key}" if name else key] = [type(part).__name__, held]
    return found


def _held(value: Any) -> str | None:
    if isinstance(value, torch.Tensor):
        return str(value.detach().flatten()[:_MOST_VALUES].tolist())
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return str(value.tolist())[:_MOST_TEXT]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return str([_held(item) for item in value[:_MOST_VALUES]])[:_MOST_TEXT]
    return None
