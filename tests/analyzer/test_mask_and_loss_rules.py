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
FAR = torch.tensor([[0.0, 200.0, 3.0], [1.0, 1.5, 0.25]])
HEAD = "import torch\nimport torch.nn.functional as F\n"
MENDED = [
    ("GP114", "def f(x):\n    return torch.where(x > 0, 1 / x, 0.0)\n", ZERO),
    ("GP114", "def f(x):\n    y = x.sqrt()\n    return torch.where(x > 0, y, 0.0)\n", ZERO),
    ("GP114", "def f(x):\n    return torch.where(x == 0, 0.0, x.log())\n", ZERO),
    ("GP122", "def f(x):\n    return torch.special.entr(x.softmax(-1)).sum()\n", FAR),
    ("GP122", "def f(x):\n    p = x.softmax(-1)\n    return torch.xlogy(p, p).sum()\n", FAR),
    ("GP122", "def f(probs):\n    return (probs * probs.log()).sum()\n", ZERO),
    (
        "GP122",
        "def f(x):\n    return F.kl_div(torch.ones(2, 3).log_softmax(-1), x.softmax(-1), reduction='batchmean')\n",
        FAR,
    ),
]


@pytest.mark.parametrize(("rule", "body", "trigger"), MENDED)
def test_a_safe_fix_keeps_the_values_and_mends_the_gradient(rule: str, body: str, trigger: torch.Tensor) -> None:
    before, after = function_of(HEAD + body), function_of(fixed(rule, HEAD + body))
    assert not gradient(before, trigger).isfinite().all()
    assert gradient(after, trigger).isfinite().all()
    torch.testing.assert_close(after(FINE), before(FINE))
    torch.testing.assert_close(gradient(after, FINE), gradient(before, FINE))


def test_the_loss_on_logits_is_the_same_and_goes_on_learning_where_the_sigmoid_is_saturated() -> None:
    source = HEAD + "def f(x):\n    return F.binary_cross_entropy(torch.sigmoid(x), torch.ones(2, 3))\n"
    before, after = function_of(source), function_of(fixed("GP123", source))
    torch.testing.assert_close(after(FINE), before(FINE))
    assert (gradient(before, -FAR)[0, 1], gradient(after, -FAR)[0, 1]) == (0.0, pytest.approx(-1 / 6))


def test_a_mask_of_infinity_has_no_nan_after_the_fix() -> None:
    source = HEAD + "def f(mask):\n    return (1.0 - mask) * float('-inf')\n"
    before, after = function_of(source), function_of(fixed("GP117", source))
    mask = torch.tensor([1.0, 0.0])
    assert before(mask).isnan().tolist() == [True, False]
    assert after(mask).tolist() == [0.0, float("-inf")]


def test_a_fill_fits_into_half_precision_after_the_fix() -> None:
    source = HEAD + "def f(x, mask):\n    x = x.half()\n    return x.masked_fill(mask, -1e9).softmax(-1)\n"
    mask = torch.tensor([[True, False, False], [False, True, False]])
    with pytest.raises(RuntimeError, match="overflow"):
        function_of(source)(FINE, mask)
    assert function_of(fixed("GP118", source))(FINE, mask)[mask].tolist() == [0.0, 0.0]


def test_the_variance_keeps_its_value_and_its_digits() -> None:
    source = HEAD + "def f(x):\n    return (x ** 2).mean(-1) - x.mean(-1) ** 2\n"
    before, after = function_of(source), function_of(fixed("GP121", source))
    torch.testing.assert_close(after(FINE), before(FINE))
    shifted = FINE + 1e4
    assert (after(shifted) - after(FINE)).abs().max() < 1e-2
    assert (before(shifted) - before(FINE)).abs().max() > 1


def test_a_batch_of_one_has_a_deviation_after_the_fix() -> None:
    source = HEAD + "def f(x):\n    return x.std(dim=0)\n"
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert function_of(source)(FINE[:1]).isnan().all()
    assert function_of(fixed("GP120", source))(FINE[:1]).tolist() == [0.0, 0.0, 0.0]


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


@pytest.mark.parametrize("repair", ["torch.nan_to_num(w)", "w.masked_fill(mask, 0.0)", "torch.where(mask, 0.0, w)"])
def test_weights_may_be_repaired_behind_a_fill_but_not_behind_a_sum(repair: str) -> None:
    """Measured on torch 2.13: a filled place sends no gradient back, an added one sends NaN."""
    body = "def f(s, mask):\n{}    w = s.softmax(-1)\n    return " + repair + "\n"
    filled = HEAD + body.format("    s = s.masked_fill(mask, float('-inf'))\n")
    added = HEAD + body.format("    s = s + torch.zeros_like(s).masked_fill(mask, float('-inf'))\n")
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert gradient(function_of(filled), FINE, mask).isfinite().all()
    assert not gradient(function_of(added), FINE, mask).isfinite().all()
    assert findings_of("GP116", filled) == []
    assert [finding.severity.value for finding in findings_of("GP116", added)] == ["warning"]


@pytest.mark.parametrize(
    "body",
    [
        "def f(x):\n    return torch.nan_to_num(1 / x, posinf=0.0)\n",
        "def f(x):\n    y = x.sqrt()\n    return y.masked_fill(torch.isnan(y), 0.0) * 2\n",
        "def f(x):\n    y = x.log()\n    return torch.where(torch.isinf(y), torch.zeros_like(y), y)\n",
        "def f(x):\n    return x.log().clamp(min=-100.0)\n",
        "def f(x):\n    y = 1 / x\n    y = y.masked_fill(x == 0, 0.0)\n    return y\n",
    ],
)
def test_what_cleans_a_value_leaves_its_gradient_as_it_was(body: str) -> None:
    assert not gradient(function_of(HEAD + body), ZERO).isfinite().all()
    assert [finding.severity.value for finding in findings_of("GP115", HEAD + body)] == ["warning"]


@pytest.mark.parametrize("matrix", [torch.eye(3), torch.ones(3, 3), torch.diag(torch.tensor([1.0, 1.0, 0.0]))])
def test_the_nearest_rotation_has_no_gradient_where_singular_values_repeat(matrix: torch.Tensor) -> None:
    source = (
        HEAD + "def f(m):\n    u, s, vh = torch.linalg.svd(m)\n    return (u @ vh) * torch.arange(9.0).view(3, 3)\n"
    )
    assert not gradient(function_of(source), matrix).isfinite().all()
    assert [finding.severity.value for finding in findings_of("GP142", source)] == ["warning"]


def test_an_epsilon_is_worth_a_warning_only_where_the_type_is_told() -> None:
    body = HEAD + "def f(x, y):\n    {}return (x / (x.norm() + 1e-8)){}\n"
    severities = [
        [finding.severity.value for finding in findings_of("GP119", body.format(*parts))]
        for parts in (("x = x.half()\n    ", ""), ("", ".to(y.dtype)"), ("", ""))
    ]
    assert severities == [["warning"], ["note"], []]


def test_a_fill_is_worth_a_warning_where_low_precision_is_expected() -> None:
    body = HEAD + "def f(s, mask, v):\n    s = s.masked_fill(mask, -1e9)\n    return s.softmax(-1){} @ v\n"
    assert [finding.severity.value for finding in findings_of("GP118", body.format(".to(v.dtype)"))] == ["warning"]
    assert [finding.severity.value for finding in findings_of("GP118", body.format(""))] == ["note"]


def test_an_empty_selection_is_worth_a_warning_where_it_is_likely() -> None:
    body = HEAD + "def f(loss, y):\n    return loss[{}].mean()\n"
    likely = [findings_of("GP125", body.format(index))[0].severity.value for index in ("y > 0", "y == 3", "y != -100")]
    assert likely == ["warning", "warning", "note"]
