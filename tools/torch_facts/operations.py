"""Which operations there are, under which Python names, and what each saves for backward.

Three sources, all inside the installed torch: its table of derivatives (`derivatives.yaml`, read by torchgen's
loader), its own sample calls for every operation and module (`torch.testing._internal`), run under observation, and
the operator functions of Python. Where two of them know a call, only what both say is believed.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torchgen
from torch_facts.measurement import RESULT, Observation, observe
from torchgen.api.autograd import match_differentiability_info
from torchgen.api.types import BaseCType, tensorT
from torchgen.gen import parse_native_yaml
from torchgen.model import Argument, BaseTy, BaseType, NativeFunction, SchemaKind, Variant
from torchgen.packaged.autograd.gen_inplace_or_view_type import VIEW_FUNCTIONS
from torchgen.packaged.autograd.gen_python_functions import should_generate_py_binding
from torchgen.packaged.autograd.load_derivatives import load_derivatives

PACKAGED = Path(torchgen.__file__).parent / "packaged"
NATIVE_FUNCTIONS = PACKAGED / "ATen" / "native" / "native_functions.yaml"
TAGS = PACKAGED / "ATen" / "native" / "tags.yaml"
DERIVATIVES = PACKAGED / "autograd" / "derivatives.yaml"

SAMPLES = 6
"""Sample calls taken of each function: torch lists its ordinary ones first, odd shapes and broadcasting later."""

VARIANT_SAMPLES = 2
"""Sample calls taken of each further spelling of it (method, alias, in-place form), which share its kernel."""

MODULE_SAMPLES = 4
"""Ways of building and calling taken for each `torch.nn` module, in training and in evaluation mode."""

Cases = dict[str, dict[str, frozenset[str]]]
"""Kinds of the arguments → argument that requires gradients → what is kept whenever it does."""


class Catalogue:
    """What is known so far, by Python name."""

    def __init__(self) -> None:
        self.cases: dict[str, Cases] = {}
        self.never_differentiable: dict[str, bool] = {}
        self.outputs: dict[str, set[str]] = {}

    def add(self, name: str, seen: Observation) -> None:
        """Keeps of what was known for these kinds only what this call did as well."""
        self.never_differentiable[name] = self.never_differentiable.get(name, True) and not seen.differentiable
        self.outputs.setdefault(name, set()).add(seen.outputs)
        if not seen.differentiable:
            return
        case = self.cases.setdefault(name, {}).setdefault(seen.kinds, {})
        for argument, kept in seen.saved.items():
            case[argument] = case[argument] & kept if argument in case else kept


# --- observed ------------------------------------------------------------------------------------------------------


def observe_everything() -> Catalogue:
    """Runs torch's own samples of its operations and modules, and Python's operators, on float32 CPU tensors."""
    found = Catalogue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _observe_operations(found)
        _observe_operators(found)
    return found


def _observe_operations(found: Catalogue) -> None:
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - 2 s, and changes `torch`

    for info in op_db:
        if torch.float32 not in info.dtypes or info.name.startswith("_"):
            continue
        spellings = list(_spellings(info))
        for position, (arguments, keywords) in enumerate(_samples(info)):
            for name, function, in_place in spellings if position < VARIANT_SAMPLES else spellings[:1]:
                _observe(found, name, function, arguments, keywords, in_place=in_place)
                if position == 0:
                    for call in _with_numbers(arguments):
                        _observe(found, name, function, call, keywords, in_place=in_place)


def _samples(info) -> Iterator[tuple[tuple[object, ...], dict[str, object]]]:
    from torch.testing._internal.common_utils import set_rng_seed  # noqa: PLC0415 - heavy, and it adds names to torch

    # Not `info.sample_inputs`, which walks the whole stack for a running test: 96 of 323 s under a profiler.
    samples = iter(info.sample_inputs_func(info, "cpu", torch.float32, requires_grad=False))
    for _ in range(SAMPLES):
        set_rng_seed()
        try:
            sample = next(samples)
        except Exception:  # noqa: BLE001 - no more, or torch needs a package or a device that is not there
            return
        yield (sample.input, *sample.args), sample.kwargs


def _spellings(info) -> Iterator[tuple[str, Callable[..., object], bool]]:
    """(Python name, callable, whether it writes its first argument) of an operation and its aliases.

    The public function is called, never the wrapper that torch's tests may put around it: a wrapper can take its
    arguments in another order.
    """
    for name in (info.name, *(alias.name for alias in info.aliases)):
        short = name.rpartition(".")[2]
        for suffix, in_place in (("", False), ("_", True)):
            function = _resolve(f"torch.{name}{suffix}")
            if callable(function):
                yield f"torch.{name}{suffix}", function, in_place
            method = getattr(torch.Tensor, short + suffix, None)
            if callable(method) and name == short:
                yield f"torch.Tensor.{short}{suffix}", method, in_place


def _resolve(dotted: str) -> object:
    value: object = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def _with_numbers(arguments: tuple[object, ...]) -> Iterator[tuple[object, ...]]:
    """The same call with a number in place of its second, or its first, tensor."""
    if len(arguments) == 2 and all(isinstance(argument, torch.Tensor) for argument in arguments):
        yield (arguments[0], 2.5)
        yield (2.5, arguments[1])


def _observe(found: Catalogue, name: str, function, arguments, keywords, *, in_place: bool) -> None:
    try:
        seen = observe(function, arguments, keywords, in_place=in_place)
    except Exception:  # noqa: BLE001 - whatever torch raises for a call that this variant does not support
        return
    if seen.saved:
        found.add(name, seen)


def _observe_operators(found: Catalogue) -> None:
    """`x * y` is `operator.mul`, `x *= y` is `operator.imul`: every operator that takes tensors and numbers."""
    for name in sorted(operator.__all__):
        function = getattr(operator, name)
        in_place = name.startswith("i") and hasattr(operator, name[1:])
        square = [torch.rand(3, 3) + 0.5 for _ in range(2)]
        for arguments in ((square[0],), tuple(square), (square[0], 2.5), (square[0], 2), (2.5, square[0])):
            _observe(found, f"operator.{name}", function, arguments, {}, in_place=in_place)


def observe_modules() -> dict[str, Cases]:
    """What each `torch.nn` module keeps of its inputs and of its result, whatever it was built with.

    The one case of each, under the kinds "T", has up to two arguments: `0` for when the first input requires
    gradients, `parameters` for when only the parameters do.
    """
    from torch.testing._internal.common_modules import module_db  # noqa: PLC0415 - as above

    found: dict[str, Cases] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info, training in itertools.product(module_db, (True, False)):
            name = f"torch.nn.{info.module_cls.__name__}"
            if torch.float32 not in info.dtypes or _resolve(name) is not info.module_cls:
                continue
            for sample in _module_samples(info, training=training):
                for source, kept in _observe_module(info.module_cls, sample, training=training):
                    case = found.setdefault(name, {}).setdefault("T", {})
                    case[source] = case[source] & kept if source in case else kept
    return found


def observe_in_place_flags() -> dict[str, Cases]:
    """The same for what of `torch.nn` can be told to write its argument, by names as `torch.nn.ReLU(inplace=True)`."""
    found = Catalogue()
    tensor = torch.rand(2, 3, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in in_place_flags():
            function = _resolve(name)
            if inspect.isclass(function):
                try:
                    module = function(inplace=True)
                except TypeError:
                    continue
                _observe(found, f"{name}(inplace=True)", module, (tensor,), {}, in_place=True)
            else:
                _observe(found, f"{name}(inplace=True)", _with_flag(function), (tensor,), {}, in_place=True)
    return found.cases


def _with_flag(function: Callable[..., object]) -> Callable[..., object]:
    return lambda tensor: function(tensor, inplace=True)


def _module_samples(info, *, training: bool) -> Iterable[object]:
    torch.manual_seed(0)
    try:
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
        return samples[:MODULE_SAMPLES]
    except Exception:  # noqa: BLE001 - as for operations
        return ()


def _observe_module(module_class, sample, *, training: bool) -> Iterator[tuple[str, frozenset[str]]]:
    built, called = sample.constructor_input, sample.forward_input
    if called is None or built.kwargs.get("inplace"):
        return
    # Some samples give the input by its keyword: what is kept is told by position.
    bound = inspect.signature(module_class.forward).bind(None, *called.args, **called.kwargs)
    arguments, keywords = bound.args[1:], bound.kwargs
    for source in ("0", "parameters"):
        try:
            torch.manual_seed(0)
            module = module_class(*built.args, **built.kwargs).train(training)
            if source == "0":
                module.requires_grad_(requires_grad=False)
                kept = observe(module, arguments, keywords).saved.get("0")
            else:
                if not any(True for _ in module.parameters()):
                    continue
                kept = _kept_for_parameters(module, arguments, keywords)
        except Exception:  # noqa: BLE001 - as for operations
            continue
        if kept is not None:
            yield source, kept


def _kept_for_parameters(module: torch.nn.Module, arguments, keywords) -> frozenset[str] | None:
    """What is kept when the parameters alone require gradients."""
    probe = torch.zeros((), requires_grad=True)

    def call(anchor: torch.Tensor, *rest: object) -> object:
        del anchor
        return module(*rest, **keywords)

    seen = observe(call, (probe, *arguments), {}).saved.get("0")
    if seen is None:
        return None
    return frozenset(str(int(name) - 1) if name.isdigit() else name for name in seen)


# --- read from torch's table -----------------------------------------------------------------------------------------


def read_derivatives() -> tuple[dict[str, Cases], list[NativeFunction]]:
    """(what is kept, by Python name; every native function that has a Python binding)."""
    infos, _ = load_derivatives(str(DERIVATIVES), str(NATIVE_FUNCTIONS), str(TAGS))
    functions = parse_native_yaml(str(NATIVE_FUNCTIONS), str(TAGS)).native_functions
    # An entry under another key than "Default" is for nested tensors or one accelerator alone.
    matched = match_differentiability_info(functions, infos)
    by_schema = {
        str(item.func.func.name): item.info["Default"] for item in matched if item.info and "Default" in item.info
    }
    found: dict[str, Cases] = {}
    bound = [function for function in functions if should_generate_py_binding(function)]
    for function in bound:
        info = by_schema.get(str(function.func.name))
        if info is None or not info.derivatives or function.func.is_out_fn():
            continue
        saves = _saves(info, function)
        if function.func.kind() == SchemaKind.inplace:
            # What is written in place is kept as a copy, made before the writing.
            own = function.func.arguments.self_arg.argument.name
            saves = {name: kept - {own} for name, kept in saves.items()}
        for name in _python_names(function):
            if name.rpartition(".")[2].startswith("_"):
                continue
            arguments = _python_order(function, method=name.startswith("torch.Tensor."))
            positions = [argument.name for argument in arguments]
            kinds = "".join(_schema_kind(argument) for argument in arguments[:3]).rstrip("-")
            case = found.setdefault(name, {}).setdefault(kinds, {})
            for argument, kept in saves.items():
                place = _place(argument, positions)
                places = frozenset(_place(item, positions) for item in kept)
                case[place] = case[place] & places if place in case else places
    return found, bound


def _saves(info, function: NativeFunction) -> dict[str, frozenset[str]]:
    """Differentiable argument → the tensors kept whenever it requires gradients, by the names of the schema.

    Results are kept unconditionally. An argument that a single formula uses is kept only when that formula's own
    argument requires gradients; one that several use is always kept (`guard_for` in torchgen's gen_variable_type).
    """
    outputs = {output.name: position for position, output in enumerate(function.func.returns) if output.name}
    always: set[str] = set()
    only: dict[str, set[str]] = {name: set() for derivative in info.derivatives for name in derivative.var_names}
    for attribute in {item.expr: item for item in info.all_saved_outputs}.values():
        if _is_tensor(attribute) and attribute.expr.isidentifier():
            always.add(_result_name(attribute.expr, outputs))
    for attribute in {item.expr: item for item in info.all_saved_inputs}.values():
        if not _is_tensor(attribute) or not attribute.expr.isidentifier():
            continue
        users = [derivative for derivative in info.derivatives if attribute in derivative.saved_inputs]
        if len(users) == 1 and len(users[0].var_names) == 1 and attribute.nctype.type == BaseCType(tensorT):
            only[users[0].var_names[0]].add(attribute.expr)
        else:
            always.add(attribute.expr)
    return {name: frozenset(kept | always) for name, kept in only.items()}


def _is_tensor(attribute) -> bool:
    kind = attribute.nctype.type
    inner = getattr(kind, "elem", kind)
    return isinstance(inner, BaseCType) and inner.type == tensorT


def _result_name(name: str, outputs: dict[str, int]) -> str:
    position = outputs[name] if name in outputs else int(name.removeprefix(RESULT) or 0)
    return f"{RESULT}{position or ''}"


def _python_order(function: NativeFunction, *, method: bool) -> list[Argument]:
    arguments = function.func.arguments
    own = [arguments.self_arg.argument] if arguments.self_arg is not None else []
    if method:
        return [*own, *arguments.pre_self_positional, *arguments.post_self_positional]
    return [*arguments.pre_self_positional, *own, *arguments.post_self_positional]


_NUMBERS = tuple(BaseType(kind) for kind in (BaseTy.Scalar, BaseTy.int, BaseTy.SymInt, BaseTy.float))


def _schema_kind(argument: Argument) -> str:
    kind = argument.type
    if kind.is_tensor_like():
        return "T"
    return "N" if kind in _NUMBERS else "-"


def _place(name: str, positions: list[str]) -> str:
    return str(positions.index(name)) if name in positions else name


def _python_names(function: NativeFunction) -> Iterator[str]:
    name = str(function.func.name.name)
    if function.python_module is None:
        if Variant.function in function.variants:
            yield f"torch.{name}"
        if Variant.method in function.variants:
            yield f"torch.Tensor.{name}"
    else:
        namespace = {"nn": "nn.functional"}.get(function.python_module, function.python_module)
        short = name.removeprefix(f"{function.python_module}_")
        if callable(_resolve(f"torch.{namespace}.{short}")):
            yield f"torch.{namespace}.{short}"


# --- writing and viewing -------------------------------------------------------------------------------------------


def writing_names(bound: list[NativeFunction]) -> list[str]:
    """Functions and methods that change the values of their first argument: by their schemas, and `torch.nn.init`."""
    found = {f"torch.nn.init.{name}" for name in dir(torch.nn.init) if name.endswith("_") and name[0] != "_"}
    for function in bound:
        first = next(iter(_python_order(function, method=False)), None)
        if function.func.kind() != SchemaKind.inplace or "inplace_view" in function.tags:
            continue
        if first is None or not first.is_write or "->" not in str(function.func) or not function.func.returns:
            continue
        found.update(name for name in _python_names(function) if not name.rpartition(".")[2].startswith("_"))
    for module in (torch, torch.nn.functional):
        for name in dir(module):
            if name.endswith("_") and not name.startswith("_") and f"torch.Tensor.{name}" in found:
                found.add(f"{module.__name__}.{name}")
    return sorted(found)


def viewing_names(bound: list[NativeFunction]) -> list[str]:
    """Functions and methods whose result always shares the memory of the first argument."""
    found: set[str] = set()
    for function in bound:
        first = next(iter(_python_order(function, method=True)), None)
        if first is None or first.annotation is None or first.is_write:
            continue
        if function.has_composite_implicit_autograd_kernel or str(function.func.name.name) not in VIEW_FUNCTIONS:
            continue
        found.update(name for name in _python_names(function) if not name.rpartition(".")[2].startswith("_"))
    return sorted(found)


def in_place_flags() -> dict[str, int]:
    """The functions and modules of `torch.nn` that write their first argument when given `inplace=True`.

    With each, the position of that parameter among the arguments of the call.
    """
    found = {}
    for module in (torch.nn, torch.nn.functional):
        for name, value in vars(module).items():
            if name.startswith("_") or not callable(value):
                continue
            try:
                parameters = list(inspect.signature(value).parameters)
            except (TypeError, ValueError):
                continue
            if "inplace" in parameters:
                found[f"{module.__name__}.{name}"] = parameters.index("inplace")
    return found


def single_results(bound: list[NativeFunction]) -> list[str]:
    """Functions and methods that return exactly one tensor, whatever they are given."""
    single: dict[str, bool] = {}
    for function in bound:
        returns = function.func.returns
        alone = len(returns) == 1 and returns[0].type.is_tensor_like() and returns[0].type.is_list_like() is None
        for name in _python_names(function):
            single[name] = single.get(name, True) and (alone or function.func.is_out_fn())
    return sorted(name for name, alone in single.items() if alone and not name.rpartition(".")[2].startswith("_"))
