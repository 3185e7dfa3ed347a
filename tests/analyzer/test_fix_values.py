"""Fixes are run: a safe one keeps every finite value, and one for a NaN gradient leaves none where there was one.

Every function and module of an INVALID example that a fix touches is called before and after, on ordinary inputs and
on those where numerical code breaks: zeros, a row of zeros, ones, negative, large and tiny numbers, a batch of one.
Rounding apart means: where the old code lost its digits, what it gives in float64 is the value to keep. Memory that
nothing has written holds NaN, as torch's deterministic mode fills it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import FixSafety
from analyzer.fixing import fix_source
from analyzer.registry import all_rules
from analyzer.rules.base import Rule

Maker = Callable[[tuple[int, ...]], torch.Tensor]

# Values with which examples are called, gentle ones first.
INPUTS: dict[str, Maker] = {
    "positive": lambda shape: torch.rand(shape) * 0.8 + 0.1,
    "ordinary": torch.randn,
    "zeros": torch.zeros,
    "a row of zeros": lambda shape: torch.randn(shape) * (torch.arange(shape[0]) != 1).view(-1, *[1] * len(shape[1:])),
    "ones": torch.ones,
    "minus ones": lambda shape: -torch.ones(shape),
    "large": lambda shape: torch.randn(shape) * 200,
    "tiny": lambda shape: torch.randn(shape) * 1e-10,  # the floors of the fixes are at 1e-12
    "huge": lambda shape: torch.randn(shape) * 1e15,
    "far from zero": lambda shape: torch.randn(shape) + 1e4,
    "a batch of one": lambda shape: torch.randn(1, *shape[1:]),
}
# The first shape that an example can be called with is the one for all its inputs.
SHAPES = ((4, 3), (3, 3), (2, 4, 3))
MASKS = ("mask", "pad_mask", "keep", "valid", "m")
PROBABILITIES = ("p", "q", "probs", "attn")
NAMED = {"dim": 1, "size": 3, "n": 3, "eps": 1e-6, "training": False}
PLAIN = {**NAMED, "p": 0.5}  # for code that takes the probability of a dropout


@dataclass(frozen=True)
class Outcome:
    """Values and gradients of one call, flat."""

    values: torch.Tensor
    gradients: torch.Tensor
    rounding: float


@dataclass
class Evidence:
    """What running the fixes of one rule showed: calls compared, and calls that the fix made finite (or possible)."""

    called: int = 0
    mended: int = 0


@pytest.fixture(autouse=True)
def _memory_that_nothing_wrote_holds_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class Call:
    """How an example is called: the values and the shape of its tensors, and numbers for some names."""

    make: Maker
    shape: tuple[int, ...] = SHAPES[0]
    numbers: Mapping[str, object] = field(default_factory=lambda: NAMED)
    exact: bool = False

    def argument(self, parameter: inspect.Parameter) -> Any:
        if parameter.annotation in ("int", int):
            return 3
        if parameter.annotation in ("float", float):
            return 0.5
        if parameter.name in self.numbers:
            return self.numbers[parameter.name]
        values = self.make(self.shape)
        if parameter.name in MASKS:
            return values > 0
        if parameter.name in PROBABILITIES:
            values = values.clamp(0, 1)
        return (values.double() if self.exact else values).requires_grad_()


def called(definition: Any, how: Call) -> Outcome | None:
    """The outcome of calling a function, or a module built without surprises; None when it can't be called so."""
    torch.manual_seed(0)
    with suppress(Exception):  # an example is no program: it may call what does not exist
        function = built(definition) if inspect.isclass(definition) else definition
        parameters = inspect.signature(function).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        arguments = [how.argument(parameter) for parameter in required]
        return measured(function(*arguments), [item for item in arguments if getattr(item, "requires_grad", False)])
    return None


def ways(before: Any, after: Any) -> Iterator[tuple[str, Call]]:
    """Calls with every kind of input, in the first shape and with the first numbers that the example takes."""
    for numbers, shape in itertools.product((NAMED, PLAIN), SHAPES):
        how = Call(INPUTS["positive"], shape, numbers)
        if called(before, how) is not None or called(after, how) is not None:
            yield from ((kind, replace(how, make=make)) for kind, make in INPUTS.items())
            return


def built(definition: type) -> Callable[..., Any]:
    """The forward of a module whose constructor takes numbers."""
    if not issubclass(definition, torch.nn.Module):
        raise TypeError("only modules are called")
    required = [p for p in inspect.signature(definition).parameters.values() if p.default is p.empty]
    module: torch.nn.Module = definition(*[3 for _ in required])
    forward: Callable[..., Any] = module.forward
    return forward


def measured(result: Any, inputs: list[torch.Tensor]) -> Outcome | None:
    """Values, and the gradients of the inputs; a backward that raises counts as a gradient of NaN."""
    items = result if isinstance(result, (tuple, list)) else [result]
    outputs = [item for item in items if isinstance(item, torch.Tensor) and item.is_floating_point()]
    if not outputs or not inputs:
        return None
    values = torch.cat([item.detach().flatten().double() for item in outputs])
    connected = [item for item in outputs if item.requires_grad]
    rounding = max(torch.finfo(item.dtype).eps for item in outputs)
    if not connected:
        return Outcome(values, torch.zeros(0), rounding)
    # Random cotangents: the sum of a normalised row has no gradient to lose.
    total = torch.stack([(item * torch.rand_like(item)).sum().float() for item in connected]).sum()
    try:
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    except RuntimeError:
        return Outcome(values, torch.full((1,), torch.nan), rounding)
    flat = [gradient.flatten().double() for gradient in gradients if gradient is not None]
    return Outcome(values, torch.cat([torch.zeros(0), *flat]), rounding)


def touched(source: str, lines: set[int]) -> Iterator[str]:
    """Names of the functions and classes at module level that hold one of the lines."""
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if any(line in inside for line in lines):
                yield node.name


def defined(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "example"}
    with suppress(Exception):  # names that exist in nobody's torch, packages that are not installed
        exec(compile(source, "<example>", "exec"), namespace)
        return namespace
    return {}


def evidence(rule: Rule) -> Evidence:
    """Run every fix of the rule's examples; fails on the first value that a safe fix changes."""
    options = AnalyzerOptions(rules=frozenset({rule.id}))
    seen = Evidence()
    for example in rule.invalid:
        if isinstance(example.source, bytes):
            continue
        findings = [
            finding
            for finding in analyze_source(example.source, "package/layers.py", options=options).findings
            if finding.fix.edits
        ]
        if not findings:
            continue
        # What `nan_to_num` makes of NaN is finite, and no value that a fix has to keep.
        safe = "nan_to_num" not in example.source and all(finding.fix.safety is FixSafety.SAFE for finding in findings)
        fixed = fix_source(example.source.encode(), "package/layers.py", unsafe=True, options=options).data.decode()
        before, after = defined(example.source), defined(fixed)
        for name in touched(example.source, {finding.region.start_line for finding in findings}):
            if name in before:
                assert name in after, f"the fixed example no longer runs:\n{fixed}"
                compare(seen, before[name], after[name], safe=safe, said=fixed)
    return seen


def compare(seen: Evidence, before: Any, after: Any, *, safe: bool, said: str) -> None:
    for kind, how in ways(before, after):
        old, new = called(before, how), called(after, how)
        if old is None:
            seen.mended += new is not None
            continue
        assert new is not None, f"on {kind}, the fixed code can't be called:\n{said}"
        seen.called += 1
        seen.mended += not is_finite(old) and is_finite(new)
        if old.gradients.isfinite().all():
            assert new.gradients.isfinite().all(), f"on {kind}, the fix breaks a gradient:\n{said}"
        if safe:
            assert new.values.shape == old.values.shape, f"on {kind}, the fixed code returns another shape:\n{said}"
            off = old.values.isfinite() & ~agrees(new.values, old.values, old.rounding)
            if off.any() or kind == "tiny":
                exact = called(before, replace(how, exact=True))
                wanted = old.values if exact is None else exact.values
                right = agrees(new.values, wanted, old.rounding)[off].all()
                assert right, f"on {kind}, {old.values[off]} becomes {new.values[off]}:\n{said}"
                seen.mended += regains_digits(old.values, new.values, wanted)


def regains_digits(old: torch.Tensor, new: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a value had lost most of its digits, and now has them."""
    lost = (old - exact).abs() > 0.1 * exact.abs()
    return bool((lost & ((new - exact).abs() < 1e-3 * exact.abs())).any())


def is_finite(outcome: Outcome) -> bool:
    return bool(outcome.values.isfinite().all() and outcome.gradients.isfinite().all())


def agrees(values: torch.Tensor, wanted: torch.Tensor, rounding: float) -> torch.Tensor:
    """Where values are as they should be, up to some units of their last place."""
    return (values - wanted).abs() <= 1e-5 + max(1e-4, 8 * rounding) * wanted.abs()


@pytest.mark.parametrize(
    "rule", [rule for rule in all_rules() if rule.fix is not FixSafety.NONE], ids=lambda rule: rule.id
)
def test_fixes_keep_finite_values_and_mend_gradients(rule: Rule) -> None:
    seen = evidence(rule)
    if rule.id.startswith("GP1"):
        assert seen.called or seen.mended, "no example of this numerical rule could be run"
        if "nan_gradient" in rule.settled_by:
            assert seen.mended, "no example shows a value or gradient that is mended"
