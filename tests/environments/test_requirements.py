"""What a repository needs is read as text; whatever is not a name with a version is refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.environments.requirements import Wanted, read_requirements


def read(root: Path, files: dict[str, str], *extras: str) -> Wanted:
    for name, text in files.items():
        (root / name).write_text(text)
    return read_requirements(root, extras)


PYPROJECT = """
[project]
name = "x"
dependencies = ["Einops>=0.7", "torch>=2.1", "tomli; python_version < '3.8'"]
[project.optional-dependencies]
vision = ["opencv_python"]
"""


def test_the_projects_dependencies_are_read_without_its_extras(tmp_path: Path) -> None:
    wanted = read(tmp_path, {"pyproject.toml": PYPROJECT, "requirements.txt": "never-looked-at\n"})
    assert wanted == Wanted(("einops>=0.7", "torch>=2.1"))


def test_extras_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    assert "opencv-python" in read(tmp_path, {"pyproject.toml": PYPROJECT}, "vision").requirements


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"setup.cfg": "[options]\ninstall_requires =\n    einops\n    timm>=1\n"}, ("einops", "timm>=1")),
        ({"requirements.txt": "# all\neinops  # shapes\n\ntimm==1.0 --hash=sha256:00\n"}, ("einops", "timm==1.0")),
        ({"requirements.txt": "einops", "requirements-dev.txt": "ruff", "requirements_gpu.txt": "x"}, ("einops", "x")),
        ({"pyproject.toml": "[tool.black]\n", "requirements.txt": "einops"}, ("einops",)),
        ({"requirements.txt": "a \\\n  --hash=sha256:00\n"}, ("a",)),
        ({}, ()),
    ],
)
def test_other_files_are_read_where_the_project_says_nothing(
    tmp_path: Path, files: dict[str, str], expected: tuple[str, ...]
) -> None:
    assert read(tmp_path, files) == Wanted(expected)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-r other.txt", "an option"),
        ("-e .", "an option"),
        ("--index-url https://example.org", "an option"),
        ("git+https://example.org/x.git", "a URL"),
        ("x @ https://example.org/x.whl", "a URL"),
        ("https://example.org/x.whl", "a URL"),
        ("x @ file:///etc/passwd", "a URL"),
        ("./local", "a path"),
        ("wheels/x-1.0-py3-none-any.whl", "a path"),
        ("../up", "a path"),
        ("not a requirement", "not a requirement"),
        ("x" * 400, "longer"),
    ],
)
def test_what_is_no_name_of_a_package_is_refused_with_the_reason(tmp_path: Path, line: str, reason: str) -> None:
    wanted = read(tmp_path, {"requirements.txt": f"einops\n{line}\n"})
    assert wanted.requirements == ("einops",)
    (refused,) = wanted.refused
    assert refused.reason.startswith(reason)
    assert refused.place == "requirements.txt:2"


def test_files_that_lead_elsewhere_or_are_no_text_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("stolen==1.0\n")
    (tmp_path / "requirements.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "pyproject.toml").write_text("[project\n")
    wanted = read_requirements(tmp_path)
    assert wanted.requirements == ()
    assert [refused.place for refused in wanted.refused] == ["pyproject.toml"]


def test_thousands_of_requirements_are_cut(tmp_path: Path) -> None:
    wanted = read(tmp_path, {"requirements.txt": "".join(f"p{number}\n" for number in range(5000))})
    assert len(wanted.requirements) == 200
    assert "more than" in wanted.refused[-1].reason
