"""The text of a token: `gp_<kind>_<160 random bits><checksum>`, in base 62.

The prefix and the checksum let secret scanners recognise a leaked token without asking us, and let us refuse a
mistyped one without asking the database. Pure.
"""

from __future__ import annotations

import hmac
import re
import secrets
import zlib
from hashlib import sha256
from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_BITS: Final = 160
# 62 ** 27 > 2 ** 160 and 62 ** 6 > 2 ** 32: both parts have a fixed width.
RANDOM_WIDTH: Final = 27
CHECKSUM_WIDTH: Final = 6
KINDS: Final = ("api", "first")
_FORM: Final = re.compile(rf"gp_({'|'.join(KINDS)})_([0-9A-Za-z]{{{RANDOM_WIDTH}}})([0-9A-Za-z]{{{CHECKSUM_WIDTH}}})")


def new_token(kind: str) -> str:
    """A fresh token. `kind` is one of `KINDS`: `api` by an administrator, `first` the one of a fresh installation."""
    assert kind in KINDS
    body = f"gp_{kind}_{_base62(secrets.randbits(RANDOM_BITS), RANDOM_WIDTH)}"
    return body + _checksum(body)


def is_well_formed(token: str) -> bool:
    """Whether the text can be a token at all: form and checksum. Says nothing about whether it was ever given out."""
    match = _FORM.fullmatch(token)
    return match is not None and _checksum(token[:-CHECKSUM_WIDTH]) == match[3]


def token_digest(token: str, key: bytes) -> str:
    """What is stored of a token: HMAC-SHA256, in hexadecimal."""
    return hmac.new(key, token.encode(), sha256).hexdigest()


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), CHECKSUM_WIDTH)


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))
