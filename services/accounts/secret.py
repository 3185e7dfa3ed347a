"""The key under which tokens are hashed: given by the operator, or made once and kept below the data directory.

Whoever steals the database without it can neither use nor test tokens. This module must not know tokens.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from hashlib import sha256
from pathlib import Path

from services.accounts.errors import SecretKeyError
from services.settings import Settings

FILE_NAME = "secret.key"
# 128 bits of hexadecimal text: shorter keys could be searched for.
MINIMUM_LENGTH = 32


def secret_key(settings: Settings) -> bytes:
    """The key in force.

    Raises `SecretKeyError` if the operator's is too short, or the file can't be made, is too short, or can be read by
    others.
    """
    given = settings.secret_key.get_secret_value()
    if given:
        if len(given) < MINIMUM_LENGTH:
            raise SecretKeyError(f"GRADPROOF_SECRET_KEY has fewer than {MINIMUM_LENGTH} characters")
        return given.encode()
    file = settings.data_dir / FILE_NAME
    try:
        return _read(file)
    except FileNotFoundError:
        _make(file)
        return _read(file)


def signing_key(settings: Settings) -> bytes:
    """A key derived for signing what leaves us (session cookies, links): never the key of the token hashes itself."""
    return hmac.new(secret_key(settings), b"gradproof signing key 1", sha256).digest()


def _make(file: Path) -> None:
    """Write a fresh key; of several processes that do so at once, one wins."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(32))
        try:
            os.link(draft, file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as error:
        raise SecretKeyError(f"{file} can't be made: {error.strerror or error}") from error


def _read(file: Path) -> bytes:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SecretKeyError(f"{file} can't be read: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
            raise SecretKeyError(f"{file} can be read by others: `chmod 600` it")
        key = stream.read().strip()
    if len(key) < MINIMUM_LENGTH:
        raise SecretKeyError(f"{file} has fewer than {MINIMUM_LENGTH} characters")
    return key
