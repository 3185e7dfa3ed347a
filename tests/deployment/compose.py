"""Reads docker-compose.yml and docker/Dockerfile the way an engine would, as far as the tests need it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"

# `$$`, `${NAME}`, `${NAME:-default}`, `${NAME:?message}`: the forms of the Compose Specification that we use.
_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>[A-Z_]+)(?::(?P<how>[-?])(?P<rest>[^}]*))?\})")


class MissingVariableError(Exception):
    """A required variable is not set; the message is the one that the file gives."""


def read_compose() -> dict[str, Any]:
    """The file as YAML reads it, anchors and merges resolved, variables untouched."""
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def interpolate(value: Any, variables: Mapping[str, str]) -> Any:
    """Fill in variables as `docker compose` does. Raises `MissingVariableError` for a required one that is not set."""
    if isinstance(value, dict):
        return {key: interpolate(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolate(item, variables) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        found = variables.get(match["name"], "")
        if found or match["how"] is None:
            return found
        if match["how"] == "?":
            raise MissingVariableError(match["rest"])
        return match["rest"]

    return _VARIABLE.sub(replacement, value)


def variables_used() -> dict[str, bool]:
    """Every variable of the file, and whether it is required somewhere."""
    used: dict[str, bool] = {}
    for match in _VARIABLE.finditer(COMPOSE.read_text(encoding="utf-8")):
        if match["name"]:
            used[match["name"]] = used.get(match["name"], False) or match["how"] == "?"
    return used


def dockerfile_instructions() -> list[tuple[str, str]]:
    """Instructions in order, continuation lines joined, comments left out: [("FROM", "… AS builder"), …]."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def dockerfile_stages() -> dict[str, list[tuple[str, str]]]:
    """Instructions by the name of their stage."""
    stages: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for word, rest in dockerfile_instructions():
        if word == "FROM":
            current = rest.split()[-1]
            stages[current] = []
        if current:
            stages[current].append((word, rest))
    return stages


def exec_form(rest: str) -> list[str]:
    """The arguments of a CMD or ENTRYPOINT in exec form."""
    arguments = json.loads(rest)
    assert isinstance(arguments, list)
    return [str(argument) for argument in arguments]


def copied_sources(rest: str) -> list[str]:
    """The sources of a COPY from the build context; empty for a copy out of another stage."""
    words = shlex.split(rest)
    if any(word.startswith("--from=") for word in words):
        return []
    return [word for word in words if not word.startswith("--")][:-1]
