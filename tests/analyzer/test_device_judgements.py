"""How sure the rules about devices, dtypes and checkpoints are of what they say, and what silences them."""

import pytest

from analyzer.engine import AnalyzerOptions, analyze_source

HEAD = "import torch\nimport torch.nn as nn\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
SETUP = "class Net(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
LAYER = "        self.up = nn.Linear(width, width)\n"


def module(body: str, setup: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{HEAD}{SETUP}{LAYER}{lines}\n    def forward(self, x):\n{forward}"


def severities(rule: str, source: str, path: str = "package/layers.py") -> list[str]:
    found = analyze_source(source, path, options=AnalyzerOptions(rules=frozenset({rule})))
    return [finding.severity.value for finding in found.findings]


JOINED = "bias = torch.ones(4)\nreturn self.up(x) + bias"
ELSEWHERE = "def moved(model, device):\n    return model.to(device)\n"


def test_a_file_that_knows_no_devices_gets_a_note() -> None:
    assert severities("GP602", module(JOINED)) == ["note"]
    assert severities("GP602", module(JOINED) + f"\n\n{ELSEWHERE}") == ["warning"]


def test_noise_that_a_model_draws_on_the_cpu_is_warned_of_in_any_file() -> None:
    assert severities("GP602", module("noise = torch.randn(x.shape)\nreturn self.up(x) + noise")) == ["warning"]
    scaled = "noise = torch.randn(x.shape)\nreturn self.up(x + sigma * noise)"
    assert severities("GP602", module(scaled).replace("forward(self, x)", "forward(self, x, sigma)")) == ["warning"]
    assert severities("GP602", module("return self.up(x) + torch.rand(x.shape, dtype=x.dtype)")) == ["note"]
    without_layers = (
        f"{HEAD}class Noise(nn.Module):\n    def forward(self, x):\n        return x.abs() + torch.randn(4)\n"
    )
    assert severities("GP602", without_layers) == ["note"]


def test_sums_in_place_and_lookups_are_warned_of_in_any_file() -> None:
    assert severities("GP602", module("loss = torch.zeros(1)\nloss += self.up(x).sum()\nreturn loss")) == ["warning"]
    lookup = module("ids = torch.arange(x.shape[1])\nreturn x + self.table(ids)", "self.table = nn.Embedding(8, width)")
    assert severities("GP602", lookup) == ["warning"]


def test_loading_and_preparing_data_on_the_cpu_is_no_fault() -> None:
    source = module(JOINED) + f"\n\n{ELSEWHERE}"
    assert severities("GP602", source, "package/loader/neighbours.py") == ["note"]
    assert severities("GP602", source, "package/transforms/crop.py") == ["note"]


def test_a_method_that_forward_does_not_call_is_left_alone() -> None:
    source = module("return self.up(x)") + "\n    def plot(self, x):\n        return self.up(x) + torch.ones(4)\n"
    assert severities("GP602", source) == []
    called = source.replace("return self.up(x)\n", "return self.plot(x)\n", 1)
    assert severities("GP602", called) == ["note"]


def test_a_constant_that_a_function_rebinds_or_takes_is_another_variable() -> None:
    constant = f"{HEAD}MEAN = torch.tensor([1.0, 2.0])\n\n\n"
    assert severities("GP602", f"{constant}class Net(nn.Module):\n    def forward(self, x, MEAN):\n"
                               "        return x.float() + MEAN\n") == []  # fmt: skip
    assert severities("GP602", f"{constant}MEAN = None\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
                               "        return x.float() + MEAN\n") == []  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (module("return self.up(x) * torch.ones(4, device='cuda')"), ["warning"]),
        (
            module("return self.up(x)") + "\n    def grid(self):\n        return torch.ones(4, device='cuda')\n",
            ["note"],
        ),
        (module("return self.up(x)") + "\n    def grid(self):\n        return torch.ones(4, device='cpu')\n", []),
        (module("return self.up(x.to('cpu'))"), []),
        (module("return self.up(x.type(torch.float32))"), []),
        (module("try:\n    x = x.cuda()\nexcept RuntimeError:\n    pass\nreturn self.up(x)"), []),
        (module("assert x.is_cuda\nreturn self.up(x) * torch.ones(4, device='cuda')"), []),
        (module("with torch.cuda.device(0):\n    return self.up(x)"), []),
    ],
)
def test_a_named_gpu_is_a_fault_where_the_model_runs(source: str, expected: list[str]) -> None:
    assert severities("GP601", source) == expected


def test_scripts_may_name_their_gpu() -> None:
    source = module("return self.up(x) * torch.ones(4, device='cuda')")
    assert severities("GP601", source, "tests/test_layers.py") == []
    choice = module("return x.to('cuda' if torch.cuda.is_available() else 'cpu')")
    assert severities("GP618", choice) == ["warning"]
    assert severities("GP618", choice, "scripts/train.py") == []
    half = module("return x.half() if torch.cuda.is_available() else x")
    assert severities("GP613", half) == ["warning"]
    assert severities("GP613", half, "scripts/train.py") == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x.to(torch.float16) if torch.cuda.is_available() else x", ["warning"]),
        ("return x.float() if torch.cuda.is_available() else x", []),
        ("return x.to(x.device) if torch.cuda.is_available() else x", []),
        ("return x.half() if x.is_cuda or x.device.type == 'mps' and torch.backends.mps else x", []),
        ("if torch.cuda.is_available():\n    x = x * 2\nreturn x", []),
        ("if self.training:\n    x = x.half()\nreturn x", []),
    ],
)
def test_only_half_precision_by_machine_is_told(body: str, expected: list[str]) -> None:
    assert severities("GP613", module(body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("torch.manual_seed(0)\nreturn self.up(x)", ["warning"]),
        ("torch.manual_seed(self.seed)\nreturn self.up(x)", ["note"]),
        ("if torch.is_deterministic_algorithms_warn_only_enabled():\n    return x\nreturn self.up(x)", []),
    ],
)
def test_a_seed_that_the_module_keeps_is_only_a_note(body: str, expected: list[str]) -> None:
    assert severities("GP614", module(body)) == expected


def test_a_switch_at_import_belongs_into_programs_only() -> None:
    switch = "torch.backends.cuda.matmul.allow_tf32 = True\n"
    library = f"import torch\nimport torch.nn as nn\n\n{switch}\n\nclass Net(nn.Module):\n    pass\n"
    assert severities("GP614", library) == ["warning"]
    assert severities("GP614", f"import torch\n\n{switch}") == []
    assert severities("GP614", f"{library}\n\ndef fit(loss):\n    loss.backward()\n") == []
    assert severities("GP614", library, "examples/train.py") == []


def test_autocast_for_one_device_is_a_note() -> None:
    on = module("with torch.autocast('cuda'):\n    return self.up(x)")
    assert severities("GP619", on) == ["note"]
    assert severities("GP619", on.replace("'cuda'", "'cuda', enabled=False")) == ["note"]
    assert severities("GP619", on.replace("'cuda'", "'cpu', enabled=False")) == []
    outside = f"{HEAD}def step(model, x):\n    with torch.autocast('cuda', enabled=False):\n        return model @ x\n"
    assert severities("GP619", outside) == []


def test_an_image_handed_in_may_keep_its_range() -> None:
    assert severities("GP612", module("return (self.up(x) * 255).byte()")) == ["warning"]
    assert severities("GP612", f"{HEAD}def pixels(x: torch.Tensor):\n    return (x * 255).byte()\n") == ["note"]
    assert severities("GP612", module("return (self.up(x) * 3).byte()")) == []
    assert severities("GP612", module("return self.up(x).round().byte()")) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = x.to('cpu', non_blocking=True)\nself.kept = y\nreturn self.up(x)", ["note"]),
        ("torch.cuda.synchronize()\ny = x.to('cpu', non_blocking=True)\nreturn y.numpy()", ["warning"]),
        ("y = x.to('cpu', non_blocking=True)\nkept = []\nkept.append(y)\nreturn kept", ["note"]),
        ("y = x.to('cpu', non_blocking=True)[:1]\nreturn self.up(x)", ["note"]),
        ("with torch.cuda.stream(self.side):\n    y = x.to('cpu', non_blocking=True)\nreturn y.numpy()", []),
        ("y = x.to('cpu', non_blocking=True)\nreturn y[:1].numpy()", ["warning"]),
    ],
)
def test_an_unfinished_copy_matters_once_it_is_read(body: str, expected: list[str]) -> None:
    assert severities("GP606", module(body)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("try:\n    x.view(3)\nexcept RuntimeError:\n    pass\nreturn self.up(x)", []),
        ("x.clamp(0, 1, out=x)\nreturn self.up(x)", []),
        ("self.up.half()\nreturn self.up(x)", []),
        ("x.half()\nreturn self.up(x)", []),
        ("h = self.up(x)\nh.half()\nreturn h", ["warning"]),
        ("x.permute(1, 0)\nreturn self.up(x)", ["warning"]),
    ],
)
def test_only_tensors_lose_an_unused_result(body: str, expected: list[str]) -> None:
    assert severities("GP608", module(body)) == expected


@pytest.mark.parametrize(
    ("setup", "body", "expected"),
    [
        ("self.a = nn.Parameter(torch.empty(0))\nnn.init.zeros_(self.up.bias)", "return self.up(x) * self.a", []),
        ("self.a = nn.Parameter(torch.empty(4))\nnn.init.zeros_(self.up.bias)", "return self.a * x", ["warning"]),
        ("self.a = nn.Parameter(torch.empty(4))\nself.b = nn.Parameter(torch.empty(4))\nnn.init.ones_(self.b)\n"
         "fill(self.a)", "return self.up(x) * self.a * self.b", []),
        ("self.a = nn.Parameter(torch.empty(4))\nself.b = nn.Parameter(torch.empty(4))\nnn.init.ones_(self.b)\n"
         "torch.numel(self.a)", "return self.up(x) * self.a * self.b", ["warning"]),
        ("self.a = nn.Parameter(torch.empty(4))\nself.b = nn.Parameter(torch.empty(4))\nnn.init.ones_(self.b)\n"
         "for p in (self.a,):\n    nn.init.ones_(p)", "return self.up(x) * self.a * self.b", []),
        ("self.a = nn.Parameter(torch.empty(4))\nself.b = nn.Parameter(torch.empty(4))\nnn.init.ones_(self.b)\n"
         "getattr(self, 'a').data.fill_(1)", "return self.up(x) * self.a * self.b", []),
        ("", "out = torch.empty(4, 0)\nreturn out + x", []),
        ("", "out = torch.empty((0, 4))\nreturn out + x", []),
        ("", "out = torch.empty(4)\nout.copy_(x)\nreturn out + x", []),
        ("", "out = torch.empty(4)\nif x.sum() > 0:\n    out = x\nreturn out", []),
        ("", "out = torch.empty_like(x)\nout[:, :2] = 1\nout[:, 2:] = 2\nreturn out + x", []),
    ],
)  # fmt: skip
def test_memory_that_something_may_write_is_left_alone(setup: str, body: str, expected: list[str]) -> None:
    assert severities("GP605", module(body, setup)) == expected


@pytest.mark.parametrize(
    ("setup", "body", "expected"),
    [
        ("self.a = torch.ones(4)", "self.a = x.mean(0)\nreturn self.up(x) * self.a", []),
        ("self.a = [torch.ones(4)]", "return self.up(x)", []),
        ("self.a = torch.ones(4)", "return self.up(x), self.a", []),
        ("self.a = self.make()", "self.a.fill_(1)\nreturn self.up(x)", []),
    ],
)
def test_a_plain_attribute_is_told_only_where_it_does_harm(setup: str, body: str, expected: list[str]) -> None:
    assert severities("GP604", module(body, setup)) == expected


@pytest.mark.parametrize(
    ("setup", "body"),
    [
        ("self.m = None", "m = torch.ones(4, device=x.device)\nself.m = m\nreturn self.up(x) * self.m"),
        ("self.m = None", "if self.m is None:\n    self.m = [torch.ones(4)]\nreturn self.up(x)"),
        ("self.m = None", "if self.m is None:\n    self.m = torch.ones(4)\nreturn self.up(x), self.m"),
    ],
)
def test_a_tensor_made_anew_or_not_joined_is_no_stale_cache(setup: str, body: str) -> None:
    assert severities("GP615", module(body, setup)) == []


def test_a_cache_filled_through_a_helper_is_found() -> None:
    body = "if self.m is None:\n    self.m = self.make(x)\nreturn self.up(x) * self.m"
    helper = "\n    def make(self, x):\n        return torch.ones(4, device=x.device)\n"
    assert severities("GP615", module(body, "self.m = None") + helper) == ["warning"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("with torch.no_grad():\n    y = checkpoint(self.up, x, use_reentrant=False)\nx.add_(1)\nreturn y", []),
        ("if self.training:\n    y = checkpoint(self.up, x, use_reentrant=False)\nelse:\n    x.add_(1)\n    y = x\n"
         "return y", []),
        ("z = x * 2\ny = checkpoint(self.up, x, use_reentrant=False)\nz.add_(1)\nreturn y + z", []),
        ("y = checkpoint(self.up, x, use_reentrant=False)\nx.append(y)\nreturn x", ["warning"]),
        ("y = checkpoint(self.up, x, use_reentrant=False)\nx.count(y)\nreturn x", []),
    ],
)  # fmt: skip
def test_changes_that_a_checkpoint_cannot_meet_are_left_alone(body: str, expected: list[str]) -> None:
    assert severities("GP805", module(body)) == expected


def test_unknown_contents_of_a_checkpoint_make_a_note_of_lost_random_states() -> None:
    body = "return checkpoint(self.other, x, use_reentrant=False, preserve_rng_state=False)"
    assert severities("GP803", module(body, "self.other = build(width)")) == ["note"]
    assert severities("GP803", module(body, "self.other = nn.Dropout(0.5)")) == ["warning"]
    off = module(body.replace("self.other", "self.run")) + (
        "\n    def run(self, x):\n        return nn.functional.dropout(self.up(x), 0.5, training=False)\n"
    )
    assert severities("GP803", off) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return checkpoint(self.up, x, use_reentrant=True)", ["warning"]),
        ("return checkpoint(self.up, x)", []),
        ("x = self.up(x)\nreturn checkpoint(self.up, x, use_reentrant=True)", []),
        ("return checkpoint(self.up, *x, use_reentrant=True)", []),
        ("return checkpoint(self.up, x.detach(), self.up(x), use_reentrant=True)", []),
    ],
)
def test_a_reentrant_checkpoint_is_told_where_no_input_can_carry_a_gradient(body: str, expected: list[str]) -> None:
    assert severities("GP802", module(body)) == expected


def test_statistics_are_told_of_norms_that_keep_some() -> None:
    body = "return checkpoint(self.norm, x, use_reentrant=False)"
    assert severities("GP804", module(body, "self.norm = nn.BatchNorm1d(4)")) == ["warning"]
    assert severities("GP804", module(body, "self.norm = nn.BatchNorm1d(4, track_running_stats=False)")) == []
    assert severities("GP804", module(body, "self.norm = nn.LayerNorm(4)")) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("grid = x.new_zeros(4)\ngrid.scatter_(0, index=x.argmax(0), src=self.up(x))\nreturn grid", []),
        ("for i in sorted(x.tolist()):\n    x = x * i\nreturn self.up(x)", []),
        ("order = sorted(x, key=abs)\nfor i in order:\n    x = x * i\nreturn x", []),
        ("order = x.argsort()\nfor i in range(3):\n    x = x[order]\nreturn self.up(x)", []),
    ],
)
def test_an_order_that_nobody_depends_on_is_left_alone(body: str, expected: list[str]) -> None:
    assert severities("GP609", module(body)) == expected
