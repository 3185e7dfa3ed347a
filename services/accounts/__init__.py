"""Accounts: the API tokens that let a client in."""

from __future__ import annotations

from services.accounts.administration import create_token, ensure_first_token, has_tokens
from services.accounts.secret import signing_key
from services.accounts.service import CreatedToken, Principal, Scope, TokenInfo, TokenService

__all__ = [
    "CreatedToken",
    "Principal",
    "Scope",
    "TokenInfo",
    "TokenService",
    "create_token",
    "ensure_first_token",
    "has_tokens",
    "signing_key",
]
