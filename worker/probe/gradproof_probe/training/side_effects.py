"""What calls in evaluation mode do beside returning a result: three calls, and everything compared in between.

Two calls with the same input and other random numbers, then one with another input. This module must not know how a
result is reported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import Verdict
from gradproof_probe.gradients.attribution import Place, calling_line
from gradproof_probe.gradients.replacing import replaced
from gradproof_probe.suspicions.bench import same
from gradproof_probe.training.instances import Change, Instances, moved, outputs_differ
from gradproof_probe.training.plain_state import (
    CARRIED,
    Attribute,
    Leaves,
    changed,
    leaves,
    written,
)
from gradproof_probe.training.random_draws import Draw
from gradproof_probe.training.surroundings import (
    OUTPUT_ARGUMENT,
    SEEDERS,
    SEEDING,
    SETTERS,
    argument_name,
    line_in,
    reseeds,
    same_state,
    seeded,
    settings,
    without_gradients_first,
)
from gradproof_probe.training.watched_calls import Call, watched_call

_ALWAYS_ON: Final = re.compile(
    r"monte.?carlo|(^|[^a-z])mc[_ ]?drop|mcdropout|bayes|always|uncertain|prenet", re.IGNORECASE
)
_DROPPING: Final = re.compile(
    r"drop_?(out|path|block|connect|key|token|channel|layer)|stochastic_?depth", re.IGNORECASE
)
# A running estimate, by its name. Other buffers may be meant to advance with every call.
_ESTIMATE: Final = re.compile(r"running|moving|(^|_)ema(_|$)", re.IGNORECASE)
# What gathers figures over evaluation too.
_GATHERING: Final = re.compile(r"Metric|Observer|Meter|Tracker|Calibrat|Counter|Recorder|FakeQuant|Accumulat|Running")


@dataclass(slots=True)
class _State:
    registered: dict[str, torch.Tensor]
    plain: dict[Attribute, Leaves]


class Evaluation:
    """Three calls of one instance in evaluation mode. Raises what the submitted code raises."""

    def __init__(self, instances: Instances, *, seed: int, input_names: tuple[str, ...]) -> None:
        self._instances = instances
        self._seed = seed
        self._names = input_names
        self._root = instances.source_root
        self._module = instances.fresh()
        self._to_training: list[Place | None] = []
        self._grad_left = self._differentiates = False
        self.evidence: dict[str, Any] = {}

    def run(self) -> Answer:
        def again(before: dict[str, Any]) -> Answer:
            self._module, self._differentiates = self._instances.fresh(), True
            return self._run(before)

        return without_gradients_first(self._run, again)

    def _run(self, before: dict[str, Any]) -> Answer:
        effect: Answer | None
        states = [self._state()]
        modes = [item.training for item in self._module.modules()]
        calls: list[Call] = []
        with self._watching_modes():
            for draw, change in ((0, None), (1, None), (2, moved)):
                calls.append(self._call_or_repeat(draw, change))
                states.append(self._state())
                effect = self._global_effect(before, modes)
                if effect is not None:
                    return effect
        for judge in (self._reseeded, self._written_inputs, self._random, self._kept):
            effect = judge(calls, states)
            if effect is not None:
                return effect
        return Answer("pass", "equal", "calls in evaluation mode give the same and leave everything as it was")

    def _call_or_repeat(self, draw: int, change: Change | None) -> Call:
        """Other values may be outside of what the code accepts: then the same again."""
        if change is None:
            return self._call(draw, None)
        try:
            return self._call(draw, change)
        except Exception:
            return self._call(draw, None)

    def _call(self, draw: int, change: Change | None) -> Call:
        # The last call with gradients on: one that switches them off for good would not be seen otherwise.
        gradients = self._differentiates or draw == 2
        given = self._instances.arguments(change=change)
        call = watched_call(self._module, given, self._root, seed=self._seed + 100 + draw, gradients=gradients)
        self._grad_left = call.grad_left
        return call

    def _state(self) -> _State:
        registered = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        return _State({name: value.detach().clone() for name, value in registered.items()}, leaves(self._module))

    @contextmanager
    def _watching_modes(self) -> Iterator[None]:
        original = torch.nn.Module.train

        def train(module: torch.nn.Module, *mode: bool, **named: bool) -> torch.nn.Module:
            if all([*mode, *named.values()]):
                self._to_training.append(calling_line(self._root))
            return original(module, *mode, **named)

        with replaced(torch.nn.Module, "train", train):
            yield

    # --- what every call does to its surroundings ---

    def _global_effect(self, before: dict[str, Any], modes: list[bool]) -> Answer | None:
        switched = [
            name
            for (name, item), mode in zip(self._module.named_modules(), modes, strict=False)
            if item.training and not mode
        ]
        if switched:
            place = next((place for place in self._to_training if place is not None), None)
            names = ", ".join(name or "the module itself" for name in switched[:3])
            text = f"a call in evaluation mode puts {names} into training mode"
            if self._is_meant(place, _ALWAYS_ON):
                return Answer("inconclusive", "random_on_purpose", f"{text}, as its name says", place)
            return Answer("fail", "mode_changed", text, place, {"modules": switched[:8]})
        if self._grad_left:
            place = self._mentioned(("set_grad_enabled", "_set_grad_enabled", "__enter__"))
            text = "a call leaves gradients switched on or off for everything that runs after it"
            return Answer("fail", "grad_mode_changed", text, place)
        now = settings()
        for name, was in before.items():
            if now[name] != was:
                place = self._mentioned(SETTERS)
                text = f"after a call {name.replace('_', ' ')} is {now[name]} for the whole process; it was {was}"
                return Answer("fail", "setting_changed", text, place, {"setting": name})
        return None

    def _reseeded(self, calls: list[Call], _: list[_State]) -> Answer | None:
        name = seeded(calls[0].generators_before, calls[0].generators, calls[1].generators)
        if name is None:
            return None
        meant = SEEDING.search(type(self._module).__name__) is not None
        verdict: Verdict = "inconclusive" if meant else "fail"
        place = self._mentioned(SEEDERS)
        return Answer(verdict, "generator_reseeded", reseeds(name), place, {"generator": name})

    def _written_inputs(self, calls: list[Call], _: list[_State]) -> Answer | None:
        by_option: list[str] = []
        for path, tensor in calls[0].written_inputs:
            name = argument_name(path, self._names)
            write = calls[0].watch.writes.get(tensor.untyped_storage().data_ptr())
            if CARRIED.search(name) or OUTPUT_ARGUMENT.search(name) or write is None or write.by_option:
                by_option.append(name)
                continue
            text = (
                f"a call writes to its argument {name} ({write.operation}): the caller's tensor is another afterwards"
            )
            numbers = {"argument": name}
            if self._instances.is_part():
                text = f"{text}; as a part of another class it may be given what nobody else needs"
                return Answer("inconclusive", "input_written", text, write.place, numbers)
            return Answer("fail", "input_written", text, write.place, numbers)
        if by_option:
            self.evidence["written_by_option"] = by_option[:8]
        return None

    # --- random numbers ---

    def _random(self, calls: list[Call], _: list[_State]) -> Answer | None:
        draws = calls[0].watch.draws
        drew = draws or any(
            a is not None and not same_state(a, b)
            for a, b in zip(calls[0].generators, calls[0].generators_before, strict=True)
        )
        what = outputs_differ(calls[0].outputs, calls[1].outputs, tolerance=1e-6)
        if not what or not drew:
            return None
        # The same random numbers again: what differs then isn't random, or not only.
        repeated = self._instances.fresh()
        again = [self._instances.call(repeated, draw=draw) for draw in (0, 0)]
        only_random = not outputs_differ(again[0], again[1], tolerance=1e-6)
        self.evidence["draws"] = sorted({draw.operation for draw in draws})
        again_text = f"{what} of the same input differs from call to call in evaluation mode"
        dropout = [draw for draw in draws if draw.is_dropout and draw.place is not None]
        if only_random and dropout:
            return self._dropout(dropout[0], again_text)
        by_hand = [draw for draw in draws if _DROPPING.search(draw.function) or _DROPPING.search(draw.owner)]
        if only_random and by_hand and len(by_hand) == len(draws) and not self._is_meant(by_hand[0].place, _ALWAYS_ON):
            draw = by_hand[0]
            name = draw.owner or draw.function
            text = f"{name} drops by random numbers in evaluation mode too ({draw.operation}): {again_text}"
            return Answer("fail", "dropout_in_eval", text, draw.place, {"operation": draw.operation})
        place = draws[0].place if draws else None
        names = ", ".join(sorted({draw.operation for draw in draws})) or "random numbers"
        return Answer("inconclusive", "random_in_eval", f"it draws in evaluation mode ({names}): {again_text}", place)

    def _dropout(self, draw: Draw, again: str) -> Answer:
        numbers = {"operation": draw.operation}
        registered = {id(item) for item in self._module.modules()}
        if self._is_meant(draw.place, _ALWAYS_ON) or self._says_training(draw):
            text = f"{draw.operation} is on in evaluation mode, as it is written: {again}"
            return Answer("inconclusive", "random_on_purpose", text, draw.place, numbers)
        if draw.layer is not None and "dropout" in type(draw.layer).__module__:
            kind = type(draw.layer).__name__
            if id(draw.layer) in registered:
                text = f"a {kind} of the module stays in training mode after eval(): {again}"
                return Answer("inconclusive", "kept_in_training", text, draw.place, numbers)
            text = (
                f"this {kind} is no submodule (made in forward, or kept in a plain list), so eval() does not reach it "
                f"and it stays on: {again}"
            )
            return Answer("fail", "dropout_out_of_reach", text, draw.place, numbers)
        text = (
            f"{draw.operation} is on whatever the mode is; it is not given `training=self.training` (attention: "
            f"`dropout_p=0.0` in evaluation): {again}"
        )
        return Answer("fail", "dropout_in_eval", text, draw.place, numbers)

    def _says_training(self, draw: Draw) -> bool:
        """Whether the call itself says True: `F.dropout(x, 0.5, True)`, `training=True`."""
        if draw.place is None or draw.layer is not None:
            return False
        for node in _calls(self._root / draw.place.path):
            if not node.lineno <= draw.place.line <= (node.end_lineno or node.lineno):
                continue
            if not re.search(r"dropout|rrelu", _terminal(node.func)):
                continue
            literal = [item.value for item in node.keywords if item.arg in ("training", "train")] + node.args[2:4]
            if any(isinstance(item, ast.Constant) and item.value is True for item in literal):
                return True
        return False

    # --- what the module keeps ---

    def _kept(self, calls: list[Call], states: list[_State]) -> Answer | None:
        before, once, twice, thrice = states
        parameters = dict(self._module.named_parameters())
        moving = [
            name
            for name, value in before.registered.items()
            if name in thrice.registered
            and value.shape == thrice.registered[name].shape
            and not (_still(once, twice, name) and _still(twice, thrice, name))
        ]
        started = [name for name, value in before.registered.items() if not _still(before, once, name)]
        for name in moving:
            owner, _, short = name.rpartition(".")
            holder = self._module.get_submodule(owner)
            gathers = any(_GATHERING.search(type(item).__name__) for item in (self._module, holder))
            place = written(holder, short, self._root)
            numbers = {"tensors": moving[:8]}
            if name in parameters and not gathers:
                text = f"every call in evaluation mode changes the parameter {name}"
                return Answer("fail", "parameter_changed", text, place, numbers)
            statistic = _ESTIMATE.search(short) and not CARRIED.search(short)
            if statistic and short not in holder._non_persistent_buffers_set and not gathers:
                text = f"calls in evaluation mode go on moving {name}: evaluating changes what is saved and computed"
                return Answer("fail", "statistic_moves_in_eval", text, place, numbers)
        what = outputs_differ(calls[0].outputs, calls[1].outputs, tolerance=1e-6)
        attributes = [str(item) for item in changed(once.plain, twice.plain)]
        grown = _grown(states)
        if grown:
            self.evidence["growing"] = grown[:8]
        if started or moving or attributes:
            self.evidence["changed"] = [*dict.fromkeys([*started, *moving]), *attributes][:12]
        if what:
            names = ", ".join([*moving, *attributes][:3]) or "nothing that was found"
            text = (
                f"{what} of the same input differs from call to call; {names} changes with each: a state that advances"
            )
            return Answer("inconclusive", "state_advances", text, None, {"changed": [*moving, *attributes][:8]})
        return None

    def _is_meant(self, place: Place | None, words: re.Pattern[str]) -> bool:
        """Whether the target, or the definition around a line, is called so."""
        named = [type(item).__name__ for item in self._module.modules()]
        return any(words.search(text) for text in [*named, *_around(self._root, place)])

    def _mentioned(self, words: tuple[str, ...]) -> Place | None:
        """The first line of the submitted classes of the module that has one of these names."""
        for item in self._module.modules():
            for base in type(item).__mro__:
                found = line_in(base, words, self._root)
                if found is not None:
                    return found
        return None


def _grown(states: list[_State]) -> list[str]:
    found = []
    for attribute, held in states[-1].plain.items():
        for path, value in held.items():
            lengths = [state.plain.get(attribute, {}).get(path) for state in states]
            if path.startswith("len(") and isinstance(value, int) and _rising(lengths):
                found.append(str(attribute))
                break
    return found


def _rising(values: list[Any]) -> bool:
    return all(isinstance(v, int) for v in values) and all(a < b for a, b in pairwise(values))


def _still(first: _State, second: _State, name: str) -> bool:
    a, b = first.registered.get(name), second.registered.get(name)
    return a is None or b is None or same(a, b)


def _around(source_root: Path, place: Place | None) -> list[str]:
    """The names of the classes and functions around a line."""
    if place is None:
        return []
    try:
        tree = ast.parse((source_root / place.path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]


def _calls(file: Path) -> list[ast.Call]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _terminal(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
