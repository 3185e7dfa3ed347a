"""What a module keeps: parameters nobody registered, values that a state dict or `.to()` leaves behind, old graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from gradproof_probe.gradients.graph_nodes import nodes_behind
from gradproof_probe.gradients.steps import SECOND_TIME
from gradproof_probe.harness.recipe import Built, ExpressionError
from gradproof_probe.suspicions.bench import Bench, Seen, differs
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached
from gradproof_probe.trees import transform

_MOST_NODES: Final = 20_000
_DEPTH: Final = 4


class Unregistered:
    """GP205: trained tensors in an attribute that `parameters()` does not know."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        name = suspect.text("attribute")
        instance = _instance(bench)
        if instance is None:
            return not_reached("the module can't be built")
        known = {id(parameter) for parameter in instance.parameters()}
        reached = False
        for owner, value in _attributes(instance, name, suspect):
            reached = True
            lost = [p for p in _trained(value) if id(p) not in known]
            if lost:
                return confirmed(
                    f"{len(lost)} trained tensors in {type(owner).__name__}.{name} ({sum(p.numel() for p in lost)} "
                    "numbers) are not among parameters(): no optimizer moves them, and state_dict() leaves them out",
                    tensors=len(lost),
                )
        if not reached:
            return not_reached(f"no instance has an attribute {name!r}")
        return held(f"all trained tensors in {name} are among parameters()")


class FlagOnModule:
    """GP206: `module.requires_grad = False` sets an attribute that nobody reads."""

    def settle(self, bench: Bench, _suspect: Suspect) -> Answer:
        instance = _instance(bench)
        if instance is None:
            return not_reached("the module can't be built")
        flagged = [(name, item) for name, item in instance.named_modules() if vars(item).get("requires_grad") is False]
        for name, item in flagged:
            trained = sum(parameter.requires_grad for parameter in item.parameters())
            if trained:
                return confirmed(f"{name or 'the module'}.requires_grad is False, and {trained} of its parameters "
                                 "require grad all the same", parameters=trained)  # fmt: skip
        return (
            held("no parameter is trained of a module that has the flag")
            if flagged
            else not_reached("the flag is set on no module that the harness builds")
        )


class Reload:
    """GP604, GP617, GP625: what a first call sets must come back with the state dict."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        trained = bench.call(steps=2)
        if trained.built is None or trained.built.instance is None or trained.error is not None:
            return not_reached(f"two calls can't be made: {trained.words or 'it is no module'}")
        saved = {name: value.clone() for name, value in trained.built.instance.state_dict().items()}
        source = trained.built.instance

        def reloaded(built: Built) -> None:
            assert built.instance is not None
            built.instance.load_state_dict(saved)
            _another_batch(built)

        def continued(built: Built) -> None:
            assert built.instance is not None
            built.instance = source.train(built.instance.training)
            built.call = source
            _another_batch(built)

        for training in (False, True):
            # The one that went through the first calls is asked last: asking moves its state again.
            after = bench.call(change=reloaded, training=training, backward=False)
            before = bench.call(change=continued, training=training, backward=False)
            if after.error is not None or before.error is not None:
                error = after.words or before.words
                return not_reached(f"the module can't be called again after load_state_dict: {error}")
            what = differs(before, after)
            if what:
                mode = "training" if training else "evaluation"
                return confirmed(
                    f"after state_dict() and load_state_dict() into a new instance, {what} is another in {mode} mode: "
                    f"{suspect.text('attribute') or 'what was set'} was left behind",
                    differs=what,
                )
        return held("a new instance with the saved state dict gives the same outputs")


class LeftBehind:
    """GP604, GP615, GP616, GP624: a tensor that `.to()` does not move."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        if suspect.text("changed_line") or "changed_line" in suspect.said:
            return Reload().settle(bench, suspect)
        name = suspect.text("attribute")
        seen = bench.call(backward=False)
        if seen.built is None or seen.built.instance is None:
            return not_reached(f"the module can't be built: {seen.words}")
        instance = seen.built.instance
        try:
            instance.to("meta")
        except Exception as error:
            return not_reached(f"the module can't be moved: {error}")
        found = [tensor for _, value in _attributes(instance, name, suspect) for tensor in _tensors(value)]
        if not found:
            return not_reached(f"no instance keeps a tensor in {name!r}")
        left = [tensor for tensor in found if tensor.device.type != "meta"]
        if left:
            return confirmed(
                f"after .to(device) {name} ({tuple(left[0].shape)}, {left[0].dtype}) is still on {left[0].device}, "
                "unlike parameters and buffers",
                shape=list(left[0].shape),
            )
        return held(f"{name} is moved by .to(device) like a buffer")


class KeptGraph:
    """GP411, GP415: what one step leaves on the module must not lead back into that step's graph."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        name = suspect.text("attribute")
        steps: Seen = bench.call(steps=2)
        if steps.error is not None and SECOND_TIME in str(steps.error):
            return confirmed(
                f"the second step's backward runs into the graph of the first through {name}: {steps.words}",
                shown_by="two steps",
                error=steps.words,
            )
        if steps.error is not None:
            return not_reached(f"two steps can't be run: {steps.words}")
        two, four = (self._length(bench.call(steps=number, backward=False), name, suspect) for number in (2, 4))
        if four > two > 0:
            return confirmed(
                f"the graph behind {name} grows with every call: {two} nodes after two calls, {four} after four",
                nodes_after_two=two,
                nodes_after_four=four,
            )
        if steps.built is None or not any(True for _ in _attributes(steps.built.instance, name, suspect)):
            return not_reached(f"no instance has an attribute {name!r}")
        return held("two steps with a backward each ran, and nothing that is kept has a graph that grows")

    @staticmethod
    def _length(seen: Seen, name: str, suspect: Suspect) -> int:
        instance = None if seen.built is None else seen.built.instance
        kept = [tensor for _, value in _attributes(instance, name, suspect) for tensor in _tensors(value)]
        return sum(1 for _ in nodes_behind(kept, _MOST_NODES))


class FrozenMode:
    """GP732: a layer put into evaluation mode by a constructor is back in training mode with the first `train()`."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        frozen: list[torch.nn.Module] = []

        def watch(role: str, value: Any) -> Any:
            if role == "result" and isinstance(value, torch.nn.Module) and not value.training:
                frozen.append(value)
            return value

        with bench.watching(suspect, watch):
            instance = _instance(bench)
        if instance is None or not frozen:
            return not_reached("the constructor did not come to this line")
        instance.train()
        back = [item for item in frozen if item.training]
        if back:
            return confirmed(f"after train() this {type(back[0]).__name__} is in training mode again")
        return held("after train() it is still in evaluation mode")


def _another_batch(built: Built) -> None:
    """Other data than that of the first calls: with the same, starting anew would give the same again."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 1.7 + 0.3 if tensor.is_floating_point() else tensor

    built.args = [transform(value, change) for value in built.args]
    built.kwargs = {name: transform(value, change) for name, value in built.kwargs.items()}


def _instance(bench: Bench) -> torch.nn.Module | None:
    try:
        return bench.constructed()
    except ExpressionError:
        return None


def _attributes(instance: torch.nn.Module | None, name: str, suspect: Suspect) -> Iterator[tuple[torch.nn.Module, Any]]:
    """The attribute on the modules of the class that the finding is about; on any that has it, if none of these do."""
    if instance is None or not name:
        return
    owner = suspect.symbol.rpartition(".")[0].rpartition(".")[2]
    having = [item for item in instance.modules() if name in _names(item)]
    named = [item for item in having if owner in {base.__name__ for base in type(item).__mro__}]
    for item in named or having:
        yield item, _names(item)[name]


def _names(module: torch.nn.Module) -> dict[str, Any]:
    """Everything that the module keeps under a name, registered or not."""
    return {**vars(module), **module._buffers, **module._parameters, **module._modules}


def _trained(value: Any, depth: int = 0) -> list[torch.Tensor]:
    if depth > _DEPTH:
        return []
    if isinstance(value, torch.nn.Module):
        return list(value.parameters())
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad and value.is_leaf else []
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _trained(item, depth + 1)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _trained(item, depth + 1)]
    return []


def _tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    transform(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found
