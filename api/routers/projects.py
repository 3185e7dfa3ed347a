"""Projects: what a team watches, with its settings."""

from __future__ import annotations

from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Response
from pydantic import Field

from api.authentication import Maintainer, Reader
from api.context import ContextDependency
from api.documents import answers, problems
from api.parameters import ProjectKey
from api.presentation import API
from api.schemas import Body, Page
from api.team_schemas import PROJECT_EXAMPLE, NameCursor, ProjectIn, ProjectLinks, ProjectOut, ProjectPatch
from services.projects.service import PAGE_LIMIT, Changes, ProjectView

router = APIRouter(prefix="/projects", tags=["projects"])

_PAGE = {"items": [PROJECT_EXAMPLE], "next_cursor": None}


class ProjectFilters(Body):
    """Which projects to list."""

    organisation: str | None = Field(default=None, max_length=40, description="only those of this organisation")
    archived: bool = Field(default=False, description="the archived ones instead")
    cursor: NameCursor | None = Field(default=None, description="`next_cursor` of the page before")
    limit: int = Field(default=50, ge=1, le=PAGE_LIMIT)


@router.get("", summary="List projects", responses=answers(_PAGE) | problems(401, 403, 404, 422))
def list_projects(
    context: ContextDependency, caller: Reader, filters: Annotated[ProjectFilters, Query()]
) -> Page[ProjectOut]:
    """Projects that the caller may read, in the order of their names."""
    page = context.projects.list(
        caller,
        cursor=filters.cursor,
        limit=filters.limit,
        organisation=filters.organisation,
        archived=filters.archived,
    )
    return Page(items=[_out(view) for view in page.items], next_cursor=page.next_cursor)


@router.post(
    "",
    status_code=201,
    summary="Make a project",
    responses=answers(PROJECT_EXAMPLE, status=201) | problems(401, 403, 404, 409, 422),
)
def create_project(wanted: ProjectIn, response: Response, context: ContextDependency, caller: Maintainer) -> ProjectOut:
    """A project in an organisation where the caller is a maintainer. Submitting makes one too, when its name is new."""
    made = _out(
        context.projects.create(
            caller, wanted.name, repository_url=wanted.repository_url, default_branch=wanted.default_branch
        )
    )
    response.headers["Location"] = made.links.self
    return made


@router.get("/{project}", summary="One project", responses=answers(PROJECT_EXAMPLE) | problems(401, 403, 404))
def get_project(project: ProjectKey, context: ContextDependency, caller: Reader) -> ProjectOut:
    """A project by its id, or by its name with `~` for the stroke: `acme~vision`."""
    return _out(context.projects.get(caller, project))


@router.patch(
    "/{project}",
    summary="Change a project",
    responses=answers(PROJECT_EXAMPLE) | problems(401, 403, 404, 409, 422),
)
def update_project(
    project: ProjectKey, changes: ProjectPatch, context: ContextDependency, caller: Maintainer
) -> ProjectOut:
    """Name, repository, branch, settings, or whether it is archived; for its maintainers. What is left out stays."""
    return _out(context.projects.update(caller, project, **_changes(changes)))


def _changes(patch: ProjectPatch) -> Changes:
    given: dict[str, Any] = patch.model_dump(include=patch.model_fields_set)
    # These can't be nothing: a null says the same as leaving them out.
    never_null = ("name", "settings", "archived")
    changes = {key: value for key, value in given.items() if value is not None or key not in never_null}
    return cast("Changes", changes)


def _out(view: ProjectView) -> ProjectOut:
    return ProjectOut(
        id=view.id,
        name=view.name,
        organisation=view.organisation,
        repository_url=view.repository_url,
        default_branch=view.default_branch,
        settings=view.settings,
        baseline=view.baseline_id,
        created_at=view.created_at,
        archived_at=view.archived_at,
        permissions=sorted(permission.value for permission in view.permissions),
        links=ProjectLinks(self=f"{API}/projects/{view.id}", page=f"/projects/{view.id}"),
    )
