"""`python -m api.cli`: the `gradproof` command where its script is not on the path."""

from __future__ import annotations

from api.cli.main import main

main()
