"""An optimizer step between a forward and the backward that still needs the weights of that forward."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.objects import maker
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import dotted_name, parameters
from analyzer.training_steps import Act, Event, Scope, after, before, training_events

_HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
_SETUP = (
    "def fit(gen, disc, real, noise):\n    opt_d = torch.optim.Adam(disc.parameters())\n"
    "    opt_g = torch.optim.Adam(gen.parameters())\n    fake = gen(noise)\n"
)
_FAULTY = (
    "    judged = disc(fake)\n    d_loss = F.softplus(judged).mean() + F.softplus(-disc(real)).mean()\n"
    "    g_loss = F.softplus(-judged).mean()\n    d_loss.backward(retain_graph=True)\n    opt_d.step()\n"
    "    g_loss.backward()\n    opt_g.step()\n"
)
_RIGHT = (
    "    d_loss = F.softplus(disc(fake.detach())).mean() + F.softplus(-disc(real)).mean()\n    d_loss.backward()\n"
    "    opt_d.step()\n    g_loss = F.softplus(-disc(fake)).mean()\n    g_loss.backward()\n    opt_g.step()\n"
)
_STEP = 13
# Chains of assignments longer than this are no training step.
_MAX_NAMES = 60


@dataclass(frozen=True, slots=True)
class _Weights:
    """What an optimizer changes: networks by name, or else single forwards."""

    networks: tuple[str, ...]
    calls: frozenset[ast.Call]

    def hold(self, call: ast.Call) -> bool:
        name = dotted_name(call.func) or ""
        own = "self" in self.networks and name.startswith("self.")
        return own or name in self.networks or call in self.calls


class StepBeforeBackward(Rule):
    """`optimizer.step()` changes weights that a later `backward` of an earlier forward needs."""

    id = "GP414"
    name = "step-before-backward"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    triggers = (".step(",)
    documentation = Documentation(
        what_it_does=(
            "Finds a `backward()` from a loss that was computed through a network before an optimizer of that very "
            "network stepped: in a GAN, both losses first, then the step of the discriminator, then the generator's "
            "backward. Which optimizer holds which network is read from `Adam(disc.parameters())` in the same file."
        ),
        why_is_this_bad=(
            "The step changes the weights in place, and backward needs them as they were: it raises `one of the "
            "variables needed for gradient computation has been modified by an inplace operation`."
        ),
        faulty_example=_HEAD + _SETUP + _FAULTY,
        right_example=_HEAD + _SETUP + _RIGHT,
        fix_safety="No automatic fix: run both backwards before the steps, or the forward again after the step.",
    )
    valid = (
        _HEAD + _SETUP + _RIGHT,
        _HEAD
        + "def fit(net, x, y):\n    opt = torch.optim.SGD(net.parameters(), 0.1)\n    loss = F.mse_loss(net(x), y)\n"
        "    loss.backward()\n    opt.step()\n",
        _HEAD + "def fit(net, xs):\n    opt = torch.optim.SGD(net.parameters(), 0.1)\n    for x in xs:\n"
        "        loss = net(x).sum()\n        loss.backward()\n        opt.step()\n",
        _HEAD + "def fit(a, b, x):\n    opt_a = torch.optim.SGD(a.parameters(), 0.1)\n    one, two = a(x), b(x)\n"
        "    one.sum().backward()\n    opt_a.step()\n    two.sum().backward()\n",
        _HEAD + "def fit(net, x, y, opt):\n    loss = net(x).sum()\n    opt.step()\n    loss.backward()\n",
    )
    invalid = (
        Invalid(_HEAD + _SETUP + _FAULTY, (_STEP,)),
        Invalid(
            _HEAD + "class GAN:\n    def __init__(self, disc):\n        self.disc = disc\n"
            "        self.opt = torch.optim.Adam(self.disc.parameters())\n\n    def fit(self, x):\n"
            "        out = self.disc(x)\n        one, two = out.sum(), out.pow(2).sum()\n"
            "        one.backward(retain_graph=True)\n        self.opt.step()\n        two.backward()\n",
            (14,),
        ),
        Invalid(
            _HEAD + "def fit(gen, disc, opt_d, noise):\n    out = disc(gen(noise))\n"
            "    one, two = out.sum(), out.pow(2).sum()\n    one.backward(retain_graph=True)\n    opt_d.step()\n"
            "    two.backward()\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every step that a later backward of an older loss stands behind."""
        for scope, events in training_events(file).items():
            if isinstance(scope, ast.Module):
                continue
            for step in events:
                if step.act is not Act.STEP:
                    continue
                weights = _Weights(_networks(file, step), frozenset())
                if not weights.networks:
                    weights = _Weights((), _shared_calls(file, scope, step, events))
                late = next(self._late(file, scope, step, events, weights), None)
                if late is not None:
                    backward, call = late
                    network = ast.unparse(call.func)
                    yield Hit(
                        step.call,
                        f"This step changes the weights of `{network}` before `backward` in line "
                        f"{backward.call.lineno}, whose loss went through `{network}` in line {call.lineno}: it "
                        "raises. Run backward first, or the forward again.",
                        hypothesis={"symbol": file.symbol(step.call), "line": step.call.lineno, "network": network},
                        related=((call, "the forward"), (backward.call, "the backward that comes too late")),
                    )

    def _late(
        self,
        file: FileContext,
        scope: Scope,
        step: Event,
        events: Iterable[Event],
        weights: _Weights,
    ) -> Iterator[tuple[Event, ast.Call]]:
        for backward in after(step, events):
            if backward.act is not Act.BACKWARD or backward.subject is None or backward.loop is not step.loop:
                continue
            for call in _calls_behind(file, scope, backward.subject, backward.statement):
                if weights.hold(call) and (call.lineno, call.col_offset) < step.place:
                    yield backward, call


def _networks(file: FileContext, step: Event) -> tuple[str, ...]:
    """The networks whose parameters an optimizer was given."""
    made = maker(file, step.subject) if step.subject is not None else None
    if made is None or not (file.qualified_name(made.func) or "").startswith("torch.optim."):
        return ()
    names = [
        dotted_name(node.func.value)
        for argument in made.args[:1]
        for node in ast.walk(argument)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"
    ]
    return tuple(name for name in names if name is not None)


def _shared_calls(file: FileContext, scope: Scope, step: Event, events: Iterable[Event]) -> frozenset[ast.Call]:
    """What the last backward went through, if an optimizer that was passed in must hold some of it.

    Told only when that backward kept the graph (`retain_graph=True`) for another one to use.
    """
    last = next((event for event in before(step, events) if event.act is Act.BACKWARD), None)
    if last is None or last.subject is None or not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return frozenset()
    keeps_graph = any(keyword.arg == "retain_graph" for keyword in last.call.keywords)
    arguments = {parameter.arg for parameter in parameters(scope)}
    if not keeps_graph or not isinstance(step.subject, ast.Name) or step.subject.id not in arguments:
        return frozenset()
    behind = _calls_behind(file, scope, last.subject, last.statement)
    return frozenset(call for call in behind if dotted_name(call.func) in arguments)


def _calls_behind(file: FileContext, scope: Scope, expression: ast.expr, statement: ast.stmt) -> Iterator[ast.Call]:
    """The calls that a value was computed by, through the assignments of its function; `detach` ends a way."""
    bindings = file.values.bindings(scope) if not isinstance(scope, ast.Lambda) else None
    pending: list[tuple[ast.AST, ast.stmt]] = [(expression, statement)]
    seen: set[ast.AST] = set()
    while pending and len(seen) < _MAX_NAMES:
        node, place = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"detach", "item"}:
            continue
        if isinstance(node, ast.Call):
            yield node
        if isinstance(node, ast.Name) and bindings is not None:
            for binding in bindings.reaching(node.id, place)[0]:
                if binding.value is not None and binding.statement not in seen:
                    seen.add(binding.statement)
                    pending.append((_assigned(binding.value, binding.statement, node.id), binding.statement))
        pending.extend((child, place) for child in ast.iter_child_nodes(node))


def _assigned(value: ast.expr, statement: ast.stmt, name: str) -> ast.expr:
    """`b` for `x` in `x, y = b, c`; the whole value for anything else."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for item, given in zip(target.elts, value.elts, strict=True):
            if isinstance(item, ast.Name) and item.id == name:
                return given
    return value
