"""What the rule on names claims is true of the installed torch: the flagged names raise, the others do not."""

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.registry import rule
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
