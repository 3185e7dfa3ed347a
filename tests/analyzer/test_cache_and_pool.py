"""Neither processes nor a cache change a result, and neither a killer file nor a damaged entry costs one."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzer import engine, pool
from analyzer.cache import ResultCache
from analyzer.codec import CodecError, decode, encode
from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.file_analysis import FileResult
from analyzer.findings import StaticAnalysis
from analyzer.pool import Reader, read_in_processes
from tests.processes import descendants

CASES = Path(__file__).parents[1] / "cases"
HELPER = "import torch\ndef energy(x):\n    return x.pow(2).sum(-1)\n"
MODEL = "import torch\nfrom .energies import energy\ndef f(x):\n    return energy(x).sqrt()\n"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were really read."""
    read: list[str] = []
    real = Reader.read

    def counting(self: Reader, path: str) -> pool.FileOutcome:
        read.append(path)
        return real(self, path)

    monkeypatch.setattr(Reader, "read", counting)
    return read


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for name, text in {"__init__.py": "", "energies.py": HELPER, "model.py": MODEL}.items():
        (root / name).write_text(text)
    return root


def analysed(root: Path, cache: Path, **options: object) -> StaticAnalysis:
    paths = sorted(path.name for path in root.glob("*.py"))
    return analyze_files(root, paths, cache=cache, options=AnalyzerOptions(**options))  # type: ignore[arg-type]


def test_results_from_the_cache_are_the_results_of_reading() -> None:
    paths = sorted(path.name for path in CASES.glob("*.py"))
    reader = Reader(CASES, paths, AnalyzerOptions())
    for path in paths:
        result = reader.read(path).result
        assert decode(json.loads(json.dumps(encode(result))), FileResult) == result, path


def test_unchanged_files_are_not_read_again(package: Path, tmp_path: Path, counted: list[str]) -> None:
    first = analysed(package, tmp_path / "cache")
    assert len(counted) == 3
    assert analysed(package, tmp_path / "cache") == first
    assert len(counted) == 3


def test_a_changed_file_is_read_again_and_the_others_are_not(package: Path, tmp_path: Path, counted: list[str]) -> None:
    analysed(package, tmp_path / "cache")
    del counted[:]
    (package / "__init__.py").write_text("x = 1\n")
    analysed(package, tmp_path / "cache")
    assert counted == ["__init__.py"]


def test_a_file_is_read_again_when_a_helper_that_it_imports_has_changed(
    package: Path, tmp_path: Path, counted: list[str]
) -> None:
    assert [finding.rule for finding in analysed(package, tmp_path / "cache").findings] == ["GP103"]
    del counted[:]
    (package / "energies.py").write_text(HELPER.replace("sum(-1)", "sum(-1) + 1e-6"))
    assert analysed(package, tmp_path / "cache").findings == ()
    assert counted == ["energies.py", "model.py"]


def test_a_helper_that_appears_later_counts(package: Path, tmp_path: Path) -> None:
    (package / "energies.py").unlink()
    assert analysed(package, tmp_path / "cache").findings == ()
    (package / "energies.py").write_text(HELPER)
    assert [finding.rule for finding in analysed(package, tmp_path / "cache").findings] == ["GP103"]


def test_other_options_are_other_results(package: Path, tmp_path: Path) -> None:
    assert analysed(package, tmp_path / "cache").findings
    assert analysed(package, tmp_path / "cache", rules=frozenset({"GP101"})).findings == ()


def test_another_analyzer_does_not_believe_the_results_of_this_one(
    package: Path, tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed(package, tmp_path / "cache")
    del counted[:]
    monkeypatch.setattr("analyzer.cache.analyzer_digest", lambda: "another")
    analysed(package, tmp_path / "cache")
    assert len(counted) == 3


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"asked": {}, "result": [1]}', '{"asked": [], "result": []}', "\udcff", "[" * 100_000]
)
def test_a_damaged_entry_is_as_good_as_none(package: Path, tmp_path: Path, damage: str) -> None:
    first = analysed(package, tmp_path / "cache")
    for entry in (tmp_path / "cache").rglob("*.json"):
        entry.write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert analysed(package, tmp_path / "cache") == first


def test_a_cache_that_can_not_be_written_costs_nothing_but_time(package: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file stands here")
    assert analysed(package, tmp_path / "cache").findings


def test_of_too_many_entries_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.cache._MAX_ENTRIES", 3)
    (tmp_path / "ab").mkdir()
    for age in range(6):
        entry = tmp_path / "ab" / f"{age}.json"
        entry.write_text("")
        os.utime(entry, (1000 - age, 1000 - age))
    ResultCache(tmp_path, AnalyzerOptions()).clear_old()
    assert sorted(entry.name for entry in tmp_path.rglob("*.json")) == ["0.json", "1.json"]


@pytest.mark.parametrize("document", [None, "x", [], [[], []], {"findings": []}, [1, 2, 3, 4], [[["a"]], [], 1, None]])
def test_a_document_of_another_shape_is_refused(document: object) -> None:
    with pytest.raises(CodecError):
        decode(document, FileResult)


# --- processes --------------------------------------------------------------------------------------------------


def test_several_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WORTH_A_POOL", 1)
    paths = sorted(path.name for path in CASES.glob("case_00*.py"))
    alone = analyze_files(CASES, paths)
    assert alone.findings
    assert analyze_files(CASES, paths, processes=2) == alone


class Deadly(Reader):
    """Ends its process over one file, as a parser that overflows the C stack does."""

    def read(self, path: str) -> pool.FileOutcome:
        if path == "killer.py":
            os._exit(139)
        return super().read(path)


def start_deadly(root: Path, paths: tuple[str, ...], options: AnalyzerOptions) -> None:
    pool._reader[:] = [Deadly(root, paths, options)]


def test_a_file_that_kills_its_process_is_reported_and_the_others_are_read(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "killer.py").write_text("x = 1\n")
    monkeypatch.setattr(pool, "_start", start_deadly)
    paths = sorted(path.name for path in package.glob("*.py"))
    outcomes = read_in_processes(Reader(package, paths, AnalyzerOptions()), paths, 2)
    assert set(outcomes) == set(paths)
    assert [finding.rule for finding in outcomes["killer.py"].result.findings] == ["GP002"]
    assert "died" in outcomes["killer.py"].result.findings[0].message
    assert [finding.rule for finding in outcomes["model.py"].result.findings] == ["GP103"]


def test_a_file_that_kills_its_process_does_not_cost_a_process_for_each_other_file(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (package / "killer.py").write_text("x = 1\n")
    paths = [f"m{number:03}.py" for number in range(40)]
    for path in paths:
        (package / path).write_text("x = 1\n")
    wanted = ["killer.py", *paths]
    monkeypatch.setattr(pool, "_start", start_deadly)
    monkeypatch.setattr(pool, "_CHUNK", 2)
    asked: list[int] = []
    answers = pool._answers

    def counted(chunks: list[list[str]], *rest: Any) -> Iterator[tuple[list[str], list[pool.FileOutcome] | None]]:
        asked.append(len(chunks))
        return answers(chunks, *rest)

    monkeypatch.setattr(pool, "_answers", counted)
    outcomes = read_in_processes(Reader(package, wanted, AnalyzerOptions()), wanted, 2)
    assert set(outcomes) == set(wanted)
    assert [path for path in wanted if outcomes[path].result.findings] == ["killer.py"]
    assert len(asked) < 10


WAITS = """
import signal
import sys
from pathlib import Path
from analyzer import pool
from analyzer.options import AnalyzerOptions

class Waits(pool.Reader):
    def read(self, path):
        (self.root / f"{path}.seen").touch()
        while True:
            pass

def start(root, paths, options):
    original(root, paths, options)
    pool._reader[:] = [Waits(root, paths, options)]

original, pool._start = pool._start, start

def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reader = pool.Reader(Path(sys.argv[1]), ["a.py"], AnalyzerOptions())
    pool.read_in_processes(reader, ["a.py"], 1)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    places = os.pathsep.join((str(tmp_path), str(Path(pool.__file__).parents[1])))
    reading = subprocess.Popen(
        [sys.executable, "-c", "import waits; waits.main()", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": places},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "a.py.seen").exists():
        assert time.monotonic() < deadline
        assert reading.poll() is None
        os.sched_yield()
    below = descendants(reading.pid)
    assert below
    reading.send_signal(sent)
    _, said = reading.communicate(timeout=60)
    assert said.count("Traceback") <= 1  # the parent's own: no command line stands around it here
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, f"left behind: {below}"
        os.sched_yield()


# --- what goes wrong while an entry is written ------------------------------------------------------------------


def test_a_full_disk_leaves_no_half_entry_behind(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    results = tmp_path / "results"
    analyze_files(package, ["model.py"], cache=results)
    assert [path for path in results.rglob("*") if path.is_file()] == []
