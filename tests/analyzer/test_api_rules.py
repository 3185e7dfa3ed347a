"""What the rules on names and calls claim is true of the installed torch: what is flagged raises, the rest runs."""

import warnings
from pathlib import Path

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_files, analyze_source
from analyzer.findings import Finding, Severity
from analyzer.registry import rule
from analyzer.requirements import minimum_torch_of
from analyzer.rules.base import Invalid

RULES = AnalyzerOptions(rules=frozenset({"GP901"}))


def examples() -> list[Invalid]:
    found = rule("GP901")
    assert found is not None
    return list(found.invalid)


def flagged(source: str) -> list[str]:
    found = analyze_source(source, "package/layers.py", options=RULES).findings
    return [str(finding.hypothesis["name"]) for finding in found if finding.rule == "GP901"]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.source.splitlines()[-1])
def test_the_flagged_name_of_each_example_is_missing_in_the_installed_torch(example: Invalid) -> None:
    assert isinstance(example.source, str)
    for dotted in flagged(example.source):
        value: object = torch
        *parents, last = dotted.split(".")[1:]
        for part in parents:
            value = getattr(value, part)
        assert not hasattr(value, last)


def test_the_message_names_the_version_and_the_closest_name() -> None:
    version = torch.__version__.partition("+")[0]
    (finding,) = analyze_source("from torch import nn\nnn.Modul\n", "a.py", options=RULES).findings
    assert finding.message == f"torch.nn.Modul does not exist in torch {version}; did you mean torch.nn.Module?"


def test_a_name_is_reported_at_its_import_and_not_again_at_each_use() -> None:
    assert flagged("from torch import custom_grad\n\ncustom_grad.a()\ncustom_grad.b()\n") == ["torch.custom_grad"]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\n\n\n@unittest.skipIf(torch.__version__ < '1.8', '')\ndef f():\n    torch.rfft(1)\n",
        "import torch\n\n\ndef f():\n    if not hasattr(torch, 'other'):\n        return\n    torch.rfft(1)\n",
        "import torch\nimport contextlib\n\nwith contextlib.suppress(AttributeError):\n    torch.rfft(1)\n",
        "import torch\n\nold = getattr(torch, 'rfft', None) or torch.rfft\n",
        "import torch\n\nif is_torch_greater_1_8():\n    pass\nelse:\n    torch.rfft(1)\n",
        "from .torch import custom_grad\nfrom torchvision import custom_grad as other\n",
        "from torch import *\nfrom torch.nn import *\n",
    ],
)
def test_guarded_and_foreign_names_are_left_alone(source: str) -> None:
    assert flagged(source) == []


# --- the rules beside it ----------------------------------------------------------------------------------------------


def findings(source: str, rule_id: str, *, minimum_torch: str | None = None) -> list[Finding]:
    options = AnalyzerOptions(rules=frozenset({rule_id}), minimum_torch=minimum_torch)
    found = analyze_source(source, "package/layers.py", options=options).findings
    return [finding for finding in found if finding.rule == rule_id]


@pytest.mark.parametrize(
    "line",
    [
        "torch.zeros(2, memory_format=torch.contiguous_format)",
        "torch.tensor([1.0], copy=True)",
        "torch.nn.functional.softmax(torch.ones(2), axis=0)",
        "torch.nn.Linear(2)",
        "torch.concatenate(torch.ones(2), torch.ones(2), dim=0)",
        "torch.stack([torch.ones(2)], 0, 1)",
        "torch.optim.SGD([torch.ones(1)], learning_rate=0.1)",
        "torch.nn.LayerNorm(2, epsilon=1e-6)",
    ],
)
def test_a_call_that_is_said_to_raise_a_type_error_does(line: str) -> None:
    assert findings(f"import torch\n{line}\n", "GP904")
    with pytest.raises(TypeError):
        eval(line)


@pytest.mark.parametrize(
    "line",
    [
        "torch.sum(torch.ones(2, 2), axis=0, keepdims=True)",
        "torch.cat([torch.ones(2)], axis=0)",
        "torch.max(torch.ones(2), torch.ones(2))",
        "torch.zeros(2, 3, dtype=torch.float64)",
        "torch.empty(2, memory_format=torch.contiguous_format)",
        "torch.nn.functional.interpolate(torch.ones(1, 1, 2), size=4)",
        "torch.linalg.norm(torch.ones(2, 2), ord='fro', dim=(0, 1))",
        "torch.einsum('ij,jk->ik', torch.ones(2, 2), torch.ones(2, 2))",
        "torch.arange(0, 4, 2, dtype=torch.int64)",
        "torch.nn.functional.max_pool2d(torch.ones(1, 1, 4, 4), 2, return_indices=True)",
    ],
)
def test_a_call_that_runs_is_left_alone(line: str) -> None:
    eval(line)
    assert findings(f"import torch\n{line}\n", "GP904") == []


def test_a_keyword_of_numpy_is_renamed_where_torch_does_not_take_it() -> None:
    (finding,) = findings("import torch.nn.functional as F\ny = F.softmax(x, axis=-1)\n", "GP904")
    (edit,) = finding.fix.edits
    assert edit.replacement == "F.softmax(x, dim=-1)"


def test_what_a_deprecated_call_becomes_is_what_torch_s_message_says() -> None:
    (finding,) = findings("import torch\nscaler = torch.cuda.amp.GradScaler(1.0)\n", "GP903")
    assert [edit.replacement for edit in finding.fix.edits] == ["torch.amp.GradScaler('cuda', 1.0)"]


def test_positional_arguments_that_would_change_their_meaning_are_not_carried_over() -> None:
    """`torch.amp.autocast` takes the type where `torch.cuda.amp.autocast` takes `enabled`."""
    (finding,) = findings("import torch\nwith torch.cuda.amp.autocast(False):\n    pass\n", "GP903")
    assert finding.fix.edits == ()


def test_a_deprecated_name_stays_where_the_oldest_torch_has_nothing_else() -> None:
    source = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"
    assert findings(source, "GP903", minimum_torch="2.1") == []
    assert findings(source, "GP903", minimum_torch="2.4")


def test_a_variable_cuts_the_graph_of_what_it_is_given() -> None:
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = torch.autograd.Variable(x * 2)
    assert not copy.requires_grad
    source = (
        "import torch\nfrom torch.autograd import Variable\nw = torch.nn.Parameter(torch.ones(2))\n"
        "def f(x):\n    return Variable(x * w)\n"
    )
    assert [finding.severity for finding in findings(source, "GP907")] == [Severity.WARNING]


def test_legacy_constructors_become_what_they_did() -> None:
    for line in ("torch.Tensor([1, 2])", "torch.LongTensor([[1, 2], [3, 4]])", "torch.FloatTensor([1.5])"):
        (finding,) = findings(f"import torch\nt = {line}\n", "GP907")
        (edit,) = finding.fix.edits
        before, after = eval(line), eval(edit.replacement)
        assert before.dtype == after.dtype
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("name", "text", "bound"),
    [
        ("pyproject.toml", '[project]\ndependencies = [\n  "numpy>=2",\n  "torch>=2.1,<3",\n]\n', "2.1"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.3"\n', "2.3"),
        ("setup.py", "setup(install_requires=['torch >= 1.13.1', 'torchvision>=0.10'])\n", "1.13"),
        ("requirements.txt", "# torch>=1.0\ntorch~=2.4\n", "2.4"),
        ("requirements.txt", "torchvision>=0.20\npytorch-lightning>=2.0\n", None),
        ("requirements.txt", "torch\n", None),
        ("README.md", "torch>=2.1\n", None),
    ],
)
def test_the_oldest_torch_is_read_from_what_a_project_declares(
    tmp_path: Path, name: str, text: str, bound: str | None
) -> None:
    (tmp_path / name).write_text(text)
    assert minimum_torch_of(tmp_path) == bound


def test_a_name_that_is_newer_than_declared_is_found_in_a_project(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.1"]\n')
    (tmp_path / "layers.py").write_text("from torch import nn\nnorm = nn.RMSNorm(8)\n")
    options = AnalyzerOptions(rules=frozenset({"GP908"}))
    assert [f.region.start_line for f in analyze_files(tmp_path, ["layers.py"], options=options).findings] == [2]
    assert findings("from torch import nn\nnorm = nn.RMSNorm(8)\n", "GP908") == []
    assert findings("from torch import nn\nnorm = nn.RMSNorm(8)\n", "GP908", minimum_torch="2.10") == []


def test_a_load_is_safe_where_the_oldest_torch_reads_weights_only() -> None:
    assert findings("import torch\nx = torch.load('a')\n", "GP905", minimum_torch="2.5")
    assert findings("import torch\nx = torch.load('a')\n", "GP905", minimum_torch="2.6") == []
