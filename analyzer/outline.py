"""What other files need to know of a file: its classes, its differentiable functions, what it imports.

Small and picklable, so that thousands of files can be outlined one by one without keeping their trees. This module
must not know other files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, dotted_name, parameters

_ABSTRACT_BASES = frozenset({"abc.ABC", "typing.Protocol", "typing_extensions.Protocol"})
_ABSTRACT_DECORATORS = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod"})
_TENSOR_NAMES = frozenset({"Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor"})
# These make a tensor out of data: being handed to them says nothing about being a tensor.
_CONVERSIONS = frozenset({"torch.tensor", "torch.as_tensor", "torch.from_numpy", "torch.load", "torch.save"})
# Results that carry no gradient whatever the body does.
_RESULTS_WITHOUT_GRADIENT = frozenset({"None", "bool", "int", "str", "float", "bytes", "Module", "NoReturn"})


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class as others see it. `bases` are dotted names: `.x` is relative to the module, no dot is of this file."""

    qualname: str
    line: int
    end_line: int
    bases: tuple[str, ...]
    methods: frozenset[str]
    abstract_methods: frozenset[str]
    declared_abstract: bool
    nested: bool


@dataclass(frozen=True, slots=True)
class FunctionOutline:
    """A function of a module that takes tensors and returns something computed from them."""

    name: str
    line: int
    end_line: int


@dataclass(frozen=True, slots=True)
class Outline:
    """One file."""

    path: str
    classes: tuple[ClassOutline, ...]
    functions: tuple[FunctionOutline, ...]
    names: tuple[tuple[str, str], ...]
    imports: tuple[str, ...]


def outline_of(file: FileContext) -> Outline:
    """The outline of a parsed file."""
    classes: list[ClassOutline] = []
    functions: list[FunctionOutline] = []
    for definition, prefix in _definitions(file.tree):
        if isinstance(definition, ast.ClassDef):
            classes.append(_class_outline(file, definition, prefix))
        elif not prefix and _is_differentiable(file, definition):
            functions.append(FunctionOutline(definition.name, definition.lineno, definition.end_lineno or 0))
    return Outline(
        path=file.path,
        classes=tuple(classes),
        functions=tuple(functions),
        names=tuple(sorted(file.imports.items())),
        imports=tuple(sorted(_absolute_imports(file))),
    )


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | FunctionNode, str]]:
    """Classes and functions of the module itself, also under `if` and `try`, and classes inside classes."""
    pending: list[tuple[ast.AST, str]] = [(statement, "") for statement in reversed(tree.body)]
    while pending:
        node, prefix = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node, prefix
        elif isinstance(node, ast.ClassDef):
            yield node, prefix
            inner = f"{prefix}{node.name}."
            pending.extend((child, inner) for child in reversed(node.body) if isinstance(child, ast.ClassDef))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for field in ("body", "orelse", "handlers", "finalbody"):
                pending.extend((child, prefix) for child in reversed(getattr(node, field, [])))
        elif isinstance(node, ast.ExceptHandler):
            pending.extend((child, prefix) for child in reversed(node.body))


def _class_outline(file: FileContext, node: ast.ClassDef, prefix: str) -> ClassOutline:
    methods: set[str] = set()
    abstract: set[str] = set()
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods.add(statement.name)
            decorators = {(dotted_name(d) or "").rpartition(".")[2] for d in statement.decorator_list}
            unfinished = statement.name in ("forward", "backward") and _only_raises(statement)
            if unfinished or decorators & _ABSTRACT_DECORATORS:
                abstract.add(statement.name)
        elif isinstance(statement, ast.Assign):
            methods |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    bases = tuple(name for base in node.bases if (name := _base_name(file, base)) is not None)
    metaclasses = {(dotted_name(k.value) or "").rpartition(".")[2] for k in node.keywords if k.arg == "metaclass"}
    return ClassOutline(
        qualname=prefix + node.name,
        line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        bases=bases,
        methods=frozenset(methods),
        abstract_methods=frozenset(abstract),
        declared_abstract=bool(_ABSTRACT_BASES & set(bases)) or "ABCMeta" in metaclasses,
        nested=bool(prefix),
    )


def _base_name(file: FileContext, base: ast.expr) -> str | None:
    if isinstance(base, ast.Subscript):
        # Generic[T] and friends: the class itself is what stands before the bracket.
        base = base.value
    return file.qualified_name(base) or dotted_name(base)


def _only_raises(function: FunctionNode) -> bool:
    """Whether a method consists of `raise NotImplementedError`, behind an optional docstring."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Raise) or body[0].exc is None:
        return False
    error = body[0].exc
    return dotted_name(error.func if isinstance(error, ast.Call) else error) == "NotImplementedError"


def _absolute_imports(file: FileContext) -> set[str]:
    found: set[str] = set()
    for statement in file.nodes(ast.Import):
        found |= {alias.name for alias in statement.names}
    for source in file.nodes(ast.ImportFrom):
        if source.level == 0 and source.module:
            found.add(source.module)
            found |= {f"{source.module}.{alias.name}" for alias in source.names}
    return found


# --- functions -------------------------------------------------------------------------------------------------------


def _is_differentiable(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function takes tensors, by annotation or by what it does with them, and returns a value."""
    if isinstance(function, ast.AsyncFunctionDef) or function.name.startswith("test"):
        return False
    if function.returns is not None and _annotation_names(function.returns) <= _RESULTS_WITHOUT_GRADIENT:
        return False
    returned = [node.value for node in file.returns_of(function) if node.value is not None]
    if not returned:
        return False
    takes = parameters(function)
    if any(p.annotation is not None and _annotation_names(p.annotation) & _TENSOR_NAMES for p in takes):
        return True
    unannotated = {p.arg for p in takes if p.annotation is None}
    return bool(unannotated) and _returns_torch_of(file, function, unannotated, returned)


def _annotation_names(annotation: ast.expr) -> frozenset[str]:
    """Every last identifier in an annotation, also inside strings: {Optional, Tensor}; "None" for None."""
    names: set[str] = set()
    pending: list[ast.AST] = [annotation]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and node.value is None:
            names.add("None")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            try:
                pending.append(ast.parse(node.value, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
        else:
            pending.extend(ast.iter_child_nodes(node))
    return frozenset(names)


def _returns_torch_of(file: FileContext, function: FunctionNode, names: set[str], returned: list[ast.expr]) -> bool:
    """Whether the result is computed by torch calls that are given one of the named parameters.

    Follows plain assignments in source order; one pass is enough for the straight-line functions this is about.
    """
    if not any(_is_torch(file, call) for call in file.nodes_in(function, ast.Call)):
        return False
    carriers: set[str] = set()
    assignments: list[ast.Assign | ast.AugAssign] = list(file.nodes_in(function, ast.Assign))
    assignments.extend(file.nodes_in(function, ast.AugAssign))
    assignments = [node for node in assignments if file.enclosing_function(node) is function]
    for node in sorted(assignments, key=lambda node: node.lineno):
        if isinstance(node, ast.Assign):
            if _computes(file, node.value, names, carriers):
                for target in node.targets:
                    carriers |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
        elif isinstance(node.target, ast.Name) and _computes(file, node.value, names, carriers):
            carriers.add(node.target.id)
    return any(_computes(file, value, names, carriers) for value in returned)


def _is_torch(file: FileContext, call: ast.Call) -> bool:
    qualified = file.qualified_name(call.func)
    return qualified is not None and qualified.startswith(("torch.", "einops."))


def _computes(file: FileContext, expression: ast.expr, names: set[str], carriers: set[str]) -> bool:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id in carriers:
            return True
        if isinstance(node, ast.Call):
            qualified = file.qualified_name(node.func)
            if qualified is None or not qualified.startswith(("torch.", "einops.")):
                continue
            given = {n.id for argument in node.args for n in ast.walk(argument) if isinstance(n, ast.Name)}
            if given & (names | carriers) and not qualified.startswith(
                ("torch.tensor", "torch.as_tensor", "torch.from_")
            ):
                return True
    return False
