"""What a Function keeps between forward and backward: saved twice (GP312), saved as no tensor (GP313), kept outside the
context (GP314), drawn anew (GP315)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.autograd_functions import AutogradFunction, Save, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.gradient_returns import own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, dotted_name, terminal_name


class SavedTwice(Rule):
    """Forward calls save_for_backward twice; only the last call counts."""

    id = "GP312"
    name = "saved-twice"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("save_for_backward",)
    documentation = Documentation(
        what_it_does=(
            "Finds a second `ctx.save_for_backward` on the way through a forward that has already made one. Calls in "
            "different branches, of which only one runs, are left alone."
        ),
        why_is_this_bad=(
            "The second call replaces what the first one saved, silently. Backward then unpacks the wrong tensors: an "
            "error if the number differs, a wrong gradient if it does not."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nctx.save_for_backward(w)\nreturn x * w",
            "x, w = ctx.saved_tensors\nreturn grad * w, grad * x",
            "x, w",
        ),
        right_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x * w", "x, w = ctx.saved_tensors\nreturn grad * w, grad * x", "x, w"
        ),
        fix_safety="Unsafe: saves everything in one call, offered where backward unpacks that many tensors.",
    )
    valid = (
        combined("ctx.save_for_backward(x, w)\nreturn x * w", "return grad, grad", "x, w"),
        combined(
            "if ctx.needs_input_grad[1]:\n    ctx.save_for_backward(x, w)\nelse:\n    ctx.save_for_backward(w)\n"
            "return x * w",
            "return grad, grad",
            "x, w",
        ),
        combined(
            "if ctx.needs_input_grad[1]:\n    ctx.save_for_backward(x, w)\n    return x * w\n"
            "ctx.save_for_backward(w)\nreturn x * w",
            "return grad, grad",
            "x, w",
        ),
        combined(
            "try:\n    ctx.save_for_backward(x)\nexcept ValueError:\n    ctx.save_for_backward(w)\nreturn x * w",
            "return grad, grad",
            "x, w",
        ),
    )
    invalid = (
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nctx.save_for_backward(w)\nreturn x * w",
                "x, w = ctx.saved_tensors\nreturn grad * w, grad * x",
                "x, w",
            ),
            (10,),
        ),
        Invalid(
            combined(
                "ctx.save_for_backward(x)\nif x.ndim > 1:\n    ctx.save_for_backward(w)\nreturn x * w",
                "return grad, grad",
                "x, w",
            ),
            (11,),
        ),
        Invalid(
            combined(
                "if x.ndim > 1:\n    ctx.save_for_backward(x)\nctx.save_for_backward(w)\nreturn x * w",
                "return grad, grad",
                "x, w",
            ),
            (11,),
        ),
        Invalid(
            combined("for t in (x, w):\n    ctx.save_for_backward(t)\nreturn x * w", "return grad, grad", "x, w"), (10,)
        ),
        Invalid(
            combined(
                "with torch.no_grad():\n    ctx.save_for_backward(x)\nctx.save_for_backward(w)\nreturn x",
                "return grad, grad",
                "x, w",
            ),
            (11,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every call after another one, and every call in a loop."""
        for function in autograd_functions(file):
            saves = sorted(function.saves or (), key=lambda save: (save.call.lineno, save.call.col_offset))
            for number, save in enumerate(saves):
                before = next((other for other in saves[:number] if _both_run(file, other.call, save.call)), None)
                looped = _in_loop(file, save.call)
                if before is None and not looped:
                    continue
                certain = before is not None and _runs_always(function, save.call)
                yield Hit(
                    save.call,
                    "this replaces what was saved before: only the last `save_for_backward` counts. Save everything "
                    "in one "
                    "call.",
                    severity=None if certain else Severity.WARNING,
                    hypothesis={"function": function.name, "symbol": file.symbol(save.call)},
                    related=((before.call, "what is saved here is lost"),) if before is not None else (),
                    fix=_merged(function, before, save) if certain and before is not None and len(saves) == 2 else None,
                )


def _branches(file: FileContext, node: ast.AST) -> list[tuple[ast.AST, str]]:
    """The conditional blocks around a node up to its function, from the outside in: (statement, field)."""
    found: list[tuple[ast.AST, str]] = []
    child = node
    for outer in file.ancestors(node):
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(outer, (ast.If, ast.Try, ast.For, ast.While, ast.Match)):
            fields = ("body", "orelse", "handlers", "finalbody", "cases")
            found.append((outer, next((name for name in fields if child in getattr(outer, name, ())), "test")))
        child = outer
    return found[::-1]


def _both_run(file: FileContext, first: ast.Call, second: ast.Call) -> bool:
    """Whether the second of two calls can run after the first: not in another branch, and nothing leaves between."""
    one, two = _branches(file, first), _branches(file, second)
    for mine, theirs in zip(one, two, strict=False):
        if mine[0] is theirs[0] and mine[1] != theirs[1]:
            return False
    for owner, field in one:
        block = getattr(owner, field, None)
        if (owner, field) not in two and isinstance(block, list) and block:
            last = block[-1].body[-1] if isinstance(block[-1], ast.ExceptHandler) else block[-1]
            if isinstance(last, (ast.Return, ast.Raise, ast.Continue, ast.Break)):
                return False
    return True


def _runs_always(function: AutogradFunction, call: ast.Call) -> bool:
    return not _branches(function.file, call)


def _in_loop(file: FileContext, call: ast.Call) -> bool:
    return any(isinstance(owner, (ast.For, ast.While)) for owner, _ in _branches(file, call))


def _merged(function: AutogradFunction, first: Save, second: Save) -> Rewrite | None:
    """One call with both lists, where backward takes that many."""
    file = function.file
    statements = [file.statement(save.call) for save in (first, second)]
    if first.count is None or second.count is None or not all(isinstance(item, ast.Expr) for item in statements):
        return None
    total = first.count + second.count
    if not any(unpack.exact and unpack.count == total for unpack in function.unpacks):
        return None
    arguments = ", ".join((*first.names, *second.names))
    removed, kept = statements
    assert removed is not None
    assert kept is not None
    text = f"{file.source(second.call.func)}({arguments})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(removed, ""), Replacement(kept, text)))


class SavedNonTensor(Rule):
    """save_for_backward is given something that is no tensor."""

    id = "GP313"
    name = "saved-non-tensor"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("save_for_backward",)
    documentation = Documentation(
        what_it_does=(
            "Finds a number, string, shape, list or tuple among the arguments of `ctx.save_for_backward`, and keyword "
            "arguments, which it has none of. Tensors and None are right."
        ),
        why_is_this_bad=(
            "Torch raises `save_for_backward can only save variables, but argument 1 is of type int` as soon as an "
            "input "
            "requires a gradient; without one, nothing is checked, so evaluation works."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x, x.shape)\nreturn x.sum()",
            "x, shape = ctx.saved_tensors\nreturn grad.expand(shape)",
        ),
        right_example=combined("ctx.shape = x.shape\nreturn x.sum()", "return grad.expand(ctx.shape)"),
        fix_safety="No automatic fix: keep it as an attribute of `ctx`, and read it from there in backward.",
    )
    valid = (
        combined("ctx.save_for_backward(x, None)\nreturn x", "return grad"),
        combined("ctx.save_for_backward(x, scale)\nreturn x", "return grad, None", "x, scale"),
        combined("ctx.save_for_backward(x, *rest)\nreturn x", "return grad, None", "x, *rest"),
        combined("n = torch.tensor(2)\nctx.save_for_backward(x, n)\nreturn x", "return grad"),
        combined("ctx.save_for_backward(x, k)\nreturn x", "return grad, None", "x, k: torch.Tensor | float"),
        combined("k = torch.as_tensor(k)\nctx.save_for_backward(x, k)\nreturn x", "return grad, None", "x, k: float"),
        combined("ctx.save_for_backward(x, w)\nreturn x", "return grad, None", "x, w=None"),
    )
    invalid = (
        Invalid(combined("ctx.save_for_backward(x, x.shape)\nreturn x", "return grad"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, x.size(0))\nreturn x", "return grad"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, 2.0)\nreturn x", "return grad"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, k)\nreturn x", "return grad, None", "x, k: float"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, k)\nreturn x", "return grad, None", "x, k=2"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, list(rest))\nreturn x", "return grad, None", "x, *rest"), (9,)),
        Invalid(combined("ctx.save_for_backward(x, rest)\nreturn x", "return grad, None", "x, *rest"), (9,)),
        Invalid(combined("ctx.save_for_backward([x, x])\nreturn x", "return grad"), (9,)),
        Invalid(combined("n = len(x)\nctx.save_for_backward(x, n)\nreturn x", "return grad"), (10,)),
        Invalid(combined("ctx.save_for_backward(x, x.max().item())\nreturn x", "return grad"), (9,)),
        Invalid(combined("ctx.save_for_backward(x=x)\nreturn x", "return grad"), (9,)),
        Invalid(combined("kept = (x, x)\nctx.save_for_backward(kept)\nreturn x", "return grad"), (10,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every argument of every call."""
        for function in autograd_functions(file):
            for save in function.saves or ():
                for keyword in save.call.keywords:
                    if keyword.arg is not None:
                        yield _non_tensor(function, save, keyword.value, "a keyword argument, which there are none of")
                for argument in save.call.args:
                    what = _what(function, argument)
                    if what is not None:
                        yield _non_tensor(function, save, argument, what)


def _non_tensor(function: AutogradFunction, save: Save, argument: ast.expr, what: str) -> Hit:
    file = function.file
    return Hit(
        argument,
        f"`{file.source(argument)}` is {what}: `save_for_backward` raises on everything but tensors and None. Keep "
        f"it as an "
        "attribute of `ctx`.",
        hypothesis={"function": function.name, "argument": file.source(argument), "symbol": file.symbol(save.call)},
    )


_NUMBERS = frozenset({"size", "numel", "dim", "item", "tolist", "stride", "len", "int", "float", "str", "data_ptr"})


def _what(function: AutogradFunction, argument: ast.expr, depth: int = 0) -> str | None:
    """What an argument is, when it is certainly no tensor."""
    found: str | None = None
    match argument:
        case ast.Constant(value=value):
            found = None if value is None else f"a {type(value).__name__}"
        case ast.List() | ast.Tuple() | ast.ListComp() | ast.Dict():
            found = "no tensor but a collection"
        case ast.Attribute(attr="shape" | "dtype" | "device" | "ndim" as attribute):
            found = f"a {attribute}"
        case ast.Call(func=called, args=arguments):
            name = terminal_name(called) or ""
            builtin = isinstance(called, ast.Name) and name in {"len", "int", "float", "str"}
            collects = isinstance(called, ast.Name) and name in {"list", "tuple", "dict", "set", "zip", "map", "range"}
            method = isinstance(called, ast.Attribute) and name in _NUMBERS - {"int", "float", "len", "str"}
            # A method of something else than a tensor may be called `size` as well: only plain ones count.
            found = "no tensor but a number or shape" if builtin or (method and len(arguments) <= 1) else None
            found = "no tensor but a collection" if collects else found
        case ast.Name() if depth < 3:
            found = _what_name_is(function, argument, depth)
    return found


def _what_name_is(function: AutogradFunction, name: ast.Name, depth: int) -> str | None:
    definition = function.file.values.single_definition(name)
    if definition is not None:
        return _what(function, definition, depth + 1)
    if function.file.values.definitions(name) or function.setup_context is not None or function.forward is None:
        return None
    arguments = function.forward.args
    positional = [*arguments.posonlyargs, *arguments.args]
    parameter = next((item for item in positional if item.arg == name.id), None)
    if parameter is None:
        is_starred = arguments.vararg is not None and arguments.vararg.arg == name.id
        return "a tuple of arguments" if is_starred else None
    if isinstance(parameter.annotation, ast.Name) and parameter.annotation.id in {"int", "float", "bool", "str"}:
        return f"annotated as {parameter.annotation.id}"
    place = positional.index(parameter) - (len(positional) - len(arguments.defaults))
    default = arguments.defaults[place] if place >= 0 and parameter.annotation is None else None
    if isinstance(default, ast.Constant) and default.value is not None:
        return f"by its default a {type(default.value).__name__}"
    return None


class StateOutsideContext(Rule):
    """Forward leaves something on the class or in the module for backward."""

    id = "GP314"
    name = "state-outside-context"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a forward that assigns to an attribute of its class or of an object around it, to a global "
            "variable, or "
            "into a list or dictionary of the module, where backward reads the same. Constants that nobody assigns "
            "are left alone."
        ),
        why_is_this_bad=(
            "There is one class for all calls: with two applications in one graph, both backwards read what the last "
            "forward left (a gradient of 10 instead of 2 in our measurement), silently. Each call has a context of its "
            "own: `ctx`."
        ),
        faulty_example=combined("Op.scale = scale\nreturn x * scale", "return grad * Op.scale, None", "x, scale"),
        right_example=combined("ctx.scale = scale\nreturn x * scale", "return grad * ctx.scale, None", "x, scale"),
        fix_safety="No automatic fix: the value belongs on `ctx`, a tensor into `ctx.save_for_backward`.",
    )
    valid = (
        combined("ctx.scale = scale\nreturn x * scale", "return grad * ctx.scale, None", "x, scale"),
        combined("return x * SCALE", "return grad * SCALE", head="SCALE = 2.0\n\n\n"),
        combined("Op.calls = Op.calls + 1\nreturn x * 2", "return grad * 2"),
        combined("local = [x]\nlocal.append(x)\nreturn x * 2", "local = [grad]\nreturn local[0]"),
        combined("self.scale = 2\nreturn x * 2", "return grad * self.scale").replace("ctx", "self"),
        combined("scale = make()\nscale.kept = x\nreturn x * 2", "scale = make()\nreturn grad * scale.kept"),
        combined("torch.backends.flag = True\nreturn x * 2", "return grad if torch.backends.flag else None"),
        combined("x.kept = 2\nreturn x * 2", "return grad * ctx.x.kept"),
        combined("ctx.cache = {}\nctx.cache['x'] = x\nreturn x", "return grad * ctx.cache['x']"),
    )
    invalid = (
        Invalid(combined("Op.scale = scale\nreturn x * scale", "return grad * Op.scale, None", "x, scale"), (9,)),
        Invalid(combined("global kept\nkept = x\nreturn x * x", "return 2 * grad * kept"), (10,)),
        Invalid(
            combined("STATE['x'] = x\nreturn x * x", "return 2 * grad * STATE['x']", head="STATE = {}\n\n\n"), (12,)
        ),
        Invalid(
            combined("STACK.append(x)\nreturn x * x", "return 2 * grad * STACK.pop()", head="STACK = []\n\n\n"), (12,)
        ),
        Invalid(
            combined("state.kept = x\nreturn x * x", "return 2 * grad * state.kept", head="state = State()\n\n\n"),
            (12,),
        ),
        Invalid(
            "import torch\n\n\nclass Layer(torch.nn.Module):\n    def forward(self, x):\n"
            "        class Op(torch.autograd.Function):\n            @staticmethod\n            def forward(ctx, x):\n"
            "                self.kept = x\n                return x * x\n\n            @staticmethod\n"
            "            def backward(ctx, grad):\n                return 2 * grad * self.kept\n\n"
            "        return Op.apply(x)\n",
            (9,),
        ),
        Invalid(
            combined("cls.kept = x\nreturn x * x", "return 2 * grad * cls.kept")
            .replace("@staticmethod", "@classmethod")
            .replace("(ctx, ", "(cls, ctx, "),
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Everything that forward or setup_context leaves outside, if backward reads it."""
        for function in autograd_functions(file):
            saver, backward = function.saver, function.backward
            if saver is None or backward is None:
                continue
            read = {key for node in own_nodes(backward) if (key := _outside(function, backward, node)) is not None}
            seen: set[str] = set()
            for node, key in _left_outside(function, saver):
                if key in read and key not in seen:
                    seen.add(key)
                    yield Hit(
                        node,
                        f"`{key}` is one for all calls: with two applications in a graph, both backwards read what the "
                        "last forward left there. Keep it on the context.",
                        hypothesis={"function": function.name, "state": key, "symbol": file.symbol(node)},
                        related=((backward, "backward reads it"),),
                    )


def _outside(function: AutogradFunction, method: FunctionNode, node: ast.AST) -> str | None:
    """What an expression reads that outlives the call, as one key.

    `Op.scale` (also as `cls.scale`), an attribute of an object around the Function, or the name of something around it.
    """
    file = function.file
    given = {argument.arg for argument in ast.walk(method.args) if isinstance(argument, ast.arg)}
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = node.value.id
        is_class_method = any(dotted_name(item) == "classmethod" for item in method.decorator_list)
        first = method.args.args[0].arg if is_class_method and method.args.args else None
        if owner in {function.name, first}:
            return f"{function.name}.{node.attr}"
        is_local = owner in given or bool(file.values.definitions(node.value)) or owner in file.imports
        return None if is_local else f"{owner}.{node.attr}"
    if isinstance(node, ast.Name) and not file.values.definitions(node):
        return node.id if node.id not in given else None
    return None


_KEEPING = frozenset({"append", "add", "update", "setdefault", "put", "insert", "extend"})


def _left_outside(function: AutogradFunction, saver: FunctionNode) -> Iterator[tuple[ast.AST, str]]:
    """(statement, what it assigns) for everything that outlives the call and is not on the context."""
    declared = {name for node in own_nodes(saver) if isinstance(node, ast.Global) for name in node.names}
    module = function.file.values.bindings(function.file.tree)
    found: list[tuple[ast.AST, str]] = []
    for node in own_nodes(saver):
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    place = target.value if isinstance(target, ast.Subscript) else target
                    key = _outside(function, saver, place)
                    if isinstance(target, ast.Name):
                        key = target.id if target.id in declared else None
                    elif isinstance(place, ast.Name):
                        key = place.id if module.all(place.id) and key is not None else None
                    if key is not None:
                        found.append((node, key))
            case ast.Call(func=ast.Attribute(attr=attribute, value=ast.Name() as owner)) if attribute in _KEEPING:
                key = _outside(function, saver, owner)
                if key is not None and module.all(owner.id):
                    found.append((node, key))
    return iter(sorted(found, key=lambda item: getattr(item[0], "lineno", 0)))


class ChangingState(Rule):
    """Backward reads anew what may have changed since forward: random numbers, or a global variable."""

    id = "GP315"
    name = "backward-reads-changing-state"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a backward that draws random numbers where forward draws some as well, and that does not bring back "
            "the state of the generator (`set_rng_state`, `fork_rng`, `manual_seed`, a `generator`); and one that "
            "reads a "
            "variable of the module which forward has read, and which a function of the file assigns (`global`)."
        ),
        why_is_this_bad=(
            "Backward then uses another mask or other noise than forward: the gradient belongs to a different "
            "result, and "
            "nothing says so."
        ),
        faulty_example=combined(
            "mask = torch.rand_like(x) > 0.5\nreturn x * mask", "mask = torch.rand_like(grad) > 0.5\nreturn grad * mask"
        ),
        right_example=combined(
            "mask = torch.rand_like(x) > 0.5\nctx.save_for_backward(mask)\nreturn x * mask",
            "(mask,) = ctx.saved_tensors\nreturn grad * mask",
        ),
        fix_safety="No automatic fix: save what was drawn or read, or the state of the generator.",
    )
    valid = (
        combined("ctx.mask = torch.rand_like(x) > 0.5\nreturn x * ctx.mask", "return grad * ctx.mask"),
        combined("return x * 2", "return grad + torch.randn_like(grad)"),
        combined("return x * SCALE", "return grad * SCALE", head="SCALE = 2.0\n\n\n"),
        combined(
            "ctx.scale = SCALE\nreturn x * SCALE",
            "return grad * ctx.scale",
            head="SCALE = 2.0\n\n\ndef change(k):\n    global SCALE\n    SCALE = k\n\n\n",
        ),
        combined(
            "return KERNEL.forward(x)",
            "return KERNEL.backward(grad)",
            head="KERNEL = None\n\n\ndef load():\n    global KERNEL\n    KERNEL = find()\n\n\n",
        ),
        combined(
            "return x * 2",
            "return grad * 2 * WEIGHT",
            head="WEIGHT = 2.0\n\n\ndef change(k):\n    global WEIGHT\n    WEIGHT = k\n\n\n",
        ),
        combined(
            "ctx.state = torch.get_rng_state()\nreturn x * torch.rand_like(x)",
            "torch.set_rng_state(ctx.state)\nreturn grad * torch.rand_like(grad)",
        ),
        combined("return x * torch.rand(3, generator=g)", "return grad * torch.rand(3, generator=g), None", "x, g"),
    )
    invalid = (
        Invalid(
            combined(
                "mask = torch.rand_like(x) > 0.5\nreturn x * mask",
                "mask = torch.rand_like(grad) > 0.5\nreturn grad * mask",
            ),
            (14,),
        ),
        Invalid(combined("return F.dropout(x, 0.5)", "return F.dropout(grad, 0.5)"), (13,)),
        Invalid(
            combined(
                "return x * SCALE",
                "return grad * SCALE",
                head="SCALE = 2.0\n\n\ndef change(k):\n    global SCALE\n    SCALE = k\n\n\n",
            ),
            (21,),
        ),
        Invalid(
            combined(
                "return x * torch.empty_like(x).bernoulli_(0.5)", "return grad * torch.empty_like(grad).bernoulli_(0.5)"
            ),
            (13,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """The first draw of every backward whose forward draws too, and every variable that may have changed."""
        functions = autograd_functions(file)
        for function in functions:
            forward, backward = function.forward, function.backward
            if forward is None or backward is None:
                continue
            drawn = _draws(file, backward) if _draws(file, forward) and not _restores(backward) else []
            if drawn:
                first = min(drawn, key=lambda call: (call.lineno, call.col_offset))
                yield Hit(
                    first,
                    "backward draws its own random numbers, not those that forward used: the gradient belongs to "
                    "another "
                    "result. Save what forward drew.",
                    hypothesis={"function": function.name, "symbol": file.symbol(first)},
                    related=tuple((call, "forward draws here") for call in _draws(file, forward)[:1]),
                )
            yield from _changing(function, forward, backward)


def _changing(function: AutogradFunction, forward: FunctionNode, backward: FunctionNode) -> Iterator[Hit]:
    """Variables of the module that forward and backward both read and that a function elsewhere assigns."""
    file = function.file
    declared = {
        name: statement
        for statement in file.nodes(ast.Global)
        if file.enclosing_autograd_function(statement) is None
        for name in statement.names
    }
    if not declared:
        return
    read = {node.id for node in own_nodes(forward) if isinstance(node, ast.Name) and _outside(function, forward, node)}
    seen: set[str] = set()
    for node in file.nodes_in(backward, ast.Name):
        # What is only called or asked for attributes is a module or a kernel that was loaded late.
        calculated = isinstance(file.parent(node), (ast.BinOp, ast.UnaryOp))
        known = calculated and node.id in declared and node.id in read and node.id not in seen
        if known and isinstance(node.ctx, ast.Load) and _outside(function, backward, node):
            seen.add(node.id)
            yield Hit(
                node,
                f"`{node.id}` may have been assigned anew since forward read it: the gradient then belongs to another "
                "result. Keep its value on the context.",
                hypothesis={"function": function.name, "state": node.id, "symbol": file.symbol(node)},
                related=((declared[node.id], "it is assigned in this function"),),
            )


_DRAWING = frozenset(
    {
        *("torch.rand", "torch.randn", "torch.rand_like", "torch.randn_like", "torch.randint", "torch.randint_like"),
        *("torch.randperm", "torch.bernoulli", "torch.multinomial", "torch.normal", "torch.poisson"),
        *("torch.nn.functional.dropout", "torch.dropout", "torch.nn.functional.gumbel_softmax"),
    }
)
_DRAWING_METHODS = frozenset({"bernoulli_", "uniform_", "normal_", "random_", "exponential_", "bernoulli", "cauchy_"})
_RESTORING = frozenset({"set_rng_state", "fork_rng", "manual_seed", "set_state", "seed"})


def _draws(file: FileContext, method: FunctionNode) -> list[ast.Call]:
    found: list[ast.Call] = []
    for node in own_nodes(method):
        if not isinstance(node, ast.Call) or any(keyword.arg == "generator" for keyword in node.keywords):
            continue
        qualified = file.qualified_name(node.func)
        is_method = qualified is None and isinstance(node.func, ast.Attribute) and node.func.attr in _DRAWING_METHODS
        if qualified in _DRAWING or is_method:
            found.append(node)
    return found


def _restores(backward: FunctionNode) -> bool:
    return any(isinstance(node, ast.Call) and terminal_name(node.func) in _RESTORING for node in own_nodes(backward))
