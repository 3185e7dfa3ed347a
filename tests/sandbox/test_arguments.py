"""The argument vectors: what is always there, what is only there when asked for, and what can not be built."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from worker.sandbox import SandboxUnavailableError
from worker.sandbox.arguments import (
    Bind,
    Descriptors,
    Plan,
    Tools,
    confined,
    give_up_root,
    joined,
    refuse_dangerous,
    staged,
)
from worker.sandbox.model import Limits, Mode

TOOLS = Tools(sh="/bin/sh", setpriv="/usr/bin/setpriv", unshare="/usr/bin/unshare", mount="/usr/bin/mount")
DESCRIPTORS = Descriptors(seccomp=10, request=11, hosts=12, status=13, result=14, lock=15)
BINDS = (Bind("/home/me/venv", "/home/me/venv"), Bind("/var/lib/snapshot", "/source"))


def plan(mode: Mode, uid: int | None = 200_007, device_nodes: tuple[str, ...] = ()) -> Plan:
    return Plan(
        mode=mode,
        bwrap="/usr/bin/bwrap",
        uid=uid,
        binds=BINDS,
        limits=Limits(),
        descriptors=DESCRIPTORS,
        environment={"LANG": "C.UTF-8"},
        device_nodes=device_nodes,
        argv=("/usr/bin/python3", "-c", "pass"),
    )


def pairs(vector: list[str]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(vector))


@pytest.mark.parametrize("mode", [Mode.USER, Mode.ROOT])
def test_every_namespace_is_new_and_the_job_dies_with_its_parent(mode: Mode) -> None:
    vector = confined(plan(mode), TOOLS)
    inside = vector.index("--")
    for flag in ("pid", "net", "ipc", "uts", "cgroup"):
        assert f"--unshare-{flag}" in vector[:inside]
    assert {"--die-with-parent", "--new-session", "--seccomp", "--sync-fd"} <= set(vector[:inside])
    assert ("--cap-drop", "ALL") in pairs(vector)
    assert ("--ro-bind", "/proc/sys") in pairs(vector)
    assert vector[-3:] == ["/usr/bin/python3", "-c", "pass"]


def test_user_mode_makes_one_user_namespace_and_no_other() -> None:
    vector = confined(plan(Mode.USER, uid=None), TOOLS)
    assert {"--unshare-user", "--disable-userns"} <= set(vector)
    assert ("--uid", "65534") in pairs(vector)
    assert "--cap-add" not in vector


def test_root_mode_makes_no_user_namespace_and_gives_up_root_inside() -> None:
    vector = confined(plan(Mode.ROOT), TOOLS)
    assert not any(word.startswith(("--unshare-user", "--unshare-all")) for word in vector)
    added = {after for word, after in itertools.pairwise(vector) if word == "--cap-add"}
    assert added == {"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"}
    payload = vector[vector.index("--") + 1 :]
    assert payload[: payload.index("--") + 1] == [
        "/usr/bin/setpriv", "--reuid", "200007", "--regid", "200007", "--clear-groups",
        "--inh-caps", "-all", "--bounding-set", "-all", "--no-new-privs", "--",
    ]  # fmt: skip


def test_the_environment_of_the_command_never_reaches_a_program_that_is_still_root() -> None:
    vector = confined(plan(Mode.ROOT), TOOLS)
    assert "--setenv" not in vector
    given_up = vector.index("--no-new-privs") + 2
    assert vector[given_up : given_up + 3] == ["/usr/bin/env", "-i", "LANG=C.UTF-8"]
    assert vector.index("LANG=C.UTF-8") > vector.index("--reuid")


@pytest.mark.parametrize("mode", [Mode.USER, Mode.ROOT])
def test_every_writable_place_has_a_size_and_the_rest_is_remounted_read_only(mode: Mode) -> None:
    vector = confined(plan(mode), TOOLS)
    places = [index for index, word in enumerate(vector) if word == "--tmpfs"]
    assert {vector[index + 1] for index in places} == {"/tmp", "/job", "/dev/shm"}
    assert all(vector[index - 2] == "--size" for index in places)
    assert not {"--bind", "--dev-bind", "--bind-try"} & set(vector)
    assert {("--remount-ro", "/"), ("--remount-ro", "/dev")} <= pairs(vector)


@pytest.mark.parametrize("mode", [Mode.USER, Mode.ROOT])
def test_parents_of_what_is_shown_can_be_searched_by_the_payload(mode: Mode) -> None:
    vector = confined(plan(mode), TOOLS)
    for parent in ("/home", "/home/me"):
        made = vector.index(parent)
        assert vector[made - 3 : made] == ["--perms", "0755", "--dir"]
        assert made < vector.index("/home/me/venv")


@pytest.mark.parametrize("mode", [Mode.USER, Mode.ROOT])
def test_devices_and_sys_are_there_only_when_asked_for(mode: Mode) -> None:
    without = confined(plan(mode), TOOLS)
    assert "/sys" not in without
    assert not any(word.startswith("/dev/nvidia") for word in without)
    nodes = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1")
    asked = confined(plan(mode, device_nodes=nodes), TOOLS)
    assert ("--ro-bind", "/sys") in pairs(asked)
    assert {after for word, after in itertools.pairwise(asked) if word == "--dev-bind"} == set(nodes)


def test_the_dangerous_configuration_is_refused_however_it_is_spelled() -> None:
    for namespaces in (["--unshare-all"], ["--unshare-user"], ["--unshare-user-try"], ["--unshare-pid"]):
        vector = ["/usr/bin/bwrap", *namespaces, "--uid", "65534", "--cap-drop", "ALL", "--", "/bin/true"]
        for entered in (vector, joined(TOOLS, [Path("/sys/fs/cgroup/x/cgroup.procs")], vector)):
            with pytest.raises(SandboxUnavailableError, match="refusing"):
                refuse_dangerous(entered, root=True)
        refuse_dangerous(vector, root=False)


def test_giving_up_root_inside_a_user_namespace_is_not_enough() -> None:
    vector = ["/usr/bin/bwrap", "--unshare-user", "--", *give_up_root(TOOLS, 200_000), "/bin/true"]
    with pytest.raises(SandboxUnavailableError, match="refusing"):
        refuse_dangerous(vector, root=True)


def test_user_mode_started_by_root_without_another_uid_is_refused() -> None:
    with pytest.raises(SandboxUnavailableError, match="refusing"):
        refuse_dangerous(confined(plan(Mode.USER, uid=None), TOOLS), root=True)


def test_what_the_launchers_build_is_accepted() -> None:
    refuse_dangerous(confined(plan(Mode.ROOT), TOOLS), root=True)
    dropped = [*give_up_root(TOOLS, 200_007), *confined(plan(Mode.USER), TOOLS)]
    refuse_dangerous(staged(TOOLS, "/mnt", ["/private/x"], dropped), root=True)


@pytest.mark.parametrize("uid", [None, 0])
def test_root_mode_without_a_user_to_become_can_not_be_built(uid: int | None) -> None:
    with pytest.raises(SandboxUnavailableError, match="setpriv"):
        confined(plan(Mode.ROOT, uid=uid), TOOLS)


def test_without_setpriv_root_mode_can_not_be_built() -> None:
    with pytest.raises(SandboxUnavailableError, match="setpriv"):
        confined(plan(Mode.ROOT), Tools(sh="/bin/sh", setpriv=None, unshare=None, mount=None))
