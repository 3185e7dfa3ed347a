"""Runs through the statements of one function, branches apart and loops twice.

This module must not know what operations keep.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from analyzer.context import FileContext
from analyzer.facts.loader import NUMBER, OTHER, TENSOR, UNKNOWN
from analyzer.layers import Attribute, Content
from analyzer.saved_values.conditions import without_gradients
from analyzer.saved_values.expressions import OPERATORS, Expressions
from analyzer.saved_values.ledger import Ledger
from analyzer.saved_values.model import Differentiable, Route, State, Storage, Trace, Value, merged
from analyzer.syntax import FunctionNode, dotted_name, parameters
from analyzer.tensor_writes import Write, writes_of

# Arguments of these names carry positions, choices or labels, which take no gradient.
_NO_GRADIENT_NAMES = re.compile(
    r"(^|_)(mask|masks|idx|index|indices|inds|ids|label|labels|target|targets|len|lens|length|lengths|pos|positions|"
    r"position|step|steps|t|timestep|timesteps|cache|buffer|out|state_dict|batch_idx|size|shape|dim|seed|prefix|key|mode)$"
)
_NUMBER_ANNOTATIONS = re.compile(r"^(Optional\[)?(int|float|bool|str|complex)\b")
_INTEGER_ANNOTATIONS = re.compile(r"Long|Int|Bool|Byte")


def trace_of(file: FileContext, function: FunctionNode, attributes: Mapping[str, Attribute]) -> Trace:
    """What one function does to its tensors; `attributes` are those of the class around it."""
    run = _Run(file, function, attributes)
    return run.found()


class _Run:
    def __init__(self, file: FileContext, function: FunctionNode, attributes: Mapping[str, Attribute]) -> None:
        self._file = file
        self._function = function
        self._ledger = Ledger(function, recording=not file.grad_disabled(function.body[0]))
        self._expressions = Expressions(file, attributes, self._ledger)
        self._attributes = attributes
        self._gives_back: list[bool] = []

    def found(self) -> Trace:
        for argument in parameters(self._function):
            value = _argument(argument)
            value.storage = Storage(argument=argument.arg)
            self._ledger.state.names[argument.arg] = value
        defaults = self._function.args.defaults
        positional = [*self._function.args.posonlyargs, *self._function.args.args]
        for argument, default in zip(positional[len(positional) - len(defaults) :], defaults, strict=True):
            if isinstance(default, ast.Constant) and default.value is not None:
                self._ledger.state.names[argument.arg] = Value(kind=NUMBER, bound=True)
        self._block(self._function.body)
        if self._gives_back and not any(self._gives_back):
            # Indices, masks and numbers are all that comes out: no backward will ever start from here.
            trace = self._ledger.trace
            return Trace(refusals=trace.refusals, mutations=trace.mutations)
        return self._ledger.trace

    def _block(self, statements: Iterable[ast.stmt]) -> bool:
        """Runs statements in order; True when the block never reaches its end."""
        self._file.check_deadline()
        for statement in statements:
            run = _STATEMENTS.get(type(statement))
            if run is not None and run(self, statement):
                return True
        return False

    # --- statements that go on to the next ---------------------------------------------------------------------

    def _annotated(self, statement: ast.AnnAssign) -> None:
        if statement.value is not None:
            value = self._expressions.evaluate(statement.value)
            self._note_attributes(statement.target, value, statement)
            self._expressions.bind(statement.target, value)

    def _expression(self, statement: ast.Expr) -> None:
        self._ledger.cut_unnamed([self._expressions.evaluate(statement.value)])

    def _assert(self, statement: ast.Assert) -> None:
        self._ledger.cut(self._expressions.evaluate(statement.test))

    def _for(self, statement: ast.For | ast.AsyncFor) -> None:
        self._loop(statement.body, statement.orelse, statement)

    def _while(self, statement: ast.While) -> None:
        self._ledger.cut(self._expressions.evaluate(statement.test))
        self._loop(statement.body, statement.orelse, None)

    def _match(self, statement: ast.Match) -> None:
        self._alternatives([case.body for case in statement.cases])

    def _delete(self, statement: ast.Delete) -> None:
        for target in statement.targets:
            self._ledger.state.names.pop(ast.unparse(target), None)

    # --- ways through ------------------------------------------------------------------------------------------

    def _leave(self, _: ast.Raise | ast.Continue | ast.Break) -> bool:
        return True

    def _return(self, statement: ast.Return) -> bool:
        value = self._expressions.evaluate(statement.value)
        if statement.value is not None:
            self._gives_back.append(_may_carry_gradients(value))
        return True

    def _branches(self, statement: ast.If) -> bool:
        ledger = self._ledger
        ledger.cut(self._expressions.evaluate(statement.test))
        body_is_free, orelse_is_free = without_gradients(statement.test)
        before = ledger.state.copy()
        first_ends = self._branch(statement.body, inference=body_is_free)
        first, ledger.state = ledger.state, before
        second_ends = self._branch(statement.orelse, inference=orelse_is_free)
        if first_ends and second_ends:
            return True
        if second_ends:
            ledger.state = first
        elif not first_ends:
            ledger.state = merged(first, ledger.state)
        return False

    def _branch(self, statements: list[ast.stmt], *, inference: bool) -> bool:
        """A block that, with `inference`, runs only where no backward follows: nothing is kept, writes are free."""
        ledger = self._ledger
        before = ledger.recording, ledger.inference
        ledger.recording, ledger.inference = ledger.recording and not inference, ledger.inference or inference
        ends = self._block(statements)
        ledger.recording, ledger.inference = before
        return ends

    def _alternatives(self, blocks: list[list[ast.stmt]]) -> None:
        before = self._ledger.state
        ends: list[State] = [before.copy()]
        for block in blocks:
            self._ledger.state = before.copy()
            if not self._block(block):
                ends.append(self._ledger.state)
        self._ledger.state = ends[0]
        for other in ends[1:]:
            self._ledger.state = merged(self._ledger.state, other)

    def _loop(self, body: list[ast.stmt], orelse: list[ast.stmt], loop: ast.For | ast.AsyncFor | None) -> None:
        before = self._ledger.state.copy()
        for _ in range(2):
            if loop is not None:
                self._bind_loop(loop)
            self._block(body)
        self._ledger.state = merged(before, self._ledger.state)
        self._block(orelse)

    def _bind_loop(self, loop: ast.For | ast.AsyncFor) -> None:
        sequence = self._expressions.evaluate(loop.iter)
        degree = sequence.degree
        name = dotted_name(loop.iter.func) if isinstance(loop.iter, ast.Call) else None
        bind = self._expressions.bind
        if name == "range":
            bind(loop.target, Value(kind=NUMBER))
        elif name == "enumerate" and isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2:
            bind(loop.target.elts[0], Value(kind=NUMBER))
            bind(loop.target.elts[1], Value(degree=degree))
        elif name is not None and name.rpartition(".")[2] in {"parameters", "named_parameters"}:
            parameter = Value(kind=TENSOR, degree=Differentiable.LIKELY, leaf=True)
            pair = isinstance(loop.target, ast.Tuple) and len(loop.target.elts) == 2
            bind(loop.target, Value(parts=(Value(kind=OTHER), parameter)) if pair else parameter)
        else:
            bind(loop.target, self._expressions.element(sequence, loop.iter))

    def _with(self, statement: ast.With | ast.AsyncWith) -> bool:
        for item in statement.items:
            value = self._expressions.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self._expressions.bind(item.optional_vars, value)
        before = self._ledger.recording
        self._ledger.recording = not self._file.grad_disabled(statement.body[0])
        ends = self._block(statement.body)
        self._ledger.recording = before
        return ends

    def _try(self, statement: ast.Try) -> bool:
        ledger = self._ledger
        before = ledger.state.copy()
        ends = self._block([*statement.body, *statement.orelse])
        after = ledger.state
        for handler in statement.handlers:
            ledger.state = before.copy()
            if not self._block(handler.body):
                after = ledger.state if ends else merged(after, ledger.state)
                ends = False
        ledger.state = after
        return self._block(statement.finalbody) or ends

    # --- assignments -------------------------------------------------------------------------------------------

    def _assign(self, statement: ast.Assign) -> None:
        value = self._expressions.evaluate(statement.value)
        for target in statement.targets:
            if isinstance(target, ast.Attribute) and target.attr in {"data", "requires_grad"}:
                self._assign_to_tensor(statement, target, value)
                continue
            if not isinstance(target, ast.Subscript):
                self._note_attributes(target, value, statement)
                self._expressions.bind(target, value)
                self._note_second_name(statement, target)
                continue
            self._expressions.evaluate(target.slice)
            for write in writes_of(self._file, statement):
                if write.target is target.value:
                    written = self._expressions.evaluate(write.target)
                    if isinstance(target.slice, ast.Tuple) and written.kind == UNKNOWN:
                        written.kind = TENSOR
                    self._ledger.write(write, written, value.degree)

    def _assign_to_tensor(self, statement: ast.Assign, target: ast.Attribute, given: Value) -> None:
        """`x.data = …` and `x.requires_grad = True`."""
        value = self._expressions.evaluate(target.value)
        if target.attr == "data":
            self._ledger.cut_unnamed([given])
            self._ledger.replace(Write(statement, target.value, ".data ="), value)
        elif isinstance(statement.value, ast.Constant):
            value.require_gradient(required=statement.value.value is True)

    def _note_second_name(self, statement: ast.Assign, target: ast.expr) -> None:
        """`a = b` and `a = b = …` give one value two names."""
        given = [statement.value, *statement.targets]
        for other in given:
            if isinstance(target, ast.Name) and isinstance(other, ast.Name) and other.id != target.id:
                self._ledger.second_names.add(frozenset({target.id, other.id}))

    def _note_attributes(self, target: ast.expr, value: Value, statement: ast.stmt) -> None:
        """Tells the ledger of attributes of `self` that an assignment gives a new value."""
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.parts if value.parts is not None and len(value.parts) == len(target.elts) else None
            for index, item in enumerate(target.elts):
                self._note_attributes(item, value.part() if parts is None else parts[index], statement)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            known = self._attributes.get(target.attr)
            is_buffer = known is not None and known.content is Content.BUFFER
            self._ledger.assign_attribute(target.attr, value, statement, is_buffer=is_buffer)

    def _augmented(self, statement: ast.AugAssign) -> None:
        ledger, target = self._ledger, statement.target
        right = self._expressions.evaluate(statement.value)
        into_part = isinstance(target, ast.Subscript)
        value = self._expressions.evaluate(target.value if isinstance(target, ast.Subscript) else target)
        if not into_part and value.kind in {NUMBER, OTHER}:
            self._expressions.bind(target, Value(kind=right.kind, degree=max(value.degree, right.degree)))
            return
        if isinstance(statement.op, ast.MatMult):
            self._expressions.bind(target, ledger.operation("operator.matmul", [value, right], statement))
            return
        by_parts = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Tuple)
        if value.kind == UNKNOWN and (by_parts or (right.kind == TENSOR and not into_part)):
            value.kind = TENSOR
        if value.route is Route.NUMPY:
            for write in writes_of(self._file, statement):
                ledger.write(write, value)
            return
        name = f"operator.i{OPERATORS[type(statement.op)].rstrip('_')}"
        ledger.keep_inputs(name, [value, right], statement, skip=0)
        for write in writes_of(self._file, statement):
            ledger.write(write, value, right.degree)
        ledger.keep_result(name, [value, right], value, statement)


# What runs a statement; true when the block never goes on behind it.
_STATEMENTS: Mapping[type[ast.stmt], Callable[[_Run, Any], bool | None]] = {
    ast.Return: _Run._return,
    ast.Raise: _Run._leave,
    ast.Continue: _Run._leave,
    ast.Break: _Run._leave,
    ast.If: _Run._branches,
    ast.With: _Run._with,
    ast.AsyncWith: _Run._with,
    ast.Try: _Run._try,
    ast.Assign: _Run._assign,
    ast.AnnAssign: _Run._annotated,
    ast.AugAssign: _Run._augmented,
    ast.Expr: _Run._expression,
    ast.Assert: _Run._assert,
    ast.For: _Run._for,
    ast.AsyncFor: _Run._for,
    ast.While: _Run._while,
    ast.Match: _Run._match,
    ast.Delete: _Run._delete,
}


def _may_carry_gradients(value: Value) -> bool:
    if value.parts is not None:
        return any(_may_carry_gradients(part) for part in value.parts)
    return value.degree > Differentiable.NO or value.kind == UNKNOWN


def _argument(argument: ast.arg) -> Value:
    """What is known of a parameter from its name and annotation."""
    if argument.arg in {"self", "cls"}:
        return Value(kind=OTHER, bound=True)
    annotation = _written(argument.annotation)
    if _NUMBER_ANNOTATIONS.match(annotation):
        return Value(kind=NUMBER, bound=True)
    kind = TENSOR if annotation.rpartition(".")[2] == "Tensor" else UNKNOWN
    without = _INTEGER_ANNOTATIONS.search(annotation) or _NO_GRADIENT_NAMES.search(argument.arg.lower())
    return Value(kind=kind, degree=Differentiable.NO if without else Differentiable.POSSIBLE, bound=True)


def _written(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Name):
        return annotation.id  # unparsing costs fifty times as much, and most annotations are names
    return ast.unparse(annotation) if annotation is not None else ""
