"""What other files need to know of a file: its classes, its differentiable functions, what it imports.

Small and picklable, so that thousands of files can be outlined one by one without keeping their trees. This module
must not know other files.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from analyzer import eligibility
from analyzer.annotations import annotation_names, is_tensor_name
from analyzer.context import FileContext
from analyzer.import_effects import NO_EFFECTS, ImportEffects, effects_of
from analyzer.import_habits import Habit, habits_of
from analyzer.object_builders import builds_objects, renames_entries
from analyzer.own_attributes import NO_ATTRIBUTES, OwnAttributes, own_attributes
from analyzer.plain_records import classes_given, plain_fields
from analyzer.references import DefinitionOutline, definitions_of
from analyzer.syntax import FunctionNode, dotted_name, is_docstring, terminal_name
from analyzer.tensor_flow import CREATORS, flow_of, takes_arrays
from analyzer.training_functions import training_methods, trains
from analyzer.wanted_files import NO_FILES, WantedFiles, wanted_files

_ABSTRACT_BASES = frozenset({"abc.ABC", "typing.Protocol", "typing_extensions.Protocol"})
_ABSTRACT_DECORATORS = frozenset({"abstractmethod", "abstractproperty", "abstractclassmethod", "abstractstaticmethod"})
# Results that carry no gradient whatever the body does.
_RESULTS_WITHOUT_GRADIENT = frozenset(
    {
        *("None", "bool", "int", "str", "bytes", "NoReturn", "Callable", "dtype", "device", "Size", "Path", "Literal"),
        *("BoolTensor", "LongTensor", "IntTensor", "ByteTensor", "ndarray", "Image", "Figure", "Axes", "DataFrame"),
        *("DataLoader", "Dataset", "Generator", "Module", "ModuleList", "Sequential", "Optimizer"),
    }
)
_WHOLE_NUMBERS = frozenset({"Int", "Bool", "Integer", "Int64", "Int32", "UInt8"})
_CONTAINERS = frozenset(
    {
        *("Optional", "Union", "List", "Dict", "Tuple", "Sequence", "list", "dict", "tuple", "Iterator", "Iterable"),
        *("Set", "set", "frozenset", "Mapping", "Annotated"),
    }
)
_ARRAYS = frozenset({"ndarray", "Image", "DataFrame", "DataLoader", "Dataset"})
_MODULES = frozenset({"Module", "ModuleList", "Sequential"})
_RESULTS = (
    (_MODULES, eligibility.FACTORY),
    (_ARRAYS, eligibility.DATA_CODE),
    (frozenset({"Optimizer"}), eligibility.OPTIMIZER),
)
_NOT_CALLED_BY_USERS = frozenset({"overload", "fixture", "command", "group", "contextmanager", "singledispatch"})
_DYNAMIC_IMPORTS = frozenset({"import_module", "__import__", "iter_modules", "walk_packages", "exec_module"})
_DRAWING = frozenset({"uniform_", "normal_", "trunc_normal_"})
_GRAD_OFF = frozenset({"no_grad", "inference_mode"})
_LAYER_HOMES: Final = ("torch.nn.", "torch.nn.parameter.")


@dataclass(frozen=True, slots=True)
class ClassOutline:
    """A class as others see it. `bases` are dotted names: `.x` is relative to the module, no dot is of this file.

    `unfinished` are methods that only raise NotImplementedError, `handed_on` those that only call the same method of
    the base; `builds_layers`: it has a forward and keeps layers or parameters of torch, as a module does; `why_not` is
    what its own forward says against a gradient; `fields` are the classes of a record's fields.
    """

    qualname: str
    line: int
    end_line: int
    bases: tuple[str, ...]
    methods: frozenset[str]
    abstract_methods: frozenset[str]
    declared_abstract: bool
    nested: bool
    unfinished: frozenset[str] = frozenset()
    builds_layers: bool = False
    why_not: str = ""
    handed_on: frozenset[str] = frozenset()
    attributes: OwnAttributes = NO_ATTRIBUTES
    files: WantedFiles = NO_FILES
    fields: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class FunctionOutline:
    """A function that others can call as `name` (`f`, or `Class.f` for a method).

    `takes`: it is given tensors for sure. If it is not, `through` are the dotted names of what it hands its parameters
    to, and `makes` those of what it returns calls of. `why_not` says why its result has no gradient; `gives` are the
    classes that the annotation of its result names. `trains`: it is run for what it does, whatever it returns.
    """

    name: str
    line: int
    end_line: int
    takes: bool = True
    through: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    why_not: str = ""
    gives: tuple[str, ...] = ()
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Outline:
    """One file.

    `loads` are the dotted names that it imports anywhere, relative ones with their dots, `spelled` those of them that
    it goes on to spell out from their beginning (`import a.b`); `dynamic`: it also imports by names that are computed.
    """

    path: str
    classes: tuple[ClassOutline, ...]
    functions: tuple[FunctionOutline, ...]
    names: tuple[tuple[str, str], ...]
    imports: tuple[str, ...]
    definitions: tuple[DefinitionOutline, ...] = ()
    loads: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()
    effects: ImportEffects = NO_EFFECTS
    dynamic: bool = False
    digest: str = ""
    habits: tuple[Habit, ...] = ()


def outline_of(file: FileContext) -> Outline:
    """The outline of a parsed file."""
    classes: list[ClassOutline] = []
    functions: list[FunctionOutline] = []
    for definition, prefix in _definitions(file.tree):
        if isinstance(definition, ast.ClassDef):
            classes.append(_class_outline(file, definition, prefix))
            functions.extend(_functions_of_class(file, definition, prefix))
        elif not prefix:
            function = _function_outline(file, definition, definition.name)
            if function is not None:
                functions.append(function)
    return Outline(
        path=file.path,
        classes=tuple(classes),
        functions=tuple(functions),
        names=tuple(sorted(file.imports.items())),
        imports=tuple(sorted(_absolute_imports(file))),
        definitions=definitions_of(file),
        loads=tuple(sorted(_loads(file))),
        spelled=tuple(sorted(_spelled(file))),
        effects=effects_of(file.tree, dict(file.imports)),
        dynamic=bool(file.calls(*_DYNAMIC_IMPORTS)),
        digest=hashlib.sha256(file.text.encode("utf-8", "surrogatepass")).hexdigest(),
        habits=habits_of(file),
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
    unfinished: set[str] = set()
    handed_on: set[str] = set()
    forward: FunctionNode | None = None
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods.add(statement.name)
            decorators = {(dotted_name(d) or "").rpartition(".")[2] for d in statement.decorator_list}
            if _only_hands_on(statement):
                handed_on.add(statement.name)
            raises = _only_raises(statement)
            if raises:
                unfinished.add(statement.name)
            if (raises and statement.name in ("forward", "backward")) or decorators & _ABSTRACT_DECORATORS:
                abstract.add(statement.name)
            elif statement.name == "forward":
                forward = statement
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
        unfinished=frozenset(unfinished),
        builds_layers=forward is not None and _builds_layers(file, node),
        why_not=_against_forward(file, forward) if forward is not None and bases else "",
        handed_on=frozenset(handed_on),
        attributes=own_attributes(file, node) if bases else NO_ATTRIBUTES,
        files=wanted_files(file, node) if bases else NO_FILES,
        fields=plain_fields(node),
    )


def _builds_layers(file: FileContext, node: ast.ClassDef) -> bool:
    """Whether a class keeps something of `torch.nn` on itself."""
    for assignment in file.nodes_in(node, ast.Assign):
        target, value = assignment.targets[0], assignment.value
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
            qualified = file.qualified_name(value.func) or ""
            if qualified.startswith(_LAYER_HOMES) and qualified.rpartition(".")[2][:1].isupper():
                return True
    return False


def _against_forward(file: FileContext, forward: FunctionNode) -> str:
    """Why a forward gives nothing with a gradient, as far as its own code shows; "" when it may."""
    if not any(node.value is not None for node in file.returns_of(forward)):
        if file.nodes_in(forward, ast.Yield, ast.Raise):
            return ""
        body = [statement for statement in forward.body if not is_docstring(statement)]
        unwritten = all(isinstance(statement, ast.Pass) for statement in body)
        return eligibility.ABSTRACT if unwritten else eligibility.NO_TENSOR
    # What ends in an index or a truth value is run all the same: it may fail when compiled, or on another device.
    return _against_result(forward) if forward.returns is not None and takes_arrays(forward) else ""


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


def _only_hands_on(function: FunctionNode) -> bool:
    """Whether a method consists of `return super().same_name(…)`, behind an optional docstring."""
    body = [statement for statement in function.body if not is_docstring(statement)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.Call):
        return False
    called = body[0].value.func
    return (
        isinstance(called, ast.Attribute)
        and called.attr == function.name
        and isinstance(called.value, ast.Call)
        and terminal_name(called.value.func) == "super"
    )


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


def _loads(file: FileContext) -> set[str]:
    found: set[str] = set()
    for statement in file.nodes(ast.Import):
        found |= {alias.name for alias in statement.names}
    for source in file.nodes(ast.ImportFrom):
        prefix = "." * source.level + (source.module or "")
        separator = "" if prefix.endswith(".") else "."
        found.add(prefix)
        found |= {f"{prefix}{separator}{alias.name}" for alias in source.names if alias.name != "*"}
    return found


def _spelled(file: FileContext) -> set[str]:
    """Modules that are used by their whole names, and with them whatever the packages around them hold."""
    return {
        alias.name
        for statement in file.nodes(ast.Import)
        for alias in statement.names
        if alias.asname is None and "." in alias.name
    }


def _functions_of_class(file: FileContext, node: ast.ClassDef, prefix: str) -> Iterator[FunctionOutline]:
    """Of public classes, public static methods that take tensors, as losses are kept together, and those that train."""
    if prefix or node.name.startswith("_"):
        return
    for method in training_methods(file, node):
        yield _training_outline(method, f"{node.name}.{method.name}")
    for statement in node.body:
        if not isinstance(statement, ast.FunctionDef) or statement.name in ("forward", "backward", "setup_context"):
            continue
        decorators = [dotted_name(decorator) for decorator in statement.decorator_list]
        if decorators == ["staticmethod"] and not statement.name.startswith("_"):
            function = _function_outline(file, statement, f"{node.name}.{statement.name}")
            if function is not None and (function.trains or (function.takes and not function.why_not)):
                yield function


def _training_outline(function: FunctionNode, name: str) -> FunctionOutline:
    end = function.end_lineno or 0
    return FunctionOutline(name=name, line=function.lineno, end_line=end, takes=False, trains=True)


def _function_outline(file: FileContext, function: FunctionNode, name: str) -> FunctionOutline | None:
    """A function that takes tensors, by annotation or by what it does with them, or may do so through its helpers; or
    that trains."""
    if isinstance(function, ast.AsyncFunctionDef) or function.name.startswith(("_", "test")):
        return None
    decorators = {terminal_name(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list}
    if decorators & _NOT_CALLED_BY_USERS or function.name == "main":
        return None
    found = _differentiable_outline(file, function, name, decorators)
    if not trains(file, function):
        return found
    return replace(found, trains=True) if found is not None else _training_outline(function, name)


def _differentiable_outline(
    file: FileContext, function: FunctionNode, name: str, decorators: set[str | None]
) -> FunctionOutline | None:
    returned = [node.value for node in file.returns_of(function) if node.value is not None]
    flow = flow_of(file, function)
    why_not = ""
    makes: tuple[str, ...] = ()
    if not flow.takes:
        makes = _made(file, function, returned)
        if not makes and not (flow.through and flow.carries):
            return None
    elif not returned:
        if file.nodes_in(function, ast.Yield, ast.YieldFrom):
            return None
        why_not = _initialises(file, function) or eligibility.NO_TENSOR
    else:
        why_not = _against_result(function)
        if not why_not and renames_entries(file, function):
            why_not = eligibility.DATA_CODE
        if not why_not and not flow.carries and not eligibility.is_loss(function.name):
            by_name = _initialises(file, function) or eligibility.by_name_of_function(function.name)
            why_not = by_name or (eligibility.DATA_CODE if flow.arrays else eligibility.NO_GRADIENT)
        if not why_not:
            why_not = _by_design(file, function, returned, decorators)
    if not why_not and returned and builds_objects(file, function):
        why_not = eligibility.by_name_of_function(function.name) or eligibility.FACTORY
    return FunctionOutline(
        name=name,
        line=function.lineno,
        end_line=function.end_lineno or 0,
        takes=flow.takes,
        through=flow.through,
        makes=makes,
        why_not=why_not,
        gives=classes_given(function),
    )


def _against_result(function: FunctionNode) -> str:
    """Why the annotation of the result rules a gradient out."""
    names = annotation_names(function.returns) - _CONTAINERS if function.returns is not None else frozenset[str]()
    if names & _WHOLE_NUMBERS and not names & {"Float", "Float32", "Float64"}:
        return eligibility.NO_GRADIENT
    if not names or not names <= _RESULTS_WITHOUT_GRADIENT:
        return ""
    for kinds, reason in _RESULTS:
        if names & kinds:
            return reason
    return eligibility.NO_GRADIENT if any(map(is_tensor_name, names)) else eligibility.NO_TENSOR


def _by_design(file: FileContext, function: FunctionNode, returned: list[ast.expr], decorators: set[str | None]) -> str:
    """Why a function whose result could carry a gradient is not meant to have one."""
    if decorators & _GRAD_OFF:
        return _initialises(file, function) or eligibility.NO_GRADIENT
    inner = {node.name for node in file.nodes_in(function, ast.FunctionDef)}
    if all(isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in inner) for value in returned):
        return eligibility.FACTORY
    return _initialises(file, function) or eligibility.by_name_of_function(function.name)


def _initialises(file: FileContext, function: FunctionNode) -> str:
    """Whether a function gives parameters their first values."""
    drawn = False
    for call in file.nodes_in(function, ast.Call):
        name = terminal_name(call.func)
        if name is None or not name.endswith("_"):
            continue
        if (file.qualified_name(call.func) or "").startswith("torch.nn.init."):
            return eligibility.INITIALISER
        drawn = drawn or name in _DRAWING
    return eligibility.INITIALISER if drawn and function.name.endswith("_") else ""


def _made(file: FileContext, function: FunctionNode, returned: list[ast.expr]) -> tuple[str, ...]:
    """What all results of a function are calls of: the classes, for one that builds modules."""
    if function.returns is not None and annotation_names(function.returns) & _MODULES:
        return ("torch.nn.Module",)
    if not returned:
        return ()
    values: dict[str, ast.expr] = {}
    for assignment in file.nodes_in(function, ast.Assign):
        for target in assignment.targets:
            if isinstance(target, ast.Name):
                values.setdefault(target.id, assignment.value)
    made: list[str] = []
    for value in returned:
        source = values.get(value.id, value) if isinstance(value, ast.Name) else value
        if not isinstance(source, ast.Call):
            return ()
        name = file.qualified_name(source.func) or dotted_name(source.func)
        if name is None or name.rpartition(".")[2] in CREATORS:
            return ()
        made.append(name)
    return tuple(dict.fromkeys(made))
