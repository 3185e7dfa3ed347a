"""Casts whose result depends on the device, or that change the precision of everything after them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.device_joins import Join, device_joins
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import keyword, own_attribute
from analyzer.placement import placement
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import quoted
from analyzer.rules.module_examples import with_body
from analyzer.syntax import terminal_name
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import numpy as np\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
_BLOCK = (
    "class Block(nn.Module):\n    def __init__(self, width=4):\n        super().__init__()\n"
    "        self.up = nn.Linear(width, width)\n\n    def forward(self, x):\n"
)
_forward = partial(with_body, _HEAD + _BLOCK)
_FIRST = 13


# What each small type can hold; the methods that cast to it.
_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}
_CASTING = {"byte": "uint8", "char": "int8"}
# A factor or a shift by one of these says that the values are meant for the whole range of the type.
_SCALES = frozenset({255, 256, 127, 127.5, 128, 254.0})
_BOUNDING = frozenset({"clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_max", "minimum", "fmod", "remainder"})
_INTEGER_CALLS = frozenset({"long", "int", "bool", "byte", "argmax", "argmin", "argsort", "randint", "arange"})
_ROUNDING = frozenset({"round", "round_", "floor", "floor_", "ceil", "trunc"})
_MAX_DEPTH = 14
_MAX_PARTS = 200


class NarrowingCast(Rule):
    """A float tensor cast to an 8-bit integer type that nothing keeps inside its range."""

    id = "GP612"
    name = "narrowing-cast-without-clamp"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("uint8", "int8", ".byte(", ".char(")
    documentation = Documentation(
        what_it_does=(
            "Finds casts to `uint8` and `int8` of values that were scaled for that range (by 255, 127.5 and the like) "
            "or rounded, where neither a clamp nor what the values are made of keeps them inside. Masks, integers and "
            "values between known bounds (a sigmoid times 255) are left alone; values that do not come out of a layer "
            "get a note, since an image handed in may well keep its range."
        ),
        why_is_this_bad=(
            "What a float outside of the range becomes is undefined: on the CPU -3 gives 253 and 300 gives 44 "
            "(measured), other machines give 0 and 255, and vector and scalar code of one may differ as well."
        ),
        faulty_example=_forward("image = (self.up(x) + 1) * 127.5\nreturn image.to(torch.uint8)"),
        right_example=_forward("image = (self.up(x) + 1) * 127.5\nreturn image.clamp(0, 255).to(torch.uint8)"),
        fix_safety="Unsafe: values inside the range stay as they are, those outside go to its ends.",
    )
    valid = (
        _forward("image = (self.up(x) + 1) * 127.5\nreturn image.clamp(0, 255).to(torch.uint8)"),
        _forward("image = ((self.up(x) + 1) * 127.5).clamp_(0, 255)\nreturn image.to(torch.uint8)"),
        _forward("image = self.up(x).clamp(0, 1)\nreturn (image * 255).to(torch.uint8)"),
        _forward("return (torch.sigmoid(self.up(x)) * 255).to(torch.uint8)"),
        _forward("return (self.up(x) > 0).to(torch.uint8)"),
        _forward("return (x == 255).byte()"),
        _forward("return (torch.rand(4) * 255).byte()"),
        _forward("h = self.up(x)\nreturn h.to(torch.uint8)"),
        _forward("h = torch.clamp(self.up(x), -1, 1)\nh = h * 127.5 + 127.5\nreturn h.round().to(torch.uint8)"),
        _forward("h = (self.up(x) + 1) * 127.5\nh.clamp_(0, 255)\nreturn h.to(torch.uint8)"),
        _forward("return (self.scaled(self.up(x)) * 255).byte()")
        + "\n    def scaled(self, x):\n        return x.add(0.5).clamp(0, 1)\n",
        _HEAD + "def labels(mask: torch.Tensor):\n    return (mask.bool() * 255).to(torch.uint8)\n",
    )
    invalid = (
        Invalid(_forward("image = (self.up(x) + 1) * 127.5\nreturn image.to(torch.uint8)"), (_FIRST + 1,)),
        Invalid(_forward("return (self.up(x) * 255).byte()"), (_FIRST,)),
        Invalid(_forward("image = self.up(x).mul(255).add(0.5)\nreturn image.type(torch.uint8)"), (_FIRST + 1,)),
        Invalid(
            _forward("scale = x.abs().max() / 2\nreturn (self.up(x) * 127 / scale).round().to(torch.int8)"),
            (_FIRST + 1,),
        ),
        Invalid(
            _forward(
                "y = self.up(x)\ny = y * 0.5 + 0.5\ny = (y * 255).round()\ny = y.permute(1, 0)\n"
                "return y.type(torch.uint8)"
            ),
            (_FIRST + 4,),
        ),
        Invalid(_forward("return torch.round(self.up(x) / 0.02).to(torch.int8)"), (_FIRST,)),
        Invalid(
            _forward("image = torch.relu(self.up(x)) * 255.0\nreturn image.round().to(dtype=torch.uint8)"),
            (_FIRST + 1,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every cast to an 8-bit type."""
        for call in file.calls("to", "type", "byte", "char"):
            function = call.func
            if not isinstance(function, ast.Attribute) or file.qualified_name(function) is not None:
                continue
            kind = _target(file, call, function.attr)
            if kind is None or not (_is_scaled(file, function.value) or _is_quantised(file, function.value, kind)):
                continue
            if _is_bounded(file, function.value, kind):
                continue
            # A function that is given an image may rely on its range: four findings of five there were wrong.
            promised = kind == "uint8" and not _is_computed(file, function.value)
            quiet = promised or surroundings(file, call) is Surroundings.ASIDE
            low, high = _RANGES[kind]
            yield Hit(
                call,
                f"Nothing keeps `{quoted(file, function.value)}` within {low} … {high}: outside of it the cast to "
                f"{kind} is undefined: it wraps around on one machine and saturates on another. Clamp it first.",
                severity=Severity.NOTE if quiet else None,
                confidence=Confidence.LOW if quiet else None,
                hypothesis={"operand": file.source(function.value), "low": low, "high": high},
                fix=_clamped(file, function.value, low, high),
            )


def _target(file: FileContext, call: ast.Call, method: str) -> str | None:
    """The 8-bit type that a call casts to."""
    if method in _CASTING:
        return _CASTING[method] if not call.args else None
    for argument in (*call.args, keyword(call, "dtype")):
        name = file.qualified_name(argument) if argument is not None else None
        if name in ("torch.uint8", "torch.int8"):
            return str(name).removeprefix("torch.")
    return None


def _origins(file: FileContext, expression: ast.expr) -> Iterator[ast.expr]:
    """The expression and what it is made of: operands, receivers of methods, definitions of names."""
    pending = [(expression, 0)]
    seen: set[ast.expr] = set()
    while pending:
        node, depth = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if depth > _MAX_DEPTH or len(seen) > _MAX_PARTS:
            continue
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Name):
            parts = [binding.value for binding in file.values.definitions(node)]
        elif isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call):
            is_method = isinstance(node.func, ast.Attribute) and file.qualified_name(node.func) is None
            parts = [node.func.value if is_method and isinstance(node.func, ast.Attribute) else None, *node.args[:2]]
            parts.extend(_returned(file, node))
        elif isinstance(node, (ast.Subscript, ast.UnaryOp)):
            parts = [node.value if isinstance(node, ast.Subscript) else node.operand]
        pending.extend((part, depth + 1) for part in parts if part is not None)


def _returned(file: FileContext, call: ast.Call) -> list[ast.expr]:
    """What the method of its own module returns that a call runs."""
    owner = file.enclosing_class(call) if own_attribute(call.func) is not None else None
    if owner is None:
        return []
    return [
        item.value
        for statement in owner.body
        if isinstance(statement, ast.FunctionDef) and statement.name == own_attribute(call.func)
        for item in file.returns_of(statement)
        if item.value is not None
    ]


def _is_scaled(file: FileContext, operand: ast.expr) -> bool:
    """Whether the values were brought to the range of an 8-bit type: multiplied by 255, shifted by 128."""
    for node in _origins(file, operand):
        constants: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add)):
            constants = [node.left, node.right]
        elif isinstance(node, ast.Call) and terminal_name(node.func) in ("mul", "mul_", "add", "add_"):
            constants = list(node.args)
        if any(isinstance(c, ast.Constant) and type(c.value) in (int, float) and c.value in _SCALES for c in constants):
            return True
    return False


def _is_quantised(file: FileContext, operand: ast.expr, kind: str) -> bool:
    """Whether the values were divided by a step and rounded, for a signed type."""
    if isinstance(operand, ast.Name):
        operand = file.values.single_definition(operand) or operand
    if kind != "int8" or not isinstance(operand, ast.Call) or terminal_name(operand.func) not in ("round", "round_"):
        return False
    return any(
        isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)) for node in _origins(file, operand)
    )


def _is_bounded(file: FileContext, operand: ast.expr, kind: str) -> bool:
    """Whether the values are known to lie inside, are no floats, or have been clamped to whatever bounds."""
    low, high = _RANGES[kind]
    origins = list(_origins(file, operand))
    # Rounded floats count as whole numbers to the analysis of values, and are floats to a cast.
    rounded = any(_called(node) in _ROUNDING for node in origins)
    for node in origins:
        if _called(node) in _BOUNDING or isinstance(node, (ast.Compare, ast.BoolOp)):
            return True
        value = file.values.value(node)
        discrete = value.is_discrete and (not rounded or _called(node) in _INTEGER_CALLS)
        if discrete or value.mask or value.kind is Kind.ARRAY:
            return True
        if node is operand and value.low >= low - 1 and value.high <= high + 1:
            return True
    return False


def _called(node: ast.expr) -> str | None:
    return terminal_name(node.func) if isinstance(node, ast.Call) else None


def _is_computed(file: FileContext, operand: ast.expr) -> bool:
    """Whether the values come out of a layer, so that nothing promises that they lie between 0 and 1."""
    return any(
        isinstance(node, ast.Call) and own_attribute(node.func) is not None and placement(file).follows(node)
        for node in _origins(file, operand)
    )


def _clamped(file: FileContext, operand: ast.expr, low: int, high: int) -> Rewrite:
    text = f"{file.operand_source(operand)}.clamp({low}, {high})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(operand, text),))


_NUMPY_DOUBLES = frozenset(
    {
        *("zeros", "ones", "linspace", "logspace", "eye", "sin", "cos", "exp", "sqrt", "log", "hanning", "hamming"),
        *("random.rand", "random.randn", "random.uniform", "random.normal", "random.random", "blackman", "kaiser"),
    }
)

_CONVERTING = frozenset({"float", "to", "half", "bfloat16", "type", "type_as", "long", "int", "bool"})


class DoubleFromNumpy(Rule):
    """A NumPy array of doubles that enters a computation in float32."""

    id = "GP610"
    name = "double-from-numpy"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("device_compare", "finding_search")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("numpy",)
    documentation = Documentation(
        what_it_does=(
            "Finds arrays that NumPy makes in float64 and that reach an input or a parameter of a model unconverted, "
            "as `torch.from_numpy(…)`, `torch.tensor(…)` or as they are. Arrays with a dtype, converted tensors and "
            "single numbers (which keep the tensor's dtype) are left alone."
        ),
        why_is_this_bad=(
            "The result is float64 (measured: `float32 * from_numpy(np.ones(2))` is float64): slower by a large "
            "factor on a GPU, not supported on some devices, and a layer that gets it raises because its weights are "
            "float32."
        ),
        faulty_example=_forward("window = torch.from_numpy(np.hanning(4))\nreturn self.up(x) * window"),
        right_example=_forward("window = torch.from_numpy(np.hanning(4)).to(x)\nreturn self.up(x) * window"),
        fix_safety="Unsafe: the result becomes float32, which is what the model computes in.",
    )
    valid = (
        _forward("window = torch.from_numpy(np.hanning(4)).to(x)\nreturn self.up(x) * window"),
        _forward("window = torch.from_numpy(np.hanning(4)).float()\nreturn self.up(x) * window"),
        _forward("window = torch.from_numpy(np.ones(4, dtype=np.float32))\nreturn self.up(x) * window"),
        _forward("window = torch.from_numpy(np.ones(4).astype('float32'))\nreturn self.up(x) * window"),
        _forward("window = torch.tensor(np.ones(4), dtype=x.dtype, device=x.device)\nreturn self.up(x) * window"),
        _forward("return self.up(x) * np.sqrt(2.0)"),
        _forward("order = torch.from_numpy(np.ones(4))\nreturn order, self.up(x)"),
        _HEAD + "class Weighted(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('table', torch.from_numpy(np.ones(4)).float())\n",
        _HEAD + "class Weighted(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('table', torch.from_numpy(np.ones(4)))\n\n    def forward(self, x):\n"
        "        return x * self.table.to(x)\n",
    )
    invalid = (
        Invalid(_forward("window = torch.from_numpy(np.hanning(4))\nreturn self.up(x) * window"), (_FIRST,)),
        Invalid(_forward("return self.up(x) * torch.tensor(np.linspace(0, 1, 4))"), (_FIRST,)),
        Invalid(
            _forward(
                "ramp = np.random.rand(4)\nnoise = torch.as_tensor(ramp, device=x.device)\nreturn self.up(x) + noise"
            ),
            (_FIRST + 1,),
        ),
        Invalid(
            _forward("ramp = torch.from_numpy(np.linspace(0, 1, 4)).to(x.device)\nreturn self.up(x * ramp)"), (_FIRST,)
        ),
        Invalid(_forward("scale = np.ones(4)\nreturn self.up(x) * scale"), (_FIRST + 1,)),
        Invalid(
            _HEAD + "class Weighted(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        table = np.linspace(0, 1, 4)\n        self.register_buffer('table', torch.from_numpy(table))\n",
            (11,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every conversion of an array of doubles, and every array used as it is."""
        made = file.calls(*{name.rpartition(".")[2] for name in _NUMPY_DOUBLES})
        if not any(_is_double(file, call) for call in made):
            return
        places = placement(file)
        for call in file.calls("from_numpy", "tensor", "as_tensor"):
            qualified = file.qualified_name(call.func) or ""
            if not qualified.startswith("torch.") or not call.args or keyword(call, "dtype") is not None:
                continue
            if not _is_double(file, call.args[0]):
                continue
            holder = _held_by_module(file, call)
            if holder is not None:
                yield self._kept(file, call, holder)
                continue
            join = next((j for j in _joins(file, call) if not isinstance(j.node, ast.Subscript)), None)
            if join is not None:
                yield self._hit(file, call, join.node, _single(file, call))
        for operation in file.nodes(ast.BinOp):
            for array, tensor in ((operation.left, operation.right), (operation.right, operation.left)):
                if isinstance(array, (ast.Name, ast.Call)) and _is_double(file, array) and places.follows(tensor):
                    yield self._hit(file, operation, operation, None)

    def _kept(self, file: FileContext, call: ast.Call, holder: ast.Call) -> Hit:
        return Hit(
            call,
            "NumPy makes this array in float64, and the module keeps it so: what it is computed with becomes float64, "
            "and `.to('mps')` raises. Convert it to float32.",
            hypothesis={"symbol": file.symbol(call)},
            related=((holder, "kept by the module here"),),
            fix=_single(file, call),
        )

    def _hit(self, file: FileContext, node: ast.expr, joined: ast.AST, fix: Rewrite | None) -> Hit:
        return Hit(
            node,
            "NumPy makes this array in float64, and together with a float32 tensor the result is float64. Convert it "
            "to the dtype of the tensor.",
            hypothesis={"symbol": file.symbol(node)},
            related=((joined, "meets a float32 tensor here"),) if joined is not node else (),
            fix=fix,
        )


def _held_by_module(file: FileContext, call: ast.Call) -> ast.Call | None:
    """The `register_buffer` or `nn.Parameter` that keeps a tensor as it is, in a class that converts nothing."""
    node = _climbed(file, call)
    holder = file.parent(node) if node is not None else None
    owner = file.enclosing_class(call)
    if not isinstance(holder, ast.Call) or node not in holder.args or owner is None:
        return None
    is_parameter = file.qualified_name(holder.func) == "torch.nn.Parameter"
    if not is_parameter and terminal_name(holder.func) != "register_buffer":
        return None
    text = file.source(owner)
    return None if any(word in text for word in ("float64", ".double(", ".float(", "dtype", ".to(")) else holder


def _joins(file: FileContext, call: ast.Call) -> Iterator[Join]:
    """Where the tensor meets others as the double that it is, unless it is converted first."""
    node = _climbed(file, call)
    if node is None:
        return
    uses = [node]
    parent = file.parent(node)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
        function = file.enclosing_function(call)
        loads = placement(file).loads(function, parent.targets[0].id) if function is not None else []
        climbed = [_climbed(file, load) for load in loads if file.values.single_definition(load) is node]
        uses = [use for use in climbed if use is not None]
        if len(uses) < len(climbed):
            return
    for use in uses:
        operation = file.parent(use)
        if isinstance(operation, ast.BinOp):
            other = operation.right if use is operation.left else operation.left
            if placement(file).follows(other):
                yield Join(operation, other, crossed=False)
        elif node is call:
            yield from device_joins(file).joins(use)


def _climbed(file: FileContext, node: ast.expr) -> ast.expr | None:
    """The expression after the methods called on a tensor; None when one of them converts it."""
    parent = file.parent(node)
    while isinstance(parent, ast.Attribute):
        outer = file.parent(parent)
        if not isinstance(outer, ast.Call):
            return node
        only_device = parent.attr == "to" and all(
            isinstance(argument, ast.Attribute) and argument.attr == "device" for argument in outer.args
        )
        if parent.attr in _CONVERTING and not (only_device and keyword(outer, "dtype") is None):
            return None
        node, parent = outer, file.parent(outer)
    return node


def _is_double(file: FileContext, array: ast.expr) -> bool:
    """Whether an expression is an array that NumPy makes of doubles."""
    if isinstance(array, ast.Name):
        definition = file.values.single_definition(array)
        return definition is not None and not isinstance(definition, ast.Name) and _is_double(file, definition)
    if not isinstance(array, ast.Call) or keyword(array, "dtype") is not None:
        return False
    qualified = file.qualified_name(array.func) or ""
    name = qualified.removeprefix("numpy.")
    if not qualified.startswith("numpy.") or name not in _NUMPY_DOUBLES or not array.args:
        return False
    # Functions of a number give a number, which keeps the dtype of the tensor it meets.
    elementwise = name in ("sin", "cos", "exp", "sqrt", "log")
    return _is_double(file, array.args[0]) if elementwise else len(array.args) < 4


def _single(file: FileContext, call: ast.Call) -> Rewrite:
    return Rewrite(FixSafety.UNSAFE, (Replacement(call, f"{file.source(call)}.float()"),))
