"""What a target's process may say, rebuilt key by key before it is passed on.

A target's process has imported submitted code, so its lines are untrusted already here: nothing that isn't in the
protocol gets through, texts are cut, floats that JSON doesn't know become words, and the supervisor adds the job.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from typing import Any, Final

from gradproof_probe.protocol import FOUND_BY, NOT_RUN_REASONS
from gradproof_probe.request import KINDS, Mined

VERDICTS: Final = ("pass", "fail", "inconclusive", "skipped", "error")
SOURCES: Final = ("declared", "mined", "synthesised")
GRADES: Final = ("A", "B", "C")
TEXT: Final = 4_000
REPRO: Final = 19_000  # the worker cuts at 20,000: a cut script would not run
WORD: Final = 100
EVIDENCE: Final = 64 * 1024  # bytes of JSON
HARNESS: Final = 512 * 1024  # bytes of JSON: within the limit of a line, which the supervisor must not break itself
VARIANTS: Final = 12
PARTS: Final = 200
PART_CALLS: Final = 3
INPUTS: Final = 64
WORD_OF_PLACE: Final = 300
REASON: Final = 500
DEPTH: Final = 8
ITEMS: Final = 500


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as what JSON knows: non-finite floats become "nan", "inf", "-inf", foreign objects their repr."""
    if depth > DEPTH:
        return "…"
    if value is None or isinstance(value, bool | int):
        # Python's integers have no end; JSON readers do.
        return value if value is None or abs(int(value)) < 2**63 else str(value)[:WORD]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:TEXT]
    if isinstance(value, dict):
        return {str(key)[:200]: plain(item, depth + 1) for key, item in list(value.items())[:ITEMS]}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value[:ITEMS]]
    return repr(value)[:200]


def clean_harness(message: dict[str, Any]) -> dict[str, Any] | None:
    """The `harness` line without its job, or None if it makes no sense or is larger than any harness is."""
    harness, not_run = message.get("harness"), message.get("not_run")
    if isinstance(harness, dict):
        if harness.get("source") not in SOURCES or harness.get("grade") not in GRADES:
            return None
        inputs = harness.get("inputs")
        line = {
            "type": "harness",
            "harness": {
                "source": harness["source"],
                "grade": harness["grade"],
                "constructor": _text(harness.get("constructor"), optional=True),
                "inputs": [str(item)[:TEXT] for item in inputs[:INPUTS]] if isinstance(inputs, list) else [],
                "provenance": _text(harness.get("provenance")),
                "reason": _text(harness.get("reason"), optional=True),
                "found_by": harness["found_by"] if harness.get("found_by") in FOUND_BY else "names",
                "variants": _variants(harness.get("variants")),
                "code": _text(harness.get("code")),
            },
            "not_run": None,
            "kind": message["kind"] if message.get("kind") in KINDS else None,
        }
        return line if len(json.dumps(line)) <= HARNESS else None
    if isinstance(not_run, dict) and not_run.get("reason") in NOT_RUN_REASONS:
        return not_run_line(str(not_run["reason"]), str(not_run.get("detail", "")))
    return None


def clean_parts(message: dict[str, Any], wanted: Collection[str]) -> dict[str, tuple[Mined, ...]]:
    """How other targets were called while this one ran, of those that are `wanted`; empty if it makes no sense."""
    parts = message.get("parts")
    if not isinstance(parts, dict):
        return {}
    found = {
        name: tuple(call for item in parts[name][:PART_CALLS] if (call := _part(item)) is not None)
        for name in list(parts)[:PARTS]
        if name in wanted and isinstance(parts[name], list)
    }
    return {name: calls for name, calls in found.items() if calls}


def _part(value: Any) -> Mined | None:
    """An expression is kept whole or not at all: half of one says something else, or nothing."""
    if not isinstance(value, dict) or not isinstance(value.get("inputs"), list) or len(value["inputs"]) > INPUTS:
        return None
    constructor, inputs = value.get("constructor"), value["inputs"]
    texts = [*inputs, *([] if constructor is None else [constructor])]
    if not all(isinstance(text, str) and len(text) <= TEXT for text in texts):
        return None
    return Mined(constructor, tuple(inputs), _text(value.get("provenance"))[:WORD_OF_PLACE], "parent")


def clean_fixes(message: dict[str, Any], asked: Collection[str]) -> dict[str, dict[str, Any]]:
    """By fingerprint, whether a fix does what it is for."""
    fixes = message.get("fix")
    if not isinstance(fixes, dict):
        return {}
    return {
        fingerprint: {"verified": fix.get("verified") is True, "reason": _text(fix.get("reason"))[:REASON]}
        for fingerprint in asked
        if isinstance(fix := fixes.get(fingerprint), dict)
    }


def _variants(value: Any) -> list[dict[str, Any]]:
    return [
        {
            "constructor": _text(item.get("constructor"), optional=True),
            "inputs": [str(text)[:TEXT] for text in item["inputs"][:INPUTS]],
            "option": _text(item.get("option"))[:WORD],
        }
        for item in (value[:VARIANTS] if isinstance(value, list) else ())
        if isinstance(item, dict) and isinstance(item.get("inputs"), list)
    ]


def not_run_line(reason: str, detail: str) -> dict[str, Any]:
    assert reason in NOT_RUN_REASONS
    return {"type": "harness", "harness": None, "not_run": {"reason": reason, "detail": detail[:TEXT]}, "kind": None}


def clean_result(value: Any, allowed: Sequence[str]) -> dict[str, Any] | None:
    """A check's result, or None if it isn't one of a check that was asked for."""
    if not isinstance(value, dict) or value.get("check") not in allowed or value.get("verdict") not in VERDICTS:
        return None
    line, duration = value.get("line"), value.get("duration_s")
    repro = value.get("repro")
    return {
        "check": value["check"],
        "verdict": value["verdict"],
        "device": _text(value.get("device"))[:WORD] or "cpu",
        "summary": _text(value.get("summary")),
        "diagnosis": _diagnosis(value.get("diagnosis")),
        "path": value["path"][:1000] if isinstance(value.get("path"), str) else None,
        "line": line if isinstance(line, int) and not isinstance(line, bool) and 1 <= line <= 10**7 else None,
        "evidence": _evidence(value.get("evidence")),
        "repro": repro if isinstance(repro, str) and len(repro) <= REPRO else None,
        "duration_s": float(duration) if isinstance(duration, int | float) and 0 <= duration < 1e6 else 0.0,
    }


def _diagnosis(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    return {
        "cause": _text(value.get("cause"))[:WORD] or "unknown",
        "text": _text(value.get("text")),
        "numbers": _evidence(value.get("numbers")),
    }


def _evidence(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    cleaned = plain(value)
    size = len(json.dumps(cleaned, allow_nan=False))
    return cleaned if size <= EVIDENCE else {"left_out": f"evidence of {size} bytes is over {EVIDENCE}"}


def _text(value: Any, *, optional: bool = False) -> Any:
    if isinstance(value, str):
        return value[:TEXT]
    return None if optional else ""
