"""What can be wrong with projects."""

from __future__ import annotations

from services.problems import BadInputError, ConflictError, NotFoundError


class ProjectNotFoundError(NotFoundError):
    """No project has this name, or it is somebody else's: that can't be told apart."""

    code = "project-not-found"
    title = "No such project"


class ProjectNameError(BadInputError):
    """A project can't be called that."""

    code = "project-name"
    title = "A project can't be called that"


class ProjectExistsError(ConflictError):
    """The name is taken."""

    code = "project-exists"
    title = "There is a project of this name"


class ProjectArchivedError(ConflictError):
    """An archived project takes no new analyses."""

    code = "project-archived"
    title = "The project is archived"


class HookNotFoundError(NotFoundError):
    """The project has no such hook, or the hook made no such call."""

    code = "hook-not-found"
    title = "No such hook"


class HookUrlError(BadInputError):
    """The address of a hook can't be called."""

    code = "hook-url"
    title = "This address can't be called"


class HookLimitError(ConflictError):
    """The project has as many hooks as it may."""

    code = "hook-limit"
    title = "There are too many hooks"


class ShareLinkNotFoundError(NotFoundError):
    """There is no such link, it is over, or it was revoked: that can't be told apart."""

    code = "share-link-not-found"
    title = "This link shows nothing"
