"""`make demo`: a whole service on this machine, a faulty repository submitted to it, and what it found.

Starts `gradproof serve` with fresh embedded parts (SQLite, a broker in a directory, one worker) on a free loopback
port, submits the repository below `examples/` over REST, follows the analysis live, and compares the report with what
was planted. The exit code is 0 only if every planted fault was found and nothing else was reported. With `--keep` the
service stays up afterwards, for a look around, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tools.planted import REPOSITORY, Comparison, Fault, compare, planted_faults

GRADPROOF = Path(sys.executable).with_name("gradproof")
START_S = 60.0
STOP_S = 30.0
# Thirty-odd targets, each with three checks, on two cores: some minutes, most of them inductor's; more if it is busy.
ANALYSIS_S = 1800.0
# Fresh embedded parts, whatever this environment names; any other setting counts as it would for `gradproof serve`.
_OWN = {
    f"GRADPROOF_{name}"
    for name in ("DATA_DIR", "DATABASE_URL", "BROKER_URL", "PUBLIC_URL", "SECRET_KEY", "GPU_CLASSES")
}
_TOKEN = re.compile(r"\b(gp_\w+)\b")


class DemoError(Exception):
    """The demo can't go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service: where it is, and the token that it printed."""

    url: str
    token: str


def main(arguments: list[str]) -> int:
    """Run the demo; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the service up until Ctrl-C")
    keep = parser.parse_args(arguments).keep
    # Set here, because a shell starts what it runs in the background with SIGINT ignored.
    for interruption in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interruption, signal.default_int_handler)
    faults = planted_faults()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="gradproof-demo-") as directory,
            running_service(Path(directory)) as service,
        ):
            exact = _demonstrate(service, faults)
            if keep:
                _wait_for_interrupt(service)
            else:
                _say("\nTo look around yourself: make demo KEEP=1")
    except (DemoError, httpx.HTTPError) as error:
        _say(f"demo: {error}")
        return 3
    except KeyboardInterrupt:
        _say("\nInterrupted; everything was stopped.")
        return 130
    _say("The service was stopped and its data removed.")
    return 0 if exact else 1


def _demonstrate(service: Service, faults: tuple[Fault, ...]) -> bool:
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=httpx.Timeout(30.0, read=120.0)) as client:
        archive, files, lines = _pack(REPOSITORY)
        _say(f"Submitting examples/{REPOSITORY.name}: {files} files, {lines} lines, {len(archive) / 1024:.0f} KiB.")
        _say(f"{len(faults)} faults are planted in it, each of another kind.\n")
        posted = time.monotonic()
        accepted = _json(
            client.post(
                "/api/v1/analyses", files={"archive": (f"{REPOSITORY.name}.tar.gz", archive)}, data={"options": "{}"}
            )
        )
        analysis = str(accepted["id"])
        first = _FirstFinding(service, analysis, posted)
        try:
            state = _follow(client, analysis, posted)
        finally:
            first_finding_s = first.stop()
        finished_s = time.monotonic() - posted
        report = _json(client.get(f"/api/v1/analyses/{analysis}/report", params={"format": "json"}))
        if state["status"] != "finished":
            raise DemoError(f"the analysis is {state['status']}: {state.get('reason')}")
        comparison = compare(report, faults)
        _tell(report, comparison, faults)
        found_text = f"{first_finding_s:.2f} s" if first_finding_s is not None else "none was seen"
        _say(f"\nFrom POST to the first finding: {found_text}; to the finished report: {finished_s:.1f} s.")
        page, size = _visit(service, analysis)
        _say(f"The page {page} answers ({size / 1024:.0f} KiB of HTML); sign in there with the token.")
        return comparison.exact


def _tell(report: dict[str, Any], comparison: Comparison, faults: tuple[Fault, ...]) -> None:
    _say("\nPlanted faults found:")
    for found in comparison.found:
        how = "running" if found.fault.check is not None else "reading"
        if found.fault.check is None and found.by_running:
            how = "reading and running"
        _say(f"  {found.fault.place:<42} {found.fault.kind:<26} by {how}")
        _say(f"      {found.said}")
    for fault in comparison.missed:
        _say(f"  MISSED {fault.place} {fault.kind}: {fault.says}")
    for text in comparison.surplus:
        _say(f"  NOT PLANTED {text}")
    summary = report["summary"]
    confirmed = sum(finding["verdict"] == "confirmed" for finding in report["findings"])
    _say(f"\nFindings: {_counts(summary['findings'])}; {confirmed} confirmed by running.")
    targets = summary["targets"]
    _say(f"Targets: {targets['run']} of {targets['found']} run. Checks: {_counts(summary['checks'])}.")
    gate = report["gate"]
    _say(f"Gate: {'passed' if gate['passed'] else 'failed'}.")
    for condition in gate["conditions"]:
        _say(f"  {'passed' if condition['passed'] else 'FAILED'}  {condition['name']}: {condition['explanation']}")
    nothing_else = (
        "and nothing else" if not comparison.surplus else f"and {len(comparison.surplus)} things that weren't planted"
    )
    _say(f"\nVerdict: {len(comparison.found)} of {len(faults)} planted faults found, {nothing_else}.")


def _visit(service: Service, analysis: str) -> tuple[str, int]:
    """Sign in with the token and open the page of the analysis, as a browser does; returns its address and size."""
    with httpx.Client(base_url=service.url, follow_redirects=True, timeout=30.0) as browser:
        opened = browser.post("/sign-in", data={"token": service.token, "next": f"/analyses/{analysis}"})
    if opened.status_code != httpx.codes.OK or opened.url.path != f"/analyses/{analysis}":
        raise DemoError(f"the page of the analysis can't be opened: {opened.url.path} answers {opened.status_code}")
    return str(opened.url), len(opened.content)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "none"


class _FirstFinding:
    """Watches, beside the stream of events, for the moment at which the first finding can be read over REST."""

    def __init__(self, service: Service, analysis: str, posted: float) -> None:
        self._seconds: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(service, analysis, posted), daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Stop watching; returns the seconds since the POST, None if there was no finding."""
        self._ended.set()
        self._thread.join()
        return self._seconds

    def _watch(self, service: Service, analysis: str, posted: float) -> None:
        headers = {"Authorization": f"Bearer {service.token}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=30.0) as client:
            while not self._ended.wait(0.1):
                answer = client.get(f"/api/v1/analyses/{analysis}/findings", params={"limit": 1})
                if answer.status_code == httpx.codes.OK and answer.json()["items"]:
                    self._seconds = time.monotonic() - posted
                    return


def _follow(client: httpx.Client, analysis: str, posted: float) -> dict[str, Any]:
    """Print progress as it is sent, until the analysis has ended; returns its last state."""
    shown = ""
    while time.monotonic() - posted < ANALYSIS_S:
        with client.stream("GET", f"/api/v1/analyses/{analysis}/events") as response:
            if response.status_code != httpx.codes.OK:
                raise DemoError(f"the events of the analysis answer {response.status_code}")
            for state in _events(response):
                line = _progress(state)
                if line != shown:
                    _progress_line(f"{time.monotonic() - posted:6.1f} s  {line}")
                    shown = line
        state = _json(client.get(f"/api/v1/analyses/{analysis}"))
        if state["status"] not in ("queued", "running"):
            _end_progress_line()
            return state
    raise DemoError(f"the analysis has not ended after {ANALYSIS_S:.0f} s")


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def _progress(state: dict[str, Any]) -> str:
    stages = [f"{stage['name']} {stage['done']}/{stage['total']}" for stage in state["progress"] if stage["total"]]
    return f"{state['status']:<9} {'  '.join(stages)}"


def _progress_line(text: str) -> None:
    """On a terminal the line is written over; elsewhere each is a line of its own."""
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()
    else:
        _say(text)


def _end_progress_line() -> None:
    if sys.stdout.isatty():
        _say("")


def _json(response: httpx.Response) -> dict[str, Any]:
    if not response.is_success:
        raise DemoError(
            f"{response.request.method} {response.request.url.path} answers {response.status_code}: {response.text}"
        )
    return dict(response.json())


def _pack(repository: Path) -> tuple[bytes, int, int]:
    """The repository as .tar.gz, its number of files and of lines of Python."""
    packed = io.BytesIO()
    files = sorted(path for path in repository.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in files:
            archive.add(path, arcname=str(path.relative_to(repository)), recursive=False)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.suffix == ".py")
    return packed.getvalue(), len(files), lines


@contextmanager
def running_service(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Service]:
    """`gradproof serve` on a free port with its data below `directory`; stopped at the end, whatever happened.

    `settings` are environment variables beside those of this process.
    """
    port = _free_port()
    log = directory / "serve.log"
    command = [
        str(GRADPROOF),
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--data-dir",
        str(directory / "data"),
    ]
    environment = {name: value for name, value in os.environ.items() if name not in _OWN} | dict(settings or {})
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield _await_start(process, log, f"http://127.0.0.1:{port}")
    finally:
        _stop(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_start(process: subprocess.Popen[bytes], log: Path, url: str) -> Service:
    """Wait until the service says that it is ready and has printed its token."""
    started = time.monotonic()
    while time.monotonic() - started < START_S:
        printed = log.read_text(encoding="utf-8", errors="replace")
        if process.poll() is not None:
            raise DemoError(f"gradproof serve ended with {process.returncode}:\n{printed[-4000:]}")
        token = _TOKEN.search(printed)
        if token and _ready(url):
            _say(f"gradproof serve is ready after {time.monotonic() - started:.1f} s: {url}")
            return Service(url, token[1])
        time.sleep(0.05)
    raise DemoError(f"gradproof serve is not ready after {START_S:.0f} s:\n{log.read_text(errors='replace')[-4000:]}")


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end; what has not ended then is killed, with its whole process group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _say(f"gradproof serve did not stop within {STOP_S:.0f} s and is killed.")
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _wait_for_interrupt(service: Service) -> None:
    _say(f"\nThe service stays up at {service.url} (token {service.token}) until Ctrl-C.")
    try:
        signal.pause()
    except KeyboardInterrupt:
        _say("")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
