"""Whether every construction of a class reads a file that it is told, or downloads something.

Only what happens on every way through a constructor counts: a file that is read under a condition can be left out.
Text files don't count either, a repository mostly has some that fit. What says "yes" here is never run, so in doubt it
says nothing, and the probe finds out. This module must not know other files or base classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from analyzer.context import FileContext
from analyzer.syntax import FunctionNode, terminal_name

_LOADERS: Final = frozenset(
    {
        *("numpy.load", "torch.load", "torch.jit.load", "joblib.load", "scipy.io.loadmat", "onnx.load"),
        *("safetensors.torch.load_file", "trimesh.load", "pandas.read_pickle"),
    }
)
_DOWNLOADS: Final = frozenset(
    {
        *("huggingface_hub.hf_hub_download", "huggingface_hub.snapshot_download", "torch.hub.load"),
        *("torch.hub.load_state_dict_from_url", "torch.hub.download_url_to_file", "gdown.download"),
    }
)
_OFFLINE: Final = frozenset({"source", "config", "local_files_only", "state_dict"})
_NAMES_OF_MODELS: Final = ("pretrained_model_name_or_path", "repo_id", "repo_or_dir", "url")
_QUESTIONS: Final = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir"})
_READS: Final = frozenset({"read_bytes"})
# What a path is made of other paths with.
_MAKES_PATHS: Final = frozenset(
    {"join", "Path", "PurePath", "str", "fspath", "abspath", "expanduser", "realpath", "normpath", "format", "resolve"}
)
# A helper that is called by a helper is followed no further.
_MOST_HELPERS: Final = 2

# By variable: the parameters that a path is made of.
_Paths = dict[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """What a constructor needs from outside on every way through it.

    `paths` are parameters without a default that are the place of a file, `downloads` dotted names of what it loads
    something from a network with. `by_name` and `by_position` say which of its parameters it hands to the constructor
    of its base unchanged or as part of a path ("" for any other value); `rest`: its `**kwargs` or `*args` as well.
    """

    parameters: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()
    downloads: frozenset[str] = frozenset()
    calls_base: bool = False
    by_name: Mapping[str, str] = field(default_factory=dict)
    by_position: tuple[str, ...] = ()
    rest: bool = False


NO_FILES: Final = WantedFiles()


def wanted_files(file: FileContext, node: ast.ClassDef) -> WantedFiles:
    """What the constructor of a class wants; nothing for a class that has none of its own."""
    methods = {s.name: s for s in node.body if isinstance(s, ast.FunctionDef)}
    constructor = methods.get("__init__")
    if constructor is None:
        return NO_FILES
    arguments = constructor.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1:]
    without_default = positional[: len(positional) - len(arguments.defaults)]
    without_default += [
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    reading = _Reading(file, methods)
    reading.run(constructor, {name: frozenset({name}) for name in without_default})
    base = reading.base
    given = [reading.paths_in(a) for a in base.args if not isinstance(a, ast.Starred)] if base is not None else []
    named = {k.arg: reading.paths_in(k.value) for k in base.keywords if k.arg is not None} if base is not None else {}
    return WantedFiles(
        parameters=tuple(positional),
        paths=frozenset(reading.wanted),
        downloads=frozenset(reading.downloads),
        calls_base=base is not None,
        by_name={name: min(found, default="") for name, found in named.items()},
        by_position=tuple(min(found, default="") for found in given),
        rest=base is not None and _hands_rest(base, constructor),
    )


def handed_on(files: WantedFiles, base: WantedFiles, wanted: frozenset[str]) -> frozenset[str]:
    """The parameters of a constructor that are a file because its base, which it calls, wants a file there."""
    by_position = dict(zip(base.parameters, files.by_position, strict=False))
    found: set[str] = set()
    for name in wanted:
        if name in files.by_name or name in by_position:
            found.add(files.by_name.get(name) or by_position.get(name) or "")
        elif files.rest and name not in files.parameters:
            found.add(name)
    return frozenset(found - {""})


def _hands_rest(base: ast.Call, constructor: FunctionNode) -> bool:
    """`super().__init__(*args, **kwargs)` of what the constructor was given itself."""
    own = {a.arg for a in (constructor.args.vararg, constructor.args.kwarg) if a is not None}
    starred = [a.value for a in base.args if isinstance(a, ast.Starred)]
    doubled = [keyword.value for keyword in base.keywords if keyword.arg is None]
    return any(isinstance(value, ast.Name) and value.id in own for value in (*starred, *doubled))


class _Reading:
    """One walk through a constructor along what is always executed."""

    def __init__(self, file: FileContext, methods: Mapping[str, ast.FunctionDef]) -> None:
        self._file = file
        self._methods = methods
        self._paths: _Paths = {}
        self._depth = 0
        self.wanted: set[str] = set()
        self.downloads: set[str] = set()
        self.base: ast.Call | None = None

    def run(self, function: ast.FunctionDef, paths: _Paths) -> None:
        before, self._paths = self._paths, dict(paths)
        self._depth += 1
        self._block(function.body)
        self._depth -= 1
        if self._depth:
            self._paths = before

    def _block(self, body: list[ast.stmt]) -> bool:
        """Whether what comes after it is always reached as well."""
        return all(self._statement(statement) for statement in body)

    def _statement(self, statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Return, ast.Raise)):
            if isinstance(statement, ast.Return) and statement.value is not None:
                self._look(statement.value)
            return False
        if isinstance(statement, ast.If):
            return self._branches(statement)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                self._look(item.context_expr)
            return self._block(statement.body)
        if isinstance(statement, (ast.Try, ast.For, ast.While, ast.AsyncFor, ast.Match)):
            self._forget(statement)
            return not any(isinstance(node, ast.Return) for node in ast.walk(statement))
        if isinstance(statement, ast.Assert):
            self._wanted_by(statement.test)
            return True
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Delete)):
            value = getattr(statement, "value", None)
            if value is not None:
                self._look(value)
            self._bind(statement)
        return True

    def _branches(self, statement: ast.If) -> bool:
        """Of the ways that lead on, what all of them know; what a way that raises asked before is wanted."""
        raising = statement.body and isinstance(statement.body[-1], ast.Raise)
        if raising:
            self._wanted_by(statement.test)
        before = self._paths
        ways: list[_Paths] = []
        for body in (statement.body, statement.orelse):
            aside = _Reading(self._file, {})
            aside._paths = dict(before)
            if aside._block(body):
                ways.append(aside._paths)
            elif not (body and isinstance(body[-1], ast.Raise)):
                return False
        names = set.intersection(*(set(way) for way in ways)) if ways else set()
        self._paths = {name: frozenset().union(*(way[name] for way in ways)) for name in names}
        return bool(ways)

    def _forget(self, statement: ast.stmt) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._paths.pop(node.id, None)

    def _bind(self, statement: ast.stmt) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        found = self.paths_in(statement.value) if isinstance(statement, (ast.Assign, ast.AnnAssign)) else frozenset()
        for target in targets:
            name = _spelled(target) if isinstance(target, ast.expr) else None
            if name is None:
                if isinstance(target, (ast.Tuple, ast.List)):
                    self._forget(statement)
            elif found:
                self._paths[name] = found
            else:
                self._paths.pop(name, None)

    def paths_in(self, value: ast.expr | None) -> frozenset[str]:
        """The parameters that a path is made of; nothing for what is no path made of parameters."""
        if isinstance(value, (ast.Name, ast.Attribute)) and (name := _spelled(value)) is not None:
            return self._paths.get(name, frozenset())
        parts: list[ast.expr] = []
        if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Div, ast.Mod)):
            parts = [value.left, value.right]
        elif isinstance(value, ast.JoinedStr):
            parts = [part.value for part in value.values if isinstance(part, ast.FormattedValue)]
        elif isinstance(value, ast.Call) and terminal_name(value.func) in _MAKES_PATHS:
            parts = [*value.args, *([value.func.value] if isinstance(value.func, ast.Attribute) else [])]
        return frozenset[str]().union(*(self.paths_in(part) for part in parts))

    def _look(self, value: ast.expr) -> None:
        """Every call that is made whenever the expression is evaluated."""
        for call in _always_called(value):
            name = terminal_name(call.func)
            qualified = self._file.qualified_name(call.func) or ""
            first = call.args[0] if call.args else None
            if _is_base_constructor(call):
                self.base = self.base or call if self._depth == 1 else self.base
            elif qualified in _LOADERS or (isinstance(call.func, ast.Name) and call.func.id == "open"):
                if qualified in _LOADERS or _opens_binary(call):
                    self.wanted |= self.paths_in(first)
            elif name in _READS and isinstance(call.func, ast.Attribute):
                self.wanted |= self.paths_in(call.func.value)
            elif name == "from_pretrained" or qualified in _DOWNLOADS:
                self._loads_trained(call, qualified)
            elif isinstance(call.func, ast.Attribute) and _spelled(call.func.value) == "self":
                self._helper(call, self._methods.get(call.func.attr))

    def _loads_trained(self, call: ast.Call, qualified: str) -> None:
        """`AutoModel.from_pretrained(name)` of what is imported: by a name that is written there or always given."""
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        if not qualified or not _OFFLINE.isdisjoint(named):
            return
        first = call.args[0] if call.args else next((named[name] for name in _NAMES_OF_MODELS if name in named), None)
        if self.paths_in(first) or (isinstance(first, ast.Constant) and isinstance(first.value, str)):
            self.downloads.add(qualified)

    def _helper(self, call: ast.Call, method: ast.FunctionDef | None) -> None:
        if method is None or self._depth > _MOST_HELPERS or method.decorator_list or method.args.vararg:
            return
        names = [a.arg for a in (*method.args.posonlyargs, *method.args.args)][1:]
        given = {name: self.paths_in(value) for name, value in zip(names, call.args, strict=False)}
        given |= {keyword.arg: self.paths_in(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        kept = {name: found for name, found in self._paths.items() if name.startswith("self.")}
        self.run(method, kept | {name: found for name, found in given.items() if found})

    def _wanted_by(self, test: ast.expr) -> None:
        """`os.path.exists(path)`, `path.is_file()`: what is asked after, where nothing goes on without it."""
        for call in _always_called(test):
            if terminal_name(call.func) in _QUESTIONS and isinstance(call.func, ast.Attribute):
                asked = call.args[0] if call.args else call.func.value
                self.wanted |= self.paths_in(asked)


def _is_base_constructor(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "__init__":
        return False
    return isinstance(function.value, ast.Call) and terminal_name(function.value.func) == "super"


def _opens_binary(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and mode.value in ("rb", "br")


def _spelled(target: ast.expr) -> str | None:
    """`path` and `self.path`."""
    if isinstance(target, ast.Name):
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return f"self.{target.attr}"
    return None


def _always_called(value: ast.expr) -> Iterator[ast.Call]:
    pending: list[ast.AST] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            yield node
        if isinstance(node, ast.IfExp):
            pending.append(node.test)
        elif isinstance(node, ast.BoolOp):
            pending.append(node.values[0])
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            pending.extend(ast.iter_child_nodes(node))
