"""Checkpointed functions that do not compute the same when backward runs them again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.checkpoints import Checkpoint, Inside, checkpoints, inside
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, mentions, own_attribute
from analyzer.layers import Attribute, Content
from analyzer.module_state import changes_in_place
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.tensor_writes import writes_of

_HEAD = "import random\nimport torch\nimport torch.nn as nn\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.body = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3))\n"
    "        self.plain = nn.Linear(width, width)\n"
    "        self.normed = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))\n"
    "        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])\n"
    "        self.register_buffer('volt', torch.zeros(width))\n        self.calls = 0\n\n"
    "    def forward(self, x):\n"
)
# The first line of `body`, and that of `after`, in what `_module` makes of a body of one line.
_FIRST, _AFTER = 18, 20


_VOLT = "def step(self, x):\n    self.volt.mul_(0.9).add_(x.detach().mean(0))\n    return self.plain(x)\n"
_LOOP = (
    "for block in self.blocks:\n    x = checkpoint(lambda y: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"
)


def _module(body: str, *, after: str = "") -> str:
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    method = "".join(f"    {line}\n" if line else "\n" for line in after.splitlines())
    return f"{_HEAD}{_BLOCK}{forward}" + (f"\n{method}" if method else "")


class CheckpointVariant(Rule):
    """A checkpoint that does not say which of the two variants it wants."""

    id = "GP801"
    name = "checkpoint-variant-not-chosen"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("checkpoint_equivalence",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds calls of `torch.utils.checkpoint.checkpoint` and `checkpoint_sequential` without `use_reentrant`."
        ),
        why_is_this_bad=(
            "torch 2.13 warns at every such call and takes the reentrant variant (the promised error never came). That "
            "one gives no gradients to the parameters when no input requires grad, does not see tensors inside "
            "dictionaries and tuples, and fails with several other features."
        ),
        faulty_example=_module("return checkpoint(self.plain, x)"),
        right_example=_module("return checkpoint(self.plain, x, use_reentrant=False)"),
        fix_safety="Unsafe: `use_reentrant=False` gives the same values, but runs hooks and saves tensors otherwise.",
    )
    valid = (
        _module("return checkpoint(self.plain, x, use_reentrant=False)"),
        _module("return checkpoint(self.plain, x, use_reentrant=True)"),
        _module("options = {'use_reentrant': False}\nreturn checkpoint(self.plain, x, **options)"),
        "import torch\nfrom mine import checkpoint\n\n\ndef run(f, x):\n    return checkpoint(f, x)\n",
    )
    invalid = (
        Invalid(_module("return checkpoint(self.plain, x)"), (_FIRST,)),
        Invalid(
            "import torch.utils.checkpoint as cp\n\n\ndef run(f, x):\n    return cp.checkpoint(\n        f,\n"
            "        x,\n    )\n",
            (5,),
        ),
        Invalid(
            "from torch.utils import checkpoint\n\n\ndef run(f, x):\n"
            "    return checkpoint.checkpoint_sequential(f, 2, x, preserve_rng_state=True)\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call without the keyword."""
        for found in checkpoints(file):
            if found.says_reentrant or any(isinstance(argument, ast.Starred) for argument in found.call.args[:1]):
                continue
            yield Hit(
                found.call,
                "Without `use_reentrant` torch warns and takes the reentrant variant, which gives no gradients when no "
                "input requires grad. Pass `use_reentrant=False`.",
                fix=_adding(file, found.call, "use_reentrant=False", FixSafety.UNSAFE),
            )


def _adding(file: FileContext, call: ast.Call, text: str, safety: FixSafety) -> Rewrite:
    """The call with a further keyword before its last parenthesis, in its own lines."""
    source = file.source(call)
    inner = source[:-1].rstrip()
    ending = source[len(inner) :]
    separator = "" if inner.endswith(",") else ","
    before_keyword = ending[:-1] + "    " if "\n" in ending else " "
    return Rewrite(safety, (Replacement(call, f"{inner}{separator}{before_keyword}{text}{ending}"),))


class ReentrantWithoutGradient(Rule):
    """A reentrant checkpoint none of whose inputs can require grad."""

    id = "GP802"
    name = "reentrant-without-gradient"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("checkpoint_equivalence",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("checkpoint(", "checkpoint_sequential(")
    documentation = Documentation(
        what_it_does=(
            "Finds reentrant checkpoints (`use_reentrant=True`, or not passed) whose tensors are all detached, integer "
            "ids, images or tensors made on the spot, or lie in a list, tuple or dictionary."
        ),
        why_is_this_bad=(
            "The reentrant variant records the checkpoint only if one of the tensors it is handed directly requires "
            "grad. Otherwise the parameters inside get no gradient at all (measured: `weight.grad` is None, or "
            "backward raises), with no more than a warning."
        ),
        faulty_example=_module("return checkpoint(self.plain, x.detach(), use_reentrant=True)"),
        right_example=_module("return checkpoint(self.plain, x.detach(), use_reentrant=False)"),
        fix_safety="Unsafe: parameters begin to receive their gradients.",
    )
    valid = (
        _module("return checkpoint(self.plain, x.detach(), use_reentrant=False)"),
        _module("return checkpoint(self.plain, self.plain(x), use_reentrant=True)"),
        _module("return checkpoint(self.plain, x.detach().requires_grad_(), use_reentrant=True)"),
        _module("h = x.detach()\nh.requires_grad = True\nreturn checkpoint(self.plain, h, use_reentrant=True)"),
        _module("return checkpoint(self.body, x, x.detach(), use_reentrant=True)"),
        _module("return checkpoint(self.plain, x, use_reentrant=True)"),
        _module("return checkpoint(self.plain, x, use_reentrant=True)").replace("class Block", "class Net")
        + "\n\nmodel = Net()\n",
        _module("with torch.no_grad():\n    return checkpoint(self.plain, x.detach(), use_reentrant=True)"),
    )
    invalid = (
        Invalid(_module("return checkpoint(self.plain, x.detach(), use_reentrant=True)"), (_FIRST,)),
        Invalid(_module("h = x.detach()\nreturn checkpoint(self.plain, h, use_reentrant=True)"), (_FIRST + 1,)),
        Invalid(
            _module("return x", after="def embed(self, input_ids):\n    return checkpoint(self.plain, input_ids)\n"),
            (_AFTER + 1,),
        ),
        Invalid(_module("return checkpoint(self.plain, (self.plain(x), x), use_reentrant=True)"), (_FIRST,)),
        Invalid(
            _module("return checkpoint(self.plain, x, use_reentrant=True)").replace("class Block", "class Net"),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "return x",
                after="def stem(self, pixel_values):\n    return checkpoint(self.plain, pixel_values, None, "
                "use_reentrant=True)\n",
            ),
            (_AFTER + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every reentrant checkpoint whose inputs all lack a gradient."""
        for found in checkpoints(file):
            if found.reentrant is False or any(item.arg is None for item in found.call.keywords):
                continue
            tensors = [item for item in found.arguments if not isinstance(item, ast.Constant)]
            if not tensors or file.grad_disabled(found.call):
                continue
            if not all(_lacks_gradient(file, item) for item in tensors) and not _is_first(file, found, tensors):
                continue
            given = keyword(found.call, "use_reentrant")
            fix = None
            if given is not None:
                fix = Rewrite(FixSafety.UNSAFE, (Replacement(given, "False"),))
            yield Hit(
                found.call,
                "No tensor that this reentrant checkpoint is handed requires grad (an input of the model does not by "
                "itself), so nothing inside it is recorded: its parameters get no gradient. Pass "
                "`use_reentrant=False`.",
                hypothesis={"symbol": file.symbol(found.call), "arguments": [file.source(item) for item in tensors]},
                related=tuple((item, "requires no grad") for item in tensors),
                fix=fix,
            )


def _is_first(file: FileContext, found: Checkpoint, tensors: list[ast.expr]) -> bool:
    """Whether the checkpoint is asked to be reentrant and gets the input of a module that no other module builds."""
    function, owner = file.enclosing_function(found.call), forward_code(file).module_of(found.call)
    if found.reentrant is not True or function is None or owner is None or function.name != "forward":
        return False
    given = {parameter.arg for parameter in parameters(function)}
    as_given = all(
        isinstance(item, ast.Name) and item.id in given and not file.values.definitions(item) for item in tensors
    )
    inner = re.search(r"(Block|Layer|Unit|Encoder|Decoder|Attention|Stage|Conv|Cell|Mixin|Head|MLP)", owner.name)
    return as_given and inner is None and not file.calls(owner.name)


_DATA_NAMES = re.compile(
    r"^(input_ids|input_features|input_values|token_ids|tokens|ids|idx|indices|index|labels?|targets?|pixel_values|images?|imgs?|mask|attention_mask|"
    r"position_ids|timesteps?)$"
)


def _lacks_gradient(file: FileContext, argument: ast.expr) -> bool:
    """Whether an argument hands the checkpoint no tensor that requires grad."""
    if isinstance(argument, (ast.Tuple, ast.List, ast.Dict)):
        return True
    if isinstance(argument, ast.Call):
        return terminal_name(argument.func) == "detach"
    if not isinstance(argument, ast.Name):
        return False
    definition = file.values.single_definition(argument)
    if definition is not None:
        marked = any(
            isinstance(node, ast.Attribute)
            and node.attr in ("requires_grad", "requires_grad_")
            and isinstance(node.value, ast.Name)
            and node.value.id == argument.id
            for node in file.nodes(ast.Attribute)
        )
        return not marked and not isinstance(definition, ast.Name) and _lacks_gradient(file, definition)
    function = file.enclosing_function(argument)
    is_parameter = function is not None and argument.id in {p.arg for p in parameters(function)}
    return is_parameter and not file.values.definitions(argument) and bool(_DATA_NAMES.search(argument.id))


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
    settled_by = ("checkpoint_equivalence",)
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
            "than the loss (measured: off by 4.0 where the right gradient is at most 2; with a generator of its own, "
            "0.88). Nothing is raised."
        ),
        faulty_example=_module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=False)"),
        right_example=_module("return checkpoint(self.body, x, use_reentrant=False)"),
        fix_safety="Safe: the values stay, and the gradients become those of the loss.",
    )
    valid = (
        _module("return checkpoint(self.body, x, use_reentrant=False)"),
        _module("return checkpoint(self.plain, x, use_reentrant=False, preserve_rng_state=False)"),
        _module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=True)"),
        _module(
            "return checkpoint(self.run, x, use_reentrant=False)",
            after="def run(self, x):\n    return self.plain(x) * torch.rand_like(x)\n",
        ),
        _module(
            "scale = random.random()\nreturn checkpoint(self.run, x, scale, use_reentrant=False)",
            after="def run(self, x, scale):\n    return self.plain(x) * scale\n",
        ),
    )
    invalid = (
        Invalid(_module("return checkpoint(self.body, x, use_reentrant=False, preserve_rng_state=False)"), (_FIRST,)),
        Invalid(
            _module(
                "return checkpoint(self.run, x, use_reentrant=False, preserve_rng_state=False)",
                after="def run(self, x):\n    return nn.functional.dropout(self.plain(x), 0.5, self.training)\n",
            ),
            (_FIRST,),
        ),
        Invalid(
            _module("return checkpoint(lambda y: self.body(y), x, use_reentrant=False, preserve_rng_state=False)"),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    if random.random() < 0.5:\n        return x\n    return self.plain(x)\n",
            ),
            (_AFTER + 1,),
        ),
        Invalid(
            _module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    return self.plain(x) * torch.rand(4, generator=self.generator)\n",
            ),
            (_AFTER + 1,),
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
    settled_by = ("checkpoint_equivalence",)
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
        faulty_example=_module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    volt = 0.9 * self.volt + self.plain(x)\n    self.volt = volt.detach()\n"
            "    return volt\n",
        ),
        right_example=_module(
            "y = checkpoint(self.step, x, self.volt, use_reentrant=False)\nself.volt = y.detach()\nreturn y",
            after="def step(self, x, volt):\n    return 0.9 * volt + self.plain(x)\n",
        ),
        fix_safety="No automatic fix: the state has to be passed in and set outside of the checkpoint.",
    )
    valid = (
        _module("return checkpoint(self.plain, x, use_reentrant=False)"),
        _module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    self.last = self.plain(x).detach()\n    return self.plain(x)\n",
        ),
        _module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    self.last = self.plain(x)\n    return self.last * 2\n",
        ),
        _module(
            "return checkpoint(self.step, x, use_reentrant=False)",
            after="def step(self, x):\n    if not self.is_recomputing:\n        self.calls += 1\n"
            "    return self.plain(x)\n",
        ),
        _module("self.calls += 1\nreturn checkpoint(self.plain, x, use_reentrant=False)"),
        _module("with torch.no_grad():\n    return checkpoint(self.normed, x, use_reentrant=False)"),
    )
    invalid = (
        Invalid(
            _module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after="def step(self, x):\n    volt = 0.9 * self.volt + self.plain(x)\n    self.volt = volt.detach()\n"
                "    return volt\n",
            ),
            (_AFTER + 1,),
        ),
        Invalid(
            _module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after="def step(self, x):\n    self.calls += 1\n    return self.plain(x) * self.calls\n",
            ),
            (_AFTER + 1,),
        ),
        Invalid(
            _module(
                "return checkpoint(self.step, x, use_reentrant=False)",
                after=_VOLT,
            ),
            (_AFTER + 1,),
        ),
        Invalid(_module("return checkpoint(self.normed, x, use_reentrant=False)"), (_FIRST,)),
        Invalid(_module("return checkpoint(lambda y: self.normed(y) + y, x, use_reentrant=False)"), (_FIRST,)),
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
    return any(isinstance(outer, (ast.If, ast.IfExp)) and _within(use, outer.test) for outer in file.ancestors(use))


def _within(node: ast.AST, whole: ast.AST) -> bool:
    return any(part is node for part in ast.walk(whole))


class CheckpointInputChanged(Rule):
    """Values that a checkpoint needs again in backward, and that change before or while it runs."""

    id = "GP805"
    name = "checkpoint-input-changed"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("checkpoint_equivalence",)
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
        faulty_example=_module("y = checkpoint(self.plain, x, use_reentrant=False)\nx.add_(1)\nreturn x + y"),
        right_example=_module("y = checkpoint(self.plain, x, use_reentrant=False)\nx = x + 1\nreturn x + y"),
        fix_safety="No automatic fix: whether the old or the new value is meant only the author knows.",
    )
    valid = (
        _module("y = checkpoint(self.plain, x, use_reentrant=False)\nx = x + 1\nreturn x + y"),
        _module("x = x + 1\nx.mul_(2)\nreturn checkpoint(self.plain, x, use_reentrant=False)"),
        _module("y = checkpoint(self.plain, x, use_reentrant=False)\ny += x\nreturn y"),
        _module(
            "return checkpoint(self.run, x, use_reentrant=False)",
            after="def run(self, x):\n    x = self.plain(x)\n    x += 1\n    return x\n",
        ),
        _module("for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\n    x += 1\nreturn x"),
        _module(
            "kept = []\ny = checkpoint(self.plain, x, use_reentrant=False)\nkept.append(y)\nreturn kept",
        ),
    )
    invalid = (
        Invalid(_module("y = checkpoint(self.plain, x, use_reentrant=False)\nx.add_(1)\nreturn x + y"), (_FIRST + 1,)),
        Invalid(
            _module("y = checkpoint(self.plain, x, use_reentrant=False)\nx[:, 0] = 0\nreturn x + y"), (_FIRST + 1,)
        ),
        Invalid(
            _module(
                "state = [x]\ny = checkpoint(self.run, state, use_reentrant=False)\nstate[0] = y\nreturn y",
                after="def run(self, state):\n    return self.plain(state[0])\n",
            ),
            (_FIRST + 2,),
        ),
        Invalid(
            _module(
                "kept = [x]\ny = checkpoint(self.run, kept, use_reentrant=False)\nkept.append(y)\nreturn y",
                after="def run(self, kept):\n    return torch.tanh(self.plain(kept[-1]))\n",
            ),
            (_FIRST + 2,),
        ),
        Invalid(
            _module(
                "return checkpoint(self.run, x, use_reentrant=False)",
                after="def run(self, x):\n    x *= 2\n    return self.plain(x)\n",
            ),
            (_AFTER + 1,),
        ),
        Invalid(
            _module(
                "y = checkpoint(self.run, x, use_reentrant=False)\nself.scale = 2.0\nreturn y",
                after="def run(self, x):\n    return torch.tanh(self.plain(x) * self.scale)\n",
            ),
            (_FIRST + 1,),
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
            if any(_within(second, statement) for statement in other):
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
    settled_by = ("checkpoint_equivalence",)
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
        faulty_example=_module(
            "for block in self.blocks:\n    x = checkpoint(lambda y: torch.tanh(block(y)), x, use_reentrant=False)\n"
            "return x"
        ),
        right_example=_module(
            "for block in self.blocks:\n"
            "    x = checkpoint(lambda y, block=block: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"
        ),
        fix_safety="Safe: the variable becomes a default of the lambda; values stay, gradients become right.",
    )
    valid = (
        _module(
            "for block in self.blocks:\n"
            "    x = checkpoint(lambda y, block=block: torch.tanh(block(y)), x, use_reentrant=False)\nreturn x"
        ),
        _module("for block in self.blocks:\n    x = checkpoint(block, x, use_reentrant=False)\nreturn x"),
        _module("scale = 2\nx = checkpoint(lambda y: self.plain(y) * scale, x, use_reentrant=False)\nreturn x"),
        _module(
            "def make(block):\n    return lambda y: block(y)\nfor block in self.blocks:\n"
            "    x = checkpoint(make(block), x, use_reentrant=False)\nreturn x"
        ),
        _module("x = checkpoint(lambda x: self.plain(x), x, use_reentrant=False)\nreturn x"),
        _module(
            "for block in self.blocks:\n    def run(y, block=block):\n        return block(y)\n"
            "    x = checkpoint(run, x, use_reentrant=False)\nreturn x"
        ),
    )
    invalid = (
        Invalid(
            _module(_LOOP),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "for block in self.blocks:\n    def run(y):\n        return torch.tanh(block(y))\n"
                "    x = checkpoint(run, x, use_reentrant=False)\nreturn x"
            ),
            (_FIRST + 3,),
        ),
        Invalid(
            _module(
                "for i in range(3):\n    x = checkpoint(lambda y: self.blocks[i](y), x, use_reentrant=False)\nreturn x"
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module("x = checkpoint(lambda y: torch.tanh(self.plain(y) + x), x, use_reentrant=False)\nreturn x"),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "s = 1.0\ny = checkpoint(lambda z: torch.tanh(self.plain(z) * s), x, use_reentrant=False)\n"
                "s = y.mean()\nreturn y * s"
            ),
            (_FIRST + 1,),
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
        if any(binding.statement is loop or _within(binding.statement, loop) for loop in loops):
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
