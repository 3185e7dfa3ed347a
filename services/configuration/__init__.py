"""What a repository says about its own analysis: `[tool.gradproof]` in `pyproject.toml`, or `gradproof.toml`.

The file comes with submitted code, so it is untrusted: it is read as data, bounded, and nothing in it is evaluated
here. Expressions of targets go to the sandbox as text. An error names file, line and key; what becomes of an analysis
whose configuration is wrong is not decided here.
"""

from __future__ import annotations

from services.configuration.errors import ConfigurationError
from services.configuration.model import Configuration, DeclaredTarget, Gate
from services.configuration.reading import is_configured, read_configuration
from services.configuration.selection import RuleSelection

__all__ = [
    "Configuration",
    "ConfigurationError",
    "DeclaredTarget",
    "Gate",
    "RuleSelection",
    "is_configured",
    "read_configuration",
]
