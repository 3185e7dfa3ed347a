"""What a format is: a name, a media type, a file extension, and one method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from services.reports.document import Report
from services.reports.sources import NoSources, Sources


@dataclass(frozen=True, slots=True)
class Rendering:
    """How to write a report. `colour` and `width` (columns) concern terminals, `sources` the quoted lines."""

    sources: Sources = field(default_factory=NoSources)
    colour: bool = False
    width: int = 100


class ReportFormat(ABC):
    """Writes a report as text in UTF-8. `title` is what a person calls the format."""

    name: ClassVar[str]
    title: ClassVar[str]
    media_type: ClassVar[str]
    extension: ClassVar[str]

    @abstractmethod
    def render(self, report: Report, rendering: Rendering) -> str:
        """The whole report as text. Never raises for what a report holds."""
