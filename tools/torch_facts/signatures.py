"""How the public functions and classes of torch can be called: Python signatures, type stubs, operator schemas.

What has none of these, or takes anything, is left out. This module must not judge calls.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, ModuleType

import torch

STUBS = Path(torch.__file__).parent / "_C" / "_VariableFunctions.pyi"
MODULES = (
    *("torch", "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.parallel"),
    *("torch.nn.utils.parametrizations", "torch.nn.utils.rnn", "torch.nn.attention", "torch.linalg", "torch.fft"),
    *("torch.special", "torch.optim", "torch.optim.lr_scheduler", "torch.optim.swa_utils", "torch.autograd"),
    *("torch.autograd.functional", "torch.func", "torch.amp", "torch.cuda", "torch.cuda.amp", "torch.utils.data"),
    *("torch.utils.checkpoint", "torch.distributions", "torch.distributed", "torch.compiler", "torch.random"),
    *("torch.sparse", "torch.nested", "torch.jit", "torch.library", "torch.backends.cuda", "torch.mps", "torch.export"),
)
_OPERATOR_PREFIXES = {"torch.linalg": "linalg_", "torch.fft": "fft_", "torch.special": "special_"}
POSITIONAL_END, ANY_POSITIONAL, ANY_KEYWORD, PARSED_IN_C = "*", "*…", "**…", "~"


def signatures_document(version: str) -> dict[str, object]:
    """`calls`: full name → its forms, separated by `|`.

    A form is the names of its parameters: those with a default end in `=`, `*` ends the positional ones, `*…` stands
    for any further positional arguments, `**…` for any keywords, `/name` can only be given by position. A form that
    begins with `~` is parsed in C++, which takes NumPy's names (`axis`, `keepdims`) as well.
    """
    stubs = _read_stubs()
    found: dict[str, str] = {}
    for module in MODULES:
        loaded = sys.modules.get(module)
        if not isinstance(loaded, ModuleType):
            continue
        for name, value in sorted(vars(loaded).items()):
            if name.startswith("_") or not callable(value):
                continue
            forms = _forms(module, name, value, stubs)
            if forms and not any(_takes_anything(form) for form in forms):
                found[f"{module}.{name}"] = "|".join(sorted(set(forms)))
    return {"torch": version, "calls": found}


def _takes_anything(form: str) -> bool:
    words = form.split()
    return ANY_POSITIONAL in words and ANY_KEYWORD in words


def _forms(module: str, name: str, value: object, stubs: dict[str, list[str]]) -> list[str]:
    if isinstance(value, type):
        return _python_forms(value) if value.__module__.startswith("torch.") else []
    if isinstance(value, BuiltinFunctionType) or type(value).__name__ == "builtin_function_or_method":
        if getattr(torch, name, None) is value or module == "torch":
            return stubs.get(name, [])
        return _schema_forms(_OPERATOR_PREFIXES.get(module, "") + name)
    if inspect.isfunction(value) and str(value.__module__).startswith("torch"):
        return _python_forms(value)
    return []


def _python_forms(value: type | object) -> list[str]:
    if hasattr(value, "__wrapped__") and not isinstance(value, type):
        return []  # the wrapper may take other arguments than what it wraps
    if isinstance(value, type) and (type(value).__call__ is not type.__call__ or value.__new__ is not object.__new__):
        return []  # what it takes is not what `__init__` says
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    words: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        kind = parameter.kind
        default = "" if parameter.default is inspect.Parameter.empty else "="
        if kind is inspect.Parameter.VAR_POSITIONAL:
            words.append(ANY_POSITIONAL)
            keyword_only = True
        elif kind is inspect.Parameter.VAR_KEYWORD:
            words.append(ANY_KEYWORD)
        else:
            if kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
                words.append(POSITIONAL_END)
                keyword_only = True
            prefix = "/" if kind is inspect.Parameter.POSITIONAL_ONLY else ""
            words.append(f"{prefix}{parameter.name}{default}")
    return [" ".join(words)]


def _read_stubs() -> dict[str, list[str]]:
    """The forms of everything in the stub of `torch._C._VariableFunctions`."""
    table: dict[str, list[str]] = {}
    for node in ast.parse(STUBS.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            table.setdefault(node.name, []).append(_stub_form(node.args))
    return table


def _stub_form(arguments: ast.arguments) -> str:
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    words = [PARSED_IN_C]
    words.extend(f"{_said(a.arg)}{'=' if i >= without_default else ''}" for i, a in enumerate(positional))
    if arguments.vararg is not None:
        words.append(ANY_POSITIONAL)
    elif arguments.kwonlyargs:
        words.append(POSITIONAL_END)
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    # `out` is told as required in forms of its own, which are forms that also work without it.
    words.extend(f"{a.arg}{'=' if default is not None or a.arg == 'out' else ''}" for a, default in pairs)
    if arguments.kwarg is not None:
        words.append(ANY_KEYWORD)
    return " ".join(words)


def _schema_forms(operator: str) -> list[str]:
    schemas: Iterable[torch._C.FunctionSchema] = torch._C._jit_get_schemas_for_operator(f"aten::{operator}")
    return [form for schema in schemas for form in _schema_form(schema)]


def _schema_form(schema: torch._C.FunctionSchema) -> Iterator[str]:
    words: list[str] = [PARSED_IN_C]
    ended = False
    for argument in schema.arguments:
        if argument.kwarg_only and not ended:
            words.append(POSITIONAL_END)
            ended = True
        given = argument.has_default_value() or argument.is_out or str(argument.type).startswith("Optional")
        words.append(f"{_said(argument.name)}{'=' if given else ''}")
    names = {word.rstrip("=") for word in words}
    if "out" not in names and schema.overload_name == "" and POSITIONAL_END not in names:
        words.append(POSITIONAL_END)
    if "out" not in names:
        words.append("out=")
    # The generated Python functions take what every factory takes.
    yield " ".join([*words, *(f"{extra}=" for extra in ("requires_grad",) if "dtype" in names and extra not in names)])


def _said(name: str) -> str:
    return "input" if name == "self" else name
