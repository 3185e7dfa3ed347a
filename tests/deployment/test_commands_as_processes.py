"""Every command and health check of the compose file, run as a plain process on a real PostgreSQL and a real Valkey.

Only addresses, ports and directories are exchanged for those of the test; the environment is that of the compose file
and nothing else, as in a container. The driver is made up, and lists a GPU that no sandbox will see.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from tests.deployment.compose import interpolate, read_compose
from tests.drivers import FIRST, Driver, gpu
from tests.servers import PostgresServer, ValkeyServer
from tests.servers.valkey import _binary as valkey_binary

PROGRAMS = Path(sys.executable).parent
VARIABLES = {
    "POSTGRES_PASSWORD": "letters",
    "VALKEY_PASSWORD": "digits0123",
    "GRADPROOF_SECRET_KEY": "a secret for tests, 32 characters and more",
    "GRADPROOF_PUBLIC_URL": "http://127.0.0.1",
    "GRADPROOF_GPU_CLASSES": '["cuda"]',
}
# Its backward returns half of the derivative.
TWICE = """
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
"""
START_S = 90.0
ANALYSIS_S = 300.0
STOP_S = 60.0


@dataclass(frozen=True)
class Stack:
    """What stands in for the rest of the compose file."""

    database_url: str
    broker_url: str
    directory: Path
    port: int

    def environment(self, service: dict[str, Any]) -> dict[str, str]:
        """The environment of a service, with the addresses of this stack."""
        environment: dict[str, str] = interpolate(service["environment"], VARIABLES)
        return {
            **environment,
            "GRADPROOF_DATABASE_URL": self.database_url,
            "GRADPROOF_BROKER_URL": self.broker_url,
            "GRADPROOF_DATA_DIR": str(self.directory),
            "GRADPROOF_INDUCTOR_BUDGET": "PT1S",
            "GRADPROOF_COMPILED_HEADERS_HOME": f"{self.directory}-headers",
            "GRADPROOF_KEPT_KERNELS_HOME": f"{self.directory}-kernels",
            "GRADPROOF_NVIDIA_SMI": f"{self.directory}-driver/nvidia-smi",
            "GRADPROOF_DEVICE_LOCKS": f"{self.directory}-locks",
            "GRADPROOF_DEVICE_PATIENCE": "1",
            "PATH": f"{PROGRAMS}:/usr/bin:/bin",
            "HOME": str(self.directory),
        }

    def arguments(self, arguments: list[str]) -> list[str]:
        """A command line of the file, on a free port."""
        return [str(self.port) if argument == "8000" else argument for argument in interpolate(arguments, VARIABLES)]


@pytest.fixture(scope="module")
def stack(
    postgres_server: PostgresServer, valkey_server: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    name = "compose_commands"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    directory = tmp_path_factory.mktemp("data")
    Driver(Path(f"{directory}-driver")).lists(gpu(FIRST))
    yield Stack(
        database_url=postgres_server.create_database(name),
        broker_url=valkey_server.url(7),
        directory=directory,
        port=port,
    )
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def migrated(stack: Stack) -> Stack:
    """The stack after `migrate` has done its work and a first token was made, as docs/deployment.md says."""
    services = read_compose()["services"]
    done = run(stack, services["migrate"], ["gradproof", *stack.arguments(services["migrate"]["command"])])
    assert done.returncode == 0, done.stdout + done.stderr
    made = run(stack, services["api"], ["gradproof", "token", "create", "your name", "--scope", "admin"])
    assert made.returncode == 0, made.stdout + made.stderr
    return stack


def run(stack: Stack, service: dict[str, Any], command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=stack.environment(service), cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


def health(stack: Stack, service: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    kind, *command = service["healthcheck"]["test"]
    assert kind == "CMD"
    return run(stack, service, stack.arguments(command))


@contextmanager
def started(stack: Stack, service: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The service as a process group of its own; whatever is left of it at the end is killed."""
    command = ["gradproof", *stack.arguments(service["command"])]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=stack.environment(service),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            executable=str(PROGRAMS / command[0]),
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_health(stack: Stack, service: dict[str, Any], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while (last := health(stack, service)).returncode != 0:
        assert process.poll() is None, f"ended with {process.returncode}:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < deadline, f"{last.stdout}{last.stderr}\n{log.read_text()[-4000:]}"


@pytest.mark.parametrize("name", ["control", "worker-cpu", "worker-gpu"])
def test_each_worker_starts_becomes_healthy_and_stops_cleanly(name: str, migrated: Stack, tmp_path: Path) -> None:
    service = read_compose()["services"][name]
    assert health(migrated, service).returncode == 3
    with started(migrated, service, tmp_path / "log") as process:
        await_health(migrated, service, process, tmp_path / "log")
        stop(process, tmp_path / "log")
    assert health(migrated, service).returncode == 3


def test_the_api_becomes_healthy_beside_control_and_stops_cleanly(migrated: Stack, tmp_path: Path) -> None:
    services = read_compose()["services"]
    with (
        started(migrated, services["control"], tmp_path / "control"),
        started(migrated, services["api"], tmp_path / "api") as process,
    ):
        await_health(migrated, services["api"], process, tmp_path / "api")
        stop(process, tmp_path / "api")
        assert health(migrated, services["api"]).returncode == 3


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """End a service as an engine does; nothing of it may be left."""
    process.terminate()
    assert process.wait(STOP_S) == 0, log.read_text()[-4000:]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_the_parts_do_an_analysis_together(migrated: Stack, tmp_path: Path) -> None:
    services = read_compose()["services"]
    token = run(migrated, services["api"], ["gradproof", "token", "create", "client"]).stdout.strip()
    with ExitStack() as running:
        for name in ("api", "control", "worker-cpu", "worker-gpu"):
            running.enter_context(started(migrated, services[name], tmp_path / name))
        await_answer(migrated)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{migrated.port}/api/v1", headers=headers, timeout=30) as client:
            accepted = client.post("/analyses", files={"archive": ("twice.py", TWICE.encode())})
            assert accepted.status_code == 202, accepted.text
            analysis = accepted.json()["id"]
            stored = files_below(migrated.directory)
            deadline = time.monotonic() + ANALYSIS_S
            while (state := client.get(f"/analyses/{analysis}").json())["status"] in ("queued", "running"):
                assert time.monotonic() < deadline, state
                time.sleep(0.2)
            report = client.get(f"/analyses/{analysis}/report", params={"format": "json"}).json()
        assert state["status"] == "finished", state
        (target,) = report["targets"]
        (check,) = (check for check in target["checks"] if check["check"] == "gradcheck")
        assert check["diagnosis"]["cause"] == "scaled_gradient"
        (compared,) = (check for check in target["checks"] if check["check"] == "device_compare")
        assert compared["verdict"] == "skipped"
        assert compared["summary"].startswith("no worker with a CUDA device: ")
        unfit = health(migrated, services["worker-gpu"])
        assert unfit.returncode == 3
        assert "torch sees no CUDA device in the sandbox" in unfit.stderr
    # Workers mount the data directory read-only: whatever is in it came from the api.
    assert files_below(migrated.directory) == stored


def await_answer(stack: Stack) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{stack.port}/readyz", timeout=10).status_code == httpx.codes.OK:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def files_below(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


def test_migrating_twice_does_no_harm(migrated: Stack) -> None:
    service = read_compose()["services"]["migrate"]
    assert run(migrated, service, ["gradproof", *migrated.arguments(service["command"])]).returncode == 0


@pytest.mark.parametrize("name", ["api", "control"])
def test_a_service_says_so_when_the_database_was_not_migrated(
    name: str, postgres_server: PostgresServer, stack: Stack, tmp_path: Path
) -> None:
    service = read_compose()["services"][name]
    empty = Stack(postgres_server.create_database(f"never_migrated_{name}"), stack.broker_url, tmp_path, stack.port)
    done = run(empty, service, ["gradproof", *empty.arguments(service["command"])])
    assert done.returncode == 3
    assert "gradproof db upgrade" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_valkey_starts_as_the_file_says_with_its_password_and_its_append_only_file(tmp_path: Path) -> None:
    service = read_compose()["services"]["valkey"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "valkey-server").symlink_to(valkey_binary())
    data = tmp_path / "data"
    data.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (script,) = interpolate(service["command"], VARIABLES)
    for given, ours in (("/data", str(data)), ("port 6379", f"port {port}"), ("bind * -::*", "bind 127.0.0.1")):
        assert given in script
        script = script.replace(given, ours)
    environment = interpolate(service["environment"], VARIABLES)
    process = subprocess.Popen(
        [*service["entrypoint"], script],
        env={**environment, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port, password=VARIABLES["VALKEY_PASSWORD"]) as client:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    assert client.ping()
                    break
                except redis.ConnectionError:
                    assert process.poll() is None
                    assert time.monotonic() < deadline
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("save") == {"save": ""}
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert VARIABLES["VALKEY_PASSWORD"].encode() not in arguments
        process.terminate()
        assert process.wait(STOP_S) == 0
        assert (data / "appendonlydir").is_dir()
    finally:
        process.kill()
        process.wait()
