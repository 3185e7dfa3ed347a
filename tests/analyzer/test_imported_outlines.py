"""Files that nobody asked for are read as far as asked ones import them: for bases, and for what code rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.engine import analyze_files

FILES = {
    "model/layers/own.py": (
        "from ..core.base import Base\n\nclass Own(Base):\n    def forward(self, x):\n        return x * 2\n"
    ),
    "model/core/base.py": (
        "from ..core.helpers import scale\nfrom torch import nn\n\nclass Base(nn.Module):\n    pass\n"
    ),
    "model/core/helpers.py": "def scale(x):\n    return x.exp()\n",
    "model/core/broken.py": "def broken(:\n",
    "model/core/unused.py": "UNUSED = 1\n",
}
FILES |= {f"model/{name}__init__.py": "" for name in ("", "layers/", "core/")}
ASKED = ["model/layers/own.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_layer_whose_base_stands_elsewhere_is_a_target_and_the_base_is_none(root: Path) -> None:
    assert [t.name for t in analyze_files(root, ASKED, beside=list(FILES)).targets] == ["model.layers.own:Own"]
    assert analyze_files(root, ASKED, beside=list(FILES), follow_imports=False).targets == ()


def test_what_a_target_rests_on_changes_with_a_helper_of_its_base_and_with_nothing_else(root: Path) -> None:
    before = analyze_files(root, ASKED, beside=list(FILES)).closures
    (root / "model/core/unused.py").write_text("CHANGED = 1\n")
    assert analyze_files(root, ASKED, beside=list(FILES)).closures == before
    (root / "model/core/helpers.py").write_text("def scale(x):\n    return x.exp() + 1\n")
    assert analyze_files(root, ASKED, beside=list(FILES)).closures.keys() == before.keys()
    assert analyze_files(root, ASKED, beside=list(FILES)).closures != before


def test_what_rests_on_a_file_that_cannot_be_read_is_not_known(root: Path) -> None:
    (root / "model/core/base.py").write_text("from ..core import broken\n" + FILES["model/core/base.py"])
    analysis = analyze_files(root, ASKED, beside=list(FILES))
    assert [target.name for target in analysis.targets] == ["model.layers.own:Own"]
    assert analysis.closures == {}


def test_findings_are_of_the_asked_files_alone(root: Path) -> None:
    (root / "model/core/helpers.py").write_text(
        "import torch\n\ndef scale(x):\n    return x / x.norm(dim=-1, keepdim=True)\n"
    )
    assert {f.path for f in analyze_files(root, ASKED, beside=list(FILES)).findings} <= set(ASKED)
    assert analyze_files(root, ["model/core/helpers.py"], beside=list(FILES)).findings
