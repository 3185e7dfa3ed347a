"""Hand-written checkpointing: functions that run their body once more in the backward.

This module must not judge functions that evaluate something else in the backward, such as solvers of adjoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import parameters, terminal_name

_HEAD = "import torch\n\n\n"
_CLASS = (
    "class Recompute(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, run, x):\n"
    "        ctx.run = run\n        ctx.save_for_backward(x)\n{0}        with torch.no_grad():\n"
    "            return run(x)\n\n"
    "    @staticmethod\n    def backward(ctx, grad):\n        (x,) = ctx.saved_tensors\n"
    "        x = x.detach().requires_grad_()\n{1}        with torch.enable_grad():\n            y = ctx.run(x)\n"
    "        return None, torch.autograd.grad(y, x, grad)[0]\n"
)
_LINE = 17


class RecomputedWithOtherRandomNumbers(Rule):
    """A custom Function that runs its body again in the backward, and restores no random state."""

    id = "GP807"
    name = "recomputed-with-other-random-numbers"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
    triggers = ("enable_grad",)
    documentation = Documentation(
        what_it_does=(
            "Finds custom autograd Functions that run a function they were given in `forward` without recording, and "
            "run it again in `backward` under `torch.enable_grad()`, and that nowhere keep the random state."
        ),
        why_is_this_bad=(
            "Dropout and every other random layer in the function draw new numbers in the second run: the gradient is "
            "that of another network than the one whose output was used."
        ),
        faulty_example=_HEAD + _CLASS.format("", ""),
        right_example=_HEAD
        + _CLASS.format("        ctx.state = torch.get_rng_state()\n", "        torch.set_rng_state(ctx.state)\n"),
        fix_safety=(
            "No automatic fix: `torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)` does the same and "
            "keeps the random states of all devices."
        ),
    )
    valid = (
        documentation.right_example,
        # something else is evaluated in the backward
        _HEAD + _CLASS.format("", "").replace("return run(x)", "return integrate(run, x)"),
        _HEAD + _CLASS.format("", "").replace("ctx.run(x)", "ctx.other(x)"),
        _HEAD + _CLASS.format("", "").replace("torch.autograd.Function", "Base"),
    )
    invalid = (
        Invalid(documentation.faulty_example, (_LINE,)),
        Invalid(
            _HEAD + _CLASS.format("", "").replace("y = ctx.run(x)", "run = ctx.run\n            y = run(x)"),
            (_LINE + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for owner in file.nodes(ast.ClassDef):
            if not any((file.qualified_name(base) or "").startswith("torch.autograd.") for base in owner.bases):
                continue
            text = file.source(owner)
            if "enable_grad" not in text or "rng_state" in text or "fork_rng" in text:
                continue
            methods = {item.name: item for item in owner.body if isinstance(item, ast.FunctionDef)}
            if "forward" in methods and "backward" in methods:
                yield from self._again(file, methods["forward"], methods["backward"])

    def _again(self, file: FileContext, forward: ast.FunctionDef, backward: ast.FunctionDef) -> Iterable[Hit]:
        given = {parameter.arg for parameter in parameters(forward)}
        run = {
            call.func.id: call
            for call in file.nodes_in(forward, ast.Call)
            if isinstance(call.func, ast.Name) and call.func.id in given and file.grad_disabled(call)
        }
        kept = {
            target.attr: assignment.value.id
            for assignment in file.nodes_in(forward, ast.Assign)
            for target in assignment.targets
            if isinstance(target, ast.Attribute)
            and isinstance(assignment.value, ast.Name)
            and assignment.value.id in run
        }
        for call in file.nodes_in(backward, ast.Call):
            function: ast.expr = call.func
            if isinstance(function, ast.Name):
                function = file.values.single_definition(function) or function
            attribute = function.attr if isinstance(function, ast.Attribute) else ""
            if attribute in kept and _is_recorded(file, call):
                yield Hit(
                    call,
                    "This runs the function a second time, with other random numbers than the first: with dropout in "
                    "it the gradient belongs to another output. Keep and restore the random state, or use "
                    "`torch.utils.checkpoint`.",
                    related=((run[kept[attribute]], "the first run"),),
                )


def _is_recorded(file: FileContext, call: ast.Call) -> bool:
    return any(
        isinstance(outer, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call) and terminal_name(item.context_expr.func) == "enable_grad"
            for item in outer.items
        )
        for outer in file.ancestors(call)
    )
