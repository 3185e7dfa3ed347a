"""Accounts: who there is, how they prove it, and what they may do."""

from __future__ import annotations

from services.accounts.access import SYSTEM, Permission, Role, Subject
from services.accounts.administration import create_token, ensure_first_token, is_anybody_let_in
from services.accounts.secret import signing_key
from services.accounts.service import CreatedToken, Scope, TokenInfo, TokenService

__all__ = [
    "SYSTEM",
    "CreatedToken",
    "Permission",
    "Role",
    "Scope",
    "Subject",
    "TokenInfo",
    "TokenService",
    "create_token",
    "ensure_first_token",
    "is_anybody_let_in",
    "signing_key",
]
