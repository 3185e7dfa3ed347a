"""How many axes a tensor has, where its own function shows it: views, unpacked shapes, patterns of einops.

A count that is not certain is None. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from analyzer.context import FileContext
from analyzer.syntax import terminal_name
from analyzer.values.bindings import Binding
from analyzer.values.operations import Operation

_MAX_DEPTH = 14
_GROUPS = re.compile(r"\([^)]*\)")
# These keep the number of axes.
_SAME = frozenset(
    {
        *("transpose", "permute", "contiguous", "softmax", "log_softmax", "masked_fill", "masked_fill_", "float", "to"),
        *(
            "half",
            "double",
            "bool",
            "long",
            "clone",
            "detach",
            "mul",
            "div",
            "add",
            "sub",
            "mul_",
            "div_",
            "exp",
            "tanh",
        ),
        *("type_as", "type", "triu", "tril", "swapaxes", "relu", "sigmoid", "dropout", "logical_not", "eq", "ne", "lt"),
        *(
            "gt",
            "ge",
            "le",
            "clamp",
            "abs",
            "square",
            "sqrt",
            "neg",
            "flip",
            "roll",
            "bfloat16",
            "cuda",
            "cpu",
            "normal_",
        ),
    }
)
_CONVERSIONS = frozenset({"bool", "to", "logical_not", "float", "eq", "ne"})
_SIZED = frozenset({"zeros", "ones", "rand", "randn", "empty", "full"})


def rank_of(file: FileContext, expression: ast.expr) -> int | None:
    """The number of axes of a tensor; None when its function does not show it."""
    return _rank(file, expression, 0)


def _rank(file: FileContext, expression: ast.expr, depth: int) -> int | None:
    handler = _HANDLERS.get(type(expression))
    return handler(file, expression, depth + 1) if handler is not None and depth < _MAX_DEPTH else None


def _name(file: FileContext, name: ast.Name, depth: int) -> int | None:
    bindings = file.values.definitions(name)
    if len(bindings) == 1 and bindings[0].operator is None and bindings[0].index is None:
        known = _binding(file, bindings[0], depth)
        if known is not None:
            return known
    return _unpacked(file, name)


def _binding(file: FileContext, binding: Binding, depth: int) -> int | None:
    if binding.value is None:
        return None
    if binding.element is None:
        return _rank(file, binding.value, depth)
    return _each(file, binding.value, depth)


def _each(file: FileContext, source: ast.expr, depth: int) -> int | None:
    """The axes of each element of `map(split, (q, k))`, of `(f(t) for t in ...)` and of `x.chunk(3)`."""
    if isinstance(source, (ast.GeneratorExp, ast.ListComp)):
        return _rank(file, source.elt, depth)
    if not isinstance(source, ast.Call):
        return None
    if isinstance(source.func, ast.Name) and source.func.id == "map" and source.args:
        return _result(file, source.args[0], depth)
    name = terminal_name(source.func)
    if name in ("chunk", "split", "tensor_split") and isinstance(source.func, ast.Attribute):
        return _rank(file, source.func.value, depth)
    whole: int | None = None
    if name == "unbind" and isinstance(source.func, ast.Attribute):
        whole = _rank(file, source.func.value, depth)
    elif name in ("permute", "view", "reshape", "transpose", "movedim"):
        whole = _rank(file, source, depth)  # unpacked along its first axis
    return whole - 1 if whole is not None else None


def _result(file: FileContext, function: ast.expr, depth: int) -> int | None:
    """The axes of what a lambda, a method or a function of the file returns."""
    if isinstance(function, ast.Lambda):
        return _rank(file, function.body, depth)
    found = file.functions_by_name.get(terminal_name(function) or "", [])
    if len(found) != 1:
        return None
    returned = [statement.value for statement in file.returns_of(found[0])]
    return _rank(file, returned[0], depth) if len(returned) == 1 and returned[0] is not None else None


def _unpacked(file: FileContext, name: ast.Name) -> int | None:
    """The axes that `b, n, d = x.shape` shows, for the very tensor that stands at `name`."""
    function = file.enclosing_function(name)
    if function is None:
        return None
    bindings = file.values.bindings(function)
    now, _ = bindings.reaching(name.id, file.statement(name))
    for assignment in file.nodes_in(function, ast.Assign):
        target, value = assignment.targets[0], assignment.value
        if isinstance(value, ast.Call) and terminal_name(value.func) == "size" and not value.args:
            value = value.func
        elif not (isinstance(value, ast.Attribute) and value.attr == "shape"):
            continue
        holder = value.value if isinstance(value, ast.Attribute) else None
        if not (isinstance(target, ast.Tuple) and isinstance(holder, ast.Name) and holder.id == name.id):
            continue
        if any(isinstance(element, ast.Starred) for element in target.elts):
            continue
        then, _ = bindings.reaching(name.id, assignment)
        if {id(b.statement) for b in then} == {id(b.statement) for b in now}:
            return len(target.elts)
    return None


def _binary(file: FileContext, node: ast.BinOp, depth: int) -> int | None:
    left, right = _rank(file, node.left, depth), _rank(file, node.right, depth)
    if isinstance(node.op, ast.MatMult):
        return max(left, right) if left is not None and right is not None and min(left, right) > 2 else left or right
    if left is None or right is None:
        known, other = (left, node.right) if right is None else (right, node.left)
        # A number or a wider tensor may stand on the other side; of a scale both are seldom wider.
        return known if file.values.value(other).is_number or isinstance(node.op, (ast.Mult, ast.Div)) else None
    return max(left, right)


def _compare(file: FileContext, node: ast.Compare, depth: int) -> int | None:
    if len(node.comparators) != 1:
        return None
    left, right = _rank(file, node.left, depth), _rank(file, node.comparators[0], depth)
    if left is None or right is None:
        number = node.comparators[0] if right is None else node.left
        known = left if right is None else right
        return known if isinstance(number, ast.Constant) or file.values.value(number).is_number else None
    return max(left, right)


def _unary(file: FileContext, node: ast.UnaryOp, depth: int) -> int | None:
    return _rank(file, node.operand, depth)


def _subscript(file: FileContext, node: ast.Subscript, depth: int) -> int | None:
    entries = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    added = sum(isinstance(entry, ast.Constant) and entry.value is None for entry in entries)
    slices = sum(isinstance(entry, ast.Slice) for entry in entries)
    whole = all(isinstance(e, ast.Slice) or (isinstance(e, ast.Constant) and e.value in (None, ...)) for e in entries)
    if not whole:
        return None
    inner = _rank(file, node.value, depth)
    if inner is not None:
        return inner + added
    # `lengths[:, None]` writes out every axis of a vector, as a rule.
    only = len(entries) == 2 and added == 1 and slices == 1
    return 2 if only else None


def _call(file: FileContext, call: ast.Call, depth: int) -> int | None:
    operation = file.values.operation(call)
    if operation is None or operation.operand is None:
        return None
    name = operation.name
    if operation.qualified.startswith("einops.") or name in ("rearrange", "einsum"):
        return _pattern(call)
    if operation.qualified and name in _SIZED:
        return _number_of_sizes(list(call.args), alone=True)
    if name in ("view", "reshape", "permute"):
        return _number_of_sizes(list(operation.arguments), alone=False)
    return 1 if name == "arange" else _changed(file, operation, operation.operand, depth)


def _number_of_sizes(sizes: list[ast.expr], *, alone: bool) -> int | None:
    """How many sizes a shape has; `alone`: whether a single one may be the size of the only axis."""
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = list(sizes[0].elts)
    elif len(sizes) == 1 and not alone and not isinstance(sizes[0], ast.UnaryOp):
        return None  # a shape in a variable
    return None if any(isinstance(size, ast.Starred) for size in sizes) else len(sizes)


def _changed(file: FileContext, operation: Operation, operand: ast.expr, depth: int) -> int | None:
    """The axes of the result of an operation that keeps them, or adds to them."""
    name, inner = operation.name, _rank(file, operand, depth)
    if name == "transpose" and inner is None and _splits_heads(operand, list(operation.arguments)):
        return 4
    if inner is None:
        return None
    added = {"unsqueeze": 1}.get(name, 0)
    if name == "unflatten":
        sizes = operation.argument(1, "sizes", "unflattened_size")
        return inner + len(sizes.elts) - 1 if isinstance(sizes, (ast.Tuple, ast.List)) else None
    known = added or name in ("matmul", "bmm", "where") or name in _SAME
    return inner + added if known else None


def _splits_heads(operand: ast.expr, arguments: list[ast.expr]) -> bool:
    """`x.unflatten(-1, (heads, dim)).transpose(1, 2)`: [batch, n, heads * dim] with the heads brought forward."""
    axes = [argument.value for argument in arguments if isinstance(argument, ast.Constant)]
    if sorted(map(str, axes)) != ["1", "2"] or not isinstance(operand, ast.Call) or not operand.args:
        return False
    if terminal_name(operand.func) != "unflatten" or len(operand.args) != 2:
        return False
    axis, sizes = operand.args
    last = isinstance(axis, ast.UnaryOp) or (isinstance(axis, ast.Constant) and axis.value == 2)
    return last and isinstance(sizes, (ast.Tuple, ast.List)) and len(sizes.elts) == 2


def _pattern(call: ast.Call) -> int | None:
    """The axes behind the arrow of an einops or einsum pattern."""
    for argument in call.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and "->" in argument.value:
            result = argument.value.rpartition("->")[2].strip()
            if "..." in result:
                return None
            spaced = _GROUPS.sub(" g ", result).split()
            return len(spaced) if len(spaced) > 1 else len(result)
    return None


_Handler = Callable[[FileContext, ast.expr, int], int | None]
_HANDLERS: dict[type[ast.expr], _Handler] = {
    ast.Name: _name,  # type: ignore[dict-item]
    ast.BinOp: _binary,  # type: ignore[dict-item]
    ast.Compare: _compare,  # type: ignore[dict-item]
    ast.UnaryOp: _unary,  # type: ignore[dict-item]
    ast.Subscript: _subscript,  # type: ignore[dict-item]
    ast.Call: _call,  # type: ignore[dict-item]
}


# --- masks -----------------------------------------------------------------------------------------------------------


def is_pair_mask(file: FileContext, mask: ast.expr) -> bool:
    """Whether a mask has the axes [batch, i, j]: a flag for each sample and place, put against itself or stretched."""
    return _is_pair(file, mask, 0)


def _is_pair(file: FileContext, mask: ast.expr, depth: int) -> bool:
    inner = _converted(file, mask)
    if inner is not None:
        return depth < _MAX_DEPTH and _is_pair(file, inner, depth + 1)
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, (ast.BitAnd, ast.BitOr, ast.Mult)):
        return _is_outer_product(file, mask.left, mask.right)
    return _stretched(mask) is not None and _is_flags(file, mask)


def _converted(file: FileContext, mask: ast.expr) -> ast.expr | None:
    """What a mask is only another form of: its definition, `~mask`, `mask == 0`, `mask.bool()`."""
    if isinstance(mask, ast.Name):
        return file.values.single_definition(mask)
    if isinstance(mask, ast.UnaryOp):
        return mask.operand
    if isinstance(mask, ast.Compare):
        return mask.left if isinstance(mask.comparators[0], ast.Constant) else None
    if isinstance(mask, ast.Call) and isinstance(mask.func, ast.Attribute) and mask.func.attr in _CONVERSIONS:
        return mask.func.value
    return None


def _is_outer_product(file: FileContext, left: ast.expr, right: ast.expr) -> bool:
    """`ok[:, :, None] & ok[:, None, :]` of one name, which has two axes then."""
    first, second = _stretched(left), _stretched(right)
    if first is None or second is None or {first[1], second[1]} != {1, 2}:
        return False
    return ast.dump(first[0]) == ast.dump(second[0]) and rank_of(file, first[0]) in (None, 2)


def _stretched(expression: ast.expr) -> tuple[ast.expr, int] | None:
    """(the tensor, the place of the new axis) of `ok[:, None, :]`, `ok[:, None]` and `ok.unsqueeze(1)`."""
    if isinstance(expression, ast.UnaryOp):
        return _stretched(expression.operand)
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Tuple):
        entries = expression.slice.elts
        new = [place for place, e in enumerate(entries) if isinstance(e, ast.Constant) and e.value is None]
        rest = [e for e in entries if not (isinstance(e, ast.Constant) and e.value is None)]
        if len(new) == 1 and all(isinstance(e, ast.Slice) for e in rest) and len(rest) <= 2:
            return expression.value, new[0]
    if isinstance(expression, ast.Call) and terminal_name(expression.func) == "rearrange":
        return _rearranged(expression)
    if isinstance(expression, ast.Call) and terminal_name(expression.func) == "unsqueeze" and len(expression.args) == 1:
        axis = expression.args[0]
        place = {"1": 1, "2": 2, "-1": 2, "-2": 1}.get(ast.unparse(axis))
        if place is not None and isinstance(expression.func, ast.Attribute):
            return expression.func.value, place
    return None


def _rearranged(call: ast.Call) -> tuple[ast.expr, int] | None:
    """`rearrange(ok, 'b j -> b 1 j')`, with `()` for `1` as well."""
    pattern = call.args[1] if len(call.args) == 2 else None
    if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str):
        return None
    before, _, behind = (side.split() for side in pattern.value.partition("->"))
    new = [place for place, axis in enumerate(behind) if axis in ("1", "()")]
    if len(before) == 2 and len(behind) == 3 and len(new) == 1 and behind[0] == before[0]:
        return call.args[0], new[0]
    return None


def _is_flags(file: FileContext, mask: ast.expr) -> bool:
    """Whether a stretched mask was a comparison of two axes before: one flag for each sample and place."""
    found = _stretched(mask)
    if found is None or found[1] == 0 or rank_of(file, found[0]) != 2:
        return False
    source = file.values.single_definition(found[0]) if isinstance(found[0], ast.Name) else found[0]
    if not isinstance(source, ast.Compare):
        return False
    return any(_is_per_sample(side) for side in (source.left, source.comparators[0]))


def _is_per_sample(side: ast.expr) -> bool:
    """`lengths[:, None]`: one number for each sample against a range of places."""
    found = _stretched(side)
    return found is not None and found[1] == 1 and "arange" not in ast.unparse(found[0])
