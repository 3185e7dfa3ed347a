"""The numerical rules on faults from public reports, on right code that looks like them, and on what they say."""

import json
from pathlib import Path

import pytest

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding, Severity

CASES = Path(__file__).parents[1] / "cases"
NUMERICAL = frozenset({f"GP{number}" for number in (*range(101, 115), *range(128, 140))})
# What these rules are there to find; the other numerical cases are for rules about masks, precision and hidden NaN.
LOCATED = {
    "case_001": "GP103",
    "case_002": "GP112",
    "case_003": "GP114",
    "case_005": "GP108",
    "case_013": "GP112",
    "case_016": "GP107",
    "case_018": "GP107",
    "case_019": "GP110",
    "case_020": "GP110",
    "case_024": "GP106",
    "case_028": "GP105",
    "case_031": "GP101",
    "case_032": "GP102",
    "case_033": "GP110",
    "case_035": "GP103",
    "case_037": "GP130",
}
INNOCENT = [json.loads(line) for line in (CASES / "manifest_neg.jsonl").read_text().splitlines()]
FAULTY = [json.loads(line) for line in (CASES / "manifest.jsonl").read_text().splitlines()]


def alarms(source: bytes | str, path: str = "layers.py") -> list[Finding]:
    analysis = analyze_source(source, path, options=AnalyzerOptions(rules=NUMERICAL))
    return [finding for finding in analysis.findings if finding.severity is not Severity.NOTE]


def severities(source: str, path: str = "layers.py") -> list[tuple[str, str]]:
    analysis = analyze_source(source, path, options=AnalyzerOptions(rules=NUMERICAL))
    return [(finding.rule, finding.severity.value) for finding in analysis.findings]


@pytest.mark.parametrize("case", [case for case in FAULTY if case["id"] in LOCATED], ids=lambda case: case["id"])
def test_a_reported_fault_is_found_on_its_line(case: dict[str, object]) -> None:
    found = alarms((CASES / f"{case['id']}.py").read_bytes())
    assert {finding.rule for finding in found} == {LOCATED[str(case["id"])]}
    assert case["faulty_line"] in {finding.region.start_line for finding in found}


def test_no_repaired_case_raises_an_alarm() -> None:
    assert [finding for case in FAULTY for finding in alarms((CASES / f"{case['id']}_fixed.py").read_bytes())] == []


def test_no_innocent_case_raises_an_alarm() -> None:
    assert [finding for case in INNOCENT for finding in alarms((CASES / f"{case['id']}.py").read_bytes())] == []


def test_faults_of_other_kinds_are_left_to_other_rules() -> None:
    others = [case["id"] for case in FAULTY if case["kind"] not in ("numerical", "custom_function")]
    assert [finding for case in others for finding in alarms((CASES / f"{case}.py").read_bytes())] == []


def test_a_value_without_gradient_is_worth_a_note_only() -> None:
    body = "import torch\n{}def f(x):\n    return x / x.norm()\n"
    assert severities(body.format("")) == [("GP102", "warning")]
    assert severities(body.format("@torch.no_grad()\n")) == [("GP102", "note")]


def test_a_sum_of_unknown_sign_is_worth_a_note_only() -> None:
    assert severities("import torch\ndef f(x):\n    return x / x.sum(-1, keepdim=True)\n") == [("GP102", "note")]


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("x.detach().sigmoid()", "GP109"),
        ("x.detach().softmax(-1)", "GP108"),
        ("torch.rand(3)", "GP107"),
        ("torch.rand_like(x)", "GP107"),
    ],
)
def test_a_logarithm_without_gradient_is_worth_a_note_only(data: str, rule: str) -> None:
    assert severities(f"import torch\ndef f(x):\n    return x * torch.log({data})\n") == [(rule, "note")]


@pytest.mark.parametrize(("probability", "rule"), [("sigmoid()", "GP109"), ("softmax(-1)", "GP108")])
def test_a_probability_in_code_without_gradient_is_worth_a_note_only(probability: str, rule: str) -> None:
    no_gradient = f"import torch\n@torch.no_grad()\ndef f(x):\n    return x.{probability}.log()\n"
    assert severities(no_gradient) == [(rule, "note")]


def test_vectors_out_of_a_decomposition_are_not_zero() -> None:
    source = "import torch\ndef f(a, y):\n    u, s, v = torch.linalg.{}(a)\n    n = v.norm(dim=-1)\n    return y / n\n"
    assert severities(source.format("svd")) == []
    assert severities(source.format("anything")) == [("GP101", "warning")]


def test_a_mask_that_selects_nothing_is_worth_a_note_only() -> None:
    assert severities("import torch\ndef f(l, mask):\n    return (l * mask).sum() / mask.sum()\n") == [
        ("GP101", "note")
    ]


@pytest.mark.parametrize("path", ["pkg/schedulers/euler.py", "pkg/metrics/recall.py", "pkg/image_processing_x.py"])
def test_code_that_nobody_differentiates_is_left_alone(path: str) -> None:
    assert severities("import torch\ndef f(x):\n    return x / x.norm()\n", path) == []


@pytest.mark.parametrize("use", ["{}.detach()", "int({})", "{} > 1", "print({})", "{}.item()", "torch.ceil({})"])
def test_a_root_that_is_only_read_off_is_left_alone(use: str) -> None:
    root = "x.pow(2).sum().sqrt()"
    assert severities(f"import torch\ndef f(x):\n    return {use.format(root)}\n") == []
    assert severities(f"import torch\ndef f(x):\n    r = {root}\n    return {use.format('r')}\n") == []
    assert severities(f"import torch\ndef f(x):\n    return {root}.float()\n") == [("GP103", "warning")]


def test_an_attribute_set_in_the_constructor_is_followed() -> None:
    source = (
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self, eps={}):\n"
        "        super().__init__()\n        self.eps = eps\n"
        "    def forward(self, x):\n        return torch.sqrt(x.var() + self.eps)\n"
    )
    assert severities(source.format("1e-6")) == []
    assert severities(source.format("0.0")) == [("GP103", "warning")]


def test_a_buffer_carries_no_gradient() -> None:
    source = (
        "import torch\nfrom torch import nn\nclass N(nn.Module):\n    def __init__(self, v):\n"
        "        super().__init__()\n        {}\n    def forward(self, x):\n        return x * self.v.abs().sqrt()\n"
    )
    assert severities(source.format("self.register_buffer('v', v)")) == []
    assert severities(source.format("self.v = nn.Parameter(v)")) == [("GP103", "warning")]


def test_definitions_are_followed_over_branches_and_loops() -> None:
    both = (
        "import torch\ndef f(x, c, y):\n    n = x.norm()\n    if c:\n        n = n.clamp(min=1e-6)\n"
        "{}    return y / n\n"
    )
    assert severities(both.format("")) == [("GP101", "warning")]
    assert severities(both.format("    else:\n        n = n + 1e-6\n")) == []
    branch = "import torch\ndef f(x, c, y):\n    n = x.exp()\n    if c:\n        n = x.norm()\n"
    assert severities(branch + "    else:\n        y = y / n\n    return y\n") == []
    assert severities(branch + "        return n\n    return y / n\n") == []
    loop = (
        "import torch\ndef f(x, y):\n    n = x.exp()\n    for _ in range(3):\n        y = y / n\n"
        "        n = x.norm()\n    return y\n"
    )
    assert severities(loop) == [("GP101", "warning")]


def test_a_module_constant_is_followed() -> None:
    source = "import torch\nFLOOR = {}\ndef f(x, y):\n    return y / x.norm().clamp(min=FLOOR)\n"
    assert severities(source.format("1e-6")) == []
    assert severities(source.format("0.0")) == [("GP101", "warning")]


def test_a_function_of_the_same_name_is_not_torch() -> None:
    source = "import torch\ndef norm(x):\n    return x.exp().sum()\ndef f(x, y):\n    return y / norm(x)\n"
    assert severities(source) == []


def test_a_shadowed_import_is_not_torch() -> None:
    assert severities("import torch\ndef f(torch, y):\n    return y / torch.linalg\n") == []


def test_a_long_chain_of_definitions_costs_linear_time() -> None:
    """Each line uses the one before twice: looked at naively, 2 to the power of 60 paths."""
    chain = "".join(f"    x{i + 1} = x{i} * x{i} + x{i}\n" for i in range(60))
    assert alarms(f"import torch\ndef f(x0, y):\n{chain}    return y / x60.norm()\n")[0].rule == "GP101"


def test_the_message_says_what_is_zero_when_and_what_follows() -> None:
    (finding,) = alarms("import torch\ndef f(x):\n    return x / x.norm(dim=-1)\n")
    assert finding.message == (
        "`x` is divided by `x.norm(dim=-1)`, which is zero for a vector of zeros: there the value and the gradient are "
        "inf or NaN."
    )


NETWORK = (
    "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self, body):\n"
    "        super().__init__()\n        self.body = body\n        self.layer = {}\n"
    "    def forward(self, x):\n        z = {}\n        return z / z.norm(dim=-1, keepdim=True)\n"
)


@pytest.mark.parametrize(
    ("layer", "result", "severity"),
    [
        ("nn.Linear(3, 4)", "self.layer(x)", "note"),
        ("nn.Linear(3, 4, bias=False)", "self.layer(x)", "warning"),
        ("nn.Linear(3, 4, bias=False)", "self.layer(self.body(x).pooled)", "note"),
        ("nn.ReLU()", "self.layer(self.body(x))", "warning"),
        ("nn.Embedding(3, 4, padding_idx=0)", "self.layer(x)", "warning"),
        ("nn.LayerNorm(4)", "self.layer(x).mean(1)", "note"),
        ("nn.Sequential(nn.Linear(3, 4), nn.ReLU())", "self.layer(x)", "warning"),
        ("nn.Sequential(nn.ReLU(), nn.Linear(3, 4))", "self.layer(x) + x", "note"),
        ("nn.Linear(3, 4)", "self.layer(x) * x", "warning"),
        ("nn.Linear(3, 4)", "x", "warning"),
    ],
)
def test_what_comes_out_of_a_network_is_no_row_of_zeros(layer: str, result: str, severity: str) -> None:
    assert severities(NETWORK.format(layer, result)) == [("GP102", severity)]


def test_attributes_and_methods_of_a_base_class_in_the_same_file_are_followed() -> None:
    source = (
        "import torch\nfrom torch import nn\nclass Base(nn.Module):\n    def __init__(self, eps={}):\n"
        "        super().__init__()\n        self.eps = eps\n    def spread(self, x):\n"
        "        return x.var(-1) + self.eps\nclass Derived(Base):\n    def forward(self, x, y):\n"
        "        return torch.sqrt(x.var() + self.eps) + self.spread(y).sqrt()\n"
    )
    assert severities(source.format("1e-6")) == []
    assert severities(source.format("0.0")) == [("GP103", "warning"), ("GP103", "warning")]


def test_classes_that_inherit_from_each_other_end_the_search() -> None:
    source = (
        "import torch\nclass A(B):\n    def f(self, x):\n        return x / self.n\nclass B(A):\n"
        "    def g(self, x):\n        return x.var().sqrt() + self.n\n"
    )
    assert severities(source) == [("GP103", "warning")]


def test_a_shift_by_the_maximum_bounds_what_follows() -> None:
    source = "import torch\ndef f(x):\n    m = {}\n    e = torch.exp(x - m)\n    return e / e.sum(-1, keepdim=True)\n"
    for maximum in (
        "x.amax(-1, keepdim=True)",
        "x.max(-1, keepdim=True)[0].detach()",
        "x.max(dim=-1, keepdim=True).values",
    ):
        assert severities(source.format(maximum)) == []
    assert severities(source.format("x.mean(-1, keepdim=True)")) == [("GP110", "warning")]
