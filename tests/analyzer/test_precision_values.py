"""The floating-point type of values: what casts, `dtype=`, arithmetic and autocast say about it, and nothing else."""

import ast

import pytest

from analyzer.context import FileContext
from analyzer.values.domain import Precision

HALF, BFLOAT16, SINGLE, DOUBLE, UNKNOWN = (
    Precision.HALF,
    Precision.BFLOAT16,
    Precision.SINGLE,
    Precision.DOUBLE,
    Precision.UNKNOWN,
)


def precision_of_result(body: str) -> Precision:
    text = "import torch\nimport torch.nn.functional as F\ndef f(x, y, device, dtype):\n" + body
    tree = ast.parse(text)
    file = FileContext(path="layers.py", module="layers", text=text, tree=tree)
    returned = max(file.nodes(ast.Return), key=lambda node: node.lineno).value
    assert returned is not None
    return file.values.value(returned).precision


@pytest.mark.parametrize(
    ("expression", "precision"),
    [
        ("x", UNKNOWN),
        ("x.half()", HALF),
        ("x.bfloat16()", BFLOAT16),
        ("x.half().float()", SINGLE),
        ("x.double()", DOUBLE),
        ("x.to(torch.float16)", HALF),
        ("x.to(device, torch.float16)", HALF),
        ("x.to(device=device, dtype=torch.bfloat16)", BFLOAT16),
        ("x.half().to(device)", HALF),
        ("x.half().to('cuda')", HALF),
        ("x.half().to(y.device)", HALF),
        ("x.half().to(dtype)", UNKNOWN),
        ("x.type(torch.half)", HALF),
        ("y.to(x.half().dtype)", HALF),
        ("y.type_as(x.half())", HALF),
        ("torch.zeros(3, dtype=torch.half)", HALF),
        ("torch.zeros_like(x.half())", HALF),
        ("torch.zeros(3)", UNKNOWN),
        ("x.half() + 1e-3", HALF),
        ("(x.half() ** 2).sum(-1).sqrt()", HALF),
        ("x.half() + y.float()", SINGLE),
        ("x.half() + y.bfloat16()", SINGLE),
        ("x.half() * y.double()", DOUBLE),
        ("x.half() + y", UNKNOWN),
        ("x.half().mul(y)", UNKNOWN),
        ("x.half().sum(-1, dtype=torch.float32)", SINGLE),
        ("x.half().norm(dim=-1).clamp(min=1e-6)", HALF),
        ("x.half().long()", UNKNOWN),
        ("torch.where(x > 0, x.half(), y.half())", HALF),
        ("F.softmax(x.half(), dim=-1, dtype=torch.float32)", SINGLE),
    ],
)
def test_casts_and_dtypes_are_followed(expression: str, precision: Precision) -> None:
    assert precision_of_result(f"    return {expression}\n") is precision


def test_a_named_dtype_is_followed() -> None:
    assert precision_of_result("    d = torch.float16\n    z = x.to(d)\n    return z * 2\n") is HALF


@pytest.mark.parametrize(
    ("region", "product", "total"),
    [
        ("torch.autocast('cuda')", HALF, SINGLE),
        ("torch.autocast('cuda', dtype=torch.bfloat16)", BFLOAT16, SINGLE),
        ("torch.autocast(device_type='cpu')", BFLOAT16, SINGLE),
        ("torch.cuda.amp.autocast()", HALF, SINGLE),
        ("torch.autocast('cuda', enabled=False)", UNKNOWN, UNKNOWN),
        ("torch.no_grad()", UNKNOWN, UNKNOWN),
    ],
)
def test_autocast_decides_by_operation(region: str, product: Precision, total: Precision) -> None:
    body = f"    with {region}:\n        return {{}}\n"
    assert precision_of_result(body.format("torch.matmul(x, y)")) is product
    assert precision_of_result(body.format("(x @ y)")) is product
    assert precision_of_result(body.format("x.sum(-1)")) is total
