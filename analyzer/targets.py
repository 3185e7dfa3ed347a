"""Which things of a snapshot can be run: modules, autograd Functions, functions that are differentiable or train.

Classes are resolved through imports and base classes across the files of the snapshot. What looks like one of these
and has no gradient to look at is declared as well, with the reason. This module must not know rules, and must not
decide whether a target will run: that is for the probe to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

from analyzer import eligibility
from analyzer.context import AUTOGRAD_FUNCTION_NAMES
from analyzer.findings import TargetDeclaration, TargetKind
from analyzer.options import DEFAULT_OPTIONS
from analyzer.outline import ClassOutline, FunctionOutline, Outline
from analyzer.outline_reading import read_outline
from analyzer.snapshot import Place, SnapshotOutline
from analyzer.wanted_files import NO_FILES, handed_on

_NO_TARGETS_IN_DIRECTORIES = frozenset({"test", "tests", "testing", "doc", "docs"})
_NO_TARGETS_IN_FILES = frozenset({"setup.py", "conftest.py", "noxfile.py", "__main__.py"})
# Names of torch.nn that look like module classes and are none.
_NOT_MODULES = frozenset(
    {"Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer", "ParameterList", "ParameterDict"}
)
# Module bases of other packages, by their last name: nobody calls anything else so.
_FOREIGN_MODULES = frozenset({"LightningModule", "PreTrainedModel"})
# These classes of torch.nn have no forward of their own; all other classes have one.
_WITHOUT_FORWARD = frozenset(
    {"torch.nn.Module", "torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.modules.Module"}
)
# Their own forward, if they have one, only says that there is none; other classes of other packages may have one.
_TEMPLATES = frozenset({"LightningModule", "PreTrainedModel"})
# Bases that give an object no attribute that a forward would read.
_BARE_BASES = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module", "object"})
_BARE_HOMES = frozenset({"abc", "typing", "typing_extensions"})
# What every module has; that a class has its own `parameters` doesn't mean that its base has none.
_OF_EVERY_MODULE = frozenset(
    {
        *("training", "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
        *("children", "named_children", "state_dict", "load_state_dict", "train", "eval", "to", "to_empty", "apply"),
        *("register_buffer", "register_parameter", "register_module", "add_module", "get_submodule", "get_parameter"),
        *("get_buffer", "set_submodule", "requires_grad_", "zero_grad", "type", "float", "double", "half", "bfloat16"),
        *("cpu", "cuda", "xpu", "ipu", "mtia", "compile", "extra_repr", "share_memory", "forward", "super"),
        *("get_extra_state", "set_extra_state", "call_super_init", "dump_patches", "T_destination"),
    }
)
_MUST_BE_WRITTEN = frozenset({"forward", "backward"})
# A function that reaches a differentiable one through more helpers than this is not found out.
_MOST_ROUNDS: Final = 5
# Records of records of records are looked into; deeper ones, and those that hold themselves, may hold anything.
_MOST_RECORDS: Final = 3


def declare_targets(root: Path, paths: Sequence[str]) -> tuple[TargetDeclaration, ...]:
    """Reads the files and declares what can be run, in the order of path and line. Unreadable files yield nothing."""
    outlines = [
        outline
        for path in sorted(set(paths))
        if (outline := read_outline(root, path, max_bytes=DEFAULT_OPTIONS.max_bytes)) is not None
    ]
    return targets_of(SnapshotOutline(outlines, paths))


def targets_of(snapshot: SnapshotOutline, within: Set[str] | None = None) -> tuple[TargetDeclaration, ...]:
    """The targets of a snapshot, those that are not eligible among them; `within` these files only."""
    return _Targets(snapshot).declared(within)


class _Targets:
    def __init__(self, snapshot: SnapshotOutline) -> None:
        self._snapshot = snapshot

    def declared(self, within: Set[str] | None) -> tuple[TargetDeclaration, ...]:
        # Of several definitions of one name the last one holds.
        found: dict[str, TargetDeclaration] = {}
        for outline in self._snapshot.outlines:
            if not may_hold_targets(outline.path) or (within is not None and outline.path not in within):
                continue
            for item in outline.classes:
                kind, why_not = self._class(outline, item)
                if kind is not None:
                    target = self._declare(outline, kind, item, why_not)
                    found[target.name] = target
            for function in outline.functions:
                why = self._function(outline, function)
                if why is not None:
                    target = self._declare(outline, TargetKind.FUNCTION, function, why)
                    found[target.name] = target
        return tuple(sorted(found.values(), key=lambda target: (target.path, target.line)))

    def _declare(
        self, outline: Outline, kind: TargetKind, item: ClassOutline | FunctionOutline, why_not: str
    ) -> TargetDeclaration:
        qualname = item.qualname if isinstance(item, ClassOutline) else item.name
        root, module = self._snapshot.located(outline)
        return TargetDeclaration(
            name=f"{module}:{qualname}",
            kind=kind,
            path=outline.path,
            line=item.line,
            end_line=item.end_line,
            import_root=root,
            module=module,
            qualname=qualname,
            why_not=why_not,
        )

    # --- classes -----------------------------------------------------------------------------------------------

    def _class(self, outline: Outline, item: ClassOutline) -> tuple[TargetKind | None, str]:
        lineage = self._snapshot.lineage((outline, item))
        outside = self._snapshot.outside_bases(lineage)
        public = not item.nested and not item.qualname.startswith("_")
        if outside & AUTOGRAD_FUNCTION_NAMES:
            # Functions are often private but matter all the same; a base without a forward is for others to fill.
            if {"forward", "backward"} <= _defined(lineage):
                return TargetKind.AUTOGRAD_FUNCTION, ""
            return (TargetKind.AUTOGRAD_FUNCTION if public else None), eligibility.ABSTRACT
        if not public:
            return None, ""
        if any(map(_is_module_class, outside)) or (outside and any(cls.builds_layers for _, cls in lineage)):
            return TargetKind.MODULE, self._against_module(item, lineage, outside)
        why_not = next(filter(None, map(_kind_of_tool, outside)), "")
        return (TargetKind.MODULE, why_not) if why_not else (None, "")

    def _against_module(self, item: ClassOutline, lineage: list[Place], outside: set[str]) -> str:
        """Why there is no gradient to look at; "" for a module that is to be run."""
        defined = _defined(lineage)
        if {"update", "compute"} <= defined or any(name.rpartition(".")[2] == "Metric" for name in outside):
            return eligibility.METRIC
        if self._is_template(item, lineage, outside):
            return eligibility.ABSTRACT
        if not _has_forward(lineage, outside):
            return eligibility.NO_FORWARD
        if self._needs_files(lineage):
            return eligibility.NEEDS_FILES
        by_name = next(filter(None, (eligibility.by_name_of_class(cls.qualname) for _, cls in lineage)), "")
        if by_name:
            return by_name
        return next((cls.why_not for _, cls in lineage if "forward" in cls.methods), "")

    def _is_template(self, item: ClassOutline, lineage: list[Place], outside: set[str]) -> bool:
        """Whether a class is not meant to be used by itself: other classes derive from it and complete it."""
        if item.declared_abstract or _abstract_methods(lineage):
            return True
        return self._left_to_others(item, lineage) or self._lacks_attributes(item, lineage, outside)

    def _left_to_others(self, item: ClassOutline, lineage: list[Place]) -> bool:
        """Whether forward calls a method that only raises, and that classes derived from this one define."""
        place = next((place for place in lineage if "forward" in place[1].methods), None)
        if place is None or not (holes := place[1].unfinished & self._further_methods.get(id(item), set())):
            return False
        nearer = {method for _, item in lineage[: lineage.index(place)] for method in item.methods}
        called: set[str] = set()
        pending = ["forward"]
        while pending:
            name = pending.pop()
            if name in called or name in nearer or name not in place[1].methods:
                continue
            called.add(name)
            definition = self._snapshot.definition(place, name)
            if definition is not None:
                pending.extend(definition.own)
        return bool(called & holes)

    def _lacks_attributes(self, item: ClassOutline, lineage: list[Place], outside: set[str]) -> bool:
        """Whether forward reads attributes that only classes derived from this one set."""
        further = self._further_attributes.get(id(item))
        if not further or any(ancestor.attributes.is_open for _, ancestor in lineage):
            return False
        if not all(map(_is_bare, outside)):
            return False
        kept = set[str]().union(*(ancestor.attributes.kept for _, ancestor in lineage))
        return bool((self._read_by_forward(lineage) & further) - kept - _OF_EVERY_MODULE)

    def _needs_files(self, lineage: list[Place]) -> bool:
        """Whether no object of a class can be made without a file or a download, its own constructor or a base's."""
        base, wanted, loads = NO_FILES, frozenset[str](), False
        for outline, item in reversed(lineage):
            if "__init__" not in item.methods:
                continue
            files = item.files
            elsewhere = [n for n in files.downloads if self._snapshot.find_class(outline, n.rpartition(".")[0]) is None]
            loads = bool(elsewhere) or (loads and files.calls_base)
            wanted = files.paths | (handed_on(files, base, wanted) if files.calls_base else frozenset())
            base = files
        return loads or bool(wanted)

    def _read_by_forward(self, lineage: list[Place]) -> set[str]:
        """The attributes of `self` that forward, and the methods of its own that it calls, refer to."""
        read: set[str] = set()
        pending = ["forward"]
        while pending:
            name = pending.pop()
            place = next((place for place in lineage if name in place[1].methods), None)
            definition = self._snapshot.definition(place, name) if place is not None else None
            new = set(definition.own) - read if definition is not None else set[str]()
            read |= new
            pending.extend(new)
        return read

    @cached_property
    def _further_attributes(self) -> dict[int, set[str]]:
        """By class: the attributes that classes derived from it set."""
        table: dict[int, set[str]] = {}
        for outline in self._snapshot.outlines:
            for item in outline.classes:
                for _, ancestor in self._snapshot.lineage((outline, item))[1:]:
                    table.setdefault(id(ancestor), set()).update(item.attributes.kept)
        return table

    @cached_property
    def _further_methods(self) -> dict[int, set[str]]:
        """By class: the methods that classes derived from it define."""
        table: dict[int, set[str]] = {}
        for outline in self._snapshot.outlines:
            for item in outline.classes:
                for _, ancestor in self._snapshot.lineage((outline, item))[1:]:
                    if ancestor.unfinished:
                        table.setdefault(id(ancestor), set()).update(item.methods)
        return table

    # --- functions ---------------------------------------------------------------------------------------------

    def _function(self, outline: Outline, function: FunctionOutline) -> str | None:
        """Why a function is not to be run, "" if it is; None for what is no target at all."""
        if function.trains:
            return ""
        if function.takes:
            plain = bool(function.gives) and all(self._is_plain(outline, name) for name in function.gives)
            return function.why_not or (eligibility.NO_TENSOR if plain else "")
        if id(function) in self._differentiable:
            return function.why_not or eligibility.by_name_of_function(function.name)
        made = [self._is_module(outline, name) for name in function.makes]
        return eligibility.FACTORY if made and all(made) else None

    def _is_plain(self, outline: Outline, name: str, depth: int = 0) -> bool:
        """Whether objects of a class of the snapshot hold no tensor, by what their fields are said to be."""
        place = self._snapshot.find_class(outline, name)
        if place is None or place[1].fields is None or depth > _MOST_RECORDS:
            return False
        return all(self._is_plain(place[0], field, depth + 1) for field in place[1].fields)

    def _is_module(self, outline: Outline, name: str) -> bool:
        place = self._snapshot.find_class(outline, name)
        if place is None:
            return _is_module_class(self._snapshot.absolute(outline, name))
        return any(map(_is_module_class, self._snapshot.outside_bases(self._snapshot.lineage(place))))

    @cached_property
    def _differentiable(self) -> set[int]:
        """Functions that are differentiable because they hand their parameters to one that is, or to a module."""
        waiting = [
            (outline, function)
            for outline in self._snapshot.outlines
            for function in outline.functions
            if function.through and not function.takes
        ]
        found: set[int] = set()
        for _ in range(_MOST_ROUNDS):
            new = [
                function
                for outline, function in waiting
                if id(function) not in found and any(self._leads_on(outline, name, found) for name in function.through)
            ]
            if not new:
                break
            found |= {id(function) for function in new}
        return found

    def _leads_on(self, outline: Outline, name: str, found: set[int]) -> bool:
        helper = self._snapshot.find_function(outline, name)
        if helper is None:
            return False
        return id(helper[1]) in found or (helper[1].takes and not helper[1].why_not)


def _defined(lineage: Iterable[Place]) -> set[str]:
    return {method for _, item in lineage for method in item.methods}


def _has_forward(lineage: Sequence[Place], outside: set[str]) -> bool:
    """Whether there is a forward that does something: one that only calls its base's is as good as that one."""
    if any({"forward", "__call__"} & item.methods - item.handed_on for _, item in lineage):
        return True
    modules = {name for name in outside if _is_module_class(name)}
    templates = {name for name in modules if name.rpartition(".")[2] in _TEMPLATES}
    # A forward may also come from a class that is mixed in.
    mixed_in = {name for name in outside - modules if not name.endswith("Mixin") and not _is_bare(name)}
    return bool(modules - templates - _WITHOUT_FORWARD) or bool(templates and mixed_in)


def _is_bare(base: str) -> bool:
    return base in _BARE_BASES or base.partition(".")[0] in _BARE_HOMES


def _abstract_methods(lineage: Sequence[Place]) -> set[str]:
    """Methods that are abstract somewhere and that no class nearer fills in.

    Python refuses to build a class for those of its ancestors only where one of them says that it is abstract.
    """
    concrete: set[str] = set()
    missing: set[str] = set()
    enforced = any(item.declared_abstract for _, item in lineage)
    for number, (_, item) in enumerate(lineage):
        counted = item.abstract_methods if enforced or number == 0 else item.abstract_methods & _MUST_BE_WRITTEN
        missing |= counted - concrete
        concrete |= item.methods - item.abstract_methods
    return missing


def _is_module_class(name: str) -> bool:
    last = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith("torch.nn.functional."):
        return last[:1].isupper() and last not in _NOT_MODULES
    return last in _FOREIGN_MODULES


def _kind_of_tool(base: str) -> str:
    """What a class that is no module is for, by a base outside of the snapshot."""
    if base.startswith("torch.utils.data.") or base.rpartition(".")[2] == "LightningDataModule":
        return eligibility.DATA_CODE
    if base.startswith("torch.optim."):
        return eligibility.OPTIMIZER
    return eligibility.METRIC if base == "torchmetrics.Metric" or base.endswith(".metric.Metric") else ""


def may_hold_targets(path: str) -> bool:
    """Whether a file is part of what a repository offers, and neither its tests nor its documentation."""
    file = PurePosixPath(path)
    if file.name in _NO_TARGETS_IN_FILES or file.stem.startswith("test_") or file.stem.endswith("_test"):
        return False
    return not any(part in _NO_TARGETS_IN_DIRECTORIES for part in file.parent.parts)
