"""What the worker makes of a sandbox that runs examples: bounded, sorted to targets and examples, and of its death."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.reports.document import ExampleInfo
from services.settings import Settings
from tests.execution.test_relay import Talking
from worker.execution import Examples, ExamplesOutcome, run_examples
from worker.execution.examples import MOST_CALLS, MOST_EXAMPLES, MOST_TEXT
from worker.sandbox import open_sandbox
from worker.sandbox.model import Mode

READY = {"type": "ready", "torch": "2.13.0", "python": "3.11.7", "devices": ["cpu"], "import_torch_s": 1.0}
DONE = {"type": "done"}
TARGET = "pkg.a:Odd"
README = """# pkg

```python
import torch
from pkg.a import Odd

odd = Odd({"width": 5, "depth": {"inner": 3}})
odd(torch.randn(2, 5))
```

```python
open("stolen", "w")
raise RuntimeError("no such data")
```
"""
MODULE = """
import torch


class Odd(torch.nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(settings["width"], settings["depth"]["inner"]))

    def forward(self, x):
        return x @ self.weight
"""


def example(place: str, **changes: Any) -> dict[str, Any]:
    return {"type": "example", "place": place, "kind": "readme", "outcome": "ran", "detail": "", **changes}


def call(number: int, provenance: str = "README.md:8", *, target: str = TARGET, size: int = 0) -> dict[str, Any]:
    recipe = {"constructor": f"Odd({number})", "inputs": ["x" * size], "provenance": provenance, "found_by": "readme"}
    return {"type": "mined", "target": target, "recipe": recipe}


def heard(tmp_path: Path, messages: Iterable[dict[str, Any]]) -> ExamplesOutcome:
    lines: Iterator[bytes] = (json.dumps(message).encode() for message in messages)
    examples = Examples(tmp_path, (TARGET,), Path(sys.executable))
    return run_examples(
        examples, launcher=Talking(lines), settings=Settings(data_dir=tmp_path), cancelled=lambda: False
    )


def test_calls_are_counted_with_the_example_around_them(tmp_path: Path) -> None:
    messages = [READY, example("README.md:4"), example("README.md:20"), example("docs/a.md:1"), call(1), call(2)]
    messages += [call(3, "README.md:21; made smaller"), call(4, "nowhere"), DONE]
    outcome = heard(tmp_path, messages)
    assert {item.place: item.captured for item in outcome.tried} == {
        "README.md:4": 2,
        "README.md:20": 1,
        "docs/a.md:1": 0,
    }
    assert [item.constructor for item in outcome.calls[TARGET]] == ["Odd(1)", "Odd(2)", "Odd(3)", "Odd(4)"]
    assert outcome.cause is None


def test_no_more_is_kept_than_a_request_and_a_report_can_hold(tmp_path: Path) -> None:
    many = [example(f"README.md:{number}") for number in range(MOST_EXAMPLES + 50)]
    calls = [call(number % 20) for number in range(100)] + [call(1, target="not:asked_for")]
    outcome = heard(tmp_path, [READY, *many, *calls, DONE])
    assert len(outcome.tried) == MOST_EXAMPLES
    assert {name: len(found) for name, found in outcome.calls.items()} == {TARGET: MOST_CALLS}


def test_all_calls_together_are_bounded(tmp_path: Path) -> None:
    names = tuple(f"pkg.a:T{number}" for number in range(1000))
    lines = (json.dumps(call(1, target=name, size=19_000)).encode() for name in names)
    outcome = run_examples(
        Examples(tmp_path, names, Path(sys.executable)),
        launcher=Talking(lines),
        settings=Settings(data_dir=tmp_path),
        cancelled=lambda: False,
    )
    kept = sum(len(text) for calls in outcome.calls.values() for found in calls for text in found.inputs)
    assert 0 < kept <= MOST_TEXT


def test_what_was_heard_before_the_end_counts_and_the_end_is_told(tmp_path: Path) -> None:
    outcome = heard(tmp_path, [READY, example("README.md:4"), call(1), {"type": "example", "outcome": "won"}])
    assert outcome.cause == "probe failed"
    assert "1 lines of the probe were refused" in outcome.detail
    assert len(outcome.calls[TARGET]) == len(outcome.tried) == 1


@pytest.fixture
def source() -> Iterator[Path]:
    """Readable for the user of the sandbox, which pytest's own directories are not."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o755)
        for name, text in {"README.md": README, "pkg/__init__.py": "", "pkg/a.py": MODULE}.items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")
        yield place


def test_they_are_run_confined_and_give_recipes_that_run(source: Path, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    launcher = open_sandbox(settings)
    assert launcher.mode is not Mode.OFF
    outcome = run_examples(
        Examples(source, (TARGET,), settings.python), launcher=launcher, settings=settings, cancelled=lambda: False
    )
    assert outcome.cause is None, outcome.detail
    (found,) = outcome.calls[TARGET]
    assert found.constructor == "Odd({'width': 5, 'depth': {'inner': 3}})"
    assert found.found_by == "readme"
    first, second = outcome.tried
    assert first == ExampleInfo(place="README.md:4", kind="readme", outcome="ran", captured=1)
    assert (second.place, second.outcome) == ("README.md:12", "raised")
    assert "no such data" in second.detail
    assert not list(source.rglob("stolen"))
