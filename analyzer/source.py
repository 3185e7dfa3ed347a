"""From the bytes of a file to text and a syntax tree, with a named reason whenever that can't be done.

`ast.parse` is the gate for everything else: on nesting that overflows a parser it raises (Python 3.11: MemoryError
from 6,000 levels, RecursionError from about 3,000, SyntaxError from 200 brackets), where libcst's native parser
overflows the C stack and kills the process (measured: 10,000 parentheses, signs or attributes). So nothing reaches
libcst that did not pass here. This module must not know rules.
"""

from __future__ import annotations

import ast
import codecs
import gc
import io
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from analyzer.newer_syntax import parse_newer, python_2_reason

# Codecs that take quadratic time on long input or are no encodings of source text.
_REFUSED_CODECS = frozenset({"punycode", "idna", "undefined", "mbcs", "oem"})
_NESTING_MESSAGES = ("too many nested parentheses", "too many levels of indentation", "too many statically nested")
_BYTES_PER_MEBIBYTE = 1024 * 1024


class UnreadableSourceError(Exception):
    """A file can't be read as Python source; `reason` says why in a sentence, `line` where (1 if unknown)."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


class InvalidSyntaxError(Exception):
    """A file is text, but no Python that this interpreter understands."""

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line
        self.column = column


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keeps the garbage collector away from a tree that is being built or read.

    A file is hundreds of thousands of objects and no garbage: looking for some meanwhile costs 10 % of a parse and
    22 % of a whole analysis (4.0 s against 3.2 s on 205,000 lines).
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def decode(data: bytes, *, max_bytes: int) -> str:
    """The text of a source file: byte order mark and coding cookie honoured, line ends made `\\n`.

    Raises UnreadableSourceError for a file that is too large, in no known encoding, or holds bytes that are not
    valid in it.
    """
    require_size(len(data), max_bytes)
    encoding = _declared_encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        declared = "" if encoding != "utf-8" else " and declares no other encoding"
        raise UnreadableSourceError(
            f"byte {data[error.start]:#04x} at offset {error.start} is not {encoding}{declared}", line
        ) from error
    except (LookupError, ValueError) as error:
        raise UnreadableSourceError(f"can't be decoded as {encoding}: {error}") from error
    return normalise(text)


def require_size(size: int, max_bytes: int) -> None:
    """Raises UnreadableSourceError for a file of more than `max_bytes`; its content need not be known."""
    if size > max_bytes:
        limit = max_bytes / _BYTES_PER_MEBIBYTE
        raise UnreadableSourceError(f"the file has {size / _BYTES_PER_MEBIBYTE:.1f} MiB; the limit is {limit:.1f} MiB")


def normalise(text: str) -> str:
    """The same text without byte order mark and with `\\n` as the only line end.

    Raises UnreadableSourceError for characters that no source file can hold.
    """
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        offset = text.index("\0")
        raise UnreadableSourceError(f"holds a null character at offset {offset}", text.count("\n", 0, offset) + 1)
    return text


def _declared_encoding(data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data[:4096]).readline)
    except SyntaxError as error:
        # An unknown cookie, or a first line that is not UTF-8: only the former is the cookie's fault.
        if "unknown encoding" in str(error):
            raise UnreadableSourceError(f"declares an encoding that does not exist: {error.msg}") from error
        return "utf-8"
    if encoding in ("utf-8", "utf-8-sig"):
        return "utf-8"
    if codecs.lookup(encoding).name in _REFUSED_CODECS:
        raise UnreadableSourceError(f"declares the encoding {encoding}, which is none for source text")
    return encoding


def parse(text: str) -> ast.Module:
    """The syntax tree of a text that came from `decode` or `normalise`.

    Raises InvalidSyntaxError, or UnreadableSourceError when the nesting is too deep for the parser.
    """
    try:
        with collection_paused(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _parse(text)
    except SyntaxError as error:
        message = error.msg or "invalid syntax"
        line = error.lineno or 1
        if message.startswith(_NESTING_MESSAGES):
            raise UnreadableSourceError(f"nested too deeply to be parsed ({message})", line) from error
        raise InvalidSyntaxError(_explained(message, text, line, error.offset or 1), line, error.offset or 1) from error
    except (RecursionError, MemoryError) as error:
        raise UnreadableSourceError("nested too deeply to be parsed") from error
    except ValueError as error:
        raise UnreadableSourceError(f"can't be parsed: {error}") from error


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        if (error.msg or "").startswith(_NESTING_MESSAGES):
            raise
        tree = parse_newer(text)
        if tree is None:
            raise
        return tree


def _explained(message: str, text: str, line: int, column: int) -> str:
    """The parser's message, or what of Python 2 stands there."""
    lines = text.split("\n", line)
    what = python_2_reason(message, lines[line - 1], column) if line <= len(lines) else None
    return f"Python 2, which is not read: {what}" if what else message
