"""What confinement costs: milliseconds for a run in each mode, against the same command without any sandbox.

Two commands, `/bin/true` and a Python that does nothing, are run in turn (plain, OFF, U, R, plain, …) so that whatever
else the machine does falls on all of them alike; on a busy machine only the fastest runs say much.
Writes `benchmarks/results/sandbox_overhead.json`.

    python -m benchmarks.sandbox_overhead [--runs 40]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from services.settings import Settings
from worker.sandbox import Launcher, SandboxUnavailableError, detect, open_sandbox
from worker.sandbox.model import Command, Limits, Mode, Status

RESULTS = Path(__file__).parent / "results" / "sandbox_overhead.json"
INTERPRETER = Path(sys.executable)
COMMANDS = {
    "/bin/true": ("/bin/true",),
    "python -I -S -c pass": (str(INTERPRETER), "-I", "-S", "-c", "pass"),
}
PLAIN = "no launcher"


def plain(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def confined(launcher: Launcher) -> Callable[[tuple[str, ...]], None]:
    def run(argv: tuple[str, ...]) -> None:
        command = Command(interpreter=INTERPRETER, argv=argv, request=b"{}")
        outcome = launcher.run(command, Limits(), on_result=lambda _: None, cancelled=lambda: False)
        if (outcome.status, outcome.exit_code) != (Status.EXITED, 0):
            raise SystemExit(f"{launcher.mode}: {outcome}")

    return run


def ways(settings: Settings) -> dict[str, Callable[[tuple[str, ...]], None]]:
    found: dict[str, Callable[[tuple[str, ...]], None]] = {PLAIN: plain}
    for mode in (Mode.OFF, Mode.USER, Mode.ROOT):
        try:
            found[str(mode)] = confined(open_sandbox(settings, mode))
        except SandboxUnavailableError as error:
            print(f"{mode}: not here: {error.message}", file=sys.stderr)
    return found


def measure(runs: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        settings = Settings(data_dir=Path(name))
        capability = detect(settings)
        run = ways(settings)
        times: dict[str, dict[str, list[float]]] = {title: {way: [] for way in run} for title in COMMANDS}
        for _ in range(runs):
            for title, argv in COMMANDS.items():
                for way, start in run.items():
                    began = time.perf_counter()
                    start(argv)
                    times[title][way].append((time.perf_counter() - began) * 1000)
    return {
        "runs": runs,
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "uid": os.geteuid(),
        "bubblewrap": f"{capability.bwrap_version} from {capability.bwrap_origin}",
        "cgroup_version": capability.cgroup_version,
        "milliseconds": {
            title: {way: summary(found) for way, found in by_way.items()} for title, by_way in times.items()
        },
    }


def summary(milliseconds: list[float]) -> dict[str, float]:
    found = {
        "fastest": min(milliseconds),
        "median": statistics.median(milliseconds),
        "p90": statistics.quantiles(milliseconds, n=10)[-1],
    }
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    found = measure(parser.parse_args().runs)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
