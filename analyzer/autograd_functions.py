"""What a custom `torch.autograd.Function` promises: its inputs, what it saves, what its backward gives back.

Everything is read from one file. Where the file does not settle a question (a base class from elsewhere, a method put
in by an assignment, a context handed to another function) the answer is None, never a guess. This module must not
know rules.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from analyzer.context import AUTOGRAD_FUNCTION_NAMES, FileContext
from analyzer.gradient_returns import Gradients, Returns, is_none, own_nodes
from analyzer.syntax import FunctionNode, dotted_name, terminal_name

# Functions derived from each other in one file: two in ten packages.
_MOST_ANCESTORS = 32
_METHODS = ("forward", "backward", "vjp", "setup_context")
_PLAIN_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "once_differentiable", "custom_bwd", "no_grad", "override"}
)
SAVED_ATTRIBUTES = frozenset({"saved_tensors", "saved_variables"})


@dataclass(frozen=True, slots=True)
class Save:
    """One call of `ctx.save_for_backward`; `count` is None when a starred argument hides it."""

    call: ast.Call
    count: int | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unpack:
    """One place where `ctx.saved_tensors` is taken apart; `exact` is False when more may have been saved."""

    node: ast.AST
    count: int
    names: tuple[str, ...]
    exact: bool


class AutogradFunction:
    """One class; methods that it inherits from another class of the file count as its own."""

    def __init__(self, file: FileContext, node: ast.ClassDef) -> None:
        self.file = file
        self.node = node
        self._methods, self._complete = _methods(file, node)

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def forward(self) -> FunctionNode | None:
        return self._methods.get("forward")

    @property
    def backward(self) -> FunctionNode | None:
        return self._methods.get("backward") or self._methods.get("vjp")

    @property
    def setup_context(self) -> FunctionNode | None:
        return self._methods.get("setup_context")

    @property
    def own_methods(self) -> list[FunctionNode]:
        """Every function defined in the body of the class itself."""
        return [item for item in self.node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]

    @property
    def is_readable(self) -> bool:
        """Whether forward and backward are both in this file and nothing of the class comes from elsewhere."""
        return self._complete and self.forward is not None and self.backward is not None

    @property
    def is_wrapped(self) -> bool:
        """Whether a decorator that is not known stands between autograd and backward: it may prepare the gradients."""
        decorators = [] if self.backward is None else self.backward.decorator_list
        names = (terminal_name(item.func if isinstance(item, ast.Call) else item) for item in decorators)
        return any(name not in _PLAIN_DECORATORS for name in names)

    @property
    def is_once_differentiable(self) -> bool:
        """Whether a second derivative raises, because backward says that it has none."""
        return self.backward is not None and any(
            terminal_name(decorator) == "once_differentiable" for decorator in self.backward.decorator_list
        )

    @property
    def only_raises(self) -> bool:
        """Whether backward does nothing but raise: there is no gradient, and it says so."""
        body = [] if self.backward is None else self.backward.body
        return bool(body) and isinstance(body[-1], ast.Raise) and not self.returns

    @cached_property
    def applications(self) -> list[ast.Call]:
        """Every `Name.apply(…)` of the file, also through a name that was given `Name.apply` once, in source order."""
        found = [
            call
            for call in self.file.calls("apply")
            if isinstance(call.func, ast.Attribute) and dotted_name(call.func.value) == self.name
        ]
        aliases: set[str] = set()
        for attribute in self.file.nodes(ast.Attribute):
            if attribute.attr == "apply" and dotted_name(attribute.value) == self.name:
                parent = self.file.parent(attribute)
                if isinstance(parent, ast.Assign) and parent.value is attribute:
                    aliases |= {name for target in parent.targets if (name := terminal_name(target)) is not None}
        found.extend(self.file.calls(*sorted(aliases)))
        return sorted(found, key=lambda call: (call.lineno, call.col_offset))

    # --- inputs ------------------------------------------------------------------------------------------------

    @cached_property
    def inputs(self) -> list[ast.arg]:
        """The positional parameters of forward that autograd counts as inputs (without the context)."""
        if self.forward is None:
            return []
        found = _own_parameters(self.forward)
        return found if self.setup_context is not None else found[1:]

    @property
    def input_names(self) -> list[str]:
        return [argument.arg for argument in self.inputs]

    @property
    def is_variadic(self) -> bool:
        """Whether forward takes `*args`, so that its inputs can't be counted."""
        return self.forward is None or self.forward.args.vararg is not None

    @property
    def required_inputs(self) -> int:
        """How many inputs have no default."""
        defaults = len(self.forward.args.defaults) if self.forward is not None else 0
        return max(len(self.inputs) - defaults, 0)

    @property
    def gradient_parameters(self) -> list[ast.arg]:
        """The parameters of backward that take incoming gradients, one for each output; `*grads` is not among them."""
        return [] if self.backward is None else _own_parameters(self.backward)[1:]

    # --- the context -------------------------------------------------------------------------------------------

    def context_name(self, function: FunctionNode) -> str | None:
        """The name of the context parameter of one of the methods."""
        if function is self.forward and self.setup_context is not None:
            return None
        arguments = _own_parameters(function)
        return arguments[0].arg if arguments else None

    @property
    def saver(self) -> FunctionNode | None:
        """The method that fills the context: `setup_context` where there is one, else forward."""
        return self.setup_context or self.forward

    @cached_property
    def saves(self) -> list[Save] | None:
        """Every `ctx.save_for_backward(…)`; None when the context is handed on, so that others could save too."""
        function = self.saver
        if function is None:
            return None
        context = self.context_name(function)
        found: list[Save] = []
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                if _is_context_attribute(node.func, context, {"save_for_backward"}):
                    starred = any(isinstance(argument, ast.Starred) for argument in node.args)
                    names = tuple(ast.unparse(argument) for argument in node.args)
                    found.append(Save(node, None if starred or node.keywords else len(node.args), names))
                    continue
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(isinstance(argument, ast.Name) and argument.id == context for argument in given):
                    return None
            elif isinstance(node, ast.Attribute) and node.attr in {"to_save", "save_for_backward"}:
                parent = self.file.parent(node)
                if not (isinstance(parent, ast.Call) and parent.func is node):
                    return None
        return found

    @cached_property
    def unpacks(self) -> list[Unpack]:
        """Every place in backward that says how many tensors it expects."""
        function = self.backward
        if function is None:
            return []
        context = self.context_name(function)
        bound: dict[str, int] = {}
        found: list[Unpack] = []
        statements = [node for node in own_nodes(function) if isinstance(node, ast.Assign)]
        for statement in sorted(statements, key=lambda node: (node.lineno, node.col_offset)):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    is_saved = _is_context_attribute(statement.value, context, SAVED_ATTRIBUTES)
                    bound[target.id] = bound.get(target.id, 0) + (1 if is_saved else 2)
                    continue
                named = isinstance(statement.value, ast.Name) and bound.get(statement.value.id) == 1
                if named or _is_context_attribute(statement.value, context, SAVED_ATTRIBUTES):
                    unpack = _unpack(statement, target)
                    if unpack is not None:
                        found.append(unpack)
        for node in own_nodes(function):
            if isinstance(node, ast.Subscript) and _is_context_attribute(node.value, context, SAVED_ATTRIBUTES):
                index = node.slice
                if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value >= 0:
                    found.append(Unpack(node, index.value + 1, (), exact=False))
        return found

    # --- gradients ---------------------------------------------------------------------------------------------

    @cached_property
    def gradients(self) -> list[Gradients]:
        """Every `return` of backward whose gradients can be counted."""
        function = self.backward
        if function is None:
            return []
        found = [
            item
            for node in own_nodes(function)
            if isinstance(node, ast.Return) and (item := self._reader.gradients(node)) is not None
        ]
        return sorted(found, key=lambda item: getattr(item.statement, "lineno", 0))

    @cached_property
    def returns(self) -> list[ast.Return]:
        """Every `return` of backward."""
        function = self.backward
        return [] if function is None else [node for node in own_nodes(function) if isinstance(node, ast.Return)]

    def certainly_gives(self, item: ast.expr | None) -> bool:
        """Whether one item of a `return` of backward is certainly a tensor, not None."""
        return self.backward is not None and self._reader.is_certainly_not_none(item)

    @property
    def has_no_gradient(self) -> bool:
        """Whether forward marks a result as not differentiable and backward gives nothing but None."""
        marks = self.saver is not None and any(
            isinstance(node, ast.Attribute) and node.attr == "mark_non_differentiable" for node in own_nodes(self.saver)
        )
        return marks and all(is_none(value) for item in self.gradients for value in item.items)

    @cached_property
    def _reader(self) -> Returns:
        assert self.backward is not None
        return Returns(self.file, self.backward)

    def receives_gradient(self, position: int) -> bool | None:
        """Whether backward gives the input at this position a gradient: None when its returns do not tell."""
        if len(self.gradients) != len(self.returns) or not self.gradients:
            return None
        for item in self.gradients:
            if item.is_list or item.count != len(item.items):
                return None
            if position < item.count and not self._reader.is_certainly_none(item.items[position]):
                return True
        return False


def autograd_functions(file: FileContext) -> list[AutogradFunction]:
    """The custom autograd Functions of a file."""
    return file.once(_made)


def _made(file: FileContext) -> list[AutogradFunction]:
    return [AutogradFunction(file, node) for node in file.autograd_functions]


def _by_name(file: FileContext) -> dict[str, ast.ClassDef]:
    return {item.name: item for item in file.autograd_functions}


def _methods(file: FileContext, node: ast.ClassDef) -> tuple[dict[str, FunctionNode], bool]:
    """(methods by name, whether the whole class is known): nearest definition first, through bases in the file."""
    found: dict[str, FunctionNode] = {}
    complete = True
    local = file.once(_by_name)
    chain, seen = [node], {node.name}
    for current in chain:
        for statement in current.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name in _METHODS:
                found.setdefault(statement.name, statement)
            elif isinstance(statement, ast.Assign):
                names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
                complete = complete and not names & set(_METHODS)
        for base in current.bases:
            name = dotted_name(base)
            if file.qualified_name(base) in AUTOGRAD_FUNCTION_NAMES:
                continue
            if name in local and name not in seen and len(seen) < _MOST_ANCESTORS:
                seen.add(name)
                chain.append(local[name])
            else:
                complete = False
    return found, complete


def _own_parameters(function: FunctionNode) -> list[ast.arg]:
    """The positional parameters, without the class of a class method.

    Some pass the class to a static method by hand: `def forward(cls, ctx, x)`.
    """
    found = [*function.args.posonlyargs, *function.args.args]
    is_class_method = any(dotted_name(decorator) == "classmethod" for decorator in function.decorator_list)
    by_hand = len(found) > 1 and found[0].arg in {"cls", "self"} and found[1].arg in {"ctx", "context"}
    return found[1:] if is_class_method or by_hand else found


def _is_context_attribute(expression: ast.AST, context: str | None, names: set[str] | frozenset[str]) -> bool:
    return (
        isinstance(expression, ast.Attribute)
        and expression.attr in names
        and isinstance(expression.value, ast.Name)
        and expression.value.id == context
    )


def _unpack(statement: ast.Assign, target: ast.expr) -> Unpack | None:
    if not isinstance(target, (ast.Tuple, ast.List)):
        return None
    starred = [item for item in target.elts if isinstance(item, ast.Starred)]
    names = tuple(ast.unparse(item) for item in target.elts)
    if starred:
        return Unpack(statement, len(target.elts) - 1, names, exact=False)
    return Unpack(statement, len(target.elts), names, exact=True)
