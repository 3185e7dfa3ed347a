"""Moves between devices that are not finished when their result is read, or whose result nobody takes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, own_attribute
from analyzer.placement import FACTORIES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import with_body
from analyzer.syntax import FunctionNode, parameters, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.up = nn.Linear(width, width)\n        self.noise = torch.Generator()\n\n    def forward(self, x):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
_FIRST = 12


_WAITING = frozenset(
    # `x.cpu()` waits for everything before it on the same stream.
    {"synchronize", "wait", "wait_stream", "wait_event", "query", "record_event", "current_stream", "Event", "cpu"}
)


class UnfinishedCopy(Rule):
    """A copy to the CPU that does not wait, and whose result is read at once."""

    id = "GP606"
    name = "unfinished-copy"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare",)
    fix = FixSafety.SAFE
    triggers = ("non_blocking",)
    documentation = Documentation(
        what_it_does=(
            "Finds copies from a GPU to the CPU with `non_blocking=True` (`x.to('cpu', non_blocking=True)`, "
            "`buffer.copy_(x, non_blocking=True)` into a pinned buffer) whose result is read in the same function "
            "without a synchronisation between them. A result that is only stored or returned gets a note; copies to "
            "a GPU are left alone."
        ),
        why_is_this_bad=(
            "The call returns before the copy has happened. What the CPU reads is what the memory held before: zeros "
            "or old numbers, now and then, and without an error."
        ),
        faulty_example=_forward("y = self.up(x).to('cpu', non_blocking=True)\nreturn y.numpy()"),
        right_example=_forward(
            "y = self.up(x).to('cpu', non_blocking=True)\ntorch.cuda.synchronize()\nreturn y.numpy()"
        ),
        fix_safety="Safe: the copy waits, and the values are those that were meant.",
    )
    valid = (
        _forward("y = self.up(x).to('cpu', non_blocking=True)\ntorch.cuda.synchronize()\nreturn y.numpy()"),
        _forward("y = self.up(x).to('cpu')\nreturn y.numpy()"),
        _forward("y = x.to('cuda:0', non_blocking=True)\nreturn self.up(y)"),
        _forward("y = x.to(self.up.weight.device, non_blocking=True)\nreturn self.up(y)"),
        _forward("y = self.up(x).to('cpu', non_blocking=False)\nreturn y.numpy()"),
        _forward(
            "y = self.up(x).to('cpu', non_blocking=True)\ndone = torch.cuda.Event()\ndone.record()\n"
            "done.synchronize()\nreturn y.numpy()"
        ),
    )
    invalid = (
        Invalid(_forward("y = self.up(x).to('cpu', non_blocking=True)\nreturn y.numpy()"), (_FIRST,)),
        Invalid(_forward("return self.up(x).to('cpu', non_blocking=True).tolist()"), (_FIRST,)),
        Invalid(
            _forward("y = self.up(x).to(device=torch.device('cpu'), non_blocking=True)\nreturn float(y.sum())"),
            (_FIRST,),
        ),
        Invalid(
            _forward(
                "host = torch.empty(4, pin_memory=True)\nhost.copy_(self.up(x), non_blocking=True)\nreturn host.numpy()"
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _forward("y = self.up(x).to('cpu', non_blocking=True)\nif y.max() > 1:\n    y = y / 2\nreturn y"), (_FIRST,)
        ),
        Invalid(_forward("y = self.up(x).to('cpu', non_blocking=True)\nreturn y"), (_FIRST,)),
        Invalid(
            _forward(
                "kept = []\nfor part in x:\n    y = self.up(part).to('cpu', non_blocking=True)\n    kept.append(y)\n"
                "return torch.stack(kept)"
            ),
            (_FIRST + 2,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every copy to the CPU that does not wait."""
        for call in file.calls("to", "copy_"):
            waits_not = keyword(call, "non_blocking")
            if not is_constant(waits_not, value=True) or waits_not is None or not isinstance(call.func, ast.Attribute):
                continue
            target = _host_target(file, call, call.func)
            function = file.enclosing_function(call)
            if target is None or function is None or _waits_after(file, function, call):
                continue
            read = _read_on_host(file, function, call, target)
            stored = read is None
            yield Hit(
                call,
                "`non_blocking=True` returns before the copy to the CPU has happened"
                + (f", and line {read.lineno} reads it: " if read is not None else ": whoever reads the result sees ")
                + "old memory now and then. Synchronise first, or copy without it.",
                severity=Severity.NOTE if stored else None,
                confidence=Confidence.LOW if stored else None,
                hypothesis={"symbol": file.symbol(call)},
                related=((read, "read on the CPU here"),) if read is not None else (),
                fix=Rewrite(FixSafety.SAFE, (Replacement(waits_not, "False"),)),
            )


def _is_cpu(file: FileContext, chosen: ast.expr | None) -> bool:
    if isinstance(chosen, ast.Call) and file.qualified_name(chosen.func) == "torch.device" and chosen.args:
        chosen = chosen.args[0]
    return isinstance(chosen, ast.Constant) and isinstance(chosen.value, str) and chosen.value.startswith("cpu")


def _host_target(file: FileContext, call: ast.Call, function: ast.Attribute) -> ast.expr | None:
    """The expression that holds the result on the CPU; None for copies to elsewhere."""
    if function.attr == "to":
        chosen = keyword(call, "device") or (call.args[0] if call.args else None)
        return call if _is_cpu(file, chosen) else None
    buffer = function.value
    definition = file.values.single_definition(buffer)
    if not isinstance(definition, ast.Call):
        return None
    pinned = (
        is_constant(keyword(definition, "pin_memory"), value=True) or terminal_name(definition.func) == "pin_memory"
    )
    return buffer if pinned or _is_cpu(file, keyword(definition, "device")) else None


def _waits_after(file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
    """Whether the function waits for a stream or an event anywhere after the copy."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and terminal_name(node.func) in _WAITING and node.lineno >= call.lineno:
            return True
    return any(
        isinstance(outer, ast.With) and any("stream" in ast.dump(item.context_expr).lower() for item in outer.items)
        for outer in file.ancestors(call)
    )


def _read_on_host(file: FileContext, function: FunctionNode, call: ast.Call, target: ast.expr) -> ast.expr | None:
    """Where the CPU takes values out of the result: a computation, a number, an array."""
    if target is call and _takes_values(file, call):
        parent = file.parent(call)
        return parent if isinstance(parent, ast.expr) else call
    statement = file.parent(call)
    name = target.id if isinstance(target, ast.Name) else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
    if name is None:
        return None
    for load in sorted(placement(file).loads(function, name), key=lambda node: (node.lineno, node.col_offset)):
        if load.lineno > call.lineno:
            read = load if _takes_values(file, load) else _read_from_list(file, function, load)
            if read is not None:
                return read
    return None


def _read_from_list(file: FileContext, function: FunctionNode, load: ast.expr) -> ast.expr | None:
    """`kept.append(y)`, and later `torch.cat(kept)`."""
    call = file.parent(load)
    if (
        not isinstance(call, ast.Call)
        or terminal_name(call.func) != "append"
        or not isinstance(call.func, ast.Attribute)
    ):
        return None
    if not isinstance(call.func.value, ast.Name):
        return None
    uses = placement(file).loads(function, call.func.value.id)
    return next((use for use in uses if use.lineno > load.lineno and _takes_values(file, use)), None)


_HOST_METHODS = frozenset(
    {"numpy", "tolist", "item", "sum", "mean", "max", "min", "argmax", "any", "all", "float", "double", "clone", "sort"}
)
_HOST_CALLS = frozenset({"float", "int", "bool", "print", "list", "array", "asarray", "save", "sum", "max", "min"})


def _takes_values(file: FileContext, node: ast.expr) -> bool:
    parent = file.parent(node)
    if isinstance(parent, ast.Attribute):
        return parent.attr in _HOST_METHODS
    if isinstance(parent, (ast.List, ast.Tuple)):
        parent = file.parent(parent)
        return isinstance(parent, ast.Call) and (file.qualified_name(parent.func) or "").startswith("torch.")
    if isinstance(parent, ast.Call):
        by_torch = (file.qualified_name(parent.func) or "").startswith("torch.")
        return node in parent.args and (by_torch or terminal_name(parent.func) in _HOST_CALLS)
    if isinstance(parent, ast.Subscript):
        # A slice is a view: nothing is read yet.
        return parent.value is node and isinstance(parent.ctx, ast.Load) and _takes_values(file, parent)
    return isinstance(parent, (ast.BinOp, ast.Compare, ast.FormattedValue))


# These give a new tensor and leave the old one as it is; no module or other object has the second kind.
_MOVING = frozenset(
    {"to", "cuda", "cpu", "float", "half", "double", "bfloat16", "long", "int", "bool", "type", "type_as"}
)
_PURE = frozenset(
    {
        *("squeeze", "unsqueeze", "permute", "masked_fill", "detach", "contiguous", "view", "reshape", "transpose"),
        *("flatten", "expand", "repeat", "clamp", "clone", "add", "sub", "mul", "div", "scatter", "scatter_add"),
        *("index_add", "index_fill", "index_copy", "masked_scatter", "abs", "exp", "log", "sqrt", "sigmoid", "tanh"),
        *(
            "softmax",
            "relu",
            "neg",
            "t",
            "flip",
            "roll",
            "tril",
            "triu",
            "clamp_min",
            "clamp_max",
            "nan_to_num",
            "round",
        ),
    }
)
# Of these no other kind of object has a method, so the receiver needs no proof.
_OF_TENSORS_ONLY = frozenset(
    {"unsqueeze", "masked_fill", "index_add", "scatter_add", "index_fill", "masked_scatter", "clamp_min", "type_as"}
)


class UnusedResult(Rule):
    """A tensor method that returns a new tensor, called as a statement."""

    id = "GP608"
    name = "unused-result"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ()
    fix = FixSafety.UNSAFE
    triggers = (
        *(".to(", ".cuda(", ".cpu(", ".float(", ".half(", ".double(", ".long(", "squeeze(", ".view(", ".reshape("),
        *(".detach(", ".clamp", ".permute(", ".masked_fill(", ".contiguous(", ".type(", "_add(", ".mul(", ".add("),
    )
    documentation = Documentation(
        what_it_does=(
            "Finds statements such as `x.to(device)`, `x.float()`, `x.unsqueeze(0)` or `x.detach()` whose result is "
            "not used, where `x` is known to be a tensor. Modules, which these calls change in place, are left alone."
        ),
        why_is_this_bad="The call makes a new tensor and drops it; `x` stays as it is, on its device and in its shape.",
        faulty_example=_forward("x.unsqueeze(0)\nreturn self.up(x)"),
        right_example=_forward("x = x.unsqueeze(0)\nreturn self.up(x)"),
        fix_safety="Unsafe: the variable takes the result, so what follows is computed with it.",
    )
    valid = (
        _forward("x = x.unsqueeze(0)\nreturn self.up(x)"),
        _forward("self.up.to(x.device)\nself.up.float()\nreturn self.up(x)"),
        _forward("x.add_(1)\nx.requires_grad_()\nreturn self.up(x)"),
        _HEAD + "def load(model, path):\n    model.load_state_dict(torch.load(path))\n    model.to('cuda')\n"
        "    model.half()\n    return model\n",
        _HEAD + "def prepare(batch):\n    batch.to('cuda')\n    return batch\n",
        _HEAD + "def show(widget):\n    widget.view()\n    widget.flatten()\n    widget.add(1)\n",
        _HEAD + "def test_raises(x: torch.Tensor):\n    with raises(RuntimeError):\n        x.view(3)\n",
    )
    invalid = (
        Invalid(_forward("x.unsqueeze(0)\nreturn self.up(x)"), (_FIRST,)),
        Invalid(_forward("h = self.up(x)\nh.detach()\nreturn h"), (_FIRST + 1,)),
        Invalid(_HEAD + "def run(x: torch.Tensor, model):\n    x.to('cuda')\n    return model(x)\n", (6,)),
        Invalid(_forward("h = self.up(x)\nh.clamp(0, 1)\nreturn h"), (_FIRST + 1,)),
        Invalid(_forward("h = torch.zeros_like(x)\nh.scatter_add(0, x.long(), self.up(x))\nreturn h"), (_FIRST + 1,)),
        Invalid(_HEAD + "def run():\n    x = torch.ones(3)\n    x.double()\n    return x\n", (7,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every statement that is nothing but such a call."""
        for call in file.calls(*_MOVING, *_PURE):
            statement = file.parent(call)
            if not isinstance(statement, ast.Expr) or not isinstance(call.func, ast.Attribute):
                continue
            if file.qualified_name(call.func) is not None or not self._is_tensor(file, call.func):
                continue
            if _may_be_meant_to_fail(file, call) or keyword(call, "out") is not None:
                continue
            receiver = call.func.value
            fix = None
            if isinstance(receiver, ast.Name):
                text = f"{receiver.id} = {file.source(call)}"
                fix = Rewrite(FixSafety.UNSAFE, (Replacement(statement, text),))
            yield Hit(
                call,
                f"`.{call.func.attr}()` returns a new tensor, which is not used: "
                f"`{file.source(receiver)}` stays as it is. Assign the result.",
                fix=fix,
            )

    def _is_tensor(self, file: FileContext, function: ast.Attribute) -> bool:
        """Whether the receiver is a tensor, and no module that the call would change in place."""
        receiver = function.value
        if function.attr in _OF_TENSORS_ONLY:
            return not isinstance(receiver, ast.Constant)
        around = file.enclosing_function(receiver)
        if isinstance(receiver, ast.Name) and around is not None and not file.values.definitions(receiver):
            argument = next((p for p in parameters(around) if p.arg == receiver.id), None)
            if argument is not None and argument.annotation is not None:
                return terminal_name(argument.annotation) in ("Tensor", "FloatTensor", "LongTensor")
            # What is not annotated is known in a `forward` only, and there only not to be a module.
            in_forward = forward_code(file).runs_in_forward(around)
            return in_forward and function.attr in _PURE and placement(file).follows(receiver)
        if own_attribute(receiver) is not None and function.attr in _MOVING:
            return False
        return placement(file).follows(receiver) or placement(file).made(receiver) is not None


def _may_be_meant_to_fail(file: FileContext, node: ast.AST) -> bool:
    """Inside `with raises(…)` or a `try`, or in a test, a call may be there for what it raises."""
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.With, ast.AsyncWith, ast.Try)):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return outer.name.startswith(("test", "warm", "bench", "profile"))
    return False


class UnorderedStream(Rule):
    """A result of a side stream that the main stream uses without waiting."""

    id = "GP620"
    name = "unordered-stream"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare",)
    triggers = (".stream(",)
    documentation = Documentation(
        what_it_does=(
            "Finds tensors computed under `with torch.cuda.stream(side):` and used after the block in a function that "
            "never waits for that stream."
        ),
        why_is_this_bad=(
            "Streams run side by side. The main stream reads the tensor while the side stream may still be computing "
            "it: the values are wrong now and then, and nothing is raised."
        ),
        faulty_example=_forward("with torch.cuda.stream(self.side):\n    y = self.up(x)\nreturn y * 2"),
        right_example=_forward(
            "with torch.cuda.stream(self.side):\n    y = self.up(x)\n"
            "torch.cuda.current_stream().wait_stream(self.side)\nreturn y * 2"
        ),
        fix_safety="No automatic fix: where to wait decides what runs side by side.",
    )
    valid = (
        _forward(
            "with torch.cuda.stream(self.side):\n    y = self.up(x)\n"
            "torch.cuda.current_stream().wait_stream(self.side)\nreturn y * 2"
        ),
        _forward("with torch.cuda.stream(self.side):\n    y = self.up(x)\ntorch.cuda.synchronize()\nreturn y * 2"),
        _forward("with torch.cuda.stream(self.side):\n    return self.up(x) * 2"),
        _forward("with torch.cuda.stream(torch.cuda.current_stream()):\n    y = self.up(x)\nreturn y"),
        _forward("y = x\nwith self.logger.stream():\n    y = self.up(x)\nreturn y"),
    )
    invalid = (
        Invalid(_forward("with torch.cuda.stream(self.side):\n    y = self.up(x)\nreturn y * 2"), (_FIRST + 2,)),
        Invalid(
            _forward(
                "side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
                "with torch.cuda.stream(side):\n    y = self.up(x)\nz = self.up(y)\nreturn z"
            ),
            (_FIRST + 4,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every block that runs on a stream of its own."""
        for call in file.calls("stream"):
            item = file.parent(call)
            block = file.parent(item) if isinstance(item, ast.withitem) else None
            function = file.enclosing_function(call)
            if file.qualified_name(call.func) != "torch.cuda.stream" or not isinstance(block, ast.With):
                continue
            if function is None or any("current_stream" in ast.dump(argument) for argument in call.args):
                continue
            made = {
                node.id
                for statement in block.body
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            end = block.end_lineno or block.lineno
            if any(_waits(node) and node.lineno > block.lineno for node in ast.walk(function)):  # type: ignore[attr-defined]
                continue
            for name in sorted(made):
                uses = [use for use in placement(file).loads(function, name) if use.lineno > end]
                if uses:
                    first = min(uses, key=lambda use: (use.lineno, use.col_offset))
                    yield Hit(
                        first,
                        f"`{name}` is computed on another stream (line {block.lineno}), and nothing waits for it: this "
                        "may read it before it is there. Call `wait_stream` first.",
                        hypothesis={"symbol": file.symbol(call), "variable": name},
                        related=((block, "computed on another stream here"),),
                    )
                    break


def _waits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and terminal_name(node.func) in (
        "wait_stream",
        "synchronize",
        "wait_event",
        "wait",
    )


class GeneratorOnCpu(Rule):
    """A random generator on the CPU that draws for a tensor on the device of the model."""

    id = "GP621"
    name = "generator-on-cpu"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    triggers = ("generator=",)
    documentation = Documentation(
        what_it_does=(
            "Finds random tensors made with `device=x.device` (or in place on a tensor of the model) and "
            "`generator=` a `torch.Generator()` that was made without a device."
        ),
        why_is_this_bad=(
            "A generator belongs to one device, the CPU if none is named. On a GPU the call raises `Expected a 'cuda' "
            "device type for generator but found 'cpu'`."
        ),
        faulty_example=_forward("return self.up(x) + torch.randn(4, device=x.device, generator=self.noise)"),
        right_example=_forward("return self.up(x) + torch.randn(4, generator=self.noise).to(x.device)"),
        fix_safety="No automatic fix: numbers drawn on the CPU and on a GPU differ, and either may be wanted.",
    )
    valid = (
        _forward("return self.up(x) + torch.randn(4, generator=self.noise).to(x.device)"),
        _forward("g = torch.Generator(device=x.device)\nreturn x + torch.randn(4, device=x.device, generator=g)"),
        _forward("g = torch.Generator(x.device)\nreturn x + torch.randn(4, device=x.device, generator=g)"),
        _HEAD + "def noise(x: torch.Tensor, generator):\n"
        "    return torch.randn(4, device=x.device, generator=generator)\n",
    )
    invalid = (
        Invalid(_forward("return self.up(x) + torch.randn(4, device=x.device, generator=self.noise)"), (_FIRST,)),
        Invalid(
            _forward("g = torch.Generator()\ng.manual_seed(0)\nreturn torch.empty_like(x).normal_(generator=g)"),
            (_FIRST + 2,),
        ),
        Invalid(
            _forward("g = torch.Generator().manual_seed(0)\nreturn torch.rand(4, device=x.device, generator=g)"),
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every drawing of random numbers for the device of the model."""
        for item in file.nodes(ast.keyword):
            call = file.parent(item)
            if item.arg != "generator" or not isinstance(call, ast.Call):
                continue
            made = next((m for m in _makings(file, item.value) if _is_cpu_generator(file, m)), None)
            if made is None or not _draws_with_model(file, call):
                continue
            yield Hit(
                call,
                f"`{file.source(item.value)}` is a generator on the CPU, and the numbers are drawn for another device: "
                "on a GPU this raises. Make the generator on that device, or draw on the CPU and move.",
                hypothesis={"symbol": file.symbol(call)},
                related=((made, "made without a device here"),),
            )


def _makings(file: FileContext, generator: ast.expr) -> Iterator[ast.expr]:
    """The expressions that a generator may have been assigned from."""
    definition = file.values.single_definition(generator)
    name = own_attribute(generator)
    owner = file.enclosing_class(generator)
    if definition is not None:
        yield definition
    elif name is not None and owner is not None:
        for assignment in file.nodes_in(owner, ast.Assign):
            if any(own_attribute(target) == name for target in assignment.targets):
                yield assignment.value


def _is_cpu_generator(file: FileContext, made: ast.expr) -> bool:
    if (
        isinstance(made, ast.Call)
        and terminal_name(made.func) == "manual_seed"
        and isinstance(made.func, ast.Attribute)
    ):
        made = made.func.value
    if not isinstance(made, ast.Call) or file.qualified_name(made.func) != "torch.Generator":
        return False
    chosen = made.args[0] if made.args else keyword(made, "device")
    return chosen is None or _is_cpu(file, chosen)


def _draws_with_model(file: FileContext, call: ast.Call) -> bool:
    name = terminal_name(call.func) or ""
    if keyword(call, "device") is not None:
        return name in FACTORIES and placement(file).follows(call)
    in_place = isinstance(call.func, ast.Attribute) and name.endswith("_") and file.qualified_name(call.func) is None
    if in_place and isinstance(call.func, ast.Attribute):
        return placement(file).follows(call.func.value)
    return name in ("multinomial", "bernoulli", "normal") and bool(call.args) and placement(file).follows(call.args[0])
