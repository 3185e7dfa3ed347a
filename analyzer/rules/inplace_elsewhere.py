"""In-place writes that change something else as well: the caller's tensor, another name, an attribute."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.handed_over import receives_temporaries
from analyzer.rules.base import Documentation, Hit, Invalid, Rewrite, Rule
from analyzer.rules.module_examples import in_module
from analyzer.saved_values import Differentiable, Mutation, traces
from analyzer.syntax import FunctionNode, parameters, terminal_name
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings
from analyzer.write_findings import called_without_gradients, out_of_place

_HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_in_module = partial(in_module, _HEAD)


_LINEAR = "self.up = nn.Linear(4, 4)\nself.gain = nn.Parameter(torch.ones(4))\nself.act = nn.ReLU(inplace=True)"
# The first line of a forward after those three.
_FORWARD = 14

# Arguments that are there to be written: results, caches, states.
_TO_BE_WRITTEN = re.compile(
    r"^(?!(\w+_)?hidden_)(.*_)?(out|outs|output|outputs|res|result|results|buf|buffer|buffers|cache|caches|past|kv|"
    r"state|states|memory|write_to|"
    r"queue|pool|dst|dest|destination|workspace|accum|accumulator|acc|grad|grads|stats|counts?|history|table|"
    r"mask|masks|kwargs|args|inputs?_dict|outputs?_dict|batch|data|config|params|to|into)$"
)
# Done twice they give what they gave once.
_LIMITS = re.compile(r"(clamp|clip)(_min|_max)?_\(\)$")
_MASK = re.compile(r"mask|(^|_)(pad|padding|invalid|valid)(_|$)")
# Base classes from here call no forward of their own making.
_NO_CALLERS = frozenset({"torch", "abc"})
_SAYS_SO = re.compile(r"in[- ]?place", re.IGNORECASE)
# Reading these of a changed tensor gives what it gave before.
_UNCHANGED = frozenset({"shape", "size", "dtype", "device", "ndim", "dim", "numel", "is_cuda", "requires_grad", "type"})


def _declared(function: FunctionNode) -> bool:
    """Whether a function says that it writes: `fill_`, `…_inplace`, or its docstring."""
    if function.name.endswith("_") or _SAYS_SO.search(function.name):
        return True
    return _SAYS_SO.search(ast.get_docstring(function, clean=False) or "") is not None


def _hypothesis(file: FileContext, found: Mutation) -> dict[str, object]:
    return {
        "function": found.function.name,
        "tensor": found.name,
        "write": found.write.how,
        "symbol": file.symbol(found.write.node),
        "line": getattr(found.write.node, "lineno", 0),
    }


def _fix(file: FileContext, found: Mutation) -> Rewrite | None:
    return out_of_place(file, found.write, FixSafety.UNSAFE)


_CONTAINERS = re.compile(r"\b(list|tuple|dict|sequence|mapping|iterable)\b", re.IGNORECASE)


def _may_be_container(found: Mutation) -> bool:
    """Whether `x[i] = …` may put something into a list instead of a tensor."""
    for argument in parameters(found.function):
        if argument.arg == found.argument and argument.annotation is not None:
            return _CONTAINERS.search(ast.unparse(argument.annotation)) is not None
    return False


def _is_model_code(file: FileContext, found: Mutation) -> bool:
    if found.function.name.startswith("__"):
        return False
    if not found.known_tensor and file.values.value(found.write.target).kind is not Kind.TENSOR:
        return False
    return surroundings(file, found.write.node) is Surroundings.DIFFERENTIATED


def _severity_for_caller(file: FileContext, found: Mutation) -> Severity | None:
    """NOTE where the change can hardly be seen: by no caller in the file, or only as a limit on positions."""
    limits_positions = _LIMITS.match(found.write.how) and found.argument.endswith(("positions", "labels"))
    harmless = (
        limits_positions
        or _sets_masked_places(file, found)
        or _extends_imported_class(file, found.function)
        or receives_temporaries(file, found.function, found.argument)
    )
    return Severity.NOTE if harmless else None


def _sets_masked_places(file: FileContext, found: Mutation) -> bool:
    """`h[~mask] = 0`: done twice it gives what it gave once."""
    statement = file.statement(found.write.node)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    if not isinstance(target, ast.Subscript) or file.values.value(statement.value).constant is None:
        return False
    mask = target.slice
    if isinstance(mask, ast.UnaryOp) and isinstance(mask.op, ast.Invert):
        return True
    return isinstance(mask, ast.Compare) or _MASK.search(terminal_name(mask) or "") is not None


def _extends_imported_class(file: FileContext, forward: FunctionNode) -> bool:
    """Whether the class builds on one of another file: who calls its forward, and with what, is told there."""
    owner = file.parent(forward)
    bases = owner.bases if isinstance(owner, ast.ClassDef) else []
    origins = [file.qualified_name(base) for base in bases]
    return any(origin is not None and origin.partition(".")[0] not in _NO_CALLERS for origin in origins)


class ArgumentChanged(Rule):
    """A forward that changes the tensor it was given."""

    id = "GP408"
    name = "argument-changed-in-place"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search", "eval_side_effects")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    documentation = Documentation(
        what_it_does=(
            "Finds a `forward` that changes one of its tensor arguments in place (`x *= g`, `x[…] = …`, `x.mul_(g)`, "
            "`F.relu_(x)`). Arguments that are there to be written (`out`, `cache`, `state`, …), functions that say "
            "so in their name or docstring, and writes that only run in inference are left alone. Where every caller "
            "in the file passes a layer's result that it does not read again, it is a note; so are masked places set "
            "to a constant (`h[~mask] = 0`), and classes that build on one imported from another file, whose callers "
            "are not known."
        ),
        why_is_this_bad=(
            "The caller's tensor changes as well: a skip connection adds the changed one, a second call starts from "
            "it, checkpointing recomputes from it (and raises), and a leaf that requires gradients raises at once."
        ),
        faulty_example=_in_module(_LINEAR, "x *= 0.5\nreturn self.up(x)"),
        right_example=_in_module(_LINEAR, "x = x * 0.5\nreturn self.up(x)"),
        fix_safety="Unsafe: `x *= g` becomes `x = x * g`; a caller that counts on the change no longer sees it.",
    )
    valid = (
        _in_module(_LINEAR, "x = x * 0.5\nx += 1\nreturn self.up(x)"),
        _in_module(_LINEAR, "x = x.clone()\nx[:, 0] = 1\nreturn self.up(x)"),
        _in_module(_LINEAR, "h = self.up(x)\nh *= 0.5\nreturn h"),
        _in_module(_LINEAR, '"""Scales x in place."""\nx *= 0.5\nreturn self.up(x)'),
        _in_module(_LINEAR, "return x.mul_(self.gain) if self.inplace else x * self.gain"),
        _in_module(_LINEAR, "if not self.training:\n    x *= 0.5\nreturn self.up(x)"),
        _in_module(_LINEAR, "n = 0\nn += len(x)\nreturn self.up(x) * n"),
        _HEAD + "class Net(nn.Module):\n    def forward(self, x, cache, out):\n        cache[:, 0] = x[:, 0]\n"
        "        out.add_(x)\n        return out\n",
        _HEAD + "class Net(nn.Module):\n    def forward(self, x, depth: int):\n        depth += 1\n"
        "        return x * depth\n",
        _HEAD + "def scale(x, s):\n    x *= s\n    return x\n",
        _HEAD + "class Net(nn.Module):\n    def forward(self, xs: list[torch.Tensor]):\n        xs[0] = xs[0] * 2\n"
        "        return torch.cat(xs)\n",
        _HEAD + "class Net(nn.Module):\n    def forward(self, xs):\n        xs[0] = xs[0] * 2\n        return xs\n",
    )
    invalid = (
        Invalid(_in_module(_LINEAR, "x *= self.gain\nreturn self.up(x)"), (_FORWARD,)),
        Invalid(_in_module(_LINEAR, "x[:, 0] = 0\nreturn self.up(x)"), (_FORWARD,)),
        Invalid(_in_module(_LINEAR, "x.mul_(self.gain)\nreturn self.up(x)"), (_FORWARD,)),
        Invalid(_in_module(_LINEAR, "y = x.view(-1)\ny.clamp_(0, 1)\nreturn self.up(x)"), (_FORWARD + 1,)),
        Invalid(_in_module(_LINEAR, "x = F.relu_(x)\nreturn self.up(x)"), (_FORWARD,)),
        Invalid(_in_module(_LINEAR, "h = self.act(x)\nreturn self.up(h) + x"), (_FORWARD,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every forward that writes to its arguments, and nobody said so."""
        reported: set[tuple[FunctionNode, str]] = set()
        for found in traces(file).mutations:
            key = (found.function, found.argument)
            if not found.argument or key in reported or not self._is_fault(file, found):
                continue
            reported.add(key)
            yield Hit(
                found.write.node,
                f"`{found.name}` is changed in place ({found.write.how}), and with it the tensor that the caller "
                f"passed as `{found.argument}`. Make a new tensor instead.",
                severity=_severity_for_caller(file, found),
                hypothesis=_hypothesis(file, found),
                related=((found.read_again, f"`{found.read_as}` is read here, already changed"),)
                if found.read_again is not None
                else (),
                fix=_fix(file, found),
            )

    def _is_fault(self, file: FileContext, found: Mutation) -> bool:
        function = found.function
        if not forward_code(file).runs_in_forward(function) or not _is_model_code(file, found):
            return False
        if function.name != "forward" or _TO_BE_WRITTEN.search(found.argument.lower()) or _declared(function):
            return False
        if _may_be_container(found) or not found.known_tensor:
            return False
        if "inplace=True" in found.write.how:
            # Layers that work in place on what a layer before them gave are common and meant: what is not meant is to
            # use their input afterwards.
            return _reads_the_change(file, found)
        # What another name in this function sees is GP413's to say.
        return not called_without_gradients(file, function) and not _reads_the_change(file, found)


def _reads_the_change(file: FileContext, found: Mutation) -> bool:
    """Whether another name (or the argument of a layer that works in place) is read after the write."""
    read = found.read_again
    if read is None:
        return False
    parent = file.parent(read)
    if isinstance(parent, ast.Attribute) and parent.attr in _UNCHANGED:
        return False
    call = file.parent(found.write.node)
    if isinstance(call, ast.Expr):
        return found.read_as not in ast.unparse(found.write.target)
    if isinstance(call, ast.Assign):
        return all(terminal_name(target) != found.read_as for target in call.targets)
    return True


class OtherNameChanged(Rule):
    """A tensor that has a second name is changed in place, and then read under that name."""

    id = "GP413"
    name = "second-name-changed-in-place"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    documentation = Documentation(
        what_it_does=(
            "Finds `identity = x` followed by an in-place change of `x` (or of `identity`, or by a layer with "
            "`inplace=True`), when the other name is read afterwards. Arguments of a forward are reported by GP408 "
            "when only the caller can see the change."
        ),
        why_is_this_bad=(
            "Both names are one tensor: the skip connection, the positional embedding or the comparison that was to "
            "use the old values uses the new ones, without an error."
        ),
        faulty_example=_in_module(_LINEAR, "h = self.up(x)\nidentity = h\nh += 1\nreturn h * 2 + identity"),
        right_example=_in_module(_LINEAR, "h = self.up(x)\nidentity = h\nh = h + 1\nreturn h * 2 + identity"),
        fix_safety="Unsafe: `h += 1` becomes `h = h + 1`, which changes the values to what the names suggest.",
    )
    valid = (
        _in_module(_LINEAR, "h = self.up(x)\nidentity = h\nh = h + 1\nreturn h * 2 + identity"),
        _in_module(_LINEAR, "h = self.up(x)\nidentity = h.clone()\nh += 1\nreturn h * 2 + identity"),
        _in_module(_LINEAR, "h = self.up(x)\nold = h\nh += 1\nreturn h.view(old.shape)"),
        _in_module(_LINEAR, "h = self.up(x)\nold = h\nh += 1\nreturn h.view(old.size())"),
        _in_module(_LINEAR, "h = self.up(x)\nidentity = h\ns = identity.sum()\nh += 1\nreturn h * s"),
        _in_module(_LINEAR, "h = self.up(x)\nh = self.act(h)\nreturn h + x"),
        _in_module(_LINEAR, "h = self.up(x)\nself.act(h)\nreturn h + x"),
        _in_module(_LINEAR, "h = self.up(x)\nflat = h.view(-1)\nflat[0] = 1\nreturn h"),
        _HEAD + "def count(n: int, x):\n    m = n\n    m += 1\n    return x[n:m]\n",
        _HEAD + "def names(x):\n    out = found = []\n    out += [x]\n    return found\n",
    )
    invalid = (
        Invalid(_in_module(_LINEAR, "h = self.up(x)\nidentity = h\nh += 1\nreturn h * 2 + identity"), (_FORWARD + 2,)),
        Invalid(_in_module(_LINEAR, "h = self.up(x)\nq = h\nq[:, 0] = 0\nreturn q * h"), (_FORWARD + 2,)),
        Invalid(_in_module(_LINEAR, "h = self.up(x)\ng = self.up(self.act(h))\nreturn g + h"), (_FORWARD + 1,)),
        Invalid(
            _in_module(_LINEAR, "q = x\nfor _ in range(2):\n    q += self.gain\n    q = self.up(q + x)\nreturn q"),
            (_FORWARD + 2,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every change that another name sees."""
        for found in traces(file).mutations:
            read = found.read_again
            if read is None or not _is_model_code(file, found) or not _reads_the_change(file, found):
                continue
            if found.value.degree is Differentiable.NO or not found.recording:
                continue
            if found.argument and "inplace=True" in found.write.how:
                continue
            yield Hit(
                found.write.node,
                f"`{found.name}` is changed in place ({found.write.how}), and `{found.read_as}` in line {read.lineno} "
                "is the same tensor: it is read with the new values. Make a new tensor, or keep a clone.",
                hypothesis=_hypothesis(file, found),
                related=((read, f"`{found.read_as}` is read here, already changed"),),
                fix=_fix(file, found),
            )


# Each call builds on the last one; `x[…] = …` and `copy_` may just fill a cache.
_BUILDING_ON = re.compile(r"^([+\-*/%]|//|\*\*)=$|^(mul|div|add|sub|pow|clamp|neg|exp|sqrt|addcmul|addcdiv)_\(\)$")


class AttributeChanged(Rule):
    """A local name for an attribute is changed in place in forward: every call changes it further."""

    id = "GP412"
    name = "attribute-changed-through-name"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    documentation = Documentation(
        what_it_does=(
            "Finds `scale = self.scale` in a forward, followed by an arithmetic change of `scale` in place "
            "(`*=`, `add_`). An attribute that is changed under its own name (`self.count += 1`) is meant to be, and "
            "is left alone."
        ),
        why_is_this_bad=(
            "The name is the attribute: the second call starts from what the first one left. If the attribute was "
            "computed from parameters, the second backward raises as well."
        ),
        faulty_example=_in_module("self.shift = torch.ones(4)", "pixels = self.shift\npixels *= 32\nreturn x + pixels"),
        right_example=_in_module("self.shift = torch.ones(4)", "pixels = self.shift * 32\nreturn x + pixels"),
        fix_safety="Unsafe: `pixels *= 32` becomes `pixels = pixels * 32`, and the attribute stays what it was.",
    )
    valid = (
        _in_module("self.shift = torch.ones(4)", "pixels = self.shift * 32\npixels *= 2\nreturn x + pixels"),
        _in_module("self.shift = torch.ones(4)", "pixels = self.shift.clone()\npixels *= 2\nreturn x + pixels"),
        _in_module("self.register_buffer('count', torch.ones(1))", "self.count += 1\nreturn x / self.count"),
        _in_module("self.cache = torch.ones(4, 4)", "cache = self.cache\ncache[0] = x\nreturn cache"),
        _in_module("self.count = 3", "count = self.count\ncount += 1\nreturn x * count"),
        _in_module("self.shift = torch.ones(4)", "with torch.no_grad():\n    s = self.shift\n    s *= 2\nreturn x + s"),
    )
    invalid = (
        Invalid(
            _in_module("self.shift = torch.ones(4)", "pixels = self.shift\npixels[..., 0] *= 32\nreturn x + pixels"),
            (_FORWARD - 1,),
        ),
        Invalid(
            _in_module("self.register_buffer('m', torch.ones(4))", "m = self.m\nm.mul_(2)\nreturn x + m"),
            (_FORWARD - 1,),
        ),
        Invalid(
            _in_module("self.register_buffer('m', torch.ones(4))", "m = self.m.view(2, 2)\nm -= 2\nreturn x + m"),
            (_FORWARD - 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every arithmetic change of an attribute under another name."""
        for found in traces(file).mutations:
            if not found.attribute or "self." in found.name or not _BUILDING_ON.match(found.write.how):
                continue
            if (
                not found.recording
                or not forward_code(file).runs_in_forward(found.function)
                or not _is_model_code(file, found)
            ):
                continue
            yield Hit(
                found.write.node,
                f"`{found.name}` is `self.{found.attribute}` itself: the change in place ({found.write.how}) stays, "
                "and the next call starts from it. Make a new tensor.",
                hypothesis=_hypothesis(file, found),
                fix=_fix(file, found),
            )
