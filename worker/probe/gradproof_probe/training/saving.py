"""Does a new instance that loads the state dict compute what the saved one computes?

The new one is built with another seed, and once more after the saved one was trained for two steps. What is found to
differ is shown to be the cause by giving the new instance a copy of it: only what makes the outputs equal is blamed.
This module must not know how a result is reported.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Final

import torch

from gradproof_probe.checks.answer import Answer
from gradproof_probe.gradients.attribution import Place
from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.training.instances import Instances, modules_in, moved, outputs_differ
from gradproof_probe.training.plain_state import (
    CARRIED,
    STATISTIC,
    Attribute,
    Leaf,
    Leaves,
    assigned,
    changed,
    is_single,
    leaves,
    transplant,
)

STEPS: Final = 2
_STEP: Final = 0.01  # of the size of a parameter: enough to be seen, not enough to leave the ordinary range
_MOST_CANDIDATES: Final = 24
# Modules that are kept out of the state dict on purpose: frozen teachers, pretrained networks behind a loss.
_APART: Final = re.compile(r"teacher|target|frozen|pretrain|vgg|lpips|(^|_)ref(_|$|erence)")
_KEYS: Final = re.compile(r'(Missing|Unexpected) key\(s\) in state_dict: "([^"]+)"|size mismatch for ([\w.]+)')


class Reloading:
    """One comparison of a saved instance with new ones. Raises what the submitted code raises."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self.evidence: dict[str, Any] = {}

    def run(self) -> Answer:
        first = self._instances.fresh()
        registered = len(first.state_dict())
        self.evidence["entries"] = registered
        if not registered and not leaves(first, cloned=False):
            return Answer("skipped", "no_state", "the module keeps no state")
        found = self._as_built(first)
        if found is None and self._instances.more():
            found = self._trained()
        if found is not None:
            return found
        if "could_differ" not in self.evidence:
            return Answer("skipped", "no_state", "nothing that the module keeps changes its output")
        steps = f", also after {STEPS} training steps" if self.evidence.get("trained") else ""
        return Answer("pass", "equal", f"a new instance that loads the state dict gives the same outputs{steps}")

    def _as_built(self, first: torch.nn.Module) -> Answer | None:
        """`first` is never called: a call may move what it keeps."""
        expected = self._instances.call(self._instances.fresh())
        alters = outputs_differ(expected, self._instances.call(self._instances.fresh(draw=1)))
        if not alters:
            # A constructor that draws nothing gives the same with or without the state: it is moved first.
            _disturb(first)
            disturbed = self._instances.call(self._alike(first))
            alters = outputs_differ(expected, disturbed)
            expected = disturbed
        if alters:
            self.evidence["could_differ"] = alters
        state = self._round_trip(first.state_dict())
        if isinstance(state, Answer):
            return state
        second = self._instances.fresh(draw=1)
        refused = self._load(second, state, trained=False)
        if refused is not None:
            return refused
        differing = changed(leaves(first), leaves(second)) + _unsaved_buffers(first, second)
        what = outputs_differ(expected, self._instances.call(second))
        if not what:
            return self._untracked(first)
        if outputs_differ(expected, self._instances.call(self._alike(first))):
            return Answer("inconclusive", "not_reproducible", "two instances built alike give different outputs")

        def ask(attributes: Sequence[Attribute]) -> bool:
            other = self._instances.fresh(draw=1)
            other.load_state_dict(state)
            return all(transplant(first, other, a) for a in attributes) and not outputs_differ(
                expected, self._instances.call(other)
            )

        needed = _needed(ask, differing)
        if not needed:
            return Answer(
                "inconclusive",
                "reload_differs",
                f"{what} of a new instance that loads the state dict is another, and no attribute was found that "
                "makes it the same",
            )
        return self._judge_built(first, needed, what)

    def _alike(self, first: torch.nn.Module) -> torch.nn.Module:
        other = self._instances.fresh()
        other.load_state_dict(first.state_dict())
        return other

    def _judge_built(self, module: torch.nn.Module, needed: list[Attribute], what: str) -> Answer:
        attribute = needed[0]
        owner = module.get_submodule(attribute.owner)
        place = assigned(owner, attribute.name, self._instances.source_root)
        numbers: dict[str, Any] = {"attributes": [str(item) for item in needed], "differs": what}
        again = f"after load_state_dict() into a new instance {what} is another"
        if attribute.name in owner._buffers:
            text = f"{attribute} is drawn at random by the constructor and is a buffer with persistent=False: {again}"
            return Answer("fail", "unsaved_random_buffer", text, place, numbers)
        held = leaves(module, cloned=False).get(attribute, {})
        trained = [value for value in held.values() if isinstance(value, torch.Tensor) and value.requires_grad]
        value = vars(owner).get(attribute.name)
        modules = modules_in(value)
        numbers["tensors"] = sum(isinstance(item, torch.Tensor) for item in held.values())
        if trained:
            if _APART.search(attribute.name.lower()) or (len(modules) == 1 and isinstance(value, list | tuple)):
                text = f"{attribute} is kept out of the state dict, as it seems on purpose; {again}"
                return Answer("inconclusive", "kept_apart", text, place, numbers)
            if self._instances.hands_over(
                lambda made: getattr(made.get_submodule(attribute.owner), attribute.name, None)
            ):
                text = f"{attribute} keeps modules as the caller gave them, in no ModuleList: {again}"
                return Answer("inconclusive", "given_by_caller", text, place, numbers)
            kind = "modules" if modules else "tensors"
            text = (
                f"{len(trained)} trained tensors in the {kind} of {attribute} are not registered: parameters() and "
                f"state_dict() leave them out, and {again}"
            )
            return Answer("fail", "unregistered_parameters", text, place, numbers)
        if modules:
            text = f"{attribute} holds a frozen module that the state dict leaves out: {again}"
            return Answer("inconclusive", "kept_apart", text, place, numbers)
        text = f"{attribute} is drawn at random by the constructor and is no buffer: {again}"
        return Answer("fail", "unsaved_random_attribute", text, place, numbers)

    def _untracked(self, module: torch.nn.Module) -> Answer | None:
        """Trained tensors outside parameters() that every constructor call makes alike: training would be lost."""
        trained: list[tuple[Attribute, torch.Tensor]] = [
            (attribute, value)
            for attribute, held in leaves(module, cloned=False).items()
            for value in held.values()
            if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        ]
        if not trained:
            return None
        outputs = [o for o in self._instances.call(module, gradients=True) if o.requires_grad]
        if not outputs:
            return None
        generator = torch.Generator().manual_seed(11)
        total = sum((o * torch.randn(o.shape, generator=generator).to(o.dtype)).sum().abs() for o in outputs)
        assert isinstance(total, torch.Tensor)
        found = torch.autograd.grad(total, [value for _, value in trained], allow_unused=True)
        reached = [a for (a, _), g in zip(trained, found, strict=True) if g is not None and bool(g.any())]
        if not reached or _APART.search(reached[0].name.lower()):
            return None
        attribute = reached[0]
        place = assigned(module.get_submodule(attribute.owner), attribute.name, self._instances.source_root)
        text = (
            f"{attribute} requires a gradient and gets one, but is not registered: parameters() and state_dict() leave "
            "it out, so that no optimizer moves it and nothing of it is saved"
        )
        return Answer("fail", "unregistered_parameters", text, place, {"attributes": [str(a) for a in reached]})

    def _trained(self) -> Answer | None:
        try:
            model = self._stepped()
        except ExpressionError:
            raise
        except Exception as error:
            self.evidence["not_trained"] = describe_error(error, 200)
            return None
        self.evidence["trained"] = STEPS
        state = self._round_trip(model.state_dict())
        if isinstance(state, Answer):
            return state
        other = self._instances.fresh(training=True)
        refused = self._load(other, state, trained=True)
        if refused is not None:
            return refused
        differing = changed(leaves(model), leaves(other)) + _unsaved_buffers(model, other)
        if not differing:
            return None
        # Calls move the state of both, so each mode is asked of copies that differ in nothing else.
        for training in (False, True):
            outcome = self._compare_modes(state, differing, model, training=training)
            if outcome is not None:
                return outcome
        return None

    def _stepped(self) -> torch.nn.Module:
        model = self._instances.fresh(training=True)
        for number in range(STEPS):
            _step(model, self._instances.call(model, draw=number, gradients=True))
        return model

    def _compare_modes(
        self, state: dict[str, Any], differing: list[Attribute], model: torch.nn.Module, *, training: bool
    ) -> Answer | None:
        def outputs(attributes: Sequence[Attribute]) -> list[torch.Tensor] | None:
            other = self._instances.fresh(training=training)
            other.load_state_dict(state)
            if not all(transplant(model, other, a) for a in attributes):
                return None
            return self._instances.call(other, draw=7, change=moved)

        try:
            expected = outputs(differing)
            plain = outputs(())
            if expected is None or plain is None:
                self.evidence["not_copied"] = [str(a) for a in differing[:8]]
                return None
            what = outputs_differ(expected, plain)
            again = outputs(differing)
            if not what or again is None or outputs_differ(expected, again):
                return None

            def ask(attributes: Sequence[Attribute]) -> bool:
                got = outputs(attributes)
                return got is not None and not outputs_differ(expected, got)

            needed = _needed(ask, differing)
            if needed and outputs_differ(
                expected, self._instances.call(self._stepped().train(training), draw=7, change=moved)
            ):
                # What can't be copied belongs to it as well: hooks on other modules, closures.
                self.evidence["not_copied"] = [str(a) for a in needed[:8]]
                return None
        except Exception as error:
            self.evidence["not_compared"] = describe_error(error, 200)
            return None
        return self._judge_trained(model, needed, what, training=training) if needed else None

    def _judge_trained(
        self, module: torch.nn.Module, needed: list[Attribute], what: str, *, training: bool
    ) -> Answer | None:
        mode = "training" if training else "evaluation"
        again = f"after state_dict() and load_state_dict() into a new instance {what} is another in {mode} mode"
        numbers = {"attributes": [str(item) for item in needed], "differs": what, "mode": mode}
        held = leaves(module, cloned=False)
        attribute = needed[0]
        owner = module.get_submodule(attribute.owner)
        place = assigned(owner, attribute.name, self._instances.source_root)
        kinds = {item: _kind(item, held.get(item, {}), module) for item in needed}
        if any(kind in ("carried", "buffer", "other") for kind in kinds.values()):
            text = f"training changes {attribute}, which is not saved, as it seems on purpose: {again}"
            return Answer("inconclusive", "carried_state", text, place, numbers)
        texts = {
            "flag": ("unsaved_flag", "is set by training"),
            "number": ("unsaved_number", "is changed by training and enters the computation"),
            "statistic": ("unsaved_statistic", "is a running estimate that training moves"),
        }
        cause, verb = texts[kinds[attribute]]
        return Answer("fail", cause, f"{attribute} {verb}, but is no buffer: {again}", place, numbers)

    def _round_trip(self, state: dict[str, Any]) -> dict[str, Any] | Answer:
        """The state dict as it comes back from a file, or why it doesn't."""
        file = io.BytesIO()
        try:
            torch.save(state, file)
        except Exception as error:
            text = f"torch.save() of the state dict raises {describe_error(error, 200)}"
            return Answer("fail", "not_saveable", text)
        file.seek(0)
        try:
            loaded: dict[str, Any] = torch.load(file, weights_only=True)
        except Exception as error:
            self.evidence["weights_only"] = describe_error(error, 200)
            return {name: v.detach().clone() if isinstance(v, torch.Tensor) else v for name, v in state.items()}
        return loaded

    def _load(self, module: torch.nn.Module, state: dict[str, Any], *, trained: bool) -> Answer | None:
        try:
            module.load_state_dict(state)
        except Exception as error:
            text = describe_error(error, 300)
            match = _KEYS.search(text)
            key = "" if match is None else match[2] or match[3]
            # A key that is left out of the dict, or random sizes, may be meant; what a first call adds is not.
            if not trained or match is None or match[1] == "Missing" or CARRIED.search(key.rpartition(".")[2]):
                return Answer("inconclusive", "load_refused", f"a new instance does not load the state dict: {text}")
            if not match[1] and self._instances.source == "synthesised":
                # Inputs of ours with an axis more than the author's give statistics with one more.
                return Answer(
                    "inconclusive", "load_refused", f"calls with inputs of ours change the size of {key}: {text}"
                )
            what = f"{key} is registered by the first call" if match[1] else f"calls change the size of {key}"
            text = f"{what}: a new instance does not load the state dict, with {text}"
            return Answer("fail", "state_changes_by_use", text, self._place_of(module, key), {"key": key})
        return None

    def _place_of(self, module: torch.nn.Module, key: str) -> Place | None:
        """Where the first part of a key that a new module doesn't have is set."""
        holder: Any = module
        for name in key.split("."):
            if name not in holder._modules:
                return assigned(holder, name, self._instances.source_root)
            holder = holder._modules[name]
        return None


def _needed(ask: Any, differing: list[Attribute]) -> list[Attribute]:
    """The fewest attributes that make the outputs equal: one alone, else what can't be left out; none if all don't."""
    candidates = differing[:_MOST_CANDIDATES]
    if not candidates or not ask(candidates):
        return []
    for attribute in candidates:
        if ask([attribute]):
            return [attribute]
    needed = list(candidates)
    for attribute in candidates:
        rest = [item for item in needed if item != attribute]
        if rest and ask(rest):
            needed = rest
    return needed


def _kind(attribute: Attribute, held: Leaves, module: torch.nn.Module) -> str:
    """What an attribute seems to be for. What carries a sequence starts anew by design; a flag does not."""
    if attribute.name in module.get_submodule(attribute.owner)._buffers:
        return "buffer"
    if CARRIED.search(attribute.name):
        return "carried"
    values: list[Leaf] = [value for path, value in held.items() if not path.startswith("len(")]
    if values and all(is_single(value) for value in values):
        flags = all(
            isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype == torch.bool)
            for value in values
        )
        return "flag" if flags else "number"
    return "statistic" if STATISTIC.search(attribute.name) else "other"


def _unsaved_buffers(first: torch.nn.Module, second: torch.nn.Module) -> list[Attribute]:
    """Buffers with persistent=False that hold something else."""
    found = []
    others = dict(second.named_modules())
    for owner, item in first.named_modules():
        for name in item._non_persistent_buffers_set:
            a, b = item._buffers.get(name), others[owner]._buffers.get(name) if owner in others else None
            if (a is None) != (b is None) or (
                a is not None and b is not None and outputs_differ([a], [b], tolerance=0)
            ):
                found.append(Attribute(owner, name))
    return found


def _disturb(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(29)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point() and not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            tensor.data.mul_(1 + 0.3 * noise).add_(0.01 * noise)


def _step(module: torch.nn.Module, outputs: list[torch.Tensor]) -> None:
    """One step of gradient descent along a random cotangent."""
    live = [o for o in outputs if o.requires_grad and o.is_floating_point()]
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not live or not parameters:
        return
    generator = torch.Generator().manual_seed(17)
    cotangents = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in live]
    gradients = torch.autograd.grad(live, parameters, cotangents, allow_unused=True)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and gradient.layout == torch.strided:
                size = float(gradient.norm())
                if size > 0 and size < float("inf"):
                    parameter.add_(gradient, alpha=-_STEP * max(float(parameter.norm()), 1e-3) / size)
