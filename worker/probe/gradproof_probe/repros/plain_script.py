"""The frame of a script that shows a failure: it builds and calls the target as the harness did, and compares.

A body stands between the head and the tail; it calls `report` with what was expected and what it got. The script needs
torch and the repository alone. This module must not know checks or causes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.lines import REPRO
from gradproof_probe.repros.case import printable
from gradproof_probe.repros.script_texts import EACH, RESEED, TAIL
from gradproof_probe.request import Target

_HEAD: Final = '''"""{summary}

Run it with the root of the repository as argument (or from there): python repro.py [ROOT]
It ends with status 1 if the failure shows, 0 if it doesn't, 2 if it can't run.
"""
import importlib
import os
import random
import sys
import traceback
import warnings

import torch

sys.path.insert(0, os.path.join(sys.argv[1] if len(sys.argv) > 1 else ".", {import_root!r}))
warnings.simplefilter("ignore")
SEED = {seed}


def names():
    """What the expressions below are evaluated in: the names of the module, and torch."""
    module = importlib.import_module({module!r})
    known = {{**vars(module), "torch": torch, "arguments": lambda *args, **kwargs: (list(args), kwargs)}}
    known.setdefault({last!r}, eval({qualname!r}, known))
    return known


{reseed}

{make}

def inputs(change=None, seed=SEED):
    """Arguments and keyword arguments, the same ones every time; `change` is applied to each floating tensor."""
    reseed(seed + 1)
    args, kwargs = eval("arguments(" + {inputs!r} + ")", names())
    change = change or (lambda tensor: tensor)
    return each((args, kwargs), lambda t: change(t) if t.is_floating_point() else t)


def mode(target, training):
    """The target in this mode, where it has modes."""
    return target.train(training) if isinstance(target, torch.nn.Module) else target


{each}

def tensors(value):
    """Every tensor in it, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, (list, tuple)):
        own = list(getattr(value, "__dict__", {{}}).values())
        value = own if any(isinstance(item, torch.Tensor) for item in own) else []
    return [tensor for item in value for tensor in tensors(item)]


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def random_like(values, seed=7):
    """Random weights of outputs, so that no error cancels in a sum."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(v.shape, generator=generator, dtype=torch.float64).to(v) for v in values]


def apart(first, second):
    """The largest relative difference between tensors of two lists; infinite where they don't match."""
    if [t.shape for t in first] != [t.shape for t in second]:
        return float("inf")
    worst = 0.0
    for a, b in zip(first, second):
        a, b = a.detach().double().nan_to_num(), b.detach().double().nan_to_num()
        if not torch.equal(a, b):
            worst = max(worst, float((a - b).norm() / max(float(a.norm()), 1e-30)))
    return worst


def report(what, expected, got, *, failed):
    print(what)
    print("  expected:", expected)
    print("  got:     ", got)
    sys.stdout.flush()
    sys.exit(1 if failed else 0)
'''
_MAKE: Final = '''def make(seed=SEED):
    """The target; if it is a module, a new instance."""
    reseed(seed)
    return eval({target!r}, names())

'''
_MAKE_WITH_ARGUMENTS: Final = '''def make(seed=SEED):
    """A new instance. What the caller hands to the constructor is the same with every seed."""
    known = names()
    reseed(SEED)
    if seed == SEED:
        return eval({target!r}, known)
    args, kwargs = eval("arguments(" + {given!r} + ")", known)
    reseed(seed)
    return eval({called!r}, known)(*args, **kwargs)

'''
_DRAWS: Final = re.compile(r"rand|normal|bernoulli|multinomial|empty|poisson")


def plain_script(
    target: Target,
    recipe: Recipe,
    *,
    seed: int,
    summary: str,
    body: str,
    constants: Mapping[str, Any] | None = None,
) -> str | None:
    """`body` defines `main`; `constants` are names that it uses. None if it is longer than a report may hold.

    Nothing of the repository is imported before `main` runs."""
    head = _HEAD.format(
        summary=printable(f"{target.name}: {summary}"),
        import_root=target.import_root or ".",
        module=target.module,
        seed=seed,
        qualname=target.qualname,
        last=target.qualname.rpartition(".")[2],
        make=_make(target_expression(target, recipe)),
        inputs=", ".join(recipe.inputs),
        reseed=RESEED,
        each=EACH,
    )
    named = "".join(f"{name} = {value!r}\n" for name, value in (constants or {}).items())
    parts = [head.rstrip("\n"), named.rstrip("\n"), body.strip("\n")]
    script = "\n\n\n".join(part for part in parts if part) + "\n\n\n" + TAIL
    return script if len(script) <= REPRO else None


def target_expression(target: Target, recipe: Recipe) -> str:
    """What is called: an instance of a module, `apply` of a Function, or the function itself."""
    if target.kind == "module":
        return recipe.constructor or f"{target.qualname}()"
    return f"{target.qualname}.apply" if target.kind == "autograd_function" else target.qualname


def _make(expression: str) -> str:
    """Where the constructor is given random tensors, they have to be the same for all instances."""
    try:
        tree = ast.parse(expression, mode="eval").body
    except SyntaxError:
        return _MAKE.format(target=expression)
    if not isinstance(tree, ast.Call) or not _DRAWS.search(expression):
        return _MAKE.format(target=expression)
    given = [ast.unparse(item) for item in tree.args]
    given += [f"{item.arg}={ast.unparse(item.value)}" if item.arg else f"**{ast.unparse(item.value)}"
              for item in tree.keywords]  # fmt: skip
    return _MAKE_WITH_ARGUMENTS.format(given=", ".join(given), called=ast.unparse(tree.func), target=expression)
