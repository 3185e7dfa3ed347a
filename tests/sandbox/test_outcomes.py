"""How a run ended is a value, and the different ways are told apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sandbox.inside import LIMITS, Inside, processes_with
from worker.sandbox import SandboxUnavailableError
from worker.sandbox.model import Command, Meter, Mode, Outcome, Status

PAUSE = "\nimport signal\nwhile True: signal.pause()\n"


def await_that(condition: Callable[[], bool], within_s: float = 20.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.01)
    return True


def ending(outcome: Outcome) -> tuple[Status, int | None, int | None]:
    return outcome.status, outcome.exit_code, outcome.signal


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", (Status.EXITED, 0, None)),
        ("sys.exit(3)", (Status.EXITED, 3, None)),
        ("os._exit(127)", (Status.EXITED, 127, None)),
        ("raise ValueError('no')", (Status.EXITED, 1, None)),
        ("ctypes.string_at(0)", (Status.SIGNALLED, None, 11)),
        ("os.abort()", (Status.SIGNALLED, None, 6)),
        ("os.kill(os.getpid(), 9)", (Status.SIGNALLED, None, 9)),
        ("while True: pass", (Status.TIMED_OUT, None, None)),
        ("held = [bytearray(b'x' * 2**20) for _ in range(1024)]", (Status.OUT_OF_MEMORY, None, 9)),
    ],
)
def test_exit_crash_kill_and_exhaustion_are_told_apart(
    anyhow: Inside, code: str, expected: tuple[Status, int | None, int | None]
) -> None:
    wall_s = 0.3 if expected[0] is Status.TIMED_OUT else 20.0
    assert ending(anyhow.run(code, wall_s=wall_s, memory=64 * 2**20).outcome) == expected


def test_a_meter_tells_the_peak_of_a_run_while_it_goes_on_and_afterwards(anyhow: Inside) -> None:
    code = """
import time
held = bytearray(b"x" * 48 * 2**20)
os.write(RESULT, b"held\\n")
del held
time.sleep(0.7)
os.write(RESULT, b"gone\\n")
"""
    meter, told = Meter(), []
    assert meter.peak_memory() is None
    outcome = anyhow.run(
        code, meter=meter, on_result=lambda _line: told.append(meter.peak_memory()), memory=2**28
    ).outcome
    assert ending(outcome) == (Status.EXITED, 0, None)
    assert all(peak is not None and 48 * 2**20 <= peak <= 2**28 for peak in told)
    assert meter.peak_memory() == outcome.peak_memory == max(told)


def test_a_child_killed_for_memory_is_counted_though_the_run_went_on(confined: Inside) -> None:
    code = """
if os.fork() == 0:
    held = [bytearray(b"x" * 2**20) for _ in range(1024)]
say(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    ran = confined.run(code, memory=64 * 2**20)
    assert (ran.answer, ending(ran.outcome), ran.outcome.oom_kills) == (-9, (Status.EXITED, 0, None), 1)


def test_results_arrive_while_the_command_runs_and_cancelling_ends_it(anyhow: Inside) -> None:
    token = uuid.uuid4().hex
    heard = threading.Event()
    ran = anyhow.run("say('first')" + PAUSE, token, on_result=lambda _: heard.set(), cancelled=heard.is_set)
    assert ran.said == ["first"]
    assert ending(ran.outcome) == (Status.CANCELLED, None, None)
    assert processes_with(token) == {}


def test_an_exception_of_the_receiver_ends_the_run_and_comes_through(anyhow: Inside) -> None:
    token = uuid.uuid4().hex

    def refuse(line: bytes) -> None:
        raise ZeroDivisionError(line)

    with pytest.raises(ZeroDivisionError):
        anyhow.run("say('first')" + PAUSE, token, on_result=refuse)
    assert processes_with(token) == {}


def test_results_come_byte_for_byte_and_an_unfinished_last_line_does_not(anyhow: Inside) -> None:
    ran = anyhow.run(r"os.write(RESULT, b'\xff\x00{\n\n  last \nunfin')")
    assert ran.lines == [b"\xff\x00{", b"", b"  last "]
    assert ran.outcome.detail == "the last result line was not finished (5 bytes)"


def test_all_results_written_just_before_a_crash_arrive(anyhow: Inside) -> None:
    ran = anyhow.run("for number in range(500): say(number)\nos.abort()")
    assert ran.said == list(range(500))
    assert ran.outcome.signal == 6


def test_results_finished_before_the_time_was_up_count_though_the_receiver_was_slow(anyhow: Inside) -> None:
    ran = anyhow.run(
        "say(1)\nsay(2)\nsay(3)" + PAUSE, wall_s=2, on_result=lambda _: threading.Event().wait(0.8) and None
    )
    assert (ran.said, ran.outcome.status) == ([1, 2, 3], Status.TIMED_OUT)


def test_what_was_printed_is_kept_as_text_that_can_be_stored(anyhow: Inside) -> None:
    outcome = anyhow.run(r"os.write(1, b'out \x00 \xff'); os.write(2, 'err \u00e9'.encode())").outcome
    assert outcome.stdout_tail == "out \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"
    assert outcome.stderr_tail == "err é"


def test_the_request_and_what_is_shown_can_be_read(anyhow: Inside, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("shown", encoding="utf-8")
    tmp_path.chmod(0o755)
    code = """
where, = sys.argv[1:]
say([open(os.environ["REQUEST"]).read() == "x" * 300_000, open(where + "/file.txt").read()])
"""
    ran = anyhow.run(
        code, "/source", request=b"x" * 300_000, read_only={tmp_path: "/source"},
        environment={"REQUEST": "/job/request.json"},
    )  # fmt: skip
    assert ran.answer == [True, "shown"]


def test_the_environment_inside_is_what_was_asked_for_and_a_few_fixed_names(confined: Inside) -> None:
    names = confined.run("say(dict(os.environ))", environment={"ASKED": "a b=c"}).answer
    assert names.pop("ASKED") == "a b=c"
    assert set(names) - {"PWD"} == {"PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME", "GRADPROOF_RESULT_FD"}


def test_what_is_shown_can_not_be_written(confined: Inside, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = "say(refusal(lambda: open('/source/evil', 'w')))"
    assert confined.run(code, read_only={tmp_path: "/source"}).answer == "EROFS"


def test_a_directory_that_others_may_not_read_is_refused_by_name(confined: Inside, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        with pytest.raises(SandboxUnavailableError, match=r"chmod -R o\+rX") as caught:
            confined.run("", read_only={tmp_path: "/source"})
        assert str(tmp_path) in caught.value.message
    else:  # under our own uid there is nobody else to let in
        assert confined.run("say(0)", read_only={tmp_path: "/source"}).answer == 0


def test_a_path_that_is_not_there_is_refused_by_name(confined: Inside, tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="gone"):
        confined.run("", read_only={tmp_path / "gone": "/source"})


@pytest.mark.parametrize("program", ["/nonexistent/python", "/bin/true", "/etc/passwd"])
def test_what_is_no_interpreter_is_refused_by_name(confined: Inside, program: str) -> None:
    command = Command(interpreter=Path(program), argv=(program,), request=b"")
    with pytest.raises(SandboxUnavailableError, match=program):
        confined.launcher.run(command, LIMITS, lambda _: None, lambda: False)


def test_two_jobs_at_once_run_under_different_uids(confined: Inside) -> None:
    tokens = [uuid.uuid4().hex, uuid.uuid4().hex]
    ready = threading.Barrier(3)
    seen = threading.Event()

    def meet(_line: bytes) -> None:
        ready.wait(20)

    def run(token: str) -> Outcome:
        return confined.run("say('ready')" + PAUSE, token, on_result=meet, cancelled=seen.is_set).outcome

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, token) for token in tokens]
        try:
            ready.wait(20)
            payloads = [{uid for uid in processes_with(token).values() if uid != 0} for token in tokens]
        finally:
            seen.set()
        assert [run.result().status for run in runs] == [Status.CANCELLED] * 2
    if os.geteuid() == 0:
        first, second = payloads
        assert len(first) == len(second) == 1
        assert first != second


def test_a_job_dies_with_its_worker(confined: Inside, tmp_path: Path) -> None:
    token = uuid.uuid4().hex
    worker = f"""
import sys
from pathlib import Path
from services.settings import Settings
from tests.sandbox.inside import Inside
from worker.sandbox import open_sandbox
from worker.sandbox.model import Mode
launcher = open_sandbox(Settings(data_dir=Path({str(tmp_path)!r})), Mode({str(confined.launcher.mode)!r}))
inside = Inside(launcher, Path(sys.executable))
inside.run("say('ready')" + {PAUSE!r}, {token!r}, on_result=lambda line: print(line, flush=True))
"""
    repository = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.PIPE, cwd=repository) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert processes_with(token)
        process.kill()
    assert await_that(lambda: not processes_with(token))
    assert confined.run("say('the next one runs')").answer == "the next one runs"


def test_gradcheck_works_inside(confined: Inside) -> None:
    code = """
import torch
x = torch.randn(3, dtype=torch.float64, requires_grad=True)
say(torch.autograd.gradcheck(torch.sin, (x,)))
"""
    assert confined.run(code, site=True, memory=2**30, wall_s=60.0).answer is True


def test_a_compiled_and_linked_program_runs_inside(confined: Inside) -> None:
    code = r"""
import subprocess
open("/tmp/a.cpp", "w").write('''
#include <cstdio>
#include <vector>
int main() { std::vector<int> both{1, 2}; std::printf("%zu", both.size()); }
''')
compiled = subprocess.run(["g++", "-O1", "/tmp/a.cpp", "-o", "/tmp/a"], capture_output=True, text=True)
say([compiled.stderr, subprocess.run(["/tmp/a"], capture_output=True, text=True).stdout])
"""
    assert confined.run(code, tmp=64 * 2**20).answer == ["", "2"]


def test_without_a_sandbox_our_own_settings_stay_hidden(unconfined: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADPROOF_DATABASE_URL", "postgresql://user:secret@host/db")
    ran = unconfined.run("say([name for name in os.environ if name.startswith('GRADPROOF_')])")
    assert (ran.answer, ran.outcome.mode) == (["GRADPROOF_RESULT_FD"], Mode.OFF)
