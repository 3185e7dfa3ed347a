"""What running a target may come to, and what importing its file loads, are told from the text."""

from pathlib import Path

import pytest

from analyzer.engine import analyze_files
from analyzer.findings import StaticAnalysis
from analyzer.options import AnalyzerOptions


def analysis(root: Path, files: dict[str, str], *, cache: Path | None = None) -> StaticAnalysis:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return analyze_files(root, list(files), options=AnalyzerOptions(), cache=cache)


PACKAGE = {
    "pkg/__init__.py": "from .layers import Block as Block\n",
    "pkg/layers.py": (
        "import torch\nfrom torch import nn\nfrom pkg import maths\nfrom pkg.parts import Inner\n"
        "class Base(nn.Module):\n    def forward(self, x):\n        return self.step(x)\n"
        "    def unused(self, x):\n        return maths.never(x)\n"
        "class Block(Base):\n    def __init__(self):\n        super().__init__()\n        self.inner = Inner()\n"
        "    def step(self, x):\n        return self.inner.encode(maths.scale(x))\n"
    ),
    "pkg/maths.py": (
        "def scale(x):\n    return _halve(x)\n\ndef _halve(x):\n    return x / 2\n\ndef never(x):\n    return x\n"
    ),
    "pkg/parts.py": (
        "from torch import nn\nclass Inner(nn.Module):\n    def forward(self, x):\n        return x\n"
        "    def encode(self, x):\n        return x + 1\n    def decode(self, x):\n        return x - 1\n"
    ),
    "pkg/apart.py": "import torch\ndef f(x: torch.Tensor):\n    return x\n",
}


def test_helpers_inherited_methods_and_layers_are_reached_and_nothing_else(tmp_path: Path) -> None:
    reached = analysis(tmp_path, PACKAGE).reaches["pkg.layers:Block"]
    assert set(reached) == {
        ("pkg/layers.py", 6, 7),  # Base.forward, which it inherits
        ("pkg/maths.py", 1, 2),
        ("pkg/maths.py", 4, 5),
        ("pkg/parts.py", 3, 4),
        ("pkg/parts.py", 5, 6),  # encode, of an attribute; decode is never called
    }


def test_a_function_that_is_handed_over_or_stands_in_a_circle_is_reached(tmp_path: Path) -> None:
    files = {
        "a.py": (
            "import torch\nfrom b import even\n\ndef f(x: torch.Tensor, by=None):\n    return apply(x, odd)\n\n"
            "def apply(x, g):\n    return g(x)\n\ndef odd(x):\n    return even(x)\n"
        ),
        "b.py": "import a\ndef even(x):\n    return a.odd(x)\n",
    }
    assert set(analysis(tmp_path, files).reaches["a:f"]) == {("a.py", 7, 8), ("a.py", 10, 11), ("b.py", 2, 3)}


def test_what_is_reached_is_the_same_from_the_cache(tmp_path: Path) -> None:
    first = analysis(tmp_path / "s", PACKAGE, cache=tmp_path / "c")
    assert analysis(tmp_path / "s", PACKAGE, cache=tmp_path / "c") == first
    assert first.reaches


EVERYWHERE = {"pkg/layers.py", "pkg/parts.py", "pkg/apart.py"}


@pytest.mark.parametrize(
    ("changed", "text", "differ"),
    [
        pytest.param("pkg/maths.py", "X = 1", {"pkg/layers.py"}, id="asked for by name"),
        pytest.param("pkg/maths.py", "def more(x):\n    return x", EVERYWHERE, id="defines something at import"),
        pytest.param("pkg/maths.py", "import os\nos.umask(7)", EVERYWHERE, id="does something at import"),
        pytest.param("pkg/apart.py", "X = 1", {"pkg/apart.py"}, id="loaded by nobody"),
    ],
)
def test_a_closure_changes_with_what_the_code_of_a_file_rests_on(
    tmp_path: Path, changed: str, text: str, differ: set[str]
) -> None:
    before = analysis(tmp_path, PACKAGE).closures
    after = analysis(tmp_path, {**PACKAGE, changed: f"{PACKAGE[changed]}\n{text}\n"}).closures
    assert set(before) == EVERYWHERE
    assert {path for path in before if before[path] != after[path]} == differ


@pytest.mark.parametrize(
    ("at_import", "differ"),
    [
        pytest.param("", {"pkg/layers.py"}, id="called by nobody"),
        pytest.param("scale(1)", EVERYWHERE, id="called"),
        pytest.param("X = [scale(n) for n in range(3)]", EVERYWHERE, id="called in an expression"),
        pytest.param("@scale\ndef g(x):\n    return x", EVERYWHERE, id="decorates"),
        pytest.param("class C:\n    @scale\n    def g(self):\n        return 1", EVERYWHERE, id="decorates a method"),
        pytest.param("if True:\n    scale(1)", EVERYWHERE, id="called under a condition"),
        pytest.param("def g(x=scale(1)):\n    return x", EVERYWHERE, id="called for a default"),
        pytest.param("import pkg.maths\npkg.maths.scale(1)", EVERYWHERE, id="called by its whole name"),
        pytest.param("def g():\n    return scale(1)", {"pkg/layers.py"}, id="called when somebody calls"),
        pytest.param("import os\nX = os.getpid()", {"pkg/layers.py"}, id="something else is called"),
    ],
)
def test_the_body_of_a_function_counts_for_others_where_it_runs_at_import(
    tmp_path: Path, at_import: str, differ: set[str]
) -> None:
    files = {**PACKAGE, "pkg/maths.py": f"{PACKAGE['pkg/maths.py']}\n{at_import}\n"}
    before = analysis(tmp_path, files).closures
    other = files["pkg/maths.py"].replace("return x / 2", "return x / 3")
    after = analysis(tmp_path, {**files, "pkg/maths.py": other}).closures
    assert {path for path in before if before[path] != after[path]} == differ


@pytest.mark.parametrize(
    "imports",
    [
        "import helper",
        "from helper import *",
        "def g():\n    import helper",
        "if X:\n    from helper import y",
        "try:\n    import helper\nexcept ImportError:\n    pass",
        "import importlib\nz = importlib.import_module(name)",
    ],
)
def test_every_way_to_import_counts(tmp_path: Path, imports: str) -> None:
    target = f"import torch\n{imports}\ndef f(x: torch.Tensor):\n    return x\n"
    before = analysis(tmp_path, {"a.py": target, "helper.py": "y = 1\n"}).closures["a.py"]
    assert analysis(tmp_path, {"a.py": target, "helper.py": "y = 2\n"}).closures["a.py"] != before


def test_circles_of_imports_have_one_closure(tmp_path: Path) -> None:
    body = "import torch\ndef f(x: torch.Tensor):\n    return x\n"
    files = {"a.py": "import b\n" + body, "b.py": "import c\n" + body, "c.py": "import a\n" + body}
    closures = analysis(tmp_path, files).closures
    assert len(closures) == 3
    assert len(set(closures.values())) == 1


def test_a_file_that_loads_an_unreadable_one_has_no_closure(tmp_path: Path) -> None:
    body = "import torch\ndef f(x: torch.Tensor):\n    return x\n"
    files = {"a.py": "import broken\n" + body, "b.py": body, "broken.py": "def f(:\n"}
    assert set(analysis(tmp_path, files).closures) == {"b.py"}


def test_what_importing_a_file_does_is_noted(tmp_path: Path) -> None:
    body = "import torch\ndef f(x: torch.Tensor):\n    return x\n"
    files = {
        "script.py": body + "args = parser.parse_args()\nfor i in range(3):\n    loss.backward()\ntrain(args)\n",
        "guarded.py": body + "if __name__ == '__main__':\n    args = parser.parse_args()\n    train(args)\n",
    }
    notes = analysis(tmp_path, files).import_notes
    assert [(note.path, note.line, note.kind) for note in notes] == [
        ("script.py", 4, "reads arguments"),
        ("script.py", 5, "runs at import"),
        ("script.py", 7, "runs at import"),
    ]
