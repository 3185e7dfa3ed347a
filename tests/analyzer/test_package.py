"""Helpers of other files are followed: through relative imports, re-exports and chains, and never into a trap."""

from pathlib import Path

import pytest

from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.modules import ModuleLayout
from analyzer.package import Package, absolute_name

SQUARES = "import torch\ndef energy(x):\n    return x.pow(2).sum(-1)\n"
GUARDED = "import torch\ndef energy(x):\n    return x.pow(2).sum(-1) + 1e-6\n"
ROOT = "def f(x):\n    return energy(x).sqrt()\n"


def places(root: Path, files: dict[str, str], rule: str = "GP103") -> list[tuple[str, int]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = analyze_files(root, list(files), options=AnalyzerOptions(rules=frozenset({rule, "GP002"})))
    assert not [finding for finding in found.findings if finding.rule == "GP002"]
    return [(finding.region.path, finding.region.start_line) for finding in found.findings]


@pytest.mark.parametrize(
    "imported",
    [
        "from .energies import energy\n",
        "from pkg.energies import energy\n",
        "from . import energy\n",
        "from pkg import energy\n",
    ],
)
def test_a_helper_of_another_file_is_judged_by_what_it_returns(tmp_path: Path, imported: str) -> None:
    files = {
        "pkg/__init__.py": "from .energies import energy\n",
        "pkg/model.py": f"import torch\n{imported}{ROOT}",
    }
    assert places(tmp_path / "faulty", files | {"pkg/energies.py": SQUARES}) == [("pkg/model.py", 4)]
    assert places(tmp_path / "right", files | {"pkg/energies.py": GUARDED}) == []


def test_a_helper_is_found_as_an_attribute_of_its_module(tmp_path: Path) -> None:
    model = "import torch\nfrom . import energies\ndef f(x):\n    return energies.energy(x).sqrt()\n"
    files = {"pkg/__init__.py": "", "pkg/model.py": model, "pkg/energies.py": SQUARES}
    assert places(tmp_path, files) == [("pkg/model.py", 4)]


def test_a_helper_that_calls_a_helper_of_a_third_file_is_followed(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/model.py": f"import torch\nfrom .middle import energy\n{ROOT}",
        "pkg/middle.py": "import torch\nfrom .energies import energy as inner\ndef energy(x):\n    return inner(x)\n",
        "pkg/energies.py": SQUARES,
    }
    assert places(tmp_path, files) == [("pkg/model.py", 4)]


def test_files_that_import_each_other_end(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/a.py": "import torch\nfrom .b import g\ndef f(x):\n    return g(x).sqrt()\n",
        "pkg/b.py": "import torch\nfrom .a import f\ndef g(x):\n    return f(x).sqrt()\n",
    }
    assert places(tmp_path, files) == []


@pytest.mark.parametrize("broken", ["def energy(:\n", "\0", "def energy(x):\n    return " + "(" * 300 + ")" * 300])
def test_a_helper_in_a_file_that_can_not_be_read_is_unknown(tmp_path: Path, broken: str) -> None:
    for name, text in {"__init__.py": "", "energies.py": broken}.items():
        (tmp_path / name).write_text(text)
    paths = ["__init__.py", "energies.py", "gone.py"]
    package = Package(tmp_path, paths, ModuleLayout(paths))
    value = package.value(".energies.energy", "model.py")
    assert not value.positive
    assert not value.non_negative


def test_more_helper_files_than_are_kept_open_give_the_same_answers(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": ""}
    files |= {f"pkg/e{i}.py": SQUARES for i in range(20)}
    body = "".join(f"from .e{i} import energy as energy{i}\n" for i in range(20))
    body += "def f(x):\n" + "".join(f"    y{i} = energy{i}(x).sqrt()\n" for i in range(20))
    assert len(places(tmp_path, files | {"pkg/model.py": f"import torch\n{body}"})) == 20


def test_what_was_looked_up_is_noted_also_when_the_answer_was_known_already(tmp_path: Path) -> None:
    files = {"pkg/__init__.py": "from .energies import energy\n", "pkg/energies.py": SQUARES, "pkg/model.py": ""}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    package = Package(tmp_path, list(files), ModuleLayout(files))
    for _ in range(2):
        with package.noting() as asked:
            assert package.value("pkg.energy", "pkg/model.py").non_negative
        assert asked == {"pkg", "pkg.energies"}


@pytest.mark.parametrize(
    ("name", "module", "is_package", "expected"),
    [
        ("a.b", "pkg.m", False, "a.b"),
        (".b", "pkg.m", False, "pkg.b"),
        (".b", "pkg", True, "pkg.b"),
        ("..b.c", "pkg.sub.m", False, "pkg.b.c"),
        ("..b", "pkg.sub", True, "pkg.b"),
        (".", "pkg.m", False, "pkg"),
        ("...b", "pkg.m", False, None),
    ],
)
def test_relative_names_are_resolved_as_python_does(
    name: str, module: str, is_package: bool, expected: str | None
) -> None:
    assert absolute_name(name, module, is_package=is_package) == expected
