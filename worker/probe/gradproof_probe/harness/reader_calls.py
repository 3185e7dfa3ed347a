"""How the reader of submitted source takes calls: layers, torch's operations, helpers of the repository, einops."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from typing import Any, Final

import torch

from gradproof_probe.harness import operations
from gradproof_probe.harness.axes import Form
from gradproof_probe.harness.layers import attention, through_layer
from gradproof_probe.harness.patterns import pack, read_pattern, rearrange
from gradproof_probe.harness.reader_base import (
    DEPTH,
    Inner,
    ReturnedError,
    plain_function,
)
from gradproof_probe.harness.reader_builtins import BUILTINS, is_builtin
from gradproof_probe.harness.reader_expressions import Expressions
from gradproof_probe.harness.values import (
    UNKNOWN,
    Bound,
    Constant,
    Items,
    Parameter,
    Size,
    form_of,
    only_of_tensors,
    side_of,
)

_NOT_OURS: Final = frozenset(
    {"torch", "einops", "builtins", "numpy", "math", "typing", "functools", "collections"}
) | set(sys.stdlib_module_names)
_PATTERNS: Final = ("rearrange", "reduce", "repeat")


class Calls(Expressions):
    """What a call gives, after noting what it demands."""

    def of_call(self, node: ast.Call, env: dict[str, Any]) -> Any:
        function = self.value(node.func, env)
        args: list[Any] = []
        for item in node.args:
            value = self.value(item, env)
            if isinstance(item, ast.Starred) and isinstance(value, Items):
                args += value.values
            else:
                args.append(value)
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, env)
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif isinstance(value, Constant) and isinstance(value.value, dict):
                named |= {str(key): Constant(item) for key, item in value.value.items()}
        if isinstance(function, Bound):
            return self.call_method(function, args, named)
        if isinstance(function, Parameter):
            function.called += 1
            function.arity = max(function.arity, len(args))
            return next((item for item in args if isinstance(item, Form | Parameter)), UNKNOWN)
        if isinstance(function, Constant):
            return self.call(function.value, args, named)
        return UNKNOWN

    def call_method(self, method: Bound, args: list[Any], named: dict[str, Any]) -> Any:
        owner, name = method.owner, method.name
        if isinstance(owner, Parameter) and not owner.tensor and name in ("keys", "values", "items", "get", "pop"):
            if args and isinstance(args[0], Constant) and isinstance(args[0].value, str):
                return owner.key(args[0].value)
            return UNKNOWN
        plain = operations.plain(name)
        if isinstance(owner, Parameter) and not only_of_tensors(name) and name not in operations.OPERATIONS:
            return UNKNOWN
        if isinstance(owner, Parameter):
            owner.as_form()
        if plain in ("masked_fill", "masked_fill_", "masked_select") and args:
            self.mask(args[0], owner)
        return operations.apply(plain, [owner, *args], named)

    def mask(self, mask: Any, owner: Any) -> None:
        form, other = form_of(mask), form_of(owner)
        if form is not None:
            form.want("bool")
            if other is not None and form.rank is not None and form.rank == other.rank:
                operations.together(form, other)

    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        if isinstance(function, functools.partial):
            named = {**{name: Constant(item) for name, item in (function.keywords or {}).items()}, **named}
            return self.call(function.func, [*(Constant(item) for item in function.args), *args], named)
        if isinstance(function, Inner):
            return self.call_inner(function, args, named)
        if isinstance(function, torch.nn.Module):
            return self.call_module(function, args, named)
        name = str(getattr(function, "__name__", ""))
        if name in _PATTERNS and len(args) > 1 and isinstance(args[1], Constant) and isinstance(args[1].value, str):
            sizes = named if name != "reduce" else {k: v for k, v in named.items() if k != "reduction"}
            if isinstance(args[0], Items):
                return UNKNOWN
            return rearrange(args[0], args[1].value, sizes) or UNKNOWN
        if name == "pack" and len(args) > 1 and isinstance(args[0], Items) and isinstance(args[1], Constant):
            packed = [pack(item, str(args[1].value)) for item in args[0].values]
            return Items([next((form for form in packed if form is not None), UNKNOWN), UNKNOWN])
        if name in ("sqrt", "isqrt") and args and isinstance(args[0], Size):
            return side_of(args[0])
        if "shape" in name.lower() and len(args) > 1:
            self.checked_shape(args)
        if is_builtin(function):
            return BUILTINS[function](self, args)
        owner = getattr(function, "__self__", None)
        if name == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            function_class: Any = owner
            plain = function_class.setup_context is torch.autograd.Function.setup_context
            first = [UNKNOWN] if plain else []
            return self.call_function(function_class.forward, [*first, *args], named)
        if isinstance(owner, torch.nn.Module) and plain_function(function) is not None:
            return self.call_function(function, [Constant(owner), *args], named)
        module = str(getattr(function, "__module__", None) or "torch").partition(".")[0]
        if plain_function(function) is not None and module not in _NOT_OURS and not isinstance(function, type):
            return self.call_function(function, args, named)
        return self.call_torch(name, args, named)

    def checked_shape(self, args: list[Any]) -> None:
        """`check_shape(x, ["B", "3", "3"])`: a helper by whose name the words beside a tensor are its axes."""
        words = args[1]
        listed: list[Any] = [getattr(item, "value", None) for item in words.values] if isinstance(words, Items) else []
        if isinstance(words, Constant) and isinstance(words.value, list | tuple | str):
            listed = words.value.split() if isinstance(words.value, str) else list(words.value)
        form = form_of(args[0]) if isinstance(args[0], Form | Parameter) else None
        if form is not None and listed and all(isinstance(word, str) for word in listed):
            side = " ".join("..." if word in ("*", "...") else str(word) for word in listed)
            read_pattern(form, side, {})

    def call_torch(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        first = named.pop("input", None) if "input" in named else None
        values = [first, *args] if first is not None else args
        if name in ("complex", "polar"):
            return operations.together(values[0], values[1]) if len(values) > 1 else UNKNOWN
        if name in ("arange", "zeros", "ones", "randn", "rand", "empty", "full", "linspace", "eye"):
            for value in values:
                if isinstance(value, Parameter):
                    value.whole += 1
                    value.number += 1
            return (
                operations.apply("expand", [UNKNOWN, *values], {})
                if name in ("zeros", "ones", "randn", "rand")
                else UNKNOWN
            )
        if name == "where" and values:
            self.mask(values[0], values[1] if len(values) > 1 else UNKNOWN)
            return operations.together(values[1], values[2]) if len(values) > 2 else UNKNOWN
        return operations.apply(operations.plain(name), values, named)

    def call_inner(self, function: Inner, args: list[Any], named: dict[str, Any]) -> Any:
        if len(self.stack) >= DEPTH:
            return UNKNOWN
        inner = dict(function.env)
        parameters = function.node.args
        for item, value in zip([*parameters.posonlyargs, *parameters.args], args, strict=False):
            inner[item.arg] = value
        inner |= named
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, inner)
        self.stack.append(function)
        try:
            self.block(function.node.body, inner)
        except ReturnedError as returned:
            return returned.value
        finally:
            self.stack.pop()
        return Constant(None)

    def call_function(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        if any(seen is plain_function(function) for seen in self.stack) and len(self.stack) > 3:
            return UNKNOWN
        plain = plain_function(function)
        if plain is None:
            return UNKNOWN
        env = _bound(plain, args, named)
        return self.run(plain, env) if env is not None else UNKNOWN

    def call_module(self, module: torch.nn.Module, args: list[Any], named: dict[str, Any]) -> Any:
        if not args:
            args = [next(iter(named.values()), UNKNOWN)]
        if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
            value = args[0]
            for layer in module:
                value = self.call_module(layer, [value], {})
            return value
        if isinstance(module, torch.nn.MultiheadAttention):
            given = [*args, *(named[key] for key in ("query", "key", "value") if key in named)]
            return Items([attention(module, *given[:3]) or UNKNOWN, UNKNOWN]) if len(given) > 2 else UNKNOWN
        known, result = through_layer(module, args[0])
        if known:
            return UNKNOWN if result is None else result
        pattern = getattr(module, "pattern", None)
        if isinstance(pattern, str) and "->" in pattern and type(module).__module__.startswith("einops"):
            lengths = getattr(module, "axes_lengths", {})
            return rearrange(args[0], pattern, {k: Constant(v) for k, v in dict(lengths).items()}) or UNKNOWN
        if type(module).__module__.startswith("torch.nn"):
            return self.call_torch_module(module, args, named)
        return self.call_function(type(module).forward, [Constant(module), *args], named)

    def call_torch_module(self, module: torch.nn.Module, args: list[Any], named: dict[str, Any]) -> Any:
        width = getattr(getattr(module, "self_attn", None), "embed_dim", None)
        form = form_of(args[0]) if args else None
        if form is not None and isinstance(width, int):
            form.set_rank(3)
            form.axis(-1).fix(width)
            return form
        name = type(module).__name__.removesuffix("Loss")
        words = {"CrossEntropy": "cross_entropy", "NLL": "nll_loss", "BCE": "binary_cross_entropy", "MSE": "mse_loss"}
        if isinstance(module, torch.nn.modules.loss._Loss):
            return operations.apply(words.get(name, "mse_loss"), args, named)
        return UNKNOWN


def _bound(function: types.FunctionType, args: list[Any], named: dict[str, Any]) -> dict[str, Any] | None:
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **named)
    except (TypeError, ValueError):
        return None
    env: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if name in bound.arguments:
            given = bound.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                given = Items(list(given))
            elif parameter.kind is parameter.VAR_KEYWORD:
                given = Constant({key: item.value for key, item in given.items() if isinstance(item, Constant)})
            env[name] = given
        elif parameter.kind is parameter.VAR_POSITIONAL:
            env[name] = Items([])
        elif parameter.kind is parameter.VAR_KEYWORD:
            env[name] = Constant({})
        elif parameter.default is not parameter.empty:
            env[name] = Constant(parameter.default)
    return env
