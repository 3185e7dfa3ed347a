"""Uncompresses gzip in small steps, so that what comes out can be counted before it is held.

`gzip.GzipFile` would do, but for its error handling: it reports a cut stream, a wrong checksum and trailing bytes
in three different ways and reads one member header with no bound.
"""

from __future__ import annotations

import zlib
from typing import BinaryIO, Final

from services.snapshots.archive_budget import ArchiveBudget
from services.snapshots.errors import ArchiveChecksumError, ArchiveMalformedError, ArchiveTruncatedError

_STEP: Final = 1 << 16
_GZIP_WRAPPER: Final = 16 + zlib.MAX_WBITS


class GzipStream:
    """Reads the uncompressed bytes of a gzip stream of one or more members, reporting both sides to the budget."""

    def __init__(self, stream: BinaryIO, budget: ArchiveBudget) -> None:
        self._stream = stream
        self._budget = budget
        self._inflater = zlib.decompressobj(_GZIP_WRAPPER)
        self._waiting = b""
        self._ready = b""
        self._ended = False

    def read(self, count: int) -> bytes:
        """`count` bytes, fewer only at the end."""
        pieces = []
        missing = count
        while missing:
            if not self._ready and not self._fill():
                break
            piece, self._ready = self._ready[:missing], self._ready[missing:]
            missing -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def _fill(self) -> bool:
        """Make some bytes ready; False at the end of the stream."""
        while not self._ended:
            if self._inflater.eof and not self._next_member():
                break
            self._budget.check_clock()
            at_end = not self._waiting and not self._refill()
            if at_end:
                raise ArchiveTruncatedError("the gzip stream is cut short")
            try:
                self._ready = self._inflater.decompress(self._waiting, _STEP)
            except zlib.error as error:
                if "incorrect" in str(error) and "check" in str(error) and "header" not in str(error):
                    raise ArchiveChecksumError("the checksum of the gzip stream does not match") from error
                raise ArchiveMalformedError(f"not a gzip stream, or a damaged one ({error})") from error
            self._waiting = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            if self._ready:
                self._budget.produce(len(self._ready))
                return True
        return False

    def _next_member(self) -> bool:
        """Begin the member that follows; padding of zeros ends the stream, anything else is refused."""
        while True:
            self._waiting = self._waiting.lstrip(b"\0")
            if self._waiting:
                break
            if not self._refill():
                self._ended = True
                return False
        self._inflater = zlib.decompressobj(_GZIP_WRAPPER)
        return True

    def _refill(self) -> bool:
        self._waiting = self._stream.read(_STEP)
        self._budget.consume(len(self._waiting))
        return bool(self._waiting)
