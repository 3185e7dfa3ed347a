"""Lines of the probe are untrusted: what passes is bounded and printable, everything else is refused with a reason."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.execution.convert import check_info
from worker.execution.messages import CheckMessage, ReadyMessage, RefusedLineError, parse_line

CHECK = {
    "type": "check",
    "job": "j1",
    "result": {
        "check": "gradcheck",
        "verdict": "fail",
        "device": "cpu",
        "summary": "wrong by a factor of 2",
        "evidence": {"analytic": 2.0},
        "duration_s": 0.1,
    },
}


def line(**changes: object) -> bytes:
    """A check line with some keys of its result replaced."""
    return json.dumps(CHECK | {"result": CHECK["result"] | changes}).encode()  # type: ignore[operator]


def test_a_well_formed_line_is_read() -> None:
    message = parse_line(line())
    assert isinstance(message, CheckMessage)
    assert message.result.evidence == {"analytic": 2.0}


def test_unknown_keys_are_ignored_so_that_an_older_worker_reads_a_newer_probe() -> None:
    assert isinstance(parse_line(line(colour="red")), CheckMessage)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1, 2]", "dictionary"),
        (b'{"type": "shutdown"}', "shutdown"),
        (b'{"type": "ready", "torch": "2", "python": "3", "devices": [], "import_torch_s": -1}', "import_torch_s"),
        (line(verdict="excellent"), "verdict"),
        (line(line=0), "line"),
        (line(check="x" * 101), "check"),
        (line(evidence={"a": [0] * 6000}), "evidence"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(RefusedLineError, match=reason):
        parse_line(raw)


def test_evidence_nested_beyond_reason_is_refused() -> None:
    nested: object = 1
    for _ in range(40):
        nested = [nested]
    with pytest.raises(RefusedLineError, match="nested"):
        parse_line(line(evidence={"deep": nested}))


def test_terminal_escapes_are_taken_out_of_every_text() -> None:
    message = parse_line(line(summary="\x1b[2Jgone", evidence={"\x1b[1m": ["\x9b31m"]}))
    assert isinstance(message, CheckMessage)
    assert message.result.summary == "\N{REPLACEMENT CHARACTER}[2Jgone"
    assert "\x1b" not in json.dumps(message.result.evidence)
    assert "\x9b" not in json.dumps(message.result.evidence, ensure_ascii=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": "a\ud800b"},
        {"path": "a\ud800b.py"},
        {"repro": "\udfff"},
        {"evidence": {"a\ud800b": ["\udc80"]}},
        {"diagnosis": {"cause": "c\ud800", "text": "t\udcff", "numbers": {"n": "\ud800"}}},
    ],
)
def test_half_a_surrogate_pair_costs_a_character_and_neither_the_result_nor_the_report(
    changes: dict[str, object],
) -> None:
    message = parse_line(line(**changes))
    assert isinstance(message, CheckMessage)
    check_info(message.result).model_dump_json()


def test_long_texts_are_cut() -> None:
    message = parse_line(line(summary="x" * 1_000_000))
    assert isinstance(message, CheckMessage)
    assert len(message.result.summary) == 20_000


def test_numbers_that_json_does_not_know_become_words() -> None:
    raw = line().replace(b'"analytic": 2.0', b'"analytic": NaN, "worst": Infinity')
    message = parse_line(raw)
    assert isinstance(message, CheckMessage)
    assert message.result.evidence == {"analytic": "nan", "worst": "inf"}


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_refusal(raw: bytes) -> None:
    with contextlib.suppress(RefusedLineError):
        parse_line(raw)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=50))
def test_any_evidence_survives_a_second_serialisation(value: object) -> None:
    message = parse_line(line(evidence={"value": value}))
    assert isinstance(message, CheckMessage)
    json.dumps(message.result.evidence, allow_nan=False)


def test_the_probe_names_the_torch_that_it_runs_under() -> None:
    raw = b'{"type": "ready", "torch": "2.13.0", "python": "3.11.7", "devices": ["cpu"], "import_torch_s": 1.5}'
    message = parse_line(raw)
    assert isinstance(message, ReadyMessage)
    assert message.torch == "2.13.0"
