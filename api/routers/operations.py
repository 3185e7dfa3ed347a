"""For whoever runs the service: is it alive, can it take work, what is going on."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api import examples
from api.authentication import Reader
from api.context import ContextDependency
from api.documents import answers, problems
from api.metrics import exposition
from api.schemas import Component, Health, Readiness

router = APIRouter(tags=["operations"])

_METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/healthz", summary="Alive?", responses=answers({"status": "ok"}))
def healthz() -> Health:
    """Whether the process answers at all. It asks nothing else, so that a broken database does not restart it."""
    return Health(status="ok")


@router.get(
    "/readyz",
    summary="Ready for work?",
    responses=answers(examples.READINESS) | {503: {"model": Readiness, "description": "Not ready"}},
)
def readyz(response: Response, context: ContextDependency) -> Readiness:
    """Whether database, broker and reconciler are there; 503 with what is missing otherwise.

    `devices` tells of the GPUs of workers: without them, work is taken and checks that compare devices are skipped.
    """
    states = context.oversight.states()
    ready = all(state.ok for state in states if state.needed)
    response.status_code = 200 if ready else 503
    return Readiness(
        ready=ready, components=[Component(name=state.name, ok=state.ok, detail=state.detail) for state in states]
    )


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "The text format of Prometheus",
            "content": {"text/plain": {"schema": {"type": "string"}, "example": examples.METRICS}},
        },
        **problems(401, 403),
    },
)
def metrics(context: ContextDependency, _: Reader) -> Response:
    """Queues, leases, attempts and results, as the database knows them."""
    return Response(exposition(context.oversight.figures()), headers={"Content-Type": _METRICS_MEDIA_TYPE})
