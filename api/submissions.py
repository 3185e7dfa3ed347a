"""Reads a submission out of a request: a multipart upload or JSON, each field judged before anything is stored.

The body is parsed here rather than by the framework, so that its size, its parts and its unknown fields are refused
with a name. Archives are spooled to disk by the form parser and read by `services.snapshots`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from api.errors import BodyTooLargeError, InvalidRequestError, MalformedBodyError, UnsupportedMediaTypeError
from api.problems import invalid_request
from api.schemas import Choices, GitSubmission, Placement
from services.analyses.model import AnalysisOptions

# A git submission is a handful of short fields; 64 KiB leaves room for a thousand rule names.
JSON_LIMIT = 64 * 1024
_FIELDS = ("archive", "options", "project", "base")
_KEY_LENGTH = 200

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ArchiveSubmission:
    """An uploaded archive; `upload.file` is seekable and closed with the form."""

    upload: UploadFile
    filename: str
    placement: Placement
    options: AnalysisOptions


@asynccontextmanager
async def read_submission(request: Request) -> AsyncIterator[ArchiveSubmission | GitSubmission]:
    """The submission in a request; uploaded files live until the block ends.

    Raises `UnsupportedMediaTypeError`, `MalformedBodyError`, `BodyTooLargeError`, `InvalidRequestError`, or
    `InvalidOptionsError`.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        yield _validated(GitSubmission, await _read_json(request), "body")
    elif media_type == "multipart/form-data":
        try:
            # One part more than there are fields, so that an unknown one is named rather than counted.
            form = await request.form(max_files=2, max_fields=len(_FIELDS) + 1, max_part_size=JSON_LIMIT)
        except (MultiPartException, HTTPException) as error:
            said = error.message if isinstance(error, MultiPartException) else error.detail
            raise MalformedBodyError(f"the multipart body can't be read: {said}") from None
        try:
            yield _archive(form)
        finally:
            await form.close()
    else:
        raise UnsupportedMediaTypeError(
            "send multipart/form-data with an `archive`, or application/json with a `git_url`",
            media_type=media_type[:100],
        )


def parse_options(choices: Choices) -> AnalysisOptions:
    """The domain's options, judged by the domain. Raises `InvalidOptionsError`."""
    return AnalysisOptions.parse(choices.model_dump())


def idempotency_key(request: Request) -> str | None:
    """The Idempotency-Key of a request, if there is one. Raises `InvalidRequestError` for one that can't be kept."""
    key = request.headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= _KEY_LENGTH and key.isascii() and key.isprintable()):
        raise _refused("header.Idempotency-Key", f"1 to {_KEY_LENGTH} printable ASCII characters")
    return key


async def _read_json(request: Request) -> object:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > JSON_LIMIT:
            raise BodyTooLargeError(f"a JSON body may have {JSON_LIMIT:,} bytes", limit=JSON_LIMIT)
    return _parse_json(bytes(body), "body")


def _parse_json(text: bytes | str, where: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        said = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8, or nested too deeply"
        raise MalformedBodyError(f"{where} is not JSON: {said}", field=where) from None
    return value


def _archive(form: FormData) -> ArchiveSubmission:
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in _FIELDS:
            raise _refused(f"body.{name[:100]}", f"unknown field; there are {', '.join(_FIELDS)}")
        if names.count(name) > 1:
            raise _refused(f"body.{name}", "given more than once")
    upload = form.get("archive")
    if not isinstance(upload, UploadFile):
        raise _refused("body.archive", "a file is required: .zip, .tar, .tar.gz or .py")
    texts = {name: value for name, value in form.multi_items() if name != "archive"}
    for name, value in texts.items():
        if isinstance(value, UploadFile):
            raise _refused(f"body.{name}", "a text is required, not a file")
    options = _parse_json(str(texts.get("options") or "{}"), "body.options")
    placement = {name: value for name, value in texts.items() if name != "options"}
    return ArchiveSubmission(
        upload=upload,
        filename=_base_name(upload.filename or ""),
        placement=_validated(Placement, placement, "body"),
        options=parse_options(_validated(Choices, options, "body.options")),
    )


def _base_name(filename: str) -> str:
    """What is behind the last separator: browsers and tools send whole paths, which are none of our business."""
    return filename.replace("\\", "/").rpartition("/")[2]


def _validated(model: type[M], value: object, where: str) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors: list[dict[str, Any]] = [
            {"loc": (where, *each["loc"]), "msg": each["msg"]}
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise invalid_request(errors) from None


def _refused(field: str, reason: str) -> InvalidRequestError:
    return invalid_request([{"loc": (field,), "msg": reason}])
