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


def changed_in_place(base: str, write: str) -> str:
    return (
        "import abc\n\nfrom elsewhere import Block\n\n\nclass Own(nn.Module):\n    pass\n\n\n"
        f"class Encoder({base}):\n    def forward(self, h: torch.Tensor, mask):\n        {write}\n"
        "        return h.sum(-1)\n"
    )


def test_what_callers_in_another_file_hand_over_is_not_known() -> None:
    assert severities("GP408", changed_in_place("Block", "h *= 0.5")) == [Severity.NOTE]
    for base in ("nn.Module", "nn.Linear", "Own", "nn.Module, abc.ABC"):
        assert severities("GP408", changed_in_place(base, "h *= 0.5")) == [Severity.WARNING]


def test_setting_masked_places_twice_gives_what_once_gave() -> None:
    for write in ("h[~mask] = 0.0", "h[mask] = 0", "h[mask == 0] = 0"):
        assert severities("GP408", changed_in_place("nn.Module", write)) == [Severity.NOTE]
    for write in ("h[:, 0] = 0", "h[~mask] = h.mean()", "h[~mask] *= 2"):
        assert severities("GP408", changed_in_place("nn.Module", write)) == [Severity.WARNING]


def test_an_optional_mask_of_keys_leaves_every_row_a_place_unless_a_sample_is_all_padding() -> None:
    given = "def attend(s, keep=None):\n    if keep is not None:\n        keep = {}\n" + (
        "        s = s.masked_fill(~keep, float('-inf'))\n    return s.softmax(-1)\n"
    )
    required = "def attend(s, keep):\n    s = s.masked_fill(~{}, float('-inf'))\n    return s.softmax(-1)\n"
    for spread in ("keep[:, None, None]", "keep[:, None, None, :]", "keep.unsqueeze(1).unsqueeze(2)"):
        assert severities("GP116", given.format(spread)) == [Severity.NOTE]
        assert severities("GP116", required.format(spread)) == [Severity.WARNING]
    for spread in ("keep[:, None, :]", "keep.unsqueeze(1)", "keep[:, :, None, None]"):
        assert severities("GP116", given.format(spread)) == [Severity.WARNING]


def test_an_optional_mask_that_is_handed_on_among_the_options_of_a_model_is_a_note() -> None:
    source = (
        "class Head(nn.Module):\n    def forward(self, ids, attention_mask={0}, past=None, places=None, kinds=None):\n"
        "        out = self.body(ids, attention_mask=attention_mask, past=past, {1})\n        h = out[0]\n"
        "        return self.score(h.mean(dim=1))\n"
    )
    assert severities("GP740", source.format("None", "places=places, kinds=kinds")) == [Severity.NOTE]
    assert severities("GP740", source.format("None", "places=None, kinds=kinds")) == [Severity.WARNING]
    required = source.format("None", "places=places, kinds=kinds").replace("attention_mask=None", "attention_mask")
    assert severities("GP740", required) == [Severity.WARNING]


def test_a_deprecated_name_that_somebody_silences_is_a_note() -> None:
    silenced = "import warnings\n\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n"
    use = "    scaler = torch.cuda.amp.GradScaler()\n"
    assert severities("GP903", silenced + use) == [Severity.NOTE]
    assert severities("GP903", "with open('log') as log:\n" + use) == [Severity.WARNING]
    assert severities("GP903", silenced + f"    def make():\n    {use}") == [Severity.WARNING]
    decorated = "    @torch.cuda.amp.custom_fwd\n    def forward(ctx, x):\n        return x\n"
    assert severities("GP903", silenced + decorated) == [Severity.NOTE]


def test_a_way_out_before_a_layer_is_a_note() -> None:
    source = (
        "class Decoder(nn.Module):\n    def forward(self, x, h):\n        blank = x == 0\n"
        "        if torch.all(blank):\n            return {}\n        return {}\n"
    )
    assert severities("GP501", source.format("h", "self.lstm(x)")) == [Severity.NOTE]
    assert severities("GP501", source.format("x, h", "self.lstm(x)")) == [Severity.NOTE]
    assert severities("GP501", source.format("h", "h * 2")) == [Severity.WARNING]
    assert severities("GP501", source.format("h", "torch.relu(h)")) == [Severity.WARNING]
    layer_before = source.replace("blank = x == 0", "blank = self.lstm(x) == 0")
    assert severities("GP501", layer_before.format("h", "h * 2")) == [Severity.WARNING]
    assert severities("GP501", source.format("h * 2", "self.lstm(x)")) == [Severity.WARNING]


def test_a_truth_value_that_was_taken_out_of_a_tensor_before_ends_no_graph_again() -> None:
    source = (
        "class Block(nn.Module):\n    def forward(self, x):\n        large = (x > 1).any(){}\n"
        "        return x / 2 if large else x\n"
    )
    assert severities("GP501", source.format(".item()")) == []
    assert severities("GP501", source.format("")) == [Severity.WARNING]


def test_a_count_that_nothing_in_the_file_switches_on_is_a_note() -> None:
    source = (
        "class Drop(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.count = 0\n"
        "        self.stack = {0}\n\n    def start(self):\n        self.stack = []\n\n    def forward(self, x):\n"
        "        if self.{1}:\n            x = x * self.count\n            self.count += 1\n{2}        return x\n"
    )
    assert severities("GP506", source.format("None", "stack is not None", "")) == [Severity.NOTE]
    assert severities("GP506", source.format("[]", "stack is not None", "")) == [Severity.WARNING]
    assert severities("GP506", source.format("None", "training", "")) == [Severity.WARNING]
    assert severities("GP506", source.format("None", "stack is None", "")) == [Severity.WARNING]
    called = source.format("None", "stack is not None", "") + "\n\ndrop = Drop()\ndrop.start()\n"
    assert severities("GP506", called) == [Severity.WARNING]
    for start in ("        self.start()\n", "        self.stack = [x]\n"):
        assert severities("GP506", source.format("None", "stack is not None", start)) == [Severity.WARNING]


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
    assert severities("GP619", source.format("Linear")) == [Severity.NOTE]


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


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("GP101", "return y / {0}.norm(dim=-1)"),
        ("GP102", "return {0} / {0}.norm(dim=-1, keepdim=True)"),
        ("GP102", "m = {0} - {0}.mean()\nreturn m / m.std()"),
        ("GP103", "v = ({0}.float() * mask).pow(2).sum(-1)\nreturn v.sqrt()"),
        ("GP104", "c = ({0} - {0}.mean(1)).masked_fill(~mask, 0.0)\nreturn y / (c.pow(2).sum(1).sqrt() + 1e-5)"),
        ("GP113", "return torch.sqrt({0}[..., 0] ** 2 + {0}[..., 1] ** 2)"),
    ],
)
def test_data_have_no_gradient_and_are_known_by_their_names(rule: str, body: str) -> None:
    source = "def f({0}, y, mask):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    for data in ("input_features", "past_values", "pixel_values", "extrinsics", "ray_directions", "raw_audio"):
        assert severities(rule, source.format(data)) == [Severity.NOTE]
    for other in ("x", "image", "points", "pred", "camera_embedding", "input_features_pred"):
        assert severities(rule, source.format(other)) == [Severity.WARNING]


@pytest.mark.parametrize(
    "body",
    [
        "h = self.proj(input_features)\nreturn h.relu() / h.relu().norm(dim=-1)",
        "input_features = self.proj(input_features).relu()\nreturn y / input_features.norm(dim=-1)",
        "return y / (input_features + y).norm(dim=-1)",
        "return y / (input_features * pred_mask).norm(dim=-1)",
    ],
)
def test_what_a_layer_made_of_data_has_a_gradient(body: str) -> None:
    source = "class Net(nn.Module):\n    def forward(self, input_features, y, pred_mask):\n"
    source += "".join(f"        {line}\n" for line in body.splitlines())
    assert [*severities("GP101", source), *severities("GP102", source)] == [Severity.WARNING]


def test_the_rays_of_a_camera_are_laid_out_from_settings() -> None:
    source = (
        "def f(R, fov):\n    d_cam = {0}(fov)\n    d = torch.einsum('bij,bhwj->bhwi', R, d_cam)\n"
        "    return torch.sqrt(d[..., 0] ** 2 + d[..., 2] ** 2)\n"
    )
    assert severities("GP113", source.format("unproject_grid")) == [Severity.NOTE]
    assert severities("GP113", source.format("decode")) == [Severity.WARNING]
    turned = source.replace("    d_cam", "    R = nn.Linear(9, 9)(fov)\n    d_cam")
    assert severities("GP113", turned.format("unproject_grid")) == [Severity.WARNING]


@pytest.mark.parametrize(
    ("rule", "length"),
    [
        ("GP103", "d = pos[{0}] - pos[{1}]\nreturn d.pow(2).sum(dim=-1).sqrt()"),
        ("GP103", "return ((pos[{0}] - pos[{1}]) ** 2).sum(dim=-1).sqrt()"),
        ("GP113", "dx = pos[{0}] - pos[{1}]\ndy = y[{0}] - y[{1}]\nreturn torch.hypot(dx, dy)"),
    ],
)
def test_edges_between_two_nodes_are_hardly_ever_of_no_length(rule: str, length: str) -> None:
    def said(before: str, first: str, second: str) -> list[Severity]:
        body = before + length.format(first, second)
        return severities(rule, "def f(pos, y, edge_index):\n" + "".join(f"    {line}\n" for line in body.splitlines()))

    assert said("row, col = edge_index\n", "row", "col") == [Severity.NOTE]
    assert said("i, j, k = triplets(edge_index)\n", "i", "j") == [Severity.NOTE]
    assert said("", "edge_index[0]", "edge_index[1]") == [Severity.NOTE]
    assert said("", ":, None", "None") == [Severity.WARNING]
    assert said("", "1:", ":-1") == [Severity.WARNING]
    assert said("", "0", "1") == [Severity.WARNING]
    assert said("i, j = torch.triu_indices(4, 4)\n", "i", "j") == [Severity.WARNING]
    assert said("", "y[0]", "y[1]") == [Severity.WARNING]
    assert said("i = 0\nj = 1\n", "i", "j") == [Severity.WARNING]


def test_points_of_two_clouds_can_be_the_same() -> None:
    source = "def f(a, b, i, j):\n    return ({0}[i] - {1}[j]).pow(2).sum(dim=-1).sqrt()\n"
    assert severities("GP103", source.format("a", "a")) == [Severity.NOTE]
    assert severities("GP103", source.format("a", "b")) == [Severity.WARNING]


def test_pairs_of_a_loop_meet_on_the_diagonal() -> None:
    source = (
        "def f(pos):\n    for i in range(4):\n        for j in range(4):\n"
        "            yield (pos[i] - pos[j]).pow(2).sum(dim=-1).sqrt()\n"
    )
    assert severities("GP103", source) == [Severity.WARNING]


def test_a_quaternion_has_a_length_and_its_vector_part_may_have_none() -> None:
    division = "def f(y, {0}):\n    return y / torch.sum({0}**2, dim=-1, keepdim=True)\n"
    root = "def f({0}):\n    return ({1} ** 2).sum(-1).sqrt()\n"
    assert severities("GP101", division.format("quat")) == [Severity.NOTE]
    assert severities("GP101", division.format("rotvec")) == [Severity.WARNING]
    assert severities("GP103", root.format("quaternion", "quaternion")) == [Severity.NOTE]
    assert severities("GP103", root.format("quat", "quat[..., 1:]")) == [Severity.WARNING]
    assert severities("GP103", root.format("quat_diff", "quat_diff")) == [Severity.WARNING]


def test_there_is_always_another_element_to_compare_with() -> None:
    source = (
        "def f(p, s, n, t):\n    mask = {0}\n"
        "    mask = torch.clone(mask.type(torch.float)).to(p.device)\n    others = mask * {1}(s / t)\n"
        "    return -torch.log(torch.exp(p) / torch.sum(others, dim=1))\n"
    )
    for mask in ("~torch.eye(2 * n, dtype=torch.bool)", "1 - torch.eye(n)"):
        assert severities("GP101", source.format(mask, "torch.exp")) == []
        assert severities("GP101", source.format(mask, "torch.relu")) == [Severity.WARNING]
    assert severities("GP101", source.format("s > 0", "torch.exp")) == [Severity.WARNING]
    inline = "def f(p, s, n):\n    return p / (s.exp() * {0}).sum(-1)\n"
    assert severities("GP101", inline.format("(1 - torch.eye(n))")) == []
    assert severities("GP101", inline.format("(s > 0)")) == [Severity.WARNING]


def test_a_private_helper_that_is_given_only_data_computes_on_data() -> None:
    source = (
        "class Net(nn.Module):\n    def forward(self, past_values, x):\n"
        "        patches = past_values.view(4, -1, self.config.patch)\n"
        "        patches = torch.where(patches > 1, 0.0, patches)\n        return self.{0}({1})\n\n"
        "    @staticmethod\n    def {0}(inputs):\n        first = inputs[pick(inputs)]\n"
        "        return torch.sqrt(torch.sum(first**2, dim=1).clamp(min=0.0))\n"
    )
    assert severities("GP103", source.format("_spread", "patches")) == [Severity.NOTE]
    assert severities("GP103", source.format("spread", "patches")) == [Severity.WARNING]
    assert severities("GP103", source.format("_spread", "x")) == [Severity.WARNING]
    assert severities("GP103", source.format("_spread", "self.proj(patches)")) == [Severity.WARNING]
    other = source.format("_spread", "patches") + "\n    def more(self, x):\n        return map(self._spread, x)\n"
    assert severities("GP103", other) == [Severity.WARNING]


def test_an_argument_that_data_replace_now_and_then_is_no_data() -> None:
    source = "def f(x, y, past_values, c):\n    if c:\n        x = past_values\n    return y / x.norm(dim=-1)\n"
    assert severities("GP101", source) == [Severity.WARNING]
    assert severities("GP101", source.replace("    if c:\n        x", "    x")) == [Severity.NOTE]


@pytest.mark.parametrize("limited", ["torch.where(m >= 3, 2 * torch.exp(m - 3), m)", "torch.exp(m).clamp(max=1e4)"])
def test_a_helper_that_is_given_only_constants_has_no_gradient_to_lose(limited: str) -> None:
    source = (
        f"def scale(n, x):\n    def to_hz(m):\n        return {limited}\n\n    return to_hz({{0}}) + to_hz({{1}})\n"
    )
    constant = "torch.linspace(0, 40, n)"
    assert severities("GP131", source.format(constant, "torch.tensor([1.0, 2.0])")) == []
    assert severities("GP131", source.format(constant, "x")) == [Severity.WARNING]
    assert severities("GP131", source.format(constant, constant) + "\n\nfor_all = map(to_hz, [])\n") == [
        Severity.WARNING
    ]


def test_a_flag_on_a_part_that_forward_never_uses_is_a_note() -> None:
    source = (
        "class Frozen(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.LayerNorm(4)\n        self.norm.requires_grad = False\n\n"
        "    def forward(self, x):\n        return {}\n"
    )
    assert severities("GP206", source.format("x * 2")) == [Severity.NOTE]
    assert severities("GP206", source.format("self.norm(x)")) != [Severity.NOTE]


def test_the_state_of_a_decoder_with_a_cache_is_a_note() -> None:
    source = (
        "class Recurrent(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.cell = nn.Linear(4, 4)\n        self.state = None\n\n"
        "    def forward(self, x{}):\n        if self.state is not None:\n            x = x + self.state\n"
        "        self.state = self.cell(x)\n        return self.state\n"
    )
    assert severities("GP411", source.format(", use_cache=True")) == [Severity.NOTE]
    assert severities("GP411", source.format("")) == [Severity.WARNING]


def test_a_branch_of_a_training_that_the_file_refuses_is_a_note() -> None:
    source = (
        "class Layer(nn.Module):\n    def forward(self, x, labels=None):\n{}"
        "        if self.training:\n            if not torch.isfinite(x).all():\n"
        "                x = torch.clamp(x, min=-1e4, max=1e4)\n        return x * 2\n"
    )
    refused = "        if labels is not None:\n            raise ValueError('Layer does not support training')\n"
    assert severities("GP501", source.format(refused)) == [Severity.NOTE]
    assert severities("GP501", source.format("")) == [Severity.WARNING]


def test_depth_from_a_sensor_is_data_and_a_solver_is_not_differentiated() -> None:
    source = (
        "def {}({name}):\n    low = {name}.min()\n    high = {name}.max()\n    return ({name} - low) / (high - low)\n"
    )
    assert severities("GP101", source.format("scale", name="image")) == [Severity.WARNING]
    assert severities("GP101", source.format("scale", name="prompt_depth")) == [Severity.NOTE]
    assert severities("GP101", source.format("solve_scale", name="image")) != [Severity.WARNING]


def test_a_reshaping_helper_hands_on_what_comes_out_of_a_network() -> None:
    source = (
        "from elsewhere import reshape_channels, chosen\n\n\nclass Maps(nn.Module):\n    def __init__(self, net):\n"
        "        super().__init__()\n        self.net = net\n\n    def forward(self, x):\n        x = self.net(x)\n"
        "        x = {}(x, 2)\n        return x / x.norm(dim=1)\n"
    )
    assert severities("GP101", source.format("reshape_channels")) != [Severity.WARNING]
    assert severities("GP102", source.format("reshape_channels")) == [Severity.NOTE]
    assert severities("GP102", source.format("chosen")) == [Severity.WARNING]
