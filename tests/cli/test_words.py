"""What the command line says to people who make the usual mistakes: a sentence and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.cli.main import run

MODULE = "from torch import nn\n\n\nclass Layer(nn.Module):\n    def forward(self, x):\n        return x * 2\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check", "{directory}", "--python", "/bin/true"], 2, "The Python can't be used: /bin/true doesn't answer"),
        (["serve", "--port", "0", "--data-dir", "{directory}/layer.py"], 2, "The data directory can't be used"),
        (["submit", "{directory}", "--server", "nowhere"], 2, "--server has to begin with http://"),
        (["submit", "{directory}", "--server", "http://127.0.0.1:1"], 3, "`gradproof serve` starts one"),
    ],
)
def test_a_mistake_gets_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    (tmp_path / "layer.py").write_text(MODULE)
    assert run([word.format(directory=tmp_path) for word in arguments]) == code
    err = capfd.readouterr().err
    assert said in err
    assert "internal error" not in err


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_no_help_text_loses_its_default_to_markup(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "unless" in capfd.readouterr().out
