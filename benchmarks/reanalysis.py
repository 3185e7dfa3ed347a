"""`make bench-reanalysis`: what a change of one file costs, as a share of analysing the whole repository.

    python -m benchmarks.reanalysis [--targets N] [--checks NAME…] [--keep DIR]

Writes a repository of 300 files: as many targets as asked for (150), each a module in a file of its own that calls one
of 30 helpers, and files without targets. It is analysed by the service on embedded parts, with a worker in this
process: whole; then with one target changed, as a proposal against that base; then with one helper changed. Told for
each: seconds of the clock, seconds of processors (of the sandboxes that read and run the code, and of this process),
targets that were run and taken over. Ends with status 1 if anything else was run than what rests on the change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from services.accounts.access import SYSTEM
from services.analyses.model import AnalysisOptions
from services.analyses.service import AnalysisService
from services.database import Database
from services.database.migrate import upgrade
from services.jobs.model import CONTROL_QUEUE, CPU_QUEUE
from services.settings import Settings
from services.snapshots import SnapshotStore
from services.snapshots.directories import read_directory
from worker.runner import Runner

RESULTS = Path(__file__).parent / "results" / "reanalysis.json"
FILES = 300
HELPERS = 30
CHECKS = ("gradcheck", "nan_gradient")
GOAL = 0.10
_EVERY_S = 0.2
_HELPER = '''"""Helper {number}."""

import torch


def scaled(x):
    return torch.tanh(x * {factor})
'''
_TARGET = '''"""Layer {number}."""

import torch

from shop.helpers.helper{helper} import scaled


class Layer{number}(torch.nn.Module):
    """A small layer."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return scaled(self.linear(x)) + {factor}
'''
_PLAIN = '''"""Figures {number}."""

NAMES = {{"first": {number}, "second": {number} + 1}}


def looked_up(name):
    return NAMES[name]
'''


@dataclass(frozen=True, slots=True)
class Cost:
    """What one analysis took: seconds, and targets by what became of them."""

    wall_s: float
    sandboxes_s: float
    service_s: float
    run: int
    reused: int

    @property
    def processors_s(self) -> float:
        """All seconds of processors."""
        return self.sandboxes_s + self.service_s


class Processors:
    """Seconds of processors: of this process, and of all that it starts, looked at five times a second.

    What a sandbox used is in its processes, each with those that it has waited for. That is gone with the sandbox: a
    fifth of a second of each is missed at most.
    """

    def __init__(self) -> None:
        self._used: dict[tuple[int, float], float] = {}
        self._watching_s = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def sandboxes_s(self) -> float:
        """Of what was started so far."""
        return sum(self._used.values())

    def service_s(self) -> float:
        """Of this process, without looking."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime - self._watching_s

    def close(self) -> None:
        """Look no more."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(_EVERY_S):
            with contextlib.suppress(psutil.Error):
                for root in psutil.Process().children():
                    self._look(root)
            self._watching_s = time.thread_time()

    def _look(self, root: psutil.Process) -> None:
        total = 0.0
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        key = (root.pid, root.create_time())
        self._used[key] = max(self._used.get(key, 0.0), total)


class Workplace:
    """The service on embedded parts, with one worker in this process."""

    def __init__(self, home: Path, checks: Sequence[str]) -> None:
        self._settings = Settings(data_dir=home / "data")
        upgrade(self._settings)
        self._database = Database.open(self._settings, lambda _queue: None)
        self._store = SnapshotStore(self._settings.snapshot_dir)
        self._analyses = AnalysisService(self._database, self._settings)
        self._options = AnalysisOptions(checks=tuple(checks))
        self._runner = Runner(self._settings, self._database, [CONTROL_QUEUE, CPU_QUEUE])
        self._runner.start()
        self._processors = Processors()

    def analyse(self, source: Path, base: str | None = None) -> tuple[str, Cost, frozenset[str]]:
        """The id of the analysis of a directory, what it cost, and the targets that were run."""
        with read_directory(source) as tree:
            snapshot = self._store.put(tree)
        used = self._processors
        began, sandboxes, service = time.monotonic(), used.sandboxes_s(), used.service_s()
        analysis_id = self._analyses.submit(SYSTEM, snapshot, self._options, project="shop", base=base).analysis_id
        while not self._analyses.get(SYSTEM, analysis_id).ended:
            if not self._runner.serve():
                time.sleep(0.05)
        wall = time.monotonic() - began
        report = self._analyses.report(SYSTEM, analysis_id)
        if report.analysis.status != "finished":
            raise SystemExit(f"the analysis is {report.analysis.status}: {report.analysis.reason}")
        ran = frozenset(target.name for target in report.targets if target.checks and not target.reused)
        cost = Cost(
            wall_s=round(wall, 2),
            sandboxes_s=round(used.sandboxes_s() - sandboxes, 2),
            service_s=round(used.service_s() - service, 2),
            run=len(ran),
            reused=sum(target.reused for target in report.targets),
        )
        return analysis_id, cost, ran

    def close(self) -> None:
        """Stop the worker."""
        self._processors.close()
        self._runner.stop()
        self._runner.join()
        self._database.close()


def main(arguments: Sequence[str]) -> int:
    """Analyse, change, analyse again; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=150)
    parser.add_argument("--checks", nargs="+", default=list(CHECKS), metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the repository and the database are left")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gradproof-reanalysis-") as directory:
        return _measured(asked.keep or Path(directory), asked.targets, asked.checks)


def write_repository(source: Path, targets: int) -> None:
    """The repository of the benchmark."""
    for package in ("shop", "shop/helpers", "shop/layers", "shop/plain"):
        (source / package).mkdir(parents=True)
        (source / package / "__init__.py").write_text("", encoding="utf-8")
    for number in range(HELPERS):
        _write(source, f"helpers/helper{number}", _HELPER.format(number=number, factor=1 + number / HELPERS))
    for number in range(targets):
        _write(source, f"layers/layer{number}", target_text(number, number))
    for number in range(max(0, FILES - HELPERS - targets - 4)):
        _write(source, f"plain/figures{number}", _PLAIN.format(number=number))


def target_text(number: int, factor: int) -> str:
    """The file of a target."""
    return _TARGET.format(number=number, helper=number % HELPERS, factor=factor)


def _measured(home: Path, targets: int, checks: Sequence[str]) -> int:
    source = home / "shop"
    write_repository(source, targets)
    workplace = Workplace(home, checks)
    failures: list[str] = []
    try:
        base, whole, ran = workplace.analyse(source)
        # A helper's functions are targets too.
        everything = len(ran)
        _tell("the whole repository", whole, whole)
        _write(source, "layers/layer7", target_text(7, 1007))
        _, one, ran = workplace.analyse(source, base)
        _tell("one target changed", one, whole)
        failures += _expected(ran, {"shop.layers.layer7:Layer7"})
        _write(source, "layers/layer7", target_text(7, 7))
        _write(source, "helpers/helper3", _HELPER.format(number=3, factor=2.5))
        _, helper, ran = workplace.analyse(source, base)
        _tell("one helper changed", helper, whole)
        dependents = {f"shop.layers.layer{number}:Layer{number}" for number in range(3, targets, HELPERS)}
        failures += _expected(ran, dependents | {"shop.helpers.helper3:scaled"})
    finally:
        workplace.close()
    share = one.processors_s / whole.processors_s
    if share > GOAL:
        failures.append(f"a change of one target takes {share:.1%} of the whole; the goal is {GOAL:.0%}")
    figures = {"targets": everything, "checks": list(checks)} | {
        name: asdict(cost) for name, cost in (("whole", whole), ("target", one), ("helper", helper))
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1))
    print(*failures, sep="\n")
    return 1 if failures else 0


def _expected(ran: frozenset[str], wanted: set[str]) -> list[str]:
    missed, needless = sorted(wanted - ran), sorted(ran - wanted)
    told = []
    if missed:
        told.append(f"not run, though they rest on the change: {', '.join(missed)}")
    if needless:
        told.append(f"run, though they don't: {', '.join(needless[:10])}")
    return told


def _tell(what: str, cost: Cost, whole: Cost) -> None:
    print(
        f"{what}: {cost.run} run, {cost.reused} taken over; {cost.wall_s:.1f} s of the clock "
        f"({cost.wall_s / whole.wall_s:.1%}), {cost.processors_s:.1f} s of processors "
        f"({cost.processors_s / whole.processors_s:.1%}), of them {cost.sandboxes_s:.1f} s in sandboxes "
        f"({cost.sandboxes_s / whole.sandboxes_s:.1%})",
        flush=True,
    )


def _write(source: Path, name: str, text: str) -> None:
    (source / "shop" / f"{name}.py").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
