"""Packages that do their worst at import or when called: each ends in a clear result, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probe.conftest import FIXTURES, Spoken, entry, speak

HOSTILE = FIXTURES / "hostile"
# The wall limit of one import here, in seconds. Long beside a fork on a busy machine, short beside `sleep(600)`.
LIMITS = {"import_s": 4.0, "harness_s": 20.0, "check_s": 4.0, "target_s": 60.0}

AT_IMPORT = {
    "exits": ("import failed", "sys.exit(3)"),
    "exits_at_once": ("crashed", "exited by itself with status 7"),
    "segfaults": ("crashed", "SIGSEGV"),
    "killed": ("crashed", "SIGKILL"),
    "forks": ("timed out", "the time limit while being imported"),
    "sleeps": ("timed out", "the time limit while being imported"),
    "allocates": ("out of memory", "MemoryError"),
    "prints": ("timed out", "noise noise"),
    "connects": ("import failed", "ConnectionRefusedError"),
    "needs": (
        "missing dependency",
        "segmentation_models_pytorch (on PyPI: segmentation-models-pytorch) is not installed",
    ),
}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    source = tmp_path_factory.mktemp("hostile")
    for file in HOSTILE.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    batch = [entry("function", f"{name}:target") for name in AT_IMPORT]
    batch = [{**item, "job": name} for item, name in zip(batch, AT_IMPORT, strict=True)]
    batch += [entry("function", f"late:{name}", job=f"late {name}") for name in ("crashes", "sleeps", "leaves", "fine")]
    batch.append(entry("function", "forges:target", job="forges"))
    batch.append(entry("function", "late:absent"))
    batch.append(entry("module", "late:fine", job="another_kind"))
    return speak(source, batch, limits=LIMITS)


def test_the_probe_itself_survives_all_of_them(spoken: Spoken) -> None:
    assert spoken.status == 0, spoken.stderr
    assert spoken.lines[0]["type"] == "ready"
    assert spoken.lines[-1] == {"type": "done"}


@pytest.mark.parametrize("name", AT_IMPORT)
def test_each_import_ends_with_its_reason(spoken: Spoken, name: str) -> None:
    reason, words = AT_IMPORT[name]
    not_run = spoken.not_run(name)
    assert not_run["reason"] == reason, not_run
    assert words in not_run["detail"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("crashes", "crashed with SIGSEGV"), ("sleeps", "the time limit"), ("leaves", "exited by itself with status 5")],
)
def test_what_befalls_a_check_is_the_result_of_that_check(spoken: Spoken, name: str, words: str) -> None:
    result = spoken.result(f"late {name}")
    assert result["verdict"] == "error"
    assert words in result["summary"]


def test_targets_after_them_are_checked_as_ever(spoken: Spoken) -> None:
    assert spoken.result("late fine")["verdict"] == "pass"


def test_no_process_can_speak_for_the_probe(spoken: Spoken) -> None:
    assert all(line.get("job") != "forged" for line in spoken.lines)
    assert [line["result"]["check"] for line in spoken.of("forges", "check")] == ["gradcheck"]
    assert len(spoken.of("forges", "target_finished")) == 1


def test_names_that_are_absent_and_kinds_that_are_wrong_are_told_apart(spoken: Spoken) -> None:
    assert spoken.not_run("absent")["reason"] == "name absent after import"
    assert spoken.not_run("another_kind")["reason"] == "not a target after all"


def test_what_submitted_code_prints_stays_out_of_the_probes_own_output(spoken: Spoken) -> None:
    assert spoken.stdout == ""


@pytest.mark.usefixtures("spoken")
def test_no_process_of_a_submission_outlives_the_probe(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = str(tmp_path_factory.getbasetemp())
    left = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                where = str((process / "cwd").resolve())
            except OSError:
                continue
            if "gradproof-" in where and base in (process / "cmdline").read_text(encoding="utf-8", errors="replace"):
                left.append(process.name)
    assert left == []


@pytest.mark.parametrize(
    ("request_text", "words"),
    [
        (b"not json", "Expecting value"),
        (b'{"protocol": 99}', "this probe speaks 1"),
        (b'{"protocol": 1, "batch": []}', "source_root"),
        (b'{"protocol": 1, "source_root": "/", "device": "tpu", "batch": []}', "device: 'tpu'"),
        (
            b'{"protocol": 1, "source_root": "/", "batch": [{"job": "1", "target": {"kind": "x"}}]}',
            "batch[0].target.kind",
        ),
        (b'{"protocol": 1, "source_root": "/", "limits": {"check_s": "long"}, "batch": []}', "limits.check_s"),
    ],
)
def test_a_wrong_request_is_refused_by_name_before_torch_is_imported(request_text: bytes, words: str) -> None:
    spoken = speak(HOSTILE, [], request=request_text)
    assert spoken.status == 2
    assert words in spoken.stderr
    assert "Traceback" not in spoken.stderr
    assert spoken.lines == []
