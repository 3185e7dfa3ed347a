"""Reading in a sandbox: whatever the source does to its reader is a result, and nothing it says is simply believed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from analyzer.findings import Edit, Fix, FixSafety, ImportNote, Region, Related
from services.analyses.model import AnalysisOptions, StaticOutcome
from services.database import Database
from services.jobs.models import JobState
from services.settings import Settings
from services.snapshots import SnapshotStore, read_directory
from tests.jobs.support import Bench, finding, reading, target
from worker import reading as reading_module
from worker.reading import ReadingFailed, read_apart
from worker.reading_child import OUTCOME
from worker.runner import Runner
from worker.sandbox import Launcher, SandboxUnavailableError, open_sandbox
from worker.sandbox.model import Command, Mode, Outcome, Status

CONFINED = (Mode.ROOT, Mode.USER) if os.geteuid() == 0 else (Mode.USER,)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "norm.py").write_text(
        "import torch\n\n\ndef unit(x: torch.Tensor) -> torch.Tensor:\n    return x / x.norm()\n", encoding="utf-8"
    )
    return tmp_path / "source"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture(params=[*CONFINED, Mode.OFF], ids=str)
def launcher(request: pytest.FixtureRequest, settings: Settings) -> Launcher:
    return open_sandbox(settings, request.param)


@dataclass
class Reader:
    """Reads a source in every way that this machine has."""

    launcher: Launcher

    def __call__(
        self, source: Path, *, wall_s: float = 60.0, memory: int = 4 * 2**30, cancelled: bool = False
    ) -> StaticOutcome | ReadingFailed | None:
        return read_apart(
            source,
            AnalysisOptions(),
            launcher=self.launcher,
            cancelled=lambda: cancelled,
            wall_s=wall_s,
            memory=memory,
        )


@pytest.fixture
def read(launcher: Launcher) -> Reader:
    return Reader(launcher)


def test_findings_and_targets_come_back_whole(source: Path, read: Reader) -> None:
    outcome = read(source)
    assert isinstance(outcome, StaticOutcome)
    assert (outcome.analysis.files, outcome.analysis.lines) == (1, 5)
    assert [target.name for target in outcome.analysis.targets] == ["norm:unit"]


def test_a_reader_that_takes_too_long_is_killed(source: Path, read: Reader) -> None:
    outcome = read(source, wall_s=0.0)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.TIMED_OUT


def test_a_reader_whose_job_was_taken_away_is_killed(source: Path, read: Reader) -> None:
    assert read(source, cancelled=True) is None


def test_a_reader_without_memory_is_no_accident(source: Path, read: Reader) -> None:
    outcome = read(source, memory=16 * 2**20)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state in {JobState.CRASHED, JobState.FAILED}


def test_a_wrong_configuration_is_named_with_file_and_key(source: Path, read: Reader) -> None:
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
def test_more_than_one_analysis_can_hold_is_refused_with_what_to_do(
    source: Path, read: Reader, line: str, what: str
) -> None:
    lines = "\n".join(line.format(n=n) for n in range(20_000))
    extra = "def g(x: torch.Tensor): return x / x.norm()\n"
    (source / "norm.py").write_text(f"import torch\n{extra}{lines}\n", encoding="utf-8")
    outcome = read(source)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.FAILED
    assert what in outcome.reason
    assert "`exclude` in gradproof.toml" in outcome.reason


HOSTILE = """
import os, pathlib, socket, sys
def can(action):
    try:
        action()
    except OSError:
        return False
    return True
port, host = int(sys.argv[3]), sys.argv[4]
found = [name for name, action in {
    "network": lambda: socket.create_connection(("127.0.0.1", port), 2).close(),
    "write the source": lambda: pathlib.Path(sys.argv[2], "written").write_text("x"),
    "write our code": lambda: pathlib.Path("/gradproof/worker/written").write_text("x"),
    "read the host": lambda: os.listdir(host),
    "read passwords": lambda: open("/etc/shadow").close(),
}.items() if can(action)]
found += [name for name in os.environ if name.startswith(("GRADPROOF_S", "SECRET"))]
with open(int(os.environ["GRADPROOF_RESULT_FD"]), "w") as results:
    results.write(f"{found}\\n")
sys.exit(3)
"""


@pytest.mark.parametrize("mode", CONFINED, ids=str)
def test_a_reader_that_was_taken_over_reaches_nothing(
    source: Path, settings: Settings, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        start = HOSTILE.replace("sys.argv[3]", repr(str(listening.getsockname()[1])))
        monkeypatch.setattr(reading_module, "_START", start.replace("sys.argv[4]", repr(str(source.parent))))
        outcome = Reader(open_sandbox(settings, mode))(source)
    assert outcome == ReadingFailed(JobState.FAILED, "[]")


@dataclass
class Talking:
    """A launcher whose reader says this, and ends like that."""

    said: bytes
    ending: dict[str, Any]
    mode: Mode = Mode.USER

    def run(
        self, command: Command, limits: object, on_result: Callable[[bytes], None], *rest: object, **more: object
    ) -> Outcome:
        for start in range(0, len(self.said), 1000):
            on_result(self.said[start : start + 1000])
        ended: dict[str, Any] = {"status": Status.EXITED, "exit_code": 0, "signal": None, **self.ending}
        return Outcome(
            mode=self.mode,
            wall_s=0.0,
            peak_memory=None,
            oom_kills=0,
            stdout_tail="",
            stderr_tail="no such module",
            **ended,
        )


def heard(source: Path, said: bytes, **ending: Any) -> StaticOutcome | ReadingFailed | None:
    return Reader(Talking(said, ending))(source)


@pytest.mark.parametrize("path", ["../secrets.py", "/etc/passwd", "missing.py", "", ".", "pkg/../norm.py", "norm.py\0"])
@pytest.mark.parametrize("where", ["target", "finding", "suppressed", "related", "edit", "import", "reach"])
def test_files_that_the_source_does_not_have_are_not_believed(source: Path, path: str, where: str) -> None:
    (source.parent / "secrets.py").write_text("SECRET = 1", encoding="utf-8")
    region = Region(path, 1, 1, 1, 2)
    good = replace(finding(1, line=1), region=Region("norm.py", 1, 1, 1, 2))
    lies: dict[str, dict[str, Any]] = {
        "target": {"targets": (replace(target(1), path=path),)},
        "finding": {"findings": (replace(good, region=region),)},
        "suppressed": {
            "suppressed": (replace(reading().analysis.suppressed[0], finding=replace(good, region=region)),)
        },
        "related": {"findings": (replace(good, related=(Related(region, "from here"),)),)},
        "edit": {"findings": (replace(good, fix=Fix(FixSafety.SAFE, (Edit(region, ""),))),)},
        "import": {"import_notes": (ImportNote(path, 1, "runs at import", "x"),)},
        "reach": {"reaches": {"norm:unit": ((path, 1, 2),)}},
    }
    honest = replace(
        reading(0, 0).analysis, suppressed=(), findings=(good,), targets=(replace(target(1), path="norm.py"),)
    )
    assert isinstance(heard(source, OUTCOME.dump_json(StaticOutcome(honest))), StaticOutcome)
    outcome = heard(source, OUTCOME.dump_json(StaticOutcome(replace(honest, **lies[where]))))
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is JobState.FAILED
    assert "unusable answer" in outcome.reason


def test_more_than_one_analysis_holds_is_not_believed_either(source: Path) -> None:
    targets = tuple(replace(target(number), path="norm.py") for number in range(20_001))
    outcome = heard(
        source, OUTCOME.dump_json(StaticOutcome(replace(reading(0, 0).analysis, suppressed=(), targets=targets)))
    )
    assert isinstance(outcome, ReadingFailed)
    assert "20,001 targets" in outcome.reason


@pytest.mark.parametrize(
    ("said", "ending", "state", "reason"),
    [
        (b"", {}, JobState.FAILED, "unusable answer"),
        (b"[" * 100_000, {}, JobState.FAILED, "unusable answer"),
        (b'{"analysis": 1}', {}, JobState.FAILED, "unusable answer"),
        (b"x" * 10_000, {"exit_code": 3}, JobState.FAILED, "x" * 2_000),
        (b"", {"exit_code": 1}, JobState.FAILED, "failed: no such module"),
        (b"", {"exit_code": 4}, JobState.CRASHED, "more memory"),
        (b"", {"status": Status.OUT_OF_MEMORY, "exit_code": None, "signal": 9}, JobState.CRASHED, "more memory"),
        (b"", {"status": Status.SIGNALLED, "exit_code": None, "signal": 11}, JobState.CRASHED, "SIGSEGV"),
        (b"", {"status": Status.SIGNALLED, "exit_code": None, "signal": 33}, JobState.CRASHED, "signal 33"),
        (b"", {"status": Status.OUTPUT_LIMIT, "exit_code": None, "detail": "more"}, JobState.FAILED, "too much: more"),
    ],
)
def test_each_way_to_end_without_an_answer_is_told(
    source: Path, said: bytes, ending: dict[str, Any], state: JobState, reason: str
) -> None:
    outcome = heard(source, said, **ending)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.state is state
    assert reason in outcome.reason
    assert len(outcome.reason) < 2_200


def test_an_answer_without_end_is_cut_off(source: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = """
import os
line = b"x" * 2**16 + bytes([10])
while True:
    os.write(int(os.environ["GRADPROOF_RESULT_FD"]), line)
"""
    monkeypatch.setattr(reading_module, "_START", endless)
    monkeypatch.setattr(reading_module, "ANSWER_LIMIT", 2**20)
    outcome = Reader(open_sandbox(settings))(source)
    assert isinstance(outcome, ReadingFailed)
    assert outcome.reason == "the reader of the source said too much: more than 1048576 bytes of results"


def test_a_machine_that_can_not_confine_code_reads_nothing(
    database: Database, service_settings: Settings, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(_: Settings) -> Launcher:
        raise SandboxUnavailableError("no sandbox can be set up here: bubblewrap is not installed")

    monkeypatch.setattr(reading_module, "open_sandbox", unavailable)
    settings = service_settings.model_copy(update={"max_attempts": 1})
    with read_directory(source) as tree:
        snapshot = SnapshotStore(settings.snapshot_dir).put(tree)
    bench = Bench(database, settings)
    analysis_id = bench.analyses.submit(snapshot).analysis_id
    Runner(settings, database, ["cpu"]).serve()
    view = bench.analyses.get(analysis_id)
    assert view.status == "failed"
    assert "bubblewrap is not installed" in str(view.reason)
