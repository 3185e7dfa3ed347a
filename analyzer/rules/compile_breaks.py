"""Calls at which torch.compile ends its graph (GP502, GP503, GP504, GP505, GP507).

What breaks was measured on torch 2.13, one call at a time; the numbers of the breaks come from its registry.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from analyzer.compiled_regions import asks_for_compiling, compiled_regions
from analyzer.context import FileContext
from analyzer.facts import graph_breaks
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import quoted
from analyzer.syntax import terminal_name
from analyzer.tensor_evidence import is_module_method, tensor_evidence
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings

_COMPILED = (
    "import torch\nimport copy, random, time, logging, warnings\nimport numpy as np\nlogger = logging.getLogger()\n"
    "@torch.compile\ndef f(x, mask):\n    "
)
_WHOLE = _COMPILED.replace("@torch.compile\n", "@torch.compile(fullgraph=True)\n")
_LINE = 7


class _GraphBreak(Rule):
    """What the rules of this file share: a call, in a compiled region, that the compiler does not take.

    `captured_whole`: with `fullgraph=True` the compiler takes it after all.
    """

    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence", "finding_search")
    torch_versions = "2.13"
    captured_whole: ClassVar[bool] = False

    def _hit(self, file: FileContext, node: ast.expr, title: str, what: str, advice: str) -> Hit | None:
        """The finding at a place that breaks the graph; None where nothing compiles it."""
        region = compiled_regions(file).of(node)
        if region is None or (region.whole and self.captured_whole):
            return None
        facts = graph_breaks()
        number = facts.number(self.id, title)
        if region.whole:
            effect = f"compiling with `fullgraph=True` fails here ({number} of torch {facts.version})"
        else:
            effect = f"torch.compile ends its graph here ({number} of torch {facts.version})"
        return Hit(
            node,
            f"{what}: {effect}. {advice}",
            severity=Severity.ERROR if region.whole else None,
            hypothesis={"operand": quoted(file, node)},
            related=((region.node, "compiled here"),),
        )


class NumberFromTensor(_GraphBreak):
    id = "GP502"
    name = "number-from-tensor-in-compiled-code"
    captured_whole = True
    triggers = ("compile", "forward")
    documentation = Documentation(
        what_it_does=(
            "Finds `.item()`, `.tolist()`, `int(...)` and `float(...)` of a tensor in code that the file compiles. In "
            "the `forward` of a module that nothing here compiles it is a note. Silent where `fullgraph=True` or "
            "`capture_scalar_outputs` makes the compiler carry the number along."
        ),
        why_is_this_bad=(
            "The number is not known while compiling: torch 2.13 ends the graph (GB0124), runs the call, and starts "
            "another graph. On a GPU, each call also waits until the device has caught up."
        ),
        faulty_example="import torch\n\n\n@torch.compile\ndef f(x):\n    return x * x.sum().item()\n",
        right_example="import torch\n\n\n@torch.compile\ndef f(x):\n    return x * x.sum()\n",
        fix_safety="No automatic fix: what follows must take a tensor.",
    )
    valid = (
        _COMPILED + "return x * x.sum()\n",
        _COMPILED + "return x * float(x.shape[0]) + int(x.size(1)) + len(x)\n",
        _WHOLE + "return x * x.sum().item()\n",
        "import torch\ntorch._dynamo.config.capture_scalar_outputs = True\n"
        "@torch.compile\ndef f(x):\n    return x * x.sum().item()\n",
        "import torch\ndef f(x):\n    return x * x.sum().item()\n",
        "import torch\n@torch.compiler.disable\ndef g(x):\n    return x.sum().item()\n"
        "@torch.compile\ndef f(x):\n    return x * g(x)\n",
        _COMPILED + "if not torch.compiler.is_compiling():\n        print(x.sum().item())\n    return x\n",
        _COMPILED + "a = np.zeros(3)\n    return x * float(a.sum()) + int('3')\n",
    )
    invalid = (
        Invalid(_COMPILED + "return x * x.sum().item()\n", (_LINE,)),
        Invalid(_COMPILED + "n = int(torch.argmax(x))\n    return x[:n]\n", (_LINE,)),
        Invalid(_COMPILED + "s = torch.linalg.vector_norm(x)\n    return x / float(s)\n", (_LINE + 1,)),
        Invalid(_COMPILED + "y = torch.relu(x)\n    return sum(y.tolist())\n", (_LINE + 1,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        return x * torch.exp(x).sum().item()\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every conversion of a tensor to Python numbers in compiled code or a module's forward."""
        if "capture_scalar_outputs" in file.text:
            return
        for call, operand in _conversions(file):
            name = terminal_name(call.func) or ""
            hit = None
            if _is_compiled_or_forward(file, call) and _is_data(file, operand, certain=name in ("int", "float")):
                title = "Tensor.tolist()" if name == "tolist" else "Unsupported Tensor.item()"
                what = f"`{quoted(file, call)}` takes a number out of a tensor"
                hit = self._hit(file, call, title, what, "Go on with the tensor.")
                hit = hit or self._note(file, call, what)
            if hit is not None:
                yield hit

    def _note(self, file: FileContext, call: ast.Call, what: str) -> Hit | None:
        """In a forward that nothing here compiles."""
        regions = compiled_regions(file)
        if regions.of(call) is not None or asks_for_compiling(file, call) or file.grad_disabled(call):
            return None
        if surroundings(file, call) is Surroundings.ASIDE:
            return None
        message = f"{what}: a GPU is waited for, and compiled code breaks here ({graph_breaks().numbers(self.id)[0]})."
        return Hit(call, message, severity=Severity.NOTE)


def _conversions(file: FileContext) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that make Python numbers of something, and that something."""
    for call in file.calls("item", "tolist"):
        if isinstance(call.func, ast.Attribute) and not call.args and file.qualified_name(call.func) is None:
            yield call, call.func.value
    for call in file.calls("int", "float"):
        if isinstance(call.func, ast.Name) and len(call.args) == 1:
            yield call, call.args[0]


def _is_compiled_or_forward(file: FileContext, node: ast.AST) -> bool:
    if compiled_regions(file).of(node) is not None:
        return True
    function = file.enclosing_function(node)
    return function is not None and function.name == "forward" and is_module_method(file, function)


def _is_data(file: FileContext, operand: ast.expr, *, certain: bool) -> bool:
    """Whether an operand is a tensor: for `int` and `float` certainly, for tensor methods as far as nothing denies "
    "it."""
    if tensor_evidence(file).is_tensor(operand):
        return True
    return not certain and file.values.value(operand).kind not in (Kind.NUMBER, Kind.ARRAY, Kind.OTHER)


class DataDependentShape(_GraphBreak):
    id = "GP503"
    name = "data-dependent-shape-in-compiled-code"
    captured_whole = True
    triggers = ("compile",)
    documentation = Documentation(
        what_it_does=(
            "Finds operations whose result is as large as the data say, in code that the file compiles: `nonzero`, "
            "`unique`, `masked_select`, `torch.where(mask)`, `bincount`, `repeat_interleave` with counts, reading "
            "with a mask as index. Silent where `fullgraph=True` or `capture_dynamic_output_shape_ops` lets the "
            "compiler carry an unknown size along. Writing by a mask is fine."
        ),
        why_is_this_bad=(
            "Compiled code needs the sizes of its tensors: torch 2.13 ends the graph (GB0036) at each of these and "
            "compiles what follows for each new size."
        ),
        faulty_example="import torch\n\n\n@torch.compile\ndef f(x, mask):\n    return x[mask > 0].sum()\n",
        right_example=(
            "import torch\n\n\n@torch.compile\ndef f(x, mask):\n    return torch.where(mask > 0, x, 0).sum()\n"
        ),
        fix_safety="No automatic fix: `torch.where` keeps the size, and what follows must expect that.",
    )
    valid = (
        _COMPILED + "return torch.where(mask, x, 0).sum()\n",
        _COMPILED + "x = x.clone()\n    x[x > 0] = 0\n    return x\n",
        _WHOLE + "return x.nonzero()\n",
        "import torch\ntorch._dynamo.config.capture_dynamic_output_shape_ops = True\n"
        "@torch.compile\ndef f(x):\n    return x.nonzero()\n",
        "import torch\ndef f(x):\n    return x[x > 0]\n",
        _COMPILED + "return torch.repeat_interleave(x, 2, dim=0)\n",
        _COMPILED + "return torch.repeat_interleave(x, mask, dim=0, output_size=12)\n",
        _COMPILED + "i = torch.arange(3)\n    return x[i] + x[0] + x[:, None]\n",
    )
    invalid = (
        Invalid(_COMPILED + "return x.nonzero()\n", (_LINE,)),
        Invalid(_COMPILED + "return x[x > 0].sum()\n", (_LINE,)),
        Invalid(_COMPILED + "keep = x.abs() > 1\n    return x[keep]\n", (_LINE + 1,)),
        Invalid(_COMPILED + "return x[mask].sum() + x[~mask].mean()\n", (_LINE, _LINE)),
        Invalid(_COMPILED + "return torch.unique(x)\n", (_LINE,)),
        Invalid(_COMPILED + "return torch.masked_select(x, mask)\n", (_LINE,)),
        Invalid(_COMPILED + "rows = torch.where(x > 0)\n    return rows\n", (_LINE,)),
        Invalid(_COMPILED + "n = mask.long()\n    return torch.repeat_interleave(x, n, dim=0)\n", (_LINE + 1,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every operation of this kind in a compiled region."""
        if not compiled_regions(file) or "capture_dynamic_output_shape_ops" in file.text:
            return
        for node in (*_sized_by_data(file), *_masked_reads(file)):
            what = f"The size of `{quoted(file, node)}` depends on the data"
            hit = self._hit(file, node, "Dynamic shape operator", what, "Use `torch.where`, or weights of zero.")
            if hit is not None:
                yield hit


# Parameters with these names are boolean masks.
_MASK = re.compile(r"(^|_)(mask|valid|keep|is_valid)$")
_TENSOR_KINDS = (Kind.TENSOR, Kind.INTEGER_TENSOR, Kind.BOOLEAN_TENSOR)
_SIZED_BY_DATA = ("nonzero", "unique", "unique_consecutive", "masked_select", "argwhere", "bincount", "where")


def _sized_by_data(file: FileContext) -> Iterator[ast.Call]:
    for call in file.calls(*_SIZED_BY_DATA, "repeat_interleave"):
        qualified = file.qualified_name(call.func)
        if qualified is not None and not qualified.startswith("torch."):
            continue
        name = terminal_name(call.func)
        if name == "where":
            if qualified == "torch.where" and len(call.args) == 1 and not call.keywords:
                yield call
        elif name == "repeat_interleave":
            counts = call.args[1:2] if qualified is not None else call.args[:1]
            sized = any(keyword.arg == "output_size" for keyword in call.keywords)
            if counts and not sized and file.values.value(counts[0]).kind in _TENSOR_KINDS:
                yield call
        elif qualified is not None or isinstance(call.func, ast.Attribute):
            yield call


def _masked_reads(file: FileContext) -> Iterator[ast.Subscript]:
    """`x[mask]` that is read: the index is a comparison of a tensor."""
    for subscript in file.nodes(ast.Subscript):
        if isinstance(subscript.ctx, ast.Load) and compiled_regions(file).of(subscript) is not None:
            index = subscript.slice
            if isinstance(index, ast.Name):
                index = file.values.single_definition(index) or index
            if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.Invert):
                index = index.operand
            compared = isinstance(index, ast.Compare) and file.values.value(index).kind is Kind.BOOLEAN_TENSOR
            if compared or _is_given_mask(file, index):
                yield subscript


def _is_given_mask(file: FileContext, index: ast.expr) -> bool:
    return isinstance(index, ast.Name) and _MASK.search(index.id) is not None and not file.values.definitions(index)


class SideEffectInCompiledCode(_GraphBreak):
    id = "GP504"
    name = "side-effect-in-compiled-code"
    triggers = ("compile", "forward")
    documentation = Documentation(
        what_it_does=(
            "Finds `print`, loggers, `warnings.warn`, `open`, `torch.save`, `copy.deepcopy` of tensors or modules, "
            "`breakpoint` and the debugger in code that the file compiles, and in the `forward` of a module where "
            "nothing decides whether it happens. Silent behind `torch.compiler.is_compiling()`. Formatting a tensor "
            "and reading the environment are fine."
        ),
        why_is_this_bad=(
            "The compiler can't put it into a graph: torch 2.13 ends the graph there, once or twice, and with "
            "`fullgraph=True` it raises."
        ),
        faulty_example="import torch\n\n\n@torch.compile\ndef f(x):\n    print(x.shape)\n    return x * 2\n",
        right_example=(
            "import torch\n\n\n@torch.compile\ndef f(x):\n    if not torch.compiler.is_compiling():\n"
            "        print(x.shape)\n    return x * 2\n"
        ),
        fix_safety="No automatic fix: move it out of the compiled function, or ask whether it is compiled.",
    )
    valid = (
        _COMPILED + "name = f'{x.sum()}'\n    return x\n",
        _COMPILED + "if not torch.compiler.is_compiling():\n        print(x)\n    return x\n",
        _COMPILED + "sizes = copy.deepcopy([1, 2])\n    return x.view(sizes)\n",
        "import torch\ndef f(x):\n    print(x)\n    return x\n",
        "import torch\n@torch.compile\ndef f(x):\n    return x\nprint(f(torch.ones(1)))\n",
        "import logging, torch\nlogger = logging.getLogger()\nclass M(torch.nn.Module):\n    def forward(self, x):\n"
        "        if self.verbose:\n            print(x)\n        if x.shape[0] == 0:\n            logger.info('x')\n"
        "        return x\n",
        "from torch import nn\nclass M(nn.Module):\n    def report(self, x):\n        print(x)\n"
        "    def forward(self, x):\n        return x\n",
        "import torch\n@torch.compile\ndef f(x):\n    if x.dim() != 2:\n        raise ValueError(print)\n"
        "    return x\n",
    )
    invalid = (
        Invalid(_COMPILED + "print(x.shape)\n    return x\n", (_LINE,)),
        Invalid(_WHOLE + "print('here')\n    return x\n", (_LINE,)),
        Invalid(_COMPILED + "logger.info('%s', x.shape)\n    return x\n", (_LINE,)),
        Invalid(_COMPILED + "warnings.warn('slow')\n    return x\n", (_LINE,)),
        Invalid(_COMPILED + "y = torch.relu(x)\n    z = copy.deepcopy(y)\n    return z\n", (_LINE + 1,)),
        Invalid(_COMPILED + "torch.save(x, 'x.pt')\n    return x\n", (_LINE,)),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n        print('x')\n"
            "        return x\nm = torch.compile(M())\n",
            (5,),
        ),
        # in any forward: it happens at every call
        Invalid(
            "from torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n        print(x.mean())\n"
            "        return x\n",
            (4,),
        ),
        Invalid(
            "import copy\nimport torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        y = torch.relu(x)\n        return copy.deepcopy(y)\n",
            (7,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every such call in a compiled region."""
        for call in file.calls(*_SIDE_EFFECTS):
            if not _is_compiled_or_forward(file, call):
                continue
            title = _side_effect(file, call)
            if title is None:
                continue
            what = f"`{quoted(file, call)}` is a side effect"
            advice = "Move it out, or ask `torch.compiler.is_compiling()`."
            hit = self._hit(file, call, title, what, advice)
            if hit is None and compiled_regions(file).of(call) is None and _happens_always(file, call):
                number = graph_breaks().number(self.id, title)
                message = f"{what} of every forward pass: compiled code ends its graph here ({number}). {advice}"
                hit = Hit(call, message, hypothesis={"operand": quoted(file, call)})
            if hit is not None:
                yield hit


def _happens_always(file: FileContext, call: ast.Call) -> bool:
    """Whether no condition, handler or question about compiling stands around a place or before it."""
    if asks_for_compiling(file, call):
        return False
    for outer in file.ancestors(call):
        if isinstance(outer, (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler)):
            return False
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
    return True


_LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "warning_once", "log"})
_SIDE_EFFECTS = ("print", "open", "breakpoint", "input", "warn", "save", "deepcopy", "set_trace", *sorted(_LOG_METHODS))
_BUILTIN, _SKIPPED = "Failed to trace builtin operator", "Attempted to call function marked as skipped"
_BY_NAME = {
    "warnings.warn": _SKIPPED,
    "torch.save": _SKIPPED,
    "pdb.set_trace": _SKIPPED,
    "ipdb.set_trace": _SKIPPED,
}


def _side_effect(file: FileContext, call: ast.Call) -> str | None:
    """The title of the graph break that a call makes; None for a call that is none of these."""
    name = terminal_name(call.func) or ""
    qualified = file.qualified_name(call.func)
    if isinstance(call.func, ast.Name) and qualified is None:
        is_builtin = name in ("print", "open", "breakpoint", "input") and name not in file.functions_by_name
        return _BUILTIN if is_builtin else None
    if qualified in _BY_NAME:
        return _BY_NAME[qualified]
    if qualified in ("copy.deepcopy", "copy.copy"):
        copied = call.args[0] if call.args else None
        return "Attempted to copy.deepcopy a tensor" if copied and tensor_evidence(file).is_tensor(copied) else None
    if name in _LOG_METHODS and isinstance(call.func, ast.Attribute):
        owner = (terminal_name(call.func.value) or "").lower().strip("_")
        return "logging.Logger method" if owner in ("logger", "log", "logging") else None
    return None


class ForeignRandomness(_GraphBreak):
    id = "GP505"
    name = "foreign-randomness-in-compiled-code"
    triggers = ("random", "time", "manual_seed")
    documentation = Documentation(
        what_it_does=(
            "Finds Python's and NumPy's random numbers, clocks and seeding in code that the file compiles, and random "
            "numbers from outside torch that are computed with in the `forward` of a module. A draw that only decides "
            "whether a layer runs is a note."
        ),
        why_is_this_bad=(
            "torch.compile ends its graph there (measured on torch 2.13; only `random.uniform`, `randint` and "
            "`randrange` go in). Compiled or not, `torch.manual_seed` does not govern the numbers, checkpointing does "
            "not replay them in the recomputed forward, and each rank and worker draws from a state of its own."
        ),
        faulty_example=(
            "import random\n\nimport torch\n\n\n@torch.compile\ndef jitter(x):\n    return x * random.gauss(1.0, 0.1)\n"
        ),
        right_example=(
            "import torch\n\n\n@torch.compile\ndef jitter(x):\n"
            "    return x * torch.normal(1.0, 0.1, (), device=x.device)\n"
        ),
        fix_safety="No automatic fix: torch's generator draws other numbers.",
    )
    valid = (
        _COMPILED + "return x * torch.rand(())\n",
        _COMPILED + "return x * random.uniform(0.9, 1.1) * random.randint(1, 3)\n",
        "import random\ndef f(x):\n    return x * random.random()\n",
        "import random, torch\n@torch.compile\ndef f(x):\n    return x\nprint(f(torch.ones(1)) * random.random())\n",
        "import time, torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        self.last = time.time()\n        return x\n",
        "import random\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = random.random()\n    def forward(self, x):\n        return x * self.scale\n",
        "import random\nclass Augment:\n    def forward(self, x):\n        return x * random.random()\n",
    )
    invalid = (
        Invalid(_COMPILED + "return x * random.random()\n", (_LINE,)),
        Invalid(_COMPILED + "return x + np.random.rand()\n", (_LINE,)),
        Invalid(_COMPILED + "torch.manual_seed(0)\n    return x + torch.rand(2)\n", (_LINE,)),
        Invalid(_COMPILED + "t = time.time()\n    return x, t\n", (_LINE,)),
        Invalid(
            "import random\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        return x * random.uniform(0.9, 1.1)\n",
            (5,),
        ),
        Invalid(
            "import numpy as np\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        noise = np.random.normal()\n        return x + noise\n",
            (5,),
        ),
        # a note: the result is the same with or without a compiler's graph
        Invalid(
            "import random\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        if random.random() < 0.1:\n            return x\n        return x * 2\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every such call in a compiled region, and random numbers in a module's forward."""
        for call in file.nodes(ast.Call):
            if not isinstance(call.func, (ast.Attribute, ast.Name)):
                continue
            kind = _foreign(file.qualified_name(call.func))
            if kind is None:
                continue
            title = "Data dependent operator" if kind == "numpy" else _SKIPPED
            what = (
                f"`{quoted(file, call)}` draws from outside torch"
                if kind != "clock"
                else "A clock or seed in the graph"
            )
            qualified = file.qualified_name(call.func)
            advice = "Draw with torch, or outside of the compiled function."
            hit = self._hit(file, call, title, what, advice) if qualified not in _TRACED else None
            if hit is None and kind in ("python", "numpy"):
                hit = self._in_forward(file, call)
            if hit is not None:
                yield hit

    def _in_forward(self, file: FileContext, call: ast.Call) -> Hit | None:
        function = file.enclosing_function(call)
        if function is None or function.name != "forward" or not is_module_method(file, function):
            return None
        if compiled_regions(file).of(call) is not None or asks_for_compiling(file, call):
            return None
        if surroundings(file, call) is Surroundings.ASIDE:
            return None
        return Hit(
            call,
            f"`{quoted(file, call)}` draws from outside torch: `torch.manual_seed` does not govern it, checkpointing "
            "does not replay it, and most such calls end a compiled graph. Use `torch.rand`.",
            severity=None if _is_computed_with(file, call) else Severity.NOTE,
            hypothesis={"operand": quoted(file, call)},
        )


_DRAWS = frozenset(
    {
        *("random", "uniform", "randint", "choice", "choices", "sample", "shuffle", "gauss", "normalvariate", "rand"),
        *("randn", "normal", "permutation", "beta", "betavariate", "randrange", "triangular", "random_sample"),
        *("expovariate", "exponential", "standard_normal", "binomial", "poisson"),
    }
)
# torch.compile takes these into its graph.
_TRACED = frozenset({"random.uniform", "random.randint", "random.randrange"})
# Whole numbers that choose: how many layers run, which one.
_CHOICES = frozenset({"randint", "randrange", "choice", "choices", "sample", "shuffle", "permutation"})
_CLOCKS = frozenset(
    {
        *("time.time", "time.perf_counter", "time.monotonic", "time.sleep", "time.time_ns", "time.perf_counter_ns"),
        *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "random.seed"),
        *("torch.get_rng_state", "torch.set_rng_state"),
    }
)


def _foreign(qualified: str | None) -> str | None:
    """`python`, `numpy` or `clock` for what does not come from torch's generator."""
    if qualified is None:
        return None
    if qualified in _CLOCKS:
        return "clock"
    home, _, name = qualified.rpartition(".")
    if name not in _DRAWS:
        return None
    return {"random": "python", "numpy.random": "numpy"}.get(home)


def _is_computed_with(file: FileContext, call: ast.Call) -> bool:
    """Whether the number enters arithmetic, there or under the one name it is given."""
    if terminal_name(call.func) in _CHOICES:
        return False
    if isinstance(file.parent(call), ast.BinOp):
        return True
    parent, function = file.parent(call), file.enclosing_function(call)
    if not isinstance(parent, ast.Assign) or function is None or not isinstance(parent.targets[0], ast.Name):
        return False
    name = parent.targets[0].id
    uses = (use for use in file.nodes_in(function, ast.Name) if use.id == name and isinstance(use.ctx, ast.Load))
    return any(isinstance(file.parent(use), ast.BinOp) for use in uses)


class BackwardInCompiledCode(_GraphBreak):
    id = "GP507"
    name = "backward-in-compiled-code"
    triggers = ("compile",)
    documentation = Documentation(
        what_it_does=(
            "Finds `.backward()`, `torch.autograd.grad` and `requires_grad_()` in code that the file compiles, unless "
            "it turns on `trace_autograd_ops` or compiled autograd."
        ),
        why_is_this_bad=(
            "torch.compile differentiates the graphs that it builds, and does not take calls of autograd inside them: "
            "torch 2.13 ends the graph once to three times at each (GB0123, GB9186), and what is left is seldom faster "
            "than eager code."
        ),
        faulty_example=(
            "import torch\n\n\n@torch.compile\ndef step(model, x):\n    loss = model(x).sum()\n    loss.backward()\n"
            "    return loss.detach()\n"
        ),
        right_example=(
            "import torch\n\n\n@torch.compile\ndef loss_of(model, x):\n    return model(x).sum()\n\n\n"
            "def step(model, x):\n    loss = loss_of(model, x)\n    loss.backward()\n    return loss.detach()\n"
        ),
        fix_safety="No automatic fix: compile the loss and call backward outside, or use `torch.func.grad` inside.",
    )
    valid = (
        "import torch\n@torch.compile\ndef loss(m, x):\n    return m(x).sum()\ndef step(m, x):\n"
        "    loss(m, x).backward()\n",
        "import torch\ntorch._dynamo.config.trace_autograd_ops = True\n@torch.compile\ndef f(x):\n"
        "    return torch.autograd.grad(x.sum(), x)\n",
        "import torch\n@torch.compile\ndef f(x):\n    return torch.func.grad(torch.sum)(x)\n",
        "import torch\nclass F(torch.autograd.Function):\n    @staticmethod\n    def backward(ctx, g):\n"
        "        return g\n"
        "@torch.compile\ndef f(x):\n    return F.apply(x)\n",
        "import torch\ntorch._dynamo.config.compiled_autograd = True\n@torch.compile\ndef f(m, x):\n"
        "    m(x).sum().backward()\n",
    )
    invalid = (
        Invalid(_COMPILED + "x.sum().backward()\n    return x.grad\n", (_LINE,)),
        Invalid(_COMPILED + "return torch.autograd.grad(x.sum(), x)\n", (_LINE,)),
        Invalid(_WHOLE + "(g,) = torch.autograd.grad(x.sum(), x)\n    return g\n", (_LINE,)),
        Invalid(_COMPILED + "y = (x * 2).detach().requires_grad_()\n    return y\n", (_LINE,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call of autograd in a compiled region."""
        if not compiled_regions(file) or "trace_autograd_ops" in file.text or "compiled_autograd" in file.text:
            return
        for call in file.calls("backward", "grad", "requires_grad_"):
            name = terminal_name(call.func)
            qualified = file.qualified_name(call.func)
            if qualified not in (None, "torch.autograd.grad", "torch.autograd.backward"):
                continue
            if qualified is None and (name == "grad" or not isinstance(call.func, ast.Attribute)):
                continue
            titles = {"backward": "Tensor.backward()", "grad": "torch.autograd.grad"}
            title = titles.get(name or "", "requires_grad_()")
            what = f"`{quoted(file, call)}` works on the graph that is being compiled"
            hit = self._hit(file, call, title, what, "Call it outside of the compiled function.")
            if hit is not None:
                yield hit
