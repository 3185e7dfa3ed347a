"""Which rules speak where, and how grave it is, by configuration and by what is asked for on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions
from services.analyses.reading import known_configuration, read_snapshot
from services.configuration import ConfigurationError, read_configuration
from services.configuration.model import ConfigurationTable, Gate, PathRules, TargetTable
from services.documentation.configuration import EXAMPLE, configuration_page

BOTH = """import torch


def f(x, y):
    return x / x.norm(), torch.sqrt((y * y).sum())
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("pkg/a.py", "extra/a.py", "extra/deep/b.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(BOTH)
    return tmp_path


def found(root: Path, configuration: str = "", **options: object) -> dict[str, list[str]]:
    """The rules that speak, by file."""
    (root / "gradproof.toml").write_text(configuration)
    outcome = read_snapshot(root, AnalysisOptions.model_validate(options))
    rules: dict[str, list[str]] = {path: [] for path in ("pkg/a.py", "extra/a.py", "extra/deep/b.py")}
    for finding in outcome.analysis.findings:
        rules[finding.region.path].append(finding.rule)
    return rules


def everywhere(*rules: str) -> dict[str, list[str]]:
    return {path: list(rules) for path in ("pkg/a.py", "extra/a.py", "extra/deep/b.py")}


def test_without_a_word_all_rules_speak_everywhere(root: Path) -> None:
    assert found(root) == everywhere("GP102", "GP103")


@pytest.mark.parametrize("word", ["GP102", "hand-normalisation", 'GP102", "GP3'])
def test_only_selected_rules_speak(root: Path, word: str) -> None:
    assert found(root, f'select = ["{word}"]\n') == everywhere("GP102")


def test_ignored_rules_do_not_speak_even_if_selected(root: Path) -> None:
    assert found(root, 'select = ["GP1"]\nignore = ["sqrt-at-zero"]\n') == everywhere("GP102")
    assert found(root, 'select = ["ALL"]\nignore = ["GP1"]\n') == everywhere()


def test_what_is_asked_for_on_the_spot_goes_before_the_file(root: Path) -> None:
    assert found(root, 'select = ["GP3"]\n', rules=("GP103",)) == everywhere("GP103")
    assert found(root, 'ignore = ["GP103"]\n', ignore=("GP102",)) == everywhere()
    assert found(root, 'ignore = ["GP103"]\n', rules=("GP1",)) == everywhere("GP102")


def test_rules_are_ignored_for_some_paths(root: Path) -> None:
    configuration = '[[per_path]]\npaths = ["extra/"]\nignore = ["GP1"]\n'
    assert found(root, configuration) == everywhere() | {"pkg/a.py": ["GP102", "GP103"]}


def test_rules_are_selected_for_some_paths_and_several_tables_count_together(root: Path) -> None:
    configuration = (
        '[[per_path]]\npaths = ["extra/"]\nselect = ["GP103"]\n[[per_path]]\npaths = ["deep"]\nignore = ["GP103"]\n'
    )
    assert found(root, configuration) == {
        "pkg/a.py": ["GP102", "GP103"],
        "extra/a.py": ["GP103"],
        "extra/deep/b.py": [],
    }


def test_what_is_silent_at_a_path_is_not_counted_as_suppressed_there(root: Path) -> None:
    text = BOTH.replace("sum())", "sum())  # gradproof: ignore[GP102] never zero")
    (root / "pkg/a.py").write_text(text)
    (root / "gradproof.toml").write_text('[[per_path]]\npaths = ["*.py"]\nignore = ["GP102"]\n')
    analysis = read_snapshot(root, AnalysisOptions()).analysis
    assert analysis.suppressed == ()
    assert [finding.rule for finding in analysis.findings if finding.region.path == "pkg/a.py"] == ["GP103"]


def test_a_comment_for_a_rule_that_is_not_selected_is_not_called_unused(root: Path) -> None:
    (root / "pkg/a.py").write_text("import torch\nx = 1  # gradproof: ignore[GP102] counted\n")
    assert found(root)["pkg/a.py"] == ["GP003"]
    assert found(root, 'select = ["GP3"]\n')["pkg/a.py"] == []
    assert found(root, 'ignore = ["GP102"]\n')["pkg/a.py"] == []
    assert found(root, rules=("GP102",))["pkg/a.py"] == ["GP003"]


def test_the_notes_of_the_engine_speak_unless_they_are_ignored(root: Path) -> None:
    (root / "pkg/a.py").write_text("def f(:\n")
    assert found(root, 'select = ["GP3"]\n')["pkg/a.py"] == ["GP001"]
    assert found(root, 'select = ["GP3"]\nignore = ["GP001"]\n')["pkg/a.py"] == []


def test_severities_are_set_by_id_then_name_then_the_longest_beginning(root: Path) -> None:
    (root / "gradproof.toml").write_text(
        '[severities]\nGP1 = "note"\nhand-normalisation = "warning"\nGP102 = "error"\nGP = "warning"\n'
    )
    analysis = read_snapshot(root, AnalysisOptions()).analysis
    assert {(finding.rule, finding.severity.value) for finding in analysis.findings} == {
        ("GP102", "error"),
        ("GP103", "note"),
    }


def test_a_severity_moves_no_fingerprint(root: Path) -> None:
    before = [finding.fingerprint for finding in read_snapshot(root, AnalysisOptions()).analysis.findings]
    (root / "gradproof.toml").write_text('[severities]\nGP = "note"\n')
    assert [finding.fingerprint for finding in read_snapshot(root, AnalysisOptions()).analysis.findings] == before


def test_notebooks_are_read_beside_modules_and_can_be_excluded(root: Path) -> None:
    (root / "n.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "import torch\\ny = x / x.norm()"}]}')
    found = read_snapshot(root, AnalysisOptions()).analysis.findings
    assert [finding.region.place for finding in found if finding.region.cell] == ["n.ipynb:cell 1:2"]
    (root / "gradproof.toml").write_text('exclude = ["*.ipynb"]\n')
    assert not [finding for finding in read_snapshot(root, AnalysisOptions()).analysis.findings if finding.region.cell]


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ('select = ["GP102", "GP999"]\n', 1, "select[1]", "no such rule"),
        ('ignore = [\n  "gp102",\n]\n', 2, "ignore[0]", "no such rule"),
        ('[[per_path]]\npaths = ["a"]\nignore = ["hand-normalization"]\n', 3, "per_path[0].ignore[0]", "did you mean"),
        ('[[per_path]]\npaths = ["a"]\n', 1, "per_path[0]", "needs rules"),
        ('[[per_path]]\nignore = ["GP1"]\n', 1, "per_path[0].paths", "required"),
        ('[[per_path]]\npaths = ["a"]\nignored = ["GP1"]\n', 3, "per_path[0].ignored", "did you mean ignore"),
        ('[severities]\nGP102 = "fatal"\n', 2, "severities.GP102", "'error', 'warning' or 'note'"),
        ('[severities]\nGP777 = "note"\n', 2, "severities.GP777", "no such rule"),
    ],
)
def test_a_mistake_is_told_with_line_and_key(tmp_path: Path, text: str, line: int, key: str, said: str) -> None:
    (tmp_path / "gradproof.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_snapshot(tmp_path, AnalysisOptions())
    assert (caught.value.line, caught.value.key) == (line, key)
    assert said in caught.value.message


def test_patterns_are_those_of_gitignore(tmp_path: Path) -> None:
    (tmp_path / "gradproof.toml").write_text('[[per_path]]\npaths = ["!a"]\nignore = ["GP1"]\n')
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(tmp_path)
    assert "negated" in str([mistake.message for mistake in caught.value.mistakes])


def test_the_page_names_every_key_and_its_example_is_valid(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(EXAMPLE)
    configuration = known_configuration(tmp_path)
    assert configuration.severities == {"GP114": "error"}
    page = configuration_page()
    for table in (ConfigurationTable, PathRules, Gate, TargetTable):
        for name, field in table.model_fields.items():
            assert f"`{name}`" in page or f".{name}]" in page
            assert field.description or f".{name}]" in page


def test_a_target_is_imported_from_where_a_script_outside_of_include_imports_it(root: Path) -> None:
    (root / "train.py").write_text("from extra.deep.b import f\n")
    (root / "extra/deep/b.py").write_text("from extra.deep.own import Base\n\nclass Layer(Base):\n    pass\n")
    (root / "extra/deep/own.py").write_text(
        "from torch import nn\n\nclass Base(nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    (root / "gradproof.toml").write_text('include = ["extra/deep/b.py"]\n')
    (target,) = read_snapshot(root, AnalysisOptions()).analysis.targets
    assert (target.name, target.import_root, target.eligible) == ("extra.deep.b:Layer", "", True)
