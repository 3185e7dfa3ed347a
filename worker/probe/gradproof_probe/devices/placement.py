"""Would the target work with module and inputs on another device? Looked at without having one.

On the simulated device, forward and backward; with torch's fake tensors on `cuda:1`, forward only, for what code does
once its inputs are CUDA's. Each in a process of its own: the first changes the process for good, and the second can end
it. Nothing is compared here: what a device computes, only a device can tell.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from gradproof_probe import simulated_device
from gradproof_probe.checks.base import CheckContext
from gradproof_probe.devices.keepers import keeper, kept_tensors, names_a_device, same_function
from gradproof_probe.devices.strays import Meeting, StrayTensors
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import Built, build, make_inputs
from gradproof_probe.importing import describe_error
from gradproof_probe.lines import plain
from gradproof_probe.processes import LineWriter, watch
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors, transform

# Not the first, so that "cuda:0" in the source is seen; it is the current device, which "cuda" alone stands for.
FAKE: Final = "cuda:1"
_CARES_FOR_DEVICES: Final = re.compile(r"\bdevice\b|\bcuda\b|\bis_cuda\b|\.cpu\(")
_TORCH: Final = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class Fault:
    """`cause` is a stable word. `place` is where the tensor comes from, `met` where the device refuses it."""

    cause: str
    text: str
    path: str
    line: int
    met: str
    random: bool = False

    @classmethod
    def at(cls, cause: str, text: str, place: Place, met: Place, *, random: bool = False) -> Fault:
        return cls(cause, text, place.path, place.line, f"{met.path}:{met.line}", random)


@dataclass(slots=True)
class Placement:
    """`noted` are places that a device would refuse, in files that are not written for any. `looked`: how it was run
    to the end. `stopped`: why another way was not."""

    faults: list[Fault] = field(default_factory=list)
    noted: list[Fault] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)


def placement(context: CheckContext) -> Placement:
    """The faults seen on the simulated device; where there are none, those that fake CUDA tensors show."""
    seen = Placement()
    _add(seen, "the simulated device", _in_child(lambda: _simulated(context), context.deadline))
    if not seen.faults and _speaks_of_cuda(context):
        _add(seen, "fake CUDA tensors", _in_child(lambda: _fake(context), context.deadline))
    found, seen.faults = seen.faults, []
    for fault in found:
        (seen.faults if _is_meant_for_devices(fault, context) else seen.noted).append(fault)
    return seen


def _is_meant_for_devices(fault: Fault, context: CheckContext) -> bool:
    """A file that never speaks of devices may be meant for the CPU alone, unless it only forgot its random numbers.

    What we gave a tensor for a number that the code has by default may never be on a device.
    """
    if fault.cause not in ("factory_without_device", "numpy_round_trip"):
        return True
    if _guesses_tensor_for_number(context):
        return False
    if fault.random:
        return True
    try:
        text = (context.source_root / fault.path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return _CARES_FOR_DEVICES.search(text) is not None


def _guesses_tensor_for_number(context: CheckContext) -> bool:
    if context.recipe.source != "synthesised" or context.resolved.target.kind != "function":
        return False
    try:
        parameters = list(inspect.signature(context.resolved.value).parameters.values())
    except (TypeError, ValueError):
        return False
    by_name = {parameter.name: parameter for parameter in parameters}
    for position, expression in enumerate(context.recipe.inputs):
        name, keyword, value = expression.partition("=")
        given = by_name.get(name.strip()) if keyword else None
        if given is None:
            given, value = (parameters[position] if position < len(parameters) else None), expression
        if given is not None and type(given.default) in (int, float) and "torch." in value:
            return True
    return False


def _speaks_of_cuda(context: CheckContext) -> bool:
    """Whether the file of the target does: torch takes more than a second to import what fake tensors need."""
    try:
        return "cuda" in (context.source_root / context.resolved.target.path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def faults_of(meetings: list[Meeting], built: Built, context: CheckContext, device: str) -> list[Fault]:
    """What of the meetings is a fault: not where somebody chose the device, or gave the tensor to the constructor."""
    root = context.source_root
    found: list[Fault] = []
    for meeting in meetings:
        fault = _fault(meeting, built, context, device)
        if fault is not None and not any((one.path, one.line) == (fault.path, fault.line) for one in found):
            found.append(fault)
    return [fault for fault in found if (root / fault.path).is_file()]


def _fault(meeting: Meeting, built: Built, context: CheckContext, device: str) -> Fault | None:
    met = meeting.place
    when = " in backward" if meeting.backward else ""
    if meeting.kind == "numpy":
        text = f"line {met.line} asks NumPy for the values of a tensor that lies on {device}: it raises TypeError there"
        return Fault.at("numpy_round_trip", text, met, met)
    if meeting.kind == "generator":
        text = f"line {met.line} draws on {device} from a generator of the CPU: CUDA raises RuntimeError"
        return Fault.at("generator_on_cpu", text, met, met)
    origin = meeting.origin
    if origin is None:
        return None
    meets = f"meets one on {device} at line {met.line} ({meeting.operation}){when}"
    size = "x".join(map(str, meeting.shape))
    if origin.made == "kept":
        held = None if origin.tensor is None else keeper(origin.tensor, built.instance, context.source_root)
        if held is None or held.given or held.place is None:
            return None  # the caller's own, or put there past the ordinary ways: nobody forgot anything
        text = (
            f"{held.name} is neither a parameter nor a buffer: after .to({device!r}) it is still on the CPU, and "
            f"{meets}"
        )
        return Fault.at("left_behind", text, held.place, met)
    place = origin.place
    if place is None:
        return None
    if origin.names_device:
        if not names_a_device(context.source_root, place):
            return None
        text = f"the device is written into line {place.line}: what {origin.operation} gives ({size}) {meets}"
        return Fault.at("hard_coded_device", text, place, met)
    if origin.made == "numpy":
        text = f"what line {place.line} takes from NumPy ({size}) lies on the CPU, and {meets}"
        return Fault.at("numpy_round_trip", text, place, met)
    made = f"{origin.operation} at line {place.line} is given no device"
    text = f"{made}: what it makes ({size}) lies on the CPU, and {meets}"
    if not same_function(context.source_root, place, met):
        place = met  # a helper need not know where its caller's tensors lie: the caller has to tell it
    return Fault.at("factory_without_device", text, place, met, random=origin.operation.startswith("rand"))


# -- the simulated device


def _simulated(context: CheckContext) -> Placement:
    simulated_device.install()  # before any backward: the autograd engine counts the devices once
    seen = Placement()
    built = build(context.resolved, context.recipe, seed=context.seed)
    found = faults_of(_moved(built, context, seen, backward=True), built, context, simulated_device.DEVICE)
    used = build(context.resolved, context.recipe, seed=context.seed)
    try:
        output = _called(used)
    except Exception as error:
        seen.stopped.append(f"on the CPU it raises {describe_error(error, 200)}")
        return seen
    # What gives no tensors leaves torch on purpose.
    leaves_torch = used.instance is None and not tensors(output)
    seen.faults = [fault for fault in found if fault.cause != "numpy_round_trip" or not leaves_torch]
    if not seen.faults and used.instance is not None:
        meetings = _moved(used, context, Placement(), backward=False)
        cached = [meeting for meeting in meetings if _is_cache(meeting, used, context)]
        seen.faults = faults_of(cached, used, context, simulated_device.DEVICE)
    return seen


def _called(built: Built) -> Any:
    """Without a graph: what a graph holds can't be moved."""
    with torch.no_grad():
        return built.call(*built.args, **built.kwargs)


def _moved(built: Built, context: CheckContext, seen: Placement, *, backward: bool) -> list[Meeting]:
    """The meetings of a call on the simulated device, and of its backward."""
    generators = [value for value in [*built.args, *built.kwargs.values()] if isinstance(value, torch.Generator)]
    strays = StrayTensors(simulated_device.DEVICE, context.source_root, generators)

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.detach().to(simulated_device.DEVICE)
        return moved.requires_grad_() if backward and (moved.is_floating_point() or moved.is_complex()) else moved

    try:
        if built.instance is not None:
            built.instance.to(simulated_device.DEVICE)
        args = [transform(value, leaf) for value in built.args]
        kwargs = {name: transform(value, leaf) for name, value in built.kwargs.items()}
        args = [transform(value, torch.Tensor.clone) for value in args]
        reseed(context.seed)
        with torch.set_grad_enabled(backward):
            with strays:
                output = built.call(*args, **kwargs)
            seen.looked.append("forward")
            if backward:
                _differentiate(output, strays)
                seen.looked[-1] = "forward and backward"
    except Exception as error:
        seen.stopped.append(describe_error(error, 200))
    return strays.meetings


def _differentiate(output: Any, strays: StrayTensors) -> None:
    live = [o for _, o in tensors(output) if o.requires_grad and (o.is_floating_point() or o.is_complex())]
    if not live:
        return
    generator = torch.Generator().manual_seed(11)
    cotangents = [torch.randn(o.shape, generator=generator).to(o.dtype).to(o.device) for o in live]
    with _inside_functions(strays):
        torch.autograd.backward(live, cotangents)


@contextlib.contextmanager
def _inside_functions(strays: StrayTensors) -> Iterator[None]:
    """Open while a custom Function's backward runs: the modes of the thread that called don't reach into it."""
    real = BackwardCFunction.apply

    def apply(function: Any, *gradients: Any) -> Any:
        with strays:
            return real(function, *gradients)

    BackwardCFunction.apply = apply
    try:
        yield
    finally:
        BackwardCFunction.apply = real


def _is_cache(meeting: Meeting, used: Built, context: CheckContext) -> bool:
    """Whether what was kept since a call on the CPU is the same after a call with other values: state is not, and
    whoever moves a module in the middle of a sequence has to reset that."""
    origin = meeting.origin
    if meeting.kind != "devices" or origin is None or origin.tensor is None or used.instance is None:
        return False
    other = build(context.resolved, context.recipe, seed=context.seed)
    other.args, other.kwargs = make_inputs(context.resolved, context.recipe.inputs, seed=context.seed + 1000)
    assert other.instance is not None
    with contextlib.suppress(Exception):
        _called(other)
    memory = origin.tensor.untyped_storage().data_ptr()
    again = kept_tensors(other.instance)
    return any(
        key in again and again[key].shape == value.shape and torch.equal(again[key], value)
        for key, value in kept_tensors(used.instance).items()
        if value.untyped_storage().data_ptr() == memory
    )


# -- fake tensors


def _fake(context: CheckContext) -> Placement:
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = Placement()
    built = build(context.resolved, context.recipe, seed=context.seed)
    generators = [value for value in [*built.args, *built.kwargs.values()] if isinstance(value, torch.Generator)]
    strays = StrayTensors(FAKE, context.source_root, generators)
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=FAKE)

    for module in built.instance.modules() if built.instance is not None else ():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = torch.nn.Parameter(moved(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else moved(buffer)
    args = [transform(value, moved) for value in built.args]
    kwargs = {name: transform(value, moved) for name, value in built.kwargs.items()}
    try:
        with _a_visible_device(), torch.no_grad(), mode, strays:
            built.call(*args, **kwargs)
        seen.looked.append("forward")
    except Exception as error:
        seen.stopped.append(describe_error(error, 200))
    # A module may move what it keeps by hand in `_apply`, which was not called: of kept tensors nothing is said.
    meetings = [m for m in strays.meetings if m.kind != "numpy" and (m.origin is None or m.origin.made != "kept")]
    seen.faults = faults_of(meetings, built, context, FAKE)
    return seen


@contextlib.contextmanager
def _a_visible_device() -> Iterator[None]:
    """Code that asks whether there is a CUDA device hears that there is one: that of its inputs. torch itself, which
    would use it, hears the truth."""
    available = torch.cuda.is_available()

    def is_available() -> bool:
        return available if sys._getframe(1).f_code.co_filename.startswith(_TORCH) else True

    answers: Mapping[str, Callable[[], Any]] = {
        "is_available": is_available,
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: torch.device(FAKE).index,
    }
    before = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    try:
        yield
    finally:
        for name, real in before.items():
            setattr(torch.cuda, name, real)


# -- children


def _in_child(work: Callable[[], Placement], deadline: float) -> Placement | str:
    """What a forked child says, or how it ended without saying anything."""
    said: list[Placement] = []

    def speak(writer: LineWriter) -> None:
        writer.write(plain(asdict(work())))

    def hear(line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # submitted code ran in there
            value = json.loads(line)
            faults = [Fault(**item) for item in value["faults"]]
            if all(isinstance(item.line, int) and isinstance(item.path, str) for item in faults):
                looked, stopped = ([str(item) for item in value[name]] for name in ("looked", "stopped"))
                said[:] = [Placement(faults, looked=looked, stopped=stopped)]

    end = watch(speak, deadline=lambda: deadline, on_line=hear)
    return said[0] if said else f"its process {end.describe()}"


def _add(seen: Placement, way: str, found: Placement | str) -> None:
    if isinstance(found, str):
        seen.stopped.append(f"{way}: {found}")
        return
    seen.faults += found.faults
    seen.looked += [f"{way} ({what})" for what in found.looked]
    seen.stopped += [f"{way}: {why}" for why in found.stopped]
