"""What a call finds around itself: the global random generators, the settings of the process, the caller's arguments.

A call should leave them as they were. This module only reads and puts back; it must not judge.
"""

from __future__ import annotations

import ast
import inspect
import random
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import torch

from gradproof_probe.gradients.attribution import Place, relative

# The functions and flags that change them, as they stand in source.
SETTERS: Final = (
    "set_default_dtype",
    "set_default_tensor_type",
    "set_float32_matmul_precision",
    "use_deterministic_algorithms",
    "allow_tf32",
    "benchmark",
    "deterministic",
)
Said = TypeVar("Said")
Settings: TypeAlias = dict[str, Any]
SEEDERS: Final = ("manual_seed", "seed", "seed_all", "seed_everything", "set_seed")
GENERATORS: Final = ("torch", "random", "numpy")
# What seeds on purpose, by its name; and an argument that is there to be written to.
SEEDING: Final = re.compile(r"seed|determin|reproduc", re.IGNORECASE)
_DIFFERENTIATES: Final = re.compile(r"does not require grad|no_grad mode")
OUTPUT_ARGUMENT: Final = re.compile(r"^out(put)?s?$|accum|workspace", re.IGNORECASE)


def generators() -> tuple[Any, ...]:
    """The state of each of `GENERATORS`; None of one that nobody has imported."""
    numpy = sys.modules.get("numpy")
    place = None if numpy is None else numpy.random.get_state(legacy=False)["state"]
    return (
        torch.random.get_rng_state(),
        random.getstate(),
        None if place is None else (place["key"].tobytes(), place["pos"]),
    )


def same_state(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return bool(torch.equal(first, second))
    return bool(first == second)


def seeded(before: tuple[Any, ...], first: tuple[Any, ...], second: tuple[Any, ...]) -> str | None:
    """The generator that stands at the same after two calls that began at different numbers: the call seeds it.

    `before`: as it was before the first call.
    """
    for name, old, a, b in zip(GENERATORS, before, first, second, strict=True):
        if a is not None and b is not None and same_state(a, b) and not same_state(a, old):
            return name
    return None


def reseeds(generator: str) -> str:
    return (
        f"whatever the generator of {generator} stood at, it stands at the same after each call: the call seeds it, "
        "and what is drawn afterwards is the same every time, for the whole process"
    )


def settings() -> Settings:
    return {
        "default_dtype": torch.get_default_dtype(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
    }


def restore(before: Settings) -> None:
    torch.set_default_dtype(before["default_dtype"])
    torch.set_float32_matmul_precision(before["matmul_precision"])
    if torch.are_deterministic_algorithms_enabled() != before["deterministic_algorithms"]:
        torch.use_deterministic_algorithms(before["deterministic_algorithms"])  # imports the compiler: 1.5 s
    # Only what differs: torch refuses to be told the same where somebody froze these flags.
    for name in ("benchmark", "deterministic"):
        if getattr(torch.backends.cudnn, name) != before[f"cudnn_{name}"]:
            setattr(torch.backends.cudnn, name, before[f"cudnn_{name}"])


def without_gradients_first(run: Callable[[Settings], Said], again: Callable[[Settings], Said]) -> Said:
    """What `run` says, or `again` where the code differentiates inside, which torch refuses under no_grad.

    Both are given the settings of the process, which are as they were afterwards.
    """
    before = settings()
    try:
        return run(before)
    except RuntimeError as error:
        if not _DIFFERENTIATES.search(str(error)):
            raise
        return again(before)
    finally:
        restore(before)


def argument_name(path: str, names: Sequence[str]) -> str:
    """Of a path in [args, kwargs]: `[0][1]` is the second positional argument, `[1]['mask']` the keyword."""
    match = re.match(r"\[(\d)\]\[(?:(\d+)|'(\w+)')\]", path)
    if match is None:
        return path
    if match[3]:
        return match[3]
    number = int(match[2])
    return names[number] if number < len(names) else f"argument {number}"


def line_in(definition: Any, words: Sequence[str], source_root: Path) -> Place | None:
    """The first line of a submitted class or function that has one of these names."""
    try:
        lines, start = inspect.getsourcelines(definition)
        path = relative(inspect.getsourcefile(definition) or "", source_root)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if path is None:
        return None
    found = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in words) or (isinstance(node, ast.Name) and node.id in words)
    ]
    return Place(path, start - 1 + min(found)) if found else None
