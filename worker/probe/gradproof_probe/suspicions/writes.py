"""Writes in place to what somebody else still needs: saved tensors, leaves, arguments, a second name.

The bytes of what autograd saved, of the arguments and of the module's own tensors are compared before and after the
very statement; whether that matters is found out by letting the backward have what was saved, as it was then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from gradproof_probe.harness.recipe import Built
from gradproof_probe.harness.trial import DEFINITE_FAULTS
from gradproof_probe.suspicions.bench import Bench, Seen, differs, same
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import tensors

_SLACK: Final = 1
_MOST_SAVED: Final = 400


class Saved:
    """What autograd saved during a forward: each tensor, and a copy of it as it was then.

    As a watcher it notes which of them the statement spoilt, those included that the statement itself saved.
    """

    def __init__(self, *, protect: bool = False) -> None:
        self.calls = 0
        self.spoilt: set[int] = set()
        self._kept: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._protect = protect
        self._before: set[int] | None = None

    def hooks(self) -> Any:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept)

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self.calls += 1
            self._before = self._different()
        elif role == "after":
            self.note()
        return value

    def note(self) -> None:
        """Also called when the forward has ended: a `return` has no place after it."""
        if self._before is not None:
            self.spoilt |= self._different() - self._before
            self._before = None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        if not self._protect and len(self._kept) < _MOST_SAVED:
            self._kept.append((tensor.detach(), copy, int(tensor._version)))
        return copy

    def _different(self) -> set[int]:
        # The version counts writes that left the bytes as they were too: backward refuses those as well.
        return {
            number
            for number, (now, then, version) in enumerate(self._kept)
            if now._version != version or not same(now, then)
        }


class Around:
    """Watches one statement: which of some tensors have other bytes after it than before it."""

    def __init__(self, tensors_of: Callable[[dict[str, Any]], list[tuple[str, torch.Tensor]]]) -> None:
        self.calls = 0
        self.changed: list[str] = []
        self._of = tensors_of
        self._before: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def __call__(self, role: str, value: Any) -> Any:
        if role == "before":
            self.calls += 1
            self._before = [(name, tensor, tensor.detach().clone()) for name, tensor in self._of(value)]
        elif role == "after":
            self.note()
        return value

    def note(self) -> None:
        """Also called when the forward has ended: a `return` has no place after it."""
        for name, tensor, copy in self._before:
            if not same(tensor.detach(), copy) and name not in self.changed:
                self.changed.append(name)
        self._before = []


class SavedWrite:
    """GP401 to GP405 and GP413: the gradient must not depend on whether the backward sees what was saved."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        saved = Saved()
        with bench.watching(suspect, saved):
            bench.call(inside=saved.hooks, backward=False)
            saved.note()
        plain = bench.call()
        refused = _refused(plain, suspect)
        if refused is not None:
            return refused
        if not saved.calls:
            return not_reached("no call came to this line")
        if not saved.spoilt:
            return held("this statement writes to nothing that autograd had saved")
        protected = bench.call(inside=Saved(protect=True).hooks)
        if plain.error is not None and plain.phase == "backward" and protected.error is None:
            return confirmed(
                f"this statement writes to a tensor that backward needs, and backward raises: {plain.words}",
                shown_by="raises",
                error=plain.words,
            )
        what = "" if plain.error or protected.error else differs(plain, protected)
        if what:
            return confirmed(
                "this statement writes to a tensor that autograd had saved, and raises nothing: with what was saved "
                f"as it was, {what} is another",
                differs=what,
            )
        return held("this statement writes to a tensor that autograd had saved, but no gradient depends on it")


class Refused:
    """GP406, GP407, GP414: autograd refuses the write, in the forward or in the backward."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        around = Around(lambda _: [])
        with bench.watching(suspect, around):
            seen = bench.call()
        refused = _refused(seen, suspect)
        if refused is not None:
            return refused
        if seen.error is not None and around.calls and "modified by an inplace" in str(seen.error):
            return confirmed(f"after this statement backward raises: {seen.words}", shown_by="raises", error=seen.words)
        if not around.calls:
            return not_reached("no call came to this line")
        return held("the statement ran, and autograd raised nothing")


class SharedWrite:
    """GP407: memory that several elements, or several tensors, share. Autograd refuses, or the values are wrong."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        refused = Refused().settle(bench, suspect)
        return refused if refused.outcome == "confirmed" else SecondName().settle(bench, suspect)


class ArgumentWrite:
    """GP408, GP412 and GP413: the caller's tensor, or the module's own, has other values afterwards."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        given: list[tuple[str, torch.Tensor]] = []

        def of(_: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
            return [*given, *_of_module(built)]

        built: list[Built] = []

        def change(made: Built) -> None:
            built.append(made)
            call = made.call

            def remembering(*args: Any, **kwargs: Any) -> Any:
                given[:] = [(f"input{path}", tensor) for path, tensor in tensors([args, kwargs])]
                return call(*args, **kwargs)

            made.call = remembering

        around = Around(of)
        with bench.watching(suspect, around):
            seen = bench.call(change=change)
            around.note()
        refused = _refused(seen, suspect)
        if refused is not None:
            return refused
        if not around.calls:
            return not_reached("no call came to this line")
        if around.changed:
            names = ", ".join(around.changed[:3])
            return confirmed(
                f"{names} has other values after this statement than before it, and belongs to somebody else",
                changed=around.changed[:8],
            )
        return held("neither an input nor a tensor of the module has other values after this statement")


class SecondName:
    """GP413: written through one name, read through another. On a copy, the result must be the same."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        name = suspect.text("tensor")
        if not name.isidentifier():
            return ArgumentWrite().settle(bench, suspect)
        plain = bench.call()
        refused = _refused(plain, suspect)
        if refused is not None:
            return refused
        calls = []

        def copying(role: str, value: Any) -> Any:
            if role == "operand":
                calls.append(1)
                return value.clone() if isinstance(value, torch.Tensor) else value
            return value

        with bench.watching(suspect, copying, rebind=name):
            copied = bench.call()
        if not calls:
            return not_reached("no call came to this line")
        what = differs(plain, copied) if plain.error is None and copied.error is None else ""
        if what:
            return confirmed(
                f"when this statement runs on a copy of {name}, {what} is another: the value is read under its other "
                "name later",
                differs=what,
            )
        return held(f"values and gradients are the same when this statement runs on a copy of {name}")


def _of_module(built: list[Built]) -> list[tuple[str, torch.Tensor]]:
    module = built[-1].instance if built else None
    if module is None:
        return []
    found = [*module.named_parameters(), *module.named_buffers()]
    for prefix, item in module.named_modules():
        found += [
            (f"{prefix}.{name}".lstrip("."), value)
            for name, value in vars(item).items()
            if isinstance(value, torch.Tensor)
        ]
    return found


def _refused(seen: Seen, suspect: Suspect) -> Answer | None:
    """Whether the call was refused at this very line."""
    if seen.error is None or seen.place is None or not DEFINITE_FAULTS.search(str(seen.error)):
        return None
    if seen.place.path != suspect.path or not suspect.line - _SLACK <= seen.place.line <= suspect.end_line + _SLACK:
        return None
    return confirmed(f"autograd refuses this statement: {seen.words}", shown_by="raises", error=seen.words)
