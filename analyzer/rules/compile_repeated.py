"""`torch.compile` where it is done over and over (GP509), and results that its next call overwrites (GP510)."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.tensor_evidence import is_module_method

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
_KEEPING_METHODS = frozenset({"append", "insert", "appendleft"})


class CompileInLoop(Rule):
    id = "GP509"
    name = "compile-in-loop"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    torch_versions = "2.13"
    triggers = ("compile",)
    documentation = Documentation(
        what_it_does=(
            "Finds `torch.compile` of the same function, module or lambda in every round of a loop, and in the "
            "`forward` of a module. Compiling each layer of a model once in a loop is fine, and so is a result that is "
            "kept and asked for (`if self._fast is None:`)."
        ),
        why_is_this_bad=(
            "Each call wraps anew and looks everything up again: on torch 2.13 a call through a fresh wrapper takes "
            "3 to 100 ms where one through a kept wrapper takes 0.03 ms. Where the function closes over other values, "
            "or the module is another one with other constants, each round also compiles: twelve rounds built eight "
            "graphs and then ran uncompiled."
        ),
        faulty_example=(
            "import torch\n\n\ndef run(model, batches):\n    for x in batches:\n        yield torch.compile(model)(x)\n"
        ),
        right_example=(
            "import torch\n\n\ndef run(model, batches):\n    fast = torch.compile(model)\n    for x in batches:\n"
            "        yield fast(x)\n"
        ),
        fix_safety="No automatic fix: where the compiled object is kept is for the author to say.",
    )
    valid = (
        "import torch\ndef f(layers):\n    for i, layer in enumerate(layers):\n"
        "        layers[i] = torch.compile(layer)\n",
        "import torch\ndef f(model):\n    for name, child in model.named_children():\n"
        "        setattr(model, name, torch.compile(child))\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fast = torch.compile(self.slow)\n    def forward(self, x):\n        return self.fast(x)\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        if self.fast is None:\n"
        "            self.fast = torch.compile(self.slow)\n        return self.fast(x)\n",
        "import re\ndef f(lines):\n    for line in lines:\n        yield re.compile('a').match(line)\n",
        "import torch\ndef f(modes, model, x):\n    for mode in modes:\n"
        "        yield torch.compile(model, mode=mode)(x)\n",
        "import torch\ndef f(models, x):\n    for m in models:\n        net = m.eval()\n"
        "        yield torch.compile(net)(x)\n",
        "import torch\ndef f(model, xs):\n    for x in xs:\n        torch._dynamo.reset()\n"
        "        yield torch.compile(model)(x)\n",
    )
    invalid = (
        Invalid("import torch\ndef f(model, xs):\n    for x in xs:\n        yield torch.compile(model)(x)\n", (4,)),
        Invalid(
            "import torch\ndef f(xs):\n    for x in xs:\n        g = torch.compile(lambda t: t * 2)\n"
            "        yield g(x)\n",
            (4,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        return torch.compile(self.body)(x)\n",
            (5,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def forward(self, x):\n"
            "        @torch.compile\n        def inner(y):\n            return y * self.k\n        return inner(x)\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every compilation that happens again and again."""
        places: list[tuple[ast.expr, ast.expr | None]] = [
            (call, call.args[0] if call.args else None)
            for call in file.calls("compile")
            if file.qualified_name(call.func) == "torch.compile"
        ]
        decorators = {decorator for function in file.functions for decorator in function.decorator_list}
        places.extend((node, None) for node in decorators if file.qualified_name(node) == "torch.compile")
        for node, compiled in places:
            if _is_kept(file, node):
                continue
            where = _repeated(file, node, compiled)
            if where is not None:
                yield Hit(
                    node,
                    f"`torch.compile` runs {where}: each time everything is wrapped and looked up anew, and compiled "
                    "anew where a constant differs. Compile once, and keep the result.",
                )


def _is_kept(file: FileContext, node: ast.AST) -> bool:
    """Whether the result is stored where it outlives the round, or only made under a condition."""
    parent = file.parent(node)
    if isinstance(parent, ast.Assign) and any(isinstance(t, (ast.Attribute, ast.Subscript)) for t in parent.targets):
        return True
    if isinstance(parent, ast.Call) and terminal_name(parent.func) in ("setattr", *_KEEPING_METHODS):
        return True
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.If, ast.IfExp)):
            return True
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in outer.decorator_list:
            names = " ".join(ast.unparse(decorator) for decorator in outer.decorator_list)
            return "cache" in names
    return False


def _repeated(file: FileContext, node: ast.AST, compiled: ast.expr | None) -> str | None:
    """In words, what makes a place run again and again with the same thing to compile; None when nothing does."""
    child = node
    for outer in file.ancestors(node):
        if isinstance(outer, _LOOPS) and child in outer.body:
            return "in every round of this loop" if _is_invariant(outer, node, compiled) else None
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in outer.decorator_list:
            in_forward = outer.name == "forward" and is_module_method(file, outer)
            return "in every forward pass" if in_forward else None
        child = outer
    return None


def _is_invariant(loop: ast.stmt, node: ast.AST, compiled: ast.expr | None) -> bool:
    """Whether nothing in the call changes from round to round, and nothing is reset on purpose."""
    inside = list(ast.walk(loop))
    if any(isinstance(n, ast.Call) and terminal_name(n.func) == "reset" for n in inside):
        return False
    bound = {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(compiled, ast.Lambda):
        return True
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return compiled is not None and not read & bound


class OverwrittenGraphOutput(Rule):
    id = "GP510"
    name = "cudagraph-output-kept"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    torch_versions = "2.13"
    triggers = ("reduce-overhead", "max-autotune")
    documentation = Documentation(
        what_it_does=(
            "Finds results of a function compiled with `mode='reduce-overhead'` or `'max-autotune'` that a loop "
            "collects in a list without `clone()`. Silent where the file calls "
            "`torch.compiler.cudagraph_mark_step_begin` or clones."
        ),
        why_is_this_bad=(
            "These modes replay CUDA graphs, which write their results to the same memory each time: the next call "
            "overwrites what the list holds. Torch notices most of these accesses and raises, not all of them."
        ),
        faulty_example=(
            "import torch\n\n\ndef run(model, batches):\n    fast = torch.compile(model, mode='reduce-overhead')\n"
            "    kept = []\n    for x in batches:\n        kept.append(fast(x))\n    return kept\n"
        ),
        right_example=(
            "import torch\n\n\ndef run(model, batches):\n    fast = torch.compile(model, mode='reduce-overhead')\n"
            "    kept = []\n    for x in batches:\n        kept.append(fast(x).clone())\n    return kept\n"
        ),
        fix_safety="No automatic fix: what the function returns may be a tuple.",
    )
    valid = (
        "import torch\ndef f(m, xs):\n    fast = torch.compile(m)\n    kept = []\n    for x in xs:\n"
        "        kept.append(fast(x))\n    return kept\n",
        "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='reduce-overhead')\n    kept = []\n"
        "    for x in xs:\n        kept.append(fast(x).clone())\n    return kept\n",
        "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='reduce-overhead')\n    kept = []\n"
        "    for x in xs:\n        y = fast(x)\n        kept.append(y.sum().item())\n    return kept\n",
        "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='reduce-overhead')\n    kept = []\n"
        "    for x in xs:\n        torch.compiler.cudagraph_mark_step_begin()\n        kept.append(fast(x))\n"
        "    return kept\n",
        "import torch\ndef f(m, x):\n    fast = torch.compile(m, mode='max-autotune-no-cudagraphs')\n"
        "    return [fast(x) for _ in range(3)]\n",
    )
    invalid = (
        Invalid(
            "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='reduce-overhead')\n    kept = []\n"
            "    for x in xs:\n        kept.append(fast(x))\n    return kept\n",
            (6,),
        ),
        Invalid(
            "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='max-autotune')\n    kept = []\n"
            "    for x in xs:\n        y = fast(x)\n        kept.append(y)\n    return torch.stack(kept)\n",
            (6,),
        ),
        Invalid(
            "import torch\ndef f(m, xs):\n    fast = torch.compile(m, mode='reduce-overhead')\n"
            "    return [fast(x) for x in xs]\n",
            (4,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every result of such a function that a loop keeps as it is."""
        if "cudagraph_mark_step_begin" in file.text:
            return
        for compile_call in file.calls("compile"):
            name = _assigned_name(file, compile_call)
            function = file.enclosing_function(compile_call)
            if name is None or function is None or not _uses_graphs(file, compile_call):
                continue
            for call in file.nodes_in(function, ast.Call):
                if isinstance(call.func, ast.Name) and call.func.id == name and _is_collected(file, function, call):
                    yield Hit(
                        call,
                        f"The result of `{name}` is kept while a later call writes to the same memory (CUDA graphs): "
                        "keep a `clone()` of it.",
                        related=((compile_call, "compiled with CUDA graphs here"),),
                    )


def _uses_graphs(file: FileContext, call: ast.Call) -> bool:
    return file.qualified_name(call.func) == "torch.compile" and any(
        keyword.arg == "mode" and isinstance(keyword.value, ast.Constant) and keyword.value.value in _GRAPH_MODES
        for keyword in call.keywords
    )


def _assigned_name(file: FileContext, node: ast.AST) -> str | None:
    parent = file.parent(node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        return parent.targets[0].id
    return None


def _is_collected(file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
    """Whether a loop or a comprehension collects the result as it is."""
    parent = file.parent(call)
    if isinstance(parent, ast.ListComp):
        return parent.elt is call
    if not any(isinstance(outer, _LOOPS) for outer in file.ancestors(call)):
        return False
    if _is_keeping(parent):
        return True
    name = _assigned_name(file, call)
    return name is not None and any(
        use.id == name and isinstance(use.ctx, ast.Load) and _is_keeping(file.parent(use))
        for use in file.nodes_in(function, ast.Name)
    )


def _is_keeping(parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.Call) and terminal_name(parent.func) in _KEEPING_METHODS
