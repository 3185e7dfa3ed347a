"""Neither processes nor a cache change a result, and neither a killer file nor a damaged entry costs one."""

import json
import os
from pathlib import Path

import pytest

from analyzer import engine, pool
from analyzer.cache import ResultCache
from analyzer.codec import CodecError, decode, encode
from analyzer.engine import AnalyzerOptions, analyze_files
from analyzer.file_analysis import FileResult
from analyzer.findings import StaticAnalysis
from analyzer.pool import Reader, read_in_processes

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
    monkeypatch.setattr("analyzer.cache._MAX_ENTRIES", 4)
    monkeypatch.setattr("analyzer.cache._KEPT_AFTER_CLEARING", 2)
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
