"""Every error as `application/problem+json` (RFC 9457), or as a page for a person with a browser.

One place turns exceptions into answers: those of the domain by their code and status, those of the framework by the
same shape, and whatever nobody expected without a word of its inner life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from api.errors import InvalidRequestError
from services.database.errors import as_unavailable
from services.limits import LimitReachedError
from services.problems import GradproofError, SurroundingsError

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = "10"
_HTTP_CODES = {
    400: "malformed-request",
    404: "route-not-found",
    405: "method-not-allowed",
    413: "body-too-large",
    415: "unsupported-media-type",
}


ProblemPage = Callable[[Request, "Problem"], Response | None]


class FieldError(BaseModel):
    """One field or parameter and what is wrong with it."""

    field: str = Field(examples=["body.git_url"])
    reason: str = Field(examples=["Field required"])


class Problem(BaseModel):
    """An error as RFC 9457 has it, with a stable `code` to act on and `details` as data."""

    type: str = Field(examples=["urn:gradproof:problem:analysis-not-found"])
    title: str = Field(examples=["No such analysis"])
    status: int = Field(examples=[404])
    detail: str = Field(description="what is wrong and where, for a person")
    code: str = Field(examples=["analysis-not-found"])
    details: dict[str, Any] = Field(default={}, description="the offending member, part, key or limit as data")


def _problem(code: str, title: str, status: int, detail: str, details: Mapping[str, object]) -> Problem:
    return Problem(
        type=f"urn:gradproof:problem:{code}",
        title=title,
        status=status,
        detail=detail,
        code=code,
        details=dict(details),
    )


def _answer(request: Request | None, problem: Problem, headers: Mapping[str, str]) -> Response:
    page = None if request is None else getattr(request.app.state, "problem_page", None)
    response: Response | None = None if page is None else page(request, problem)
    if response is None:
        response = JSONResponse(
            jsonable_encoder(problem, custom_encoder={bytes: repr}), problem.status, media_type=MEDIA_TYPE
        )
    response.headers.update(headers)
    return response


def from_error(request: Request | None, error: GradproofError) -> Response:
    """The answer to an error that has a name."""
    headers = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="gradproof"'
    if error.http_status == 413:
        headers["Connection"] = "close"  # else the server would go on reading what was refused
    if isinstance(error, SurroundingsError):
        headers["Retry-After"] = _RETRY_AFTER_S
    if isinstance(error, LimitReachedError):
        headers["Retry-After"] = str(error.retry_after_s)
    return _answer(request, _problem(error.code, error.title, error.http_status, error.message, error.details), headers)


def invalid_request(errors: Sequence[Any]) -> InvalidRequestError:
    """Pydantic's list of what is wrong, as one error that names each field and the reason."""
    listed = [
        FieldError(
            field=".".join(str(part) for part in error["loc"]) or "body",
            reason=str(error["msg"]).removeprefix("Value error, "),
        )
        for error in errors
    ]
    return InvalidRequestError(
        "; ".join(f"{error.field}: {error.reason}" for error in listed[:5]),
        errors=[error.model_dump() for error in listed],
    )


def unexpected(request: Request | None, error: BaseException) -> Response:
    """The answer to what nobody expected: it is logged, and the client learns that it is not to blame."""
    unavailable = as_unavailable(error)
    if unavailable is not None:
        log.warning("database_unavailable", path=request.url.path if request else None, reason=str(error))
        return from_error(request, unavailable)
    log.error("request_failed", path=request.url.path if request else None, exc_info=error)
    detail = "Gradproof failed while answering this request; its log says why."
    return _answer(request, _problem("internal-error", "Gradproof failed", 500, detail, {}), {})


def install(app: FastAPI, page: ProblemPage) -> None:
    """Let the application answer every error as a problem. `page` may answer with a page for a person instead."""
    app.state.problem_page = page
    app.add_exception_handler(GradproofError, _domain)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)


def _domain(request: Request, error: Exception) -> Response:
    assert isinstance(error, GradproofError)
    if error.http_status >= 500:
        log.warning("request_failed", code=error.code, detail=error.message)
    return from_error(request, error)


def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return from_error(request, invalid_request(error.errors()))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"There is nothing at {request.url.path}"
    elif error.status_code == 405:
        detail = f"{request.method} is not possible at {request.url.path}"
    code = _HTTP_CODES.get(error.status_code, "http-error")
    return _answer(request, _problem(code, str(error.detail), error.status_code, detail, {}), dict(error.headers or {}))
