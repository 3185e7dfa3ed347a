"""What a training step does, in its order, each act with its line and with what it did to the gradients.

Torch is patched for the time of the calls: optimizers, backward, clipping, GradScaler, schedulers. Beside the acts it
keeps, parameter by parameter, which backward passes a gradient is the sum of, and what became of each: used by a step,
dropped before any, or still there when the next one came. This module must not judge.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler

from gradproof_probe.gradients.attribution import Place, calling_line, relative
from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.gradients.replacing import replaced
from gradproof_probe.training.plain_optimizers import below, plain_methods, plain_step

Act = Literal[
    "forward",
    "backward",
    "scale",
    "unscale_",
    "clip",
    "step",
    "scaler.step",
    "scaler.update",
    "zero_grad",
    "scheduler.step",
]
_MOST_NODES: Final = 5000
_NEAR: Final = 100  # nodes from a loss back to the product with the scale: divisions, sums of a few terms
# Losses of torch that broadcast a target of another shape, with a warning.
_LOSSES: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")

Gradients = dict[int, torch.Tensor]


@dataclass(slots=True)
class Event:
    """`parameters`: ids of those it is about. `gradients`: theirs before it; what clears or clips has them from then.

    `scale` is that of the loss that a backward is for; `limit` and `measure` are of clipping (the measure gives the
    size that the limit is for); `inside`: done by `GradScaler.step`.
    """

    act: Act
    place: Place | None
    call: int
    number: int
    parameters: frozenset[int] = frozenset()
    gradients: Gradients = field(default_factory=dict)
    scale: float = 1.0
    limit: float = 0.0
    measure: Callable[[Iterable[torch.Tensor]], float] | None = None
    inside: bool = False
    nodes: int = 0
    rate: float = 0.0
    subject: int = 0
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """At a step, a gradient still held what an earlier step had used; `share` is the size of that part of it."""

    step: int
    earlier: int
    later: int
    share: float


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A loss of two shapes: its value, and the value that it has for equal shapes."""

    place: Place | None
    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    value: float
    of_equal_shapes: float


class StepRecorder:
    """`enlarge`: every backward pass starts with a gradient so many times as large."""

    def __init__(self, source_root: Path, *, enlarge: float = 1.0) -> None:
        self._root = source_root
        self._enlarge = enlarge
        self._call = -1
        self._parameters: dict[int, torch.nn.Parameter | torch.Tensor] = {}
        self._gradients: dict[int, torch.Tensor | None] = {}
        self._at_step: Gradients = {}
        self._inside: dict[int, dict[int, bool]] = {}  # parameter -> backward -> whether a step has used it
        self._changed: set[int] = set()  # parameters whose gradient submitted code has written to
        self._scaled: list[tuple[torch.Tensor, float]] = []
        self._in_step = self._in_scaler = self._depth = 0
        self.events: list[Event] = []
        self.dropped: dict[int, dict[int, int]] = {}  # backward -> parameter -> the event that cleared it, or -1
        self.used: dict[int, set[int]] = {}  # backward -> steps
        self.kept: list[Kept] = []
        self.reads: set[int] = set()  # numbers of the events after which submitted code looked at a gradient
        self.outputs: list[torch.Tensor] = []
        self.broadcasts: list[Broadcast] = []

    # --- running -----------------------------------------------------------------------------------------------

    def know(self, holder: Any) -> None:
        """Follow the gradients of a module's, an optimizer's or a single parameter."""
        if isinstance(holder, torch.nn.Module):
            found: list[Any] = list(holder.parameters())
        elif isinstance(holder, torch.optim.Optimizer):
            found = _parameters_of(holder)
        else:
            found = [holder]
        for parameter in found:
            if isinstance(parameter, torch.Tensor) and id(parameter) not in self._parameters:
                self._parameters[id(parameter)] = parameter
                self._gradients[id(parameter)] = _copy(parameter.grad)

    def run(self, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> BaseException | None:
        """One call; what it raised. To be used inside `watching()`."""
        self._call += 1
        self._depth = self._in_step = self._in_scaler = 0
        self._scaled.clear()
        self.outputs.clear()
        try:
            with _Looks(self):
                function(*args, **kwargs)
        except Exception as error:
            return error
        self._sync()
        return None

    @contextmanager
    def watching(self) -> Iterator[StepRecorder]:
        with ExitStack() as stack:
            for kind in below(torch.optim.Optimizer):
                if "step" in vars(kind):
                    stack.enter_context(replaced(kind, "step", self._step(plain_step(kind))))
            plain_methods(stack)
            for owner in (torch.optim.Optimizer, torch.nn.Module):
                clear = self._clear(inspect.unwrap(vars(owner)["zero_grad"]))
                stack.enter_context(replaced(owner, "zero_grad", clear))
            for kind in [LRScheduler, *below(LRScheduler)]:
                if "step" in vars(kind):
                    stack.enter_context(replaced(kind, "step", self._schedule(vars(kind)["step"])))
            self._patch_scaler(stack)
            self._patch_functions(stack)
            before = torch.nn.modules.module.register_module_forward_pre_hook(self._entered)
            stack.callback(before.remove)
            after = torch.nn.modules.module.register_module_forward_hook(self._left, always_call=True)
            stack.callback(after.remove)
            yield self

    def _patch_scaler(self, stack: ExitStack) -> None:
        scaler = torch.amp.GradScaler
        wrappers = {
            "__init__": _on_this_machine,
            "scale": self._scale,
            "unscale_": self._unscale,
            "step": self._scaler_step,
            "update": self._update,
        }
        for name, wrap in wrappers.items():
            stack.enter_context(replaced(scaler, name, wrap(vars(scaler)[name])))

    def _patch_functions(self, stack: ExitStack) -> None:
        utilities = torch.nn.utils
        wrapped = {
            id(utilities.clip_grad_norm_): (utilities.clip_grad_norm_, self._clip(utilities.clip_grad_norm_, _norm)),
            id(utilities.clip_grad_value_): (
                utilities.clip_grad_value_,
                self._clip(utilities.clip_grad_value_, _value),
            ),
            id(torch.autograd.backward): (torch.autograd.backward, self._backward(torch.autograd.backward)),
        }
        homes = [utilities, utilities.clip_grad, torch.autograd]
        # `from torch.nn.utils import clip_grad_norm_` gives the submitted module a name of its own.
        places = (f"{self._root}/", f"{self._root.resolve()}/")
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(places):
                homes.append(module)
        for module in homes:
            for name, value in list(vars(module).items()):
                if id(value) in wrapped and value is wrapped[id(value)][0]:
                    setattr(module, name, wrapped[id(value)][1])
                    stack.callback(setattr, module, name, value)

    # --- gradients ---------------------------------------------------------------------------------------------

    def _sync(self, clearing: int = -1) -> None:
        """Notes what was done to gradients since the last act, by nobody who is patched unless `clearing` says who."""
        for key, parameter in self._parameters.items():
            now, before = parameter.grad, self._gradients[key]
            if now is None or not bool(_dense(now).any()):
                if before is not None:
                    for backward, was_used in self._inside.pop(key, {}).items():
                        if not was_used:
                            self.dropped.setdefault(backward, {})[key] = clearing
                    self._changed.discard(key)
                self._gradients[key] = None
            elif before is None or not torch.equal(_dense(now), before):
                self._gradients[key] = _copy(now)
                self._changed.add(key)

    def _refresh(self) -> list[int]:
        """Takes the gradients as they are now, and gives the parameters that have other ones than before."""
        changed = []
        for key, parameter in self._parameters.items():
            now, before = _copy(parameter.grad), self._gradients[key]
            if now is not None and (before is None or not torch.equal(now, before)):
                changed.append(key)
            self._gradients[key] = now if now is not None and bool(now.any()) else None
        return changed

    def gradients_of(self, keys: Iterable[int]) -> Gradients:
        return {key: value for key in keys if (value := self._gradients.get(key)) is not None}

    def _event(self, act: Act, **more: Any) -> Event:
        event = Event(act, calling_line(self._root), self._call, len(self.events), **more)
        self.events.append(event)
        return event

    # --- what is patched ---------------------------------------------------------------------------------------

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            self._sync()
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            event = self._event("backward", nodes=_nodes(roots), scale=self._scale_of(roots))
            if self._enlarge != 1:
                grad_tensors = _enlarged(roots, grad_tensors, self._enlarge)
            try:
                result = original(tensors, grad_tensors, *args, **kwargs)
            except Exception as error:
                event.error = error
                raise
            received = self._refresh()
            event.parameters = frozenset(received)
            for key in received:
                self._inside.setdefault(key, {})[event.number] = False
            return result

        return backward

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._in_step:
                return original(optimizer, *args, **kwargs)
            self.know(optimizer)
            self._sync()
            keys = [id(parameter) for parameter in _parameters_of(optimizer)]
            rate = float(optimizer.param_groups[0].get("lr", 0.0)) if optimizer.param_groups else 0.0
            event = self._event("step", inside=bool(self._in_scaler), rate=rate, subject=id(optimizer))
            event.gradients = self.gradients_of(keys)
            event.parameters = frozenset(event.gradients)
            by_closure = any(callable(value) for value in [*args, *kwargs.values()])
            if not by_closure:
                self._uses(event)
            self._in_step += 1
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                self._in_step -= 1
                self._refresh()
                if by_closure:
                    event.parameters = frozenset()
                    for key in keys:
                        for backward in self._inside.pop(key, {}):
                            self.used.setdefault(backward, set()).add(event.number)
                left = self.gradients_of(keys)
                self._at_step |= left
                for key in set(keys) - set(left):
                    self._inside.pop(key, None)  # it clears them itself

        return step

    def _uses(self, event: Event) -> None:
        for key, gradient in event.gradients.items():
            inside = self._inside.get(key, {})
            old = [backward for backward, was_used in inside.items() if was_used]
            new = [backward for backward, was_used in inside.items() if not was_used]
            if old and new and key not in self._changed and key in self._at_step:
                share = float(self._at_step[key].norm() / gradient.norm().clamp_min(1e-30))
                self.kept.append(Kept(event.number, old[-1], new[-1], share))
            for backward in new:
                inside[backward] = True
                self.used.setdefault(backward, set()).add(event.number)

    def _clear(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.know(owner)
            self._sync()
            of = _parameters_of(owner) if isinstance(owner, torch.optim.Optimizer) else owner.parameters()
            event = self._event("zero_grad", parameters=frozenset(map(id, of)))
            result = original(owner, *args, **kwargs)
            self._sync(clearing=event.number)
            return result

        return zero_grad

    def _clip(
        self, original: Callable[..., Any], measured: Callable[[float], Callable[[Iterable[torch.Tensor]], float]]
    ) -> Callable[..., Any]:
        def clip(parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
            given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            for parameter in given:
                self.know(parameter)
            self._sync()
            order = kwargs.get("norm_type", args[0] if args else 2.0)
            event = self._event("clip", parameters=frozenset(map(id, given)), limit=float(limit))
            event.measure = measured(float(order) if isinstance(order, int | float) else 2.0)
            event.gradients = self.gradients_of(event.parameters)
            try:
                result = original(given, limit, *args, **kwargs)
            except Exception as error:
                event.error = error
                raise
            self._refresh()
            return result

        def clip_by_name(*args: Any, **kwargs: Any) -> Any:
            names = ("parameters", "max_norm", "clip_value")
            found = [kwargs.pop(name) for name in names if name in kwargs]
            return clip(*args, *found, **kwargs)

        return clip_by_name

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if scaler.is_enabled():
                factor = float(scaler.get_scale())
                self._event("scale", scale=factor, subject=id(scaler))
                results = [result] if isinstance(result, torch.Tensor) else result
                if isinstance(results, list | tuple):
                    self._scaled += [(value, factor) for value in results if isinstance(value, torch.Tensor)]
            return result

        return scale

    def _scale_of(self, roots: list[torch.Tensor]) -> float:
        """The scale in a loss: it is what `scale` gave, or was made of it by a few operations."""
        products = [(value.grad_fn, factor) for value, factor in self._scaled if value.grad_fn is not None]
        for node in nodes_behind(_tensors_of(roots), _NEAR) if products else ():
            for product, factor in products:
                if node is product:
                    return factor
        return 1.0

    def _unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale_(scaler: Any, optimizer: torch.optim.Optimizer) -> Any:
            if self._in_scaler or not scaler.is_enabled():
                return original(scaler, optimizer)
            self.know(optimizer)
            self._sync()
            event = self._event("unscale_", parameters=frozenset(map(id, _parameters_of(optimizer))))
            try:
                result = original(scaler, optimizer)
            except Exception as error:
                event.error = error
                raise
            self._refresh()
            return result

        return unscale_

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            self.know(optimizer)
            self._sync()
            event = self._event("scaler.step", parameters=frozenset(map(id, _parameters_of(optimizer))))
            self._in_scaler += 1
            state = scaler._per_optimizer_states.get(id(optimizer), {})
            try:
                if getattr(state.get("stage"), "name", "READY") == "READY":
                    scaler.unscale_(optimizer)  # as it is about to do: what it changes is no change by the source
                    self._refresh()
                return original(scaler, optimizer, *args, **kwargs)
            except Exception as error:
                event.error = error
                raise
            finally:
                self._in_scaler -= 1

        return step

    def _update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                self._event("scaler.update", subject=id(scaler))
            return original(scaler, *args, **kwargs)

        return update

    def _schedule(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_code.co_filename
            # Not the step of a scheduler's constructor, nor one that is told the epoch.
            if relative(caller, self._root) is not None and not args and not kwargs:
                optimizer = scheduler.optimizer
                groups = optimizer.param_groups
                rate = float(groups[0].get("lr", 0.0)) if groups else 0.0
                self._event("scheduler.step", subject=id(optimizer), rate=rate)
            return original(scheduler, *args, **kwargs)

        return step

    def _entered(self, module: torch.nn.Module, _args: Any) -> None:
        self._depth += 1
        if self._depth == 1 and any(parameter.requires_grad for parameter in module.parameters()):
            self.know(module)

    def _left(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth == 0 and self._call >= 0 and any(p.requires_grad for p in module.parameters()):
            self._event("forward")
            if isinstance(output, torch.Tensor):
                self.outputs.append(output)

    # --- what submitted code looks at --------------------------------------------------------------------------

    def looked(self) -> None:
        self.reads.add(len(self.events) - 1)

    def broadcast(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """A loss that was given two shapes of which neither is the other."""
        if len(args) < 2 or not all(isinstance(item, torch.Tensor) for item in args[:2]):
            return
        first, second = args[0].detach(), args[1].detach()
        if first.shape == second.shape or first.numel() != second.numel() or first.numel() < 2:
            return
        if not isinstance(value, torch.Tensor):
            return
        with torch.no_grad():
            alike = getattr(torch.nn.functional, name)(first, second.reshape(first.shape), *args[2:], **kwargs)
        shapes = (tuple(first.shape), tuple(second.shape))
        self.broadcasts.append(
            Broadcast(calling_line(self._root), name, shapes, float(value.detach().mean()), float(alike.mean()))
        )


class _Looks(torch.overrides.TorchFunctionMode):
    """Sees when submitted code reads `.grad`, and losses of two shapes."""

    def __init__(self, recorder: StepRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.grad:
            if relative(sys._getframe(1).f_code.co_filename, self._recorder._root) is not None:
                self._recorder.looked()
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if name in _LOSSES and func is getattr(torch.nn.functional, name, None):
            self._recorder.broadcast(name, args, kwargs or {}, result)
        return result


def _on_this_machine(original: Callable[..., Any]) -> Callable[..., Any]:
    """A GradScaler for a device that is not here would be switched off, and nothing of it be seen: the CPU's is not."""

    def initialise(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        usable = device != "cuda" or torch.cuda.is_available()
        original(scaler, device if usable else "cpu", *args, **kwargs)

    return initialise


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    value = gradient.detach()
    return value if value.layout == torch.strided else value.to_dense()


def _copy(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    value = _dense(gradient)
    return value.clone() if bool(value.any()) else None


def _nodes(roots: list[torch.Tensor]) -> int:
    return sum(1 for _ in nodes_behind(_tensors_of(roots), _MOST_NODES))


def _tensors_of(roots: list[Any]) -> list[torch.Tensor]:
    """Those of the arguments of a backward that are tensors: GraphEdges can be given as well."""
    return [root for root in roots if isinstance(root, torch.Tensor)]


def _enlarged(roots: list[torch.Tensor], given: Any, factor: float) -> Any:
    if given is None:
        return [torch.full_like(root, factor) for root in roots]
    if isinstance(given, torch.Tensor):
        return given * factor
    return [
        torch.full_like(root, factor) if value is None else value * factor
        for root, value in zip(roots, given, strict=False)
    ]


def _norm(order: float) -> Callable[[Iterable[torch.Tensor]], float]:
    def measure(gradients: Iterable[torch.Tensor]) -> float:
        norms = [torch.linalg.vector_norm(gradient.to(torch.float64), order) for gradient in gradients]
        return float(torch.linalg.vector_norm(torch.stack(norms), order)) if norms else 0.0

    return measure


def _value(_order: float) -> Callable[[Iterable[torch.Tensor]], float]:
    return lambda gradients: max(
        (float(gradient.abs().max()) for gradient in gradients if gradient.numel()), default=0.0
    )
