"""What can be run is found by reading: across files, through base classes, with the right import root."""

from pathlib import Path

import pytest

from analyzer.engine import analyze_files
from analyzer.findings import TargetKind
from analyzer.targets import declare_targets


def declared(root: Path, files: dict[str, str]) -> dict[str, TargetKind]:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    targets = declare_targets(root, list(files))
    assert targets == analyze_files(root, list(files)).targets
    return {target.name: target.kind for target in targets if target.eligible}


def ruled_out(root: Path, source: str) -> dict[str, str]:
    """The reasons by name for what is declared in one file and is not to be run."""
    declared(root, {"a.py": HEAD + source})
    return {t.qualname: t.why_not for t in declare_targets(root, ["a.py"]) if not t.eligible}


HEAD = (
    "import torch\nimport numpy as np\nimport torch.nn.functional as F\nfrom abc import ABC, abstractmethod\n"
    "from torch import Tensor, nn\n"
)


MODULE = "import torch\nfrom torch import nn\nclass Block(nn.Module):\n    def forward(self, x):\n        return x\n"


def test_modules_functions_and_autograd_functions_are_declared(tmp_path: Path) -> None:
    source = MODULE + (
        "class _Scale(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\n"
        "def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:\n    return x * by\n"
    )
    assert declared(tmp_path, {"layers.py": source}) == {
        "layers:Block": TargetKind.MODULE,
        "layers:_Scale": TargetKind.AUTOGRAD_FUNCTION,
        "layers:scale": TargetKind.FUNCTION,
    }


def test_a_declaration_says_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text(
        "import torch\n\n@torch.jit.script\n" + "def f(x: torch.Tensor):\n    return x\n"
    )
    (target,) = declare_targets(tmp_path, ["layers.py"])
    assert (target.line, target.end_line, target.path) == (4, 5, "layers.py")
    assert (target.import_root, target.module, target.qualname) == ("", "layers", "f")


@pytest.mark.parametrize(
    ("imports", "base"),
    [
        ("import torch", "torch.nn.Module"),
        ("import torch.nn as nn", "nn.Module"),
        ("from torch.nn import Module", "Module"),
        ("from torch import nn as layers", "layers.Module"),
        ("import torch", "torch.nn.Linear"),
        ("from torch import nn", "nn.Sequential"),
    ],
)
def test_a_module_is_known_through_any_import(tmp_path: Path, imports: str, base: str) -> None:
    source = f"{imports}\nclass Block({base}):\n    def forward(self, x):\n        return x\n"
    assert declared(tmp_path, {"a.py": source}) == {"a:Block": TargetKind.MODULE}


def test_base_classes_are_followed_through_files_and_re_exports(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/base/__init__.py": "from .core import Base\n",
        "pkg/base/core.py": "import torch\nclass Base(torch.nn.Module):\n    pass\n",
        "pkg/block.py": "from pkg.base import Base\nclass Block(Base):\n    def forward(self, x):\n        return x\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/deep.py": "from ..block import Block\nclass Deep(Block):\n    pass\n",
    }
    assert declared(tmp_path, files) == {"pkg.block:Block": TargetKind.MODULE, "pkg.sub.deep:Deep": TargetKind.MODULE}


def test_base_classes_that_go_in_circles_do_not_hang(tmp_path: Path) -> None:
    files = {
        "a.py": "import torch\nfrom b import B\nclass A(B):\n    pass\n",
        "b.py": "from a import A\nclass B(A):\n    def forward(self, x):\n        return x\n",
        "c.py": "from d import X\n",
        "d.py": "from c import X\nclass Y(X):\n    pass\n",
    }
    assert declared(tmp_path, files) == {}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("class Plain:\n    def forward(self, x):\n        return x\n", id="no module"),
        pytest.param("class _Hidden(nn.Module):\n    def forward(self, x):\n        return x\n", id="private"),
        pytest.param("class Base(nn.Module):\n    pass\n", id="no forward anywhere"),
        pytest.param(
            "class Base(nn.Module):\n    def forward(self, x):\n        raise NotImplementedError\n",
            id="forward to be written",
        ),
        pytest.param(
            "class Base(nn.Module, ABC):\n    def forward(self, x):\n        return self.g(x)\n"
            "    @abstractmethod\n    def g(self, x): ...\n",
            id="abstract",
        ),
        pytest.param(
            "def f():\n    class Inner(nn.Module):\n        def forward(self, x):\n            return x\n", id="local"
        ),
        pytest.param("def _f(x: torch.Tensor):\n    return x\n", id="private function"),
        pytest.param("def f(x: torch.Tensor) -> None:\n    print(x)\n", id="nothing returned"),
        pytest.param("def f(x: torch.Tensor) -> bool:\n    return x.any()\n", id="a bool returned"),
        pytest.param("def f(x: int):\n    return torch.zeros(x)\n", id="no tensor given"),
        pytest.param("def f(path):\n    return open(path)\n", id="nothing of torch"),
        pytest.param("def f(data):\n    return torch.tensor(data)\n", id="a conversion"),
        pytest.param("async def f(x: torch.Tensor):\n    return x\n", id="a coroutine"),
        pytest.param(
            "class Half(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n",
            id="no backward",
        ),
        pytest.param("class P(nn.Parameter):\n    pass\n", id="a parameter"),
        pytest.param(
            "class Base(nn.Module, ABC):\n    def forward(self, x):\n        return x\n", id="declared abstract"
        ),
        pytest.param(
            "class Outer:\n    class Inner(nn.Module):\n        def forward(self, x):\n            return x\n",
            id="nested",
        ),
    ],
)
def test_what_can_not_be_run_is_not_eligible(tmp_path: Path, source: str) -> None:
    head = "import torch\nfrom abc import ABC, abstractmethod\nfrom torch import nn\n"
    assert declared(tmp_path, {"a.py": head + source}) == {}


def test_a_subclass_that_fills_in_what_is_abstract_is_declared(tmp_path: Path) -> None:
    source = (
        "import torch\nfrom abc import ABC, abstractmethod\n"
        "class Base(torch.nn.Module, ABC):\n    @abstractmethod\n    def forward(self, x): ...\n"
        "class Real(Base):\n    def forward(self, x):\n        return x\n"
        "class Still(Base):\n    def extra(self):\n        return 1\n"
    )
    assert declared(tmp_path, {"a.py": source}) == {"a:Real": TargetKind.MODULE}


@pytest.mark.parametrize(
    "signature",
    [
        "x: torch.Tensor",
        "x: Tensor",
        "x: 'Tensor'",
        "x: Optional[torch.Tensor] = None",
        "x: torch.Tensor | None",
        "x: list[torch.Tensor]",
        "x: Float[Tensor, 'b c']",
        "*, x: torch.Tensor",
    ],
)
def test_an_annotation_that_holds_a_tensor_declares_a_function(tmp_path: Path, signature: str) -> None:
    source = f"import torch\nfrom torch import Tensor\ndef f({signature}):\n    return x\n"
    assert declared(tmp_path, {"a.py": source}) == {"a:f": TargetKind.FUNCTION}


@pytest.mark.parametrize(
    "body",
    [
        "return torch.sigmoid(x)",
        "return x * F.softplus(x)",
        "y = F.relu(x)\n    return y + 1",
        "y = torch.exp(x)\n    z = y.sum()\n    return z",
        "y = 0\n    y += torch.exp(x)\n    return y",
    ],
)
def test_an_unannotated_function_is_known_by_what_it_does(tmp_path: Path, body: str) -> None:
    source = f"import torch\nimport torch.nn.functional as F\ndef f(x):\n    {body}\n"
    assert declared(tmp_path, {"a.py": source}) == {"a:f": TargetKind.FUNCTION}


@pytest.mark.parametrize(
    "path", ["tests/a.py", "pkg/docs/a.py", "setup.py", "conftest.py", "test_a.py", "pkg/a_test.py"]
)
def test_tests_documentation_and_setup_hold_no_targets(tmp_path: Path, path: str) -> None:
    assert declared(tmp_path, {path: MODULE}) == {}


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        pytest.param(["pkg/__init__.py", "pkg/a.py"], "pkg/a.py", ("", "pkg.a"), id="package"),
        pytest.param(["pkg/__init__.py"], "pkg/__init__.py", ("", "pkg"), id="the package itself"),
        pytest.param(["src/pkg/__init__.py", "src/pkg/a.py"], "src/pkg/a.py", ("src", "pkg.a"), id="src layout"),
        pytest.param(["x/y/pkg/__init__.py", "x/y/pkg/a.py"], "x/y/pkg/a.py", ("x/y", "pkg.a"), id="deep"),
        pytest.param(["a.py"], "a.py", ("", "a"), id="single file"),
        pytest.param(["models/a.py"], "models/a.py", ("models", "a"), id="plain directory"),
        pytest.param(
            ["models/a.py", "train.py:from models.a import Block"], "models/a.py", ("", "models.a"), id="namespace"
        ),
        pytest.param(
            ["src/models/a.py", "src/train.py:import models.a"],
            "src/models/a.py",
            ("src", "models.a"),
            id="src namespace",
        ),
        pytest.param(
            ["models/a.py:from models.b import B", "models/b.py"],
            "models/a.py",
            ("", "models.a"),
            id="imports from the top",
        ),
        pytest.param(
            ["models/a.py:from b import B", "models/b.py"], "models/a.py", ("models", "a"), id="imports its neighbour"
        ),
        pytest.param(
            ["ns/pkg/__init__.py", "ns/pkg/a.py", "run.py:from ns.pkg.a import Block"],
            "ns/pkg/a.py",
            ("", "ns.pkg.a"),
            id="package in a namespace",
        ),
    ],
)
def test_the_import_root_makes_the_module_importable(
    tmp_path: Path, files: list[str], path: str, expected: tuple[str, str]
) -> None:
    contents = {}
    for entry in files:
        name, _, text = entry.partition(":")
        contents[name] = f"{text}\n{MODULE if name == path else ''}"
    declared(tmp_path, contents)
    (target,) = [target for target in declare_targets(tmp_path, list(contents)) if target.path == path]
    assert (target.import_root, target.module) == expected


def test_a_file_that_can_not_be_read_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "good.py").write_text(MODULE)
    targets = declare_targets(tmp_path, ["bad.py", "broken.py", "good.py", "gone.py"])
    assert [target.name for target in targets] == ["good:Block"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("class A(nn.Module, ABC):\n    @abstractmethod\n    def forward(self, x): ...\n", "abstract"),
        pytest.param("class A(nn.Module):\n    def forward(self, x):\n        pass\n", "abstract", id="to be written"),
        pytest.param("class A(nn.Module):\n    def encode(self, x):\n        return x\n", "no forward"),
        pytest.param(
            "class A(nn.Module):\n    def update(self, x): ...\n    def compute(self):\n        return self.n\n"
            "    def forward(self, x):\n        return x\n",
            "metric",
        ),
        pytest.param(
            "class A(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        return i\n", "data code"
        ),
        pytest.param("class A(torch.optim.Optimizer):\n    def step(self): ...\n", "optimizer"),
        pytest.param("class A(torch.optim.lr_scheduler.LRScheduler):\n    pass\n", "optimizer", id="scheduler"),
        pytest.param(
            "class HardMiner(nn.Module):\n    def forward(self, x):\n        return x\n", "no gradient by design"
        ),
        pytest.param("def A(x: Tensor):\n    return x.argmax(-1)\n", "no gradient by design", id="argmax"),
        pytest.param("def A(x: Tensor):\n    y = x > 0\n    return y & (x < 3)\n", "no gradient by design", id="mask"),
        pytest.param("def A(x: Tensor):\n    return x ^ (x >> 1)\n", "no gradient by design", id="bits"),
        pytest.param("def A(x: Tensor):\n    return x.max(1)[1]\n", "no gradient by design", id="place of a maximum"),
        pytest.param("def A(x: Tensor):\n    return (x > 0).long().sum()\n", "no gradient by design", id="counting"),
        pytest.param(
            "def A(x: Tensor):\n    return torch.arange(x.shape[0], device=x.device)\n",
            "no gradient by design",
            id="only shapes",
        ),
        pytest.param("@torch.no_grad()\ndef A(x: Tensor):\n    return x * 2\n", "no gradient by design", id="no_grad"),
        pytest.param("def A(x: Tensor) -> np.ndarray:\n    return x.numpy()\n", "data code", id="to numpy"),
        pytest.param("def A(x: Tensor) -> bool:\n    return bool(x.any())\n", "no tensor result"),
        pytest.param("def A(x: Tensor):\n    print(x)\n", "no tensor result", id="nothing"),
        pytest.param("def top_accuracy(x: Tensor):\n    return x.float().mean()\n", "metric", id="metric by name"),
        pytest.param("def A(w: Tensor):\n    nn.init.normal_(w)\n    return w\n", "initialiser"),
        pytest.param("class B(nn.Linear):\n    pass\ndef A(width=8):\n    return B(width, width)\n", "factory"),
        pytest.param("def A(**options):\n    net = nn.Linear(2, 3)\n    return net\n", "factory", id="layer of torch"),
        pytest.param("def A(width) -> nn.Module:\n    return make(width)\n", "factory", id="by annotation"),
    ],
)
def test_what_has_no_gradient_to_look_at_is_declared_with_the_reason(tmp_path: Path, source: str, reason: str) -> None:
    assert set(ruled_out(tmp_path, source).values()) == {reason}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "def f(x: Tensor):\n    out = torch.zeros(3)\n    out[0] = x.sum()\n    return out\n", id="written"
        ),
        pytest.param(
            "def f(x: Tensor):\n    out = torch.zeros(3)\n    out.scatter_add_(0, index=i, src=x)\n    return out\n",
            id="written in place",
        ),
        pytest.param("def f(x: Tensor):\n    o = []\n    for r in x:\n        o.append(r)\n    return o\n", id="list"),
        pytest.param("def f(x: Tensor):\n    def g():\n        return x * 2\n    return g()\n", id="closure"),
        pytest.param("def f(x: Tensor):\n    v, i = x.max(1)\n    return v\n", id="maximum"),
        pytest.param("def f(x: Tensor) -> float:\n    return x.mean()\n", id="a wrong annotation"),
        pytest.param("def f(x: Tensor):\n    return torch.where(x > 0, x, 0.0)\n", id="a mask that chooses"),
        pytest.param("def hinge_loss(x: Tensor):\n    return (x > 0).long().sum()\n", id="a loss without a gradient"),
        pytest.param("def f(x: Tensor):\n    return x.detach() + 1\n", id="detached: perhaps a fault"),
        pytest.param("def f(x, eps=1e-6):\n    return x.unsqueeze(0) / eps\n", id="a method of tensors"),
        pytest.param('def f(x):\n    """Doubles.\n\n    x (Tensor): any\n    """\n    return x * 2\n', id="docstring"),
        pytest.param("def g(x: Tensor):\n    return x * 2\ndef f(x):\n    return g(x)\n", id="through a helper"),
    ],
)
def test_what_may_have_a_gradient_is_to_be_run(tmp_path: Path, source: str) -> None:
    assert ruled_out(tmp_path, source) == {}
    assert {"a:f", "a:hinge_loss"} & set(declared(tmp_path, {"a.py": HEAD + source}))


def test_a_template_is_abstract_and_what_fills_it_in_is_not(tmp_path: Path) -> None:
    source = (
        "class Base(nn.Module):\n    def forward(self, x):\n        return self.work(x)\n"
        "    def work(self, x):\n        raise NotImplementedError\n"
        "class Real(Base):\n    def work(self, x):\n        return x\n"
        "class Alone(nn.Module):\n    def forward(self, x):\n        return self.other(x) if self.m else x\n"
        "    def other(self, x):\n        raise NotImplementedError\n"
    )
    assert ruled_out(tmp_path, source) == {"Base": "abstract"}
    assert set(declared(tmp_path, {"a.py": HEAD + source})) == {"a:Real", "a:Alone"}


def test_abstract_methods_count_for_descendants_only_where_python_enforces_them(tmp_path: Path) -> None:
    source = (
        "class Loose(nn.Module):\n    @abstractmethod\n    def extra(self): ...\n"
        "class A(Loose):\n    def forward(self, x):\n        return x\n"
        "class Strict(nn.Module, ABC):\n    @abstractmethod\n    def extra(self): ...\n"
        "class B(Strict):\n    def forward(self, x):\n        return x\n"
    )
    assert ruled_out(tmp_path, source) == {"Loose": "abstract", "Strict": "abstract", "B": "abstract"}


def test_a_class_that_keeps_layers_is_a_module_whatever_it_derives_from(tmp_path: Path) -> None:
    source = (
        "from timm import Base\nclass Net(Base):\n    def __init__(self):\n        self.l = nn.Linear(2, 3)\n"
        "    def forward(self, x):\n        return self.l(x)\n"
    )
    assert declared(tmp_path, {"a.py": HEAD + source}) == {"a:Net": TargetKind.MODULE}


def test_static_methods_that_take_tensors_are_reached_by_their_class(tmp_path: Path) -> None:
    source = (
        "class Losses:\n    @staticmethod\n    def l1(x: Tensor, y: Tensor):\n        return (x - y).abs().mean()\n"
        "    def bound(self, x: Tensor):\n        return x * 2\n"
        "    @staticmethod\n    def count(x: Tensor):\n        return x.numel()\n"
    )
    assert declared(tmp_path, {"a.py": HEAD + source}) == {"a:Losses.l1": TargetKind.FUNCTION}


def test_of_two_definitions_of_one_name_the_last_holds(tmp_path: Path) -> None:
    source = "def f(x: Tensor):\n    return x\ndef f(x: Tensor, y: Tensor):\n    return x * y\n"
    declared(tmp_path, {"a.py": HEAD + source})
    (target,) = declare_targets(tmp_path, ["a.py"])
    assert target.line == 8


def test_an_expression_of_a_thousand_levels_is_eligible(tmp_path: Path) -> None:
    source = "def f(x: Tensor):\n    return " + "-" * 1500 + "x\n"
    assert declared(tmp_path, {"a.py": HEAD + source}) == {"a:f": TargetKind.FUNCTION}


TEMPLATE = (
    "class Model(nn.Module):\n    embeddings: nn.Module\n"
    "    def forward(self, x):\n        return self._run(x)\n"
    "    def _run(self, x):\n        return self.embeddings(x)\n"
)
FILLED = (
    "class Small(Model):\n    def __init__(self):\n        super().__init__()\n"
    "        self.embeddings = nn.Embedding(4, 4)\n"
)


def test_a_class_whose_forward_reads_what_only_its_subclasses_set_is_abstract(tmp_path: Path) -> None:
    assert ruled_out(tmp_path, TEMPLATE + FILLED) == {"Model": "abstract"}


@pytest.mark.parametrize(
    "source",
    [
        TEMPLATE,  # nobody sets it: somebody forgot it, and that is worth a run
        TEMPLATE.replace("embeddings: nn.Module", "embeddings: nn.Module = nn.Identity()") + FILLED,
        TEMPLATE + "    def build(self):\n        self.embeddings = nn.Identity()\n" + FILLED,
        TEMPLATE + "    def build(self):\n        self.add_module('embeddings', nn.Identity())\n" + FILLED,
        TEMPLATE + "    def build(self, n):\n        setattr(self, n, nn.Identity())\n" + FILLED,
        TEMPLATE + "    def build(self):\n        fill(self)\n" + FILLED,
        "@fill\n" + TEMPLATE + FILLED,
        TEMPLATE.replace("(nn.Module):", "(Elsewhere, nn.Module):", 1) + FILLED,
        TEMPLATE.replace("return self.e", "return x if not hasattr(self, 'embeddings') else self.e") + FILLED,
        "class Model(nn.Module):\n    def forward(self, x):\n        return [p * x for p in self.parameters()]\n"
        "class Small(Model):\n    def parameters(self):\n        return []\n",
    ],
)
def test_what_may_have_its_attributes_another_way_is_to_be_run(tmp_path: Path, source: str) -> None:
    assert ruled_out(tmp_path, source) == {}


HANDS_ON = "    def forward(self, *args, **kwargs):\n        return super().forward(*args, **kwargs)\n"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Base(nn.Module):\n" + HANDS_ON + "class M(Base):\n    a = 1\n", "no forward"),
        ("class Base(nn.ReLU):\n" + HANDS_ON + "class M(Base):\n    a = 1\n", None),
        ("from lightning import LightningModule\nclass M(LightningModule):\n    a = 1\n", "no forward"),
        ("from lightning import LightningModule\nfrom b import B\nclass M(LightningModule, B):\n    a = 1\n", None),
    ],
)
def test_a_forward_that_only_calls_its_base_is_as_good_as_that(tmp_path: Path, source: str, reason: str | None) -> None:
    assert ruled_out(tmp_path, source).get("M") == reason


READING = "import os, pickle\nfrom pathlib import Path\nfrom transformers import AutoModel\n"


def built_by(parameters: str, *body: str) -> str:
    """A module with such a constructor."""
    lines = "".join(f"        {line}\n" for line in ("super().__init__()", *body))
    forward = "    def forward(self, x):\n        return x * self.w\n"
    return f"{READING}class M(nn.Module):\n    def __init__(self, {parameters}):\n{lines}{forward}"


LOADED = built_by("path, scale=1.0", "self.w = torch.load(os.path.join(path, 'w.pt'))")
FOLDER = ("if os.path.isdir(path):", "    name = os.path.join(path, 'w')", "else:", "    name = path")
LAYER = "class L(M):\n    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n"
FIXED = "class L(M):\n    def __init__(self, n):\n        super().__init__('weights', n)\n"
OTHER = "class L(M):\n    def __init__(self, place):\n        super().__init__(path=Path(place) / 'm')\n"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (LOADED, {"M"}),
        (built_by("path", "with open(path, 'rb') as f:", "    self.w = pickle.load(f)"), {"M"}),
        (built_by("path", *FOLDER, "assert os.path.exists(name), name"), {"M"}),
        (
            built_by("path", "self.path = Path(path)", "if not self.path.is_file():", "    raise ValueError(path)"),
            {"M"},
        ),
        (built_by("n", "self.w = AutoModel.from_pretrained('some/model')"), {"M"}),
        (built_by("name", "self.w = AutoModel.from_pretrained(name)"), {"M"}),
        (built_by("n", "self.w = torch.hub.load('some/models', model=n)"), {"M"}),
        (
            built_by("path", "self.w = self._read(path, 1)")
            + "    def _read(self, p, n):\n        return np.load(p)\n",
            {"M"},
        ),
        (LOADED + LAYER, {"M", "L"}),
        (LOADED + OTHER, {"M", "L"}),
        (LOADED + FIXED, {"M"}),
    ],
)
def test_what_reads_a_file_that_it_is_told_needs_files(tmp_path: Path, source: str, names: set[str]) -> None:
    assert ruled_out(tmp_path, source) == dict.fromkeys(names, "needs files")


@pytest.mark.parametrize(
    "source",
    [
        built_by("path=None", "self.w = 1.0 if path is None else torch.load(path)"),
        built_by("path, data=None", "if data is None:", "    data = torch.load(path)", "self.w = data"),
        built_by("n", "self.w = torch.load(Path(__file__).parent / 'w.pt')"),
        built_by("path", "try:", "    self.w = torch.load(path)", "except OSError:", "    self.w = 1.0"),
        built_by("path", "if path == 'own':", "    path = OWN", "self.w = torch.load(path)"),
        built_by("path", "if not os.path.exists(path):", "    os.makedirs(path)", "self.w = 1.0"),
        built_by("path", "self.w = 1.0", "self.log = open(path, 'w')"),
        built_by("path", "self.w = 1.0", "if not path:", "    return", "self.w = torch.load(path)"),
        built_by("path", "self.w = 1.0", "self.later = lambda: torch.load(path)"),
        built_by("n", "self.w = Local.from_pretrained('some/model')"),
        built_by("name", "self.w = AutoModel.from_pretrained(None, config=name)"),
        built_by("repo", "self.w = torch.hub.load(repo, 'm', source='local')"),
    ],
)
def test_what_may_do_without_a_file_is_to_be_run(tmp_path: Path, source: str) -> None:
    assert ruled_out(tmp_path, source) == {}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def make_buffer(data, cfg):\n    x = torch.exp(data)\n    b = Buffer(cfg.size)\n    return b\n", "factory"),
        (
            "def make_pair(config: RunConfig, stats: dict[str, Tensor]) -> tuple[Pipeline[Action], Pipeline[dict]]:\n"
            "    return Pipeline(config, stats), Pipeline(stats)\n",
            "factory",
        ),
        (
            "def create_thing(cfg, stats: dict[str, Tensor]):\n    return Thing(cfg, stats), make_other(cfg)\n",
            "factory",
        ),
        ("def make_sgd_optimizer(cfg, p):\n    return Wrapped(torch.exp(p), cfg.lr)\n", "optimizer"),
        (
            "def state_dict_from_other(params: dict[str, Tensor], names: list[Rule]) -> dict[str, Tensor]:\n"
            "    out = {}\n    for k, v in params.items():\n        out[k.replace('a', 'b') + '.w'] = v\n"
            "    return out\n",
            "data code",
        ),
    ],
)
def test_what_only_puts_objects_together_is_ruled_out(tmp_path: Path, source: str, reason: str) -> None:
    assert list(ruled_out(tmp_path, source).values()) == [reason]


@pytest.mark.parametrize(
    "source",
    [
        "def make_grid(cfg, x: Tensor):\n    return Grid(torch.exp(x))\n",
        "def make_output(cfg, x):\n    return ModelOutput(torch.exp(x))\n",
        "def make_scaled(cfg, x):\n    return torch.exp(x) * cfg.scale\n",
        "def make_rope(cfg: Cfg, d: dict[str, Tensor]) -> dict[str, Tensor]:\n    return {'x': torch.exp(d['x'])}\n",
        "def make_thing(size, x):\n    return Thing(torch.exp(x))\n",
        "def apply_cfg(cfg, x):\n    return Thing(torch.exp(x))\n",
        "def scale_state_dict(state: dict[str, Tensor]) -> dict[str, Tensor]:\n"
        "    return {k: v * 2 for k, v in state.items()}\n",
        "def split_state_dict(state: dict[str, Tensor]) -> dict[str, Tensor]:\n"
        "    return {k: v.chunk(3)[0] for k, v in state.items()}\n",
        "def clean_state_dict(state: dict[str, Tensor], prefix: str = 'x') -> dict[str, Tensor]:\n"
        "    return {k.removeprefix(prefix): v for k, v in state.items()}\n",
        "def rename(values: dict[str, Tensor]) -> dict[str, Tensor]:\n"
        "    return {k + 'x': v for k, v in values.items()}\n",
    ],
)
def test_what_may_compute_with_tensors_is_to_be_run(tmp_path: Path, source: str) -> None:
    assert ruled_out(tmp_path, source) == {}
    assert declared(tmp_path, {"a.py": HEAD + source})


RECORDS = (
    "from dataclasses import dataclass\nfrom enum import Enum\nfrom typing import Any\n"
    "class Mode(Enum):\n    A = 1\n"
    "@dataclass\nclass Feature:\n    shape: tuple[int, ...]\n    mode: Mode\n"
    "@dataclass\nclass Pair:\n    x: Tensor\n    n: int\n"
    "@dataclass\nclass Loose:\n    x: Any\n"
    "@dataclass\nclass Derived(Pair):\n    n: int\n"
)


@pytest.mark.parametrize(
    ("result", "reasons"),
    [
        ("tuple[dict[str, Feature], Mode]", {"find": "no tensor result"}),
        ("Pair", {}),
        ("Loose", {}),
        ("Derived", {}),
        ("list[Unknown]", {}),
        ("tuple[Mode, Tensor]", {}),
    ],
)
def test_records_of_plain_values_are_no_tensors(tmp_path: Path, result: str, reasons: dict[str, str]) -> None:
    source = f"{RECORDS}def find(x: Tensor) -> {result}:\n    y = torch.exp(x)\n    return wrap(y)\n"
    assert ruled_out(tmp_path, source) == reasons


HEAD_OF_TRAINING = HEAD + "import argparse\nimport torch.distributed as dist\nfrom torch.utils.data import DataLoader\n"
BACKWARD = "    loss = F.mse_loss(model(x), y)\n    loss.backward()\n"
STEP = "def step(model, optimizer, x, y):\n    optimizer.zero_grad()\n" + BACKWARD + "    optimizer.step()\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        pytest.param(STEP, "step", id="step"),
        pytest.param(STEP + "    return loss.item()\n", "step", id="a number returned"),
        pytest.param(
            "def fit(model, opt, scaler, x, y):\n    loss = F.mse_loss(model(x), y)\n"
            "    scaler.scale(loss).backward()\n    scaler.step(opt)\n    scaler.update()\n",
            "fit",
            id="scaler",
        ),
        pytest.param(
            "class Fitter:\n    def __init__(self, net):\n        self.net = net\n"
            "        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
            "    def fit(self, x, y):\n        F.mse_loss(self.net(x), y).backward()\n        self.optimizer.step()\n",
            "Fitter.fit",
            id="method",
        ),
        pytest.param(
            "def average(model):\n    for p in model.parameters():\n        dist.all_reduce(p.grad)\n",
            "average",
            id="average",
        ),
        pytest.param(
            "@torch.no_grad()\ndef mean(x):\n    dist.all_reduce(x)\n    return x / dist.get_world_size()\n",
            "mean",
            id="value",
        ),
    ],
)
def test_what_trains_or_averages_among_ranks_is_a_function_to_be_run(tmp_path: Path, source: str, name: str) -> None:
    assert declared(tmp_path, {"a.py": HEAD_OF_TRAINING + source}) == {f"a:{name}": TargetKind.FUNCTION}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(STEP.replace("def step", "def main"), id="main"),
        pytest.param(STEP.replace("def step", "def main_worker"), id="worker of a script"),
        pytest.param(STEP.replace("def step", "def _step"), id="private"),
        pytest.param(STEP.replace("(model, optimizer, x, y)", "()"), id="nothing given"),
        pytest.param(STEP + "    torch.save(model.state_dict(), 'last.pt')\n", id="writes a file"),
        pytest.param(STEP + "    args = argparse.ArgumentParser().parse_args()\n", id="arguments"),
        pytest.param(STEP + "    with open('log') as f:\n        print(f)\n", id="opens a file"),
        pytest.param(STEP + "    loader = DataLoader(x)\n", id="loads data"),
        pytest.param(STEP + "    dist.init_process_group('gloo')\n", id="starts processes"),
        pytest.param("def grads(model, x, y):\n" + BACKWARD, id="no step"),
        pytest.param(
            "def move(scheduler, loss):\n    loss.backward()\n    scheduler.step()\n", id="a scheduler's step"
        ),
        pytest.param("def walk(env, loss):\n    loss.backward()\n    env.step()\n", id="another step"),
        pytest.param(
            "from lightning import LightningModule\nclass M(LightningModule):\n    def training_step(self, batch, i):\n"
            "        self.loss(batch).backward()\n        self.optimizer.step()\n",
            id="driven by a framework",
        ),
        pytest.param(
            "def seed(device):\n    n = torch.randint(0, 9, (), device=device)\n    dist.all_reduce(n)\n"
            "    return n.item()\n",
            id="a number that nobody gave",
        ),
        pytest.param(
            "def spread(model):\n    for p in model.parameters():\n        dist.broadcast(p, 0)\n", id="broadcast"
        ),
    ],
)
def test_scripts_and_what_only_looks_like_training_stay_apart(tmp_path: Path, source: str) -> None:
    assert declared(tmp_path, {"a.py": HEAD_OF_TRAINING + source}) == {}
