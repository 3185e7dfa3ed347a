"""`gradproof fix`: what it rewrites, what it leaves alone, and what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analyzer.findings import StaticAnalysis
from analyzer.fixing import FixedSource, fix_source
from api.cli import fix as command
from api.cli.main import run

FAULTY = """import torch


def scale(x):  # unchanged
    return x * x.pow(2).mean(-1).rsqrt()  # why


def root(x):
    return torch.where(x > 0, torch.sqrt(x), 0.0)
"""

TRAP, MENDED = "torch.sqrt(x)", "torch.sqrt(torch.where(x > 0, x, 1.0))"

FixCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fix(capfd: pytest.CaptureFixture[str]) -> FixCommand:
    """Runs `gradproof fix …`; returns exit code, stdout, stderr."""

    def fixed(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["fix", *map(str, arguments)])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return code, captured.out, captured.err

    return fixed


@pytest.fixture
def module(tmp_path: Path) -> Path:
    place = tmp_path / "repository" / "layers.py"
    place.parent.mkdir()
    place.write_text(FAULTY)
    return place


def test_safe_fixes_are_written_and_the_rest_of_the_file_stays(fix: FixCommand, module: Path) -> None:
    code, out, err = fix(module.parent, "--rules", "GP114")
    assert (code, out) == (0, "")
    assert "1 fix made in 1 file" in err
    assert module.read_text() == FAULTY.replace(TRAP, MENDED)


def test_unsafe_fixes_wait_until_they_are_asked_for(fix: FixCommand, module: Path) -> None:
    _, _, err = fix(module.parent, "--rules", "GP105")
    assert module.read_text() == FAULTY
    assert "1 more with --unsafe" in err
    code, _, err = fix(module.parent, "--rules", "GP105", "--unsafe")
    assert code == 0
    before, after = FAULTY.splitlines(), module.read_text().splitlines()
    assert [new for old, new in zip(before, after, strict=True) if old != new] == [
        "    return x * x.pow(2).mean(-1).clamp(min=1e-12).rsqrt()  # why"
    ]
    assert "GP105" in err


def test_a_diff_writes_nothing_and_can_be_applied(fix: FixCommand, module: Path) -> None:
    code, out, _ = fix(module.parent, "--diff")
    assert code == 1
    assert module.read_text() == FAULTY
    subprocess.run(["patch", "-p1"], input=out, text=True, cwd=module.parent, check=True, capture_output=True)
    assert MENDED in module.read_text()
    code, out, err = fix(module.parent, "--diff")
    assert (code, out) == (0, "")
    assert "Nothing to fix" in err


def test_a_diff_of_a_file_without_a_last_line_end_says_so(fix: FixCommand, module: Path) -> None:
    module.write_text(FAULTY.rstrip("\n"))
    _, out, _ = fix(module, "--diff")
    assert out.endswith("\\ No newline at end of file\n")


def test_one_file_can_be_fixed_and_keeps_its_mode_and_line_ends(fix: FixCommand, module: Path) -> None:
    module.write_bytes(FAULTY.replace("\n", "\r\n").encode())
    module.chmod(0o640)
    assert fix(module)[0] == 0
    assert f"{MENDED}, 0.0)\r\n".encode() in module.read_bytes()
    assert b"\n" not in module.read_bytes().replace(b"\r\n", b"")
    assert module.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in module.parent.iterdir()] == ["layers.py"]


def test_what_git_ignores_and_the_configuration_leaves_out_is_not_touched(fix: FixCommand, module: Path) -> None:
    top = module.parent
    (top / "generated").mkdir()
    (top / "generated" / "a.py").write_text(FAULTY)
    (top / "ignored.py").write_text(FAULTY)
    (top / ".gitignore").write_text("ignored.py\n")
    (top / "pyproject.toml").write_text('[tool.gradproof]\nexclude = ["generated/"]\n')
    fix(top)
    assert module.read_text() != FAULTY
    assert (top / "ignored.py").read_text() == FAULTY
    assert (top / "generated" / "a.py").read_text() == FAULTY


def test_a_suppressed_finding_is_not_fixed(fix: FixCommand, module: Path) -> None:
    line = "    return torch.where(x > 0, torch.sqrt(x), 0.0)"
    module.write_text(FAULTY.replace(line, f"{line}  # gradproof: ignore[GP114] on purpose"))
    before = module.read_text()
    fix(module)
    assert module.read_text() == before


def test_a_file_that_is_no_python_is_named_and_the_others_are_fixed(fix: FixCommand, module: Path) -> None:
    (module.parent / "broken.py").write_text("def f(:\n")
    code, _, err = fix(module.parent)
    assert code == 0
    assert "1 fix made in 1 file" in err
    assert (module.parent / "broken.py").read_text() == "def f(:\n"


def test_a_file_that_somebody_changed_meanwhile_is_not_overwritten(
    fix: FixCommand, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(data: bytes, *arguments: object, **options: object) -> FixedSource:
        fixed = fix_source(data, *arguments, **options)  # type: ignore[arg-type]
        module.write_text("x = 1\n")
        return fixed

    monkeypatch.setattr(command, "fix_source", slow)
    code, _, err = fix(module)
    assert code == 2
    assert "changed while" in err
    assert module.read_text() == "x = 1\n"


@pytest.mark.parametrize(
    ("name", "said"), [("gone", "there is no file or directory"), ("notes.txt", "is no Python file")]
)
def test_what_can_not_be_fixed_is_named(fix: FixCommand, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "notes.txt").write_text("x")
    code, _, err = fix(tmp_path / name)
    assert code == 2
    assert said in err
    assert name in err


def test_what_the_configuration_leaves_out_is_left_alone(fix: FixCommand, module: Path) -> None:
    configuration = module.parent / "gradproof.toml"
    for text in (
        'exclude = ["layers.py"]\n',
        'ignore = ["GP114"]\n',
        'rules = { GP114 = "off" }\n',
        '[[per_path]]\npaths = ["*.py"]\nignore = ["GP114"]\n',
    ):
        configuration.write_text(text)
        fix(module.parent)
        fix(module)
        assert TRAP in module.read_text(), text
    configuration.write_text('[[per_path]]\npaths = ["other/"]\nignore = ["GP114"]\n')
    fix(module)
    assert MENDED in module.read_text()


def test_rules_that_do_not_exist_are_refused(fix: FixCommand, module: Path) -> None:
    code, _, err = fix(module, "--rules", "GP777")
    assert code == 2
    assert "GP777" in err


def test_a_patch_of_old_files_can_be_applied(module: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    latin = "# coding: latin-1\n# \xe9\n\x0c\n" + FAULTY.replace("unchanged", "unver\xe4ndert\x0c")
    module.write_bytes(latin.encode("latin-1"))
    assert run(["fix", "--diff", "--rules", "GP114", str(module.parent)]) == 1
    patch = capfdbinary.readouterr().out
    subprocess.run(["patch", "-p1"], input=patch, cwd=module.parent, check=True, capture_output=True)
    assert module.read_bytes() == latin.replace(TRAP, MENDED).encode("latin-1")


def test_a_write_protected_file_stays_and_the_others_are_fixed(fix: FixCommand, module: Path) -> None:
    other = module.with_name("zebra.py")
    other.write_text(FAULTY)
    module.chmod(0o444)
    code, _, err = fix(module.parent, "--rules", "GP114")
    assert code == 2
    assert "layers.py is write-protected" in err
    assert module.read_text() == FAULTY
    assert other.read_text() == FAULTY.replace(TRAP, MENDED)


def test_a_file_that_goes_away_meanwhile_is_told(
    fix: FixCommand, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = command.analyze_files

    def read_and_gone(*arguments: Any, **options: Any) -> StaticAnalysis:
        analysis = found(*arguments, **options)
        module.unlink()
        return analysis

    monkeypatch.setattr(command, "analyze_files", read_and_gone)
    code, _, err = fix(module.parent, "--rules", "GP114")
    assert code == 0
    assert "layers.py: not fixed: can't be read" in err
    assert "internal error" not in err
