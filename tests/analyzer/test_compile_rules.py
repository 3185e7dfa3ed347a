"""What the rules on compiled code claim of torch.compile is true of the installed torch."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from analyzer.compiled_regions import compiled_regions
from analyzer.context import FileContext
from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding, Severity
from analyzer.tensor_evidence import tensor_evidence

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    logging.getLogger("torch.__trace").setLevel(logging.CRITICAL)
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)


def findings(source: str, rule: str) -> list[Finding]:
    found = analyze_source(source, "package/layers.py", options=AnalyzerOptions(rules=frozenset({rule})))
    return [finding for finding in found.findings if finding.rule == rule]


def context(source: str) -> FileContext:
    return FileContext(path="a.py", module="a", text=source, tree=ast.parse(source))


class GraphCounter:
    """A backend that counts the graphs it is given and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        self.graphs += 1
        return module.forward


# --- what torch does --------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self, start: object) -> None:
        super().__init__()
        self.seen = start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * self.seen


@pytest.mark.parametrize(("start", "most"), [(0, 8), (0.5, 2), (torch.zeros(()), 1)])
def test_an_integer_that_grows_compiles_until_the_limit_and_others_do_not(start: object, most: int) -> None:
    backend = GraphCounter()
    compiled = torch.compile(Counting(start), backend=backend)
    for _ in range(12):
        compiled(torch.ones(2))
    assert backend.graphs == most


class Recording(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        return x * 2


def test_a_list_that_grows_compiles_until_the_limit() -> None:
    backend = GraphCounter()
    compiled = torch.compile(Recording(), backend=backend)
    for _ in range(12):
        compiled(torch.ones(2))
    assert backend.graphs == 8


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).sum()


HOOKS = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
]


@pytest.mark.parametrize("registration", HOOKS)
@pytest.mark.parametrize(("part", "runs"), [("inner", False), ("", True)])
def test_a_hook_that_comes_after_compiling_is_ignored_on_parts_only(registration: str, part: str, runs: bool) -> None:
    model = Part()
    model.compile(backend="eager")
    model(torch.ones(1, 2, requires_grad=True)).backward()
    ran: list[object] = []
    getattr(model.get_submodule(part), registration)(lambda *_: ran.append(1))
    model(torch.ones(1, 2, requires_grad=True)).backward()
    assert bool(ran) is runs


BREAKS = {
    "GP501": ["if x.sum() > 0:\n        x = x * 2"],
    "GP502": ["s = x.sum().item()", "s = int(x.sum())", "s = x.long().tolist()"],
    "GP503": ["i = x.nonzero()", "y = x[x > 0]", "u = torch.unique(x)", "i = torch.where(x > 0)"],
    "GP504": ["print('a')", "logger.info('a')", "warnings.warn('a')", "y = copy.deepcopy(torch.relu(x))"],
    "GP505": ["r = random.random()", "r = np.random.rand()", "torch.manual_seed(0)", "t = time.time()"],
    "GP507": ["g = torch.autograd.grad(x.sum(), x)"],
}
TAKEN = [
    "if x.shape[0] > 1:\n        x = x * 2",
    "r = random.uniform(0, 1)",
    "r = random.randint(0, 3)",
    "x = x.clone()\n    x[x > 0] = 0",
    "s = f'{x.sum()}'",
    "y = copy.deepcopy([1, 2])",
    "y = torch.repeat_interleave(x, 2, dim=0)",
    "assert (x < 1e9).all()",
]
HEAD = (
    "import copy, logging, random, time, warnings\nimport numpy as np\nimport torch\n"
    "logger = logging.getLogger('x')\n@torch.compile(backend=backend)\ndef f(x):\n    x = x * 1.0\n    "
)


def graphs_of(statement: str) -> int:
    backend = GraphCounter()
    namespace: dict[str, object] = {"backend": backend}
    exec(f"{HEAD}{statement}\n    return x * 2\n", namespace)
    compiled = namespace["f"]
    assert callable(compiled)
    compiled(torch.full((2, 4), 0.5, requires_grad="autograd" in statement))
    return backend.graphs


@pytest.mark.parametrize(("rule", "statement"), [(rule, s) for rule, group in BREAKS.items() for s in group])
def test_what_is_said_to_end_the_graph_ends_it_and_is_found(rule: str, statement: str) -> None:
    np.random.seed(0)
    assert graphs_of(statement) > 1
    assert findings(f"{HEAD}{statement}\n    return x * 2\n", rule)


@pytest.mark.parametrize("statement", TAKEN)
def test_what_is_taken_into_the_graph_is_left_alone(statement: str) -> None:
    assert graphs_of(statement) == 1
    for rule in BREAKS:
        assert findings(f"{HEAD}{statement}\n    return x * 2\n", rule) == []


def test_a_graph_that_must_be_whole_makes_a_break_an_error_unless_the_value_is_captured() -> None:
    head = "import torch\n@torch.compile(fullgraph=True)\ndef f(x: torch.Tensor):\n"
    branch = f"{head}    if x.sum() > 0:\n        return x\n    return x * 2\n"
    assert [finding.severity for finding in findings(branch, "GP501")] == [Severity.ERROR]
    assert findings(f"{head}    return x * x.sum().item()\n", "GP502") == []
    assert torch.compile(lambda x: x * x.sum().item(), fullgraph=True, backend="eager")(torch.ones(2)).shape == (2,)


# --- what counts as compiled --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n@torch.compile\ndef f(x):\n    print(x)\n",
        "import torch\n@torch.compile(mode='max-autotune')\ndef f(x):\n    print(x)\n",
        "import torch\nfrom functools import partial\n@partial(torch.compile, dynamic=True)\ndef f(x):\n    print(x)\n",
        "import torch\ndef f(x):\n    print(x)\ng = torch.compile(f)\n",
        "import torch\ndef h(x):\n    print(x)\n@torch.compile\ndef f(x):\n    return h(x)\n",
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        print(x)\n"
        "m = torch.compile(M().cuda())\n",
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        print(x)\nm = M()\nm.compile()\n",
        "import torch\nclass M(torch.nn.Module):\n    def __init__(self):\n"
        "        self.fast = torch.compile(self.slow)\n"
        "    def slow(self, x):\n        print(x)\n",
        "import torch\nclass B(torch.nn.Module):\n    def forward(self, x):\n        print(x)\n"
        "class M(torch.nn.Module):\n    def __init__(self):\n        self.b = B()\n    @torch.compile\n"
        "    def forward(self, x):\n        return self.b(x)\n",
    ],
)
def test_a_region_starts_where_the_file_says_so_and_goes_on_into_what_is_called(source: str) -> None:
    file = context(source)
    (call,) = file.calls("print")
    assert compiled_regions(file).of(call) is not None


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ndef f(x):\n    print(x)\n",
        "import re\ndef f(x):\n    print(x)\nf = re.compile('f')\n",
        "import torch\n@torch.compiler.disable\ndef h(x):\n    print(x)\n@torch.compile\ndef f(x):\n    return h(x)\n",
        "import torch\n@torch.compile\ndef f(x):\n    if torch.compiler.is_compiling():\n        return x\n"
        "    print(x)\n",
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        print(x)\nm = M()\n"
        "m.compile('adam')\n",
    ],
)
def test_other_code_is_not_taken_for_compiled(source: str) -> None:
    file = context(source)
    (call,) = file.calls("print")
    assert compiled_regions(file).of(call) is None


@pytest.mark.parametrize(
    ("expression", "certain"),
    [
        ("torch.exp(a)", True),
        ("x.masked_fill(a, 0)", True),
        ("(x == 0).any()", True),
        ("x + torch.zeros(2)", True),
        ("self.fc(x)", True),
        ("self.weight", True),
        ("t", True),
        ("x", False),
        ("x.shape[0]", False),
        ("a.mean()", True),
        ("np.zeros(3).any()", False),
        ("self.lstm(x)", False),
        ("self.scale", False),
        ("len(x)", False),
        ("x is None", False),
        ("torch.equal(x, a)", False),
    ],
)
def test_a_tensor_is_certain_only_with_evidence(expression: str, certain: bool) -> None:
    source = (
        "import numpy as np\nimport torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
        "        self.fc = nn.Linear(2, 2)\n        self.lstm = nn.LSTM(2, 2)\n        self.scale = 2.0\n"
        f"        self.weight = nn.Parameter(torch.ones(2))\n    def forward(self, x, a, t: torch.Tensor):\n"
        f"        {expression}\n"
    )
    file = context(source)
    value = next(node.value for node in file.nodes(ast.Expr) if ast.unparse(node.value) == expression)
    assert tensor_evidence(file).is_tensor(value) is certain


# --- how loudly it is said --------------------------------------------------------------------------------------------

MODULE = (
    "import random\nimport torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
    "        super().__init__()\n        self.n = 0\n        self.seen = []\n        self.p = 0.1\n"
    "    def forward(self, x):\n        "
)


@pytest.mark.parametrize(
    ("rule", "body", "severity"),
    [
        ("GP501", "if (x > 1).any():\n            x = x / 2\n        return x", Severity.WARNING),
        ("GP501", "while (x > 1).any():\n            x = x / 2\n        return x", Severity.WARNING),
        (
            "GP501",
            "for _ in range(3):\n            if (x > 1).any():\n                continue\n        return x",
            Severity.NOTE,
        ),
        ("GP501", "skip = False\n        if (x > 1).any():\n            skip = True\n        return x", Severity.NOTE),
        ("GP502", "return x * torch.exp(x).sum().item()", Severity.NOTE),
        ("GP505", "return x * random.random()", Severity.WARNING),
        ("GP505", "return x if random.random() < self.p else x * 2", Severity.NOTE),
        ("GP506", "self.n += 1\n        return x / self.n", Severity.WARNING),
        ("GP506", "self.n += 1\n        return x", Severity.NOTE),
        ("GP506", "self.seen.append(x.detach())\n        return torch.stack(self.seen).mean(0)", Severity.WARNING),
        ("GP506", "self.seen.append(x.detach())\n        return x", Severity.NOTE),
    ],
)
def test_in_a_forward_that_nothing_compiles_only_what_costs_something_is_a_warning(
    rule: str, body: str, severity: Severity
) -> None:
    assert [finding.severity for finding in findings(f"{MODULE}{body}\n", rule)] == [severity]


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("GP501", "skip = False\n        if (x > 1).any():\n            skip = True\n        return x"),
        ("GP502", "return x * torch.exp(x).sum().item()"),
        ("GP505", "return x if random.random() < self.p else x * 2"),
        ("GP506", "self.n += 1\n        return x"),
        ("GP506", "self.seen.append(x.detach())\n        return x"),
    ],
)
def test_where_the_file_compiles_the_module_it_is_a_warning_that_names_the_place(rule: str, body: str) -> None:
    (finding,) = findings(f"{MODULE}{body}\nfast = torch.compile(M())\n", rule)
    assert finding.severity is Severity.WARNING
    assert finding.related[-1].message == "compiled here"


@pytest.mark.parametrize(
    ("tail", "severity"),
    [("", Severity.NOTE), ("@torch.compile\ndef f(x):\n    return F.apply(x)\n", Severity.WARNING)],
)
def test_a_backward_that_branches_matters_where_its_function_is_compiled(tail: str, severity: Severity) -> None:
    source = (
        "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * 2\n    @staticmethod\n    def backward(ctx, grad):\n        if grad.sum() > 0:\n"
        f"            return grad\n        return grad * 2\n{tail}"
    )
    assert [finding.severity for finding in findings(source, "GP508")] == [severity]


def test_a_branch_is_taken_away_where_it_only_skips_what_does_nothing() -> None:
    body = "if (x == 0).any():\n            x = x.masked_fill(x == 0, 1.0)  # keep\n        return x"
    (finding,) = findings(f"{MODULE}{body}\n", "GP501")
    assert [edit.replacement for edit in finding.fix.edits] == ["x = x.masked_fill(x == 0, 1.0)"]
    for other in ("x.masked_fill(x == 1, 1.0)", "x.masked_fill(x == 0, 1.0) + 1", "y.masked_fill(x == 0, 1.0)"):
        (finding,) = findings(f"{MODULE}{body.replace('x.masked_fill(x == 0, 1.0)', other)}\n", "GP501")
        assert finding.fix.edits == (), other
