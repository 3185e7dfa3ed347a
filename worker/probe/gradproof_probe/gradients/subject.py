"""A Function (or a callable that goes through some) with its arguments, called in any situation, both ways.

Both ways: as it is, whose backward is in doubt, and seen through, whose gradient is autograd's own (`oracle`). The
situation decides how inputs are made, what is pulled back, and what happens in between. Nothing is judged here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from gradproof_probe.gradients.experiment import BackwardError, ForwardError
from gradproof_probe.gradients.making import (
    broadcastable,
    changed_rank,
    laid_out,
    made_complex,
    make_cotangent,
    make_values,
    other_entries,
    resized,
)
from gradproof_probe.gradients.situations import ORDINARY, Situation
from gradproof_probe.seeding import reseed
from gradproof_probe.trees import tensors

DTYPES: Final = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# How often it is called for `repeated`: counters that switch after the third or fourth call are met.
REPEATS: Final = 5
# What `other` inputs are: the given ones times this, backwards. Any fixed change will do that no fault is blind to.
OTHER_FACTOR: Final = -0.7
KEPT: Final = 16  # inputs and cotangents that are kept: drawing them costs as much as a small forward


class NotApplicableError(Exception):
    """The situation can't be had with these arguments; the message says why."""


@dataclass(slots=True)
class Pull:
    """One forward and one backward. `gradients` has one entry a variable; None where none was returned or wanted."""

    gradients: list[torch.Tensor | None]
    outputs: list[torch.Tensor]
    cotangents: list[torch.Tensor]
    leaves: list[torch.Tensor]


class Subject:
    """`call` and `seen_through` take the same flat arguments. `seen_through` is None where there is no such way.

    `args`: the given arguments; floating and complex tensors among them, at `positions`, are the variables.
    `writes`: forward writes to its inputs, so that it must be given clones.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        seen_through: Callable[..., Any] | None,
        args: Sequence[Any],
        *,
        names: Sequence[str],
        seed: int,
        positions: Sequence[int] | None = None,
        base_dtype: torch.dtype = torch.float64,
    ) -> None:
        self.call = call
        self.seen_through = seen_through
        self.seed = seed
        self.base_dtype = base_dtype
        self.args = [self._promoted(item) for item in args]
        self.positions = tuple(
            index
            for index, item in enumerate(self.args)
            if is_differentiable(item) and (positions is None or index in positions)
        )
        self.names = [names[index] if index < len(names) else f"input {index}" for index in self.positions]
        self.structured = any(has_structure(self.args[position]) for position in self.positions)
        self.writes = False
        # Whether -inf is a value that its callers give: what is masked out before a softmax.
        self.masks = False
        # Whether its code speaks of complex numbers though the given inputs are real.
        self.complex_too = False
        self.random = True
        self.calls = 0
        self._made: dict[tuple[Any, ...], list[Any]] = {}
        self._drawn: dict[tuple[Any, ...], torch.Tensor] = {}

    def _promoted(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if not is_differentiable(item):
            return item.detach()
        dtype = self.base_dtype.to_complex() if item.is_complex() else self.base_dtype
        return item.detach().to(dtype)

    @property
    def elements(self) -> int:
        return sum(self.args[position].numel() for position in self.positions)

    # -- making

    def make(self, situation: Situation) -> list[Any]:
        """Arguments for it, contiguous and without grad. Raises `NotApplicableError`. Not to be written to."""
        key = situation.made_of()
        made = self._made.get(key)
        if made is None:
            made = self._make(situation)
            if len(self._made) > KEPT:
                self._made.clear()
            self._made[key] = made
        return made

    def _make(self, situation: Situation) -> list[Any]:
        if self.structured and (situation.resize or situation.broadcast or not _keeps_structure(situation)):
            raise NotApplicableError("a symmetric or triangular input would be one no longer")
        replaced = dict(situation.arguments)
        made = [
            self._shaped(index, item, situation) if isinstance(item, torch.Tensor) else replaced.get(index, item)
            for index, item in enumerate(self.args)
        ]
        if (situation.broadcast or situation.others != "as given") and not any(
            one.shape != other.shape or not torch.equal(one, other)
            for one, other in zip(made, self.args, strict=True)
            if isinstance(other, torch.Tensor) and other.layout == torch.strided
        ):
            raise NotApplicableError("nothing can be changed so")
        made = [
            self._valued(index, item, situation) if is_differentiable(item) else item for index, item in enumerate(made)
        ]
        if situation.values.kind != "ordinary" and all(
            made[p].shape == self.args[p].shape and torch.equal(made[p], self.args[p].to(made[p].dtype))
            for p in self.positions
        ):
            raise NotApplicableError("no input may take such values")
        return made

    def _shaped(self, index: int, tensor: torch.Tensor, situation: Situation) -> torch.Tensor:
        """Of another size, shape or rank; other entries, where it holds indices or a mask."""
        ranks = [item.dim() for item in self.args if isinstance(item, torch.Tensor)]
        if situation.resize:
            tensor = resized(tensor, situation.resize, self.seed + index)
        if index in self.positions:
            for number, what in situation.broadcast:
                if self.positions.index(index) == number:
                    largest = max((self.args[p] for p in self.positions), key=lambda item: item.numel())
                    tensor = broadcastable(what, tensor, largest)
        if situation.others != "as given" and not is_differentiable(tensor) and tensor.layout == torch.strided:
            tensor = other_entries(situation.others, tensor)
        if situation.rank and _raised(situation.rank_of, index, tensor, max(ranks)):
            if tensor.dim() + situation.rank < 1:
                raise NotApplicableError("there is no dimension to take away")
            tensor = changed_rank(tensor, situation.rank)
        return tensor

    def _valued(self, index: int, tensor: torch.Tensor, situation: Situation) -> torch.Tensor:
        """With other values, in another dtype."""
        ordinal = self.positions.index(index) if index in self.positions else None
        values = situation.values
        if ordinal is not None and values.kind != "ordinary" and values.only in (None, ordinal):
            tensor = within_domain(make_values(values.kind, values.number, tensor), self.args[index])
        if situation.dtype == "complex128":
            return made_complex(tensor) if ordinal is not None and not tensor.is_complex() else tensor
        # A target that needs no gradient comes in the type of the rest, unless one input alone is meant.
        ordinary = situation.dtype == "float64" or situation.dtype_of not in (None, ordinal)
        wanted = self.base_dtype if ordinary else DTYPES[situation.dtype]
        if tensor.is_complex():
            if wanted not in (torch.float64, torch.float32):
                raise NotApplicableError("there is no complex type of half precision here")
            wanted = wanted.to_complex()
        return tensor.to(wanted).contiguous()

    def other(self, args: Sequence[Any]) -> list[Any]:
        """Other values of the same shapes, in the domain if it is all positive; indices in another order."""
        found: list[Any] = []
        for index, item in enumerate(args):
            if index in self.positions and item.numel():
                factor = 0.7 if not item.is_complex() and bool((item >= 0).all()) else OTHER_FACTOR
                found.append(item.detach().flip(tuple(range(item.dim()))) * factor)
            elif isinstance(item, torch.Tensor) and not item.is_floating_point() and item.layout == torch.strided:
                found.append(item.flip(tuple(range(item.dim()))))
            else:
                found.append(item)
        return found

    # -- calling

    def reseed(self) -> None:
        """Only where random numbers are drawn: it costs as much as a small forward."""
        if self.random:
            reseed(self.seed)

    def forward(self, args: Sequence[Any], *, through: bool = False) -> list[torch.Tensor]:
        """All floating and complex outputs, in order. Raises `ForwardError`."""
        call = self.seen_through if through else self.call
        assert call is not None
        self.calls += 1
        self.reseed()
        try:
            output = call(*args)
        except Exception as error:
            raise ForwardError(error) from error
        if isinstance(output, torch.Tensor):
            return [output] if is_differentiable(output) else []
        return [tensor for _, tensor in tensors(output) if is_differentiable(tensor)]

    def leaves(self, args: Sequence[Any], wanted: Sequence[int] | None, *, alias: bool = False) -> list[Any]:
        """Copies of the variables that require grad where wanted, in their places; `alias`: one for all of a shape."""
        found = list(args)
        shared: dict[tuple[Any, ...], torch.Tensor] = {}
        for ordinal, position in enumerate(self.positions):
            item = found[position]
            if alias:
                # The same rows in another number are the same tensor too, where the forward takes them.
                key = (item.dim(), item.shape[-1] if item.dim() else 0, item.dtype)
                if key in shared:
                    found[position] = shared[key]
                    continue
            # Detached, not cloned: nothing writes to it, `given` hands clones to a forward that does.
            leaf = item.detach()
            if wanted is None or ordinal in wanted:
                leaf.requires_grad_()
            if alias:
                shared[key] = leaf
            found[position] = leaf
        return found

    def given(self, leaves: Sequence[Any], situation: Situation) -> list[Any]:
        """What is handed to the call: the leaves, or clones where something may write to them."""
        if not self.writes and situation.sequence != "input_written":
            return list(leaves)
        clones: dict[int, Any] = {}
        found = []
        for index, item in enumerate(leaves):
            if isinstance(item, torch.Tensor) and item.layout == torch.strided:
                if id(item) not in clones:
                    clones[id(item)] = (
                        laid_out(item.clone(), situation.input_layout) if index in self.positions else item.clone()
                    )
                found.append(clones[id(item)])
            else:
                found.append(item)
        return found

    def cotangents(self, outputs: Sequence[torch.Tensor], situation: Situation) -> list[torch.Tensor]:
        """One an output, in the layout asked for."""
        asked = situation.cotangent
        found = []
        for index, output in enumerate(outputs):
            key = (asked.kind, asked.number, index, output.shape, output.dtype)
            value = self._drawn.get(key)
            if value is None:
                value = make_cotangent(asked.kind, asked.number, output.detach(), self.seed + 11 * index + 7)
                if len(self._drawn) > KEPT:
                    self._drawn.clear()
                self._drawn[key] = value
            # A copy each time: a backward that writes to it must not spoil the next one.
            found.append(laid_out(value, asked.layout) if asked.layout != "contiguous" else value.clone())
        return found

    def pull(self, situation: Situation, cotangents: Sequence[torch.Tensor] | None = None) -> Pull:
        """As it is; `cotangents` instead of those that the situation makes.

        Raises `NotApplicableError`, `ForwardError`, `BackwardError`.
        """
        made = self.make(situation)
        if self.structured and situation.alias:
            raise NotApplicableError("a symmetric or triangular input isn't any other one")
        if situation.input_layout != "contiguous":
            made = self._lay_out(made, situation)
        with switched(situation):
            leaves = self.leaves(made, situation.wanted, alias=situation.alias)
            if situation.sequence in ("after_another", "inference_first", "repeated"):
                self._before(made, situation)
            if situation.sequence == "after_update":
                if situation.input_layout != "contiguous":
                    raise NotApplicableError("memory that is used again has the layout that it has")
                leaves = self._updated(made, situation)
            given = self.given(leaves, situation)
            if situation.sequence == "interleaved":
                self.forward(self.given(self.leaves(self.other(made), situation.wanted), situation))
            with autocast(situation.autocast != ""):
                outputs = self.forward(given)
            outputs = self._between(outputs, given, made, situation)
            return self.pull_from(outputs, leaves, situation, cotangents)

    def _lay_out(self, made: Sequence[Any], situation: Situation) -> list[Any]:
        if self.random:
            raise NotApplicableError(
                "random numbers are drawn in the order of memory: another layout, another function"
            )
        found = list(made)
        changed = False
        for position in self.positions:
            found[position] = laid_out(made[position], situation.input_layout)
            if not torch.equal(found[position].nan_to_num(), made[position].nan_to_num()):
                raise NotApplicableError("such a layout can only hold equal values")
            changed = changed or not found[position].is_contiguous() or situation.input_layout in ("offset", "sliced")
        if not changed:
            raise NotApplicableError(f"no input can be {situation.input_layout}")
        return found

    def _before(self, made: Sequence[Any], situation: Situation) -> None:
        if situation.sequence == "inference_first":
            with torch.no_grad():
                self.forward(self.given(self.leaves(made, ()), situation))
            return
        times = 1 if situation.sequence == "after_another" else REPEATS - 1
        for _ in range(times):
            inputs = self.other(made) if situation.sequence == "after_another" else made
            again = self.leaves(inputs, situation.wanted, alias=situation.alias)
            self.pull_from(self.forward(self.given(again, situation)), again, ORDINARY)

    def _updated(self, made: Sequence[Any], situation: Situation) -> list[Any]:
        """Leaves that held other values in a call before."""
        leaves = self.leaves(
            [item.clone() if isinstance(item, torch.Tensor) else item for item in self.other(made)],
            situation.wanted,
            alias=situation.alias,
        )
        self.pull_from(self.forward(self.given(leaves, situation)), leaves, ORDINARY)
        with torch.no_grad():
            for position in self.positions:
                leaves[position].copy_(made[position])
        found = list(made)
        for position in self.positions:
            found[position] = leaves[position]
        return found

    def _between(
        self, outputs: list[torch.Tensor], given: Sequence[Any], made: Sequence[Any], situation: Situation
    ) -> list[torch.Tensor]:
        """What happens after forward and before backward."""
        match situation.sequence:
            case "interleaved":
                # Two more are under way, and the last of them goes back first.
                # Of the other, the other is the given one again but for a factor: it must not be the last.
                others = self.leaves(self.other(self.other(made)), situation.wanted, alias=situation.alias)
                self.forward(self.given(others, situation))
                others = self.leaves(self.other(made), situation.wanted, alias=situation.alias)
                self.pull_from(self.forward(self.given(others, situation)), others, ORDINARY)
            case "output_written":
                with torch.no_grad():
                    for output in outputs:
                        if output.requires_grad:
                            _write(output)
            case "input_written":
                with torch.no_grad():
                    for position, item in enumerate(given):
                        if isinstance(item, torch.Tensor) and situation.written in (None, position):
                            if is_differentiable(item):
                                _write(item)
                            elif situation.written is not None:
                                item.copy_(item.flip(tuple(range(item.dim()))))
            case "used_twice":
                if self.writes:
                    raise NotApplicableError("it writes to its input: another call gets another one")
                self.reseed()
                outputs = [a + b for a, b in zip(outputs, self.forward(given), strict=True)]
            case _:
                pass
        return outputs

    def pull_from(
        self,
        outputs: list[torch.Tensor],
        leaves: Sequence[Any],
        situation: Situation,
        given: Sequence[torch.Tensor] | None = None,
    ) -> Pull:
        cotangents = self.cotangents(outputs, situation) if given is None else list(given)
        if len(cotangents) != len(outputs):
            raise NotApplicableError("the number of outputs changes")
        chosen = [
            index
            for index, output in enumerate(outputs)
            if output.requires_grad
            and (output.numel() or situation.resize)
            and (situation.cotangent.outputs is None or index in situation.cotangent.outputs)
        ]
        if not chosen:
            raise NotApplicableError("no output requires grad")
        variables = [leaves[position] for position in self.positions]
        wanted = [item for item in dict.fromkeys(variables) if item.requires_grad]
        again = situation.sequence == "second_backward"

        def backward() -> tuple[torch.Tensor | None, ...]:
            with autocast(situation.autocast == "throughout"):
                if again:
                    first = [make_cotangent("random", 0.0, outputs[index].detach(), self.seed + 99) for index in chosen]
                    torch.autograd.grad(
                        [outputs[index] for index in chosen], wanted, first, allow_unused=True, retain_graph=True
                    )
                self._stand_elsewhere(situation)
                return torch.autograd.grad(
                    [outputs[index] for index in chosen],
                    wanted,
                    [cotangents[index] for index in chosen],
                    allow_unused=True,
                    create_graph=situation.sequence == "create_graph",
                )

        try:
            found = in_another_thread(backward) if situation.sequence == "other_thread" else backward()
        except Exception as error:
            raise BackwardError(error) from error
        by_leaf = {id(leaf): _dense(gradient) for leaf, gradient in zip(wanted, found, strict=True)}
        return Pull([by_leaf.get(id(item)) for item in variables], outputs, cotangents, variables)

    def _stand_elsewhere(self, situation: Situation) -> None:
        if situation.sequence == "other_seed":
            reseed(self.seed + 1)
        else:
            self.reseed()

    # -- seen through

    def reference(self, situation: Situation, cotangents: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Autograd's gradients for the same values and cotangents, in the plainest circumstance.

        Raises as `pull` does.
        """
        args = self.make(situation)
        leaves = self.leaves(args, situation.wanted, alias=situation.alias)
        with autocast(situation.autocast != ""):
            outputs = self.forward(self.given(leaves, ORDINARY) if not self.writes else _clones(leaves), through=True)
        return self.reference_pull(outputs, leaves, cotangents, situation)

    def reference_pull(
        self,
        outputs: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        cotangents: Sequence[torch.Tensor],
        situation: Situation,
        *,
        retain: bool = False,
    ) -> list[torch.Tensor | None]:
        """A pull through a graph that `forward(..., through=True)` has made."""
        if len(outputs) != len(cotangents) or any(a.shape != b.shape for a, b in zip(outputs, cotangents, strict=True)):
            raise NotApplicableError("seen through, the forward gives other outputs")
        asked = situation.cotangent.outputs
        chosen = [
            index
            for index, output in enumerate(outputs)
            if output.requires_grad and (output.numel() or situation.resize) and (asked is None or index in asked)
        ]
        variables = [leaves[position] for position in self.positions]
        wanted = [item for item in dict.fromkeys(variables) if item.requires_grad]
        if not chosen:
            return [None for _ in variables]
        factor = 2 if situation.sequence == "used_twice" else 1
        try:
            found = torch.autograd.grad(
                [outputs[index] for index in chosen],
                wanted,
                [cotangents[index].to(outputs[index].dtype).contiguous() * factor for index in chosen],
                allow_unused=True,
                retain_graph=retain,
            )
        except Exception as error:
            raise BackwardError(error) from error
        by_leaf = {id(leaf): _dense(gradient) for leaf, gradient in zip(wanted, found, strict=True)}
        return [by_leaf.get(id(item)) for item in variables]


def is_differentiable(item: Any) -> bool:
    return (
        isinstance(item, torch.Tensor)
        and item.layout == torch.strided
        and (item.is_floating_point() or item.is_complex())
    )


def has_structure(tensor: torch.Tensor) -> bool:
    """Whether it holds symmetric or triangular matrices: covariances, factors. With other values it wouldn't."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2 or not tensor.numel():
        return False
    scale = 1e-9 * float(tensor.abs().max())
    lower, upper = tensor.tril(-1).abs(), tensor.triu(1).abs()
    return bool((tensor - tensor.mH).abs().max() <= scale) or float(lower.max()) <= scale or float(upper.max()) <= scale


def _keeps_structure(situation: Situation) -> bool:
    values = situation.values
    return values.kind == "ordinary" or (values.kind == "scaled" and values.number > 0)


def within_domain(made: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """`made`, but no sign that `given` has nowhere, and nothing above 1 where `given` looks like probabilities.

    Whoever gives positive numbers alone may need them positive: beside its domain a forward may be anything.
    """
    if given.is_complex() or not given.numel() or float(given.min()) < 0:
        return made
    made = made.abs()
    if not bool(torch.isfinite(made).all()):
        return given
    if float(given.max()) <= 1 and float(made.max()) > 1:
        return given if given.shape == made.shape else made.clamp(max=1)
    return made


def _raised(which: str, index: int, tensor: torch.Tensor, highest: int) -> bool:
    """Whether a change of rank is meant for this argument."""
    if which == "highest":
        return tensor.dim() == highest
    return which == "all" or index == 0


def plain(situation: Situation) -> Situation:
    """The same values, cotangents and arguments, in the plainest circumstance: what must give the same gradient."""
    return replace(
        situation,
        input_layout="contiguous",
        cotangent=replace(situation.cotangent, layout="contiguous"),
        wanted=None,
        sequence="once",
        flags=(),
    )


def _clones(leaves: Sequence[Any]) -> list[Any]:
    found: dict[int, Any] = {}
    return [
        found.setdefault(id(item), item.clone()) if isinstance(item, torch.Tensor) and item.requires_grad else item
        for item in leaves
    ]


def _dense(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    gradient = gradient.detach()
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def _write(tensor: torch.Tensor) -> None:
    """What a later in-place layer does to it."""
    tensor.mul_(0.5).add_(1)


def in_another_thread(work: Callable[[], Any]) -> Any:
    """Its result; raises what it raised."""
    result: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # handed on to whoever waits
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return result[0]


def autocast(enabled: bool) -> Any:  # noqa: FBT001 - one word at each call
    return torch.autocast("cpu", dtype=torch.bfloat16) if enabled else nullcontext()


@contextmanager
def switched(situation: Situation) -> Iterator[None]:
    """The process-wide switches of a situation, for as long as it is open."""
    if not situation.flags:
        yield
        return
    with ExitStack() as stack:
        for name in situation.flags:
            match name:
                case "deterministic":
                    before = torch.are_deterministic_algorithms_enabled()
                    stack.callback(torch.use_deterministic_algorithms, before)
                    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's own signature
                case "anomaly":
                    stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
                case "default_float32":
                    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                    torch.set_default_dtype(torch.float32)
                case "float32_precision_high":
                    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
                    torch.set_float32_matmul_precision("high")
                case _:
                    raise NotApplicableError(f"there is no switch {name}")
        yield
