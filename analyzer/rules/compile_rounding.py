"""Results that turn on the last bit, which fused code rounds elsewhere: float floor division (GP513), sums of products
in half precision (GP515).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import parameters, terminal_name
from analyzer.values.conventions import default_of
from analyzer.values.domain import Kind

_TO_INTEGER = frozenset({"long", "int", "short"})
_INTEGER_TYPES = frozenset({"torch.long", "torch.int64", "torch.int", "torch.int32", "torch.int16", "torch.short"})
_LOW_METHODS = frozenset({"bfloat16", "half"})
_LOW_TYPES = frozenset({"torch.bfloat16", "torch.float16", "torch.half"})
_HIGH_METHODS = frozenset({"float", "double"})
_HIGH_TYPES = frozenset({"torch.float32", "torch.float", "torch.float64", "torch.double"})
# Same type as what they are called on.
_SAME_TYPE = frozenset(
    {
        *("view", "reshape", "unsqueeze", "squeeze", "expand", "transpose", "permute", "contiguous", "chunk", "flip"),
        *("roll", "repeat", "repeat_interleave", "gather", "index_select", "expand_as", "flatten", "clone", "detach"),
    }
)


class FloatFloorDivisionAsIndex(Rule):
    id = "GP513"
    name = "float-floor-division-as-index"
    severity = Severity.WARNING
    confidence = Confidence.HIGH
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("//", "floor_divide", "rounding_mode")
    documentation = Documentation(
        what_it_does=(
            "Finds a floor division of floats (`//`, `torch.floor_divide`, `torch.div(..., rounding_mode='floor')`) by "
            "a width that binary floats can't hold (0.1, 0.3) whose result becomes an integer: a bucket, a bin, an "
            "index. Divisions by integers and by powers of two are exact, and fine."
        ),
        why_is_this_bad=(
            "At the edges the result turns on the last bit: 1.0 // 0.1 is 9 with the remainder method that eager "
            "torch uses, and 10 in compiled code, which divides and floors. An input on an edge changes its bucket "
            "between eager and compiled, and neither is what the author had in mind."
        ),
        faulty_example=(
            "import torch\n\n\ndef bucket(x):\n    return torch.div(x, 0.1, rounding_mode='floor').long()\n"
        ),
        right_example="import torch\n\n\ndef bucket(x):\n    return torch.floor(x * 10).long()\n",
        fix_safety="No automatic fix: multiplying by the whole number of buckets changes results at the edges.",
    )
    valid = (
        "import torch\ndef f(index, n: int):\n    return torch.div(index, n, rounding_mode='floor').long()\n",
        "import torch\ndef f(x):\n    return (x // 2).long()\n",
        "import torch\ndef f(x):\n    return torch.div(x, 0.25, rounding_mode='floor').long()\n",
        "import torch\ndef f(x):\n    return torch.floor(x * 10).long()\n",
        "import torch\ndef f(x):\n    return torch.floor(x / 0.1).long()\n",
        "import torch\ndef f(x):\n    return x // 0.1\n",
        "import torch\ndef f(i):\n    return torch.div(i, 10, rounding_mode='trunc').int()\n",
        "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self, stride=2):\n"
        "        super().__init__()\n        self.stride = stride\n    def forward(self, n):\n"
        "        return torch.div(n, self.stride, rounding_mode='floor').long()\n",
        "import torch\ndef f(x, width):\n    return (x // width).long()\n",
        "import torch\ndef f(x, width=0.1, n=10):\n    width = width * n\n    return (x // width).long()\n",
        "def f(seconds):\n    return int(seconds // 0.1)\n",
        "import torch\ndef f(x):\n    return torch.div(x, 0.1).long()\n",
    )
    invalid = (
        Invalid("import torch\ndef f(x):\n    return torch.div(x, 0.1, rounding_mode='floor').long()\n", (3,)),
        Invalid("import torch\ndef f(x: torch.Tensor):\n    slot = x // 0.05\n    return slot.to(torch.int64)\n", (3,)),
        Invalid(
            "import torch\ndef f(x, table):\n    slot = torch.floor_divide(x, 0.1)\n    return table(slot.long())\n",
            (3,),
        ),
        Invalid(
            "import torch\nfrom torch import nn\nclass M(nn.Module):\n    def __init__(self, width=0.1):\n"
            "        super().__init__()\n        self.width = width\n        self.table = nn.Embedding(9, 2)\n"
            "    def forward(self, x):\n"
            "        return self.table(torch.div(x, self.width, rounding_mode='floor').long().clamp(0, 8))\n",
            (9,),
        ),
        Invalid("import torch\nSTEP = 0.3\ndef f(x):\n    return x.div(STEP, rounding_mode='floor').int()\n", (4,)),
        Invalid("import torch\ndef f(x, width=0.2):\n    return x.floor_divide(width).clamp(min=0).long()\n", (3,)),
        Invalid("import torch\ndef f(x):\n    return (x.float() // (1 / 7)).to(dtype=torch.long)\n", (3,)),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every floor division by an inexact width that becomes an integer."""
        for node, operand, divisor in _floor_divisions(file):
            width = _number(file, divisor)
            if width is None or _is_exact(width) or file.values.value(operand).kind in (Kind.NUMBER, Kind.ARRAY):
                continue
            if not _becomes_integer(file, node):
                continue
            yield Hit(
                node,
                f"Floor division by {width:g}, which binary floats can't hold: at the edges the last bit decides, and "
                "eager and compiled code decide differently (`1.0 // 0.1` is 9 or 10). Multiply by the whole number "
                "of steps in 1 and use `floor`.",
                hypothesis={"operand": file.source(operand), "width": width},
            )


def _floor_divisions(file: FileContext) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """(division, dividend, divisor) of everything that divides and floors in one step."""
    for operation in file.nodes(ast.BinOp):
        if isinstance(operation.op, ast.FloorDiv):
            yield operation, operation.left, operation.right
    for call in file.calls("div", "divide", "floor_divide"):
        qualified = file.qualified_name(call.func)
        operands = list(call.args)
        if qualified is None and isinstance(call.func, ast.Attribute):
            operands.insert(0, call.func.value)
        elif not (qualified or "").startswith("torch."):
            continue
        floors = terminal_name(call.func) == "floor_divide" or any(
            keyword.arg == "rounding_mode"
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value is not None
            for keyword in call.keywords
        )
        if floors and len(operands) >= 2:
            yield call, operands[0], operands[1]


def _number(file: FileContext, expression: ast.expr) -> float | None:
    """The float that an expression stands for: a literal, a constant, a default value."""
    for _ in range(6):
        if isinstance(expression, ast.Constant):
            return expression.value if isinstance(expression.value, float) else None
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div):
            return _quotient(expression)
        following = _definition(file, expression)
        if following is None:
            return None
        expression = following
    return None


def _quotient(expression: ast.BinOp) -> float | None:
    values = [side.value for side in (expression.left, expression.right) if isinstance(side, ast.Constant)]
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] else None


def _definition(file: FileContext, expression: ast.expr) -> ast.expr | None:
    """What a name or an attribute of `self` is set to, if that is one expression."""
    if isinstance(expression, ast.Name):
        found = file.values.single_definition(expression)
        function = file.enclosing_function(expression)
        if found is None and function is not None and not file.values.definitions(expression):
            argument = next((p for p in parameters(function) if p.arg == expression.id), None)
            found = default_of(function, argument) if argument is not None else None
        if found is None:
            module = file.values.bindings(file.tree).all(expression.id)
            found = module[0].value if len(module) == 1 and module[0].element is None else None
        return found
    if (
        isinstance(expression, ast.Attribute)
        and isinstance(expression.value, ast.Name)
        and expression.value.id == "self"
    ):
        owner = file.enclosing_class(expression)
        values = [
            statement.value
            for statement in (file.nodes_in(owner, ast.Assign) if owner is not None else ())
            for target in statement.targets
            if isinstance(target, ast.Attribute) and target.attr == expression.attr
        ]
        return values[0] if len(values) == 1 else None
    return None


def _is_exact(width: float) -> bool:
    """Whether dividing by it rounds nothing: whole numbers and powers of two."""
    return width.is_integer() or math.frexp(abs(width))[0] == 0.5


def _becomes_integer(file: FileContext, node: ast.expr) -> bool:
    """Whether the result is converted to integers: in the same expression, or where the one name for it is used."""
    if _converted(file, node):
        return True
    parent = file.parent(node)
    function = file.enclosing_function(node)
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1 or function is None:
        return False
    target = parent.targets[0]
    if not isinstance(target, ast.Name):
        return False
    return any(
        name.id == target.id
        and isinstance(name.ctx, ast.Load)
        and name.lineno >= node.lineno
        and _converted(file, name)
        for name in file.nodes_in(function, ast.Name)
    )


def _converted(file: FileContext, node: ast.expr) -> bool:
    """`.long()`, `.to(torch.int64)` on the expression or on a chain of methods after it."""
    child: ast.AST = node
    for outer in file.ancestors(node):
        if isinstance(outer, ast.Attribute) and outer.value is child:
            call = file.parent(outer)
            if outer.attr in _TO_INTEGER:
                return True
            if outer.attr in ("to", "type") and isinstance(call, ast.Call):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                return any(file.qualified_name(argument) in _INTEGER_TYPES for argument in given)
        elif not (isinstance(outer, ast.Call) and outer.func is child):
            return False
        child = outer
    return False


class LowPrecisionProductSum(Rule):
    id = "GP515"
    name = "low-precision-product-sum"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("compile_equivalence",)
    torch_versions = "2.13"
    triggers = ("bfloat16", "half", "float16")
    documentation = Documentation(
        what_it_does=(
            "Finds a sum or difference of products, such as a rotary embedding, whose factors the file itself makes "
            "bfloat16 or float16: `q * cos + turned(q) * sin` with buffers stored by `.bfloat16()`. A chain that is "
            "computed in float32 and cast once at the end is fine."
        ),
        why_is_this_bad=(
            "Eager code rounds to 8 bits after each product and after the sum; compiled code does the chain in "
            "float32 and rounds once. On torch 2.13 about a third of the elements of a rotary embedding differ "
            "between the two, and the eager result is the worse one."
        ),
        faulty_example=(
            "import torch\nfrom torch import nn\n\n\nclass Rotary(nn.Module):\n    def __init__(self, angle):\n"
            "        super().__init__()\n        self.register_buffer('cos', angle.cos().bfloat16())\n"
            "        self.register_buffer('sin', angle.sin().bfloat16())\n\n    def forward(self, q, turned):\n"
            "        return q * self.cos + turned * self.sin\n"
        ),
        right_example=(
            "import torch\nfrom torch import nn\n\n\nclass Rotary(nn.Module):\n    def __init__(self, angle):\n"
            "        super().__init__()\n        self.register_buffer('cos', angle.cos())\n"
            "        self.register_buffer('sin', angle.sin())\n\n    def forward(self, q, turned):\n"
            "        out = q.float() * self.cos + turned.float() * self.sin\n        return out.to(q.dtype)\n"
        ),
        fix_safety="No automatic fix: the better result differs from the old one in its last bits.",
    )
    valid = (
        "import torch\ndef f(q, c, s):\n    return q * c + q.flip(-1) * s\n",
        "import torch\ndef f(q, c, s):\n    c, s = c.bfloat16(), s.bfloat16()\n"
        "    return (q.float() * c.float() + q.flip(-1).float() * s.float()).bfloat16()\n",
        "import torch\ndef f(q, c):\n    return q.half() * c\n",
        "import torch\ndef f(q, c, s):\n    return (q * c + q.flip(-1) * s).bfloat16()\n",
        "import torch\ndef f(q, c, s):\n    c = c.bfloat16()\n    return q.float() * c + q.flip(-1) * s\n",
        "import torch\ndef f(a, b, half):\n    return a * half + b * half\n",
        # one product and a plain term: two roundings, as in every layer
        "import torch\ndef f(x, w, b):\n    w = w.bfloat16()\n    return x * w + b\n",
    )
    invalid = (
        Invalid(
            "import torch\nfrom torch import nn\nclass R(nn.Module):\n    def __init__(self, a):\n"
            "        super().__init__()\n        self.register_buffer('cos', a.cos().bfloat16())\n"
            "        self.register_buffer('sin', a.sin().bfloat16())\n    def forward(self, q, n):\n"
            "        return q * self.cos[:n] + q.flip(-1) * self.sin[:n]\n",
            (9,),
        ),
        Invalid(
            "import torch\ndef f(q, c, s):\n    c, s = c.half(), s.half()\n    return q * c - q.flip(-1) * s\n", (4,)
        ),
        Invalid(
            "import torch\ndef f(q, a):\n    c = torch.cos(a).to(torch.bfloat16)\n"
            "    s = torch.sin(a).to(torch.bfloat16)\n"
            "    left = q * c\n    right = q.flip(-1) * s\n    return left + right\n",
            (7,),
        ),
        Invalid(
            "import torch\ndef f(x, y, w):\n    x = x.to(dtype=torch.float16)\n    y = y.half()\n"
            "    return x * w + y * (1 - w)\n",
            (5,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every sum of two products in half precision."""
        for operation in file.nodes(ast.BinOp):
            if not isinstance(operation.op, (ast.Add, ast.Sub)):
                continue
            products = [_product(file, side) for side in (operation.left, operation.right)]
            if products[0] is None or products[1] is None:
                continue
            factors = [factor for product in products if product for factor in (product.left, product.right)]
            low = [any(_precision(file, f) == "low" for f in (p.left, p.right)) for p in products if p]
            if not all(low) or any(_precision(file, factor) == "high" for factor in factors):
                continue
            yield Hit(
                operation,
                "Each product and the sum round to half precision here; compiled code rounds once at the end, so the "
                "two differ in many elements. Compute it in float32 and cast the result once.",
                hypothesis={"operand": file.source(operation)},
            )


def _product(file: FileContext, side: ast.expr) -> ast.BinOp | None:
    """The product that a side of a sum is, or was assigned."""
    if isinstance(side, ast.UnaryOp):
        side = side.operand
    if isinstance(side, ast.Name):
        side = file.values.single_definition(side) or side
    return side if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult) else None


def _precision(file: FileContext, expression: ast.expr | None) -> str:
    """`low` for what the file makes bfloat16 or float16, `high` for float32 and more, else empty."""
    for _ in range(10):
        following: ast.expr | None = None
        if isinstance(expression, ast.Call):
            named = _named_precision(file, expression)
            if named:
                return named
            if isinstance(expression.func, ast.Attribute) and expression.func.attr in _SAME_TYPE:
                following = expression.func.value
        elif isinstance(expression, (ast.Subscript, ast.UnaryOp)):
            following = expression.value if isinstance(expression, ast.Subscript) else expression.operand
        elif isinstance(expression, ast.Name):
            following = file.values.single_definition(expression)
        elif isinstance(expression, ast.Attribute):
            following = _registered(file, expression)
        if following is None:
            return ""
        expression = following
    return ""


def _named_precision(file: FileContext, call: ast.Call) -> str:
    """What a conversion or a `dtype=` says."""
    name = terminal_name(call.func)
    is_method = isinstance(call.func, ast.Attribute) and file.qualified_name(call.func) is None
    if is_method and not call.args and not call.keywords:
        if name in _LOW_METHODS:
            return "low"
        if name in _HIGH_METHODS:
            return "high"
    given = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"]
    if is_method and name in ("to", "type"):
        given.extend(call.args)
    for argument in given:
        qualified = file.qualified_name(argument)
        if qualified in _LOW_TYPES:
            return "low"
        if qualified in _HIGH_TYPES:
            return "high"
    return ""


def _registered(file: FileContext, attribute: ast.Attribute) -> ast.expr | None:
    """What `self.name` is set to, or registered as a buffer with."""
    found = _definition(file, attribute)
    owner = file.enclosing_class(attribute)
    if found is not None or owner is None:
        return found
    for call in file.calls("register_buffer"):
        named = len(call.args) > 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == attribute.attr
        if named and file.enclosing_class(call) is owner:
            return call.args[1]
    return None
