"""Tensors and flags that a module keeps where `.to()` and `state_dict()` do not see them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.device_joins import Join, device_joins
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword, mentions, own_attribute
from analyzer.layers import Content
from analyzer.module_state import (
    Assignment,
    assignment_of,
    changes_in_place,
    elements_of,
    is_registered,
    outside_forward,
    takes_care,
)
from analyzer.placement import FACTORIES, placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, is_self, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_OPEN = "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
_LAYER = "        self.up = nn.Linear(width, width)\n"


def _module(setup: str, body: str, *, after: str = "") -> str:
    lines = "".join(f"        {line}\n" for line in setup.splitlines())
    forward = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{_HEAD}{_OPEN}{_LAYER}{lines}\n    def forward(self, x):\n{forward}{after}"


# The first line of `setup` given to `_module`.
_FIRST = 10
_COUNT = "if self.training:\n    self.count += 1\nreturn self.up(x) / self.count"


class UnregisteredTensor(Rule):
    """A tensor of a module in a plain attribute, used with tensors that `.to()` moves, or changed and not saved."""

    id = "GP604"
    name = "unregistered-tensor"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search", "state_dict")
    fix = FixSafety.SAFE
    triggers = tuple(f"{name}(" for name in FACTORIES)
    documentation = Documentation(
        what_it_does=(
            "Finds tensors that a module makes when it is built and keeps in a plain attribute (or in a list), where "
            "its `forward` joins them with an input, a parameter or a buffer without moving them, or changes them in "
            "place. Tensors registered as buffers, moved where they are used, or kept by a module with an `_apply` "
            "or `state_dict` of its own are left alone."
        ),
        why_is_this_bad=(
            "`module.to(device)` and `module.half()` move parameters and buffers only: the attribute stays on the CPU "
            "and the first call on a GPU raises. `state_dict()` does not hold it either, so what a running module "
            "has written to it is lost on reload (measured: an empty state dict)."
        ),
        faulty_example=_module("self.gain = torch.tensor([1.0, 2.0, 3.0, 4.0])", "return self.up(x) * self.gain"),
        right_example=_module(
            "self.register_buffer('gain', torch.tensor([1.0, 2.0, 3.0, 4.0]))", "return self.up(x) * self.gain"
        ),
        fix_safety=(
            "Safe for a constant: it becomes a buffer that is not saved, so that state dicts stay as they were. Unsafe "
            "for a tensor that is changed: it becomes a saved buffer, and older state dicts lack it."
        ),
    )
    valid = (
        _module("self.register_buffer('gain', torch.ones(4))", "return self.up(x) * self.gain"),
        _module("self.gain = nn.Parameter(torch.ones(4))", "return self.up(x) * self.gain"),
        _module("self.gain = torch.ones(4)", "return self.up(x) * self.gain.to(x.device)"),
        _module("self.gain = torch.ones(4)", "gain = self.gain.to(x)\nreturn self.up(x) * gain"),
        _module("self.gain = torch.tensor(0.5)", "return self.up(x) * self.gain"),
        _module("self.order = torch.randperm(4)", "return self.up(x)[:, self.order]"),
        _module("self.rates = torch.linspace(0, 1, 4).tolist()", "return self.up(x) * self.rates[0]"),
        _module("self.gain = torch.ones(4)", "self.gain = self.gain.to(x.device)\nreturn self.up(x) * self.gain"),
        _module(
            "self.gain = torch.ones(4)",
            "return self.up(x) * self.gain",
            after="\n    def _apply(self, fn):\n        super()._apply(fn)\n        self.gain = fn(self.gain)\n"
            "        return self\n",
        ),
        _module("weight = torch.ones(4)\nself.register_buffer('gain', weight)", "return self.up(x) * self.gain"),
        _module(
            "setattr(self, f'table{width}', torch.ones(width))",
            "return self.up(x + getattr(self, f'table{x.dim()}').to(x.device))",
        ),
        _module("self.names = ['a', 'b']\nself.sizes = [1, 2]", "return self.up(x) * self.sizes[0]"),
    )
    invalid = (
        Invalid(_module("self.gain = torch.ones(4)", "return self.up(x) * self.gain"), (_FIRST,)),
        Invalid(
            _module("table = torch.eye(width)\nself.rot = table * 2", "return x @ self.rot.t() + self.up(x)"),
            (_FIRST + 1,),
        ),
        Invalid(_module("self.gain = torch.ones(4)", "gain = self.gain[None, :]\nreturn self.up(x) * gain"), (_FIRST,)),
        Invalid(_module("self.ready = torch.tensor(False)", "self.ready.fill_(True)\nreturn self.up(x)"), (_FIRST,)),
        Invalid(_module("self.gain = torch.ones(4, device='cpu')", "return self.up(x) * self.gain"), (_FIRST,)),
        Invalid(_module("self.mean = torch.zeros(4)", "self.mean.mul_(0.9)\nreturn self.up(x)"), (_FIRST,)),
        Invalid(_module("self.count = torch.zeros(1)", _COUNT), (_FIRST,)),
        Invalid(
            _module(
                "for i in range(2):\n    setattr(self, f'table{i}', torch.ones(width) * i)",
                "return self.up(x + getattr(self, f'table{self.level}'))",
            ),
            (_FIRST + 1,),
        ),
        Invalid(_module("self.shift = torch.ones(4)", "return self.up(x + self.shift)"), (_FIRST,)),
        Invalid(_module("self.waves = torch.randn(4, 4) * 2", "return torch.sin(3.0 * x @ self.waves.t())"), (_FIRST,)),
        Invalid(
            _module(
                "self.queue = F.normalize(torch.randn(9, 4), dim=1)",
                "q = F.normalize(self.up(x), dim=1)\nreturn q @ self.queue.clone().t()",
            ),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "self.queue = F.normalize(torch.randn(9, 4), dim=1)",
                "if self.training:\n    self.queue[:2] = x[:2].detach()\nreturn self.up(x)",
            ),
            (_FIRST,),
        ),
        Invalid(
            _module("self.gains = [torch.ones(4), torch.zeros(4)]", "return self.up(x) * self.gains[0]"), (_FIRST,)
        ),
        Invalid(
            _module(
                "self.gains = []\nfor i in range(3):\n    self.gains.append(torch.ones(4) * i)",
                "h = self.up(x)\nfor gain in self.gains:\n    h = h * gain\nreturn h",
            ),
            (_FIRST + 2,),
        ),
        Invalid(
            _HEAD + "class Block(nn.Module):\n    gain = torch.ones(4)\n\n    def __init__(self):\n"
            "        super().__init__()\n        self.up = nn.Linear(4, 4)\n\n    def forward(self, x):\n"
            "        return self.up(x) * self.gain\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every attribute that a factory call fills outside of `forward`."""
        code = forward_code(file)
        yield from self._set_by_name(file)
        told: set[tuple[ast.ClassDef, str]] = set()
        for call in file.calls(*FACTORIES):
            owner = code.module_of(call)
            if owner is None or takes_care(owner):
                continue
            found = self._kept(file, owner, call)
            if found is None or (owner, found.name) in told or is_registered(file, owner, found.name):
                continue
            hit = self._judge(file, owner, found)
            if hit is not None:
                told.add((owner, found.name))
                yield hit

    def _set_by_name(self, file: FileContext) -> Iterator[Hit]:
        """`setattr(self, f"table_{i}", tensor)` of a module that reads it with `getattr` and moves it nowhere."""
        code, places = forward_code(file), placement(file)
        for call in file.calls("setattr"):
            owner, method = code.module_of(call), code.method_of(call)
            if owner is None or method is None or takes_care(owner) or len(call.args) != 3 or not is_self(call.args[0]):
                continue
            name, value = call.args[1:]
            if isinstance(name, ast.Constant) or places.made_on_cpu(value) is None:
                continue
            for read in file.calls("getattr"):
                if code.module_of(read) is not owner or not read.args or not is_self(read.args[0]):
                    continue
                join = next(device_joins(file).joins(read), None)
                if join is not None:
                    yield Hit(
                        call,
                        f"`setattr` keeps this tensor in a plain attribute: `.to()` does not move it, and line "
                        f"{join.node.lineno} joins it with tensors that are moved. Use `register_buffer`.",
                        hypothesis={"attribute": file.source(name), "joined_line": join.node.lineno},
                        related=((join.node, "joined with tensors of the model here"),),
                    )
                    break

    def _kept(self, file: FileContext, owner: ast.ClassDef, call: ast.Call) -> Assignment | None:
        statement = file.statement(call)
        if statement in owner.body and isinstance(statement, ast.Assign):
            target = statement.targets[0]
            return Assignment(target.id, statement, statement.value) if isinstance(target, ast.Name) else None
        method = outside_forward(forward_code(file), owner, call)
        if method is None:
            return None
        found = assignment_of(file, call)
        if found is None and isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # One step on: `table = torch.eye(n)`, then `self.rot = table * 2`.
            for load in placement(file).loads(method, statement.targets[0].id):
                if load.lineno > statement.lineno and (found := assignment_of(file, load)) is not None:
                    break
        return found

    def _judge(self, file: FileContext, owner: ast.ClassDef, found: Assignment) -> Hit | None:
        code, places = forward_code(file), placement(file)
        uses = [u for method in code.reached(owner).values() for u in code.own_uses(method, found.name)]
        if any(isinstance(u.ctx, ast.Store) and not isinstance(file.parent(u), ast.AugAssign) for u in uses):
            return None
        changed = next((use for use in uses if changes_in_place(file, use)), None)
        if changed is not None and not found.in_list and _is_tensor(file, found.value):
            return self._unsaved(file, found, changed)
        if not found.in_list and places.made(found.value) is None:
            return None
        for use in uses:
            for node in elements_of(file, use) if found.in_list else [use]:
                join = next(device_joins(file).joins(node), None)
                if join is not None:
                    return self._unmoved(file, found, join)
        return None

    def _unmoved(self, file: FileContext, found: Assignment, join: Join) -> Hit:
        return Hit(
            found.node,
            f"`self.{found.name}` is a tensor in a plain attribute: `.to()` does not move it, and line "
            f"{join.node.lineno} joins it with tensors that are moved, which raises on a GPU. Register it as a buffer.",
            hypothesis={"attribute": found.name, "joined_line": join.node.lineno},
            related=((join.node, "joined with tensors of the model here"),),
            fix=_registering(file, found, persistent=False, safety=FixSafety.SAFE),
        )

    def _unsaved(self, file: FileContext, found: Assignment, changed: ast.Attribute) -> Hit:
        return Hit(
            found.node,
            f"`self.{found.name}` is a tensor in a plain attribute, and line {changed.lineno} changes it: the change "
            "is missing from `state_dict()`, and `.to()` does not move it. Register it as a buffer.",
            hypothesis={"attribute": found.name, "changed_line": changed.lineno},
            related=((changed, "changed here"),),
            fix=_registering(file, found, persistent=True, safety=FixSafety.UNSAFE),
        )


def _is_tensor(file: FileContext, value: ast.expr) -> bool:
    """Whether a value comes straight from a tensor factory."""
    if isinstance(value, ast.Call):
        qualified = file.qualified_name(value.func) or ""
        if qualified.startswith("torch.") and qualified.count(".") == 1 and terminal_name(value.func) in FACTORIES:
            return True
    return placement(file).made_on_cpu(value) is not None


def _registering(file: FileContext, found: Assignment, *, persistent: bool, safety: FixSafety) -> Rewrite | None:
    if found.in_list or not isinstance(found.node, ast.Assign) or own_attribute(found.node.targets[0]) is None:
        return None
    ending = "" if persistent else ", persistent=False"
    text = f'self.register_buffer("{found.name}", {file.source(found.value)}{ending})'
    return Rewrite(safety, (Replacement(found.node, text),))


class CachedTensor(Rule):
    """A tensor kept from an earlier call, under a condition that does not ask for its device."""

    id = "GP615"
    name = "cached-tensor-device"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    fix = FixSafety.SAFE
    triggers = ("is None", "not in self.", "hasattr(self", "is not None", "shape", "size(")
    documentation = Documentation(
        what_it_does=(
            "Finds tensors that a `forward` makes on its first call (or for a new length) and keeps in a plain "
            "attribute or in a dictionary, where neither the condition nor the key asks for the device, and which are "
            "then joined with an input as they are."
        ),
        why_is_this_bad=(
            "After `module.to(device)`, or with inputs on a second device, the tensor of the first call is used "
            "again: it lies on the old device, and the operation raises."
        ),
        faulty_example=_module(
            "self.mask = None",
            "if self.mask is None:\n    self.mask = torch.ones(4, device=x.device)\nreturn self.up(x) * self.mask",
        ),
        right_example=_module(
            'self.register_buffer("mask", None, persistent=False)',
            "if self.mask is None:\n    self.mask = torch.ones(4, device=x.device)\nreturn self.up(x) * self.mask",
        ),
        fix_safety="Safe: the attribute becomes a buffer that is not saved, which `.to()` moves along.",
    )
    valid = (
        _module(
            "self.mask = None",
            "if self.mask is None or self.mask.device != x.device:\n    self.mask = torch.ones(4, device=x.device)\n"
            "return self.up(x) * self.mask",
        ),
        _module(
            "self.mask = None",
            "if self.mask is None:\n    self.mask = torch.ones(4)\nreturn self.up(x) * self.mask.to(x.device)",
        ),
        _module(
            "self.masks = {}",
            "key = (x.shape[1], x.device)\nif key not in self.masks:\n"
            "    self.masks[key] = torch.ones(4, device=x.device)\nreturn self.up(x) * self.masks[key]",
        ),
        _module(
            "self.seen = None",
            "if self.seen is None:\n    self.seen = x.shape[1]\nreturn self.up(x) * self.seen",
        ),
        _module(
            "self.state = None",
            "if self.state is None:\n    self.state = torch.zeros(4, device=x.device)\n"
            "self.state = self.up(x) + self.state\nreturn self.state",
        ),
        _module(
            "self.scale = None",
            "if self.scale is None:\n    self.scale = torch.tensor(4.0).sqrt()\nreturn self.up(x) * self.scale",
        ),
        _module(
            "self.mask = None",
            "if x.dim() > 2:\n    self.mask = torch.ones(4, device=x.device)\nelse:\n"
            "    self.mask = torch.zeros(4, device=x.device)\nreturn self.up(x) * self.mask",
        ),
    )
    invalid = (
        Invalid(
            _module(
                "self.mask = None",
                "if self.mask is None:\n    self.mask = torch.ones(4, device=x.device)\nreturn self.up(x) * self.mask",
            ),
            (_FIRST,),
        ),
        Invalid(
            _module(
                "self.size = 0\nself.mask = None",
                "n = x.shape[1]\nif self.mask is None or self.mask.shape[0] != n:\n"
                "    row = torch.ones(n, device=x.device)\n    self.mask = row / row.sum()\n"
                "return torch.einsum('s,bs->b', self.mask, x)",
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "self.masks = {}",
                "n = x.shape[1]\nif n not in self.masks:\n    self.masks[n] = torch.ones(n, device=x.device)\n"
                "return self.up(x) * self.masks[n]",
            ),
            (_FIRST + 4,),
        ),
        Invalid(
            _module(
                "pass",
                "if not hasattr(self, 'mask'):\n    self.mask = torch.ones(4, device=x.device)\n"
                "return self.up(x) * self.mask",
            ),
            (_FIRST + 3,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every assignment to an attribute, in code that `forward` runs, under a test of that attribute."""
        code = forward_code(file)
        told: set[tuple[ast.ClassDef, str]] = set()
        for call in file.calls(*FACTORIES):
            owner, method = code.module_of(call), code.method_of(call)
            if owner is None or method is None or method not in code.reached(owner).values() or takes_care(owner):
                continue
            for found in _assignments_from(file, call, method.name):
                test = _test_around(file, found)
                if test is None or (owner, found.name) in told or is_registered(file, owner, found.name):
                    continue
                hit = self._judge(file, owner, found, test)
                if hit is not None:
                    told.add((owner, found.name))
                    yield hit

    def _judge(self, file: FileContext, owner: ast.ClassDef, found: Assignment, test: ast.If) -> Hit | None:
        code, places = forward_code(file), placement(file)
        is_list = isinstance(found.value, (ast.List, ast.Tuple, ast.ListComp, ast.Dict, ast.DictComp))
        if is_list or mentions(test.test, "device", "is_cuda") or _key_has_device(file, found):
            return None
        if places.made(_made_by_helper(file, owner, found.value)) is None or _is_set_elsewhere(
            file, owner, found, test
        ):
            return None
        for method in code.reached(owner).values():
            for use in code.own_uses(method, found.name):
                if not isinstance(use.ctx, ast.Load):
                    continue
                for node in elements_of(file, use) if found.in_list else [use]:
                    join = next(device_joins(file).joins(node), None)
                    if join is not None:
                        return self._hit(file, owner, found, test, join)
        return None

    def _hit(self, file: FileContext, owner: ast.ClassDef, found: Assignment, test: ast.If, join: Join) -> Hit:
        start = None if found.in_list else _initial_none(file, owner, found.name)
        fix = None
        if start is not None:
            text = f'self.register_buffer("{found.name}", None, persistent=False)'
            fix = Rewrite(FixSafety.SAFE, (Replacement(start, text),))
        what = "the key" if found.in_list else "the condition"
        return Hit(
            start if start is not None else test.test,
            f"`self.{found.name}` keeps a tensor of an earlier call (line {found.node.lineno}), and {what} does not "
            f"ask for its device: after `.to()` line {join.node.lineno} joins tensors of two devices. Make it a buffer "
            "that is not saved, or compare the device.",
            hypothesis={"attribute": found.name, "joined_line": join.node.lineno},
            related=((found.node, "kept here"), (join.node, "joined with an input here")),
            fix=fix,
        )


def _made_by_helper(file: FileContext, owner: ast.ClassDef, value: ast.expr) -> ast.expr:
    """The value itself, or what the method of the module returns that it calls."""
    name = own_attribute(value.func) if isinstance(value, ast.Call) else None
    for statement in owner.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            returned = [item.value for item in file.returns_of(statement) if item.value is not None]
            return returned[0] if len(returned) == 1 else value
    return value


def _is_set_elsewhere(file: FileContext, owner: ast.ClassDef, found: Assignment, test: ast.If) -> bool:
    """Whether running code sets the attribute in other places too: a state that goes on from call to call."""
    code = forward_code(file)
    for method in code.reached(owner).values():
        for use in code.own_uses(method, found.name):
            if isinstance(use.ctx, ast.Store) and test not in file.ancestors(use):
                return True
    return False


def _assignments_from(file: FileContext, call: ast.Call, method: str) -> Iterator[Assignment]:
    """The attributes that a factory's tensor is kept in: at once, through variables, or as a helper's result."""
    found = assignment_of(file, call)
    if found is not None:
        yield found
        return
    function = file.enclosing_function(call)
    statement = file.statement(call)
    if function is None:
        return
    if isinstance(statement, ast.Return):
        for use in file.calls(method):
            if own_attribute(use.func) == method and (kept := assignment_of(file, use)) is not None:
                yield kept
        return
    names = {target.id for target in getattr(statement, "targets", ()) if isinstance(target, ast.Name)}
    if not names:
        return
    named = _names_of_values(file, function)
    for _ in range(2):
        for assignment in file.nodes_in(function, ast.Assign):
            if not names.isdisjoint(named.get(assignment, ())):
                kept = assignment_of(file, assignment.value)
                if kept is not None:
                    yield kept
                    return
                names |= {target.id for target in assignment.targets if isinstance(target, ast.Name)}


def _names_of_values(file: FileContext, function: FunctionNode) -> dict[ast.AST, set[str]]:
    """Assignment → the names in its value, for those of a function: found by climbing from the names."""
    table: dict[ast.AST, set[str]] = {}
    for name in file.nodes_in(function, ast.Name):
        part: ast.AST = name
        outer = file.parent(part)
        while outer is not None and not isinstance(outer, ast.stmt):
            part, outer = outer, file.parent(outer)
        if isinstance(outer, ast.Assign) and part is outer.value:
            table.setdefault(outer, set()).add(name.id)
    return table


def _tested_flags(file: FileContext, names: set[str]) -> dict[ast.If, list[str]]:
    """`if` → which of these attributes of `self` it tests, found by climbing from the attributes."""
    table: dict[ast.If, list[str]] = {}
    for attribute in file.nodes(ast.Attribute):
        if attribute.attr not in names or own_attribute(attribute) is None:
            continue
        part: ast.AST = attribute
        outer = file.parent(part)
        while outer is not None and not isinstance(outer, ast.stmt):
            part, outer = outer, file.parent(outer)
        if isinstance(outer, ast.If) and part is outer.test:
            table.setdefault(outer, []).append(attribute.attr)
    return table


def _test_around(file: FileContext, found: Assignment) -> ast.If | None:
    """The `if` that only lets the attribute be filled when it is not filled yet, or for another size."""
    for outer in file.ancestors(found.node):
        if isinstance(outer, ast.If) and found.node not in outer.orelse:
            asks = any(own_attribute(node) == found.name for node in ast.walk(outer.test))
            if asks or _asks_by_name(outer.test, found.name):
                return outer
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
    return None


def _asks_by_name(test: ast.expr, name: str) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and terminal_name(node.func) in ("hasattr", "getattr") and len(node.args) > 1:
            return isinstance(node.args[1], ast.Constant) and node.args[1].value == name
    return False


def _key_has_device(file: FileContext, found: Assignment) -> bool:
    if (
        not found.in_list
        or not isinstance(found.node, ast.Assign)
        or not isinstance(found.node.targets[0], ast.Subscript)
    ):
        return False
    key = found.node.targets[0].slice
    definition = file.values.single_definition(key)
    return any(mentions(part, "device") for part in (key, definition) if part is not None)


def _initial_none(file: FileContext, owner: ast.ClassDef, name: str) -> ast.stmt | None:
    """`self.x = None` where the module is built."""
    for assignment in file.nodes_in(owner, ast.Assign):
        if len(assignment.targets) == 1 and own_attribute(assignment.targets[0]) == name:
            method = outside_forward(forward_code(file), owner, assignment)
            if method is not None and method.name == "__init__" and is_constant(assignment.value, None):
                return assignment
    return None


class BufferKeptTwice(Rule):
    """A list, a dictionary or a second attribute that holds a buffer of the same module."""

    id = "GP616"
    name = "buffer-kept-twice"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    triggers = ("register_buffer(",)
    documentation = Documentation(
        what_it_does=(
            "Finds buffers that a module also stores in a plain list, dictionary or second attribute when it is "
            "built, and takes from there in its `forward`."
        ),
        why_is_this_bad=(
            "`.to()`, `.half()` and `load_state_dict(assign=True)` put new tensors in the place of buffers. The list "
            "keeps the old ones: they stay on the CPU, and no longer share their values with the buffers. "
            "(Parameters keep their identity; a list of parameters stays right.)"
        ),
        faulty_example=_module(
            "self.gains = []\nfor i in range(3):\n    self.register_buffer(f'gain_{i}', torch.ones(4))\n"
            "    self.gains.append(getattr(self, f'gain_{i}'))",
            "return self.up(x) * self.gains[0]",
        ),
        right_example=_module(
            "for i in range(3):\n    self.register_buffer(f'gain_{i}', torch.ones(4))",
            "return self.up(x) * getattr(self, f'gain_{0}')",
        ),
        fix_safety="No automatic fix: every place that reads the list has to ask the module by name.",
    )
    valid = (
        _module(
            "self.names = []\nfor i in range(3):\n    self.register_buffer(f'gain_{i}', torch.ones(4))\n"
            "    self.names.append(f'gain_{i}')",
            "return self.up(x) * getattr(self, self.names[0])",
        ),
        _module(
            "self.register_buffer('gain', torch.ones(4))\nself.sizes = [self.gain.shape[0]]",
            "return self.up(x) * self.sizes[0] * self.gain",
        ),
        _module(
            "self.register_buffer('gain', torch.ones(4))\nself.twice = []\nself.twice.append(self.gain)",
            "return self.up(x) * self.gain",
        ),
        _module(
            "self.gains = []\nfor i in range(3):\n    p = nn.Parameter(torch.ones(4))\n"
            "    self.register_parameter(f'gain_{i}', p)\n    self.gains.append(p)\n"
            "self.register_buffer('other', torch.ones(4))",
            "return self.up(x) * self.gains[0]",
        ),
    )
    invalid = (
        Invalid(
            _module(
                "self.gains = []\nfor i in range(3):\n    self.register_buffer(f'gain_{i}', torch.ones(4))\n"
                "    self.gains.append(getattr(self, f'gain_{i}'))",
                "return self.up(x) * self.gains[0]",
            ),
            (_FIRST + 3,),
        ),
        Invalid(
            _module(
                "self.register_buffer('low', torch.ones(4))\nself.register_buffer('high', torch.ones(4))\n"
                "self.both = [self.low, self.high]",
                "return self.up(x) * self.both[0]",
            ),
            (_FIRST + 2,),
        ),
        Invalid(
            _module(
                "self.gains = {}\nfor key in 'ab':\n    gain = torch.ones(4)\n    self.register_buffer(key, gain)\n"
                "    self.gains[key] = gain",
                "return self.up(x) * self.gains['a']",
            ),
            (_FIRST + 4,),
        ),
        Invalid(
            _module(
                "self.register_buffer('gain', torch.ones(4))\nself.alias = self.gain", "return self.up(x) * self.alias"
            ),
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every buffer that is stored a second time where it is registered."""
        code = forward_code(file)
        told: set[tuple[ast.ClassDef, str]] = set()
        for call in file.calls("register_buffer"):
            owner, method = code.module_of(call), code.method_of(call)
            if owner is None or method is None or not call.args or takes_care(owner):
                continue
            for node in self._copies(file, method, call):
                found = assignment_of(file, node)
                if found is None or (owner, found.name) in told or is_registered(file, owner, found.name):
                    continue
                reads = [u for m in code.reached(owner).values() for u in code.own_uses(m, found.name)]
                if not any(isinstance(use.ctx, ast.Load) for use in reads):
                    continue
                told.add((owner, found.name))
                yield Hit(
                    found.node,
                    f"`self.{found.name}` keeps a buffer a second time: `.to()` replaces the buffer, and what is kept "
                    "here stays behind on the old device. Ask the module for the buffer where it is used.",
                    hypothesis={"attribute": found.name},
                    related=((call, "registered here"), (reads[0], "read here")),
                )

    def _copies(self, file: FileContext, method: FunctionNode, call: ast.Call) -> Iterator[ast.expr]:
        """Expressions of the same method that stand for the buffer and are stored as they are."""
        name = call.args[0]
        value = call.args[1] if len(call.args) > 1 else keyword(call, "tensor")
        if isinstance(name, ast.Constant):
            for use in forward_code(file).own_uses(method, str(name.value)):
                if isinstance(use.ctx, ast.Load) and _is_stored(file, use):
                    yield use
        spelled = ast.dump(name)
        for asked in file.calls("getattr"):
            same = len(asked.args) > 1 and ast.dump(asked.args[1]) == spelled
            if same and _is_stored(file, asked) and forward_code(file).method_of(asked) is method:
                yield asked
        if isinstance(value, ast.Name):
            for load in placement(file).loads(method, value.id):
                if load is not value and _is_stored(file, load) and file.enclosing_function(load) is method:
                    yield load


def _is_stored(file: FileContext, node: ast.expr) -> bool:
    """Whether an expression itself becomes an element of a list or the value of an attribute."""
    parent = file.parent(node)
    while isinstance(parent, (ast.List, ast.Tuple, ast.Dict)):
        node, parent = parent, file.parent(parent)
    if isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return parent.value is node
    return isinstance(parent, ast.Call) and node in parent.args and terminal_name(parent.func) in ("append", "insert")


class FlagOutsideStateDict(Rule):
    """A plain attribute that decides whether parameters or buffers are set anew, and that no state dict holds."""

    id = "GP617"
    name = "flag-outside-state-dict"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search", "state_dict")
    triggers = ("= False", "= 0", "= True")
    documentation = Documentation(
        what_it_does=(
            "Finds a plain flag of a module (`self.ready = False`) under which its `forward` writes parameters or "
            "buffers once (`if not self.ready:`) before it sets the flag, and plain counters of the updates of a "
            "buffer that go into the result with it."
        ),
        why_is_this_bad=(
            "`state_dict()` holds the values that were set, but not the flag: after a reload the flag is as at the "
            "start, and the first call overwrites the loaded values with those of its own batch."
        ),
        faulty_example=_module(
            "self.shift = nn.Parameter(torch.zeros(4))\nself.ready = False",
            "if not self.ready:\n    self.shift.data.copy_(-x.mean(0))\n    self.ready = True\n"
            "return self.up(x) + self.shift",
        ),
        right_example=_module(
            "self.shift = nn.Parameter(torch.zeros(4))\nself.register_buffer('ready', torch.tensor(False))",
            "if not self.ready:\n    self.shift.data.copy_(-x.mean(0))\n    self.ready.fill_(True)\n"
            "return self.up(x) + self.shift",
        ),
        fix_safety="No automatic fix: a saved flag changes the state dict, and older ones lack it.",
    )
    valid = (
        _module(
            "self.warned = False", "if not self.warned:\n    print('slow')\n    self.warned = True\nreturn self.up(x)"
        ),
        _module(
            "self.shift = nn.Parameter(torch.zeros(4))\nself.ready = False",
            "if not self.ready:\n    self.shift.data.copy_(-x.mean(0))\n    self.ready = True\n"
            "return self.up(x) + self.shift",
            after="\n    def get_extra_state(self):\n        return self.ready\n",
        ),
        _module(
            "self.register_buffer('mean', torch.zeros(4))\nself.steps = 0",
            "self.steps += 1\nif self.steps % 100 == 0:\n    print(self.steps)\nself.mean.mul_(0.9)\nreturn self.up(x)",
        ),
        _module("self.hidden = None", "if self.hidden is None:\n    self.hidden = x\nreturn self.up(x) + self.hidden"),
    )
    invalid = (
        Invalid(
            _module(
                "self.shift = nn.Parameter(torch.zeros(4))\nself.ready = False",
                "if self.training and not self.ready:\n    self.look(x)\nreturn self.up(x) + self.shift",
                after="\n    @torch.no_grad()\n    def look(self, x):\n        self.shift.copy_(-x.mean(0))\n"
                "        self.ready = True\n",
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "self.register_buffer('mean', torch.zeros(4))\nself.steps = 0",
                "if self.training:\n    self.steps += 1\n    self.mean.mul_(0.9).add_(x.mean(0))\n"
                "return self.up(x) - self.mean / (1 - 0.9 ** max(self.steps, 1))",
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _module(
                "self.register_buffer('mean', torch.zeros(4))\nself.fresh = True",
                "if self.fresh:\n    self.mean.copy_(x.mean(0))\n    self.fresh = False\nreturn self.up(x) - self.mean",
            ),
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every `if` of running code that tests a flag, writes saved tensors and sets the flag."""
        candidates = {
            name
            for assignment in file.nodes(ast.Assign)
            if isinstance(assignment.value, ast.Constant) and (name := own_attribute(assignment.targets[0])) is not None
        }
        if not candidates:
            return
        yield from self._counters(file, candidates)
        code = forward_code(file)
        told: set[tuple[ast.ClassDef, str]] = set()
        for test, flags in _tested_flags(file, candidates).items():
            owner = code.module_of(test)
            method = code.method_of(test) if owner is not None else None
            if owner is None or method is None or method not in code.reached(owner).values() or takes_care(owner):
                continue
            for name in flags:
                start = None if (owner, name) in told else self._plain_flag(file, owner, name)
                if start is None:
                    continue
                written = self._written(file, owner, test, name)
                if written is not None:
                    told.add((owner, name))
                    yield Hit(
                        start,
                        f"`self.{name}` decides whether line {written.lineno} sets saved values, but `state_dict()` "
                        "does not hold it: after a reload they are overwritten. Make it a buffer.",
                        hypothesis={"attribute": name, "written_line": written.lineno},
                        related=((test.test, "tested here"), (written, "saved values are set here")),
                    )

    def _counters(self, file: FileContext, candidates: set[str]) -> Iterator[Hit]:
        """Counters of calls that go into a result together with a buffer that the same method updates."""
        code = forward_code(file)
        for statement in file.nodes(ast.AugAssign):
            name = own_attribute(statement.target)
            owner, method = code.module_of(statement), code.method_of(statement)
            if name not in candidates or name is None or owner is None or method is None or takes_care(owner):
                continue
            start = self._plain_flag(file, owner, name) if method in code.reached(owner).values() else None
            updated = next((u for u in code.all_own_uses(method) if _is_updated_buffer(file, owner, u)), None)
            read = [
                use
                for reached in code.reached(owner).values()
                for use in code.own_uses(reached, name)
                if isinstance(use.ctx, ast.Load) and _is_calculated_with(file, use)
            ]
            if start is not None and updated is not None and read:
                yield Hit(
                    start,
                    f"`self.{name}` counts the updates of the buffer `self.{updated.attr}` and goes into the result, "
                    "but `state_dict()` holds the buffer only: after a reload the two do not fit. Make it a buffer.",
                    hypothesis={"attribute": name, "buffer": updated.attr},
                    related=((statement, "counted here"), (read[0], "goes into the result here")),
                )

    def _plain_flag(self, file: FileContext, owner: ast.ClassDef, name: str) -> ast.stmt | None:
        for assignment in file.nodes_in(owner, ast.Assign):
            if len(assignment.targets) == 1 and own_attribute(assignment.targets[0]) == name:
                method = outside_forward(forward_code(file), owner, assignment)
                is_flag = isinstance(assignment.value, ast.Constant) and assignment.value.value in (False, True, 0)
                if method is not None and method.name == "__init__" and is_flag:
                    return assignment
        return None

    def _written(self, file: FileContext, owner: ast.ClassDef, test: ast.If, flag: str) -> ast.Attribute | None:
        """Where a saved tensor is written under the test, if the flag is set there too."""
        code = forward_code(file)
        methods = code.reached(owner)
        nodes = [node for statement in test.body for node in ast.walk(statement)]
        for node in list(nodes):
            name = own_attribute(node)
            if name is not None and name in methods:
                nodes.extend(ast.walk(methods[name]))
        uses = [node for node in nodes if isinstance(node, ast.Attribute) and own_attribute(node) is not None]
        if not any(use.attr == flag and isinstance(use.ctx, ast.Store) for use in uses):
            return None
        for use in uses:
            known = code.attributes(owner).get(use.attr)
            saved = known is not None and known.content in (Content.PARAMETER, Content.BUFFER)
            if saved and (changes_in_place(file, use) or _replaced(file, use)):
                return use
        return None


def _is_updated_buffer(file: FileContext, owner: ast.ClassDef, use: ast.Attribute) -> bool:
    known = forward_code(file).attributes(owner).get(use.attr)
    return known is not None and known.content is Content.BUFFER and changes_in_place(file, use)


def _is_calculated_with(file: FileContext, use: ast.Attribute) -> bool:
    """Whether a counter is a number of a formula: an exponent, a divisor, an argument of one of these."""
    for outer in file.ancestors(use):
        if isinstance(outer, ast.BinOp):
            return isinstance(outer.op, (ast.Pow, ast.Div, ast.Mult, ast.Sub))
        if not isinstance(outer, ast.Call):
            return False
    return False


def _replaced(file: FileContext, use: ast.Attribute) -> bool:
    """`self.mean = …` for a buffer, `self.shift.data = …` for a parameter."""
    if isinstance(use.ctx, ast.Store):
        return True
    parent = file.parent(use)
    return isinstance(parent, ast.Attribute) and parent.attr == "data" and isinstance(parent.ctx, ast.Store)
