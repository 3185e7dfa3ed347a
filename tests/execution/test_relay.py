"""What the worker makes of lines that a sandbox says: of floods and of claims. A launcher that only talks stands in."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.findings import TargetDeclaration, TargetKind
from services.settings import Settings
from worker.execution import Batch, BatchJob, BatchOutcome, Call, CheckMessage, HarnessMessage, Message, run_batch
from worker.execution.batch import Device
from worker.execution.messages import CheckReply, TargetStartedMessage
from worker.sandbox.model import Archive, Cancelled, Command, Limits, Meter, Mode, Outcome, ResultLine, Status


class Talking:
    """Says the given lines and ends; remembers what it was asked for."""

    mode = Mode.USER

    def __init__(self, lines: Iterator[bytes]) -> None:
        self._lines = lines
        self.request = b""

    def run(
        self,
        command: Command,
        limits: Limits,
        on_result: ResultLine,
        cancelled: Cancelled,
        on_archive: Archive | None = None,
        *,
        meter: Meter | None = None,
    ) -> Outcome:
        self.request = command.request
        for line in self._lines:
            on_result(line)
        return Outcome(Status.EXITED, self.mode, 0, None, 0.0, None, 0, "", "")


def heard(tmp_path: Path, lines: Iterator[bytes], *, device: Device = "cpu") -> tuple[list[Message], BatchOutcome]:
    target = TargetDeclaration(
        name="a:B", kind=TargetKind.MODULE, path="a.py", line=1, end_line=2, import_root="", module="a", qualname="B"
    )
    batch = Batch(tmp_path, (BatchJob("j1", target, ("gradcheck",)),), Path(sys.executable), device=device)
    messages: list[Message] = []
    settings = Settings(data_dir=tmp_path)
    outcome = run_batch(
        batch, launcher=Talking(lines), settings=settings, on_message=messages.append, cancelled=lambda: False
    )
    return messages, outcome


def believed_of(tmp_path: Path, changes: dict[str, object], *, device: Device = "cpu") -> CheckReply:
    result = {"check": "gradcheck", "verdict": "fail", "device": "cpu", "summary": "", "duration_s": 0.1, **changes}
    line = json.dumps({"type": "check", "job": "j1", "result": result}).encode()
    (message,), _ = heard(tmp_path, iter([line]), device=device)
    assert isinstance(message, CheckMessage)
    return message.result


def test_a_target_starts_once_however_often_it_says_so(tmp_path: Path) -> None:
    started = json.dumps({"type": "target_started", "job": "j1"}).encode()
    messages, _ = heard(tmp_path, (started for _ in range(1000)))
    assert messages == [TargetStartedMessage(type="target_started", job="j1")]


def test_refused_lines_are_counted_and_not_kept(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        _, outcome = heard(tmp_path, (b"" for _ in range(20_000)))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (left,) = outcome.unfinished
    assert "20000 lines of the probe were refused, the first: not JSON" in left.detail
    assert most < 1_000_000, "20,000 kept reasons would take more than 2 MB"


def test_the_reason_for_a_refusal_is_no_longer_than_a_sentence(tmp_path: Path) -> None:
    _, outcome = heard(tmp_path, iter([json.dumps({"type": "x" * 100_000}).encode()]))
    assert len(outcome.unfinished[0].detail) < 1000


@pytest.mark.parametrize(
    ("claimed", "believed"),
    [
        ("a.py", ("a.py", 3)),
        ("b.py", (None, None)),
        ("sub", (None, None)),
        ("/etc/passwd", (None, None)),
        ("../a.py", (None, None)),
        ("sub/../a.py", (None, None)),
        ("x" * 1000, (None, None)),
        ("\u202eyp.a <script>", (None, None)),
        ("", (None, None)),
    ],
)
def test_a_check_can_only_point_at_a_file_that_was_submitted(
    tmp_path: Path, claimed: str, believed: tuple[str | None, int | None]
) -> None:
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    result = believed_of(tmp_path, {"path": claimed, "line": 3})
    assert (result.path, result.line) == believed


@pytest.mark.parametrize(
    ("asked", "claimed", "believed"),
    [
        ("cpu", "cuda", "cpu"),
        ("sim", "cuda", "simulated"),
        ("sim", "simulated", "simulated"),
        ("cuda", "cuda", "cuda"),
        ("cuda", "cpu", "cpu"),
        ("cuda", "cuda 4711", "cuda"),
    ],
)
def test_a_check_can_only_speak_of_the_device_that_was_asked_for(
    tmp_path: Path, asked: Device, claimed: str, believed: str
) -> None:
    assert believed_of(tmp_path, {"device": claimed}, device=asked).device == believed


def test_what_reading_suspects_of_a_target_is_part_of_the_request(tmp_path: Path) -> None:
    target = TargetDeclaration(
        name="a:B", kind=TargetKind.MODULE, path="a.py", line=1, end_line=2, import_root="", module="a", qualname="B"
    )
    suspected = {"rule": "GP102", "fingerprint": "f", "path": "a.py", "line": 2, "operand": "x.norm()"}
    batch = Batch(tmp_path, (BatchJob("j1", target, ("gradcheck",), hypotheses=(suspected,)),), Path(sys.executable))
    launcher = Talking(iter(()))
    run_batch(
        batch,
        launcher=launcher,
        settings=Settings(data_dir=tmp_path),
        on_message=lambda _: None,
        cancelled=lambda: False,
    )
    (entry,) = json.loads(launcher.request)["batch"]
    assert entry["hypotheses"] == [suspected]


WAITING = {"type": "target_waiting", "job": "j1", "not_run": {"reason": "inputs unsolved", "detail": "last try: no"}}
STARTED = {"type": "target_started", "job": "j1"}


def words(messages: list[Message]) -> list[tuple[str, str | None]]:
    return [
        (message.type, message.not_run.reason if isinstance(message, HarnessMessage) and message.not_run else None)
        for message in messages
    ]


def test_a_target_that_waited_for_its_second_turn_did_not_end_the_sandbox(tmp_path: Path) -> None:
    messages, outcome = heard(tmp_path, (json.dumps(line).encode() for line in (STARTED, WAITING)))
    assert words(messages) == [("target_started", None), ("harness", "inputs unsolved"), ("target_finished", None)]
    assert outcome.unfinished == ()


def test_one_that_ended_it_in_its_second_turn_did(tmp_path: Path) -> None:
    messages, outcome = heard(tmp_path, (json.dumps(line).encode() for line in (STARTED, WAITING, STARTED)))
    assert words(messages) == [("target_started", None)]
    assert [(left.job, left.started) for left in outcome.unfinished] == [("j1", True)]


def test_nothing_can_wait_that_was_not_begun_or_is_over(tmp_path: Path) -> None:
    messages, outcome = heard(tmp_path, iter([json.dumps(WAITING).encode()]))
    assert (messages, len(outcome.unfinished)) == ([], 1)
    finished = {"type": "target_finished", "job": "j1"}
    messages, _ = heard(tmp_path, (json.dumps(line).encode() for line in (STARTED, finished, WAITING)))
    assert words(messages) == [("target_started", None), ("harness", "crashed"), ("target_finished", None)]


def test_recorded_calls_and_the_time_left_are_part_of_the_request(tmp_path: Path) -> None:
    target = TargetDeclaration(
        name="a:B", kind=TargetKind.MODULE, path="a.py", line=1, end_line=2, import_root="", module="a", qualname="B"
    )
    call = Call("B(3)", ("torch.randn(2)",), "README.md:4", "readme")
    job = BatchJob("j1", target, ("gradcheck",), mined=(call,), guessed=True)
    launcher = Talking(iter(()))
    run_batch(
        Batch(tmp_path, (job,), Path(sys.executable), seconds_left=12.5),
        launcher=launcher,
        settings=Settings(data_dir=tmp_path),
        on_message=lambda _message: None,
        cancelled=lambda: False,
    )
    request = json.loads(launcher.request)
    (entry,) = request["batch"]
    assert entry["mined"] == [
        {"constructor": "B(3)", "inputs": ["torch.randn(2)"], "provenance": "README.md:4", "found_by": "readme"}
    ]
    assert entry["target"]["guessed"] is True
    assert request["limits"]["batch_s"] == 12.5
