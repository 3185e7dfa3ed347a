"""Values that look like part of a loss and are cut off from it: gradients, gathered tensors, numbers after a check."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.lost_gradients import is_loss
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import torch\nimport torch.distributed as dist\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_FIRST = 8
_LOSSES = re.compile(r"cross_entropy|_loss$|^loss|Loss$|logsumexp|kl_div|mse_loss|info_?nce", re.IGNORECASE)
_PENALTY = re.compile(r"loss|penalty|regulari|objective|align|gradient_norm|r1|irm|gp$", re.IGNORECASE)
_REDUCING = frozenset(
    {"sum", "mean", "norm", "vector_norm", "var", "std", "mse_loss", "l1_loss", "square", "logsumexp"}
)


def _is_loss_like(file: FileContext, function: FunctionNode) -> bool:
    """A loss by name, or a function that computes one."""
    if is_loss(file, function):
        return True
    return any(_LOSSES.search(terminal_name(call.func) or "") for call in file.nodes_in(function, ast.Call))


class _Carried:
    """Which names of a function carry something on, from the assignments in source order."""

    def __init__(self, file: FileContext, function: FunctionNode, start: ast.expr) -> None:
        self._start = start
        self.names: set[str] = set()
        self.reduced = False
        for statement in _statements(file, function):
            self._take(statement)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
            if self.carries(statement.value):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                self.names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            adds = isinstance(call.func, ast.Attribute) and call.func.attr in {"append", "extend"}
            if adds and any(map(self.carries, call.args)) and isinstance(call.func, ast.Attribute):
                self.names |= {n.id for n in ast.walk(call.func.value) if isinstance(n, ast.Name)}
        elif isinstance(statement, (ast.For, ast.AsyncFor)) and self.carries(statement.iter):
            self.names |= {n.id for n in ast.walk(statement.target) if isinstance(n, ast.Name)}

    def carries(self, expression: ast.expr) -> bool:
        """Whether the thing itself, or a name that carries it on, stands in an expression outside of `detach()`."""
        found = False
        pending: list[ast.AST] = [expression]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.Call) and terminal_name(node.func) in {"detach", "item", "sign", "clone_grad"}:
                continue
            if node is self._start or (isinstance(node, ast.Name) and node.id in self.names):
                found = True
            pending.extend(ast.iter_child_nodes(node))
        if found:
            inside = set(ast.walk(self._start))
            calls = [node for node in ast.walk(expression) if isinstance(node, ast.Call) and node not in inside]
            self.reduced = self.reduced or any(terminal_name(call.func) in _REDUCING for call in calls)
        return found


def _statements(file: FileContext, function: FunctionNode) -> list[ast.stmt]:
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.For)
    found: list[ast.stmt] = [statement for kind in kinds for statement in file.nodes_in(function, kind)]
    return sorted(found, key=lambda statement: (statement.lineno, statement.col_offset))


class GradientWithoutGraph(Rule):
    """The result of `autograd.grad` goes into a loss, but was computed without a graph of its own."""

    id = "GP207"
    name = "gradient-in-loss-without-graph"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradgradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("autograd", "grad(")
    documentation = Documentation(
        what_it_does=(
            "Finds `torch.autograd.grad(…)` without `create_graph=True` whose result is reduced (`sum`, `mean`, "
            "`norm`, …) into what a forward or a loss returns, or into what `backward` is called on: gradient "
            "penalties, alignment of gradients. Gradients that are handed out, detached, or used for a step are left "
            "alone, and so is `create_graph=self.training`."
        ),
        why_is_this_bad=(
            "Without `create_graph` the gradients are constants: the penalty is added to the loss, and its gradient "
            "is zero. Nothing is raised as long as another term has a history."
        ),
        faulty_example=(
            f"{_HEAD}def penalty(net, x):\n    g = torch.autograd.grad(net(x).sum(), x)[0]\n"
            "    return (g.norm(dim=1) - 1).pow(2).mean()\n"
        ),
        right_example=(
            f"{_HEAD}def penalty(net, x):\n    g = torch.autograd.grad(net(x).sum(), x, create_graph=True)[0]\n"
            "    return (g.norm(dim=1) - 1).pow(2).mean()\n"
        ),
        fix_safety="Safe: `create_graph=True` is added; the values stay the same.",
    )
    valid = (
        _HEAD + "def penalty(net, x, train):\n    g = torch.autograd.grad(net(x).sum(), x, create_graph=train)[0]\n"
        "    return g.norm(dim=1).mean()\n",
        _HEAD + "def attack_loss(net, x):\n    g = torch.autograd.grad(net(x).sum(), x)[0]\n"
        "    return net(x + 0.1 * g.sign()).mean()\n",
        _HEAD + "def forces(energy, x):\n    return -torch.autograd.grad(energy.sum(), x)[0]\n",
        _HEAD + "def forces(net, x):\n    return -torch.autograd.grad(net(x).sum(), x)[0]\n\n\n"
        "def force_loss(net, x, wanted):\n    return (net(x) * forces(net, x).detach() - wanted).pow(2).mean()\n",
        _HEAD + "def forces(net, x):\n    return -torch.autograd.grad(net(x).sum(), x)[0]\n\n\n"
        "@torch.no_grad()\ndef force_loss(net, x, wanted):\n    return (forces(net, x) - wanted).pow(2).mean()\n",
        _HEAD + "class Forces(nn.Module):\n    def forward(self, energy, x):\n"
        "        return -torch.autograd.grad(energy.sum(), x)[0]\n",
        _HEAD + "def weighted_loss(net, x):\n    g = torch.autograd.grad(net(x).sum(), x)[0]\n"
        "    return (net(x) * g.detach().norm()).mean()\n",
        _HEAD
        + "def step(net, x, lr):\n    g = torch.autograd.grad(net(x).sum(), x)[0]\n    return x - lr * g / g.norm()\n",
    )
    invalid = (
        Invalid(
            _HEAD + "def penalty(net, x):\n    g = torch.autograd.grad(net(x).sum(), x)[0]\n"
            "    return (g.norm(dim=1) - 1).pow(2).mean()\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "def fit(net, x):\n    out = net(x).sum()\n"
            "    g = torch.autograd.grad(out, x, retain_graph=True)[0]\n    loss = out + g.pow(2).sum()\n"
            "    loss.backward()\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + "class Align(nn.Module):\n    def forward(self, losses, w):\n        found = []\n"
            "        for loss in losses:\n            grads = torch.autograd.grad(loss, w, create_graph=False)\n"
            "            found.append(torch.cat([g.flatten() for g in grads]))\n"
            "        return torch.stack(found).var(dim=0).sum()\n",
            (_FIRST + 3,),
        ),
        Invalid(
            _HEAD + "def forces(net, x):\n    return -torch.autograd.grad(net(x).sum(), x)[0]\n\n\n"
            "def force_loss(net, x, wanted):\n    return (forces(net, x) - wanted).pow(2).mean()\n",
            (_FIRST,),
        ),
        Invalid(
            _HEAD + "def forces(net, x):\n    g, = torch.autograd.grad(net(x).sum(), x)\n    return -g\n\n\n"
            "def fit(net, x, wanted):\n    loss = F.mse_loss(forces(net, x), wanted)\n    loss.backward()\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every gradient in a loss that was made without a graph."""
        for call in file.calls("grad"):
            function = file.enclosing_function(call)
            if file.qualified_name(call.func) != "torch.autograd.grad" or function is None:
                continue
            if _creates_graph(call) or file.grad_disabled(call):
                continue
            if surroundings(file, call) is Surroundings.ASIDE:
                continue
            end = self._end(file, function, call)
            if end is not None:
                yield Hit(
                    call,
                    "The result of `autograd.grad` goes into the loss, but without `create_graph=True` it is a "
                    "constant: this term has no gradient.",
                    hypothesis={"symbol": file.symbol(call), "line": call.lineno},
                    related=((end, "the loss that it goes into"),),
                    fix=_with_graph(file, call),
                )

    def _end(self, file: FileContext, function: FunctionNode, call: ast.Call) -> ast.AST | None:
        """Where the reduced gradient becomes a result, if it does: here, or in a loss that calls this function."""
        owner = file.parent(function)
        in_forward = function.name == "forward" and forward_code(file).module_of(function) is not None
        named = isinstance(owner, ast.ClassDef) and _PENALTY.search(owner.name) is not None
        end = _result_of(file, function, call, meant=in_forward or named)
        if end is not None or not _is_handed_out(file, function, call):
            return end
        for use in file.calls(function.name):
            caller = file.enclosing_function(use)
            if caller is not None and caller is not function and not file.grad_disabled(use):
                end = _result_of(file, caller, use, meant=False)
                if end is not None:
                    return end
        return None


def _is_handed_out(file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
    carried = _Carried(file, function, call)
    return any(returned.value is not None and carried.carries(returned.value) for returned in file.returns_of(function))


def _result_of(file: FileContext, function: FunctionNode, call: ast.Call, *, meant: bool) -> ast.AST | None:
    """The `backward`, or the `return` of what is meant as a loss, that the reduced result of a call reaches."""
    carried = _Carried(file, function, call)
    for other in file.calls("backward"):
        subject = other.func.value if isinstance(other.func, ast.Attribute) else None
        inside = subject is not None and file.enclosing_function(other) is function
        if inside and subject is not None and carried.carries(subject) and carried.reduced:
            return other
    if not (meant or _PENALTY.search(function.name) or is_loss(file, function)):
        return None
    for returned in file.returns_of(function):
        if returned.value is not None and carried.carries(returned.value) and carried.reduced:
            return returned
    return None


def _creates_graph(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg == "create_graph":
            return not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    return len(call.args) > 4 or any(isinstance(argument, ast.Starred) for argument in call.args)


def _with_graph(file: FileContext, call: ast.Call) -> Rewrite | None:
    for keyword in call.keywords:
        if keyword.arg == "create_graph":
            return Rewrite(FixSafety.SAFE, (Replacement(keyword.value, "True"),))
    source = file.source(call)
    if not source.endswith(")") or source.rstrip(")").rstrip().endswith(","):
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(call, f"{source[:-1]}, create_graph=True)"),))


# --- numbers after a check -------------------------------------------------------------------------------------------

_CHECKS = frozenset({"isnan", "isinf", "isfinite"})
_BLANKS = frozenset({"tensor", "zeros", "zeros_like", "new_zeros", "new_tensor", "ones", "full"})


class LossReplacedByNumber(Rule):
    """A loss that a check for NaN replaces by a constant."""

    id = "GP208"
    name = "loss-replaced-by-constant"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("nan_gradient", "finding_search")
    torch_versions = "2.13"
    triggers = tuple(_CHECKS)
    documentation = Documentation(
        what_it_does=(
            "Finds `0 if torch.isnan(loss) else loss`, `if torch.isnan(loss): loss = 0` and `if not "
            "torch.isfinite(loss): return torch.tensor(0.0)`: a tensor that is replaced by a constant when it is not "
            "finite. Metrics, numbers and code under `no_grad` are left alone, and so is skipping the step."
        ),
        why_is_this_bad=(
            "The constant has no history. If it is the whole loss, `backward` raises (or is called on a number); if it "
            "is one term, that term silently stops training, and what made it NaN (an empty selection, a division by "
            "zero) stays hidden."
        ),
        faulty_example=f"{_HEAD}def finite_loss(x, y):\n    loss = F.mse_loss(x, y)\n"
        "    return 0 if torch.isnan(loss) else loss\n",
        right_example=f"{_HEAD}def finite_loss(x, y, mask):\n"
        "    return (F.mse_loss(x, y, reduction='none') * mask).sum() / mask.sum().clamp(min=1)\n",
        fix_safety="No automatic fix: the cause of the NaN has to be removed.",
    )
    valid = (
        _HEAD
        + "def fit(loss, optimizer):\n    if torch.isnan(loss):\n        optimizer.zero_grad()\n        return None\n"
        "    loss.backward()\n",
        _HEAD + "def score(x):\n    with torch.no_grad():\n        return 0 if torch.isnan(x) else x\n",
        _HEAD + "def count(n):\n    n = float(n)\n    return 0 if torch.isnan(torch.tensor(n)) else n\n",
        _HEAD
        + "def drop_nan_loss(loss):\n    if torch.isnan(loss):\n        raise ValueError('NaN')\n    return loss\n",
        _HEAD + "def keep_loss(loss, last):\n    return last if torch.isnan(loss) else loss\n",
        _HEAD + "def filled(x):\n    return 0 if torch.isnan(x) else x\n",
        _HEAD + "class MeanMetric:\n    def update(self, x):\n        return 0.0 if torch.isnan(x) else x\n",
    )
    invalid = (
        Invalid(
            _HEAD
            + "def finite_loss(x, y):\n    loss = F.mse_loss(x, y)\n    return 0 if torch.isnan(loss) else loss\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + "def drop_nan(loss):\n    if torch.isnan(loss).any():\n        loss = torch.tensor(0.0)\n"
            "    return loss\n",
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + "def total_loss(a, b):\n    loss = a + b\n    if not torch.isfinite(loss):\n        return 0.0\n"
            "    return loss\n",
            (_FIRST + 2,),
        ),
        Invalid(
            _HEAD + "def drop_nan(loss):\n    return loss if torch.isfinite(loss) else torch.zeros(1)\n",
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every constant in the place of a tensor that was checked."""
        for call in file.calls(*_CHECKS):
            checked = _checked(file, call)
            choice = _choice_around(file, call)
            if checked is None or choice is None or file.grad_disabled(call):
                continue
            if surroundings(file, choice) is Surroundings.ASIDE or not self._is_loss(file, choice, checked):
                continue
            place = self._constant(choice, checked)
            if place is not None:
                yield Hit(
                    place,
                    f"`{checked}` is replaced by a constant when it is not finite: the constant has no gradient, and "
                    "what made it NaN stays hidden. Keep the NaN from arising instead.",
                    hypothesis={"operand": checked, "symbol": file.symbol(place), "line": getattr(place, "lineno", 0)},
                    related=((call, "the check"),),
                )

    def _is_loss(self, file: FileContext, choice: ast.AST, checked: str) -> bool:
        """A name or a function that says loss, or a helper whose argument is checked and given back."""
        function = file.enclosing_function(choice)
        if function is None:
            return False
        if _PENALTY.search(checked) or is_loss(file, function) or "nan" in function.name.lower():
            return True
        callers = {file.enclosing_function(call) for call in file.calls(function.name)}
        return any(caller is not None and is_loss(file, caller) for caller in callers)

    def _constant(self, choice: ast.IfExp | ast.If, checked: str) -> ast.AST | None:
        """The node that puts a constant in the place of what was checked."""
        if isinstance(choice, ast.IfExp):
            sides = [choice.body, choice.orelse]
            constants = [side for side in sides if _is_constant(side)]
            others = [side for side in sides if isinstance(side, ast.Name) and side.id == checked]
            return choice if constants and others else None
        for statement in choice.body:
            value = statement.value if isinstance(statement, (ast.Assign, ast.Return)) else None
            if value is None or not _is_constant(value):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.Return) or any(_is_name(target, checked) for target in targets):
                return statement
        return None


def _is_name(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _checked(file: FileContext, call: ast.Call) -> str | None:
    """The name of the tensor that is checked."""
    qualified = file.qualified_name(call.func)
    if qualified is not None:
        operand = call.args[0] if qualified.startswith("torch.") and call.args else None
    else:
        operand = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(operand, ast.Name) or file.values.value(operand).kind is Kind.NUMBER:
        return None
    return operand.id


def _choice_around(file: FileContext, call: ast.Call) -> ast.IfExp | ast.If | None:
    """The `if` whose condition is this check, `any()`, `all()` and `not` apart."""
    node: ast.AST = call
    for outer in file.ancestors(call):
        if isinstance(outer, (ast.IfExp, ast.If)):
            return outer if outer.test is node else None
        is_any = isinstance(outer, ast.Attribute) and outer.attr in {"any", "all", "item"}
        if not (is_any or isinstance(outer, (ast.UnaryOp, ast.Call, ast.BoolOp))):
            return None
        node = outer
    return None


def _is_constant(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float)) and not isinstance(value.value, bool)
    if isinstance(value, ast.Call) and terminal_name(value.func) in _BLANKS:
        constant = all(isinstance(item, (ast.Constant, ast.Name)) for item in value.args)
        return constant and not any(keyword.arg == "requires_grad" for keyword in value.keywords)
    return False


# --- gathered tensors ------------------------------------------------------------------------------------------------

_GATHERING = ("all_gather", "all_gather_into_tensor")


class GatheredWithoutGradient(Rule):
    """Tensors gathered from all processes, which carry no gradient, in a loss."""

    id = "GP209"
    name = "gathered-without-gradient"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("ddp_consistency", "gradient_flow")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("all_gather",)
    documentation = Documentation(
        what_it_does=(
            "Finds `dist.all_gather(pool, z)` in a loss, or in a helper that a loss of the same file calls, where the "
            "pool is used as it is. `torch.distributed.nn`, putting the local tensor back (`pool[rank] = z`), detached "
            "tensors, custom Functions and `no_grad` are left alone."
        ),
        why_is_this_bad=(
            "`all_gather` writes into buffers and records nothing: even the process's own part of the pool has no "
            "gradient, so that half of a contrastive loss silently trains nothing."
        ),
        faulty_example=(
            f"{_HEAD}def nce_loss(a, b):\n    pool = [torch.empty_like(b) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(pool, b)\n    return F.cross_entropy(a @ torch.cat(pool).T, torch.arange(len(a)))\n"
        ),
        right_example=(
            f"{_HEAD}def nce_loss(a, b):\n    pool = [torch.empty_like(b) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(pool, b)\n    pool[dist.get_rank()] = b\n"
            "    return F.cross_entropy(a @ torch.cat(pool).T, torch.arange(len(a)))\n"
        ),
        fix_safety=(
            "Unsafe: the process's own tensor is put back into the pool, with its gradient. Gradients from the losses "
            "of other processes still take `torch.distributed.nn.functional.all_gather`."
        ),
    )
    valid = (
        f"{_HEAD}def nce_loss(a, b):\n    pool = [torch.empty_like(b) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(pool, b.detach())\n    return F.cross_entropy(a @ torch.cat(pool).T, a)\n",
        f"{_HEAD}def gather(b):\n    pool = [torch.empty_like(b) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(pool, b)\n    return torch.cat(pool)\n",
        f"{_HEAD}@torch.no_grad()\ndef nce_loss(a, b):\n    pool = [torch.empty_like(b)]\n"
        "    dist.all_gather(pool, b)\n    return F.cross_entropy(a @ torch.cat(pool).T, a)\n",
        f"{_HEAD}def nce_loss(a, labels):\n    pool = [torch.empty_like(labels)]\n    dist.all_gather(pool, labels)\n"
        "    return F.cross_entropy(a, torch.cat(pool))\n",
    )
    invalid = (
        Invalid(
            f"{_HEAD}def nce_loss(a, b):\n    pool = [torch.empty_like(b) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(pool, b)\n    return F.cross_entropy(a @ torch.cat(pool).T, torch.arange(len(a)))\n",
            (_FIRST + 1,),
        ),
        Invalid(
            f"{_HEAD}def collect(z):\n    pool = [torch.empty_like(z) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(pool, z)\n    return torch.cat(list(pool))\n\n\n"
            "def contrast(a, b):\n    return F.cross_entropy(a @ collect(b).T, torch.arange(len(a)))\n",
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every gathering whose pool a loss uses as it is."""
        for call in file.calls(*_GATHERING):
            qualified = file.qualified_name(call.func) or ""
            function = file.enclosing_function(call)
            if not qualified.startswith("torch.distributed.") or ".nn" in qualified or function is None:
                continue
            if len(call.args) < 2 or file.grad_disabled(call) or not self._feeds_a_loss(file, function):
                continue
            pool, given = call.args[0], call.args[1]
            if not isinstance(pool, ast.Name) or not _is_activation(given) or _put_back(file, function, pool.id):
                continue
            statement = file.parent(call)
            yield Hit(
                call,
                f"`{shown(file, call)}` records no gradient: `{pool.id}` in the loss is a constant, also the part of "
                "this process. Put the local tensor back, or use `torch.distributed.nn.functional.all_gather`.",
                hypothesis={"operand": shown(file, given), "symbol": file.symbol(call), "line": call.lineno},
                fix=_putting_back(file, statement, pool, given) if isinstance(statement, ast.Expr) else None,
            )

    def _feeds_a_loss(self, file: FileContext, function: FunctionNode) -> bool:
        if _is_loss_like(file, function):
            return True
        callers = {file.enclosing_function(call) for call in file.calls(function.name)}
        return any(caller is not None and _is_loss_like(file, caller) for caller in callers)


def _is_activation(given: ast.expr) -> bool:
    if not isinstance(given, ast.Name):
        return False
    return not re.search(
        r"label|target|index|indices|idx|ids|mask|size|length|count|num|rank|shape|loss", given.id.lower()
    )


def _put_back(file: FileContext, function: FunctionNode, pool: str) -> bool:
    for assignment in file.nodes_in(function, ast.Assign):
        for target in assignment.targets:
            root = target.value if isinstance(target, ast.Subscript) else None
            if isinstance(root, ast.Name) and root.id == pool:
                return True
    return False


def _putting_back(file: FileContext, statement: ast.Expr, pool: ast.Name, given: ast.expr) -> Rewrite | None:
    rank = file.spelling("torch.distributed.get_rank")
    call = statement.value
    if rank is None or not isinstance(call, ast.Call) or terminal_name(call.func) != "all_gather":
        return None
    text = f"{file.source(statement)}\n{pool.id}[{rank}()] = {file.source(given)}"
    return Rewrite(FixSafety.UNSAFE, (Replacement(statement, text),))
