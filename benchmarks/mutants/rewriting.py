"""From a right Function and an edit to a wrong one: as a class with its own text, a subclass, or a closure.

A wrong backward is found by running it or by reading it. So that reading has its chance, most mutants are written to a
file as a whole class, with the wrong lines between the right ones; a quarter override the right backward in a subclass,
and a quarter are made by a function that closes over the right class, as decorators and factories make them.
"""

from __future__ import annotations

import ast
import atexit
import importlib.util
import inspect
import re
import shutil
import sys
import tempfile
import textwrap
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from benchmarks.mutants.register import Function, Right, Slip

Form = Literal["text", "subclass", "closure"]
FORMS: tuple[Form, ...] = ("text", "text", "subclass", "closure")


@dataclass(frozen=True, slots=True)
class Edit:
    """What a kind does to a Function. Each part is text; `{slot}`, `{other}`, `{saved}` and `{grad}` are filled in.

    `before`: statements at the start of backward, where `{grad}` is the gradient that it is given. `after`: statements
    before it returns the list `gradients`. `forward`: statements where forward (or `setup_context`) starts. `reads`: an
    expression in place of `ctx.saved_tensors` in backward, which it calls `{read}`. `keeps`: a statement in place of
    `ctx.save_for_backward(…)`, whose arguments it calls `{kept}`. `average`: the first sum in backward becomes a mean.
    """

    before: str = ""
    after: str = ""
    forward: str = ""
    reads: str = ""
    keeps: str = ""
    average: bool = False

    @property
    def wraps(self) -> bool:
        """Whether it can be laid around the right backward, and need not be written into it."""
        return not (self.forward or self.reads or self.keeps or self.average)


@cache
def directory() -> Path:
    """Where the texts of this run lie; removed when it ends."""
    place = Path(tempfile.mkdtemp(prefix="gradproof-mutants-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def form_of(right: Right, kind: str, edit: Edit) -> Form:
    """Always the same one for a Function and a kind."""
    return FORMS[zlib.crc32(f"{right.name} {kind}".encode()) % len(FORMS)] if edit.wraps else "text"


def with_edit(right: Right, kind: str, edit: Edit, words: dict[str, str]) -> Function:
    """The Function spoiled by this edit; `words` fill the edit's places."""
    form = form_of(right, kind, edit)
    name = _class_name(right, kind)
    if form == "text":
        return _loaded(name, _whole(right, name, edit, words))
    return _loaded(name, (_subclass if form == "subclass" else _closure)(right, name, edit, words))


def with_slip(right: Right, slip: Slip) -> Function:
    """The Function as its author would have written it, had he made this slip."""
    source = right.source()
    if source.count(slip.written) != 1:
        raise ValueError(f"{right.name}: {slip.written!r} stands {source.count(slip.written)} times in its source")
    name = _class_name(right, slip.name)
    (tree,) = ast.parse(source.replace(slip.written, slip.wrong)).body
    assert isinstance(tree, ast.ClassDef)
    tree.name = name
    return _loaded(name, f"{_surroundings(right)}\n\n{ast.unparse(tree)}\n")


def _class_name(right: Right, kind: str) -> str:
    return f"{right.name}_{re.sub(r'[^a-z0-9]+', '_', kind.lower()).strip('_')}"


def _loaded(name: str, text: str) -> Function:
    path = directory() / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    module_name = f"gradproof_mutant_{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    loaded: Function = getattr(module, name)
    return loaded


def forget(function: Any) -> None:
    """Let go of the module and of what a wrong forward keeps on its class: whole graphs, for one kind."""
    sys.modules.pop(function.__module__, None)
    if "kept" in vars(function):
        del function.kept


def _surroundings(right: Right) -> str:
    """Imports, constants and helpers of the Function's module: what its class needs to stand alone."""
    tree = ast.parse(inspect.getsource(sys.modules[right.function.__module__]))
    kept = ["import torch"]
    for node in tree.body:
        of_the_benchmark = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks")
        for_drawing = isinstance(node, ast.FunctionDef) and "draw" in ast.unparse(node.args)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) and not (of_the_benchmark or for_drawing):
            kept.append(ast.unparse(node))
    kept.sort(key=lambda text: not text.startswith("from __future__"))
    return "\n".join(dict.fromkeys(kept))


# -- a class with its own text


def _whole(right: Right, name: str, edit: Edit, words: dict[str, str]) -> str:
    (tree,) = ast.parse(right.source()).body
    assert isinstance(tree, ast.ClassDef)
    tree.name = name
    methods = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    backward = methods["backward"]
    given = [argument.arg for argument in backward.args.args[1:]]
    words = {**words, "grad": given[0], "second_grad": given[-1], "name": name}
    _Backward(edit, words).visit(backward)
    backward.body = [*_statements(edit.before, words), *backward.body]
    holder = methods.get("setup_context", methods["forward"])
    if edit.keeps:
        _Keeps(edit.keeps, words).visit(holder)
    holder.body = [*_statements(edit.forward, words), *holder.body]
    return f"{_surroundings(right)}\n\n{ast.unparse(ast.fix_missing_locations(tree))}\n"


class _Backward(ast.NodeTransformer):
    def __init__(self, edit: Edit, words: dict[str, str]) -> None:
        self._edit = edit
        self._words = words
        self._averaged = False

    def visit_Return(self, node: ast.Return) -> Any:
        self.generic_visit(node)
        if not self._edit.after or node.value is None:
            return node
        several = isinstance(node.value, ast.Tuple)
        items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        gradients = ast.Assign([ast.Name("gradients", ast.Store())], ast.List(items, ast.Load()))
        returned = ast.parse("return tuple(gradients)" if several else "return gradients[0]").body
        return [gradients, *_statements(self._edit.after, self._words), *returned]

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        self.generic_visit(node)
        if self._edit.reads and ast.unparse(node) == "ctx.saved_tensors":
            return ast.parse(self._edit.reads.format(read="ctx.saved_tensors", **self._words), mode="eval").body
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        called = node.func
        if self._edit.average and not self._averaged and isinstance(called, ast.Attribute) and called.attr == "sum":
            called.attr, self._averaged = "mean", True
        return node


class _Keeps(ast.NodeTransformer):
    def __init__(self, keeps: str, words: dict[str, str]) -> None:
        self._keeps = keeps
        self._words = words

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "ctx.save_for_backward":
            kept = "".join(f"{ast.unparse(argument)}, " for argument in node.value.args)
            return _statements(self._keeps, {**self._words, "kept": f"({kept})"})
        return node


def _statements(text: str, words: dict[str, str]) -> list[ast.stmt]:
    return ast.parse(text.format(**words)).body


# -- around the right backward

SUBCLASS = """
import torch
from {module} import {right}


class {name}({right}):
    @staticmethod
    def backward(ctx, *given):
        grads = list(given)
{before}
        returned = {right}.backward(ctx, *grads)
        gradients = list(returned) if isinstance(returned, tuple) else [returned]
{after}
        return tuple(gradients)
"""

CLOSURE = """
import torch
from {module} import {right}


def made(original, slot, other):
    def backward(ctx, *given):
        grads = list(given)
{before}
        returned = original.backward(ctx, *grads)
        gradients = list(returned) if isinstance(returned, tuple) else [returned]
{after}
        return tuple(gradients)

    return type('{name}', (original,), {{'backward': staticmethod(backward)}})


{name} = made({right}, {slot}, {other})
"""


def _subclass(right: Right, name: str, edit: Edit, words: dict[str, str]) -> str:
    return _filled(SUBCLASS, right, edit, {**words, "name": name}, words)


def _closure(right: Right, name: str, edit: Edit, words: dict[str, str]) -> str:
    return _filled(CLOSURE, right, edit, {**words, "name": name}, {**words, "slot": "slot", "other": "other"})


def _filled(frame: str, right: Right, edit: Edit, words: dict[str, str], inner: dict[str, str]) -> str:
    """`words` fill the frame, `inner` the edit, in which a closure has names where a subclass has numbers."""
    said = {**inner, "grad": "grads[0]", "second_grad": "grads[-1]", "name": words["name"]}
    laid_in = {
        part: textwrap.indent(getattr(edit, part).format(**said).strip(), " " * 8) for part in ("before", "after")
    }
    text = frame.format(module=right.function.__module__, right=right.name, **words | laid_in)
    return "\n".join(line for line in text.split("\n") if line.strip() or not line)
