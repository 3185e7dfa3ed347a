"""Accounts: the API tokens that let a client in."""
