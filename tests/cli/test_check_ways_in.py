"""The ways in of `gradproof check --static-only`: lists of files, notebooks, stdin, baselines, configurations."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.cli.main import run

FAULT = "import torch\n\n\ndef f(x):\n    return x / x.norm(dim=-1)\n"
RIGHT = "import torch\n\n\ndef f(x):\n    return torch.nn.functional.normalize(x, dim=-1)\n"
NOTEBOOK = json.dumps(
    {
        "cells": [
            {"cell_type": "markdown", "source": "# x"},
            {"cell_type": "code", "source": ["%ls\n", *FAULT.splitlines(True)]},
        ]
    }
)

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    """Runs `gradproof check --static-only …`; returns exit code, stdout, stderr."""

    def checked(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["check", "--static-only", *map(str, arguments)])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert "internal error" not in captured.err
        return code, captured.out, captured.err

    return checked


@pytest.fixture
def report(check: Check) -> Callable[..., dict[str, Any]]:
    """The same with `--format json`; returns the report with the exit code in it."""

    def reported(*arguments: str | Path) -> dict[str, Any]:
        code, out, err = check(*arguments, "--format", "json")
        assert out, err
        return {**json.loads(out), "exit_code": code}

    return reported


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A configured repository: a package in `src`, a module beside it, a notebook."""
    root = tmp_path / "repository"
    package = root / "src/pkg"
    package.mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.gradproof]\nexclude = ["legacy/"]\n')
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text(FAULT)
    (package / "b.py").write_text(RIGHT)
    (root / "other.py").write_text(FAULT)
    (root / "n.ipynb").write_text(NOTEBOOK)
    (root / "legacy").mkdir()
    (root / "legacy/old.py").write_text(FAULT)
    return root


def paths(report: dict[str, Any]) -> set[str]:
    return {finding["path"] for finding in report["findings"]}


def prints(report: dict[str, Any]) -> dict[str, str]:
    return {finding["path"]: finding["fingerprint"] for finding in report["findings"]}


# --- places ----------------------------------------------------------------------------------------------------


def test_a_file_has_the_same_name_and_fingerprint_however_it_is_named(
    repository: Path, report: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(repository)
    assert paths(whole) == {"src/pkg/a.py", "other.py", "n.ipynb"}
    wanted = {"src/pkg/a.py": prints(whole)["src/pkg/a.py"]}
    assert prints(report(repository / "src")) == wanted
    assert prints(report(repository / "src/pkg")) == wanted
    assert prints(report(repository / "src/pkg/a.py")) == wanted
    assert prints(report(repository / "src/pkg/a.py", repository / "src/pkg/b.py")) == wanted
    monkeypatch.chdir(repository / "src")
    assert prints(report("pkg/a.py")) == wanted


def test_without_a_configuration_names_begin_at_the_directory_or_at_the_root_asked_for(
    repository: Path, report: Callable[..., dict[str, Any]]
) -> None:
    (repository / "pyproject.toml").unlink()
    assert paths(report(repository / "src/pkg/a.py")) == {"a.py"}
    assert paths(report("--root", repository, repository / "src/pkg/a.py")) == {"src/pkg/a.py"}


def test_a_path_outside_the_root_is_refused(repository: Path, check: Check) -> None:
    code, _, err = check("--root", repository / "src", repository / "other.py")
    assert code == 2
    assert "does not lie below it" in err


def test_a_configuration_above_the_repository_does_not_count(
    repository: Path, report: Callable[..., dict[str, Any]]
) -> None:
    (repository / "pyproject.toml").unlink()
    (repository.parent / "gradproof.toml").write_text('ignore = ["GP1"]\n')
    assert paths(report(repository)) == {"src/pkg/a.py", "other.py", "n.ipynb", "legacy/old.py"}


def test_a_file_that_is_named_but_excluded_is_not_read(repository: Path, report: Callable[..., dict[str, Any]]) -> None:
    found = report(repository / "legacy/old.py", repository / "src/pkg/b.py")
    assert (found["findings"], found["exit_code"]) == ([], 0)


def test_a_file_that_is_named_is_read_even_where_git_ignores_it(
    repository: Path, report: Callable[..., dict[str, Any]]
) -> None:
    (repository / ".gitignore").write_text("other.py\n")
    assert paths(report(repository)) == {"src/pkg/a.py", "n.ipynb"}
    assert paths(report(repository / "other.py", repository / "src/pkg/b.py")) == {"other.py"}


def test_helpers_of_files_that_were_not_named_are_known(tmp_path: Path, report: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "gradproof.toml").write_text("")
    (tmp_path / "pkg/__init__.py").write_text("")
    (tmp_path / "pkg/helpers.py").write_text("import torch\ndef size(x):\n    return x.norm(dim=-1).clamp(min=1e-8)\n")
    (tmp_path / "pkg/a.py").write_text(
        "import torch\nfrom pkg.helpers import size\ndef f(x):\n    return x / size(x)\n"
    )
    assert report(tmp_path / "pkg/a.py")["findings"] == []


def test_what_does_not_exist_or_is_no_python_is_refused(repository: Path, check: Check) -> None:
    for words in (["missing.py"], ["other.py", "missing.py"], ["pyproject.toml"]):
        code, out, err = check(*(repository / word for word in words))
        assert (code, out) == (2, "")
        assert words[-1] in err


# --- notebooks -------------------------------------------------------------------------------------------------


def test_a_notebook_is_told_by_cell_and_line(repository: Path, check: Check) -> None:
    code, out, _ = check(repository / "n.ipynb")
    assert code == 1
    assert "n.ipynb:cell 2:6:12  warning  GP102" in out
    assert "return x / x.norm(dim=-1)\n" in out


def test_a_notebook_in_json_has_its_cell_beside_the_line(
    repository: Path, report: Callable[..., dict[str, Any]]
) -> None:
    (finding,) = report(repository / "n.ipynb")["findings"]
    assert (finding["path"], finding["cell"], finding["start_line"]) == ("n.ipynb", 2, 6)
    (other,) = report(repository / "other.py")["findings"]
    assert other["cell"] is None


def test_a_damaged_notebook_is_a_note_and_the_rest_is_read(
    repository: Path, report: Callable[..., dict[str, Any]]
) -> None:
    (repository / "broken.ipynb").write_text('{"cells": [')
    found = {(finding["rule"], finding["path"]) for finding in report(repository)["findings"]}
    assert ("GP002", "broken.ipynb") in found
    assert ("GP102", "src/pkg/a.py") in found


# --- stdin -----------------------------------------------------------------------------------------------------


class Stdin(io.TextIOWrapper):
    def __init__(self, text: str) -> None:
        super().__init__(io.BytesIO(text.encode()))


def test_stdin_stands_for_the_file_that_is_named(
    repository: Path, report: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = prints(report(repository / "src/pkg/a.py"))
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "stdin", Stdin(FAULT))
    found = report("-", "--stdin-filename", "src/pkg/a.py")
    assert (prints(found), found["exit_code"]) == (wanted, 1)
    monkeypatch.setattr(sys, "stdin", Stdin(RIGHT))
    assert report("-", "--stdin-filename", "src/pkg/a.py")["findings"] == []


def test_stdin_may_be_a_file_that_does_not_exist_yet(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "stdin", Stdin(FAULT))
    code, out, _ = check("-", "--stdin-filename", "src/new/deep/x.py")
    assert code == 1
    assert "src/new/deep/x.py:5:12  warning  GP102" in out
    assert "return x / x.norm(dim=-1)\n" in out


def test_the_configuration_of_the_place_counts_for_stdin(
    repository: Path, report: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository.parent)
    monkeypatch.setattr(sys, "stdin", Stdin(FAULT))
    found = report("-", "--stdin-filename", "repository/legacy/x.py")
    assert (found["findings"], found["exit_code"]) == ([], 0)
    (repository / "pyproject.toml").write_text('[[tool.gradproof.per_path]]\npaths = ["*.py"]\nignore = ["GP102"]\n')
    monkeypatch.setattr(sys, "stdin", Stdin(FAULT))
    assert report("-", "--stdin-filename", "repository/x.py")["findings"] == []


def test_stdin_may_be_a_notebook(repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(NOTEBOOK))
    _, out, _ = check("-", "--stdin-filename", str(repository / "x.ipynb"))
    assert "x.ipynb:cell 2:6:12" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-"], "--stdin-filename"),
        (["-", "a.py", "--stdin-filename", "a.py"], "only path"),
        (["a.py", "--stdin-filename", "a.py"], "only path"),
        (["-", "--stdin-filename", "a.txt"], "a.txt"),
        (["-", "--stdin-filename", "a\udcff.py"], "a"),
    ],
)
def test_stdin_that_makes_no_sense_is_refused(check: Check, arguments: list[str], said: str) -> None:
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert said in err


# --- baselines -------------------------------------------------------------------------------------------------


def test_only_what_a_baseline_does_not_know_is_new_and_fails(
    repository: Path, report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    baseline = tmp_path / "known.json"
    written = report(repository, "--write-baseline", baseline)
    assert written["exit_code"] == 0
    assert report(repository, "--baseline", baseline)["exit_code"] == 0
    (repository / "src/pkg/b.py").write_text(FAULT)
    found = report(repository, "--baseline", baseline)
    assert found["exit_code"] == 1
    assert {finding["path"]: finding["is_new"] for finding in found["findings"]} == {
        "src/pkg/a.py": False,
        "src/pkg/b.py": True,
        "other.py": False,
        "n.ipynb": False,
    }


def test_a_baseline_survives_lines_inserted_above(
    repository: Path, report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    report(repository, "--write-baseline", tmp_path / "known.json")
    (repository / "other.py").write_text("# one\n# two\n" + FAULT)
    assert report(repository, "--baseline", tmp_path / "known.json")["exit_code"] == 0


def test_a_baseline_says_rule_path_and_message_in_a_stable_order(
    repository: Path, report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for name in ("one.json", "two.json"):
        report(repository, "--write-baseline", tmp_path / name)
    text = (tmp_path / "one.json").read_text()
    assert text == (tmp_path / "two.json").read_text()
    entries = json.loads(text)["findings"]
    assert [entry["path"] for entry in entries] == ["n.ipynb", "other.py", "src/pkg/a.py"]
    assert {frozenset(entry) for entry in entries} == {frozenset({"fingerprint", "rule", "path", "message"})}


def test_entries_that_are_no_longer_found_are_reported_where_they_were_looked_for(
    repository: Path, report: Callable[..., dict[str, Any]], check: Check, tmp_path: Path
) -> None:
    baseline = tmp_path / "known.json"
    report(repository, "--write-baseline", baseline)
    (repository / "src/pkg/a.py").write_text(RIGHT)
    (repository / "other.py").unlink()
    gone = report(repository, "--baseline", baseline)["baseline"]["gone"]
    assert {entry["path"] for entry in gone} == {"src/pkg/a.py", "other.py"}
    code, out, _ = check(repository, "--baseline", baseline)
    assert code == 0
    assert "2 entries of the baseline are no longer found" in out
    assert "1 known and not shown" in out
    assert "n.ipynb:cell" not in out
    # Of files and rules that were not asked for nothing is known.
    partial = report(repository / "src", "--baseline", baseline)["baseline"]["gone"]
    assert {entry["path"] for entry in partial} == {"src/pkg/a.py"}
    assert report(repository, "--baseline", baseline, "--select", "GP3")["baseline"]["gone"] == []


def test_a_baseline_can_be_brought_up_to_date_in_place(
    repository: Path, report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    baseline = tmp_path / "known.json"
    report(repository, "--write-baseline", baseline)
    (repository / "other.py").write_text(RIGHT)
    report(repository, "--baseline", baseline, "--write-baseline", baseline)
    assert report(repository, "--baseline", baseline)["baseline"] == {"file": str(baseline), "entries": 2, "gone": []}


@pytest.mark.parametrize("text", [None, "", "[]", '{"findings": 3}', '{"schema_version": "9"}', '{"findings": [{}]}'])
def test_a_baseline_that_is_none_is_refused(repository: Path, check: Check, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "known.json").write_text(text)
    code, out, err = check(repository, "--baseline", tmp_path / "known.json")
    assert (code, out) == (2, "")
    assert "known.json" in err


# --- rules and formats -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "rules"),
    [
        (["--select", "GP1"], {"GP102"}),
        (["--select", "gp102"], {"GP102"}),
        (["--select", "hand-normalisation"], {"GP102"}),
        (["--select", "ALL", "--ignore", "GP102"], set()),
        (["--ignore", "GP1,GP3"], set()),
        (["--rules", "GP102"], {"GP102"}),
    ],
)
def test_rules_are_selected_and_ignored(
    repository: Path, report: Callable[..., dict[str, Any]], arguments: list[str], rules: set[str]
) -> None:
    assert {finding["rule"] for finding in report(repository, *arguments)["findings"]} == rules


def test_rules_that_do_not_exist_are_refused(repository: Path, check: Check) -> None:
    for option in ("--select", "--ignore"):
        code, _, err = check(repository, option, "GP102,GP777")
        assert code == 2
        assert "GP777" in err


def test_annotations_for_github_are_all_that_stdout_holds(repository: Path, check: Check) -> None:
    code, out, err = check(repository / "src", "--format", "github")
    assert code == 1
    assert out.startswith("::warning file=src/pkg/a.py,line=5,endLine=5,col=12,endColumn=30,title=GP102 ")
    assert err == ""


def test_colour_is_for_terminals(repository: Path, check: Check) -> None:
    assert "\x1b" not in check(repository)[1]


def test_reading_alone_loads_neither_worker_nor_database_nor_web(repository: Path) -> None:
    code = (
        "import sys; from api.cli.main import run\n"
        f"assert run(['check', '--static-only', {str(repository)!r}, '--output', '/dev/null']) == 1\n"
        "heavy = 'torch sqlalchemy alembic celery worker httpx fastapi uvicorn jinja2 libcst'.split()\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


# --- speed -----------------------------------------------------------------------------------------------------


def test_a_second_run_over_unchanged_files_says_the_same_from_what_is_kept(
    repository: Path,
    report: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRADPROOF_DATA_DIR", str(tmp_path / "data"))
    for number in range(6):
        (repository / f"src/pkg/more_{number}.py").write_text(FAULT)
    first = report(repository)
    kept = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert kept
    monkeypatch.setattr("analyzer.file_analysis._apply_rules", lambda *_: ((), ()))
    assert report(repository)["findings"] == first["findings"]
    assert report(repository, "--no-cache")["findings"] == []


def test_the_hook_runs_as_its_definition_says(
    repository: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text())
    command, *arguments = hook["entry"].split()
    assert command == "gradproof"
    monkeypatch.chdir(repository)
    baseline = ["--baseline", "known.json"]
    assert run([*arguments, ".", "--write-baseline", "known.json"]) == 0
    assert run([*arguments, *baseline, "src/pkg/a.py", "n.ipynb", "legacy/old.py"]) == 0
    (repository / "src/pkg/b.py").write_text(FAULT)
    assert run([*arguments, *baseline, "src/pkg/a.py", "src/pkg/b.py"]) == 1
    assert "src/pkg/b.py:5:12" in capfd.readouterr().out


def test_a_file_whose_name_no_report_can_hold_is_refused(check: Check, tmp_path: Path) -> None:
    file = tmp_path / "b\udcff.py"
    file.write_text(FAULT)
    code, out, _ = check(file)
    assert (code, out) == (2, "")
