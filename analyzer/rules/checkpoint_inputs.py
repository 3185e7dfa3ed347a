"""Inputs and variables of a checkpointed function that change before backward reads them again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.checkpoints import Checkpoint, checkpoints, holds, inside
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import own_attribute
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.checkpoint_examples import AFTER, FIRST, LOOP, module
from analyzer.syntax import FunctionNode, parameters
from analyzer.tensor_writes import writes_of


class CheckpointInputChanged(Rule):
    """Values that a checkpoint needs again in backward, and that change before or while it runs."""

    id = "GP805"
    name = "checkpoint-input-changed"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
    torch_versions = "2.13"
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds inputs of a checkpoint that the checkpointed function or a later line changes in place, attributes "
            "that it reads and a later line sets, and `determinism_check='none'` without a reason in sight."
        ),
        why_is_this_bad=(
            "Backward calls the function again with the same objects. A list whose elements have changed by then, or "
            "an attribute set since, gives the gradient of other values without an error (measured: off by 2.6); a "
            "tensor changed in place makes backward raise."
        ),
        faulty_example=module("y = checkpoint(self.plain, x, use_reentrant=False)\nx.add_(1)\nreturn x + y"),
        right_example=module("y = checkpoint(self.plain, x, use_reentrant=False)\nx = x + 1\nreturn x + y"),
        fix_safety="No automatic fix: whether the old or the new value is meant only the author knows.",
    )
    valid = (
        module("y = checkpoint(self.plain, x, use_reentrant=False)\nx = x + 1\nreturn x + y"),
        module("x = x + 1\nx.mul_(2)\nreturn checkpoint(self.plain, x, use_reentrant=False)"),
        module("y = checkpoint(self.plain, x, use_reentrant=False)\ny += x\nreturn y"),
        module(
            "return checkpoint(self.run, x, use_reentrant=False)",
            after="def run(self, x):\n    x = self.plain(x)\n    x += 1\n    return x\n",
        ),
        module("for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\n    x += 1\nreturn x"),
        module(
            "kept = []\ny = checkpoint(self.plain, x, use_reentrant=False)\nkept.append(y)\nreturn kept",
        ),
    )
    invalid = (
        Invalid(module("y = checkpoint(self.plain, x, use_reentrant=False)\nx.add_(1)\nreturn x + y"), (FIRST + 1,)),
        Invalid(module("y = checkpoint(self.plain, x, use_reentrant=False)\nx[:, 0] = 0\nreturn x + y"), (FIRST + 1,)),
        Invalid(
            module(
                "state = [x]\ny = checkpoint(self.run, state, use_reentrant=False)\nstate[0] = y\nreturn y",
                after="def run(self, state):\n    return self.plain(state[0])\n",
            ),
            (FIRST + 2,),
        ),
        Invalid(
            module(
                "kept = [x]\ny = checkpoint(self.run, kept, use_reentrant=False)\nkept.append(y)\nreturn y",
                after="def run(self, kept):\n    return torch.tanh(self.plain(kept[-1]))\n",
            ),
            (FIRST + 2,),
        ),
        Invalid(
            module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    x *= 2\n    return self.plain(x)\n",
            ),
            (AFTER + 1,),
        ),
        Invalid(
            module(
                "y = checkpoint(self.run, x, use_reentrant=False)\nself.scale = 2.0\nreturn y",
                after="def run(self, x):\n    return torch.tanh(self.plain(x) * self.scale)\n",
            ),
            (FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every change of an input of a checkpoint, inside it or after it."""
        told: set[ast.AST] = set()
        for found in checkpoints(file):
            if file.grad_disabled(found.call):
                continue
            for node, what in (*_changed_inside(file, found), *_changed_after(file, found)):
                if node not in told:
                    told.add(node)
                    yield Hit(
                        node,
                        f"{what} changes here, but backward runs the checkpoint in line {found.call.lineno} again with "
                        "it: the gradient is computed from the changed value, or backward raises.",
                        hypothesis={"symbol": file.symbol(found.call)},
                        related=((found.call, "checkpointed here"),),
                    )


def _changed_inside(file: FileContext, found: Checkpoint) -> Iterator[tuple[ast.AST, str]]:
    """In-place changes of its parameters that the checkpointed function itself makes."""
    bodies = inside(file, found).bodies
    function = bodies[0][0] if bodies else None
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    names = {p.arg for p in parameters(function)} - {"self"}
    for node in ast.walk(function):
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.Call)):
            continue
        for write in writes_of(file, node):
            target = write.target
            if isinstance(target, ast.Name) and target.id in names and not file.values.definitions(target):
                annotation = next(p.annotation for p in parameters(function) if p.arg == target.id)
                if annotation is None or "Tensor" in ast.dump(annotation):
                    yield write.node, f"The input `{target.id}`"


_LIST_CHANGES = frozenset({"append", "extend", "insert", "pop", "clear", "update", "remove", "reverse"})


def _changed_after(file: FileContext, found: Checkpoint) -> Iterator[tuple[ast.AST, str]]:
    """Changes of an input, or of an attribute that is read inside, further down in the calling function."""
    function = file.enclosing_function(found.call)
    statement = file.statement(found.call)
    if function is None or statement is None:
        return
    names = {item.id for item in found.arguments if isinstance(item, ast.Name)}
    bindings = file.values.bindings(function)
    order = bindings.order(statement)
    for node in (n for kind in (ast.Assign, ast.AugAssign, ast.Call) for n in file.nodes_in(function, kind)):
        at = file.statement(node)
        if at is None or bindings.order(at) <= order or not _may_follow(file, statement, at):
            continue
        targets = [write.target for write in writes_of(file, node)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LIST_CHANGES:
            targets.append(node.func.value)
        for target in targets:
            if isinstance(target, ast.Name) and target.id in names and _same_object(file, target, statement):
                yield at, f"The input `{target.id}`"
    read = {
        node.attr
        for node, _ in inside(file, found).nodes()
        if isinstance(node, ast.Attribute) and own_attribute(node) is not None and isinstance(node.ctx, ast.Load)
    }
    for assignment in file.nodes_in(function, ast.Assign):
        name = own_attribute(assignment.targets[0])
        later = bindings.order(assignment) > order and _may_follow(file, statement, assignment)
        if name in read and later and isinstance(assignment.value, (ast.Constant, ast.BinOp)):
            yield assignment, f"`self.{name}`, which is read inside,"


def _may_follow(file: FileContext, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether two statements are not in different branches of one `if`, and the first does not leave."""
    if isinstance(first, ast.Return):
        return False
    child: ast.AST = first
    for outer in file.ancestors(first):
        if isinstance(outer, ast.If):
            mine = outer.body if child in outer.body else outer.orelse
            other = outer.orelse if mine is outer.body else outer.body
            if any(holds(second, statement) for statement in other):
                return False
        child = outer
    return True


def _same_object(file: FileContext, target: ast.Name, since: ast.stmt) -> bool:
    """Whether a name still stands for what it stood for at the checkpoint."""
    function = file.enclosing_function(since)
    if function is None:
        return False
    bindings = file.values.bindings(function)
    order = bindings.order(since)
    reaching, _ = bindings.reaching(target.id, file.statement(target))
    return all(bindings.order(b.statement) < order or b.index is not None for b in reaching)


class LateBinding(Rule):
    """A checkpointed lambda or nested function that reads a variable which is assigned again before backward."""

    id = "GP806"
    name = "checkpoint-late-binding"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds lambdas and nested functions handed to a checkpoint that read the variable of a loop around it, or "
            "a variable that is assigned again afterwards. Variables that the function takes as a parameter or as a "
            "default are left alone."
        ),
        why_is_this_bad=(
            "Python looks the variable up when the function runs. Backward runs it after the loop, with the last "
            "layer or value for every turn: the gradients of all other layers are silently wrong (measured on three "
            "linear layers: off by 1.35)."
        ),
        faulty_example=module(
            "for block in self.blocks:\n    x = checkpoint(lambda y: torch.tanh(block(y)), x, use_reentrant=False)\n"
            "return x"
        ),
        right_example=module(
            "for block in self.blocks:\n"
            "    x = checkpoint(lambda y, block=block: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"
        ),
        fix_safety="Safe: the variable becomes a default of the lambda; values stay, gradients become right.",
    )
    valid = (
        module(
            "for block in self.blocks:\n"
            "    x = checkpoint(lambda y, block=block: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"
        ),
        module("for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\nreturn x"),
        module("scale = 2\nx = checkpoint(lambda y: self.plain(y) * scale, x, use_reentrant=False)\nreturn x"),
        module(
            "def make(block):\n    return lambda y: block(y)\nfor block in self.blocks:\n"
            "    x = checkpoint(make(block), x, use_reentrant=False)\nreturn x"
        ),
        module("x = checkpoint(lambda x: self.plain(x), x, use_reentrant=False)\nreturn x"),
        module(
            "for block in self.blocks:\n    def run(y, block=block):\n        return block(y)\n"
            "    x = checkpoint(run, x, use_reentrant=False)\nreturn x"
        ),
    )
    invalid = (
        Invalid(
            module(LOOP),
            (FIRST + 1,),
        ),
        Invalid(
            module(
                "for block in self.blocks:\n    def run(y):\n        return torch.tanh(block(y))\n"
                "    x = checkpoint(run, x, use_reentrant=False)\nreturn x"
            ),
            (FIRST + 3,),
        ),
        Invalid(
            module(
                "for i in range(3):\n    x = checkpoint(lambda y: self.blocks[i](y), x, use_reentrant=False)\nreturn x"
            ),
            (FIRST + 1,),
        ),
        Invalid(
            module("x = checkpoint(lambda y: torch.tanh(self.plain(y) + x), x, use_reentrant=False)\nreturn x"),
            (FIRST,),
        ),
        Invalid(
            module(
                "s = 1.0\ny = checkpoint(lambda z: torch.tanh(self.plain(z) * s), x, use_reentrant=False)\n"
                "s = y.mean()\nreturn y * s"
            ),
            (FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every free variable of a checkpointed function that does not stay as it is."""
        for found in checkpoints(file):
            function = _closure(file, found.function)
            around = file.enclosing_function(found.call)
            statement = file.statement(found.call)
            if function is None or around is None or statement is None:
                continue
            for name in _free_names(function):
                again = _assigned_again(file, around, statement, name)
                if again is None:
                    continue
                yield Hit(
                    found.function if isinstance(found.function, ast.Lambda) else found.call,
                    f"This checkpointed function reads `{name}`, which line {again.lineno} assigns again before "
                    "backward runs it a second time: the gradient is computed with the later value. Bind it as a "
                    f"default: `{name}={name}`.",
                    hypothesis={"symbol": file.symbol(found.call), "variable": name},
                    related=((again, "assigned again here"),),
                    fix=_bound(file, function, name),
                )
                break


def _closure(file: FileContext, function: ast.expr) -> ast.Lambda | FunctionNode | None:
    if isinstance(function, ast.Lambda):
        return function
    if not isinstance(function, ast.Name):
        return None
    around = file.enclosing_function(function)
    for nested in file.functions_by_name.get(function.id, []):
        if around is not None and file.enclosing_function(nested) is around:
            return nested
    definition = file.values.single_definition(function)
    return definition if isinstance(definition, ast.Lambda) else None


def _free_names(function: ast.Lambda | FunctionNode) -> list[str]:
    """The names that a function reads from around it, in source order."""
    bound = {p.arg for p in parameters(function)}
    body: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    nodes = [node for part in body for node in ast.walk(part)]
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and n.id not in bound and n.id != "self"))


def _assigned_again(file: FileContext, around: FunctionNode, statement: ast.stmt, name: str) -> ast.stmt | None:
    """A statement that gives the variable another value after the checkpoint was called."""
    bindings = file.values.bindings(around)
    order = bindings.order(statement)
    loops = [o for o in file.ancestors(statement) if isinstance(o, (ast.For, ast.AsyncFor, ast.While))]
    loops = [loop for loop in loops if around in file.ancestors(loop)]
    for binding in bindings.all(name):
        if binding.index is not None or _is_in_place_call(binding.statement):
            continue
        if bindings.order(binding.statement) >= order and _may_come(file, statement, binding.statement):
            return binding.statement
        if any(binding.statement is loop or holds(binding.statement, loop) for loop in loops):
            return binding.statement
    return None


def _is_in_place_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr)


def _may_come(file: FileContext, statement: ast.stmt, later: ast.stmt) -> bool:
    return statement is later or _may_follow(file, statement, later)


def _bound(file: FileContext, function: ast.Lambda | FunctionNode, name: str) -> Rewrite | None:
    """The lambda with the variable as a default; none where it takes any number of arguments."""
    arguments = function.args
    if not isinstance(function, ast.Lambda) or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
        return None
    free = [item for item in _free_names(function) if item == name]
    given = file.source(function).partition(":")[0].removeprefix("lambda").strip()
    if not free or ":" in given or "(" in given:
        return None
    names = ", ".join(part for part in (given, f"{name}={name}") if part)
    return Rewrite(FixSafety.SAFE, (Replacement(function, f"lambda {names}: {file.source(function.body)}"),))
