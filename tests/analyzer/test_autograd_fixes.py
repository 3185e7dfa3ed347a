"""The fixes of the rules on custom Functions leave code that these rules have nothing to say about, and that runs."""

import ast

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding, FixSafety
from analyzer.fixing import apply_edits
from analyzer.registry import all_rules
from analyzer.rules.base import Rule
from tests.analyzer.test_autograd_rules import function_class, inputs_of

RULES = [rule for rule in all_rules() if rule.id.startswith("GP3")]
IDS = frozenset(rule.id for rule in RULES)
SOURCES = [
    pytest.param(rule, example.source, id=f"{rule.id}-{number}")
    for rule in RULES
    for number, example in enumerate(rule.invalid)
    if isinstance(example.source, str)
]


def findings(source: str) -> list[Finding]:
    found = analyze_source(source, "package/layers.py", options=AnalyzerOptions(rules=IDS | {"GP001", "GP002"}))
    return list(found.findings)


def fixed(source: str, rule: str) -> str:
    """The source after the fixes of one rule, one at a time."""
    for _ in range(10):
        offered = [found for found in findings(source) if found.rule == rule and found.fix.edits]
        if not offered:
            return source
        source = apply_edits(source, offered[0].fix.edits)
    raise AssertionError(f"the fix of {rule} does not come to an end:\n{source}")


@pytest.mark.parametrize(("rule", "source"), SOURCES)
def test_a_fixed_example_is_left_alone(rule: Rule, source: str) -> None:
    before = findings(source)
    offered = [found for found in before if found.rule == rule.id and found.fix.edits]
    assert all(found.fix.safety is not FixSafety.NONE for found in offered)
    if not offered:
        return
    result = fixed(source, rule.id)
    ast.parse(result)
    after = findings(result)
    unfixable = [found for found in before if found.rule == rule.id and not found.fix.edits]
    left = [found for found in after if found.rule == rule.id]
    assert rule.id in {"GP302"} or len(left) <= len(unfixable), result
    new = {found.rule for found in after} - {found.rule for found in before}
    assert not {found.rule for found in after if found.rule in new and found.severity.value != "note"}, result


def outcome(source: str) -> list[torch.Tensor] | None:
    """The gradients that the Function of an example gives its inputs; None where it raises, as faulty ones may."""
    function = function_class(source)
    torch.manual_seed(0)
    given = inputs_of(function)
    try:
        result = function.apply(*[value * 1 for value in given])
        first = result[0] if isinstance(result, tuple) else result
        (first * torch.linspace(0.5, 1.5, first.numel(), dtype=first.dtype).view(first.shape)).sum().backward()
    except (RuntimeError, TypeError, AttributeError, NameError, ValueError, IndexError):
        return None
    return [torch.zeros(0) if value.grad is None else value.grad for value in given]


@pytest.mark.parametrize(("rule", "source"), [case for case in SOURCES if case.values[0].fix is FixSafety.SAFE])
def test_a_safe_fix_keeps_the_gradients(rule: Rule, source: str) -> None:
    if "Function):" not in source:
        return
    before = outcome(source)
    after = outcome(fixed(source, rule.id))
    if before is not None:
        assert after is not None
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.fix is not FixSafety.NONE], ids=lambda rule: rule.id)
def test_a_rule_that_promises_fixes_offers_one(rule: Rule) -> None:
    offered = [found for example in rule.invalid for found in findings(str(example.source)) if found.rule == rule.id]
    assert {found.fix.safety for found in offered if found.fix.edits} == {rule.fix}


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.fix is FixSafety.NONE], ids=lambda rule: rule.id)
def test_a_rule_that_promises_no_fix_offers_none(rule: Rule) -> None:
    offered = [found for example in rule.invalid for found in findings(str(example.source)) if found.rule == rule.id]
    assert not [found for found in offered if found.fix.edits]


def test_comments_and_formatting_outside_of_a_fix_stay() -> None:
    source = (
        "from torch.autograd import Function\n\n\nclass Op(Function):  # the op\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return x * 2\n\n    @staticmethod\n    def backward(ctx, grad):\n"
        "        # scale it\n        grad  *=  2  # in place\n        return (grad)\n"
    )
    assert fixed(source, "GP306") == source.replace("grad  *=  2  #", "grad = grad * 2  #")


def test_what_was_kept_on_the_context_is_saved_in_one_call() -> None:
    source = (
        "from torch.autograd import Function\n\n\nclass Op(Function):\n    @staticmethod\n    def forward(ctx, x, w):\n"
        "        ctx.x = x\n        ctx.w = w\n        return x * w\n\n    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return grad * ctx.w, grad * ctx.x\n"
    )
    result = fixed(source, "GP302")
    assert "ctx.save_for_backward(x, w)" in result
    assert "return grad * ctx.saved_tensors[1], grad * ctx.saved_tensors[0]" in result
    assert findings(result) == []


def test_a_decorator_goes_between_staticmethod_and_the_function() -> None:
    source = (
        "import torch\n\n\nclass Op(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return x ** 4\n\n    @staticmethod\n    def backward(ctx, grad):\n"
        '        """Says\n          what it does."""\n        (x,) = ctx.saved_tensors\n'
        "        with torch.no_grad():\n            return 4 * x ** 3 * grad\n"
    )
    result = fixed(source, "GP311")
    assert "    @staticmethod\n    @torch.autograd.function.once_differentiable\n    def backward" in result
    assert '        """Says\n          what it does."""\n' in result
    assert findings(result) == []
