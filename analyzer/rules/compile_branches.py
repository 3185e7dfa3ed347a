"""Branches on what a tensor holds, where the code is compiled or is a module's forward (GP501).

Whether a test is about a tensor's values is for `analyzer.tensor_evidence` to say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.compiled_regions import Region, asks_for_compiling, compiled_regions
from analyzer.context import FileContext
from analyzer.facts import graph_breaks
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import quoted
from analyzer.syntax import dotted_name, terminal_name
from analyzer.tensor_evidence import is_module_method, tensor_evidence
from analyzer.values.surroundings import Surroundings, surroundings

_Branch = ast.If | ast.While | ast.IfExp
_SPEAKING = frozenset({"warn", "warning", "warning_once", "info", "debug", "error", "print", "warn_once"})
# More statements than this in a branch are a computation that somebody wanted to skip.
_MOST_STATEMENTS = 3


class BranchOnTensorValue(Rule):
    id = "GP501"
    name = "branch-on-tensor-value"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = ("forward", "compile")
    documentation = Documentation(
        what_it_does=(
            "Finds `if`, `while` and conditional expressions whose test is the value of a tensor, in functions that "
            "the file compiles (directly, or called from one that is), and in the `forward` of modules where the "
            "branch could be written without one: a few assignments or one return on either side, or a loop. Numbers "
            "that were taken out of a tensor (`.item()`, `torch.equal`) count as its value. Tests of shapes, types, "
            "flags and `None` are fine, and so are checks that only raise. Other branches in a `forward` are notes, "
            "and so are those that ask for the type of the tensor first (in other types they are never reached), and "
            "those that skip an encoder when its optional input is not used, or that return what is there already "
            "before a layer would run."
        ),
        why_is_this_bad=(
            "The compiler can't know which way the data will go: `torch.compile` ends the graph at the branch and "
            "starts a second one (GB0170 in the registry of torch 2.13), and with `fullgraph=True`, and in "
            "`torch.export`, it raises. Without a compiler the branch still makes the host wait for the GPU on every "
            "call."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\n\nclass Pool(nn.Module):\n    def forward(self, scores, valid):\n"
            "        if (valid == 0).any():\n"
            "            scores = scores.masked_fill(valid == 0, torch.finfo(scores.dtype).min)\n"
            "        return scores.softmax(-1)\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\n\nclass Pool(nn.Module):\n    def forward(self, scores, valid):\n"
            "        scores = scores.masked_fill(valid == 0, torch.finfo(scores.dtype).min)\n"
            "        return scores.softmax(-1)\n"
        ),
        fix_safety=(
            "Safe, and offered where the branch only skips an operation that does nothing when its mask is empty: "
            "the operation is done always. Other branches need `torch.where` or `torch.cond`."
        ),
    )
    valid = (
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x, mask=None):\n"
        "        if mask is not None:\n            x = x * mask\n        if x.shape[0] > 1 and x.dim() == 3:\n"
        "            x = x + 1\n        if self.training:\n            x = x * 2\n"
        "        if isinstance(x, tuple) or x.dtype == torch.float16 or x.requires_grad:\n            x = x + 1\n"
        "        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x, flag):\n"
        "        if flag:\n            x = x * 2\n        if flag > 3:\n            x = x + 1\n        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        if x.numel() == 0 or x.size(0) > len(self.layers):\n            return x\n        return x + 1\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n"
        "    def forward(self, x: torch.Tensor, output_all: torch.Tensor | None = None):\n"
        "        return (x, x * 2) if output_all else x\n",
        # a check that only raises costs a sync, and its author knows
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        if torch.isnan(x).any():\n            raise ValueError('NaN')\n        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        if not torch.compiler.is_compiling() and torch.isnan(x).any():\n            x = torch.zeros_like(x)\n"
        "        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        assert (x > 0).all()\n        return x\n",
        # the graph ended at `.item()`
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        large = (x > 1).any().item()\n        y = x * 2\n        return (y, x) if large else (y, None)\n",
        # not a forward, and nothing says that it is compiled
        "import torch\ndef clean(x):\n    if torch.isnan(x).any():\n        x = torch.zeros_like(x)\n    return x\n",
        "import torch\n@torch.compile\ndef f(x):\n    if x.shape[0] > 2 and x.ndim == 2 and x.is_cuda:\n"
        "        return x * 2\n    return x\n",
        "import torch\n@torch.compiler.disable\ndef g(x: torch.Tensor):\n    if x.sum() > 0:\n        return x * 2\n"
        "    return x\n@torch.compile\ndef f(x):\n    return g(x)\n",
        "import torch\n@torch.compile\ndef f(x, n: int):\n    if n > 2:\n        return x * n\n    return x\n",
        "import numpy as np\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        a = np.zeros(3)\n        if a.any():\n            x = x + 1\n        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.scale = 2.0\n    def forward(self, x):\n        if self.scale > 1:\n"
        "            x = x * self.scale\n"
        "        return x\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    @torch.no_grad()\n    def evaluate(self, x):\n"
        "        if (x > 1).any():\n            x = x + 1\n        return x\n",
    )
    invalid = (
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, s, valid):\n"
            "        if (valid == 0).any():\n            s = s.masked_fill(valid == 0, -1e4)\n        return s\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        bad = torch.isnan(x)\n        if bad.any():\n            x = torch.where(bad, 0.0, x)\n"
            "        return x\n",
            (6,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.fc = nn.Linear(2, 2)\n    def forward(self, x):\n        y = self.fc(x)\n"
            "        if y.mean() > 0:\n            return y\n        return -y\n",
            (9,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        return x * 2 if x.sum() > 0 else x\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        norm = torch.linalg.vector_norm(x)\n        if norm > 1.0 and self.training:\n"
            "            x = x / norm\n        return x\n",
            (6,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        while x.abs().max() > 1:\n            x = x / 2\n        return x\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        if x.abs().max().item() > 1:\n            x = x / 2\n        peak = float(torch.amax(x))\n"
            "        if peak > 1:\n            x = x / peak\n        if torch.allclose(x, x.mean()):\n"
            "            return x * 0\n        return x\n",
            (5, 8, 10),
        ),
        Invalid(
            "import torch\ndef helper(x):\n    t = torch.exp(x)\n    if t.sum() > 0:\n        return t\n    return x\n"
            "@torch.compile(fullgraph=True)\ndef f(x):\n    return helper(x)\n",
            (4,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def step(self, x: torch.Tensor):\n"
            "        if x.max() > 1:\n            print('large')\n        return x\n    def forward(self, x):\n"
            "        return self.step(x)\nnet = torch.compile(Net())\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n"
            "        h = torch.relu(x)\n        if h.sum() == 0:\n            raise ValueError('dead')\n"
            "        return h\n"
            "net = Net().cuda()\nnet.compile()\n",
            (6,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every branch in a compiled function or a module's forward whose test is a tensor's value."""
        regions = compiled_regions(file)
        branches: list[_Branch] = [*file.nodes(ast.If), *file.nodes(ast.While), *file.nodes(ast.IfExp)]
        for branch in branches:
            function = file.enclosing_function(branch)
            if function is None:
                continue
            region = regions.of(branch)
            if region is None and (function.name != "forward" or not is_module_method(file, function)):
                continue
            tested = next((test for test in _tests(branch.test) if _is_data(file, test)), None)
            if (
                tested is None
                or _was_read_before(file, tested)
                or asks_for_compiling(file, branch)
                or _asks_first(branch.test)
            ):
                continue
            severity = _severity(file, branch, region)
            if severity is not None:
                yield self._hit(file, branch, tested, region, severity)

    def _hit(
        self, file: FileContext, branch: _Branch, tested: ast.expr, region: Region | None, severity: Severity
    ) -> Hit:
        word = "while" if isinstance(branch, ast.While) else "if"
        number = graph_breaks().numbers(self.id)[0]
        if region is not None and region.whole:
            effect = f"compiling with `fullgraph=True` fails here ({number} of torch {graph_breaks().version})"
        else:
            effect = (
                f"`torch.compile` ends its graph here ({number} of torch {graph_breaks().version}), and the host "
                f"waits for the GPU"
            )
        related = ((region.node, "compiled here"),) if region is not None else ()
        return Hit(
            tested,
            f"`{word}` on what the tensor `{quoted(file, tested)}` holds: {effect}. Compute both ways and choose with "
            "`torch.where`, or use `torch.cond`.",
            severity=severity,
            hypothesis={"operand": quoted(file, tested), "line": tested.lineno},
            related=related,
            fix=_fix(file, branch),
        )


def _tests(test: ast.expr) -> Iterator[ast.expr]:
    """The parts of a condition whose truth is asked for."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _tests(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _tests(test.operand)
    elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "bool" and test.args:
        yield from _tests(test.args[0])
    else:
        yield test


def _is_data(file: FileContext, test: ast.expr) -> bool:
    """Whether a test is a tensor. A bare argument is a flag, whatever its annotation says."""
    if isinstance(test, ast.Name) and not file.values.definitions(test):
        return False
    evidence = tensor_evidence(file)
    return evidence.is_tensor(test) or evidence.is_read_from_tensor(test)


def _asks_first(test: ast.expr) -> bool:
    """`not is_compiling() and x.any()`: thought about."""
    if not isinstance(test, ast.BoolOp):
        return False
    called = [terminal_name(node.func) or "" for node in ast.walk(test) if isinstance(node, ast.Call)]
    return any(word in name for name in called for word in ("compiling", "scripting", "tracing"))


def _severity(file: FileContext, branch: _Branch, region: Region | None) -> Severity | None:
    if region is not None:
        return Severity.ERROR if region.whole else Severity.WARNING
    if surroundings(file, branch.body if isinstance(branch, ast.IfExp) else branch.body[0]) is Surroundings.ASIDE:
        return None
    if isinstance(branch, ast.IfExp):
        return Severity.WARNING
    if all(_only_speaks(statement) for statement in branch.body):
        return None
    if isinstance(branch, ast.While):
        return Severity.WARNING
    replaceable = _is_replaceable(branch.body) and _is_replaceable(branch.orelse)
    quiet = _asks_for_type(branch.test) or _skips_encoder(branch) or _is_fast_path(file, branch)
    quiet = quiet or _is_training_refused(file, branch)
    return Severity.WARNING if replaceable and not quiet else Severity.NOTE


def _is_training_refused(file: FileContext, branch: ast.If) -> bool:
    """Whether the branch runs in training only, and the file says that it does not support training."""
    if "support training" not in file.text:
        return False
    tests = [branch.test, *(outer.test for outer in file.ancestors(branch) if isinstance(outer, ast.If))]
    return any(dotted_name(part) == "self.training" for test in tests for part in ast.walk(test))


def _asks_for_type(test: ast.expr) -> bool:
    """`x.dtype == torch.float16 and x.isinf().any()`: in any other type the compiler never reaches the tensor."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return False
    first = test.values[0]
    return isinstance(first, ast.Compare) and terminal_name(first.left) == "dtype"


def _skips_encoder(branch: ast.If) -> bool:
    """`if images is not None and (ids == token).any(): h = self.encode(images)`: doing it always costs more."""
    if branch.orelse or not isinstance(branch.test, ast.BoolOp) or not isinstance(branch.test.op, ast.And):
        return False
    first = branch.test.values[0]
    if not isinstance(first, ast.Compare) or not isinstance(first.ops[0], ast.IsNot):
        return False
    called = [statement.value for statement in branch.body if isinstance(statement, ast.Assign)]
    return any(isinstance(call, ast.Call) and (dotted_name(call.func) or "").startswith("self.") for call in called)


def _is_fast_path(file: FileContext, branch: ast.If) -> bool:
    """`if cond: return x` of what is there already, before a layer: it is there to leave the layer out."""
    statement = branch.body[0]
    if len(branch.body) != 1 or branch.orelse or not isinstance(statement, ast.Return) or statement.value is None:
        return False
    value = statement.value
    results = value.elts if isinstance(value, ast.Tuple) else [value]
    function = file.enclosing_function(branch)
    if function is None or not all(isinstance(result, (ast.Name, ast.Attribute)) for result in results):
        return False
    return any(
        call.lineno > statement.lineno and (dotted_name(call.func) or "").startswith("self.")
        for call in file.nodes_in(function, ast.Call)
    )


def _was_read_before(file: FileContext, tested: ast.expr) -> bool:
    """Whether a test is a truth value that `.item()` took out of a tensor: the graph ended there (GP502)."""
    if not isinstance(tested, ast.Name):
        return False
    definition = file.values.single_definition(tested)
    return isinstance(definition, ast.Call) and terminal_name(definition.func) == "item"


def _only_speaks(statement: ast.stmt) -> bool:
    """Whether a statement only raises or reports."""
    if isinstance(statement, (ast.Raise, ast.Assert, ast.Pass)):
        return True
    if isinstance(statement, ast.If):
        return all(_only_speaks(inner) for inner in (*statement.body, *statement.orelse))
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and terminal_name(call.func) in _SPEAKING


def _is_replaceable(side: list[ast.stmt]) -> bool:
    """Whether a side of a branch is a few results that could be computed and chosen from."""
    if len(side) > _MOST_STATEMENTS:
        return False
    for statement in side:
        if not isinstance(statement, (ast.Assign, ast.AugAssign, ast.Return)):
            return False
        if statement.value is None or isinstance(statement.value, ast.Constant):
            return False
    return True


def _fix(file: FileContext, branch: _Branch) -> Rewrite | None:
    """`if mask.any(): x = x.masked_fill(mask, v)` without the `if`."""
    # A comment on the condition would be lost with it.
    if not isinstance(branch, ast.If) or branch.orelse or len(branch.body) != 1 or "#" in file.source(branch):
        return None
    mask, statement = _any_of(branch.test), branch.body[0]
    if mask is None or not isinstance(statement, ast.Assign) or statement.lineno != statement.end_lineno:
        return None
    if not _does_nothing_without(file, mask, statement):
        return None
    return Rewrite(FixSafety.SAFE, (Replacement(branch, file.source(statement)),))


def _any_of(test: ast.expr) -> ast.expr | None:
    """`mask` of `mask.any()`."""
    if isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and not test.args and not test.keywords:
        return test.func.value if test.func.attr == "any" else None
    return None


def _does_nothing_without(file: FileContext, mask: ast.expr, statement: ast.Assign) -> bool:
    """Whether an assignment leaves its target as it is where the mask selects nothing."""
    call, target = statement.value, statement.targets[0]
    if not isinstance(call, ast.Call) or len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return False
    arguments = [ast.dump(argument) for argument in call.args]
    name = ast.dump(ast.Name(target.id, ast.Load()))
    if terminal_name(call.func) == "masked_fill" and isinstance(call.func, ast.Attribute):
        return ast.dump(call.func.value) == name and arguments[:1] == [ast.dump(mask)]
    where = file.qualified_name(call.func) == "torch.where" and len(arguments) == 3
    return where and arguments[0] == ast.dump(mask) and arguments[2] == name
