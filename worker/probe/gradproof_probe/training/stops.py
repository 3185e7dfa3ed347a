"""Where the graph between a parameter and the output stops: the operation, its line, and whether that is the cause.

Three runs with one parameter alone requiring grad: at its value, moved, and moved with what the operation gave before.
An operation into which a connected value goes and out of which an unconnected one comes is a candidate if its result
differs between the first two runs, and the cause if the third gives the output of the first. Nothing here judges
whether the stop is meant.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.gradients.attribution import Place, backward_return, calling_line, relative
from gradproof_probe.gradients.experiment import Experiment, ForwardError, Variable
from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.gradients.probing import random_like
from gradproof_probe.gradients.replacing import replaced
from gradproof_probe.training.flow import displace, live_outputs

MOST_CANDIDATES: Final = 6
_LARGEST: Final = 1_000_000  # elements of a result that is kept for comparing
_EXPLICIT: Final = frozenset({"detach", "detach_", "data"})
# They ask what a tensor is, not what it holds.
_ASKING: Final = frozenset(
    {
        *("requires_grad", "is_leaf", "grad_fn", "is_floating_point", "is_complex", "is_contiguous", "dim", "ndim"),
        *("numel", "size", "stride", "is_sparse", "is_cuda", "is_meta", "is_nested", "is_quantized", "_version"),
        *("data_ptr", "nelement", "element_size", "storage_offset", "is_inference", "retains_grad", "output_nr"),
    }
)
_SAMPLING: Final = frozenset({"multinomial", "bernoulli", "bernoulli_", "normal", "poisson", "sample"})
# Their derivative is zero wherever it exists: what goes in never learns.
STEPS: Final = re.compile(
    r"^(Round|Floor|Ceil|Trunc|Sign|Sgn|Heaviside|FloorDivide|Bernoulli)\w*Backward", re.IGNORECASE
)
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_WORDS: Final = {
    "data": ".data",
    "item": "item()",
    "tolist": "tolist()",
    "numpy": "numpy()",
    "__array__": "a conversion to NumPy",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "a use as an index",
    "__bool__": "a Python condition",
    "tensor": "torch.tensor()",
    "grad": "torch.autograd.grad() without create_graph",
    "no_grad": "a block without gradient",
}


@dataclass(frozen=True, slots=True)
class Stop:
    """`inside`: code of the module that owns the parameter was running. `explicit`: the code says that it cuts."""

    what: str
    place: Place | None
    explicit: bool = False
    inside: bool = True
    sampled: bool = False
    confirmed: bool = False

    @property
    def words(self) -> str:
        return _WORDS.get(self.what, f"{self.what}()")


@dataclass(slots=True)
class _Passed:
    """One operation that a connected value went into, and that gave an unconnected one."""

    operation: str
    stop: Stop
    value: Any
    differs: bool = False


class _LostWayError(RuntimeError):
    """A run takes another way than the one that was recorded."""


@dataclass(slots=True)
class _Script:
    """What the passages of a run are compared with, or answered by."""

    recorded: list[_Passed] = field(default_factory=list)
    frozen: frozenset[Place | None] = frozenset()
    position: int = 0
    recording: bool = True

    def pass_by(self, describe: Callable[[], Stop], value: Any, what: str) -> Any:
        if self.recording:
            self.recorded.append(_Passed(what, describe(), _copy(value)))
            return value
        if self.position >= len(self.recorded) or self.recorded[self.position].operation != what:
            raise _LostWayError(what)
        passed = self.recorded[self.position]
        self.position += 1
        if passed.stop.place in self.frozen:
            return _copy(passed.value)
        passed.differs = passed.differs or not _same(passed.value, value)
        return value


class _Passages(torch.overrides.TorchFunctionMode):
    def __init__(self, script: _Script, source_root: Path, owner: torch.nn.Module | None) -> None:
        super().__init__()
        self._script = script
        self._root = source_root
        self._owner = owner
        self._within = 0  # custom Functions whose forward is running
        self._block: Place | None = None  # where gradients were last switched off, and
        self._block_inside = False  # whether code of the owner did so

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _name(func) == "_set_grad_enabled" and torch.is_grad_enabled():
            self._block, self._block_inside = calling_line(self._root), self._is_inside(_frames())
        if self._within or not _connected([args, kwargs]):
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        what = _name(func)
        if what in _ASKING or not _holds_values(result) or _connected(result):
            return result
        return self._script.pass_by(lambda: self._describe(what), result, what)

    @contextmanager
    def functions(self) -> Iterator[None]:
        """A custom Function is one operation: what its forward does inside is none of autograd's business."""
        with ExitStack() as stack:
            waiting: list[Any] = [torch.autograd.Function]
            while waiting:
                function = waiting.pop()
                waiting += function.__subclasses__()
                if isinstance(vars(function).get("forward"), staticmethod):
                    stack.enter_context(replaced(function, "forward", staticmethod(self._hidden(function))))
            yield

    def _hidden(self, function: Any) -> Callable[..., Any]:
        original = vars(function)["forward"].__func__

        def forward(*args: Any, **kwargs: Any) -> Any:
            going_in = not self._within and _connected([args[1:], kwargs])
            self._within += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._within -= 1
            # Autograd looks at tensors that are returned alone or in a tuple, nowhere else.
            if going_in and isinstance(result, list | dict):
                place = _last_return(original, self._root)
                return self._script.pass_by(
                    lambda: Stop(f"{function.__qualname__}.forward", place), result, function.__qualname__
                )
            return result

        return forward

    def _describe(self, what: str) -> Stop:
        frames = list(_frames())
        sampled = what in _SAMPLING or any(
            "/torch/distributions/" in frame.f_code.co_filename and frame.f_code.co_name == "sample" for frame in frames
        )
        if not torch.is_grad_enabled():
            place = self._block or calling_line(self._root)
            return Stop("no_grad", place, explicit=True, inside=self._block_inside, sampled=sampled)
        inside = self._is_inside(frames)
        return Stop(what, calling_line(self._root), explicit=what in _EXPLICIT, inside=inside, sampled=sampled)

    def _is_inside(self, frames: Iterable[Any]) -> bool:
        return any(frame.f_locals.get("self") is self._owner for frame in frames)


def connected(experiment: Experiment) -> bool:
    """Whether the graph of an output leads to what requires grad. Raises `ForwardError`."""
    return bool(live_outputs(experiment))


def find_stop(experiment: Experiment, variable: Variable, step: float, source_root: Path) -> Stop | None:
    """The stop between this parameter, which alone requires grad, and the output, that `step` moves."""
    script = _Script()
    owner = _owner(experiment, variable)

    def run() -> list[torch.Tensor] | None:
        script.position = 0
        mode = _Passages(script, source_root, owner)
        try:
            with mode.functions(), mode:
                outputs = experiment.run()
        except (ForwardError, _LostWayError):
            return None
        return [item.value.detach().clone() for item in outputs]

    base = run()
    script.recording = False
    try:
        displace(experiment, variable, step)
        moved = run()
        if moved is None and script.position > 0:
            # Another way was taken right after a passage: what it gave decided which.
            script.recorded[script.position - 1].differs = True
        different = [passed.stop for passed in script.recorded if passed.differs]
        places = list(dict.fromkeys(stop.place for stop in different))[:MOST_CANDIDATES]
        groups = [frozenset({place}) for place in places] + ([frozenset(places)] if len(places) > 1 else [])
        for frozen in groups:
            script.frozen = frozen
            again = run()
            if base is not None and again is not None and _all_same(base, again):
                first = next(stop for stop in different if stop.place in frozen)
                return replace(first, confirmed=True)
        return different[0] if different else None
    finally:
        experiment.put_back()


@dataclass(frozen=True, slots=True)
class Death:
    """A node of the graph into which a gradient goes and out of which none comes."""

    node: str
    place: Place | None
    function: type | None = None

    @property
    def is_step(self) -> bool:
        return STEPS.match(self.node) is not None


def deaths(experiment: Experiment, source_root: Path) -> list[Death]:
    """Where the gradient on its way to what requires grad becomes nothing or exactly zero. Raises `ForwardError`."""
    with torch.autograd.detect_anomaly(check_nan=False):
        live = live_outputs(experiment)
    nodes = list(nodes_behind(item.value for item in live))
    found: list[Death] = []

    def watch(node: Any) -> Callable[[Any, Any], None]:
        def look(going_out: Any, coming_in: Any) -> None:
            wanted = [item for item, (to, _) in zip(going_out, node.next_functions, strict=False) if to is not None]
            if _alive(coming_in) and not _alive(wanted):
                function = getattr(type(node), "_forward_cls", None)
                place = backward_return(function, source_root) if function is not None else None
                name = node.name() if hasattr(node, "name") else type(node).__name__
                found.append(Death(str(name), place or _made_at(node, source_root), function))

        return look

    handles = [node.register_hook(watch(node)) for node in nodes if not _accumulates(node)]
    generator = torch.Generator().manual_seed(experiment.seed + 17)
    wanted = [item.leaf for item in experiment.variables if item.leaf.requires_grad]
    try:
        torch.autograd.grad(
            [item.value for item in live],
            wanted,
            [random_like(item.value, generator) for item in live],
            allow_unused=True,
        )
    except RuntimeError:
        return []
    finally:
        for handle in handles:
            handle.remove()
    return found


def _accumulates(node: Any) -> bool:
    return type(node).__name__ == "AccumulateGrad"


def _alive(gradients: Any) -> bool:
    return any(isinstance(item, torch.Tensor) and bool((item != 0).any()) for item in gradients)


def _made_at(node: Any, source_root: Path) -> Place | None:
    """The submitted line of the forward that made the node, which anomaly mode keeps."""
    for text in reversed(node.metadata.get("traceback_", [])):
        for filename, line in reversed(_FRAME.findall(text)):
            path = relative(filename, source_root)
            if path is not None:
                return Place(path, int(line))
    return None


def _owner(experiment: Experiment, variable: Variable) -> torch.nn.Module | None:
    module = experiment.instance
    if module is None:
        return None
    return module.get_submodule(variable.name.rpartition(".")[0])


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name


def _connected(value: Any, depth: int = 0) -> bool:
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    if depth > 3:
        return False
    if isinstance(value, list | tuple):
        return any(_connected(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return any(_connected(item, depth + 1) for item in value.values())
    return False


def _holds_values(value: Any) -> bool:
    """Tensors and numbers, alone or listed; not names, shapes, types."""
    if isinstance(value, torch.Tensor):
        return value.numel() <= _LARGEST
    if isinstance(value, torch.Size | str) or value is None:
        return False
    if isinstance(value, bool | int | float | complex) or type(value).__module__ == "numpy":
        return True
    return isinstance(value, list | tuple | dict) and bool(value)


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return type(value)._make([_copy(item) for item in value])
    if type(value) in (list, tuple):
        return type(value)(_copy(item) for item in value)
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, tuple):  # the named results of torch, which are made of a tuple
        return type(value)([_copy(item) for item in value])
    return value.copy() if hasattr(value, "copy") else value


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and _equal(first, second)
    if isinstance(first, list | tuple):
        return (
            isinstance(second, list | tuple)
            and len(first) == len(second)
            and all(_same(a, b) for a, b in zip(first, second, strict=True))
        )
    if isinstance(first, dict):
        return isinstance(second, dict) and _same(list(first.values()), list(second.values()))
    equal = first == second
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.is_floating_point() or first.is_complex():
        return bool(((first == second) | (first.isnan() & second.isnan())).all())
    return bool(torch.equal(first, second))


def _all_same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(_equal(a, b) for a, b in zip(first, second, strict=True))


def _last_return(method: Any, source_root: Path) -> Place | None:
    """The last `return` of a method, by its code: no source needs to be parsed for it."""
    path = relative(inspect.unwrap(method).__code__.co_filename, source_root)
    lines = [line for _, _, line in inspect.unwrap(method).__code__.co_lines() if line is not None]
    return None if path is None or not lines else Place(path, max(lines))
