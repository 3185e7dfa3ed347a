"""What inductor compiled for one origin: kept whole, within a limit, and lent to sandboxes of that origin alone."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from analyzer.findings import TargetDeclaration, TargetKind
from services.reuse.origins import Origin
from services.settings import Settings
from worker.execution import Batch, BatchJob, CheckMessage, HarnessMessage, Message, kept_kernels, run_batch
from worker.execution.batch import DeclaredHarness
from worker.execution.kept_kernels import KeptKernels, amount
from worker.execution.messages import CheckReply
from worker.sandbox import open_sandbox

OURS, THEIRS = Origin("ours"), Origin("theirs")
FUNCTION = """

def f(x):
    return (x * 2).sin()
"""
PLACE = """
import os
from pathlib import Path

PLACE = Path("/tmp/torchinductor_sandbox/ab")
"""
WRITES = f"""{PLACE}
PLACE.mkdir(parents=True, exist_ok=True)
if not (PLACE / "kept").exists():
    (PLACE / "kept").write_text("earlier")
    (PLACE / "link").symlink_to("/etc/hostname")
    os.mkfifo(PLACE / "pipe")
{FUNCTION}"""
READS = f"""{PLACE}
assert (PLACE / "kept").read_text() == "earlier"
assert not (PLACE / "link").is_symlink() and not (PLACE / "pipe").exists()
try:
    Path("/kernels").write_text("changed")
except OSError:
    pass
else:
    raise RuntimeError("what is lent can be changed")
{FUNCTION}"""


def kept(directory: Path, origin: Origin = OURS, *, limit: int = 10_000, surroundings: str = "torch 1") -> KeptKernels:
    return KeptKernels(directory, limit, origin, surroundings)


def keep(kernels: KeptKernels, *parts: bytes) -> None:
    coming = kernels.coming()
    for part in parts:
        coming.receive(part)
    coming.keep()


def content(kernels: KeptKernels) -> bytes | None:
    lent = kernels.lent()
    return None if lent is None else lent.read_bytes()


def test_an_archive_is_lent_to_its_origin_with_the_same_surroundings_alone(tmp_path: Path) -> None:
    keep(kept(tmp_path), b"first ", b"archive")
    assert content(kept(tmp_path)) == b"first archive"
    assert content(kept(tmp_path, THEIRS)) is None
    assert content(kept(tmp_path, surroundings="torch 2")) is None
    keep(kept(tmp_path), b"second")
    assert content(kept(tmp_path)) == b"second"
    assert amount(tmp_path).origins == 1


def test_a_branch_starts_from_what_the_default_branch_left_and_never_writes_it(tmp_path: Path) -> None:
    keep(kept(tmp_path), b"of the default branch")
    branch = kept(tmp_path, Origin("pull request", OURS.own))
    assert content(branch) == b"of the default branch"
    keep(branch, b"of the pull request")
    assert content(branch) == b"of the pull request"
    assert content(kept(tmp_path)) == b"of the default branch"


def test_what_did_not_come_whole_or_is_too_large_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = kept(tmp_path).coming()
    coming.receive(b"half")
    coming.drop()
    monkeypatch.setattr(kept_kernels, "ARCHIVE_LIMIT", 100)
    keep(kept(tmp_path), *[b"x" * 60] * 3)
    assert content(kept(tmp_path)) is None
    assert not list(tmp_path.iterdir())


def test_the_longest_unused_goes_when_there_is_too_much(tmp_path: Path) -> None:
    stores = [kept(tmp_path, Origin(str(number)), limit=1000) for number in range(4)]
    for number, store in enumerate(stores[:3]):
        keep(store, bytes(400 if number == 0 else 250))
        lent = store.lent()
        assert lent is not None
        os.utime(lent, (1000 + number, 1000 + number))
    assert stores[0].lent() is not None, "used again, and so the youngest"
    keep(stores[3], bytes(300))
    assert [content(store) is not None for store in stores] == [True, False, True, True]
    assert amount(tmp_path).size <= 1000


def test_workers_that_end_at_once_leave_one_whole_archive(tmp_path: Path) -> None:
    whole = {bytes([number]) * 100_000 for number in range(8)}

    def work(content_of_it: bytes) -> set[bytes | None]:
        store = kept(tmp_path, limit=10**7)
        keep(store, *[content_of_it[:10_000]] * 10)
        return {content(store) for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        seen = set[bytes | None]().union(*pool.map(work, whole))
    assert seen <= whole
    assert amount(tmp_path).origins == len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_and_what_is_no_file_cost_a_warm_start_alone(tmp_path: Path) -> None:
    keep(kept(Path("/proc/gradproof-kernels")), b"x")
    assert content(kept(Path("/dev/null/kernels"))) is None
    keep(kept(tmp_path), b"x")
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.symlink_to("/etc/hostname")
    assert kept(tmp_path).lent() is None


def said(source: Path, settings: Settings, origin: Origin | None, text: str) -> list[Message]:
    """What a sandbox says of `f` of this text."""
    (source / "a.py").write_text(text)
    target = TargetDeclaration(
        name="a:f", kind=TargetKind.FUNCTION, path="a.py", line=1, end_line=2, import_root="", module="a", qualname="f"
    )
    declared = DeclaredHarness(None, ("torch.linspace(-1, 1, 64)",), "test")
    job = BatchJob("j", target, ("compile_equivalence",), declared)
    batch = Batch(source, (job,), Path(sys.executable), origin=origin)
    messages: list[Message] = []
    launcher = open_sandbox(settings)
    run_batch(batch, launcher=launcher, settings=settings, on_message=messages.append, cancelled=lambda: False)
    return messages


def compiled(messages: list[Message]) -> CheckReply:
    (result,) = [message.result for message in messages if isinstance(message, CheckMessage)]
    assert result.verdict == "pass", result.summary
    return result


def refused(messages: list[Message]) -> str:
    """Why the target can't be called."""
    (harness,) = [message for message in messages if isinstance(message, HarnessMessage)]
    assert harness.not_run is not None, "it found what an earlier run had left"
    return harness.not_run.detail


def with_broken_kernels(archive: Path) -> None:
    """Every compiled kernel of the archive is one that can't be loaded."""
    with tarfile.open(archive) as file:
        members = [(info, file.extractfile(info)) for info in file.getmembers()]
        contents = [(info, b"" if content is None else content.read()) for info, content in members]
    with tarfile.open(archive, "w:gz") as file:
        for info, content in contents:
            file.addfile(info, io.BytesIO(b"?" * len(content) if info.name.endswith(".main.so") else content))


@pytest.mark.skipif(
    shutil.which("g++", path="/usr/bin:/bin") is None,
    reason="sandboxes see /usr and /bin alone, and inductor needs a compiler there",
)
def test_a_second_run_starts_with_what_the_first_one_compiled(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    settings = Settings(data_dir=tmp_path / "data", inductor_budget=timedelta(seconds=60))

    first = compiled(said(source, settings, OURS, WRITES))
    assert first.evidence["inductor_cache"] == {"graphs_from_cache": 0, "graphs_compiled": 2}
    (archive,) = settings.kept_kernels_directory.iterdir()
    before = archive.read_bytes()

    second = compiled(said(source, settings, OURS, READS))
    assert second.evidence["inductor_cache"] == {"graphs_from_cache": 2, "graphs_compiled": 0}
    assert archive.read_bytes() == before, "nothing new was compiled"

    # Another repository, and one that is switched off, find nothing of it.
    assert "FileNotFoundError" in refused(said(source, settings, THEIRS, READS))
    off = settings.model_copy(update={"kept_kernels": False})
    assert "FileNotFoundError" in refused(said(source, off, OURS, READS))

    # What can't be loaded, or is no archive, costs the warm start and no verdict.
    with_broken_kernels(archive)
    third = compiled(said(source, settings, OURS, READS))
    assert third.evidence["inductor_cache"] == {"graphs_from_cache": 0, "graphs_compiled": 2}
    assert "compiling raised" in str(third.evidence["inductor_repeated"])
    archive.write_bytes(b"not an archive")
    assert "FileNotFoundError" in refused(said(source, settings, OURS, READS))
