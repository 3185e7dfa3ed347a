"""What the rules on training claim is true of the installed torch, and their fixes mend what they point at."""

import pytest
import torch
from torch import nn

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.fixing import fix_source

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"


def rules_found(source: str) -> set[str]:
    return {finding.rule for finding in analyze_source(source, "package/train.py").findings}


def fixed(source: str, rule: str) -> str:
    options = AnalyzerOptions(rules=frozenset({rule}))
    result = fix_source(source.encode(), "package/train.py", unsafe=True, options=options)
    assert result.applied, f"{rule} offered no fix"
    return result.data.decode()


def space_of(source: str) -> dict[str, object]:
    space: dict[str, object] = {}
    exec(compile(source, "example.py", "exec"), space)
    return space


def before_and_after(source: str, rule: str) -> tuple[dict[str, object], dict[str, object]]:
    """The names that a faulty source defines, and those of its fixed form."""
    assert rule in rules_found(source)
    return space_of(source), space_of(fixed(source, rule))


def weights_after(train: object, batches: object, **options: object) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, optimizer, batches, **options)  # type: ignore[operator]
    return net.weight.detach().clone()


DATA = [
    torch.tensor([[1.0, 2.0]]),
    torch.tensor([[-3.0, 1.0]]),
    torch.tensor([[0.5, 0.5]]),
    torch.tensor([[2.0, -1.0]]),
]


def test_without_clearing_a_step_follows_the_gradients_of_all_earlier_batches() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        net(x).sum().backward()\n"
        "        optimizer.step()\n",
        "GP701",
    )
    start = weights_after(faulty["train"], [])
    assert torch.allclose(start - weights_after(mended["train"], DATA), 0.1 * sum(DATA))
    assert torch.allclose(start - weights_after(faulty["train"], DATA[:2]), 0.1 * (2 * DATA[0] + DATA[1]))


def test_clearing_outside_the_condition_throws_the_accumulated_gradients_away() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches, every=2):\n    for i, x in enumerate(batches, start=1):\n"
        "        (net(x).sum() / every).backward()\n        if i % every == 0:\n            optimizer.step()\n"
        "        optimizer.zero_grad()\n",
        "GP723",
    )
    start = weights_after(faulty["train"], [])
    assert torch.allclose(start - weights_after(mended["train"], DATA[:2]), 0.05 * (DATA[0] + DATA[1]))
    assert torch.allclose(start - weights_after(faulty["train"], DATA[:2]), 0.05 * DATA[1])


def test_a_step_after_clearing_changes_nothing() -> None:
    source = (
        HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        net(x).sum().backward()\n"
        "        optimizer.zero_grad()\n        optimizer.step()\n"
    )
    assert "GP727" in rules_found(source)
    train = space_of(source)["train"]
    assert torch.equal(weights_after(train, []), weights_after(train, DATA))


def test_clipping_after_the_step_has_no_effect_and_before_it_has() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches):\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        (net(x).sum() * 100).backward()\n        optimizer.step()\n"
        "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n",
        "GP704",
    )
    start = weights_after(faulty["train"], [])
    assert (start - weights_after(mended["train"], DATA[:1])).norm() < 0.11
    assert (start - weights_after(faulty["train"], DATA[:1])).norm() > 10


def test_clipping_scaled_gradients_all_but_stops_the_step() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches):\n    scaler = torch.amp.GradScaler('cpu', init_scale=65536.0)\n"
        "    for x in batches:\n        optimizer.zero_grad()\n        scaler.scale(net(x).sum()).backward()\n"
        "        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n        scaler.step(optimizer)\n"
        "        scaler.update()\n",
        "GP705",
    )
    start = weights_after(faulty["train"], [])
    assert (start - weights_after(faulty["train"], DATA[:1])).norm() < 1e-4
    assert (start - weights_after(mended["train"], DATA[:1])).norm() > 0.05


def test_undivided_accumulation_makes_the_step_as_many_times_larger() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches, every=4):\n    for i, x in enumerate(batches, start=1):\n"
        "        loss = net(x).mean()\n        loss.backward()\n        if i % every == 0:\n"
        "            optimizer.step()\n            optimizer.zero_grad()\n",
        "GP706",
    )
    start = weights_after(faulty["train"], [])
    large, small = start - weights_after(faulty["train"], DATA), start - weights_after(mended["train"], DATA)
    assert torch.allclose(large, 4 * small)


def test_a_kept_loss_keeps_its_graph_and_a_detached_one_does_not() -> None:
    faulty, mended = before_and_after(
        HEAD + "def train(net, optimizer, batches):\n    total = 0\n    for x in batches:\n"
        "        optimizer.zero_grad()\n        loss = net(x).sum()\n        loss.backward()\n"
        "        optimizer.step()\n        total += loss\n    return total\n",
        "GP702",
    )
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    kept, freed = (space["train"](net, optimizer, DATA) for space in (faulty, mended))  # type: ignore[operator]
    assert kept.grad_fn is not None
    assert freed.grad_fn is None
    assert torch.equal(kept.detach(), freed)


def test_of_all_optimizers_only_adagrad_has_a_state_before_the_first_step() -> None:
    layer = nn.Linear(2, 2)
    eager = {
        kind.__name__
        for kind in (torch.optim.Adagrad, torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam)
        if kind(layer.parameters()).state
    }
    assert eager == {"Adagrad"}
    faulty, mended = before_and_after(
        HEAD + "def prepare(net, dtype):\n    optimizer = torch.optim.Adagrad(net.parameters())\n"
        "    net = net.to(dtype)\n    return net, optimizer\n",
        "GP712",
    )
    for space, expected in ((faulty, torch.float32), (mended, torch.float64)):
        _, optimizer = space["prepare"](nn.Linear(2, 2), torch.float64)  # type: ignore[operator]
        assert {state["sum"].dtype for state in optimizer.state.values()} == {expected}


def test_a_column_against_a_row_compares_everything_with_everything() -> None:
    source = (
        HEAD + "def loss(head_input, y):\n    head = nn.Linear(1, 1)\n    out = head(head_input)\n"
        "    return ((out - y.view(-1)) ** 2).mean(), out\n"
    )
    faulty, mended = before_and_after(source, "GP713")
    x, y = torch.randn(5, 1), torch.randn(5, 1)
    for space, is_right in ((faulty, False), (mended, True)):
        torch.manual_seed(0)
        value, out = space["loss"](x, y)  # type: ignore[operator]
        assert torch.allclose(value, ((out - y) ** 2).mean()) is is_right


@pytest.mark.parametrize(
    "call",
    [
        "F.dropout(x, 0.5)",
        "F.dropout1d(x, 0.5)",
        "F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)",
    ],
)
def test_functional_dropout_ignores_the_mode_until_it_is_told(call: str) -> None:
    source = HEAD + f"class Net(nn.Module):\n    def forward(self, x):\n        return {call}\n"
    faulty, mended = before_and_after(source, "GP714")
    x = torch.randn(3, 64, 8)
    for space, repeats in ((faulty, False), (mended, True)):
        net = space["Net"]().eval()  # type: ignore[operator]
        assert torch.equal(net(x), net(x)) is repeats


def test_softmax_without_dim_lets_the_samples_of_three_axes_compete() -> None:
    faulty, mended = before_and_after(HEAD + "def weights(x):\n    return F.softmax(x)\n", "GP715")
    x = torch.randn(2, 3, 4)
    with pytest.warns(UserWarning, match="Implicit dimension"):
        assert torch.allclose(faulty["weights"](x).sum(0), torch.ones(3, 4))  # type: ignore[operator]
    assert torch.allclose(mended["weights"](x).sum(-1), torch.ones(2, 3))  # type: ignore[operator]


@pytest.mark.parametrize("line", ["h = h.view(x.shape[0], -1)", "h = h.reshape(h.size(1), -1)"])
def test_a_reshaped_hidden_state_mixes_the_samples(line: str) -> None:
    source = (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.rnn = nn.GRU(3, 4, batch_first=True, bidirectional=True)\n\n    def forward(self, x):\n"
        f"        _, h = self.rnn(x)\n        {line}\n        return h\n"
    )
    faulty, mended = before_and_after(source, "GP718")
    x = torch.randn(4, 5, 3)
    for space, is_own in ((faulty, False), (mended, True)):
        net = space["Net"]()  # type: ignore[operator]
        assert torch.allclose(net(x)[:1], net(x[:1]), atol=1e-6) is is_own


@pytest.mark.parametrize(
    "tiled",
    ["hide.repeat(self.heads, 1, 1)", "torch.cat([hide] * self.heads)", "torch.tile(hide, (self.heads, 1, 1))"],
)
def test_attention_reads_the_masks_of_the_heads_sample_by_sample(tiled: str) -> None:
    source = (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.heads = 2\n"
        "        self.attn = nn.MultiheadAttention(4, 2, batch_first=True)\n\n    def forward(self, x, hide):\n"
        f"        hide = {tiled}\n        return self.attn(x, x, x, attn_mask=hide)[0]\n"
    )
    faulty, mended = before_and_after(source, "GP721")
    x, hide = torch.randn(3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.bool)
    hide[0, :, 2:] = True
    for space, is_own in ((faulty, False), (mended, True)):
        torch.manual_seed(0)
        net = space["Net"]()  # type: ignore[operator]
        alone = net(x[1:2], hide[1:2])
        assert torch.allclose(net(x, hide)[1:2], alone, atol=1e-6) is is_own


def test_a_mask_of_three_axes_meets_the_heads_with_its_batch() -> None:
    source = (
        HEAD + "def attend(q, k, ok, heads):\n"
        "    q, k = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k))\n"
        "    score = q @ k.transpose(-1, -2)\n    pair = ok[:, :, None] & ok[:, None, :]\n"
        "    return score.masked_fill(~pair, -1e4).softmax(-1)\n"
    )
    faulty, mended = before_and_after(source, "GP722")
    q = torch.randn(2, 3, 4)
    ok = torch.tensor([[True, True, False], [True, True, True]])
    for space, is_own in ((faulty, False), (mended, True)):
        attend = space["attend"]
        whole, alone = attend(q, q, ok, 2)[1:], attend(q[1:], q[1:], ok[1:], 2)  # type: ignore[operator]
        assert torch.allclose(whole, alone) is is_own


def test_a_generator_of_parameters_leaves_nothing_to_clip() -> None:
    source = (
        HEAD + "def make(net):\n    params = net.parameters()\n    optimizer = torch.optim.SGD(params, lr=0.1)\n"
        "    return optimizer, torch.nn.utils.clip_grad_norm_(params, 1.0)\n"
    )
    faulty, mended = before_and_after(source, "GP728")
    net = nn.Linear(2, 1)
    net(DATA[0]).sum().backward()
    with pytest.warns(UserWarning, match="empty generator"):
        assert faulty["make"](net)[1] == 0  # type: ignore[operator]
    assert mended["make"](net)[1] > 1  # type: ignore[operator]


def test_attention_ignores_what_is_true_in_a_key_padding_mask() -> None:
    source = (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.attn = nn.MultiheadAttention(4, 2, batch_first=True)\n\n"
        "    def forward(self, x, tokens, pad=0):\n"
        "        return self.attn(x, x, x, key_padding_mask=tokens != pad)[0]\n"
    )
    faulty, mended = before_and_after(source, "GP729")
    x, tokens = torch.randn(1, 4, 4), torch.tensor([[5, 6, 0, 0]])
    other = x.clone()
    other[:, 2:] += 1
    for space, is_blind in ((faulty, False), (mended, True)):
        net = space["Net"]()  # type: ignore[operator]
        assert torch.allclose(net(x, tokens)[:, :2], net(other, tokens)[:, :2], atol=1e-6) is is_blind


def test_views_in_another_order_scramble_and_transpositions_do_not() -> None:
    source = HEAD + "def swap(x):\n    b, t, d = x.shape\n    return x.view(t, b, d)\n"
    assert "GP726" in rules_found(source)
    x = torch.arange(12).view(2, 3, 2)
    swapped = space_of(source)["swap"](x)  # type: ignore[operator]
    assert swapped.shape == x.transpose(0, 1).shape
    assert not torch.equal(swapped, x.transpose(0, 1))


def test_the_first_train_undoes_a_mode_that_init_has_set() -> None:
    source = (
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.norm = nn.BatchNorm1d(4)\n        self.norm.eval()\n\n    def forward(self, x):\n"
        "        return self.norm(x)\n"
    )
    assert "GP732" in rules_found(source)
    net = space_of(source)["Net"]()  # type: ignore[operator]
    assert not net.norm.training
    assert net.train().norm.training


def test_workers_seed_the_global_generators_but_not_one_of_your_own() -> None:
    source = (
        "import numpy as np\nimport torch\nfrom torch.utils.data import Dataset\n\n\nclass Noisy(Dataset):\n"
        "    def __init__(self):\n        self.rng = np.random.default_rng(0)\n\n    def __len__(self):\n"
        "        return 8\n\n"
        "    def __getitem__(self, i):\n        return self.rng.normal()\n"
    )
    assert "GP716" in rules_found(source)
    data = space_of(source)["Noisy"]()  # type: ignore[operator]
    loader = torch.utils.data.DataLoader(data, num_workers=2, multiprocessing_context="fork")
    drawn = [float(batch) for batch in loader]
    assert len(set(drawn)) == len(drawn) // 2
