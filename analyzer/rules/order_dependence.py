"""Results that depend on an order which the operation does not promise."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code, is_constant, keyword
from analyzer.placement import placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import with_body
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, cells=6):\n        super().__init__()\n"
    "        self.cells = cells\n\n    def forward(self, slot, value):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
_FIRST = 11


_VISIT = (
    "order = torch.argsort(value, descending=True)\nkeep = torch.zeros_like(value)\nfor i in order:\n    keep[i] = 1\n"
)
_SCATTERS = ("scatter", "scatter_")
_SHAPING = frozenset({"view", "reshape", "long", "to", "expand", "expand_as", "t", "contiguous", "int"})


class UndeterminedOrder(Rule):
    """A scatter with repeated indices, or a sort of equal values that decides who comes first."""

    id = "GP609"
    name = "undetermined-order"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("device_compare",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("scatter", "sort(", "index_put", "index_copy", ".long()", ".int()")
    documentation = Documentation(
        what_it_does=(
            "Finds `scatter`, `index_put_` and `index_copy_` without a reduction whose indices come from an input, so "
            "that several values may go to one place, and `sort`/`argsort` without `stable=True` whose order is then "
            "visited item by item (suppression, greedy matching). Indices that are distinct by their making (a sort, "
            "`topk`, `randperm`) and equal values (a number, ones) are left alone."
        ),
        why_is_this_bad=(
            "Which of several writes to one place wins, and which of equal items comes first, is not determined: on a "
            "GPU it changes from run to run, and even on the CPU the default sort differs from the stable one "
            "(measured from 17 equal items on)."
        ),
        faulty_example=_forward(_VISIT + "return keep"),
        right_example=_forward(_VISIT.replace("descending=True", "descending=True, stable=True") + "return keep"),
        fix_safety="Unsafe: among equal items the first now wins.",
    )
    valid = (
        _forward(_VISIT.replace("descending=True", "descending=True, stable=True") + "return keep"),
        _forward("order = torch.argsort(value)\nreturn value[order]"),
        _forward("noise = torch.rand_like(value)\nreturn noise.argsort().argsort()"),
        _forward("return value.argsort(stable=True).argsort()"),
        _forward("cell = (value / 0.5).floor().long()\ngrid = value.new_zeros(9)\ngrid[cell] = 1.0\nreturn grid"),
        _forward("grid = value.new_zeros(9)\ngrid[slot] = value\nreturn grid"),
        _forward("grid = value.new_zeros(6)\nreturn grid.scatter(0, slot, 1.0)"),
        _forward("grid = value.new_zeros(6)\nreturn grid.scatter(0, slot, value, reduce='add')"),
        _forward("grid = value.new_zeros(6)\nreturn grid.scatter_add(0, slot, value)"),
        _forward("top, place = value.topk(2)\nreturn torch.zeros_like(value).scatter(1, place, top)"),
        _forward("order = value.argsort()\nreturn torch.zeros_like(value).scatter(0, order, value)"),
        _forward("grid = value.new_zeros(6)\nreturn grid.scatter(1, slot.unsqueeze(1), value[:, None])"),
        _forward("grid = value.new_zeros(6)\nreturn grid.scatter(0, slot, torch.ones_like(value))"),
        _forward("grid = value.new_zeros(6)\ngrid.index_put_((slot,), value, accumulate=True)\nreturn grid"),
        _forward("for i in torch.argsort(value).tolist()[:1]:\n    value = value * 2\nreturn value"),
        _HEAD + "def inverse(order: torch.Tensor):\n    n = order.numel()\n"
        "    return torch.empty_like(order).scatter_(0, order, torch.arange(n))\n",
    )
    invalid = (
        Invalid(_forward(_VISIT + "return keep"), (_FIRST,)),
        Invalid(_forward("grid = value.new_zeros(6)\nreturn grid.scatter(1, slot, value)"), (_FIRST + 1,)),
        Invalid(
            _forward("cell = (value / 0.1).long()\nreturn value.new_zeros(9).scatter_(0, cell, value)"), (_FIRST + 1,)
        ),
        Invalid(_forward("return torch.argsort(torch.argsort(value))"), (_FIRST,)),
        Invalid(
            _forward(
                "cell = (value / 0.5).floor().long()\ngrid = value.new_zeros(9)\ngrid[cell] = value * 2\nreturn grid"
            ),
            (_FIRST + 2,),
        ),
        Invalid(_forward("grid = value.new_zeros(6)\ngrid.index_put_((slot,), value)\nreturn grid"), (_FIRST + 1,)),
        Invalid(_forward("grid = value.new_zeros(6)\ngrid.index_copy_(0, slot, value)\nreturn grid"), (_FIRST + 1,)),
        Invalid(
            _forward(
                "_, order = value.sort(descending=True)\nwhile order.numel() > 0:\n    i = order[0]\n"
                "    order = order[1:][value[order[1:]] < value[i]]\nreturn value"
            ),
            (_FIRST,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every scatter, and every sort that decides an order of visits."""
        for call in file.calls(*_SCATTERS, "index_put", "index_put_", "index_copy", "index_copy_"):
            hit = self._scatter(file, call)
            if hit is not None:
                yield hit
        yield from self._ranks(file)
        yield from self._assignments(file)
        for call in file.calls("argsort", "sort"):
            visit = _visited(file, call)
            if visit is not None and keyword(call, "stable") is None and _sorts_tensor(file, call):
                quiet = surroundings(file, call) is Surroundings.ASIDE and "nms" not in file.symbol(call).lower()
                yield Hit(
                    call,
                    "Equal values come in no promised order from this sort, and the loop that follows visits them in "
                    "that order: results differ between devices. Pass `stable=True`.",
                    severity=Severity.NOTE if quiet else None,
                    hypothesis={"symbol": file.symbol(call)},
                    related=((visit, "visited in this order"),),
                    fix=_stable(file, call),
                )

    def _ranks(self, file: FileContext) -> Iterator[Hit]:
        """`x.argsort().argsort()`: equal values get different ranks, in no promised order."""
        for call in file.calls("argsort"):
            inner = _sorted_by(file, call)
            if not isinstance(inner, ast.Call) or terminal_name(inner.func) != "argsort":
                continue
            ranked = _sorted_by(file, inner)
            function = file.enclosing_function(call)
            if ranked is None or function is None or keyword(inner, "stable") is not None:
                continue
            given = isinstance(ranked, ast.Name) and placement(file).follows(ranked)
            random = any(word in file.source(ranked).lower() for word in ("rand", "noise", "logit"))
            if given and not random and forward_code(file).runs_in_forward(function):
                yield Hit(
                    inner,
                    "Equal values get different ranks, and which one is first is not promised: ranks differ between "
                    "devices. Pass `stable=True`.",
                    hypothesis={"symbol": file.symbol(call)},
                    fix=_stable(file, inner),
                )

    def _assignments(self, file: FileContext) -> Iterator[Hit]:
        """`grid[cell] = values`, where `cell` was computed by rounding."""
        for assignment in file.nodes(ast.Assign):
            target = assignment.targets[0]
            if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Name):
                continue
            if not placement(file).follows(assignment.value) or _is_single_valued(file, assignment.value):
                continue
            cell = file.values.single_definition(target.slice)
            if not isinstance(cell, ast.Call) or not isinstance(cell.func, ast.Attribute):
                continue
            if cell.func.attr not in ("long", "int") or not _is_rounded(cell.func.value):
                continue
            yield Hit(
                assignment,
                f"`{target.slice.id}` may name one place more than once, and which value stays there is not "
                "determined: on a GPU it changes from run to run. Reduce, or make the places distinct.",
                hypothesis={"index": target.slice.id, "symbol": file.symbol(assignment)},
                related=((cell, "rounded to places here"),),
            )

    def _scatter(self, file: FileContext, call: ast.Call) -> Hit | None:
        if not isinstance(call.func, ast.Attribute) or any(item.arg == "reduce" for item in call.keywords):
            return None
        given = list(call.args)
        if (file.qualified_name(call.func) or "").startswith("torch."):
            given = given[1:]
        by_tuple = call.func.attr.startswith("index_put")
        index = keyword(call, "indices", "index") or _at(given, 0 if by_tuple else 1)
        source = keyword(call, "src", "source", "values") or _at(given, 1 if by_tuple else 2)
        if index is None or source is None or _is_single_valued(file, source) or keyword(call, "value") is not None:
            return None
        accumulate = keyword(call, "accumulate") or (_at(given, 2) if by_tuple else None)
        if accumulate is not None and not is_constant(accumulate, value=False):
            return None
        indices = index.elts if by_tuple and isinstance(index, (ast.Tuple, ast.List)) else [index]
        if len(indices) != 1 or not _may_repeat(file, indices[0]):
            return None
        # `index_copy` puts text and image tokens into their places: all findings on real code were of that kind.
        copies = call.func.attr.startswith("index_copy")
        certain = not copies and forward_code(file).module_of(call) is not None
        return Hit(
            call,
            f"`{file.source(indices[0])}` may name one place more than once, and without a reduction it is not "
            "determined which value stays there: on a GPU it changes from run to run. Reduce, or make the indices "
            "distinct.",
            severity=None if certain else Severity.NOTE,
            hypothesis={"index": file.source(indices[0]), "symbol": file.symbol(call)},
        )


def _at(given: list[ast.expr], position: int) -> ast.expr | None:
    return given[position] if position < len(given) else None


def _is_single_valued(file: FileContext, source: ast.expr) -> bool:
    """Whether all that is written is the same value, so that the order does not matter."""
    if isinstance(source, (ast.Constant, ast.UnaryOp)) or file.values.value(source).kind in (Kind.NUMBER, Kind.OTHER):
        return True
    if isinstance(source, ast.Name):
        definition = file.values.single_definition(source)
        return definition is not None and not isinstance(definition, ast.Name) and _is_single_valued(file, definition)
    called = terminal_name(source.func) if isinstance(source, ast.Call) else None
    return called in ("ones_like", "zeros_like", "full_like", "ones", "zeros", "full", "new_ones", "new_full", "arange")


def _may_repeat(file: FileContext, index: ast.expr) -> bool:
    """Whether an index is an input as it comes, or was computed by rounding: nothing makes its values distinct."""
    for _ in range(6):
        following: ast.expr | None = None
        if isinstance(index, ast.Name):
            bindings = file.values.definitions(index)
            if not bindings:
                return _is_unsorted_input(file.enclosing_function(index), index.id)
            following = bindings[0].value if len(bindings) == 1 and bindings[0].element is None else None
        elif isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute):
            name, inner = index.func.attr, index.func.value
            if name in ("long", "int") and isinstance(inner, (ast.BinOp, ast.Call)) and _is_rounded(inner):
                return True
            following = inner if name in _SHAPING else None
        if following is None:
            return False
        index = following
    return False


def _is_rounded(expression: ast.expr) -> bool:
    """A quotient, or its floor: places on a grid, where neighbours meet."""
    if isinstance(expression, ast.Call):
        return terminal_name(expression.func) in ("floor", "round", "ceil", "trunc")
    return isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.Div, ast.Mult, ast.FloorDiv))


def _is_unsorted_input(function: FunctionNode | None, name: str) -> bool:
    """Whether a name is a parameter of the function whose name does not speak of distinct places."""
    if function is None:
        return False
    is_parameter = name in {p.arg for p in (*function.args.posonlyargs, *function.args.args)}
    distinct = ("perm", "order", "sort", "topk", "inverse", "unique", "restore", "rank", "slot_mapping", "mask")
    return is_parameter and name != "self" and not any(word in name.lower() for word in distinct)


def _sorts_tensor(file: FileContext, call: ast.Call) -> bool:
    """Whether a call sorts a tensor: `torch.sort(x)`, `x.argsort()`, no list and no array."""
    qualified = file.qualified_name(call.func)
    if qualified is not None:
        return qualified.startswith("torch.")
    if not isinstance(call.func, ast.Attribute) or any(item.arg in ("key", "reverse") for item in call.keywords):
        return False
    value = file.values.value(call.func.value)
    known = value.kind in (Kind.TENSOR, Kind.INTEGER_TENSOR) or placement(file).follows(call.func.value)
    return known or any(item.arg in ("descending", "dim") for item in call.keywords)


def _sorted_by(file: FileContext, call: ast.Call) -> ast.expr | None:
    """What is sorted: the receiver of the method, or the first argument of the function."""
    if file.qualified_name(call.func) is not None:
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _visited(file: FileContext, call: ast.Call) -> ast.AST | None:
    """The loop that goes through the items in the order of this sort."""
    node: ast.AST = call
    parent = file.parent(node)
    while isinstance(parent, (ast.Attribute, ast.Subscript)) or (isinstance(parent, ast.Call) and parent.func is node):
        node, parent = parent, file.parent(parent)
    if isinstance(parent, ast.For) and parent.iter is node:
        return parent.iter if not isinstance(node, ast.Subscript) else None
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return None
    target = parent.targets[0]
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    function = file.enclosing_function(call)
    if not isinstance(target, ast.Name) or function is None:
        return None
    for loop in file.nodes_in(function, ast.For):
        # `for i in order`, `for i in order.tolist()`; what is gathered by it first (`x[order].split(n)`) is no visit.
        visited = loop.iter
        while isinstance(visited, ast.Call) and isinstance(visited.func, ast.Attribute):
            visited = visited.func.value
        if isinstance(visited, ast.Call) and terminal_name(visited.func) in ("enumerate", "reversed") and visited.args:
            visited = visited.args[0]
        if isinstance(visited, ast.Name) and visited.id == target.id:
            return loop.iter
    for repeated in file.nodes_in(function, ast.While):
        if any(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(repeated.test)):
            return repeated.test
    return None


def _stable(file: FileContext, call: ast.Call) -> Rewrite | None:
    """The same with `stable=True`, which torch takes only where dim and direction are passed by keyword."""
    allowed = 1 if file.qualified_name(call.func) is not None else 0
    source = file.source(call)
    if len(call.args) > allowed or "\n" in source:
        return None
    separator = ", " if call.args or call.keywords else ""
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{source[:-1]}{separator}stable=True)"),))


_DECOMPOSITIONS = ("svd", "eigh", "pca_lowrank", "svd_lowrank", "eig")
_SETTLING = frozenset({"sign", "sgn", "copysign", "abs", "argmax", "svd_flip", "det", "cross", "where"})


class UndeterminedSign(Rule):
    """Singular or eigenvectors that go into a result with the sign they happen to have."""

    id = "GP623"
    name = "undetermined-sign"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("device_compare",)
    torch_versions = "2.13"
    triggers = ("svd(", "eigh(", "lowrank(", "eig(")
    documentation = Documentation(
        what_it_does=(
            "Finds vectors of `svd`, `eigh` and `pca_lowrank` in what a module runs that are multiplied into a result, "
            "or returned, once, with nothing that settles their sign. Products with a second factor of the same "
            "decomposition (where signs cancel), squares and code that fixes signs are left alone."
        ),
        why_is_this_bad=(
            "Each vector is determined up to its sign only, and CPU, GPU and another version of the library choose "
            "differently: features computed from it flip between machines."
        ),
        faulty_example=(
            _HEAD + "class Pca(nn.Module):\n    def forward(self, x):\n"
            "        _, _, v = torch.linalg.svd(x - x.mean(0))\n        return x @ v[:2].T\n"
        ),
        right_example=(
            _HEAD + "class Pca(nn.Module):\n    def forward(self, x):\n"
            "        _, _, v = torch.linalg.svd(x - x.mean(0))\n        v = v * v.sum(-1, keepdim=True).sign()\n"
            "        return x @ v[:2].T\n"
        ),
        fix_safety="No automatic fix: which sign is the right one is a convention of the author.",
    )
    valid = (
        _HEAD + "class Align(nn.Module):\n    def forward(self, x, y):\n        u, s, v = torch.linalg.svd(x.T @ y)\n"
        "        return x @ (u @ v)\n",
        _HEAD + "class Values(nn.Module):\n    def forward(self, x):\n        _, s, _ = torch.linalg.svd(x)\n"
        "        return x @ s\n",
        _HEAD + "class White(nn.Module):\n    def forward(self, x):\n        s, v = torch.linalg.eigh(x.T @ x)\n"
        "        return x @ v @ torch.diag(s.rsqrt()) @ v.T\n",
        _HEAD + "class Pca(nn.Module):\n    def forward(self, x):\n        _, _, v = torch.linalg.svd(x)\n"
        "        return (x @ v[:2].T).abs()\n",
        _HEAD + "def directions(x: torch.Tensor):\n    _, _, v = torch.linalg.svd(x)\n    return x @ v\n",
    )
    invalid = (
        Invalid(
            _HEAD + "class Pca(nn.Module):\n    def forward(self, x):\n"
            "        _, _, v = torch.linalg.svd(x - x.mean(0))\n        return x @ v[:2].T\n",
            (7,),
        ),
        Invalid(
            _HEAD + "class Modes(nn.Module):\n    def forward(self, x):\n        s, v = torch.linalg.eigh(x.T @ x)\n"
            "        return torch.matmul(x, v[:, -2:])\n",
            (7,),
        ),
        Invalid(
            _HEAD + "class Places(nn.Module):\n    def forward(self, x):\n        _, v = torch.linalg.eigh(x)\n"
            "        return v[:, 1:3]\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every decomposition whose vectors are used once, in a product."""
        code, places = forward_code(file), placement(file)
        for call in file.calls(*_DECOMPOSITIONS):
            function = file.enclosing_function(call)
            statement = file.parent(call)
            if not (file.qualified_name(call.func) or "").startswith("torch.") or function is None:
                continue
            if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Tuple):
                continue
            if not code.runs_in_forward(function) or any(
                terminal_name(node) in _SETTLING for node in ast.walk(function)
            ):
                continue
            names = [element.id for element in statement.targets[0].elts if isinstance(element, ast.Name)]
            # Of three factors the middle one holds the values; of two the first.
            values = names[1:2] if len(names) == 3 else names[:1]
            used = {name: places.loads(function, name) for name in names if name not in values and name != "_"}
            used = {name: loads for name, loads in used.items() if loads}
            if len(used) != 1 or any(len(loads) != 1 for loads in used.values()):
                continue
            (name, loads), *_ = used.items()
            product = _product_with(file, loads[0]) or _returned_as(file, loads[0])
            if product is not None:
                yield Hit(
                    statement,
                    f"The vectors in `{name}` are determined up to their sign only, and line {product.lineno} "
                    "puts them into the result: it flips from device to device. Settle the signs first.",
                    hypothesis={"variable": name, "symbol": file.symbol(call)},
                    related=((product, "put into the result here"),),
                )


def _around_part(file: FileContext, load: ast.expr) -> ast.AST | None:
    """What stands around a variable and the parts that are taken of it: `v`, `v[:, :2]`, `v.T`."""
    node: ast.AST = load
    parent = file.parent(node)
    while isinstance(parent, (ast.Subscript, ast.Attribute)) and parent.value is node:
        call = file.parent(parent)
        node = call if isinstance(call, ast.Call) and call.func is parent else parent
        parent = file.parent(node)
    return parent


def _returned_as(file: FileContext, load: ast.expr) -> ast.Return | None:
    """The `return` of a `forward` whose value is a variable or a part of it."""
    parent, function = _around_part(file, load), file.enclosing_function(load)
    return parent if isinstance(parent, ast.Return) and function is not None and function.name == "forward" else None


def _product_with(file: FileContext, load: ast.expr) -> ast.expr | None:
    """The matrix product that a variable, or a part of it, is a factor of."""
    parent = _around_part(file, load)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
        return parent
    if isinstance(parent, ast.Call) and terminal_name(parent.func) in ("matmul", "mm", "bmm", "einsum"):
        return parent
    return None


_NONDETERMINISTIC = (
    *("index_add", "index_add_", "scatter_add", "scatter_add_", "bincount", "cumsum", "grid_sample", "interpolate"),
    *("ctc_loss", "histc", "put_", "median", "kthvalue", "adaptive_avg_pool2d", "adaptive_max_pool2d"),
)


class NondeterministicOperation(Rule):
    """An operation without a deterministic GPU version in a file that asks for determinism."""

    id = "GP607"
    name = "nondeterministic-operation"
    severity = Severity.NOTE
    confidence = Confidence.LOW
    settled_by = ("device_compare",)
    torch_versions = "2.13"
    triggers = ("use_deterministic_algorithms(True", "cudnn.deterministic = True")
    documentation = Documentation(
        what_it_does=(
            "Finds operations that add in no fixed order on a GPU (`index_add_`, `scatter_add_`, `bincount`, "
            "`grid_sample`, `interpolate`, …) in files that switch determinism on."
        ),
        why_is_this_bad=(
            "`cudnn.deterministic` does not cover them, so results still change from run to run; under "
            "`use_deterministic_algorithms(True)` some raise and others take a slow way."
        ),
        faulty_example=(
            "import torch\n\ntorch.backends.cudnn.deterministic = True\n\n\ndef count(x: torch.Tensor):\n"
            "    return torch.bincount(x)\n"
        ),
        right_example="import torch\n\n\ndef count(x: torch.Tensor):\n    return torch.bincount(x)\n",
        fix_safety="No automatic fix: another operation has to take its place.",
    )
    valid = (
        "import torch\n\n\ndef count(x: torch.Tensor):\n    return torch.bincount(x)\n",
        "import torch\n\ntorch.use_deterministic_algorithms(True)\n\n\ndef total(x):\n    return x.sum()\n",
    )
    invalid = (
        Invalid(
            "import torch\n\ntorch.use_deterministic_algorithms(True)\n\n\ndef f(x, i, y):\n"
            "    return x.scatter_add(0, i, y)\n",
            (7,),
        ),
        Invalid(
            "import torch\n\ntorch.backends.cudnn.deterministic = True\n\n\ndef count(x: torch.Tensor):\n"
            "    return torch.bincount(x)\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every such operation of the file."""
        for call in file.calls(*_NONDETERMINISTIC):
            qualified = file.qualified_name(call.func)
            name = terminal_name(call.func) or ""
            if qualified is None and not name.startswith(("index_add", "scatter_add", "bincount", "histc")):
                continue
            if qualified is not None and not qualified.startswith("torch."):
                continue
            yield Hit(
                call,
                f"`{name}` has no fixed order of additions on a GPU, although this file asks for determinism: its "
                "result, or its gradient, changes from run to run.",
            )
