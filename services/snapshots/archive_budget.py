"""Counts what an archive costs while it is read, and refuses it as soon as it costs too much.

Readers report compressed bytes as they take them and uncompressed bytes as they get them, member by member, so that
a bomb is noticed while it goes off and not after.
"""

from __future__ import annotations

from services.snapshots.errors import (
    ArchiveMemberTooLargeError,
    ArchiveRatioError,
    ArchiveTooLargeError,
    ArchiveTooManyMembersError,
    ArchiveTooSlowError,
)
from services.snapshots.limits import Deadline, Limits, size_text
from services.snapshots.paths import shown


class ArchiveBudget:
    """The counters of one archive."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.member = ""
        self._members = 0
        self._produced = 0
        self._consumed = 0
        self._deadline = Deadline(limits.seconds)

    def begin_member(self, name: str, size: int) -> None:
        """A member of the declared size in bytes is about to be read."""
        self.member = name
        self._members += 1
        if self._members > self.limits.members:
            raise ArchiveTooManyMembersError(
                f"more than {self.limits.members:,} members", member=shown(name), limit=self.limits.members
            )
        if size > self.limits.archive_member:
            raise ArchiveMemberTooLargeError(
                f"{shown(name)} has {size_text(size)}; a member may have {size_text(self.limits.archive_member)}",
                member=shown(name),
                size=size,
                limit=self.limits.archive_member,
            )
        self.check_clock()

    def consume(self, count: int) -> None:
        """So many bytes of the archive itself were read."""
        self._consumed += count

    def produce(self, count: int) -> None:
        """So many uncompressed bytes came out."""
        self._produced += count
        self.check_clock()
        if self._produced > self.limits.total:
            raise ArchiveTooLargeError(
                f"more than {size_text(self.limits.total)} uncompressed (reached at {shown(self.member)})",
                member=shown(self.member),
                limit=self.limits.total,
            )
        if self._produced > self.limits.ratio_floor and self._produced > self.limits.ratio * self._consumed:
            raise ArchiveRatioError(
                f"{size_text(self._consumed)} of the archive expand to more than {self.limits.ratio} times as much "
                f"(reached at {shown(self.member)})",
                member=shown(self.member),
                limit=self.limits.ratio,
            )

    def check_clock(self) -> None:
        """Raise `ArchiveTooSlowError` once the time is over."""
        if self._deadline.expired:
            raise ArchiveTooSlowError(
                f"not read within {self.limits.seconds:g} seconds (reached {shown(self.member)})",
                member=shown(self.member),
                limit=self.limits.seconds,
            )
