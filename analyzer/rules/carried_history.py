"""Attributes of a module that carry the history of one call into the next, or of `__init__` into every call."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.layers import Attribute, Content
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import in_module
from analyzer.saved_values import Carried, Differentiable, traces
from analyzer.syntax import FunctionNode, is_self, terminal_name
from analyzer.values.surroundings import Surroundings, surroundings
from analyzer.write_findings import called_without_gradients

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_in_module = partial(in_module, _HEAD)


_CELL = "self.cell = nn.RNNCell(4, 4)\nself.state = None"
_MEAN = "self.up = nn.Linear(4, 4)\nself.register_buffer('mean', torch.zeros(4))"
# The first line of a forward after two lines in `__init__`.
_FORWARD = 12


class StateWithHistory(Rule):
    """State that is kept from one call of a module to the next together with its history."""

    id = "GP411"
    name = "state-keeps-its-history"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "memory")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    documentation = Documentation(
        what_it_does=(
            "Finds a module that reads `self.state` in forward and then assigns it a value that still has a history: "
            "the state of a recurrent layer, running statistics, a buffer. `detach()`, `torch.no_grad()`, and caches "
            "that nothing in forward reads are left alone."
        ),
        why_is_this_bad=(
            "The next call builds on the graph of this one. With a backward after each call, the second one raises "
            "`Trying to backward through the graph a second time`; without, memory grows with every call."
        ),
        faulty_example=_in_module(_CELL, "state = self.cell(x, self.state)\nself.state = state\nreturn state"),
        right_example=_in_module(_CELL, "state = self.cell(x, self.state)\nself.state = state.detach()\nreturn state"),
        fix_safety=(
            "Unsafe: the value is detached, which ends the gradient at this call. Offered where nothing reads the "
            "attribute afterwards in the same function."
        ),
    )
    valid = (
        _HEAD
        + "def keep(state):\n    return state.detach()\n\n\n"
        + _in_module(_CELL, "self.state = keep(self.cell(x, self.state))\nreturn x").removeprefix(_HEAD),
        _in_module(_CELL, "state = self.cell(x, self.state)\nself.state = state.detach()\nreturn state"),
        _in_module(
            _CELL, "state = self.cell(x, self.state)\nwith torch.no_grad():\n    self.state = state * 1\nreturn state"
        ),
        _in_module(_CELL, "self.state = self.cell(x)\nreturn self.state * 2"),
        _in_module(_MEAN, "self.mean = 0.9 * self.mean.detach() + self.up(x).mean(0)\nreturn self.mean"),
        _in_module(
            _CELL, "if self.state is None:\n    self.state = torch.zeros(4, 4)\nreturn self.cell(x, self.state)"
        ),
        _in_module(_MEAN, "self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)\nreturn self.up(x) - self.mean"),
        _in_module(
            _MEAN, "m, v = x.mean(0).detach(), x.var(0)\nself.mean = 0.9 * self.mean + m\nreturn self.up(x) - v"
        ),
        _in_module(_MEAN, "self.mean.mul_(0.9).add_(x.detach().mean(0))\nreturn self.up(x) - self.mean"),
        _in_module(_MEAN, "if not self.training:\n    self.mean = self.up(self.mean)\nreturn self.up(x)"),
        _in_module("self.up = nn.Linear(4, 4)\nself.count = 0", "self.count = self.count + 1\nreturn self.up(x)"),
        _HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('mean', torch.zeros(4))\n"
        "        self.up = nn.Linear(4, 4)\n\n"
        "    def update(self, x):\n        self.mean = 0.9 * self.mean + self.up(x).mean(0)\n\n"
        "    def forward(self, x):\n        with torch.no_grad():\n            self.update(x)\n"
        "        return x - self.mean\n",
    )
    invalid = (
        Invalid(
            _in_module(_CELL, "state = self.cell(x, self.state)\nself.state = state\nreturn state"), (_FORWARD + 1,)
        ),
        Invalid(_in_module(_CELL, "self.state = self.cell(x, self.state)\nreturn self.state"), (_FORWARD,)),
        Invalid(
            _in_module(
                _MEAN, "d = self.mean.detach()\nself.mean = self.mean + self.up(x).mean(0)\nreturn self.mean - d"
            ),
            (_FORWARD + 1,),
        ),
        Invalid(
            _in_module(
                "self.rnn = nn.GRU(4, 4)\nself.state = None",
                "out, state = self.rnn(x, self.state)\nself.state = state\nreturn out",
            ),
            (_FORWARD + 1,),
        ),
        Invalid(
            _in_module(_MEAN, "self.mean = 0.9 * self.mean + 0.1 * x.mean(0)\nreturn self.up(x) - self.mean"),
            (_FORWARD,),
        ),
        Invalid(
            _in_module(_MEAN, "h = self.up(x)\nself.mean.mul_(0.9).add_(h.mean(0))\nreturn h - self.mean"),
            (_FORWARD + 1,),
        ),
        Invalid(_in_module(_MEAN, "h = self.up(x)\nself.mean[0] = h.mean()\nreturn h - self.mean"), (_FORWARD + 1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every attribute that is read and then given a value with its history."""
        for found in traces(file).carried:
            if not self._is_fault(file, found):
                continue
            yield Hit(
                found.statement,
                f"`self.{found.attribute}` keeps its history (the graph of this call), and the next call reads it: "
                "backward then raises or memory grows. Assign a detached value.",
                # What a decoder keeps from one token to the next is hardly ever differentiated.
                severity=Severity.NOTE if file.words.any_of(("use_cache",)) else None,
                confidence=Confidence.HIGH if found.degree is Differentiable.CERTAIN else Confidence.MEDIUM,
                hypothesis={
                    "function": found.function.name,
                    "attribute": found.attribute,
                    "symbol": file.symbol(found.statement),
                    "line": found.statement.lineno,
                },
                related=((found.read, f"`self.{found.attribute}` is read here, as the last call left it"),),
                fix=_detached(file, found),
            )

    def _is_fault(self, file: FileContext, found: Carried) -> bool:
        if not forward_code(file).runs_in_forward(found.function) or called_without_gradients(file, found.function):
            return False
        if "cache" in found.attribute.lower() or surroundings(file, found.statement) is not Surroundings.DIFFERENTIATED:
            return False
        if _is_read_detached(file, found):
            return False
        # What an argument brings along may be data; for a buffer its author cannot have meant a history.
        return found.degree >= Differentiable.LIKELY or (found.is_buffer and found.in_forward)


def _is_read_detached(file: FileContext, found: Carried) -> bool:
    """Whether the last call's value is detached wherever it is read: `0.9 * self.state.detach() + x`."""
    uses = forward_code(file).own_uses(found.function, found.attribute)
    reads = [use for use in uses if isinstance(use.ctx, ast.Load) and use.lineno <= found.statement.lineno]
    used = [use for use in reads if not isinstance(file.parent(use), ast.Compare)]
    return bool(used) and all(_is_detached(file.parent(use)) for use in used)


def _is_detached(parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.Attribute) and parent.attr in {"detach", "data"}


def _detached(file: FileContext, found: Carried) -> Rewrite | None:
    statement, value = found.statement, found.value
    if not isinstance(statement, ast.Assign) or value is None or isinstance(value, (ast.Tuple, ast.List)):
        return None
    if not (isinstance(statement.targets[0], ast.Attribute) and len(statement.targets) == 1):
        return None
    uses = forward_code(file).own_uses(found.function, found.attribute)
    if "LSTM" in file.text or any(use.lineno > statement.lineno for use in uses):
        return None
    return Rewrite(FixSafety.UNSAFE, (Replacement(value, f"{file.operand_source(value)}.detach()"),))


# --- __init__ --------------------------------------------------------------------------------------------------------

# Operations through which a value keeps its history.
_COMPOSING = frozenset(
    {
        *("exp", "log", "sqrt", "softmax", "sigmoid", "softplus", "tanh", "relu", "abs", "square", "pow"),
        *("clamp", "mul"),
        *("add", "sub", "div", "matmul", "mm", "bmm", "einsum", "cat", "concat", "stack", "sum", "mean"),
        *("norm", "diag"),
        *("normalize", "cumsum", "transpose", "permute", "view", "reshape", "expand", "unsqueeze", "squeeze", "repeat"),
        *("t", "flatten", "chunk", "flip", "tril", "triu", "inverse", "exp2", "rsqrt", "reciprocal", "neg"),
        *("to", "float"),
    }
)


class GraphFromInit(Rule):
    """An attribute that `__init__` computes from parameters, and that every call then uses."""

    id = "GP415"
    name = "graph-from-init"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "memory")
    torch_versions = "2.13"
    documentation = Documentation(
        what_it_does=(
            "Finds `self.scale = self.log_scale.exp()` in the `__init__` of a module, where `self.log_scale` is a "
            "parameter (or the weight of a layer), and the result is read in forward. A second name for the "
            "parameter itself, detached values and new parameters are left alone."
        ),
        why_is_this_bad=(
            "The value is computed once: it stays what it was before training, whatever the optimizer does, and the "
            "second backward raises `Trying to backward through the graph a second time` wherever the computation kept "
            "something. `.to()` and loading a state do not reach it either."
        ),
        faulty_example=_in_module(
            "self.log_scale = nn.Parameter(torch.zeros(4))\nself.scale = self.log_scale.exp()", "return x * self.scale"
        ),
        right_example=_in_module(
            "self.log_scale = nn.Parameter(torch.zeros(4))\nself.width = 4", "return x * self.log_scale.exp()"
        ),
        fix_safety="No automatic fix: the computation has to move into forward.",
    )
    valid = (
        _in_module("self.w = nn.Parameter(torch.zeros(4))\nself.alias = self.w", "return x * self.alias"),
        _in_module(
            "self.w = nn.Parameter(torch.zeros(4))\nself.start = self.w.detach().exp()", "return x * self.start"
        ),
        _in_module("self.w = nn.Parameter(torch.zeros(4))\nself.v = nn.Parameter(self.w * 2)", "return x * self.v"),
        _in_module("self.w = nn.Parameter(torch.zeros(4))\nself.n = self.w.shape[0] * 2", "return x * self.n"),
        _in_module(
            "self.w = nn.Parameter(torch.zeros(4), requires_grad=False)\nself.v = self.w * 2", "return x * self.v"
        ),
        _in_module("self.w = nn.Parameter(torch.zeros(4))\nself.v = self.w * 2", "return x * self.w"),
        _in_module(
            "self.w = nn.Parameter(torch.zeros(4))\nwith torch.no_grad():\n    self.v = self.w * 2", "return self.v"
        ),
        _in_module("self.register_buffer('w', torch.zeros(4))\nself.v = self.w * 2", "return x * self.v"),
    )
    invalid = (
        Invalid(
            _in_module("self.a = nn.Parameter(torch.zeros(4))\nself.s = self.a.exp()", "return x * self.s"),
            (_FORWARD - 3,),
        ),
        Invalid(
            _in_module(
                "self.a = nn.Parameter(torch.ones(4))\nself.b = torch.stack((self.a, self.a)) ** 2",
                "return x * self.b[0]",
            ),
            (_FORWARD - 3,),
        ),
        Invalid(
            _in_module("self.up = nn.Linear(4, 4)\nself.w = self.up.weight * 0.5", "return x @ self.w"), (_FORWARD - 3,)
        ),
    )
    triggers = ("Parameter", ".weight", ".bias")

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every attribute that is computed from parameters in `__init__` and read in forward."""
        code = forward_code(file)
        for owner in code.modules:
            init = next((s for s in owner.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
            if init is not None:
                yield from self._in_init(file, owner, init)

    def _in_init(self, file: FileContext, owner: ast.ClassDef, init: FunctionNode) -> Iterator[Hit]:
        code = forward_code(file)
        for assignment in file.nodes_in(init, ast.Assign):
            target = assignment.targets[0]
            if not (isinstance(target, ast.Attribute) and is_self(target.value)) or _is_plain(assignment.value):
                continue
            source = _parameter_in(assignment.value, code.attributes(owner))
            if source is None or file.grad_disabled(assignment):
                continue
            reads = [
                use
                for method in code.reached(owner).values()
                for use in code.own_uses(method, target.attr)
                if isinstance(use.ctx, ast.Load)
            ]
            if reads:
                yield Hit(
                    assignment,
                    f"`self.{target.attr}` is computed from the parameter `{ast.unparse(source)}` once, in `__init__`: "
                    "it does not follow training, and a second backward may raise. Compute it in forward.",
                    hypothesis={"attribute": target.attr, "symbol": file.symbol(assignment), "line": assignment.lineno},
                    related=((reads[0], "and is read here"),),
                )


def _is_plain(value: ast.expr) -> bool:
    return not isinstance(value, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript))


def _parameter_in(value: ast.expr, attributes: dict[str, Attribute]) -> ast.expr | None:
    """The parameter whose value flows through differentiable operations into an expression."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Attribute):
            if _is_parameter(node, attributes):
                return node
        elif isinstance(node, (ast.BinOp,)):
            pending.extend((node.left, node.right))
        elif isinstance(node, ast.UnaryOp):
            pending.append(node.operand)
        elif isinstance(node, ast.Subscript):
            pending.append(node.value)
        elif isinstance(node, (ast.Tuple, ast.List)):
            pending.extend(node.elts)
        elif isinstance(node, ast.Call) and terminal_name(node.func) in _COMPOSING:
            pending.extend(node.args)
            if isinstance(node.func, ast.Attribute):
                pending.append(node.func.value)
    return None


def _is_parameter(node: ast.Attribute, attributes: dict[str, Attribute]) -> bool:
    if is_self(node.value):
        known = attributes.get(node.attr)
        return known is not None and known.content is Content.PARAMETER
    if (
        node.attr not in {"weight", "bias"}
        or not isinstance(node.value, ast.Attribute)
        or not is_self(node.value.value)
    ):
        return False
    known = attributes.get(node.value.attr)
    return known is not None and known.content is Content.LAYER
