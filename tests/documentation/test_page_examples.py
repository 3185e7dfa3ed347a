"""The examples of a documentation page, run as a reader would run them."""

from __future__ import annotations

from pathlib import Path

from tools.page_examples import main, run_page


def test_what_stands_below_a_command_is_what_it_prints_today(tmp_path: Path) -> None:
    page = "Text.\n\n```console\n$ echo one\nlong ago\n$ echo two\n```\n\nMore.\n"
    assert run_page(page, tmp_path) == "Text.\n\n```console\n$ echo one\none\n$ echo two\ntwo\n```\n\nMore.\n"


def test_a_page_that_is_up_to_date_stays_as_it_is(tmp_path: Path) -> None:
    page = "```console\n$ true\n$ echo one\none\n```\n"
    assert run_page(page, tmp_path) == page


def test_a_command_sees_the_files_above_it_and_none_below_it(tmp_path: Path) -> None:
    first, second = "```python\n# first.py\nprint(1)\n```\n", "```toml\n# second.toml\n```\n"
    page = f"{first}```console\n$ ls\n$ python first.py\n```\n{second}"
    assert run_page(page, tmp_path) == f"{first}```console\n$ ls\nfirst.py\n$ python first.py\n1\n```\n{second}"
    assert (tmp_path / "second.toml").exists()


def test_errors_and_exit_codes_are_part_of_what_a_command_shows(tmp_path: Path) -> None:
    page = "```console\n$ echo wrong >&2; exit 3\n```\n"
    assert run_page(page, tmp_path) == "```console\n$ echo wrong >&2; exit 3\nwrong\n```\n"


def test_a_block_that_needs_another_machine_is_not_run(tmp_path: Path) -> None:
    page = "<!-- not run -->\n```console\n$ touch made\nas it was\n```\n"
    assert run_page(page, tmp_path) == page
    assert not (tmp_path / "made").exists()


def test_the_probe_and_the_tools_of_the_repository_are_at_hand(tmp_path: Path) -> None:
    page = "```console\n$ python -c 'import gradproof_probe.protocol, tools.page_examples; print(\"both\")'\n```\n"
    assert run_page(page, tmp_path).endswith("\nboth\n```\n")


def test_a_picture_that_a_command_draws_goes_beside_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo '<svg/>' > drawn.svg\n```\n", encoding="utf-8")
    assert main([str(page)]) == 0
    assert (tmp_path / "images" / "drawn.svg").read_text(encoding="utf-8") == "<svg/>\n"
