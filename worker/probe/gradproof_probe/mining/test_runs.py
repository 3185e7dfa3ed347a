"""Tests of a test file that can be called by hand: functions and methods, with parameters, with simple fixtures."""

from __future__ import annotations

import functools
import inspect
import itertools
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import torch

from gradproof_probe.mining.pytest_stand_in import ParameterSet

TESTS: Final = 150  # of one file
PARAMETERS: Final = 3  # runs of one test: more show the same call with other numbers
# Fixtures that repositories of models have under these names, defined in files that aren't read here.
COMMON_FIXTURES: Final[dict[str, Callable[[], Any]]] = {
    "device": lambda: torch.device("cpu"),
    "dtype": lambda: torch.float32,
    "seed": lambda: 0,
    "batch_size": lambda: 2,
}


@dataclass(frozen=True, slots=True)
class Test:
    name: str
    line: int
    run: Callable[[], Any]


def tests_of(module: ModuleType) -> Iterator[Test]:
    return itertools.islice(_tests(module), TESTS)


def _tests(module: ModuleType) -> Iterator[Test]:
    fixtures = {name: value for name, value in vars(module).items() if hasattr(value, "_gradproof_fixture")}
    for name, value in list(vars(module).items()):
        if inspect.isfunction(value) and name.startswith("test") and value.__module__ == module.__name__:
            yield from _runs(name, value, functools.partial(getattr, module, name), fixtures)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            if issubclass(value, unittest.TestCase):
                yield from _case(value)
            elif name.startswith("Test"):
                yield from _methods(value, fixtures)


def _methods(owner: type, fixtures: dict[str, Any]) -> Iterator[Test]:
    own = {**fixtures, **{n: v for n, v in vars(owner).items() if hasattr(v, "_gradproof_fixture")}}
    for name in dir(owner):
        function = inspect.getattr_static(owner, name)
        if name.startswith("test") and inspect.isfunction(function):

            def bound(name: str = name) -> Any:
                instance = owner()
                for prepare in ("setup_method", "setup"):
                    if hasattr(instance, prepare):
                        getattr(instance, prepare)()
                return getattr(instance, name)

            yield from _runs(f"{owner.__name__}.{name}", function, bound, own, method=True)


def _runs(
    name: str, function: Any, get: Callable[[], Any], fixtures: dict[str, Any], *, method: bool = False
) -> Iterator[Test]:
    needed = [p for p in list(inspect.signature(function).parameters.values())[int(method) :] if _required(p)]
    for values in itertools.islice(_parameters(function), PARAMETERS):
        others = [parameter.name for parameter in needed if parameter.name not in values]
        made = {other: _fixture(other, fixtures) for other in others}
        if all(value is not None for value in made.values()):
            yield Test(name, function.__code__.co_firstlineno, _caller(get, values, made))


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    )


def _caller(get: Callable[[], Any], values: dict[str, Any], made: dict[str, Any]) -> Callable[[], Any]:
    return lambda: get()(**values, **{name: make() for name, make in made.items()})


def _fixture(name: str, fixtures: dict[str, Any]) -> Callable[[], Any] | None:
    function = fixtures.get(name)
    if function is None:
        return COMMON_FIXTURES.get(name)
    parameters = inspect.signature(function).parameters
    params = function._gradproof_fixture
    if isinstance(params, list | tuple) and list(parameters) == ["request"]:
        request = ModuleType("request")
        request.param = params[0]  # type: ignore[attr-defined]
        return lambda: _value(function(request))
    if all(not _required(parameter) for parameter in parameters.values()):
        return lambda: _value(function())
    return None


def _value(made: Any) -> Any:
    return next(made) if inspect.isgenerator(made) else made


def _parameters(function: Any) -> Iterator[dict[str, Any]]:
    """The values of each run; of several `parametrize` marks the combinations."""
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    choices = [list(_sets(*mark.args[:2])) for mark in marks if len(mark.args) >= 2]
    for combination in itertools.product(*choices):
        merged: dict[str, Any] = {}
        for values in combination:
            merged |= values
        yield merged


def _sets(names: Any, values: Any) -> Iterator[dict[str, Any]]:
    listed = [part.strip() for part in names.split(",") if part.strip()] if isinstance(names, str) else list(names)
    for value in itertools.islice(values, 8):
        if len(listed) == 1:
            yield {listed[0]: value[0] if isinstance(value, ParameterSet) else value}
        else:
            yield dict(zip(listed, value, strict=False))


def _case(owner: type[unittest.TestCase]) -> Iterator[Test]:
    for name in unittest.TestLoader().getTestCaseNames(owner):
        function = inspect.unwrap(getattr(owner, name))

        def run(name: str = name) -> None:
            case = owner(name)
            owner.setUpClass()
            case.setUp()
            getattr(case, name)()
            case.tearDown()

        line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        yield Test(f"{owner.__name__}.{name}", line, run)
