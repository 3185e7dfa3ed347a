"""`gradproof check --static-only`: what goes in, what comes out where, and what bad input gets."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from api.cli.main import run
from services.reports.document import Report

FAULTY = """import torch
from torch import nn


class Unit(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True)
"""

RIGHT = FAULTY.replace("x / x.norm(dim=-1, keepdim=True)", "nn.functional.normalize(x, dim=-1)")

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capfd: pytest.CaptureFixture[str]) -> Check:
    """Runs `gradproof check --static-only …`; returns exit code, stdout, stderr."""

    def checked(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["check", "--static-only", *map(str, arguments)])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return code, captured.out, captured.err

    return checked


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    (directory / "layers.py").write_text(FAULTY)
    return directory


def test_a_faulty_repository_fails_the_gate_and_names_the_line(check: Check, repository: Path) -> None:
    code, out, _ = check(repository)
    assert code == 1
    assert "layers.py:7" in out
    assert "GP102" in out


def test_a_right_repository_passes(check: Check, repository: Path) -> None:
    (repository / "layers.py").write_text(RIGHT)
    code, out, _ = check(repository)
    assert code == 0
    assert "GP102" not in out


def test_json_on_stdout_is_the_report_and_nothing_else(check: Check, repository: Path) -> None:
    _, out, err = check(repository, "--format", "json")
    report = Report.model_validate(json.loads(out))
    assert [finding.rule for finding in report.findings] == ["GP102"]
    assert report.tool.sandbox == "none"
    assert "Gate failed" in err


def test_the_report_can_go_to_a_file(check: Check, repository: Path, tmp_path: Path) -> None:
    _, out, _ = check(repository, "--format", "sarif", "--output", tmp_path / "out.sarif")
    assert out == ""
    assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"


def test_an_output_that_cannot_be_written_is_named(check: Check, repository: Path, tmp_path: Path) -> None:
    code, _, err = check(repository, "--output", tmp_path / "missing" / "out.txt")
    assert code == 2
    assert "missing/out.txt" in err


def test_a_single_file_can_be_checked(check: Check, repository: Path) -> None:
    code, out, _ = check(repository / "layers.py")
    assert code == 1
    assert "layers.py:7" in out


def test_several_paths_count_and_their_neighbours_do_not(check: Check, repository: Path) -> None:
    for name in ("a.py", "b.py"):
        (repository / name).write_text(FAULTY)
    _, out, _ = check(repository / "a.py", repository / "b.py", "--format", "json")
    assert {finding["path"] for finding in json.loads(out)["findings"]} == {"a.py", "b.py"}


def test_several_files_of_a_package_are_told_with_the_package_in_front(check: Check, repository: Path) -> None:
    package = repository / "pkg"
    package.mkdir()
    for name in ("__init__.py", "a.py", "b.py", "c.py"):
        (package / name).write_text(FAULTY)
    _, out, _ = check(package / "a.py", package / "b.py", "--format", "json")
    assert {finding["path"] for finding in json.loads(out)["findings"]} == {"pkg/a.py", "pkg/b.py"}


def test_only_the_rules_that_were_asked_for_speak(check: Check, repository: Path) -> None:
    code, out, _ = check(repository, "--rules", "GP3,GP901", "--format", "json")
    assert code == 0
    assert json.loads(out)["findings"] == []


def test_nothing_in_a_base_report_is_new(check: Check, repository: Path, tmp_path: Path) -> None:
    check(repository, "--format", "json", "--output", tmp_path / "base.json")
    code, out, _ = check(repository, "--base", tmp_path / "base.json", "--format", "json")
    assert code == 0
    assert [finding["is_new"] for finding in json.loads(out)["findings"]] == [False]


@pytest.mark.parametrize("is_package", [False, True])
def test_against_a_git_ref_only_what_was_added_since_is_new(check: Check, repository: Path, is_package: bool) -> None:
    if is_package:
        (repository / "__init__.py").write_text("")
    environment = os.environ | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(repository), *arguments], check=True, env=environment)
    (repository / "more.py").write_text(FAULTY)
    _, out, _ = check(repository, "--base", "HEAD", "--format", "json")
    assert {Path(finding["path"]).name: finding["is_new"] for finding in json.loads(out)["findings"]} == {
        "layers.py": False,
        "more.py": True,
    }


def zip_of(files: dict[str, bytes], place: Path) -> Path:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return place


def test_an_archive_is_checked_like_a_directory(check: Check, tmp_path: Path) -> None:
    code, out, _ = check(zip_of({"repo-1/layers.py": FAULTY.encode()}, tmp_path / "repo.zip"))
    assert code == 1
    assert "layers.py:7" in out


def bad_input(name: str, directory: Path) -> str | Path:  # noqa: PLR0911 - one return a kind of input
    """The word that `check` is given for one kind of bad input."""
    match name:
        case "not an archive":
            (directory / "a.zip").write_bytes(b"hello")
            return directory / "a.zip"
        case "zip bomb":
            return zip_of({"a.py": b"\0" * 100_000_000}, directory / "a.zip")
        case "path traversal":
            return zip_of({"../a.py": b"x"}, directory / "a.zip")
        case "symbolic link":
            with tarfile.open(directory / "a.tar", "w") as archive:
                member = tarfile.TarInfo("a.py")
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(member)
            return directory / "a.tar"
        case "30,000 files":
            with tarfile.open(directory / "a.tar", "w") as archive:
                for number in range(30_000):
                    archive.addfile(tarfile.TarInfo(f"{number}.py"), io.BytesIO())
            return directory / "a.tar"
        case "50 MB of Python":
            (directory / "big.py").write_bytes(b"x = 1\n" * (50_000_000 // 6))
            return directory / "big.py"
        case "an empty directory":
            return directory
        case "no Python":
            (directory / "notes.txt").write_text("soon\n")
            return directory
        case _:
            return name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("not an archive", "not a ZIP archive"),
        ("zip bomb", "a.py"),
        ("path traversal", "../a.py"),
        ("symbolic link", "a.py"),
        ("30,000 files", "20,000"),
        ("50 MB of Python", "big.py"),
        ("file:///etc", "https://"),
        ("ext::sh -c id", "URL"),
        ("git@example.org:a/b", "https://"),
        ("https://-oProxyCommand=id/a", "URL"),
        ("https://127.0.0.1/a", "127.0.0.1"),
        ("https://[::ffff:10.0.0.1]/a", "public"),
        ("/no/such/directory", "/no/such/directory"),
        ("an empty directory", "there are no files to analyse"),
        ("no Python", "there is no Python file"),
    ],
)
def test_bad_input_is_refused_by_name(check: Check, tmp_path: Path, name: str, said: str) -> None:
    code, out, err = check(bad_input(name, tmp_path))
    assert code == 2
    assert out == ""
    assert said in err


def test_nothing_is_told_twice_to_a_person(check: Check, tmp_path: Path) -> None:
    _, _, err = check(bad_input("file:///etc", tmp_path))
    assert err.count("https://") == 1
    _, _, err = check(tmp_path)
    assert err == "gradproof: there are no files to analyse\n"


def test_a_repository_with_nothing_to_run_passes_and_says_that_nothing_was_run(check: Check, tmp_path: Path) -> None:
    (tmp_path / "constants.py").write_text("EPSILON = 1e-8\n")
    code, out, _ = check(tmp_path)
    assert code == 0
    assert "no check was run: there is no module" in " ".join(out.split())


def test_a_syntax_error_is_a_note_and_the_rest_is_read(check: Check, repository: Path) -> None:
    (repository / "broken.py").write_text("import torch\ndef f(:\n")
    _, out, _ = check(repository, "--format", "json")
    found = {(finding["rule"], finding["path"], finding["severity"]) for finding in json.loads(out)["findings"]}
    assert ("GP001", "broken.py", "note") in found
    assert ("GP102", "layers.py", "warning") in found


def test_latin_1_and_a_byte_order_mark_are_read_right(check: Check, repository: Path) -> None:
    (repository / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n# caf\xe9\n" + FAULTY.encode())
    (repository / "bom.py").write_bytes(b"\xef\xbb\xbf" + FAULTY.encode())
    _, out, _ = check(repository, "--format", "json")
    lines = {finding["path"]: finding["start_line"] for finding in json.loads(out)["findings"]}
    assert lines == {"layers.py": 7, "latin.py": 9, "bom.py": 7}


def test_nesting_that_overflows_a_parser_is_a_note(check: Check, repository: Path) -> None:
    (repository / "deep.py").write_text("import torch\nx = " + "(" * 50_000 + "1" + ")" * 50_000 + "\n")
    _, out, _ = check(repository, "--format", "json")
    found = {(finding["rule"], finding["path"]) for finding in json.loads(out)["findings"]}
    assert ("GP002", "deep.py") in found or ("GP001", "deep.py") in found
    assert ("GP102", "layers.py") in found


def test_a_wrong_configuration_names_file_line_and_key(check: Check, repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[tool.gradproof]\ninclude = ["*.py"]\ncolour = "red"\n')
    code, _, err = check(repository)
    assert code == 2
    assert "pyproject.toml" in err
    assert "3" in err
    assert "colour" in err


@pytest.mark.parametrize("line", ['checks = ["gradchek"]', 'rules = { GP999 = "off" }'])
def test_a_rule_or_check_that_does_not_exist_is_refused(check: Check, repository: Path, line: str) -> None:
    (repository / "gradproof.toml").write_text(line + "\n")
    code, _, err = check(repository)
    assert code == 2
    assert "gradproof.toml:1" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rules", "GP999"], "GP999"),
        (["--checks", "telepathy"], "telepathy"),
        (["--base", "no-such-ref"], "no-such-ref"),
        (["--base", "--upload-pack=id"], "--upload-pack"),
        (["--python", "/no/such/python"], "/no/such/python"),
        (["--format", "papyrus"], "papyrus"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_named(check: Check, repository: Path, arguments: list[str], said: str) -> None:
    code, out, err = check(repository, *arguments)
    assert code == 2
    assert out == ""
    assert said in err
