"""Where a tensor that lies on the CPU meets one that lies with the model: on a GPU that operation raises.

Follows the tensor of an expression through operations, variables, returns and callers of its file up to the first
operation that joins it with another. Measured with torch 2.13 on tensors that pretend to be on a GPU: every joining
operation raises, but for 0-dimensional tensors, for indices in `x[i]`, for `copy_` and for writes by slice. Whatever
is not known ends the search. This module must not know rules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary, proxy

from analyzer.context import FileContext
from analyzer.facts import operations
from analyzer.forward_code import keyword, own_attribute
from analyzer.placement import (
    LEAVING,
    LIKE,
    MAX_DEPTH,
    MOVING,
    VIEWS,
    Placement,
    is_joined_list,
    placement,
    returns_tensor,
    tensor_arguments,
)
from analyzer.syntax import is_self, parameters, terminal_name

# These read only the shape or the type of their tensor argument, or copy from wherever it lies.
INDIFFERENT = frozenset({"expand_as", "view_as", "reshape_as", "copy_", "to", "type_as", "set_", "is_same_size"})


@dataclass(frozen=True, slots=True)
class Join:
    """`node` joins a tensor on the CPU with `other`, which lies with the model. `crossed`: it left its function."""

    node: ast.expr | ast.stmt
    other: ast.expr
    crossed: bool


class DeviceJoins:
    """The meetings of one file's tensors."""

    def __init__(self, file: FileContext, places: Placement) -> None:
        self._file = file
        self._places = places

    def joins(self, node: ast.expr) -> Iterator[Join]:
        """Every place where the tensor of an expression, which lies on the CPU, meets one that lies with the model."""
        yield from self._from(node, 0, crossed=False)

    def accumulations(self, call: ast.Call) -> Iterator[Join]:
        """Where a tensor on the CPU, whatever its dimensions, is added to in place by one that lies with the model."""
        statement = self._file.parent(call)
        function = self._file.enclosing_function(call)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or function is None:
            return
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return
        for augmented in self._file.nodes_in(function, ast.AugAssign):
            same = isinstance(augmented.target, ast.Name) and augmented.target.id == target.id
            if same and self._sees_first(augmented.target, statement) and self._places.follows(augmented.value):
                yield Join(augmented, augmented.value, crossed=False)
                return

    def _from(self, node: ast.expr, depth: int, *, crossed: bool) -> Iterator[Join]:
        self._file.check_deadline()
        if depth > MAX_DEPTH:
            return
        while True:
            parent = self._file.parent(node)
            if isinstance(parent, ast.keyword):
                parent = self._file.parent(parent)
            if parent is None:
                return
            if isinstance(parent, ast.stmt):
                yield from self._statement(parent, node, depth, crossed=crossed)
                return
            if not isinstance(parent, ast.expr):
                return
            other = self._partner(parent, node)
            if other is not None:
                yield Join(parent, other, crossed)
                return
            following = self._result(parent, node)
            if following is None:
                return
            node = following

    def _partner(self, parent: ast.expr, node: ast.expr) -> ast.expr | None:
        """The tensor beside `node` in an operation, if it lies with the model."""
        candidates: list[ast.expr] = []
        if isinstance(parent, ast.BinOp):
            candidates = [parent.right if node is parent.left else parent.left]
        elif isinstance(parent, ast.Compare):
            if any(isinstance(operator, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for operator in parent.ops):
                return None
            candidates = [side for side in (parent.left, *parent.comparators) if side is not node]
        elif isinstance(parent, ast.Subscript) and node is parent.value:
            candidates = list(parent.slice.elts) if isinstance(parent.slice, ast.Tuple) else [parent.slice]
        elif isinstance(parent, (ast.List, ast.Tuple)) and is_joined_list(self._file, parent):
            candidates = [element for element in parent.elts if element is not node]
        elif isinstance(parent, ast.Call):
            candidates = self._call_partners(parent, node)
        return next((candidate for candidate in candidates if self._places.follows(candidate)), None)

    def _call_partners(self, call: ast.Call, node: ast.expr) -> list[ast.expr]:
        qualified = self._file.qualified_name(call.func)
        if qualified is not None:
            known = qualified.startswith("torch.") and (
                operations().known(qualified)
                or returns_tensor(qualified)
                or operations().never_differentiable(qualified)
            )
            if not known or terminal_name(call.func) in LIKE | {"broadcast_tensors", "is_tensor", "equal"}:
                return []
            return [argument for argument in tensor_arguments(call) if argument is not node]
        if isinstance(call.func, ast.Attribute):
            name = call.func.attr
            if is_self(call.func.value):
                # A layer of torch joins what it is given with its own parameters.
                return [call.func] if self._places.has_parameters(call.func) else []
            if operations().is_tensor_method(name) and name not in INDIFFERENT and not name.startswith("new_"):
                return [call.func.value, *(a for a in tensor_arguments(call) if a is not node)]
        return []

    def _result(self, parent: ast.expr, node: ast.expr) -> ast.expr | None:
        """The expression around `node` whose tensor lies on the CPU as well; None where that ends or is unknown."""
        result: ast.expr | None = None
        match parent:
            case ast.BinOp() | ast.Compare():
                left = parent.left
                others = [parent.right] if isinstance(parent, ast.BinOp) else parent.comparators
                same = all(side is node or self._keeps_place(side) for side in (left, *others))
                result = parent if same else None
            case ast.UnaryOp():
                result = None if isinstance(parent.op, ast.Not) else parent
            case ast.IfExp():
                result = parent if node is not parent.test else None
            case ast.Subscript():
                result = parent if node is parent.value and self._places.keeps_dimension(parent.slice) else None
            case ast.Attribute():
                result = self._attribute_result(parent)
            case ast.List() | ast.Tuple():
                result = parent if is_joined_list(self._file, parent) else None
            case ast.Call():
                result = self._function_result(parent, node)
        return result

    def _keeps_place(self, side: ast.expr) -> bool:
        """Whether what is computed with this operand still lies on the CPU: a number, or a tensor on the CPU.

        Of a plain parameter of the function nothing is known, but wherever it lies: on a GPU, the operation raises.
        """
        if isinstance(side, ast.Name):
            function = self._file.enclosing_function(side)
            given = function is not None and any(p.arg == side.id for p in parameters(function))
            if given and not self._file.values.definitions(side):
                return True
        return self._places.is_harmless(side)

    def _attribute_result(self, attribute: ast.Attribute) -> ast.expr | None:
        call = self._file.parent(attribute)
        if not (isinstance(call, ast.Call) and call.func is attribute):
            of_pair = attribute.attr in ("values", "indices") and isinstance(attribute.value, ast.Call)
            return attribute if of_pair or attribute.attr in VIEWS else None
        name = attribute.attr
        if (
            self._places.moves(call)
            or name in LEAVING
            or self._places.is_scalar_reduction(call)
            or name.startswith("new_")
        ):
            return None
        if not (operations().is_tensor_method(name) or name in MOVING):
            return None
        # `_from` looks at the call itself next: its partners are its arguments.
        partners = [argument for argument in tensor_arguments(call) if self._places.follows(argument)]
        if partners and name not in INDIFFERENT:
            return attribute
        return call

    def _function_result(self, call: ast.Call, node: ast.expr) -> ast.expr | None:
        if node is call.func:
            return None
        qualified = self._file.qualified_name(call.func)
        if qualified is None or not qualified.startswith("torch."):
            return None
        name = qualified.rpartition(".")[2]
        if keyword(call, "device") is not None or self._places.is_scalar_reduction(call):
            return None
        if not returns_tensor(qualified) and name not in ("meshgrid", "stack", "cat"):
            return None
        others = [argument for argument in tensor_arguments(call) if argument is not node]
        return call if all(self._places.is_harmless(other) for other in others) else None

    def _statement(self, statement: ast.stmt, node: ast.expr, depth: int, *, crossed: bool) -> Iterator[Join]:
        if isinstance(statement, ast.AugAssign) and node is statement.value:
            if self._places.follows(statement.target):
                yield Join(statement, statement.target, crossed)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and node is statement.value:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                elements = target.elts if isinstance(target, ast.Tuple) else [target]
                for element in elements:
                    if isinstance(element, ast.Name):
                        yield from self._uses(element, statement, depth, crossed=crossed)
        elif isinstance(statement, ast.Return):
            yield from self._callers(statement, depth)

    def _uses(self, target: ast.Name, statement: ast.stmt, depth: int, *, crossed: bool) -> Iterator[Join]:
        function = self._file.enclosing_function(statement)
        if function is None:
            return
        for augmented in self._file.nodes_in(function, ast.AugAssign):
            is_same = isinstance(augmented.target, ast.Name) and augmented.target.id == target.id
            if is_same and self._sees_only(augmented.target, statement) and self._places.follows(augmented.value):
                yield Join(augmented, augmented.value, crossed)
                return
        for name in self._places.loads(function, target.id):
            if self._file.enclosing_function(name) is function and self._sees_only(name, statement):
                yield from self._from(name, depth + 1, crossed=crossed)

    def _sees_first(self, name: ast.expr, statement: ast.stmt) -> bool:
        """Whether a use may stand for what `statement` assigned, in the first round of a loop at least."""
        bindings = self._file.values.definitions(name)
        return any(b.statement is statement for b in bindings) and all(
            b.statement is statement or b.operator is not None for b in bindings
        )

    def _sees_only(self, name: ast.expr, statement: ast.stmt) -> bool:
        """Whether a use stands for what `statement` assigned, but for places written or operations done in place."""
        seen = False
        for binding in self._file.values.definitions(name):
            if binding.statement is statement:
                seen = True
            elif binding.operator is not None or (
                binding.index is None and not isinstance(binding.statement, ast.Expr)
            ):
                return False
        return seen

    def _callers(self, statement: ast.Return, depth: int) -> Iterator[Join]:
        function = self._file.enclosing_function(statement)
        if function is None:
            return
        owner = self._file.parent(function)
        for call in self._file.calls(function.name):
            if isinstance(owner, ast.ClassDef):
                same_class = self._file.enclosing_class(call) is owner and own_attribute(call.func) is not None
            else:
                same_class = isinstance(call.func, ast.Name)
            if same_class and self._file.enclosing_function(call) is not function:
                yield from self._from(call, depth + 1, crossed=True)


_CACHE: WeakKeyDictionary[FileContext, DeviceJoins] = WeakKeyDictionary()


def device_joins(file: FileContext) -> DeviceJoins:
    """The meetings of a file's tensors; made once for all rules."""
    known = _CACHE.get(file)
    if known is None:
        # The table must not keep alive the file that it is kept for.
        known = _CACHE[file] = DeviceJoins(proxy(file), placement(file))
    return known
