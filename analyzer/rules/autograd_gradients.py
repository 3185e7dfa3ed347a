"""Which gradients a backward gives: none where there is one (GP304), in another order (GP305), or without looking at
what came in (GP324)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.autograd_functions import AutogradFunction, autograd_functions
from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.function_sources import SourceFinder
from analyzer.gradient_returns import Gradients, is_none, own_nodes
from analyzer.rules.autograd_examples import combined
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.syntax import FunctionNode, dotted_name, parameters, terminal_name
from analyzer.values.domain import Gradient, Kind

# Inputs that are tensors and have no gradient in anybody's mind.
_NEVER_TRAINED = re.compile(
    r"mask|cond|(^|_)inds?(_|$)|ind(ex|ices|ptr)|idx|(^|_)ids?$|label|target|length|offset|size|shape|stride|(^|_)perm|noise|rand|seed|bucket"
    r"|position|coord|(^|_)eps|count|num|zero_?point|^zp$|running|threshold|(^|_)dim|step|flag|segment|batch|valid|grad"
    r"|quant|bits?$|group|choice|sorted|expert|token|gumbel|uniform",
    re.IGNORECASE,
)
_DECIDED = re.compile(
    r"straight.?through|\bSTE\b|frozen|differentiable|no grad|without (a )?grad|stop.?grad|\bNone\b|not (be )?train"
    r"|surrogate|fixed|detach",
    re.IGNORECASE,
)
# Names of what is usually trained, or an operand on a par with the first one.
_USUALLY_TRAINED = re.compile(
    r"^(w|b|q|k|v|x|y|a)\d?$|weight|bias|gamma|beta|kernel|filter|scale|gain|theta|param|alpha|slope|temperature"
    r"|query|key|value|input|other|shift|embed|feature|loc|mean|(^|_)(std|sigma|mu)",
    re.IGNORECASE,
)
_NAMED_TENSORS = frozenset({"weight", "weights", "bias", "gamma", "beta"})
_NOT_A_TENSOR = frozenset(
    {"int", "float", "bool", "str", "Callable", "ndarray", "dict", "list", "Size", "dtype", "device"}
)
_FLAT = frozenset(
    {"round", "floor", "ceil", "sign", "trunc", "round_", "floor_", "sign_", "heaviside", "clamp", "clamp_"}
)


class MissingInputGradient(Rule):
    """Backward gives None for a tensor that forward calculates with."""

    id = "GP304"
    name = "missing-input-gradient"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("gradcheck", "gradient_flow")
    torch_versions = "2.13"
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a custom `torch.autograd.Function` whose backward always gives None for an input "
            "that is a tensor and "
            "from which forward computes its result by differentiable operations. Indices, masks, labels, noise, "
            "numbers, what every call in the file passes without a gradient, and whatever the docstring calls frozen, "
            "straight-through or not differentiable is left alone."
        ),
        why_is_this_bad=(
            "None means zero, without a word. A parameter that is passed there never trains (`grad` stays None), while "
            "the loss still falls because of the others."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x @ w",
            "x, w = ctx.saved_tensors\nreturn grad @ w.t(), None",
            "x, w",
        ),
        right_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x @ w",
            "x, w = ctx.saved_tensors\nreturn grad @ w.t(), x.t() @ grad",
            "x, w",
        ),
        fix_safety="No automatic fix: the formula of the gradient has to be written.",
    )
    valid = (
        combined("ctx.scale = scale\nreturn x * scale", "return grad * ctx.scale, None", "x, scale"),
        combined("ctx.save_for_backward(mask)\nreturn x * mask", "return grad * ctx.saved_tensors[0], None", "x, mask"),
        combined("ctx.save_for_backward(k)\nreturn x * k", "return grad * ctx.saved_tensors[0], None", "x, k: float"),
        combined(
            "ctx.save_for_backward(w)\nreturn x @ w",
            "(w,) = ctx.saved_tensors\nreturn grad @ w.t(), None",
            "x, w",
            docstring="A product whose weight is frozen.",
        ),
        combined(
            "ctx.save_for_backward(w)\nreturn x @ w",
            "(w,) = ctx.saved_tensors\ngw = grad.t() if ctx.needs_input_grad[1] else None\nreturn grad @ w.t(), gw",
            "x, w",
        ),
        # every call passes a buffer
        combined(
            "ctx.save_for_backward(w)\nreturn x @ w",
            "(w,) = ctx.saved_tensors\nreturn grad @ w.t(), None",
            "x, w",
            after=(
                "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.register_buffer('w', torch.ones(2, 2))\n\n    def forward(self, x):\n"
                "        return Op.apply(x, self.w)\n"
            ),
        ),
        # whoever needs the missing gradient is told so
        combined(
            "ctx.save_for_backward(w)\nreturn x @ w",
            "(w,) = ctx.saved_tensors\nif ctx.needs_input_grad[1]:\n    raise NotImplementedError\n"
            "return grad @ w.t(), None",
            "x, w",
        ),
        combined(
            "ctx.save_for_backward(o)\nreturn torch.gather(x, 1, o)",
            "return torch.zeros_like(grad).scatter(1, ctx.saved_tensors[0], grad), None",
            "x, o",
        ),
        combined(
            "ctx.save_for_backward(c)\nreturn torch.where(c, x, 0)",
            "return torch.where(ctx.saved_tensors[0], grad, 0), None",
            "x, c",
        ),
        # a kernel: nobody knows what it does with it
        combined(
            "ctx.save_for_backward(w)\nreturn kernel(x, w)", "return kernel(grad, ctx.saved_tensors[0]), None", "x, w"
        ),
        combined(
            "ctx.save_for_backward(w)\nreturn x * w.shape[0]",
            "return grad * ctx.saved_tensors[0].shape[0], None",
            "x, w",
        ),
        combined(
            "ctx.save_for_backward(w)\nreturn x * (w > 0)", "return grad * (ctx.saved_tensors[0] > 0), None", "x, w"
        ),
        combined("ctx.save_for_backward(w)\nreturn x * w.detach()", "return grad * ctx.saved_tensors[0], None", "x, w"),
        combined("return x * w.mean()", "return None, None", "x, w"),
        combined("return x @ w", "return grad @ grad, None", "x, w=2.0"),
        combined("return x * w", "return grad, None", "x, w: float | torch.Tensor"),
        combined("return w(x)", "return grad, None", "x, w: Callable"),
        combined("return x * w[0]", "return grad, None", "x, *w"),
        combined(
            "ctx.save_for_backward(w)\nreturn x @ w",
            "return grad @ ctx.saved_tensors[0].t(), None",
            "x, w",
            after=(
                "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                "        self.w = 2.0\n\n    def forward(self, x):\n        return Op.apply(x, self.w)\n"
            ),
        ),
    )
    invalid = (
        Invalid(
            combined(
                "ctx.save_for_backward(x, w)\nreturn x @ w",
                "x, w = ctx.saved_tensors\nreturn grad @ w.t(), None",
                "x, w",
            ),
            (15,),
        ),
        Invalid(
            combined("ctx.w = w\nreturn x * w", "return grad * ctx.w, None", "x, w: torch.Tensor"),
            (14,),
        ),
        Invalid(combined("return x @ w", "return grad @ grad, None", "x, w=None"), (13,)),
        Invalid(combined("return x * w.sum()", "return grad, None", "x, w"), (13,)),
        Invalid(
            combined(
                "return x * w",
                "return grad, None",
                "x, w",
                after=(
                    "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                    "        self.proj = torch.nn.Linear(2, 2)\n\n    def forward(self, x):\n"
                    "        return Op.apply(x, self.proj.weight)\n"
                ),
            ),
            (13,),
        ),
        Invalid(combined("return x * 2 + bias", "return grad * 2, None", "x, bias"), (13,)),
        # only notes: it may be data; a rounding is often meant to be trained in one of its inputs only
        Invalid(
            combined(
                "ctx.save_for_backward(t)\nreturn (x.log_softmax(-1) * t).sum()",
                "(t,) = ctx.saved_tensors\nreturn grad * t, None",
                "x, t",
            ),
            (15,),
        ),
        Invalid(
            combined("ctx.save_for_backward(s)\nreturn torch.round(x / s) * s", "return grad, None", "x, s"), (14,)
        ),
        Invalid(
            combined(
                "return F.linear(x, w, b)",
                "gb = None\nreturn grad @ grad, grad.t(), gb",
                "x, w, b",
            ),
            (14,),
        ),
        Invalid(
            combined(
                "ctx.gain = gain\nreturn x * gain",
                "return grad * ctx.gain, None",
                "x, gain",
                after=(
                    "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                    "        self.gain = torch.nn.Parameter(torch.ones(2))\n\n    def forward(self, x):\n"
                    "        return Op.apply(x, self.gain)\n"
                ),
            ),
            (14,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every input of every Function whose returns can be read."""
        for function in autograd_functions(file):
            if function.forward is None or not function.is_readable or function.is_variadic:
                continue
            given = [function.receives_gradient(position) for position in range(len(function.inputs))]
            if True not in given:
                continue
            for position, argument in enumerate(function.inputs):
                if given[position] is not False:
                    continue
                passed = _passed(function, position)
                if _is_trainable(function, argument, passed):
                    yield _missing(function, position, passed)


def _is_trainable(function: AutogradFunction, argument: ast.arg, passed: str | None) -> bool:
    """Whether an input without a gradient is a tensor that ought to have one."""
    if _refused(function, function.inputs.index(argument)):
        return False
    if passed == "constant" or _NEVER_TRAINED.search(argument.arg) or _has_number_default(function, argument):
        return False
    if passed != "parameter" and (_decided(function) or not _is_tensor(function, argument)):
        return False
    return argument.arg in _computed_from(function)


def _refused(function: AutogradFunction, position: int) -> bool:
    """Whether backward raises when this input needs a gradient: `if ctx.needs_input_grad[2]: raise …`."""
    assert function.backward is not None
    for node in own_nodes(function.backward):
        if not (isinstance(node, ast.If) and any(isinstance(item, ast.Raise) for item in node.body)):
            continue
        for asked in ast.walk(node.test):
            match asked:
                case ast.Subscript(value=ast.Attribute(attr="needs_input_grad"), slice=ast.Constant(value=number)):
                    if number == position:
                        return True
    return False


def _missing(function: AutogradFunction, position: int, passed: str | None) -> Hit:
    name = function.input_names[position]
    item = next((given for given in function.gradients if position < given.count), None)
    node = item.items[position] if item is not None else None
    place = item.statement if item is not None else function.node
    flat = any(terminal_name(call.func) in _FLAT for call in _calls(function.forward))
    usual = bool(_USUALLY_TRAINED.search(name))
    told = "a parameter" if passed == "parameter" else "a tensor"
    return Hit(
        node if node is not None else place,
        f"backward gives None for `{name}`, {told} that forward computes its result from: it gets no "
        f"gradient, without an "
        "error. Return its gradient, or say in the docstring that it is not trained.",
        severity=None if passed == "parameter" or (usual and not flat) else Severity.NOTE,
        confidence=Confidence.HIGH if passed == "parameter" else None,
        hypothesis={
            "function": function.name,
            "input": name,
            "position": position,
            "symbol": function.file.symbol(place),
        },
        related=((function.inputs[position], f"`{name}` comes in here"),),
    )


def _calls(method: FunctionNode | None) -> list[ast.Call]:
    return [node for node in own_nodes(method) if isinstance(node, ast.Call)] if method is not None else []


def _computed_from(function: AutogradFunction) -> frozenset[str]:
    """The inputs that a derivative of the first result certainly reaches."""
    assert function.forward is not None
    finder = SourceFinder(function.file, function.forward)
    found: set[str] = set()
    for statement in function.file.returns_of(function.forward):
        if statement.value is not None:
            found |= finder.sources(statement.value).certain
    return frozenset(found)


def _decided(function: AutogradFunction) -> bool:
    """Whether a docstring of the class says that something has no gradient."""
    scopes: list[ast.ClassDef | FunctionNode] = [function.node]
    scopes.extend(method for method in (function.forward, function.backward) if method is not None)
    return any(_DECIDED.search(ast.get_docstring(scope, clean=False) or "") for scope in scopes)


def _has_number_default(function: AutogradFunction, argument: ast.arg) -> bool:
    assert function.forward is not None
    arguments = function.forward.args
    positional = [*arguments.posonlyargs, *arguments.args]
    place = positional.index(argument) - (len(positional) - len(arguments.defaults))
    default = arguments.defaults[place] if place >= 0 else None
    return default is not None and not is_none(default)


def _is_tensor(function: AutogradFunction, argument: ast.arg) -> bool:
    """Whether there is evidence that an input is a tensor: an annotation, saving it, methods and matrix products."""
    if argument.annotation is not None:
        names = {terminal_name(node) for node in ast.walk(argument.annotation)}
        return any(name is not None and name.endswith("Tensor") for name in names) and not names & _NOT_A_TENSOR
    if argument.arg in _NAMED_TENSORS or any(argument.arg in save.names for save in function.saves or ()):
        return True
    assert function.forward is not None
    for node in own_nodes(function.forward):
        if not (isinstance(node, ast.Name) and node.id == argument.arg):
            continue
        parent = function.file.parent(node)
        if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult)):
            return True
        if isinstance(parent, ast.Call) and terminal_name(parent.func) in {
            "linear",
            "matmul",
            "einsum",
            "mm",
            "bmm",
            "conv2d",
        }:
            return True
    return False


def _passed(function: AutogradFunction, position: int) -> str | None:
    """What the calls of the file pass: "parameter" if one does, "constant" if none can have a gradient, else None."""
    kinds: set[str | None] = set()
    for call in function.applications:
        kinds.add(_kind(function.file, call, position))
    if "parameter" in kinds:
        return "parameter"
    return "constant" if kinds == {"constant"} else None


def _kind(file: FileContext, call: ast.Call, position: int) -> str | None:
    before = call.args[: position + 1]
    if len(before) <= position or any(isinstance(argument, ast.Starred) for argument in before):
        return None
    argument = before[position]
    value = file.values.value(argument)
    if value.parameter:
        return "parameter"
    if isinstance(argument, ast.Attribute) and argument.attr in {"weight", "bias"}:
        owner = argument.value
        if isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "self":
            return "parameter"
    if value.gradient is Gradient.NO or value.kind in (Kind.NUMBER, Kind.OTHER, Kind.ARRAY) or value.is_discrete:
        return "constant"
    return None


class SwappedGradients(Rule):
    """Backward returns gradients in another order than forward takes its inputs."""

    id = "GP305"
    name = "swapped-gradients"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Compares the names of the gradients that a backward returns (`grad_w`, `w_grad`, `dw`, "
            "`gw`) with the names "
            "of the inputs of forward, and finds gradients that stand in the place of another input."
        ),
        why_is_this_bad=(
            "Autograd goes by position. Where the two inputs have the same shape, each is trained with the gradient of "
            "the other, without an error; where the shapes differ, backward raises about an invalid gradient shape."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x * w",
            "x, w = ctx.saved_tensors\ngrad_x = grad * w\ngrad_w = grad * x\nreturn grad_w, grad_x",
            "x, w",
        ),
        right_example=combined(
            "ctx.save_for_backward(x, w)\nreturn x * w",
            "x, w = ctx.saved_tensors\ngrad_x = grad * w\ngrad_w = grad * x\nreturn grad_x, grad_w",
            "x, w",
        ),
        fix_safety="Unsafe, because it goes by the names: the gradients are put in the order of the inputs.",
    )
    valid = (
        combined("return x * w", "grad_x = grad\ngrad_w = grad\nreturn grad_x, grad_w", "x, w"),
        combined("return x * w", "dx, dw = grad, grad\nreturn dx, dw", "x, w"),
        combined("return x * w", "ga, gb = grad, grad\nreturn ga, gb", "x, w"),
        # the gradient of one input stands there for both
        combined("return x + w", "grad_x = grad\nreturn grad_x, grad_x", "x, w"),
        combined("return x * w", "grad_w = grad\nreturn grad_w, grad", "x, w"),
        combined("return x * gx", "gx = grad\nreturn gx, grad", "x, gx"),
        combined("return x * w", "grad_input = grad\nreturn grad_input, grad", "x, input"),
    )
    invalid = (
        Invalid(combined("return x * w", "grad_x = grad\ngrad_w = grad\nreturn grad_w, grad_x", "x, w"), (15,)),
        Invalid(combined("return x * w", "dx, dw = grad, grad\nreturn dw, dx", "x, w"), (14,)),
        Invalid(combined("return x * w + b", "gx = gw = gb = grad\nreturn gx, gb, gw", "x, w, b"), (14,)),
        Invalid(
            combined(
                "return x * n * w",
                "input_grad = weight_grad = grad\nreturn weight_grad, None, input_grad",
                "input, n, weight",
            ),
            (14,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every countable return whose items have telling names."""
        for function in autograd_functions(file):
            if function.backward is None or not function.is_readable or function.is_variadic:
                continue
            for item in function.gradients:
                places = _places_by_name(function, item)
                wrong = [position for position, place in places.items() if place != position]
                # Two that changed places: one alone may be used for several inputs.
                if len(wrong) >= 2 and sorted(wrong) == sorted(places[position] for position in wrong):
                    yield _swapped(function, item, places, wrong)


def _places_by_name(function: AutogradFunction, item: Gradients) -> dict[int, int]:
    """Position in the return → position of the input that the name speaks of."""
    spellings: dict[str, list[int]] = {}
    for position, name in enumerate(function.input_names):
        short = name.strip("_").lower()
        for spelling in (
            f"grad_{short}",
            f"{short}_grad",
            f"d_{short}",
            f"d{short}",
            f"g_{short}",
            f"g{short}",
            f"grad{short}",
        ):
            spellings.setdefault(spelling, []).append(position)
    found: dict[int, int] = {}
    if item.is_list or item.count != len(item.items):
        return {}
    for position, value in enumerate(item.items):
        if isinstance(value, ast.Name) and value.id not in function.input_names:
            places = spellings.get(value.id.strip("_").lower(), [])
            if len(places) == 1:
                found[position] = places[0]
    return found


def _swapped(function: AutogradFunction, item: Gradients, places: dict[int, int], wrong: list[int]) -> Hit:
    given = [value.id for value in item.items if isinstance(value, ast.Name)]
    moved = {places[position]: item.items[position] for position in wrong}
    replaced = tuple(
        Replacement(old, new.id)
        for position in wrong
        if isinstance(old := item.items[position], ast.Name) and isinstance(new := moved[position], ast.Name)
    )
    in_place = all(replacement.node in ast.walk(item.statement) for replacement in replaced)
    return Hit(
        item.statement,
        f"backward returns {', '.join(f'`{name}`' for name in given)}, but forward takes "
        f"{', '.join(f'`{name}`' for name in function.input_names)}: gradients go by position, so "
        f"each of these inputs gets "
        "the gradient of another.",
        hypothesis={
            "function": function.name,
            "positions": sorted(wrong),
            "symbol": function.file.symbol(item.statement),
        },
        related=((function.forward, "the order of the inputs"),) if function.forward is not None else (),
        fix=Rewrite(FixSafety.UNSAFE, replaced) if in_place and replaced else None,
    )


class IgnoredGradient(Rule):
    """Backward never uses the gradient that comes in."""

    id = "GP324"
    name = "ignored-incoming-gradient"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("gradcheck",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Function",)
    documentation = Documentation(
        what_it_does=(
            "Finds a backward that returns gradients without using the incoming gradient anywhere. A "
            "backward that only "
            "gives None or zeros, or only raises, is left alone."
        ),
        why_is_this_bad=(
            "The chain rule multiplies by what comes in: without it the gradient is right only when the result is the "
            "loss itself. Everything behind the Function, a loss weight, a mean, the scale of a GradScaler, has no "
            "effect on what stands before it, and nothing says so."
        ),
        faulty_example=combined(
            "ctx.save_for_backward(x)\nreturn x ** 3", "(x,) = ctx.saved_tensors\nreturn 3 * x ** 2"
        ),
        right_example=combined(
            "ctx.save_for_backward(x)\nreturn x ** 3", "(x,) = ctx.saved_tensors\nreturn grad * (3 * x ** 2)"
        ),
        fix_safety="Unsafe: multiplies the one gradient that is returned by what comes in, which changes the gradient.",
    )
    valid = (
        combined("return x * 2", "return None"),
        combined("return x * 2", "return (None,) * 3", "x, y, z"),
        combined("return x * 2", "if ctx.flag:\n    return None\nnothing = None\nreturn nothing"),
        combined("return x * 2", "return ctx.saved_tensors[0].new_zeros(3)"),
        combined("return x * 2", "return torch.zeros_like(ctx.saved_tensors[0])"),
        # a backward that always raises says itself that it has no gradient
        combined("return x * 2", "raise NotImplementedError"),
        combined("return x * 2", "g = ctx.scale\ng = g * grad\nreturn g"),
        combined("return x * 2", "return ctx.scale * sum(grads)", gradients="*grads"),
        combined("return x * 2", "return combine(*grads)", gradients="*grads"),
        combined("return x * 2", "def inner():\n    return grad * 2\nreturn inner()"),
        combined("return x * 2", "return compute(**locals())"),
    )
    invalid = (
        Invalid(
            combined("ctx.save_for_backward(x)\nreturn x ** 3", "(x,) = ctx.saved_tensors\nreturn 3 * x ** 2"), (15,)
        ),
        Invalid(combined("ctx.g = x * 2\nreturn x.sum()", "return ctx.g, None", "x, n"), (14,)),
        Invalid(combined("ctx.save_for_backward(x)\nreturn x", "g = ctx.saved_tensors[0].exp()\nreturn g"), (15,)),
        Invalid(combined("ctx.g = 3\nreturn x * 2", "return ctx.g * 2", gradients="_"), (14,)),
        Invalid(combined("ctx.g = x\nreturn x * 2", "return ctx.g * 2", gradients="*grads"), (14,)),
        Invalid(
            combined("ctx.save_for_backward(x)\nreturn x * 2", "x, = ctx.saved_tensors\nreturn (\n    x + 1\n)"), (15,)
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every backward that returns something."""
        for function in autograd_functions(file):
            backward = function.backward
            if backward is None or function.forward is None or len(parameters(backward)) < 2:
                continue
            names = {argument.arg for argument in parameters(backward)} - {function.context_name(backward)}
            if any(_reads(node, names) for statement in backward.body for node in ast.walk(statement)):
                continue
            for statement in function.returns:
                given = [value for value in _given(function, statement) if _something(function, value)]
                if given:
                    yield _ignored(function, statement, given, sorted(names))
                    break


def _given(function: AutogradFunction, statement: ast.Return) -> list[ast.expr]:
    """The items of a return: counted where that is possible, else as they are written."""
    for item in function.gradients:
        if item.statement is statement and not item.is_list:
            return [value for value in item.items if value is not None]
    value = statement.value
    return list(value.elts) if isinstance(value, ast.Tuple) else [value] if value is not None else []


def _reads(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return dotted_name(node.func) in {"locals", "vars"}
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names


def _something(function: AutogradFunction, value: ast.expr | None, depth: int = 0) -> bool:
    """Whether a returned item is anything but None or zeros, as far as can be seen."""
    if value is None or is_none(value) or depth > 4:
        return False
    match value:
        case ast.Constant() | ast.Compare() | ast.List():
            return False
        case ast.Name():
            bindings = function.file.values.definitions(value)
            values = [item for binding in bindings if (item := binding.value) is not None]
            return bool(values) and all(_something(function, item, depth + 1) for item in values)
        case ast.Call(func=called):
            name = terminal_name(called) or ""
            return not name.startswith(("zeros", "new_zeros", "empty", "new_empty"))
    return True


def _ignored(function: AutogradFunction, statement: ast.Return, given: list[ast.expr], names: list[str]) -> Hit:
    file = function.file
    rewrite: Rewrite | None = None
    gradients = function.gradient_parameters
    written = any(given[0] is node for node in ast.walk(statement))
    if len(given) == 1 and written and len(gradients) == 1 and len(function.returns) == 1:
        text = f"{gradients[0].arg} * {_factor(file, given[0])}"
        rewrite = Rewrite(FixSafety.UNSAFE, (Replacement(given[0], text),))
    told = ", ".join(f"`{name}`" for name in names)
    return Hit(
        statement,
        f"backward never uses the incoming gradient {told}: whatever stands behind this Function, a "
        f"loss weight or a mean, "
        "has no effect on its gradient. Multiply by it.",
        hypothesis={"function": function.name, "gradients": names, "symbol": file.symbol(statement)},
        related=((function.backward, "it comes in here"),) if function.backward is not None else (),
        fix=rewrite,
    )


def _factor(file: FileContext, value: ast.expr) -> str:
    """A factor of a product: powers and names need no parentheses."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow):
        return file.source(value)
    return file.operand_source(value)
