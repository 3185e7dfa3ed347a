"""What a rule gets to see of a file: the tree, names resolved through imports, and the scopes around a node.

Everything is computed once, on first use. This module must not know rules, findings or how files are read.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from analyzer.findings import Region
from analyzer.singularities import Singularities
from analyzer.syntax import FunctionNode, SyntaxIndex, dotted_name, parameters
from analyzer.triggers import Words
from analyzer.values.domain import UNKNOWN, Value
from analyzer.values.evaluate import Evaluator

if TYPE_CHECKING:
    from analyzer.package import Package

_Node = TypeVar("_Node", bound=ast.AST)
_Made = TypeVar("_Made")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

AUTOGRAD_FUNCTION_NAMES = frozenset(
    {"torch.autograd.Function", "torch.autograd.function.Function", "torch.autograd.function.InplaceFunction"}
)
_GRAD_OFF = frozenset(
    {
        "torch.no_grad",
        "torch.inference_mode",
        "torch.autograd.no_grad",
        "torch.autograd.inference_mode",
        "torch.autograd.grad_mode.no_grad",
        "torch.autograd.grad_mode.inference_mode",
    }
)
_GRAD_ON = frozenset({"torch.enable_grad", "torch.autograd.enable_grad", "torch.autograd.grad_mode.enable_grad"})
_GRAD_SET = frozenset({"torch.set_grad_enabled", "torch.autograd.set_grad_enabled"})


class DeadlineError(Exception):
    """The time for one file is used up."""


class FileContext:
    """One parsed file. `path` is relative to the snapshot, `module` its dotted name, `text` the decoded source.

    `deadline` is the value of `time.monotonic()` from which `check_deadline` raises. `package` knows the other files
    of the snapshot; without it, what they define is unknown. `minimum_torch` is the oldest torch that the project says
    it runs with (`2.1`), if it says so.
    """

    def __init__(
        self,
        *,
        path: str,
        module: str,
        text: str,
        tree: ast.Module,
        deadline: float = float("inf"),
        package: Package | None = None,
        minimum_torch: str | None = None,
    ) -> None:
        self.path = path
        self.module = module
        self.text = text
        self.tree = tree
        self._deadline = deadline
        self._package = package
        self.minimum_torch = minimum_torch

    def release(self) -> None:
        """Lets go of everything, so that the tree is freed at once: it and the analyses hold each other."""
        self.__dict__.clear()

    def check_deadline(self) -> None:
        """Raises DeadlineError when the file has had its time. Call it wherever work grows with the file."""
        if time.monotonic() > self._deadline:
            raise DeadlineError

    def once(self, make: Callable[[FileContext], _Made]) -> _Made:
        """What `make` makes of this file, made at the first question and dropped with the file."""
        try:
            return self._made[make]  # type: ignore[no-any-return]
        except KeyError:
            made = self._made[make] = make(self)
            return made

    @cached_property
    def _made(self) -> dict[Callable[[FileContext], Any], Any]:
        return {}

    def extend_deadline(self, deadline: float) -> None:
        """Another time limit, for another question."""
        self._deadline = deadline

    @cached_property
    def index(self) -> SyntaxIndex:
        return SyntaxIndex(self.tree)

    # --- nodes -------------------------------------------------------------------------------------------------

    def nodes(self, *types: type[_Node]) -> list[_Node]:
        """Every node of exactly these types."""
        return self.index.nodes(*types)

    def calls(self, *names: str) -> list[ast.Call]:
        """Every call whose callee ends in one of these names."""
        return self.index.calls(*names)

    def nodes_in(self, scope: ast.ClassDef | FunctionNode, *types: type[_Node]) -> list[_Node]:
        """Every node of exactly these types inside a class or function, nested ones included, in source order.

        A slice of what the one walk over the file met: asking for every class and function costs no walk of each.
        """
        self.check_deadline()
        if len(types) == 1:
            return list(self.index.nodes_in(scope, types[0]))
        return [node for node_type in types for node in self.index.nodes_in(scope, node_type)]

    def definitions_around(self, node: ast.AST) -> tuple[ast.ClassDef | FunctionNode, ...]:
        """The classes and functions around a node, the innermost first, without itself.

        Remembered by statement: of a hundred thousand questions a file hardly one climbs the whole tree.
        """
        known = self._definitions.get(node)
        if known is not None:
            return known
        parents = self.index.parents
        statement: ast.AST = node
        while not isinstance(statement, ast.stmt):
            outer = parents.get(statement)
            if outer is None:
                return ()
            statement = outer
        known = self._definitions.get(statement)
        if known is None:
            known = self._around(statement)
        return (statement, *known) if statement is not node and isinstance(statement, _DEFINITIONS) else known

    def _around(self, node: ast.AST) -> tuple[ast.ClassDef | FunctionNode, ...]:
        parents, known = self.index.parents, self._definitions
        climbed: list[ast.AST] = []
        found: tuple[ast.ClassDef | FunctionNode, ...] | None = known.get(node)
        while found is None:
            climbed.append(node)
            parent = parents.get(node)
            if parent is None:
                found = ()
            else:
                node = parent
                found = known.get(node)
                if found is not None and isinstance(node, _DEFINITIONS):
                    found = (node, *found)
        for below in reversed(climbed):
            if isinstance(below, ast.stmt):
                known[below] = found
            if isinstance(below, _DEFINITIONS) and below is not climbed[0]:
                found = (below, *found)
        return found

    @cached_property
    def _definitions(self) -> dict[ast.AST, tuple[ast.ClassDef | FunctionNode, ...]]:
        return {}

    @cached_property
    def words(self) -> Words:
        """The words of the file, for telling quickly which rules it could concern."""
        return Words(self.text, self.index)

    @cached_property
    def loads(self) -> dict[str, list[ast.Name]]:
        """Every place where a name is read, by name."""
        table: dict[str, list[ast.Name]] = {}
        for name in self.nodes(ast.Name):
            if isinstance(name.ctx, ast.Load):
                table.setdefault(name.id, []).append(name)
        return table

    def names_in(self, scope: FunctionNode, name: str) -> list[ast.Name]:
        """Every place inside a function, nested ones included, that reads or writes a name, in source order."""
        table = self._names_in.get(scope)
        if table is None:
            table = self._names_in[scope] = {}
            for node in self.index.nodes_in(scope, ast.Name):
                table.setdefault(node.id, []).append(node)
        return table.get(name, [])

    @cached_property
    def _names_in(self) -> dict[ast.AST, dict[str, list[ast.Name]]]:
        return {}

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.index.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        return self.index.ancestors(node)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement that holds the node (the node itself when it is one)."""
        while not isinstance(node, ast.stmt):
            parent = self.index.parents.get(node)
            if parent is None:
                return None
            node = parent
        return node

    # --- text --------------------------------------------------------------------------------------------------

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def line(self, number: int) -> str:
        """A line by its 1-based number, without its end; "" outside the file."""
        return self._lines[number - 1] if 0 < number <= len(self._lines) else ""

    def span(self, node: ast.expr | ast.stmt) -> Region:
        """The whole place of a node, without parentheses around it. Not exact inside an f-string."""
        end_line = node.end_lineno or node.lineno
        return Region(
            self.path,
            node.lineno,
            self._column(node.lineno, node.col_offset),
            end_line,
            self._column(end_line, node.end_col_offset or 0),
        )

    def _column(self, number: int, byte_offset: int) -> int:
        text = self.line(number)
        if text.isascii():
            return byte_offset + 1
        return len(text.encode("utf-8", "surrogatepass")[:byte_offset].decode("utf-8", "replace")) + 1

    def source(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node as its author wrote it, without parentheses around it."""
        region = self.span(node)
        lines = self._lines[region.start_line - 1 : region.end_line]
        lines[-1] = lines[-1][: region.end_column - 1]
        lines[0] = lines[0][region.start_column - 1 :]
        return "\n".join(lines)

    def operand_source(self, node: ast.expr) -> str:
        """The same, in parentheses unless `.method()` and every operator may follow or precede it."""
        text = self.source(node)
        is_number = isinstance(node, ast.Constant) and not isinstance(node.value, (str, bytes))
        if is_number or not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)):
            return f"({text})"
        return text

    def is_parenthesised(self, node: ast.expr) -> bool:
        """Whether a pair of parentheses encloses nothing but this node. Those of a call count as well."""
        region = self.span(node)
        before = self.line(region.start_line)[: region.start_column - 1].rstrip()
        after = self.line(region.end_line)[region.end_column - 1 :].lstrip()
        return before.endswith("(") and after.startswith(")")

    # --- names -------------------------------------------------------------------------------------------------

    def spelling(self, qualified: str) -> str | None:
        """How this file can write a dotted name of torch: `F.softplus`, `torch.nn.functional.softplus`.

        The longest import that leads there wins; None when no import does.
        """
        best: tuple[int, str] | None = None
        for alias, target in self.imports.items():
            if (qualified == target or qualified.startswith(f"{target}.")) and (best is None or len(target) > best[0]):
                best = (len(target), alias + qualified.removeprefix(target))
        return best[1] if best is not None else None

    @cached_property
    def imports(self) -> dict[str, str]:
        """What each imported name stands for: `F` → `torch.nn.functional`, `relu` → `torch.nn.functional.relu`.

        Imports inside functions and `try` count for the whole file; relative imports keep their leading dots.
        """
        table: dict[str, str] = {}
        for statement in self.nodes(ast.Import):
            for alias in statement.names:
                if alias.asname is not None:
                    table[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    table[top] = top
        for source in self.nodes(ast.ImportFrom):
            prefix = "." * source.level + (source.module or "")
            separator = "" if prefix.endswith(".") else "."
            for alias in source.names:
                table[alias.asname or alias.name] = f"{prefix}{separator}{alias.name}"
        return table

    def qualified_name(self, expression: ast.AST) -> str | None:
        """The full dotted name an expression stands for, through the file's imports.

        None when it is no chain of names, when its first name was not imported, or when that name is a parameter
        or a variable of a function around it.
        """
        try:
            return self._qualified[expression]
        except KeyError:
            name = self._qualified[expression] = self._resolved(expression)
            return name

    @cached_property
    def _qualified(self) -> dict[ast.AST, str | None]:
        return {}

    def _resolved(self, expression: ast.AST) -> str | None:
        # Most chains start at a variable: these are seen to before a name is put together.
        root = expression
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            return None
        target = self.imports.get(root.id)
        if target is None or self._is_local(root.id, expression):
            return None
        dotted = dotted_name(expression)
        return target if dotted is None else target + dotted[len(root.id) :]

    def _is_local(self, name: str, node: ast.AST) -> bool:
        return name in self._hiding_names and any(
            isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and name in self._bound_names(scope)
            for scope in self.index.ancestors(node)
        )

    @cached_property
    def _hiding_names(self) -> frozenset[str]:
        """Everything that may stand for something else than an import somewhere in the file."""
        hidden = {name for name, _ in self._rebound_imports}
        hidden.update(argument.arg for argument in self.nodes(ast.arg))
        return frozenset(hidden)

    @cached_property
    def _bound_by_scope(self) -> dict[ast.AST, frozenset[str]]:
        return {}

    def _bound_names(self, scope: FunctionNode | ast.Lambda) -> frozenset[str]:
        """Parameters of a function, and the imported names that it binds to something else."""
        known = self._bound_by_scope.get(scope)
        if known is None:
            bound = {parameter.arg for parameter in parameters(scope)}
            bound |= {name for name, function in self._rebound_imports if function is scope}
            known = self._bound_by_scope[scope] = frozenset(bound)
        return known

    @cached_property
    def _rebound_imports(self) -> frozenset[tuple[str, ast.AST]]:
        found: set[tuple[str, ast.AST]] = set()
        for name in self.nodes(ast.Name):
            if name.id in self.imports and isinstance(name.ctx, ast.Store):
                function = self.enclosing_function(name)
                if function is not None:
                    found.add((name.id, function))
        return frozenset(found)

    # --- scopes ------------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> list[FunctionNode]:
        """Every `def` of the file, methods and nested ones included, in source order."""
        found: list[FunctionNode] = [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]
        return sorted(found, key=lambda function: (function.lineno, function.col_offset))

    @cached_property
    def functions_by_name(self) -> dict[str, list[FunctionNode]]:
        table: dict[str, list[FunctionNode]] = {}
        for function in self.functions:
            table.setdefault(function.name, []).append(function)
        return table

    @cached_property
    def loads_by_function(self) -> dict[tuple[ast.AST | None, str], list[ast.Name]]:
        """Every place where a name is read, by the function around it (None: none) and the name."""
        table: dict[tuple[ast.AST | None, str], list[ast.Name]] = {}
        for name, places in self.loads.items():
            for place in places:
                table.setdefault((self.enclosing_function(place), name), []).append(place)
        return table

    def returns_of(self, function: FunctionNode) -> list[ast.Return]:
        """The `return` statements of a function itself, not of functions inside it."""
        return self._returns.get(function, [])

    @cached_property
    def _returns(self) -> dict[ast.AST, list[ast.Return]]:
        table: dict[ast.AST, list[ast.Return]] = {}
        for statement in self.nodes(ast.Return):
            function = self.enclosing_function(statement)
            if function is not None:
                table.setdefault(function, []).append(statement)
        return table

    # --- values ------------------------------------------------------------------------------------------------

    @cached_property
    def values(self) -> Evaluator:
        """What the expressions of this file may be."""
        return Evaluator(self)

    def imported_value(self, qualified: str) -> Value:
        """What a function of another file of the snapshot returns, by the name under which this file imports it."""
        return self._package.value(qualified, self.path) if self._package is not None else UNKNOWN

    @cached_property
    def singularities(self) -> Singularities:
        """The operations of this file that are singular somewhere."""
        return Singularities(self)

    # --- enclosing definitions ---------------------------------------------------------------------------------

    def enclosing_function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost `def` around the node, without itself."""
        for outer in self.definitions_around(node):
            if not isinstance(outer, ast.ClassDef):
                return outer
        return None

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around the node, without itself; a function between them does not hide it."""
        for outer in self.definitions_around(node):
            if isinstance(outer, ast.ClassDef):
                return outer
        return None

    def symbol(self, node: ast.AST) -> str:
        """`package.module.Class.method` of the innermost definition around (or at) the node."""
        names: list[str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        names.extend(outer.name for outer in self.definitions_around(node))
        return ".".join([part for part in (self.module, *reversed(names)) if part])

    # --- autograd ----------------------------------------------------------------------------------------------

    @cached_property
    def autograd_functions(self) -> list[ast.ClassDef]:
        """Classes that derive from `torch.autograd.Function`, directly or through another class of this file."""
        derived: dict[str, list[ast.ClassDef]] = {}
        waiting: list[ast.ClassDef] = []
        for node in sorted(self.nodes(ast.ClassDef), key=lambda node: node.lineno):
            for base in node.bases:
                if self.qualified_name(base) in AUTOGRAD_FUNCTION_NAMES:
                    waiting.append(node)
                elif isinstance(base, ast.Name):
                    derived.setdefault(base.id, []).append(node)
        found: dict[ast.ClassDef, None] = {}
        for node in waiting:
            if node not in found:
                found[node] = None
                waiting.extend(derived.pop(node.name, ()))
        return list(found)

    def enclosing_autograd_function(self, node: ast.AST) -> ast.ClassDef | None:
        """The custom autograd Function class around the node, if any."""
        if not self.autograd_functions:
            return None
        for outer in self.definitions_around(node):
            if isinstance(outer, ast.ClassDef) and outer in self._autograd_function_set:
                return outer
        return None

    @cached_property
    def _autograd_function_set(self) -> frozenset[ast.ClassDef]:
        return frozenset(self.autograd_functions)

    def grad_disabled(self, node: ast.AST) -> bool:
        """Whether the node runs without gradient recording, as far as its own file shows.

        True inside `with torch.no_grad()` / `inference_mode()` / `set_grad_enabled(False)`, in functions decorated
        with them, and in the static methods of a custom autograd Function (which autograd runs without recording),
        unless `enable_grad` stands closer.
        """
        self.check_deadline()
        child = node
        for outer in self.index.ancestors(node):
            if isinstance(outer, (ast.With, ast.AsyncWith)) and isinstance(child, ast.stmt):
                for item in outer.items:
                    state = self._grad_state(item.context_expr)
                    if state is not None:
                        return not state
            elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and isinstance(child, ast.stmt):
                for decorator in outer.decorator_list:
                    state = self._grad_state(decorator)
                    if state is not None:
                        return not state
                owner = self.parent(outer)
                if isinstance(owner, ast.ClassDef) and owner in self._autograd_function_set:
                    return True
            child = outer
        return False

    def _grad_state(self, expression: ast.AST) -> bool | None:
        """True for `enable_grad`, False for `no_grad`, None for anything else."""
        call = expression if isinstance(expression, ast.Call) else None
        qualified = self.qualified_name(call.func if call is not None else expression)
        if qualified in _GRAD_OFF:
            return False
        if qualified in _GRAD_ON:
            return True
        if qualified in _GRAD_SET and call is not None and call.args:
            argument = call.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, bool):
                return argument.value
        return None
