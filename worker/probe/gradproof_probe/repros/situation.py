"""The script that shows a wrong gradient in the situation in which it was found.

It builds the target as the harness did, puts it into the situation with the very functions of the engine, and prints
two numbers for one coordinate: what autograd returns there, and a reference.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Mapping
from types import FunctionType
from typing import Any, Final

import torch

from gradproof_probe.gradients import making, subject
from gradproof_probe.gradients.situations import Situation
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.lines import REPRO
from gradproof_probe.repros import comparing, pieces
from gradproof_probe.repros.calling import incoming_text, inputs_text, special_text, target_text
from gradproof_probe.repros.case import Case, literal, printable
from gradproof_probe.repros.script_texts import TAIL
from gradproof_probe.repros.sources import source_of
from gradproof_probe.request import Target

# Causes that are about what backward writes to, not about one coordinate.
WRITES: Final = ("grad_output_mutated", "saved_tensor_mutated", "backward_not_repeatable")

# Fields of a situation that a script can repeat. One that isn't among them gets no script rather than a wrong one.
KNOWN: Final = frozenset(
    (
        *("values", "resize", "rank", "rank_of", "broadcast", "others", "input_layout", "cotangent", "wanted", "dtype"),
        *("dtype_of", "autocast", "alias", "sequence", "written", "arguments", "flags"),
    )
)

_HEAD: Final = '''"""{summary}

{words}. Found with torch {version}, seed {seed}. It needs torch and the repository, nothing else:

    python repro.py [ROOT OF THE REPOSITORY]

It prints two numbers and ends with status 1 if they differ, 0 if they don't, 2 if it can't run.
"""
from __future__ import annotations

import importlib
{before}import os
import random
import sys
{after}import traceback

import torch

sys.path.insert(0, os.path.join(sys.argv[1] if len(sys.argv) > 1 else ".", {import_root!r}))
SEED = {seed}
torch.set_default_dtype(torch.{dtype})


def names():
    """What the expressions below are evaluated in: the names of the module, and torch."""
    module = importlib.import_module({module!r})
    return {{**vars(module), "torch": torch, "arguments": lambda *args, **kwargs: (list(args), kwargs)}}


def report(what, expected, got, *, failed):
    print(what)
    print("  expected:", expected)
    print("  got:     ", got)
    sys.exit(1 if failed else 0)
'''


def situation_repro(
    target: Target,
    recipe: Recipe,
    *,
    seed: int,
    summary: str,
    situation: Situation,
    cause: str,
    worst: Mapping[str, Any] | None,
    second_order: bool = False,
    single: bool = False,
    inside: type | None = None,
) -> str | None:
    """The script, or None where the situation can't be written down within the limit of characters.

    `worst`: `ordinal` (number of the variable) and `index`, as shown in the report; without it the script looks for the
    coordinate itself, or takes all at once. `single`: the target can't run in float64. `inside`: the situation is one
    of a Function that the target goes through, with the arguments that the target gives it.
    """
    if not KNOWN.issuperset(situation.changed()) or any(literal(value) is None for _, value in situation.arguments):
        return None
    if worst is not None and worst.get("kind") == "parameter":
        return None  # a situation is one of a call's arguments
    if inside is not None and "<" in inside.__qualname__:
        return None  # made inside a function: no other module can reach it
    within = None if inside is None else (inside.__module__, inside.__qualname__)
    case = Case(target, recipe, seed, summary, situation, cause, worst, second_order, single, within)
    body = _body(case)
    head = _HEAD.format(
        summary=printable(f"{target.name}: {summary}"),
        words=printable((situation.describe() or "in the ordinary call").capitalize()),
        version=torch.__version__,
        seed=seed,
        import_root=target.import_root or ".",
        dtype=case.base,
        module=target.module,
        before="import inspect\n" if "recorded(" in body else "",
        after="import threading\n" if "in_another_thread(" in body else "",
    )
    script = "\n\n".join((head, _sources(body), body, TAIL))
    return script if len(script) <= REPRO else None


def _body(case: Case) -> str:
    parts = [target_text(case), inputs_text(case), incoming_text(case)]
    if case.second_order:
        parts.append(comparing.main_of_second_order(case))
    elif case.cause == "input_mutated":
        parts.append(comparing.main_of_mutated_input(case))
    elif case.cause == "batched":
        parts.append(comparing.main_of_batched(case))
    elif case.cause == "forward_mode":
        parts += [special_text(case), comparing.main_of_forward_mode(case)]
    elif case.cause in WRITES:
        parts += [special_text(case, watched=True), comparing.main_of_writing(case)]
    elif case.cause.endswith("_raises"):
        parts += [special_text(case), comparing.main_of_raising(case)]
    elif case.same_call:
        parts += [special_text(case), comparing.plain_text(case), comparing.main_of_same_call(case)]
    else:
        parts += [special_text(case), comparing.main_of_differences(case)]
    return "\n\n".join(parts)


def _sources(body: str) -> str:
    """The functions that the body uses."""
    tokens = tokenize.generate_tokens(io.StringIO(body).readline)
    names = {token.string for token in tokens if token.type == tokenize.NAME}
    used = [
        value
        for module in (making, subject, pieces)
        for name, value in vars(module).items()
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and name in names
    ]
    return source_of(*used)
