"""Targets are added to a configuration: valid, read back as they were meant, beside what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.configuration import read_configuration
from services.configuration.model import MAX_TARGETS, TargetTable
from services.configuration.writing import (
    TargetsFileError,
    configuration_file,
    declarable,
    targets_text,
    with_targets,
    write,
)

ODD = [
    TargetTable(
        target="pkg.a:Odd", constructor='Odd({"a": \'b\\n\'}, "\x7fä\\t")', inputs=("torch.randn(2)", "mask=None")
    ),
    TargetTable(target="pkg.a:f", inputs=("*[torch.randn(2)]", "torch.tensor('''x\n y''')")),
]  # fmt: skip


def loaded(directory: Path) -> list[tuple[str, str | None, tuple[str, ...]]]:
    return [(item.target, item.constructor, item.inputs) for item in read_configuration(directory).targets]


def as_read(targets: list[TargetTable]) -> list[tuple[str, str | None, tuple[str, ...]]]:
    return [(item.target, item.constructor, item.inputs) for item in targets]


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("gradproof.toml", ""),
        ("gradproof.toml", 'exclude = ["old"]'),
        ("pyproject.toml", "[project]\nname = 'x'\n"),
        ("pyproject.toml", "[tool.gradproof]\nexclude = ['old']\n\n[tool.other]\na = 1"),
    ],
)
def test_what_is_written_is_read_back_and_the_rest_stays(tmp_path: Path, name: str, before: str) -> None:
    file = tmp_path / name
    if before:
        file.write_text(before, encoding="utf-8")
    written = with_targets(file, ODD)
    assert written.added == ("pkg.a:Odd", "pkg.a:f")
    assert written.text.startswith(before)
    write(file, written.text)
    assert loaded(tmp_path) == as_read(ODD)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_declared_already_is_kept_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "gradproof.toml"
    file.write_text('[[targets]]\ntarget = "pkg.a:f"\ninputs = ["torch.ones(1)"]\n', encoding="utf-8")
    written = with_targets(file, ODD)
    assert (written.added, written.kept) == (("pkg.a:Odd",), ("pkg.a:f",))
    write(file, written.text)
    assert loaded(tmp_path)[0] == ("pkg.a:f", None, ("torch.ones(1)",))
    assert with_targets(file, ODD).added == ()


def test_without_anything_new_the_text_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "gradproof.toml"
    file.write_text('exclude = ["old"]', encoding="utf-8")
    assert with_targets(file, ()).text == 'exclude = ["old"]'


@pytest.mark.parametrize(
    ("name", "before", "said"),
    [
        ("pyproject.toml", "[tool.gradproof]\ntargets = [{target = 'a:b', inputs = ['1']}]\n", "could not be read"),
        ("gradproof.toml", "exclude = [", "could not be read"),
        ("gradproof.toml", "colour = 1", "unknown key"),
    ],
)
def test_a_file_that_can_not_take_them_is_refused(tmp_path: Path, name: str, before: str, said: str) -> None:
    (tmp_path / name).write_text(before, encoding="utf-8")
    with pytest.raises(TargetsFileError, match=said):
        with_targets(tmp_path / name, ODD)


def test_two_files_that_would_both_configure_are_refused(tmp_path: Path) -> None:
    (tmp_path / "gradproof.toml").write_text('exclude = ["old"]', encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", encoding="utf-8")
    with pytest.raises(TargetsFileError, match="keep one of the two"):
        with_targets(tmp_path / "pyproject.toml", ODD)


def test_a_directory_that_can_not_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetsFileError, match="absent"):
        write(tmp_path / "absent" / "gradproof.toml", "")


def test_the_file_of_a_directory_is_the_one_that_configures_it(tmp_path: Path) -> None:
    assert configuration_file(tmp_path).name == "gradproof.toml"
    (tmp_path / "pyproject.toml").touch()
    assert configuration_file(tmp_path).name == "pyproject.toml"
    (tmp_path / "gradproof.toml").touch()
    assert configuration_file(tmp_path).name == "gradproof.toml"


def test_more_than_a_configuration_may_hold_is_left_out_and_named(tmp_path: Path) -> None:
    many = [TargetTable(target=f"pkg:T{number}", constructor="T()") for number in range(MAX_TARGETS + 3)]
    written = with_targets(tmp_path / "gradproof.toml", many)
    assert len(written.added) == MAX_TARGETS
    assert written.left_out == tuple(f"pkg:T{MAX_TARGETS + number}" for number in range(3))


def test_what_no_configuration_can_hold_is_none() -> None:
    assert declarable("pkg:f", None, []) is None
    assert declarable("not a name", "T()", []) is None
    assert declarable("pkg:f", None, ["x" * 5000]) is None
    assert targets_text([]) == ""


@pytest.mark.parametrize("text", ["1) + _(2", "a=1, b=2", "mask=", "**", "x; y"])
def test_an_argument_is_one_argument(text: str) -> None:
    assert declarable("pkg:f", None, [text]) is None
