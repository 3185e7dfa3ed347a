"""Tensors that stay on the CPU, or go to one kind of device, whatever the device of the model is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.device_joins import Join, device_joins
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, own_attribute
from analyzer.layers import Content
from analyzer.machine_tests import under_device_test
from analyzer.placement import FACTORIES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4, strength=0.3):\n        super().__init__()\n"
    "        self.width = width\n        self.strength = strength\n        self.up = nn.Linear(width, width)\n"
    "        self.table = nn.Embedding(8, width)\n        self.drop = nn.Dropout(0.1)\n\n"
    "    def forward(self, x, mask=None):\n"
)
_FIRST = 16


def _forward(body: str, *, after: str = "") -> str:
    return _HEAD + _BLOCK + "".join(f"        {line}\n" for line in body.splitlines()) + after


# A file that never mentions devices may be meant for the CPU alone: what it would do elsewhere is a remark.
_CARES_FOR_DEVICES = re.compile(r"\bdevice\b|\bcuda\b|\bis_cuda\b|\.cpu\(")


# Data is loaded on the CPU.
_LOADING = re.compile(r"(^|/)(loaders?|samplers?)/|_loader\.py$")


class FactoryWithoutDevice(Rule):
    """A tensor made without `device=` in code that the model runs, and used together with the model's tensors."""

    id = "GP602"
    name = "factory-without-device"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    fix = FixSafety.SAFE
    triggers = (*(f"{name}(" for name in FACTORIES), ".cpu(")
    documentation = Documentation(
        what_it_does=(
            "Follows tensors that `torch.zeros`, `torch.arange`, `torch.tensor([…])` and other factories make without "
            "`device=` in a `forward`, in methods that it calls and in functions of tensors, up to the operation that "
            "joins them with an input, a parameter or a buffer. Tensors that are moved first (`.to(x.device)`), that "
            "have no dimension, or that only serve as an index (`x[i]`) are left alone. In a file that mentions no "
            "device at all (unless a layer draws noise there), in data preparation, and in stand-ins for ONNX export "
            "(`_onnx_…`), it is a note."
        ),
        why_is_this_bad=(
            "The factory makes the tensor on the CPU. On a GPU the operation raises `Expected all tensors to be on "
            "the same device`, and nothing shows it before the first run there."
        ),
        faulty_example=_forward("position = torch.arange(x.shape[1])\nreturn self.up(x) + position"),
        right_example=_forward("position = torch.arange(x.shape[1], device=x.device)\nreturn self.up(x) + position"),
        fix_safety="Safe: adds `device=` with the device of the tensor that it meets; nothing changes on the CPU.",
    )
    valid = (
        _forward("bias = torch.ones(4, device=x.device)\nreturn self.up(x) + bias"),
        _forward("bias = torch.ones(4).to(x.device)\nreturn self.up(x) + bias"),
        _forward("bias = torch.ones(4).to(x)\nreturn self.up(x) + bias"),
        _forward("bias = torch.ones(4).type_as(x)\nreturn self.up(x) + bias"),
        _forward("bias = torch.ones(4)\nif x.is_cuda:\n    bias = bias.cuda()\nreturn self.up(x) + bias"),
        _forward("total = torch.tensor(0.0)\nreturn self.up(x) + total"),
        _forward("total = torch.tensor(0.0)\nfor part in x:\n    total = total + self.up(part).sum()\nreturn total"),
        _HEAD + "MEAN = torch.tensor([0.5, 0.4, 0.3])\n\n\n" + _BLOCK + "        return self.up(x) - MEAN.to(x)\n",
        _HEAD + _BLOCK + "        return self.up(x)\n\n\nif __name__ == '__main__':\n    x = torch.ones(4)\n"
        "    print(Block()(x))\n",
        _forward("total = torch.zeros(())\nreturn self.up(x) + total"),
        _forward("scale = torch.arange(4).float().mean()\nreturn self.up(x) * scale"),
        _forward("order = torch.randperm(4)\nreturn self.up(x)[:, order]"),
        _forward("order = x.cpu().sort(dim=-1).values.to(x.device)\nreturn self.up(x) + order"),
        _forward("if x.is_cuda:\n    y = x.cpu()\n    x = x + y\nreturn self.up(x)"),
        _forward("return self.up(x), x.cpu() * 2"),
        _forward("out = x.new_zeros(4)\nother = torch.zeros_like(x)\nreturn out + other + x"),
        _forward("out = self.up(x)\nout[:, 0] = torch.zeros(x.shape[0])\nreturn out"),
        _forward("sizes = torch.arange(4).tolist()\nreturn x * sizes[0]"),
        _forward("with torch.device(x.device):\n    bias = torch.ones(4)\nreturn self.up(x) + bias"),
        _forward("steps = torch.linspace(0, 1, 3)\nreturn [self.up(x) * t.item() for t in steps]"),
        _forward("return self.drop(torch.ones(4))"),
        _forward("grid = torch.ones(4)\nreturn self.render(grid, x)"),
        _HEAD + "def grid(width, height):\n    x = torch.arange(width)\n    y = torch.arange(height)\n"
        "    return x[None] + y[:, None]\n",
        _HEAD + "def scaled(values, n):\n    return values * n + torch.arange(3)\n",
        _HEAD + "torch.set_default_device('cuda')\n\n\ndef shifted(x: torch.Tensor):\n    return x + torch.ones(3)\n",
        _forward("empty = torch.zeros(0)\nreturn torch.cat([empty, self.up(x)])"),
        _HEAD + "def inverse(pose: torch.Tensor):\n    return pose.transpose(0, 1)\n\n\ndef relative(n):\n"
        "    poses = torch.ones(n, 3)\n    return inverse(poses) + torch.ones(3)\n",
        _HEAD + "class Data(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n"
        "        return self.rows[i] + torch.ones(3)\n",
    )
    invalid = (
        Invalid(_forward("position = torch.arange(x.shape[1])\nreturn self.up(x) + position"), (_FIRST,)),
        Invalid(_forward("return x.masked_fill(torch.eye(x.size(1)).bool(), 0)"), (_FIRST,)),
        Invalid(_forward("return torch.where(torch.rand(4) > 0.5, self.up(x), x)"), (_FIRST,)),
        Invalid(_forward("ids = torch.arange(x.shape[1])\nreturn self.up(x) + self.table(ids)"), (_FIRST,)),
        Invalid(_forward("pad = torch.zeros(1, 4)\nreturn torch.cat([pad, self.up(x)], dim=0)"), (_FIRST,)),
        Invalid(_forward("h = self.up(x)\nw = torch.hann_window(4)[None, :] * 2\nh = h * w\nreturn h"), (_FIRST + 1,)),
        Invalid(_forward("loss = torch.zeros(1)\nloss += self.up(x).sum()\nreturn loss"), (_FIRST,)),
        Invalid(_forward("out = torch.zeros(4, 4)\nreturn out.index_add(0, x.long(), self.up(x))"), (_FIRST,)),
        Invalid(
            _forward(
                "return self.up(x) + self.noise(x.shape[0]) * 2",
                after="\n    def noise(self, n):\n        ramp = torch.randn(n, 1) * self.strength\n"
                "        return ramp\n",
            ),
            (_FIRST,),
        ),
        Invalid(_HEAD + "def shifted(x: torch.Tensor):\n    return x + torch.tensor([1.0, 2.0])\n", (7,)),
        Invalid(
            _forward("loss = torch.tensor(0.0)\nfor part in x:\n    loss += self.up(part).sum()\nreturn loss"),
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "MEAN = torch.tensor([0.5, 0.4, 0.3])\n\n\n" + _BLOCK + "        return self.up(x) - MEAN\n",
            (_FIRST + 3,),
        ),
        Invalid(_forward("order = x.detach().cpu().sort(dim=-1).values\nreturn self.up(x) + order"), (_FIRST,)),
        Invalid(_forward("return self.up(x) * torch.linspace(0, 1, 4, dtype=x.dtype)"), (_FIRST,)),
        Invalid(_forward("row = torch.arange(4)\nreturn row[None] < self.up(x)"), (_FIRST,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every factory call whose tensor meets one that lies with the model."""
        told: set[ast.AST] = set()
        for call, joins in (*_tensors_on_cpu(file), *_brought_to_cpu(file)):
            for join in joins:
                where = file.enclosing_function(join.node)
                node = join.node if join.crossed else call
                if node not in told and where is not None and _runs_with_model(file, where):
                    told.add(node)
                    yield self._hit(file, call, join)
                    break

    def _hit(self, file: FileContext, call: ast.Call, join: Join) -> Hit:
        aware = _CARES_FOR_DEVICES.search(file.text) is not None
        # A function outside of a module may well be for the CPU alone, and its constants with it.
        constant = file.enclosing_function(call) is None and forward_code(file).module_of(join.node) is None
        loading = _LOADING.search(file.path) is not None
        # Sums in place and layers that look a position up are rarely written for the CPU alone.
        typical = isinstance(join.node, ast.AugAssign) or (
            isinstance(join.node, ast.Call) and own_attribute(join.node.func) is not None
        )
        meant_for_gpu = aware or join.crossed or typical or (_is_noise(call) and _has_layers(file, join.node))
        aside = surroundings(file, join.node) is Surroundings.ASIDE
        quiet = constant or loading or aside or _is_for_export(file, join.node) or not meant_for_gpu
        shown = file.source(join.other) if join.other.lineno == join.other.end_lineno else "the model's tensor"
        made, met = f"torch.{terminal_name(call.func)}", f"line {join.node.lineno}"
        if terminal_name(call.func) == "cpu":
            return Hit(
                call,
                f"`.cpu()` takes this tensor to the CPU, and {met} joins it with `{shown}`: on a GPU that raises.",
                severity=Severity.NOTE if quiet else None,
                confidence=Confidence.LOW if quiet else None,
                related=((join.node, "joined here"),),
            )
        if join.crossed:
            message = (
                f"This joins `{shown}` with a tensor that `{made}` made on the CPU (line {call.lineno}, no `device=`): "
                "on a GPU it raises. Move it first, or make it there."
            )
        else:
            message = (
                f"`{made}` without `device=` makes its tensor on the CPU, and {met} joins it with `{shown}`: on a GPU "
                f"that raises. Pass `device={_device_of(shown)}`."
            )
        return Hit(
            join.node if join.crossed else call,
            message,
            severity=Severity.NOTE if quiet else None,
            confidence=Confidence.LOW if quiet else None,
            hypothesis={"factory": made, "joined_line": join.node.lineno, "symbol": file.symbol(call)},
            related=((call, "made on the CPU here"),) if join.crossed else ((join.node, "joined here"),),
            fix=None if join.crossed else _with_device(file, call, join),
        )


def _is_for_export(file: FileContext, node: ast.AST) -> bool:
    """Whether a function stands in for another while ONNX traces the model, which is done on the CPU."""
    function = file.enclosing_function(node)
    return function is not None and "onnx" in function.name.lower().split("_")


def _is_noise(call: ast.Call) -> bool:
    """Whether a call draws random numbers in torch's own dtype.

    Tables and masks in files that know no devices are left at a note: three of 119 right files of the public cases
    make one on the CPU, and none draws noise there.
    """
    return terminal_name(call.func) in ("rand", "randn") and not any(item.arg == "dtype" for item in call.keywords)


def _has_layers(file: FileContext, node: ast.AST) -> bool:
    """Whether a node stands in a module with layers or parameters of its own: a model, and those are moved."""
    owner = forward_code(file).module_of(node)
    if owner is None:
        return False
    held = forward_code(file).attributes(owner).values()
    return any(known.content in (Content.PARAMETER, Content.LAYER, Content.CHAIN) for known in held)


def _tensors_on_cpu(file: FileContext) -> Iterator[tuple[ast.Call, Iterator[Join]]]:
    """(the call that makes a tensor on the CPU, where that meets tensors of the model)."""
    code, places = forward_code(file), placement(file)
    for call in file.calls(*FACTORIES):
        function = file.enclosing_function(call)
        if function is None:
            if file.enclosing_class(call) is None and places.is_cpu_factory(call):
                yield call, _constant_joins(file, call)
        elif code.module_of(call) is None or code.runs_in_forward(function):
            if places.is_cpu_factory(call):
                yield call, device_joins(file).joins(call)
            elif places.is_cpu_scalar(call):
                yield call, device_joins(file).accumulations(call)


def _brought_to_cpu(file: FileContext) -> Iterator[tuple[ast.Call, Iterator[Join]]]:
    """Tensors of the model that `.cpu()` takes away, and that meet others of them afterwards."""
    code, places = forward_code(file), placement(file)
    for call in file.calls("cpu"):
        function = file.enclosing_function(call)
        if function is None or not code.runs_in_forward(function) or not isinstance(call.func, ast.Attribute):
            continue
        if places.follows(call.func.value) and not under_device_test(file, call):
            yield call, device_joins(file).joins(call)


def _constant_joins(file: FileContext, call: ast.Call) -> Iterator[Join]:
    """Where functions join a constant of the file, assigned once at its top, with tensors of the model."""
    statement = file.statement(call)
    if not isinstance(statement, ast.Assign) or statement not in file.tree.body:
        return
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or placement(file).made_on_cpu(statement.value) is None:
        return
    names = [name for name in file.nodes(ast.Name) if name.id == target.id]
    if sum(isinstance(name.ctx, ast.Store) for name in names) > 1:
        return
    for name in names:
        if isinstance(name.ctx, ast.Load) and file.enclosing_function(name) is not None and not _is_bound(file, name):
            for join in device_joins(file).joins(name):
                yield Join(join.node, join.other, crossed=True)


def _is_bound(file: FileContext, name: ast.Name) -> bool:
    """Whether a function around the name has it as a parameter."""
    return any(
        isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        and name.id in {parameter.arg for parameter in parameters(outer)}
        for outer in file.ancestors(name)
    )


def _device_of(shown: str) -> str:
    return f"{shown}.device" if shown.isidentifier() else "….device"


def _with_device(file: FileContext, call: ast.Call, join: Join) -> Rewrite | None:
    """`device=` with the device of a plain variable that is known where the factory is called."""
    function = file.enclosing_function(call)
    if function is None or call.end_lineno != call.lineno or (not call.args and not call.keywords):
        return None
    if file.source(call.func).rpartition(".")[2] in ("from_numpy", "FloatTensor", "LongTensor", "Tensor"):
        return None
    for name in _variables_of(join.other):
        if _is_known_at(file, function, name, call):
            text = file.source(call)
            return Rewrite(FixSafety.SAFE, (Replacement(call, f"{text[:-1]}, device={name.id}.device)"),))
    return None


def _variables_of(expression: ast.expr) -> Iterator[ast.Name]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id != "self":
            yield node


def _is_known_at(file: FileContext, function: FunctionNode, name: ast.Name, call: ast.Call) -> bool:
    """Whether a variable is a parameter that is a tensor of the model's wherever it is used in the function."""
    if file.enclosing_function(name) is not function or name.id not in {a.arg for a in function.args.args}:
        return False
    bindings, may_be_parameter = file.values.bindings(function).reaching(name.id, file.statement(call))
    return may_be_parameter and not bindings and placement(file).follows(name)


def _runs_with_model(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function runs where the model's tensors are: in a `forward`, or on tensors that it is given."""
    code = forward_code(file)
    if code.module_of(function) is not None:
        return code.runs_in_forward(function)
    return file.enclosing_class(function) is None
