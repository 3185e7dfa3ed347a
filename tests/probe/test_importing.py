"""Targets are imported from where their file lies, with what lies around it within reach."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from gradproof_probe.importing import import_target, outer_roots
from gradproof_probe.request import Target

FILES = {
    "around/__init__.py": "",
    "around/tools.py": "SCALE = 3",
    "around/forces/parts/layers.py": (
        "import torch\nfrom around.tools import SCALE\n\n\nclass Scaled(torch.nn.Module):\n"
        "    scale = SCALE\n\n    def forward(self, x):\n        return x * self.scale\n"
    ),
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    return tmp_path


def test_a_part_of_a_namespace_package_finds_the_package_around_it(source: Path) -> None:
    path = "around/forces/parts/layers.py"
    target = Target("layers:Scaled", "module", path, 5, "around/forces/parts", "layers", "Scaled")
    assert import_target(source, target).value.scale == 3


def test_what_lies_around_is_asked_last_and_never_outside_of_the_source(source: Path) -> None:
    roots = outer_roots(source, source.resolve() / "around" / "forces")
    assert roots == [str(source.resolve() / "around"), str(source.resolve())]
    assert outer_roots(source, source.resolve()) == []
    assert outer_roots(source, source.resolve().parent) == []
