"""Passwords: which are taken, and the Argon2id hash that is kept of them.

The parameters are those that argon2-cffi recommends (RFC 9106, the second choice: 64 MiB, three passes), and a hash
that was made with others is made anew at the next sign-in. This module must not know users.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from services.accounts.errors import PasswordRefusedError

LEAST: Final = 12
MOST_BYTES: Final = 1024
# Each hash takes 64 MiB: more of them at a time would let a few hundred sign-ins fill the memory.
_AT_A_TIME: Final = threading.BoundedSemaphore(4)
_HASHER: Final = PasswordHasher()
# The most used passwords that are long enough, from public lists of leaked ones: beginnings, and what they are made of.
_COMMON: Final = frozenset(
    {
        "123456789012", "1234567890123", "12345678901234", "123456789123", "1234567891011", "0123456789012",
        "987654321098", "111111111111", "000000000000", "123123123123", "121212121212", "112233445566", "1q2w3e4r5t6y",
        "1q2w3e4r5t6y7u", "1qaz2wsx3edc", "1qaz2wsx3edc4rfv", "q1w2e3r4t5y6", "qwertyuiop123", "qwertyuiop12",
        "qwerty123456", "qwerty1234567", "qwertyuiopas", "qwertyuiop[]", "qwertyqwerty", "asdfghjkl123", "zxcvbnm12345",
        "abcdefghijkl", "abcdefghijklm", "abcd12345678", "abc123abc123", "password1234", "password12345",
        "password123456", "passwordpassword", "password123!", "passw0rd1234", "p@ssw0rd1234", "p@ssword1234",
        "iloveyou1234", "iloveyouforever", "letmein12345", "letmeinplease", "administrator", "administrator1",
        "admin1234567", "adminadmin12", "adminadminadmin", "welcome12345", "welcome123456", "changeme1234",
        "changemeplease", "changeitnow1", "correcthorsebatterystaple", "correct horse battery staple", "unknown12345",
        "football1234", "baseball1234", "superman1234", "princess1234", "sunshine1234", "monkey123456", "dragon123456",
        "trustno1trustno1", "gradproof123", "gradproof1234", "gradproofgradproof",
    }
)  # fmt: skip


def judge(password: str, *, name: str) -> None:
    """Raises `PasswordRefusedError` for a password that is too short, too long, or among the first that are guessed.

    There are no rules about kinds of characters: they make passwords that are alike, and hard to keep.
    """
    if len(password) < LEAST:
        raise PasswordRefusedError(f"a password has at least {LEAST} characters", least=LEAST)
    if len(password.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise PasswordRefusedError(f"a password has at most {MOST_BYTES:,} bytes", most=MOST_BYTES)
    plain = password.casefold()
    if plain in _COMMON or len(set(plain)) < 4 or plain == name.casefold():
        raise PasswordRefusedError("this password is among the first that are guessed: take another one")


def hash_password(password: str) -> str:
    """What is kept of a password."""
    with _AT_A_TIME:
        return _HASHER.hash(_encoded(password))


def verify(kept: str | None, password: str) -> bool:
    """Whether this is the password. Without a kept hash it takes as long as with one, and it is not."""
    if len(_encoded(password)) > MOST_BYTES:
        return False
    with _AT_A_TIME:
        try:
            right = _HASHER.verify(kept or _nobodys(), _encoded(password))
        except (VerificationError, InvalidHashError):
            return False
    return right and kept is not None


def is_outdated(kept: str) -> bool:
    """Whether the hash was made with other parameters than the present ones."""
    return _HASHER.check_needs_rehash(kept)


def _encoded(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


@cache
def _nobodys() -> str:
    return _HASHER.hash("nobody's password")
