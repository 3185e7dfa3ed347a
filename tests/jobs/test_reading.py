"""Reading in a process that can be killed: whatever the source does to its reader is a result."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.analyses.model import AnalysisOptions, StaticOutcome
from services.jobs.models import JobState
from worker.reading import ReadingFailed, read_in_child


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "norm.py").write_text(
        "import torch\n\n\ndef unit(x: torch.Tensor) -> torch.Tensor:\n    return x / x.norm()\n", encoding="utf-8"
    )
    return tmp_path / "source"


def read(source: Path, *, wall_s: float = 60.0, memory: int = 4 * 2**30, cancelled: bool = False) -> object:
    return read_in_child(source, AnalysisOptions(), cancelled=lambda: cancelled, wall_s=wall_s, memory=memory)


def test_findings_and_targets_come_back_whole(source: Path) -> None:
    outcome = read(source)
    assert isinstance(outcome, StaticOutcome)
    assert (outcome.analysis.files, outcome.analysis.lines) == (1, 5)
    assert [target.name for target in outcome.analysis.targets] == ["norm:unit"]


def test_a_reader_that_takes_too_long_is_killed(source: Path) -> None:
    outcome = read(source, wall_s=0.0)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.TIMED_OUT


def test_a_reader_whose_job_was_taken_away_is_killed(source: Path) -> None:
    assert read(source, cancelled=True) is None


def test_a_reader_without_memory_is_no_accident(source: Path) -> None:
    outcome = read(source, memory=16 * 2**20)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state in {JobState.CRASHED, JobState.FAILED}


def test_a_wrong_configuration_is_named_with_file_and_key(source: Path) -> None:
    (source / "gradproof.toml").write_text("[gates]\nno_such_key = 1\n", encoding="utf-8")
    outcome = read(source)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.FAILED
    assert "gradproof.toml" in outcome.reason


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("def f{n}(x: torch.Tensor): return x", "20,001 targets; one analysis takes 20,000"),
        ("# gradproof: ignore[GP101]  {n}", "20,001 findings; one analysis takes 20,000"),
    ],
)
def test_more_than_one_analysis_can_hold_is_refused_with_what_to_do(source: Path, line: str, what: str) -> None:
    lines = "\n".join(line.format(n=n) for n in range(20_000))
    extra = "def g(x: torch.Tensor): return x / x.norm()\n"
    (source / "norm.py").write_text(f"import torch\n{extra}{lines}\n", encoding="utf-8")
    outcome = read(source)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.FAILED
    assert what in outcome.reason
    assert "`exclude` in gradproof.toml" in outcome.reason
