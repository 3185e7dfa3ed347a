"""What the probe may say, validated again.

The probe runs in the same sandbox as submitted code, so each line is untrusted: unknown keys, wrong types, oversized
texts and unknown jobs are refused, and control characters are taken out of every text. A refused line is dropped and
counted; it never stops a batch.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from services.reports.document import CheckVerdict

# C0 and C1 controls but tab and newline: they could steer a terminal (ANSI escapes) or end a record. And halves of
# surrogate pairs, which JSON can spell (`"\ud800"`) but UTF-8 can't: one of them would make a report unwritable.
_UNFIT_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Deep enough for a Jacobian of a nested output, far below the interpreter's recursion limit.
_MAXIMUM_DEPTH = 12
_MAXIMUM_TEXT = 20_000
_MAXIMUM_SENTENCE = 500
_MAXIMUM_ITEMS = 5_000


def _clean(text: str) -> str:
    return _UNFIT_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", text)


def _cleaned(value: object) -> object:
    """Before any other check: pydantic's own refuse a string that UTF-8 can't encode, and with it the whole line."""
    return _clean(value) if isinstance(value, str) else value


def _clean_value(value: object, depth: int = 0) -> object:
    if depth > _MAXIMUM_DEPTH:
        raise ValueError(f"nested deeper than {_MAXIMUM_DEPTH} levels")
    if isinstance(value, str):
        return _clean(value[:_MAXIMUM_TEXT])
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN: "nan", "inf" and "-inf" stay readable for a person
    if isinstance(value, dict):
        if len(value) > _MAXIMUM_ITEMS:
            raise ValueError(f"more than {_MAXIMUM_ITEMS} keys")
        return {_clean(str(key)[:200]): _clean_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > _MAXIMUM_ITEMS:
            raise ValueError(f"more than {_MAXIMUM_ITEMS} items")
        return [_clean_value(item, depth + 1) for item in value]
    return value


def _clean_mapping(value: dict[str, object]) -> dict[str, object]:
    cleaned = _clean_value(value)
    assert isinstance(cleaned, dict)
    return cleaned


def _truncate(value: object) -> object:
    return _clean(value[:_MAXIMUM_TEXT]) if isinstance(value, str) else value


def _shortened(value: object) -> object:
    """A sentence: the last line of a traceback, say."""
    return _clean(value[:_MAXIMUM_SENTENCE]) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_truncate)]
Word = Annotated[str, BeforeValidator(_cleaned), Field(max_length=100)]
Evidence = Annotated[dict[str, object], AfterValidator(_clean_mapping)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class ReadyMessage(_Line):
    """The probe is up: torch was imported once."""

    type: Literal["ready"]
    torch: Word
    python: Word
    devices: Annotated[list[Word], Field(max_length=64)]
    import_torch_s: float = Field(ge=0)


class TargetStartedMessage(_Line):
    """The probe has forked a process for this target."""

    type: Literal["target_started"]
    job: Word


class VariantReply(_Line):
    """The same target with another value of a mode argument."""

    constructor: Text | None = None
    inputs: Annotated[list[Text], Field(max_length=64)]
    option: Word


class HarnessReply(_Line):
    """How the target was built and called."""

    source: Literal["declared", "mined", "synthesised"]
    grade: Literal["A", "B", "C"]
    constructor: Text | None = None
    inputs: Annotated[list[Text], Field(max_length=64)]
    provenance: Text = ""
    reason: Text | None = None
    found_by: Word = "names"
    variants: Annotated[list[VariantReply], Field(max_length=12)] = []
    code: Text = ""


class NotRun(_Line):
    """Why no check could run: a few stable words, and the sentence behind them."""

    reason: Word
    detail: Text = ""


class HarnessMessage(_Line):
    """The harness of a target, or why there is none; `kind` is what the target is, if only the probe can tell."""

    type: Literal["harness"]
    job: Word
    harness: HarnessReply | None = None
    not_run: NotRun | None = None
    kind: Literal["module", "function", "autograd_function"] | None = None


class CheckStartedMessage(_Line):
    """A check of a target has begun."""

    type: Literal["check_started"]
    job: Word
    check: Word


class DiagnosisReply(_Line):
    """The named cause of a failure with its numbers."""

    cause: Word
    text: Text
    numbers: Evidence = {}


class CheckReply(_Line):
    """The result of one check."""

    check: Word
    verdict: CheckVerdict
    device: Word
    summary: Text
    diagnosis: DiagnosisReply | None = None
    path: Annotated[str, BeforeValidator(_cleaned), Field(max_length=1000)] | None = None
    line: int | None = Field(default=None, ge=1, le=10_000_000)
    evidence: Evidence = {}
    repro: Text | None = None
    duration_s: float = Field(ge=0)


class CheckMessage(_Line):
    """A check of a target has ended."""

    type: Literal["check"]
    job: Word
    result: CheckReply


class TargetWaitingMessage(_Line):
    """The target is tried once more at the end of the batch; the reason holds if nothing comes of that."""

    type: Literal["target_waiting"]
    job: Word
    not_run: NotRun


class TargetFinishedMessage(_Line):
    """Nothing more comes for this target."""

    type: Literal["target_finished"]
    job: Word


class MinedRecipe(_Line):
    """A call that was recorded: how the target was built, and with what it was called."""

    constructor: Text | None = None
    inputs: Annotated[list[Text], Field(max_length=64)]
    provenance: Text = ""
    found_by: Word


class ExampleMessage(_Line):
    """What became of one of the repository's own examples."""

    type: Literal["example"]
    place: Annotated[str, BeforeValidator(_cleaned), Field(max_length=1000)]
    kind: Word
    outcome: Literal["ran", "raised", "timed_out", "skipped"]
    detail: Annotated[str, BeforeValidator(_shortened)] = ""


class MinedMessage(_Line):
    """One recorded call of a target."""

    type: Literal["mined"]
    target: Annotated[str, BeforeValidator(_cleaned), Field(max_length=1000)]
    recipe: MinedRecipe


class DoneMessage(_Line):
    """Nothing more comes at all."""

    type: Literal["done"]


Message = (
    ReadyMessage
    | TargetStartedMessage
    | HarnessMessage
    | CheckStartedMessage
    | CheckMessage
    | TargetWaitingMessage
    | TargetFinishedMessage
    | ExampleMessage
    | MinedMessage
    | DoneMessage
)

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class RefusedLineError(ValueError):
    """A line of the probe that is no message; carries what was wrong with it."""


def parse_line(line: bytes) -> Message:
    """One line as a message.

    Raises `RefusedLineError` for anything else: not UTF-8, not JSON (also numbers JSON does not know), too deep,
    unknown type, a value out of bounds.
    """
    try:
        value = json.loads(line)
        return _ADAPTER.validate_python(value)
    except RecursionError as error:
        raise RefusedLineError("nested too deep") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise RefusedLineError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise RefusedLineError(f"not JSON: {error}") from error
