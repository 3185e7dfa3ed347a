"""Rules about masks, losses and low precision: that their fixes keep the values and mend the gradients."""

from collections.abc import Callable

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding
from analyzer.fixing import fix_source


def findings_of(rule: str, source: str, path: str = "package/layers.py") -> list[Finding]:
    found = analyze_source(source, path, options=AnalyzerOptions(rules=frozenset({rule})))
    return list(found.findings)


def fixed(rule: str, source: str) -> str:
    options = AnalyzerOptions(rules=frozenset({rule}))
    result = fix_source(source.encode(), "package/layers.py", unsafe=True, options=options)
    assert [finding.rule for finding in result.applied] == [rule]
    return result.data.decode()


def function_of(source: str) -> Callable[..., torch.Tensor]:
    namespace: dict[str, object] = {}
    exec(compile(source, "layers.py", "exec"), namespace)
    function = namespace["f"]
    assert callable(function)
    return function


def gradient(function: Callable[..., torch.Tensor], x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    function(leaf, *others).nan_to_num(neginf=0.0).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


FINE = torch.tensor([[0.5, 2.0, 3.0], [1.0, 1.5, 0.25]])
ZERO = torch.tensor([[0.0, 2.0, 3.0], [1.0, 1.5, 0.25]])
SOURCES = [
    ("GP114", "import torch\ndef f(x):\n    return torch.where(x > 0, 1 / x, 0.0)\n", ()),
    ("GP114", "import torch\ndef f(x):\n    y = x.sqrt()\n    return torch.where(x > 0, y, 0.0)\n", ()),
    ("GP114", "import torch\ndef f(x):\n    return torch.where(x == 0, 0.0, x.log())\n", ()),
]


@pytest.mark.parametrize(("rule", "source", "others"), SOURCES)
def test_a_safe_fix_keeps_the_values_and_mends_the_gradient(
    rule: str, source: str, others: tuple[torch.Tensor, ...]
) -> None:
    before, after = function_of(source), function_of(fixed(rule, source))
    assert not gradient(before, ZERO, *others).isfinite().all()
    assert gradient(after, ZERO, *others).isfinite().all()
    torch.testing.assert_close(after(FINE, *others), before(FINE, *others))
    torch.testing.assert_close(gradient(after, FINE, *others), gradient(before, FINE, *others))


def test_a_fully_masked_row_is_finite_after_the_fix() -> None:
    source = (
        "import torch\ndef f(s, mask):\n    s = s.masked_fill(mask, float('-inf'))\n"
        "    return torch.softmax(s, dim=-1)\n"
    )
    before, after = function_of(source), function_of(fixed("GP116", source))
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert not before(FINE, mask).isfinite().all()
    assert after(FINE, mask).isfinite().all()
    torch.testing.assert_close(after(FINE, mask)[1], before(FINE, mask)[1])
    assert after(FINE.half(), mask).isfinite().all()


def test_a_condition_that_changes_before_the_where_is_not_moved_to_the_operation() -> None:
    source = (
        "import torch\ndef f(x, n):\n    q = x / n\n    n = n - 1\n    ok = n > 0\n    return torch.where(ok, q, 0.0)\n"
    )
    assert [finding.fix.edits for finding in findings_of("GP114", source)] == [()]
