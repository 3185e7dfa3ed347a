"""Training in several processes that quietly is not: unsynchronised gradients, the same data or order everywhere.

This module must not find the steps of training itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import is_false, is_true, keyword, made_by
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.training_steps import LOOPS, Act, of_act, training_events

_HEAD = (
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"
    "from torch.utils.data import DataLoader, DistributedSampler\n\n\n"
)
_STEP = "            optimizer.zero_grad()\n            {call}.mean().backward()\n            optimizer.step()\n"
_WRAPPERS = frozenset(
    {"torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed.DistributedDataParallel"}
)
_SAMPLER = "DistributedSampler"
# Anything that gives each process its own part of the data.
_SHARDS = (
    "Sampler",
    "rank",
    "shard",
    "split_by",
    "prepare(",
    "webdataset",
    "wds.",
    "litdata",
    "IterableDataset",
    "world_size",
)


def _train(call: str, *, sampler: str = "", epoch: str = "", loader: str = "") -> str:
    return (
        _HEAD
        + "def train(net, optimizer, data):\n    net = DDP(net)\n"
        + sampler
        + (loader or "    loader = DataLoader(data, sampler=sampler)\n")
        + "    for epoch in range(9):\n"
        + epoch
        + "        for x in loader:\n"
        + _STEP.format(call=call)
    )


_WITH_SAMPLER = "    sampler = DistributedSampler(data)\n"
_SET_EPOCH = "        sampler.set_epoch(epoch)\n"


class DistributedTraining(Rule):
    """Processes of DistributedDataParallel that don't share gradients, or don't share out the data."""

    id = "GP711"
    name = "distributed-training"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("ddp_consistency",)
    fix = FixSafety.UNSAFE
    triggers = ("DistributedDataParallel", "DistributedSampler")
    documentation = Documentation(
        what_it_does=(
            "In files that use `DistributedDataParallel`: finds a forward through `model.module` in a function that "
            "trains, a `DistributedSampler` in an epoch loop without `set_epoch`, and a `DataLoader(shuffle=True)` "
            "that no sampler shares out."
        ),
        why_is_this_bad=(
            "Gradients are averaged by the wrapper's own forward: through `model.module(x)` each process trains a "
            "model of its own, and they drift apart silently. Without `set_epoch` the sampler shuffles in the same "
            "order in every epoch. Without a sampler each process sees all of the data."
        ),
        faulty_example=_train("net.module(x)", sampler=_WITH_SAMPLER, epoch=_SET_EPOCH),
        right_example=_train("net(x)", sampler=_WITH_SAMPLER, epoch=_SET_EPOCH),
        fix_safety="Unsafe: the forward goes through the wrapper, or the order changes from epoch to epoch.",
    )
    valid = (
        _train("net(x)", sampler=_WITH_SAMPLER, epoch=_SET_EPOCH),
        # an attribute of the model, and an evaluation
        _train("net(x)", sampler=_WITH_SAMPLER, epoch=_SET_EPOCH) + "        print(net.module.head)\n"
        "        with torch.no_grad():\n            print(net.module(x))\n",
        _HEAD + "def check(net, x):\n    return net.module(x)\n",
        # no shuffling
        _train("net(x)", sampler="    sampler = DistributedSampler(data, shuffle=False)\n"),
        # one epoch
        _HEAD + "def train(net, optimizer, data):\n    net = DDP(net)\n    sampler = DistributedSampler(data)\n"
        "    for x in DataLoader(data, sampler=sampler):\n        optimizer.zero_grad()\n"
        "        net(x).mean().backward()\n        optimizer.step()\n",
        # shared out in another way
        _train("net(x)", loader="    loader = DataLoader(data.shard(rank), shuffle=True)\n"),
        # set through the loader
        _train("net(x)", sampler=_WITH_SAMPLER, epoch="        loader.sampler.set_epoch(epoch)\n"),
    )
    invalid = (
        Invalid(documentation.faulty_example, (14,)),
        Invalid(_train("net(x)", sampler=_WITH_SAMPLER), (8,)),
        Invalid(_train("net(x)", loader="    loader = DataLoader(data, 8, shuffle=True)\n"), (8,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        yield from _past_the_wrapper(file)
        yield from _same_order(file)
        yield from _same_data(file)


def _past_the_wrapper(file: FileContext) -> Iterator[Hit]:
    training = {scope for scope, events in training_events(file).items() if of_act(events, Act.BACKWARD)}
    for call in file.calls("module"):
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        function = file.enclosing_function(call) or file.tree
        if holder is None or function not in training or file.grad_disabled(call) or not call.args:
            continue
        if made_by(file, holder) in _WRAPPERS:
            wrapper = file.source(holder)
            yield Hit(
                call,
                f"This forward goes past the wrapper, which alone averages the gradients: the processes train apart. "
                f"Call `{wrapper}(…)`.",
                fix=Rewrite(FixSafety.UNSAFE, (Replacement(call.func, wrapper),)),
            )


def _same_order(file: FileContext) -> Iterator[Hit]:
    if "set_epoch" in file.text:
        return
    for made in file.calls(_SAMPLER):
        if is_false(keyword(made, "shuffle")) or not (file.qualified_name(made.func) or "").startswith("torch."):
            continue
        loop = _epoch_loop(file, made)
        if loop is not None:
            yield Hit(
                made,
                "Nothing calls `set_epoch` on this sampler, so it shuffles in the same order in every epoch. Call "
                "`sampler.set_epoch(epoch)` at the start of each.",
                related=((loop, "the epochs"),),
                fix=_with_epoch(file, made, loop),
            )


def _epoch_loop(file: FileContext, made: ast.Call) -> ast.For | None:
    """A loop over epochs in the function of a sampler, around one that trains."""
    scope = file.enclosing_function(made) or file.tree
    for event in of_act(training_events(file).get(scope, ()), Act.BACKWARD):
        loops = [owner for owner, field in event.path if isinstance(owner, LOOPS) and field == "body"]
        outer = loops[0] if len(loops) > 1 else None
        if isinstance(outer, ast.For) and isinstance(outer.target, ast.Name) and outer not in file.ancestors(made):
            return outer
    return None


def _with_epoch(file: FileContext, made: ast.Call, loop: ast.For) -> Rewrite | None:
    statement, first = file.parent(made), loop.body[0]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    if not isinstance(loop.target, ast.Name) or isinstance(first, (ast.If, ast.With, ast.Try)):
        return None
    call = f"{statement.targets[0].id}.set_epoch({loop.target.id})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(first, f"{call}\n{file.source(first)}"),))


def _same_data(file: FileContext) -> Iterator[Hit]:
    wraps = [
        call for call in file.calls("DistributedDataParallel", "DDP") if file.qualified_name(call.func) in _WRAPPERS
    ]
    if not wraps or any(word in file.text for word in _SHARDS if not (word == "Sampler" and _only_imported(file))):
        return
    if not any(of_act(events, Act.BACKWARD) for events in training_events(file).values()):
        return
    for loader in file.calls("DataLoader"):
        if (file.qualified_name(loader.func) or "").startswith("torch.") and is_true(keyword(loader, "shuffle")):
            yield Hit(
                loader,
                "Every process of `DistributedDataParallel` gets all of the data here: an epoch trains on each "
                "sample as often as there are processes. Pass `sampler=DistributedSampler(…)`.",
                related=((wraps[0], "the model is trained in several processes"),),
            )


def _only_imported(file: FileContext) -> bool:
    """Whether a sampler is imported, but none is made."""
    return not file.calls(_SAMPLER) and "sampler=" not in file.text and "Sampler(" not in file.text
