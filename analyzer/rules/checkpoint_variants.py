"""The two variants of a checkpoint: chosen by nobody, or the one that records no gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.checkpoints import Checkpoint, checkpoints
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, keyword
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.checkpoint_examples import AFTER, FIRST, module
from analyzer.syntax import parameters, terminal_name


class CheckpointVariant(Rule):
    """A checkpoint that does not say which of the two variants it wants."""

    id = "GP801"
    name = "checkpoint-variant-not-chosen"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "checkpoint_equivalence")
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
        faulty_example=module("return checkpoint(self.plain, x)"),
        right_example=module("return checkpoint(self.plain, x, use_reentrant=False)"),
        fix_safety="Unsafe: `use_reentrant=False` gives the same values, but runs hooks and saves tensors otherwise.",
    )
    valid = (
        module("return checkpoint(self.plain, x, use_reentrant=False)"),
        module("return checkpoint(self.plain, x, use_reentrant=True)"),
        module("options = {'use_reentrant': False}\nreturn checkpoint(self.plain, x, **options)"),
        "import torch\nfrom mine import checkpoint\n\n\ndef run(f, x):\n    return checkpoint(f, x)\n",
    )
    invalid = (
        Invalid(module("return checkpoint(self.plain, x)"), (FIRST,)),
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
    settled_by = ("finding_search", "checkpoint_equivalence")
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
        faulty_example=module("return checkpoint(self.plain, x.detach(), use_reentrant=True)"),
        right_example=module("return checkpoint(self.plain, x.detach(), use_reentrant=False)"),
        fix_safety="Unsafe: parameters begin to receive their gradients.",
    )
    valid = (
        module("return checkpoint(self.plain, x.detach(), use_reentrant=False)"),
        module("return checkpoint(self.plain, self.plain(x), use_reentrant=True)"),
        module("return checkpoint(self.plain, x.detach().requires_grad_(), use_reentrant=True)"),
        module("h = x.detach()\nh.requires_grad = True\nreturn checkpoint(self.plain, h, use_reentrant=True)"),
        module("return checkpoint(self.body, x, x.detach(), use_reentrant=True)"),
        module("return checkpoint(self.plain, x, use_reentrant=True)"),
        module("return checkpoint(self.plain, x, use_reentrant=True)").replace("class Block", "class Net")
        + "\n\nmodel = Net()\n",
        module("with torch.no_grad():\n    return checkpoint(self.plain, x.detach(), use_reentrant=True)"),
    )
    invalid = (
        Invalid(module("return checkpoint(self.plain, x.detach(), use_reentrant=True)"), (FIRST,)),
        Invalid(module("h = x.detach()\nreturn checkpoint(self.plain, h, use_reentrant=True)"), (FIRST + 1,)),
        Invalid(
            module("return x", after="def embed(self, input_ids):\n    return checkpoint(self.plain, input_ids)\n"),
            (AFTER + 1,),
        ),
        Invalid(module("return checkpoint(self.plain, (self.plain(x), x), use_reentrant=True)"), (FIRST,)),
        Invalid(
            module("return checkpoint(self.plain, x, use_reentrant=True)").replace("class Block", "class Net"),
            (FIRST,),
        ),
        Invalid(
            module(
                "return x",
                after="def stem(self, pixel_values):\n    return checkpoint(self.plain, pixel_values, None, "
                "use_reentrant=True)\n",
            ),
            (AFTER + 1,),
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
