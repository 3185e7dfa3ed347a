"""The fixes of the numerical rules: applied, they leave nothing to say; run, they keep values and mend gradients."""

import pytest
import torch

from analyzer.engine import analyze_source
from analyzer.findings import Finding, Severity
from analyzer.fixing import apply_edits
from analyzer.registry import all_rules

OURS = ("GP101", "GP102", "GP103", "GP104", "GP105", "GP106", "GP107", "GP108", "GP109", "GP110", "GP111", "GP112")
RULES = {
    rule.id: rule for rule in all_rules() if rule.id in (*OURS, "GP113", "GP128", "GP129", "GP130", "GP131", "GP132")
}
EXAMPLES = [
    pytest.param(rule.id, example.source, id=f"{rule.id}-{number}")
    for rule in RULES.values()
    for number, example in enumerate(rule.invalid)
]


def findings(source: str) -> list[Finding]:
    return list(analyze_source(source, "package/layers.py").findings)


def fixed(source: str, rule: str) -> str | None:
    """The source after all fixes of a rule at once, or None if it proposes none."""
    edits = [edit for finding in findings(source) if finding.rule == rule for edit in finding.fix.edits]
    return apply_edits(source, edits) if edits else None


@pytest.mark.parametrize(("rule", "source"), EXAMPLES)
def test_a_fixed_example_leaves_nothing_to_say(rule: str, source: str) -> None:
    after = fixed(source, rule)
    if after is None:
        return
    before = {(finding.rule, finding.message) for finding in findings(source)}
    left = [finding for finding in findings(after) if finding.severity is not Severity.NOTE]
    assert [finding for finding in left if finding.rule == rule] == [], after
    assert [f for f in left if (f.rule, f.message) not in before] == [], after


# (rule, result, ordinary inputs, inputs at the singular place): the function is `def f(x, y)`.
ORDINARY = ([[0.3, -0.4, 0.6], [1.5, 2.0, -1.0]], [[0.2, 0.7, 0.5], [0.9, 0.1, 0.4]])
ZERO = ([[0.0, 0.0, 0.0], [1.0, 2.0, 2.0]], [[0.0, 0.0, 0.0], [0.5, 0.5, 0.5]])
LARGE = ([[200.0, -200.0, 5.0], [-300.0, 120.0, 0.0]], [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]])
RUN = [
    ("GP101", "y / x.norm(dim=-1, keepdim=True)", ORDINARY, ZERO),
    ("GP101", "y / x.pow(2).sum(-1, keepdim=True).sqrt()", ORDINARY, ZERO),
    ("GP101", "y / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True))", ORDINARY, ZERO),
    ("GP102", "x / x.norm(dim=-1, keepdim=True)", ORDINARY, ZERO),
    ("GP102", "(x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)", ORDINARY, ZERO),
    ("GP103", "x.pow(2).sum(-1).sqrt()", ORDINARY, ZERO),
    ("GP103", "((x - y) ** 2).sum(dim=-1, keepdim=True) ** 0.5", ORDINARY, ZERO),
    ("GP103", "x.var(dim=-1).sqrt()", ORDINARY, ZERO),
    ("GP103", "y.clamp(min=0).sqrt()", ORDINARY, ZERO),
    ("GP104", "x / (x.var(-1, keepdim=True).sqrt() + 1e-8)", ORDINARY, ZERO),
    ("GP105", "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))", ORDINARY, ZERO),
    ("GP106", "x.abs() ** (1 / 3)", ORDINARY, ZERO),
    ("GP107", "x.norm(dim=-1).log()", ORDINARY, ZERO),
    ("GP108", "torch.log(torch.softmax(x, dim=-1))", ORDINARY, LARGE),
    ("GP108", "x.softmax(-1).log()", ORDINARY, LARGE),
    ("GP109", "torch.log(torch.sigmoid(x))", ORDINARY, LARGE),
    ("GP109", "torch.log(1 - torch.sigmoid(x * 2))", ORDINARY, LARGE),
    ("GP109", "torch.log1p(-x.sigmoid())", ORDINARY, LARGE),
    ("GP110", "torch.log(1 + torch.exp(-x))", ORDINARY, LARGE),
    ("GP110", "torch.log1p(x.exp())", ORDINARY, LARGE),
    ("GP110", "torch.log(torch.sum(torch.exp(x), dim=1, keepdim=True))", ORDINARY, LARGE),
    ("GP110", "x.exp().sum(-1).log()", ORDINARY, LARGE),
    ("GP110", "torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)", ORDINARY, LARGE),
    ("GP110", "torch.log(torch.exp(x) + torch.exp(y))", ORDINARY, LARGE),
    ("GP110", "torch.log(torch.cosh(x))", ORDINARY, LARGE),
    ("GP131", "torch.exp(x).clamp(max=1e4)", ORDINARY, LARGE),
    ("GP132", "torch.log(torch.prod(y, dim=-1))", ORDINARY, ([[0.0] * 3] * 2, [[1e-20] * 3] * 2)),
    ("GP112", "torch.acos(y.clamp(-1, 1))", ORDINARY, ([[0.0] * 3] * 2, [[1.0, 1.0, -1.0], [1.0, 0.0, 0.5]])),
    ("GP113", "torch.hypot(x, y)", ORDINARY, ZERO),
    ("GP113", "torch.sqrt(x ** 2 + y ** 2)", ORDINARY, ZERO),
    ("GP128", "1 / (1 + torch.exp(-x))", ORDINARY, LARGE),
    ("GP128", "torch.exp(x) / (1 + torch.exp(x))", ORDINARY, LARGE),
    ("GP128", "y / (1 + torch.exp(-1.7 * x))", ORDINARY, LARGE),
    ("GP129", "torch.sin(x) / x", ORDINARY, ZERO),
    ("GP130", "torch.log(x + torch.sqrt(x ** 2 + 1))", ORDINARY, ([[-1e4] * 3] * 2, [[0.0] * 3] * 2)),
]


def run(source: str, inputs: tuple[list[list[float]], list[list[float]]]) -> tuple[torch.Tensor, bool]:
    """The value of `f`, and whether it and the gradients of both inputs are finite."""
    names: dict[str, object] = {}
    exec(compile(source, "<example>", "exec"), names)
    tensors = [torch.tensor(rows, requires_grad=True) for rows in inputs]
    value = names["f"](*tensors)  # type: ignore[operator]
    gradients = torch.autograd.grad(value.sum(), tensors, allow_unused=True)
    finite = all(bool(part.isfinite().all()) for part in (value, *gradients) if part is not None)
    return value.detach(), finite


@pytest.mark.parametrize(("rule", "result", "ordinary", "singular"), RUN, ids=[f"{r}-{e}" for r, e, _, _ in RUN])
def test_a_fix_keeps_the_values_and_mends_the_gradient(
    rule: str,
    result: str,
    ordinary: tuple[list[list[float]], list[list[float]]],
    singular: tuple[list[list[float]], list[list[float]]],
) -> None:
    source = f"import torch\nimport torch.nn.functional as F\ndef f(x, y):\n    return {result}\n"
    mended = fixed(source, rule)
    assert mended is not None
    assert not run(source, singular)[1], "the fault does not show at this input"
    assert run(mended, singular)[1]
    before, after = run(source, ordinary)[0], run(mended, ordinary)[0]
    torch.testing.assert_close(after, before, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("rule", "result"),
    [("GP111", "torch.log(1 + x)"), ("GP111", "torch.exp(x) - 1"), ("GP111", "1 - torch.exp(-x)")],
)
def test_a_fix_keeps_the_digits_of_a_small_argument(rule: str, result: str) -> None:
    source = f"import torch\ndef f(x, y):\n    return {result}\n"
    mended = fixed(source, rule)
    assert mended is not None
    small = ([[1e-9]], [[1.0]])
    assert run(source, small)[0].item() == 0
    assert run(mended, small)[0].item() == pytest.approx(1e-9)
