"""Findings that are true and hardly ever matter are notes, and their neighbours that do matter stay warnings."""

from __future__ import annotations

import pytest

from analyzer.engine import analyze_source
from analyzer.findings import Severity

_HEAD = "import torch\nfrom torch import nn\n\n\n"
_NORM = "def norm(t):\n    return t.pow(2).sum(-1, keepdim=True).pow(0.5)\n\n\n"
_SCALED = (
    "class Inner(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(4, 4)\n"
    "\n    def forward(self, x: torch.Tensor):\n        x *= 0.5\n        return self.fc(x)\n\n\n"
    "class Outer(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.norm = nn.LayerNorm(4)\n        self.drop = nn.Dropout(0.1)\n        self.inner = Inner()\n\n"
    "    def forward(self, x):\n"
)


def severities(rule: str, source: str) -> list[Severity]:
    found = analyze_source((_HEAD + source).encode(), "layers.py").findings
    return [finding.severity for finding in found if finding.rule == rule]


def outer(body: str) -> str:
    return _SCALED + "".join(f"        {line}\n" for line in body.splitlines())


def branch(test: str) -> str:
    return (
        "class Block(nn.Module):\n    def forward(self, x):\n"
        f"        if {test}:\n            x = torch.clamp(x, -1e4, 1e4)\n        return x\n"
    )


@pytest.mark.parametrize(
    "body",
    [
        "h = self.norm(x)\nreturn self.inner(h)",
        "residual = x\nx = self.norm(x)\nx = self.inner(x)\nreturn residual + x",
        "return self.inner(self.norm(x))",
    ],
)
def test_a_tensor_that_its_only_caller_made_for_the_call_may_be_changed(body: str) -> None:
    assert severities("GP408", outer(body)) == [Severity.NOTE]


@pytest.mark.parametrize(
    "body",
    [
        "return self.inner(x)",
        "h = self.norm(x)\nreturn self.inner(h) + h",
        "h = self.norm(x)\nresidual = h\nreturn self.inner(h) + residual",
        "h = self.drop(x)\nreturn self.inner(h)",
        "h = x * 2\nreturn self.inner(h)",
    ],
)
def test_a_tensor_that_the_caller_still_has_may_not_be_changed(body: str) -> None:
    assert severities("GP408", outer(body)) == [Severity.WARNING]


def test_a_module_that_is_made_elsewhere_as_well_is_not_known_to_be_called_with_temporaries() -> None:
    source = outer("h = self.norm(x)\nreturn self.inner(h)") + "\n\nmodel = nn.Sequential(Inner())\n"
    assert severities("GP408", source) == [Severity.WARNING]


def test_limiting_positions_in_place_twice_gives_what_once_gave() -> None:
    source = "class Head(nn.Module):\n    def forward(self, x, {0}: torch.Tensor):\n        {0}.clamp_(0, 5)\n" + (
        "        return x.gather(1, {0})\n"
    )
    assert severities("GP408", source.format("start_positions")) == [Severity.NOTE]
    assert severities("GP408", source.format("hidden")) == [Severity.WARNING]


def test_a_branch_that_asks_for_the_type_first_is_a_note() -> None:
    assert severities("GP501", branch("x.dtype == torch.float16 and torch.isinf(x).any()")) == [Severity.NOTE]
    assert severities("GP501", branch("self.training and torch.isinf(x).any()")) == [Severity.WARNING]
    assert severities("GP501", branch("torch.isinf(x).any()")) == [Severity.WARNING]


def test_a_helper_for_norms_that_sees_only_outputs_of_a_network_is_a_note() -> None:
    model = (
        "class Clip(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.body = Body()\n"
        "        self.projection = nn.Linear(4, 4, bias=False)\n\n    def forward(self, x):\n"
        "        {}\n        return h * norm(h)\n"
    )
    assert severities("GP103", _NORM + model.format("h = self.projection(self.body(x))")) == [Severity.NOTE]
    assert severities("GP103", _NORM + model.format("out = self.body(x)\n        h = out.pooled")) == [Severity.NOTE]
    assert severities("GP103", _NORM + model.format("h = self.projection(x)")) == [Severity.WARNING]
    assert severities("GP103", _NORM + model.format("h = x")) == [Severity.WARNING]
    assert severities("GP103", _NORM) == [Severity.WARNING]


def test_a_branch_that_skips_an_encoder_whose_input_is_optional_is_a_note() -> None:
    source = (
        "class Model(nn.Module):\n    def forward(self, h, ids, images=None):\n"
        "        if {} (ids == 3).any():\n            h = {}\n        return h\n"
    )
    assert severities("GP501", source.format("images is not None and", "self.encode(images)")) == [Severity.NOTE]
    assert severities("GP501", source.format("images is not None and", "h + images")) == [Severity.WARNING]
    assert severities("GP501", source.format("images and", "self.encode(images)")) == [Severity.WARNING]
    assert severities("GP501", source.format("", "self.encode(images)")) == [Severity.WARNING]


def test_the_norm_of_what_came_out_of_the_blocks_of_a_model_is_a_note() -> None:
    model = (
        "class Model(nn.Module):\n    def forward(self, x, mask):\n        for i, block in enumerate({}):\n"
        "            x = {}\n        return x * (x[0] ** 2).mean(-1).sqrt()\n"
    )
    assert severities("GP103", model.format("self.blocks", "block(x, mask)")) == [Severity.NOTE]
    assert severities("GP103", model.format("self.blocks", "block(x, mask=mask)")) == [Severity.NOTE]
    assert severities("GP103", model.format("self.blocks", "block(x)")) == [Severity.WARNING]
    assert severities("GP103", model.format("self.blocks", "torch.mul(x, mask)")) == [Severity.WARNING]
    assert severities("GP103", model.format("mask", "block(x, mask)")) == [Severity.WARNING]


def test_a_stand_in_for_export_may_work_on_the_cpu() -> None:
    source = (
        "def {}(x: torch.Tensor, n):\n    x = x.to(x.device)\n    zeros = torch.zeros(n, 4)\n"
        "    return torch.cat([zeros, x])\n"
    )
    assert severities("GP602", source.format("_onnx_pad")) == [Severity.NOTE]
    assert severities("GP602", source.format("_pad")) == [Severity.WARNING]


def test_autocast_says_nothing_of_an_embedding() -> None:
    source = (
        "class Table(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.table = nn.{}(4, 4)\n\n    def forward(self, x):\n"
        "        with torch.autocast('cuda', enabled=False):\n            return self.table(x)\n"
    )
    assert severities("GP619", source.format("Embedding")) == []
    assert severities("GP619", source.format("Linear")) == [Severity.WARNING]


@pytest.mark.parametrize(
    ("remark", "expected"),
    [
        ("# only for inference\n", Severity.NOTE),
        ('"""Inference only."""\n', Severity.NOTE),
        ("# quick\n", Severity.ERROR),
        ('"""Also used in inference."""\n', Severity.ERROR),
    ],
)
def test_a_function_that_says_it_never_trains_may_write_what_autograd_saved(remark: str, expected: Severity) -> None:
    source = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.up = nn.Linear(4, 4)\n\n    def forward(self, x):\n        "
        + remark
        + "        x = x.clone()\n        x[:, :4] = self.up(x[:, :4])\n        return x\n"
    )
    assert severities("GP405", source) == [expected]


def test_running_statistics_are_a_note() -> None:
    body = "    return torch.sqrt((x ** 2).mean(-1).clamp(min=0))\n"
    assert severities("GP103", "def update_running_stats(x):\n" + body) == [Severity.NOTE]
    assert severities("GP103", "def spread(x):\n" + body) == [Severity.WARNING]


def test_a_layer_that_its_class_says_it_leaves_out_is_silent() -> None:
    source = (
        'class Block(nn.Module):\n    """{}"""\n\n    def __init__(self):\n        super().__init__()\n'
        "        self.fc = nn.Linear(4, 4)\n        self.audio_fc = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return self.fc(x)\n"
    )
    assert severities("GP719", source.format("Runs the video stream, skipping the audio branch.")) == []
    assert severities("GP719", source.format("Runs the video stream and the audio branch.")) == [Severity.WARNING]
    assert severities("GP719", source.format("Skips connections. The audio branch is next.")) == [Severity.WARNING]


@pytest.mark.parametrize(
    ("rule", "quiet", "loud"),
    [
        # a kernel is made from settings
        (
            "GP102",
            "def gaussian(x):\n    return x / x.abs().norm()\n",
            "def scaled(x):\n    return x / x.abs().norm()\n",
        ),
        # divided by a norm before
        (
            "GP102",
            "def f(x, x_norm):\n    y = x / x_norm\n    return y / y.norm()\n",
            "def f(x):\n    y = x * 2\n    return y / y.norm()\n",
        ),
        (
            "GP101",
            "def f(x, z, norm):\n    y = x / norm\n    y = -y\n    return z / (y * y).sum(-1)[:, None]\n".replace(
                "norm", "x_norm"
            ),
            "def f(x, z, norm):\n    y = x / z\n    y = -y\n    return z / (y * y).sum(-1)[:, None]\n",
        ),
        # the norm of a whole matrix product
        (
            "GP102",
            "def f(s):\n    m = torch.matmul(s.mT, s)\n    return m / torch.norm(m, dim=(-1, -2), keepdim=True)\n",
            "def f(s):\n    m = torch.matmul(s.mT, s)\n    return m / torch.norm(m, dim=-1, keepdim=True)\n",
        ),
        (
            "GP102",
            "def f(s):\n    m = s @ s\n    return m / torch.norm(m, dim=(-1, -2), keepdim=True)\n",
            "def f(s):\n    m = s * s\n    return m / torch.norm(m, dim=(-1, -2), keepdim=True)\n",
        ),
        # the largest of several
        (
            "GP101",
            "def f(x, z):\n    n = x.norm(dim=-1)\n    i = n.argmax(-1, keepdim=True)\n    m = torch.gather(n, -1, i)\n"
            "    return z / m\n",
            "def f(x, z, i):\n    n = x.norm(dim=-1)\n    m = torch.gather(n, -1, i)\n    return z / m\n",
        ),
        # counts
        (
            "GP102",
            "def f(i):\n    n = scatter(torch.ones_like(i), i)\n    n = n.to(torch.float)\n    return n / n.norm()\n",
            "def f(i, x):\n    n = scatter(x, i, 0)\n    n = n.to(torch.float)\n    return n / n.norm()\n",
        ),
        # zeros are replaced before
        (
            "GP102",
            "def f(q, k):\n    q[q == 0] = 1e-6\n    k[k == 0] = 1e-6\n"
            "    return list(map(lambda t: t / t.norm(dim=-1, keepdim=True), (q, k)))\n",
            "def f(q, k):\n    q[q == 0] = 1e-6\n"
            "    return list(map(lambda t: t / t.norm(dim=-1, keepdim=True), (q, k)))\n",
        ),
    ],
)
def test_divisors_that_are_zero_in_theory_only_are_a_note(rule: str, quiet: str, loud: str) -> None:
    assert Severity.WARNING not in severities(rule, quiet)
    assert severities(rule, loud) == [Severity.WARNING]
