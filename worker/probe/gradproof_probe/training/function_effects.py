"""What calls of a function do beside returning a result: to their arguments, to what is global, to the next call.

A function has no mode and no state of its own, so that what is kept must be kept outside of it. This module must not
know how a result is reported.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from gradproof_probe.checks.answer import Answer
from gradproof_probe.checks.base import CheckContext, Verdict
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import caller
from gradproof_probe.training.batch_words import words_beside
from gradproof_probe.training.instances import Instances, moved, outputs_differ
from gradproof_probe.training.plain_state import CARRIED, STATISTIC
from gradproof_probe.training.shared_state import Kept, SharedState, written_at
from gradproof_probe.training.submitted_source import is_called_elsewhere
from gradproof_probe.training.surroundings import (
    OUTPUT_ARGUMENT,
    SEEDERS,
    SEEDING,
    SETTERS,
    argument_name,
    line_in,
    reseeds,
    seeded,
    settings,
    without_gradients_first,
)
from gradproof_probe.training.watched_calls import Call, memory, watched_call

# Names of functions that are there to change what they are given, and words for it beside the code.
_CHANGING: Final = re.compile(
    r"_$|in_?place|update|(^|_)(step|init|fill|reset|set|assign|copy|accum\w*|ema|add|clip|clamp|zero|scatter|write|store"
    r"|push|swap|sync|load|perturb|mutate|modify|normalize|apply|freeze|mask|drop|prune|corrupt|augment)(_|$)",
    re.IGNORECASE,
)
_SAYS_SO: Final = re.compile(r"in[- ]?place|overwrit|modif(y|ies)|mutat|writes? (in)?to|side[- ]effect", re.IGNORECASE)
_SUCH_ARGUMENT: Final = re.compile(
    r"param|weight|grad|model|target|dest|(^|_)dst(_|$)|exp_avg|moment|buf|scratch|(^|_)y(_|$)|inout", re.IGNORECASE
)
_SETTING: Final = re.compile(r"seed|set_|config|precision|determin|default|enable|disable|setup|init", re.IGNORECASE)
_BY_FIRST_CALL: Final = re.compile(r"first|calib|warm|observ|initial|reference|baseline|frozen|centre|center", re.I)


class FunctionEffects:
    """Three calls of one function, more where it keeps anything. Raises what the submitted code raises."""

    def __init__(self, context: CheckContext, instances: Instances, *, input_names: tuple[str, ...]) -> None:
        self._resolved = context.resolved
        self._instances = instances
        self._seed = context.seed
        self._names = input_names
        self._root = context.source_root
        self._run = caller(context.resolved, None)
        self._name = context.resolved.target.qualname.rpartition(".")[2]
        self._differentiates = False
        self.evidence: dict[str, Any] = {}

    def run(self) -> Answer:
        def again(before: dict[str, Any]) -> Answer:
            self._differentiates = True
            return self._compared(before)

        return without_gradients_first(self._compared, again)

    def _compared(self, before: dict[str, Any]) -> Answer:
        state = SharedState(self._resolved.value, self._resolved.module)
        calls = []
        try:
            for draw, other in ((0, False), (1, False), (2, True)):
                calls.append(self._call_or_repeat(draw, other=other))
                found = self._global_effect(calls[-1], before)
                if found is not None:
                    return found
            return (
                self._reseeded(calls)
                or self._written_inputs(calls[0])
                or self._depends_on_earlier_calls(calls, state)
                or Answer("pass", "equal", "calls change neither their arguments nor anything else")
            )
        finally:
            state.put_back()

    def _call_or_repeat(self, draw: int, *, other: bool) -> Call:
        """Other values may be outside of what the code accepts: then the same again."""
        try:
            return self._call(draw, other=other)
        except Exception:
            if not other:
                raise
            return self._call(draw, other=False)

    def _call(self, draw: int, *, other: bool) -> Call:
        # The last call with gradients on: one that switches them off for good would not be seen otherwise.
        gradients = self._differentiates or draw == 2
        given = self._instances.arguments(change=moved if other else None)
        return watched_call(self._run, given, self._root, seed=self._seed + 100 + draw, gradients=gradients)

    # --- what belongs to the whole process ---

    def _global_effect(self, call: Call, before: dict[str, Any]) -> Answer | None:
        verdict: Verdict = "inconclusive" if _SETTING.search(self._name) else "fail"
        if call.grad_left:
            place = self._line(("set_grad_enabled", "_set_grad_enabled", "__enter__"))
            text = "a call leaves gradients switched on or off for everything that runs after it"
            return Answer(verdict, "grad_mode_changed", text, place)
        now = settings()
        for name, was in before.items():
            if now[name] != was:
                text = f"after a call {name.replace('_', ' ')} is {now[name]} for the whole process; it was {was}"
                return Answer(verdict, "setting_changed", text, self._line(SETTERS), {"setting": name})
        return None

    def _reseeded(self, calls: list[Call]) -> Answer | None:
        name = seeded(calls[0].generators_before, calls[0].generators, calls[1].generators)
        if name is None:
            return None
        asked = next((item for item in [self._name, *self._names] if SEEDING.search(item)), "")
        text = reseeds(name)
        if asked:
            text = f"{text}, as the name {asked!r} tells"
        verdict: Verdict = "inconclusive" if asked else "fail"
        return Answer(verdict, "generator_reseeded", text, self._line(SEEDERS), {"generator": name})

    # --- arguments ---

    def _written_inputs(self, call: Call) -> Answer | None:
        if self._resolved.target.kind == "autograd_function":
            return None  # gradcheck knows what a Function may write to: it asks for mark_dirty
        for path, tensor in call.written_inputs:
            name = argument_name(path, self._names)
            where = memory(tensor)
            write = call.watch.writes.get(where)
            if write is None or write.by_option or self._is_meant(name) or not call.outputs:
                self.evidence.setdefault("written_on_purpose", []).append(name)
                continue
            text = (
                f"a call writes to its argument {name} ({write.operation}): the caller's tensor is another afterwards"
            )
            numbers = {"argument": name}
            if where in call.returned:
                text = f"{text}; it is returned as well, as functions do that work in place"
                return Answer("inconclusive", "input_written", text, write.place, numbers)
            if self._name.startswith("_") or is_called_elsewhere(self._name, self._root):
                text = f"{text}; its callers may give it what nobody else needs"
                return Answer("inconclusive", "input_written", text, write.place, numbers)
            return Answer("fail", "input_written", f"{text}, beside a result of its own", write.place, numbers)
        return None

    def _is_meant(self, argument: str) -> bool:
        patterns = (CARRIED, STATISTIC, OUTPUT_ARGUMENT, _SUCH_ARGUMENT)
        if _CHANGING.search(self._name) or any(pattern.search(argument) for pattern in patterns):
            return True
        return _SAYS_SO.search(words_beside(inspect.unwrap(self._resolved.value))) is not None

    # --- what is kept ---

    def _depends_on_earlier_calls(self, calls: list[Call], state: SharedState) -> Answer | None:
        changed = state.changed()
        if not changed:
            return None
        self.evidence["changed"] = [kept.name for kept in changed][:12]
        again = outputs_differ(calls[0].outputs, self._call(0, other=False).outputs, tolerance=1e-6)
        if again:
            return self._advances(calls[0], state, changed, again)
        if not state.put_back():
            return None
        fresh = self._call_or_repeat(2, other=True)
        stale = outputs_differ(calls[2].outputs, fresh.outputs, tolerance=1e-6)
        if not stale:
            return None
        kept = changed[0]
        text = (
            f"{stale} of a call is that of earlier inputs: {kept.name} keeps what the first call computed from its "
            "own, and later calls use it for others"
        )
        names = [self._name, *(item.name for item in changed)]
        meant = any(_BY_FIRST_CALL.search(name) or STATISTIC.search(name) for name in names)
        verdict: Verdict = "inconclusive" if meant or len(changed) > 1 else "fail"
        return Answer(verdict, "stale_cache", text, self._kept_at(kept), {"kept": kept.name})

    def _advances(self, call: Call, state: SharedState, changed: list[Kept], what: str) -> Answer:
        said = f"{what} of the same input differs from call to call"
        for where, write in call.watch.writes.items():
            kept = state.keeps(where)
            if kept is not None and kept in changed and not write.by_option:
                text = f"a call writes to {kept.name} ({write.operation}), which lies outside of it: {said}"
                meant = CARRIED.search(kept.name) or STATISTIC.search(kept.name) or _CHANGING.search(self._name)
                verdict: Verdict = "inconclusive" if meant else "fail"
                return Answer(verdict, "shared_tensor_written", text, write.place, {"kept": kept.name})
        kept = changed[0]
        if kept.kind == "default" and not CARRIED.search(kept.name):
            text = f"the default value of {kept.name} is one object for all calls, and each changes it: {said}"
            return Answer("fail", "default_argument_written", text, self._kept_at(kept), {"kept": kept.name})
        names = ", ".join(item.name for item in changed[:3])
        text = f"{said}; {names} changes with each: a state that advances"
        return Answer("inconclusive", "state_advances", text, self._kept_at(kept), {"kept": kept.name})

    def _kept_at(self, kept: Kept) -> Place | None:
        return written_at(kept, self._resolved.module, self._root)

    def _line(self, words: tuple[str, ...]) -> Place | None:
        return line_in(inspect.unwrap(self._resolved.value), words, self._root)
