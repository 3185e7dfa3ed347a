"""`model.parameters()` kept in a variable and used twice: a generator is empty the second time.

This module must not know what the parameters are used for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.objects import self_assignments
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import terminal_name
from analyzer.training_steps import LOOPS, exclusive, path_of

_HEAD = "import itertools\nimport torch\n\n\n"
_SOURCES = ("parameters", "named_parameters", "buffers", "named_buffers", "chain", "filter")
# These only read a generator that they are given to the end; others may make a list of it first.
_CONSUMERS = frozenset(
    {
        *(
            "SGD",
            "Adam",
            "AdamW",
            "Adagrad",
            "Adadelta",
            "Adamax",
            "RMSprop",
            "NAdam",
            "RAdam",
            "Rprop",
            "LBFGS",
            "list",
        ),
        *("clip_grad_norm_", "clip_grad_value_", "get_total_norm", "sum", "tuple", "set", "sorted", "zip"),
        *("enumerate", "parameters_to_vector", "all", "any", "max", "min", "map", "dict", "len"),
    }
)


class ExhaustedGenerator(Rule):
    """A generator of parameters that is read to its end and then used again."""

    id = "GP728"
    name = "exhausted-parameters"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search",)
    fix = FixSafety.UNSAFE
    triggers = ("parameters()", "buffers()")
    documentation = Documentation(
        what_it_does=(
            "Finds variables that hold `model.parameters()` (or a `filter` or `chain` of it) and that are read more "
            "than once: by an optimizer and by `clip_grad_norm_`, or by clipping in every turn of a loop."
        ),
        why_is_this_bad=(
            "`parameters()` is a generator. The first reader takes all parameters, the second finds none: "
            "`clip_grad_norm_` then clips nothing and returns 0 (torch 2.13 warns, once), and a sum is 0."
        ),
        faulty_example=_HEAD + "def train(net, batches):\n    params = net.parameters()\n"
        "    optimizer = torch.optim.SGD(params, lr=0.1)\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        net(x).mean().backward()\n        torch.nn.utils.clip_grad_norm_(params, 1.0)\n"
        "        optimizer.step()\n",
        right_example=_HEAD + "def train(net, batches):\n    params = list(net.parameters())\n"
        "    optimizer = torch.optim.SGD(params, lr=0.1)\n    for x in batches:\n        optimizer.zero_grad()\n"
        "        net(x).mean().backward()\n        torch.nn.utils.clip_grad_norm_(params, 1.0)\n"
        "        optimizer.step()\n",
        fix_safety="Unsafe: a list is read as often as it is used, so what was skipped happens.",
    )
    valid = (
        documentation.right_example,
        _HEAD + "def count(net):\n    params = net.parameters()\n    return sum(p.numel() for p in params)\n",
        _HEAD + "def make(net, fast):\n    params = net.parameters()\n    if fast:\n"
        "        return torch.optim.SGD(params, lr=0.1)\n    else:\n        return torch.optim.Adam(params)\n",
        _HEAD + "def make(net, fast):\n    params = net.parameters()\n    if fast:\n"
        "        return torch.optim.SGD(params, lr=0.1)\n    return torch.optim.Adam(params)\n",
        # asked for again in every turn
        _HEAD + "def clip(net, n):\n    for _ in range(n):\n        params = net.parameters()\n"
        "        torch.nn.utils.clip_grad_norm_(params, 1.0)\n",
        # handed to something that may make a list of it
        _HEAD + "def twice(net, use):\n    params = net.parameters()\n    use(params)\n    use(params)\n",
        _HEAD + "def first(net):\n    params = net.parameters()\n    one = next(params)\n"
        "    return sum(p.sum() for p in params)\n",
        # a function of another name that gives a list
        _HEAD + "def make(space):\n    params = space.parameters(True)\n    return list(params), list(params)\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (11,)),
        Invalid(
            _HEAD + "def make(net):\n    params = filter(lambda p: p.requires_grad, net.parameters())\n"
            "    print(sum(p.numel() for p in params))\n    return torch.optim.Adam(params)\n",
            (8,),
        ),
        Invalid(
            _HEAD + "def make(a, b):\n    params = itertools.chain(a.parameters(), b.parameters())\n"
            "    for p in params:\n        p.requires_grad_(True)\n    return torch.optim.Adam(params)\n",
            (9,),
        ),
        Invalid(
            _HEAD + "def clip(net, steps):\n    params = net.parameters()\n    for _ in range(steps):\n"
            "        net.loss().backward()\n        torch.nn.utils.clip_grad_norm_(params, 1.0)\n",
            (9,),
        ),
        Invalid(
            _HEAD + "class Trainer:\n    def __init__(self, net):\n        self.params = net.parameters()\n"
            "        self.optimizer = torch.optim.Adam(self.params)\n\n    def step(self, loss):\n"
            "        loss.backward()\n        torch.nn.utils.clip_grad_norm_(self.params, 1.0)\n"
            "        self.optimizer.step()\n",
            (12,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for call in file.calls(*_SOURCES):
            assignment = file.parent(call)
            if not isinstance(assignment, ast.Assign) or len(assignment.targets) != 1 or not _is_generator(file, call):
                continue
            target = assignment.targets[0]
            if isinstance(target, ast.Name):
                yield from _second_reads(file, call, assignment, target)
            elif isinstance(target, ast.Attribute) and file.source(target).startswith("self."):
                yield from _reads_of_attribute(file, call, target)


def _is_generator(file: FileContext, call: ast.Call) -> bool:
    name = terminal_name(call.func)
    if name == "filter":
        return isinstance(call.func, ast.Name) and len(call.args) == 2 and ".parameters()" in file.source(call.args[1])
    if name == "chain":
        whole = (file.qualified_name(call.func) or "") == "itertools.chain"
        return whole and any(".parameters()" in file.source(argument) for argument in call.args)
    return isinstance(call.func, ast.Attribute) and not call.args and not call.keywords


def _second_reads(file: FileContext, made: ast.Call, assignment: ast.Assign, target: ast.Name) -> Iterator[Hit]:
    scope = file.enclosing_function(assignment)
    if scope is None:
        return
    uses = [n for n in file.nodes_in(scope, ast.Name) if n.id == target.id and isinstance(n.ctx, ast.Load)]
    stores = [n for n in file.nodes_in(scope, ast.Name) if n.id == target.id and isinstance(n.ctx, ast.Store)]
    if len(stores) != 1 or not all(_is_read_to_end(file, use) for use in uses):
        return
    for place, use in enumerate(uses):
        path = path_of(file, use, scope)
        loop = next((o for o, field in reversed(path) if isinstance(o, LOOPS) and field == "body"), None)
        again = loop is not None and loop not in file.ancestors(assignment)
        earlier = [
            other
            for other in uses[:place]
            if not exclusive(path_of(file, other, scope), path) and not _returns(file, other)
        ]
        if again or earlier:
            yield _hit(file, made, use, earlier[0] if earlier else None)
            return


def _returns(file: FileContext, use: ast.expr) -> bool:
    return isinstance(file.statement(use), ast.Return)


def _reads_of_attribute(file: FileContext, made: ast.Call, target: ast.Attribute) -> Iterator[Hit]:
    owner = file.enclosing_class(target)
    if owner is None or len(self_assignments(file, owner).get(target.attr, [])) != 1:
        return
    uses = [
        node
        for node in file.nodes_in(owner, ast.Attribute)
        if node.attr == target.attr and isinstance(node.ctx, ast.Load) and file.source(node) == file.source(target)
    ]
    if len(uses) >= 2 and all(_is_read_to_end(file, use) for use in uses):
        yield _hit(file, made, uses[1], uses[0])


def _is_read_to_end(file: FileContext, use: ast.expr) -> bool:
    """Whether a use reads the generator: a `for`, or a function that is known to go through it."""
    parent = file.parent(use)
    if isinstance(parent, (ast.For, ast.comprehension)):
        return parent.iter is use
    if isinstance(parent, ast.keyword):
        parent = file.parent(parent)
    return isinstance(parent, ast.Call) and parent.func is not use and terminal_name(parent.func) in _CONSUMERS


def _hit(file: FileContext, made: ast.Call, use: ast.expr, earlier: ast.expr | None) -> Hit:
    related: tuple[tuple[ast.AST, str], ...] = ((made, "this is a generator"),)
    if earlier is not None:
        related = (*related, (earlier, "it is read to its end here"))
    return Hit(
        use,
        f"`{file.source(use)}` is a generator that has been read to its end before, so nothing is left of it here. "
        f"Keep a list: `list({file.source(made)})`.",
        related=related,
        fix=Rewrite(FixSafety.UNSAFE, (Replacement(made, f"list({file.source(made)})"),)),
    )
