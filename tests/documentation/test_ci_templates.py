"""The templates for CI do what docs/ci.md says: their scripts are run as a runner would run them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from api.cli.main import command_line

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATES = ROOT / "examples" / "ci"
ACTION = TEMPLATES / "github" / "action.yml"
WORKFLOW = TEMPLATES / "github" / "workflow.yml"
JOB = TEMPLATES / "gitlab" / "gradproof.yml"
SUBMIT = TEMPLATES / "gitlab" / "submit.yml"
FAULT = "import torch\n\n\ndef norm(x):\n    return x / x.norm()\n"


def load(file: Path) -> dict[Any, Any]:
    value = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value


def git(repository: Path, *arguments: str) -> str:
    options = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    done = subprocess.run(["git", *options, *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit without a fault, and another one on top that brings one."""
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    for name, text in (("clean.py", "import torch\n"), ("model.py", FAULT)):
        (place / name).write_text(text, encoding="utf-8")
        git(place, "add", "-A")
        git(place, "commit", "-q", "-m", name)
    return place


def run(script: str, repository: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(repository.parent)}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=repository, env=environment | variables, check=False, capture_output=True, text=True,
    )  # fmt: skip


def step(name: str) -> dict[str, Any]:
    return next(each for each in load(ACTION)["runs"]["steps"] if each["name"] == name)


def inputs(**given: str) -> dict[str, str]:
    """The environment of a step: each input as it is given, or else its default."""
    action = load(ACTION)
    values = {name: each["default"] for name, each in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in given.items()
    }
    environment = step("Check")["env"]
    return {
        variable: values[re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", expression)[1]]  # type: ignore[index]
        for variable, expression in environment.items()
    }


def test_the_action_annotates_what_is_new_and_fails(repository: Path) -> None:
    variables = inputs(static_only="true", base="HEAD~1", sandbox="false")
    done = run(step("Check")["run"], repository, **variables)
    assert done.returncode == 1, done.stderr
    assert "::warning " in done.stdout
    assert "file=model.py" in done.stdout
    passed = run(step("Check")["run"], repository, **variables | {"BASE": "HEAD"})
    assert passed.returncode == 0, passed.stderr


def test_the_action_writes_a_report_and_takes_paths_as_words(repository: Path) -> None:
    variables = inputs(static_only="true", format="sarif", output="out.sarif", paths="clean.py model.py")
    assert run(step("Check")["run"], repository, **variables).returncode == 1
    assert json.loads((repository / "out.sarif").read_text())["version"] == "2.1.0"
    hostile = inputs(static_only="true", paths="$(touch broken) clean.py;touch broken", base="")
    assert run(step("Check")["run"], repository, **hostile).returncode == 2
    assert not (repository / "broken").exists()


def test_the_job_of_gitlab_leaves_a_code_quality_report(repository: Path) -> None:
    job = load(JOB)["gradproof"]
    arguments = {"GRADPROOF_ARGUMENTS": job["variables"]["GRADPROOF_ARGUMENTS"]}
    base = git(repository, "rev-parse", "HEAD~1")
    done = run("\n".join(job["script"]), repository, CI_MERGE_REQUEST_DIFF_BASE_SHA=base, **arguments)
    assert done.returncode == 1, done.stderr
    report = repository / job["artifacts"]["reports"]["codequality"]
    (issue,) = json.loads(report.read_text(encoding="utf-8"))
    assert issue["location"]["path"] == "model.py"
    main = run("\n".join(job["script"]), repository, **arguments)
    assert main.returncode == 1, main.stderr


@pytest.mark.parametrize("file", [ACTION, JOB, SUBMIT], ids=lambda file: file.name)
def test_every_command_and_option_in_a_template_exists(file: Path) -> None:
    commands = get_command(command_line()).commands  # type: ignore[attr-defined]
    script = "\n".join(_scripts(load(file)))
    used = re.findall(r"\bgradproof ([a-z]+)", script)
    assert used
    known = {word for name in used for each in commands[name].params for word in each.opts + each.secondary_opts}
    given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(re.findall(r"(?:gradproof |arguments).*", script))))
    assert given
    assert given <= known


def _scripts(value: object) -> Iterator[str]:
    """Every line that a runner would run."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from [each] if key == "run" else each if key == "script" else _scripts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _scripts(each)


def test_the_workflow_uses_inputs_that_there_are() -> None:
    known = set(load(ACTION)["inputs"])
    steps = load(WORKFLOW)["jobs"]["gradproof"]["steps"]
    used = [each["with"] for each in steps if each.get("uses") == "./.github/actions/gradproof"]
    assert len(used) == 2
    assert all(set(given) <= known for given in used)


def test_no_expression_is_written_into_a_script() -> None:
    for each in load(ACTION)["runs"]["steps"]:
        assert "${{" not in each["run"]


def test_the_page_names_the_inputs_and_the_files() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in load(ACTION)["inputs"])
    for file in (ACTION, WORKFLOW, JOB, SUBMIT):
        assert file.relative_to(ROOT).as_posix() in page
