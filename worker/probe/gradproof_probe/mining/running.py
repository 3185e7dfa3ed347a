"""Runs one document's examples under the recorder, statement by statement. In a child that may be killed at any time.

A statement that raises doesn't stop the later ones: those that need its result raise in turn, the others still show
calls. The code runs in modules that are registered and whose source lines can be found, as `inspect` and Dynamo want.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import inspect
import linecache
import os
import resource
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
import torch.utils.checkpoint

from gradproof_probe.harness.trial import TrialTimeoutError, time_limit
from gradproof_probe.importing import describe_error
from gradproof_probe.mining import pytest_stand_in, test_runs
from gradproof_probe.mining.examples import Block, Document
from gradproof_probe.mining.recorder import Call, Recorder
from gradproof_probe.mining.shrinking import (
    FEW_NAME,
    MORE_NAME,
    STEPS,
    More,
    few,
    has_fewer_layers,
    input_sizes_of,
    shrink,
    size_map,
    sizes_of,
)
from gradproof_probe.missing_modules import install
from gradproof_probe.offline import go_offline
from gradproof_probe.seeding import reseed

WAITING: Final = 16  # models that nothing has called yet, kept until something of their class is called
IMPORT_S: Final = 20.0
STATEMENT_S: Final = 8.0
MEMORY: Final = 4 * 2**30  # bytes on top of what is mapped already; a README's full size may want more, and is refused
CHECKPOINT_OPTIONS: Final = frozenset(
    {"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}
)
DATA_ERRORS: Final = (FileNotFoundError, ConnectionError, TimeoutError, socket.gaierror, EOFError)

Tell = Callable[[dict[str, Any]], None]


class _NotImportedError(Exception):
    """Something that the example needs can't be imported."""


def settle_in(home: Path) -> None:
    """A directory of its own, no network, no sleeping, no compiling: what an example does besides calling models."""
    home.mkdir(exist_ok=True)
    os.chdir(home)
    os.environ["TMPDIR"] = os.environ["HOME"] = str(home)
    os.environ["MPLBACKEND"] = "Agg"
    go_offline()
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    time.sleep = _no_sleep  # type: ignore[assignment]
    torch.compile = _not_compiled
    _leave_the_compiler_alone()
    with contextlib.suppress(Exception):
        torch.jit._state.disable()
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = _mapped() + MEMORY
        if hard == resource.RLIM_INFINITY or wanted < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _no_sleep(_seconds: float) -> None:
    """Examples wait for devices, servers and users; none of them is here."""


def _not_compiled(model: Any = None, **_: Any) -> Any:
    return (lambda function: function) if model is None else model


def _leave_the_compiler_alone() -> None:
    """The first optimizer and the first checkpoint import torch's compiler, three seconds each time, to evade it."""
    torch.utils.checkpoint.checkpoint = _called_plainly
    optimizer = torch.optim.Optimizer
    for name, value in list(vars(optimizer).items()):
        if inspect.isfunction(value) and inspect.unwrap(value) is not value:
            setattr(optimizer, name, inspect.unwrap(value))
    for kind in optimizer.__subclasses__():
        kind.step = _no_step


def _called_plainly(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return function(*args, **{name: value for name, value in options.items() if name not in CHECKPOINT_OPTIONS})


def _no_step(_optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
    return None if closure is None else closure()


def _mapped() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    return pages * resource.getpagesize()


def run_document(document: Document, source_root: Path, wanted: frozenset[str], *, skip: int, tell: Tell) -> None:
    """Tell `begin` before and `block` after each block from number `skip` on, and `call` lines as they happen.

    Blocks before `skip` aren't run: one of them ended an earlier process.
    """
    _Run(document, source_root, wanted, tell).run(skip)


@dataclass(frozen=True, slots=True)
class _Outcome:
    outcome: str
    detail: str = ""


class _Run:
    def __init__(self, document: Document, source_root: Path, wanted: frozenset[str], tell: Tell) -> None:
        self._document = document
        self._root = source_root
        self._tell = tell
        self._place = document.path
        self._recorder = Recorder(source_root, self._heard, wanted=wanted)
        self._only_built: list[tuple[torch.nn.Module, str]] = []

    def _heard(self, call: Call) -> None:
        self._tell({"type": "call", "place": self._place, "found_by": self._document.kind, **call.to_wire()})

    def run(self, skip: int) -> None:
        namespace: ModuleType | None = None
        parsed = [_parsed(block) for block in self._document.blocks]
        for number, (block, tree) in enumerate(zip(self._document.blocks, parsed, strict=True)):
            if number < skip:
                continue
            self._tell({"type": "begin", "block": number})
            if tree is None:
                self._say(number, _Outcome("skipped", "it isn't Python"))
                continue
            try:
                if namespace is None or self._document.separate:
                    namespace = self._namespace(block, number)
                outcome = self._shrunken(number, parsed, namespace)
                self._call_what_was_only_built(namespace, block.place)
            except _NotImportedError as error:
                outcome = _Outcome("skipped", str(error))
            self._say(number, outcome)

    def _call_what_was_only_built(self, namespace: ModuleType, place: str) -> None:
        """Many READMEs call a model once and then only show how else it can be built: call those as the first was."""
        found = [value for value in vars(namespace).values() if self._recorder.only_built(value)]
        known = {id(model) for model, _ in self._only_built}
        self._only_built += [(model, place) for model in found if id(model) not in known]
        waiting: list[tuple[torch.nn.Module, str]] = []
        for model, where in self._only_built:
            sample = self._recorder.sample(type(model))
            if sample is None:
                waiting.append((model, where))
                continue
            self._place = f"{where}, called as elsewhere in {self._document.path}"
            with contextlib.suppress(BaseException), time_limit(STATEMENT_S / 2), self._recorder.watching():
                model(*sample.positional, **sample.named)
        self._only_built = waiting[-WAITING:]

    def _shrunken(self, number: int, parsed: Sequence[ast.Module | None], namespace: ModuleType) -> _Outcome:
        """The block at its smallest; if it raises, less small, together with the blocks whose names it uses."""
        chain = [number] if self._document.separate else _needed(number, parsed, imports=True)
        related = [number] if self._document.separate else _related(number, parsed)
        trees = [tree for index in related if (tree := parsed[index]) is not None]
        sizes, of_inputs = sizes_of(*trees), input_sizes_of(*trees)
        mapping = size_map(sizes, STEPS[0][0])
        outcome = self._block(number, mapping, STEPS[0][0], namespace)
        if self._document.kind == "test":
            return outcome
        tried = [(mapping, has_fewer_layers(STEPS[0][0]))]
        for strength, with_inputs in STEPS[1:]:
            if outcome.outcome != "raised":
                break
            mapping = size_map(sizes, strength, kept=() if with_inputs else of_inputs)
            if (mapping, has_fewer_layers(strength)) in tried:
                continue
            tried.append((mapping, has_fewer_layers(strength)))
            self._tell({"type": "begin", "block": number})
            retried = self._namespace(self._document.blocks[number], number)
            for index in chain:
                outcome = self._block(index, mapping, strength, retried)
            if not self._document.blocks[number].module:
                # Several examples in full size don't fit into memory: their names go with them.
                retried.__dict__.clear()
                gc.collect()
        return outcome

    def _say(self, number: int, outcome: _Outcome) -> None:
        self._tell({"type": "block", "block": number, "outcome": outcome.outcome, "detail": outcome.detail[:500]})

    def _namespace(self, block: Block, number: int) -> ModuleType:
        """A module for examples of its own, or with the names of the module in whose docstring they stand."""
        name = f"gradproof_example_{number}"
        module = ModuleType(name, "An example, run by Gradproof.")
        if block.module:
            own = self._imported(block.module)
            if self._document.kind == "main":
                own.__dict__.update(_helpers())
                return own
            module.__dict__.update({key: value for key, value in vars(own).items() if not key.startswith("__")})
        elif self._document.kind != "main":
            module.__dict__.update({"torch": torch, "nn": torch.nn, "F": torch.nn.functional})
        if self._document.kind == "main":
            directory = str((self._root / self._document.path).parent)
            sys.path.insert(0, directory)
            module.__name__ = "__main__"
        module.__dict__.update(_helpers())
        sys.modules[name] = module
        return module

    def _imported(self, name: str) -> ModuleType:
        while True:
            try:
                return importlib.import_module(name)
            except BaseException as error:
                if not self._stands_in(error):
                    raise _NotImportedError(describe_error(error)) from error

    def _stands_in(self, error: BaseException) -> bool:
        """Whether a module that is missing, and that the package itself asks for, is one with a stand-in from now on.

        The rest of the package can be imported then. An example's own imports stay missing.
        """
        if not isinstance(error, ModuleNotFoundError) or not error.name:
            return False
        top = error.name.partition(".")[0]
        if not top or top in sys.stdlib_module_names or not self._asked_by_source(error):
            return False
        try:
            found = top in sys.modules or importlib.util.find_spec(top) is not None
        except (ImportError, ValueError):
            found = True
        if not found:
            install([top])
        return not found

    def _block(self, number: int, mapping: dict[int, int], strength: int, module: ModuleType) -> _Outcome:
        block = self._document.blocks[number]
        tree = shrink(block.source, mapping, strength=strength)
        if self._document.kind == "test":
            return self._test_file(tree)
        filename = f"<gradproof example {block.place}>"
        _show_lines(filename, block.source)
        sys.argv = [self._document.path]
        first: BaseException | None = None
        for statement in _statements(tree):
            self._place = self._statement_place(block, statement)
            error = self._statement(statement, filename, module)
            first = error if first is None else first
        return _outcome(first)

    def _statement_place(self, block: Block, statement: ast.stmt) -> str:
        if self._document.kind in ("notebook", "main"):
            return block.place
        return f"{self._document.path}:{statement.lineno + block.line - 1}"

    def _statement(self, statement: ast.stmt, filename: str, module: ModuleType) -> BaseException | None:
        for _ in range(8):
            reseed(0)
            try:
                code = compile(ast.Module([statement], []), filename, "exec", dont_inherit=True)
                with time_limit(STATEMENT_S), self._watching(statement):
                    exec(code, module.__dict__)  # noqa: S102 - in the sandbox, as its author wrote it
            except (KeyboardInterrupt, SystemExit):
                return None
            except BaseException as error:
                if self._stands_in(error):
                    continue
                return error
            return None
        return None

    def _watching(self, statement: ast.stmt) -> AbstractContextManager[None]:
        """Imports run unwatched: they call no target, and torch's compiler alone is two million frames."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return contextlib.nullcontext()
        return self._recorder.watching()

    def _asked_by_source(self, error: BaseException) -> bool:
        traceback, last = error.__traceback__, ""
        while traceback is not None:
            name = traceback.tb_frame.f_code.co_filename
            if not name.startswith("<frozen"):
                last = name
            traceback = traceback.tb_next
        return last.startswith(str(self._root))

    def _test_file(self, tree: ast.Module) -> _Outcome:
        pytest_stand_in.install()
        path = self._root / self._document.path
        for directory in (path.parent, self._root):
            sys.path.insert(0, str(directory))
        module = ModuleType(f"gradproof_example_{path.stem}", "Tests, run by Gradproof.")
        module.__file__ = str(path)
        module.__package__ = _package_of(path, self._root)
        module.__dict__.update(_helpers())
        sys.modules[module.__name__] = module
        for statement in _statements(tree):
            error = self._statement(statement, str(path), module)
            if error is not None and isinstance(statement, ast.Import | ast.ImportFrom):
                return _Outcome("skipped", f"needs another package: {describe_error(error)}")
        ran = raised = 0
        detail = ""
        for test in test_runs.tests_of(module):
            self._place = f"{self._document.path}:{test.line}"
            reseed(0)
            try:
                with time_limit(STATEMENT_S / 2), self._recorder.watching():
                    test.run()
                ran += 1
            except BaseException as error:
                raised += 1
                detail = detail or f"{test.name}: {describe_error(error)}"
        said = f"{ran} tests ran, {raised} raised{'; ' if detail else ''}{detail}"
        return _Outcome("raised" if raised and not ran else "ran", said)


def _outcome(error: BaseException | None) -> _Outcome:
    """By the first thing that was raised."""
    if error is None:
        return _Outcome("ran")
    said = describe_error(error)
    if isinstance(error, TrialTimeoutError):
        return _Outcome("timed_out", said)
    if isinstance(error, DATA_ERRORS):
        return _Outcome("skipped", f"needs data or a network: {said}")
    if isinstance(error, ImportError):
        return _Outcome("skipped", f"needs another package: {said}")
    return _Outcome("raised", said)


def _needed(number: int, parsed: Sequence[ast.Module | None], *, imports: bool) -> list[int]:
    """The block and, before it, the earlier ones that bind names it uses and doesn't bind itself."""
    chain, wanted = [number], _names(parsed[number], imports=imports)[1]
    for earlier in range(number - 1, -1, -1):
        bound, used = _names(parsed[earlier], imports=imports)
        if bound & wanted:
            chain.insert(0, earlier)
            wanted = (wanted - bound) | used
    return chain


def _related(number: int, parsed: Sequence[ast.Module | None]) -> list[int]:
    """The blocks that pass values on to each other, this one among them: a size in one is a size in all."""
    groups: list[set[int]] = []
    for index in range(len(parsed)):
        chain = set(_needed(index, parsed, imports=False))
        joined = [group for group in groups if group & chain]
        groups = [group for group in groups if not group & chain]
        groups.append(chain.union(*joined))
    return sorted(next(group for group in groups if number in group))


def _names(tree: ast.Module | None, *, imports: bool) -> tuple[set[str], set[str]]:
    """The names that the code binds (by importing too, or not), and those that it uses without binding them."""
    if tree is None:
        return set(), set()
    bound: set[str] = set()
    imported: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            imported.add((node.asname or node.name).partition(".")[0])
    return bound | (imported if imports else set()), used - bound - imported


def _helpers() -> dict[str, Any]:
    return {FEW_NAME: few, MORE_NAME: More()}


def _parsed(block: Block) -> ast.Module | None:
    try:
        return ast.parse(block.source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """One by one, also inside `if __name__ == "__main__"` and `with` blocks that only switch something off."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.dump(statement.test):
            yield from statement.body
        else:
            yield statement


def _show_lines(filename: str, source: str) -> None:
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)


def _package_of(path: Path, root: Path) -> str:
    names: list[str] = []
    directory = path.parent
    while directory != root and (directory / "__init__.py").is_file():
        names.insert(0, directory.name)
        directory = directory.parent
    return ".".join(names)


def import_first(packages: Sequence[str]) -> str | None:
    """Import what all examples need before they are forked; the name of a module that is missing for it.

    What fails here otherwise fails there again, and is said there.
    """
    for name in packages:
        try:
            with time_limit(IMPORT_S):
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing and missing not in packages:
                return missing
        except BaseException as error:
            del error
    return None
