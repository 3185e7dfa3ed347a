"""Random numbers and state that are others when backward runs a checkpointed function again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.checkpoints import Checkpoint, Inside, checkpoints, holds, inside
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, mentions, own_attribute
from analyzer.layers import Attribute, Content
from analyzer.module_state import changes_in_place
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.checkpoint_examples import AFTER, FIRST, VOLT, module
from analyzer.syntax import terminal_name

# What draws random numbers: layers in training mode, and functions of torch.
_RANDOM_LAYERS = re.compile(r"Dropout|RReLU|FractionalMaxPool")
_RANDOM_CALLS = frozenset(
    {
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"),
        *(
            "rand",
            "randn",
            "rand_like",
            "randn_like",
            "randint",
            "randint_like",
            "randperm",
            "bernoulli",
            "multinomial",
        ),
        *("normal_", "uniform_", "bernoulli_", "exponential_", "gumbel_softmax", "poisson", "normal", "drop_path"),
        *("DropPath", "rsample", "sample", "random_"),
    }
)


_OWN_RANDOM = re.compile(r"^(random|numpy\.random)\.")


class RandomStateNotKept(Rule):
    """Random numbers in a checkpoint that are drawn anew when backward runs it again."""

    id = "GP803"
    name = "checkpoint-random-state"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds `preserve_rng_state=False` around code with dropout or other random numbers, and checkpointed code "
            "that draws from `random`, from NumPy or from a `torch.Generator` of its own, which a checkpoint never "
            "restores."
        ),
        why_is_this_bad=(
            "Backward runs the function again and draws other numbers: the gradient belongs to another dropout mask "
            "than the loss (measured: off by 4.0 with dropout, by 0.88 with a generator of its own). Nothing is raised."
        ),
        faulty_example=module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=False)"),
        right_example=module("return checkpoint(self.body, x, use_reentrant=False)"),
        fix_safety="Safe: the values stay, and the gradients become those of the loss.",
    )
    valid = (
        module("return checkpoint(self.body, x, use_reentrant=False)"),
        module("return checkpoint(self.plain, x, use_reentrant=False, preserve_rng_state=False)"),
        module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=True)"),
        module(
            "return checkpoint(self.run, x, use_reentrant=False)",
            after="def run(self, x):\n    return self.plain(x) * torch.rand_like(x)\n",
        ),
        module(
            "scale = random.random()\nreturn checkpoint(self.run, x, scale, use_reentrant=False)",
            after="def run(self, x, scale):\n    return self.plain(x) * scale\n",
        ),
    )
    invalid = (
        Invalid(module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=False)"), (FIRST,)),
        Invalid(
            module(
                "return checkpoint(self.run, x, use_reentrant=False, preserve_rng_state=False)",
                after="def run(self, x):\n    return nn.functional.dropout(self.plain(x), 0.5, self.training)\n",
            ),
            (FIRST,),
        ),
        Invalid(
            module("return checkpoint(lambda y: self.body(y), x, use_reentrant=False, preserve_rng_state=False)"),
            (FIRST,),
        ),
        Invalid(
            module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    if random.random() < 0.5:\n        return x\n    return self.plain(x)\n",
            ),
            (AFTER + 1,),
        ),
        Invalid(
            module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    return self.plain(x) * torch.rand(4, generator=self.generator)\n",
            ),
            (AFTER + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every checkpoint around random numbers that it will not restore."""
        told: set[ast.AST] = set()
        for found in checkpoints(file):
            within = inside(file, found)
            kept = keyword(found.call, "preserve_rng_state")
            if is_constant(kept, value=False) and kept is not None:
                source = _random_source(file, within)
                if source is not None or not within.complete:
                    yield self._not_preserved(file, found, kept, source)
            for node, how in _own_random(file, within):
                if node not in told:
                    told.add(node)
                    yield Hit(
                        node,
                        f"{how} is not restored when backward runs this checkpointed function again: the gradient "
                        "belongs to other numbers than the loss. Draw them outside and pass them in.",
                        hypothesis={"symbol": file.symbol(found.call), "source": how},
                        related=((found.call, "checkpointed here"),),
                    )

    def _not_preserved(self, file: FileContext, found: Checkpoint, kept: ast.expr, source: ast.AST | None) -> Hit:
        certain = source is not None
        return Hit(
            found.call,
            "`preserve_rng_state=False` lets backward draw other random numbers than the forward pass did: "
            + ("the gradient belongs to another dropout mask." if certain else "wrong if anything inside is random.")
            + " Leave it at True.",
            severity=None if certain else Severity.NOTE,
            confidence=None if certain else Confidence.LOW,
            hypothesis={"symbol": file.symbol(found.call)},
            related=((source, "random numbers are drawn here"),) if source is not None else (),
            fix=Rewrite(FixSafety.SAFE, (Replacement(kept, "True"),)),
        )


def _random_source(file: FileContext, within: Inside) -> ast.AST | None:
    for layer in within.layers:
        if _RANDOM_LAYERS.search(layer.name):
            return layer.node
    for node, _ in within.nodes():
        if isinstance(node, ast.Call) and terminal_name(node.func) in _RANDOM_CALLS:
            qualified = file.qualified_name(node.func)
            if (qualified is None or qualified.startswith("torch.")) and not _is_off(node):
                return node
    return None


def _is_off(call: ast.Call) -> bool:
    """`F.dropout(x, training=False)`, `F.dropout(x, 0.0)`."""
    if is_constant(keyword(call, "training"), value=False):
        return True
    rate = keyword(call, "p") or (call.args[1] if len(call.args) > 1 else None)
    return isinstance(rate, ast.Constant) and rate.value == 0


def _own_random(file: FileContext, within: Inside) -> Iterator[tuple[ast.AST, str]]:
    for node, _ in within.nodes():
        if not isinstance(node, ast.Call):
            continue
        qualified = file.qualified_name(node.func) or ""
        if _OWN_RANDOM.search(qualified) and terminal_name(node.func) not in ("seed", "default_rng", "RandomState"):
            yield node, f"`{file.source(node.func)}`"
        generator = keyword(node, "generator")
        if generator is not None and not is_constant(generator, value=None):
            made_inside = isinstance(generator, ast.Name) and file.values.single_definition(generator) is not None
            if not made_inside:
                yield node, f"The generator `{file.source(generator)}`"


_STATISTICS = re.compile(r"\.(Lazy)?(Sync)?BatchNorm")


class StateChangedInCheckpoint(Rule):
    """State of a module that a checkpointed function changes, and backward changes a second time."""

    id = "GP804"
    name = "state-changed-in-checkpoint"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
    torch_versions = "2.13"
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds checkpointed code that reads and sets an attribute of its module, counts in one, or updates a "
            "buffer in place, and batch norm layers that keep running statistics. Attributes that are only set "
            "(kept for inspection) and code that asks whether it is being recomputed are left alone."
        ),
        why_is_this_bad=(
            "Backward runs the function again. A state that it reads and sets has moved on by then, so that the "
            "recomputed values and the gradient are those of another state; counters advance twice, and running "
            "statistics take every batch in twice (measured: 2.50 after one step instead of 1.67)."
        ),
        faulty_example=module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    volt = 0.9 * self.volt + self.plain(x)\n    self.volt = volt.detach()\n"
            "    return volt\n",
        ),
        right_example=module(
            "y = checkpoint(self.step, x, self.volt, use_reentrant=False)\nself.volt = y.detach()\nreturn y",
            after="def step(self, x, volt):\n    return 0.9 * volt + self.plain(x)\n",
        ),
        fix_safety="No automatic fix: the state has to be passed in and set outside of the checkpoint.",
    )
    valid = (
        module("return checkpoint(self.plain, x, use_reentrant=False)"),
        module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    self.last = self.plain(x).detach()\n    return self.plain(x)\n",
        ),
        module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    self.last = self.plain(x)\n    return self.last * 2\n",
        ),
        module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    if not self.is_recomputing:\n        self.calls += 1\n"
            "    return self.plain(x)\n",
        ),
        module("self.calls += 1\nreturn checkpoint(self.plain, x, use_reentrant=False)"),
        module("with torch.no_grad():\n    return checkpoint(self.normed, x, use_reentrant=False)"),
    )
    invalid = (
        Invalid(
            module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after="def step(self, x):\n    volt = 0.9 * self.volt + self.plain(x)\n    self.volt = volt.detach()\n"
                "    return volt\n",
            ),
            (AFTER + 1,),
        ),
        Invalid(
            module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after="def step(self, x):\n    self.calls += 1\n    return self.plain(x) * self.calls\n",
            ),
            (AFTER + 1,),
        ),
        Invalid(
            module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after=VOLT,
            ),
            (AFTER + 1,),
        ),
        Invalid(module("return checkpoint(self.normed, x, use_reentrant=False)"), (FIRST,)),
        Invalid(module("return checkpoint(lambda y: self.normed(y) + y, x, use_reentrant=False)"), (FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every change of state inside a checkpoint."""
        told: set[ast.AST] = set()
        for found in checkpoints(file):
            if file.grad_disabled(found.call):
                continue
            within = inside(file, found)
            norm = next((layer for layer in within.layers if _keeps_statistics(layer)), None)
            if norm is not None:
                yield self._statistics(file, found, norm)
            for node, name, other in _changes(file, within):
                if node not in told:
                    told.add(node)
                    yield self._change(file, found, node, name, other)

    def _statistics(self, file: FileContext, found: Checkpoint, norm: Attribute) -> Hit:
        return Hit(
            found.call,
            f"Backward runs this checkpoint again, and `{norm.name.removeprefix('torch.')}` inside it updates its "
            "running statistics a second time for the same batch.",
            hypothesis={"symbol": file.symbol(found.call), "layer": norm.name},
            related=((norm.node, "keeps running statistics"),),
        )

    def _change(self, file: FileContext, found: Checkpoint, node: ast.AST, name: str, other: ast.AST | None) -> Hit:
        related: list[tuple[ast.AST, str]] = [(found.call, "checkpointed here")]
        if other is not None:
            related.append((other, "set here"))
        return Hit(
            node,
            f"`self.{name}` is changed inside a checkpointed function, which backward runs again: the recomputation "
            "starts from the changed value and changes it a second time. Pass it in, and set it outside.",
            hypothesis={"symbol": file.symbol(found.call), "attribute": name},
            related=tuple(related),
        )


def _keeps_statistics(layer: Attribute) -> bool:
    if not _STATISTICS.search(layer.name) or not isinstance(layer.node, ast.Call):
        return False
    return not is_constant(keyword(layer.node, "track_running_stats"), value=False)


def _changes(file: FileContext, within: Inside) -> Iterator[tuple[ast.AST, str, ast.AST | None]]:
    """(where state is read or changed, the attribute, where it is set) for every state that does not stay."""
    for body, owner in within.bodies:
        if owner is None or mentions(body, "is_recomputing", "is_recompute", "recompute", "recomputing"):
            continue
        uses = [node for node in ast.walk(body) if isinstance(node, ast.Attribute) and own_attribute(node) is not None]
        uses.sort(key=lambda use: (use.lineno, use.col_offset))
        for use in uses:
            if _advances(file, owner, use):
                yield file.statement(use) or use, use.attr, None
                continue
            if isinstance(use.ctx, ast.Load) and _is_read_before_set(file, use, uses):
                setting = next(u for u in uses if u.attr == use.attr and isinstance(u.ctx, ast.Store))
                yield use, use.attr, setting


def _advances(file: FileContext, owner: ast.ClassDef, use: ast.Attribute) -> bool:
    """`self.n += 1`, `self.ema.mul_(0.9)`: the new value depends on the old one."""
    parent = file.parent(use)
    if isinstance(parent, ast.AugAssign) and parent.target is use:
        return True
    known = forward_code(file).attributes(owner).get(use.attr)
    return known is not None and known.content is Content.BUFFER and changes_in_place(file, use)


def _is_read_before_set(file: FileContext, use: ast.Attribute, uses: list[ast.Attribute]) -> bool:
    """Whether a method reads an attribute as the last call left it, and sets it anew."""
    statement = file.statement(use)
    for other in uses:
        if other.attr == use.attr and isinstance(other.ctx, ast.Store):
            setting = file.statement(other)
            if isinstance(setting, ast.AugAssign) or setting is None or statement is None:
                return False
            if file.enclosing_function(other) is not file.enclosing_function(use):
                return False
            # The first of them decides: what is set first is fresh at every reading.
            return statement.lineno <= setting.lineno and not _only_tests(file, use)
    return False


def _only_tests(file: FileContext, use: ast.Attribute) -> bool:
    """`if self.cache is None: self.cache = …` gives the same the second time."""
    return any(isinstance(outer, (ast.If, ast.IfExp)) and holds(use, outer.test) for outer in file.ancestors(use))
