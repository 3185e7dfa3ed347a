"""The text of a repository is read once, in the order of its paths, and says when it isn't all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradproof_probe import source_texts as module
from gradproof_probe.source_texts import source_texts


def write(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_python_files_and_notebooks_are_read_and_what_is_hidden_is_not(tmp_path: Path) -> None:
    write(tmp_path, b_dot_py="b", a__c_dot_py="c", n_dot_ipynb="{}", _dot_git__x_dot_py="x", read_dot_md="m")
    (tmp_path / "latin.py").write_bytes(b"caf\xe9")
    texts = source_texts(tmp_path)
    assert [(item.path, item.text) for item in texts.python] == [("a/c.py", "c"), ("b.py", "b")]
    assert [item.path for item in texts.notebooks] == ["n.ipynb"]
    assert texts.complete


def test_it_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, a_dot_py="before")
    assert source_texts(tmp_path) is source_texts(tmp_path)


def test_more_than_is_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FILES", 1)
    write(tmp_path, a_dot_py="a", b_dot_py="b")
    texts = source_texts(tmp_path)
    assert len(texts.python) == 1
    assert not texts.complete
