"""What goes wrong while an environment is built. It never fails an analysis, which goes on without one."""

from __future__ import annotations


class EnvironmentBuildError(Exception):
    """The requirements of a repository could not be installed; the text is for a person."""
