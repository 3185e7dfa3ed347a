"""What the rules on in-place writes claim is true of the installed torch: faulty examples raise, right ones run."""

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Confidence, Finding, Severity
from analyzer.registry import rule

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
ALL = frozenset({"GP401", "GP404", "GP405"})


def findings(source: str, path: str = "package/layers.py") -> list[Finding]:
    return [
        item
        for item in analyze_source(HEAD + source, path, options=AnalyzerOptions(rules=ALL)).findings
        if item.rule in ALL
    ]


def module_of(source: str) -> torch.nn.Module | None:
    """The module class of one of our own examples, built; None for an example without one."""
    space: dict[str, object] = {}
    exec(compile(source, "example.py", "exec"), space)
    for value in space.values():
        if (
            isinstance(value, type)
            and issubclass(value, torch.nn.Module)
            and value.__module__ != "torch.nn.modules.module"
        ):
            torch.manual_seed(0)
            return value()
    return None


def run(module: torch.nn.Module) -> torch.Tensor:
    width = next(module.parameters()).shape[-1]
    torch.manual_seed(0)
    result = module(torch.rand(4, width).requires_grad_() * 1)
    return result[0] if isinstance(result, tuple) else result


def sources(identifier: str, kind: str) -> list[str]:
    found = rule(identifier)
    assert found is not None
    texts = [item if isinstance(item, str) else item.source for item in getattr(found, kind)]
    return [text for text in texts if isinstance(text, str) and "nn.Module" in text]


@pytest.mark.parametrize("source", sources("GP404", "invalid") + sources("GP405", "invalid"))
def test_each_faulty_example_raises_in_backward(source: str) -> None:
    module = module_of(source)
    assert module is not None
    result = run(module)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("source", [text for identifier in sorted(ALL) for text in sources(identifier, "valid")])
def test_each_right_example_runs_backward(source: str) -> None:
    module = module_of(source)
    assert module is not None
    result = run(module)
    if result.requires_grad:
        result.sum().backward()


@pytest.mark.parametrize("source", sources("GP401", "invalid"))
def test_each_hidden_write_changes_the_gradient_without_an_error(source: str) -> None:
    def gradient(text: str) -> torch.Tensor:
        module = module_of(text)
        assert module is not None
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(3)
        run(module).sum().backward()
        return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])

    honest = "\n".join(line for line in source.splitlines() if ".data" not in line)
    assert not torch.allclose(gradient(source), gradient(honest))


def test_the_measured_numbers_of_the_hidden_write_hold() -> None:
    x = torch.ones((), requires_grad=True)
    y = torch.exp(x)
    y.data.mul_(2)
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(5.4366, abs=1e-3)


def test_one_tensor_is_reported_once_however_often_it_is_written() -> None:
    source = (
        "class N(nn.Module):\n    def forward(self, x):\n        y = torch.sigmoid(x)\n        y[0] = 0\n"
        "        y[1] = 0\n        y += 1\n        return y\n"
    )
    assert [(item.rule, item.region.start_line) for item in findings(source)] == [("GP404", 9)]


def test_what_the_confidence_rests_on() -> None:
    certain = (
        "class N(nn.Module):\n    def __init__(self):\n        self.up = nn.Linear(2, 2)\n\n    def forward(self, x):\n"
        "        y = self.up(x).exp()\n        y += 1\n        return y\n"
    )
    argument = "class N(nn.Module):\n    def forward(self, x):\n        y = x.exp()\n        y += 1\n        return y\n"
    function = "def scaled(x):\n    y = x.exp()\n    y += 1\n    return y\n"
    assert [(item.severity, item.confidence) for item in findings(certain)] == [(Severity.ERROR, Confidence.HIGH)]
    assert [(item.severity, item.confidence) for item in findings(argument)] == [(Severity.WARNING, Confidence.MEDIUM)]
    assert [(item.severity, item.confidence) for item in findings(function)] == [(Severity.NOTE, Confidence.LOW)]
    assert findings(function, "package/transforms/color.py") == []


def test_a_function_that_gives_back_only_indices_has_no_backward() -> None:
    source = (
        "class N(nn.Module):\n    def __init__(self):\n        self.up = nn.Linear(2, 2)\n\n    def forward(self, x):\n"
        "        score = self.up(x).exp()\n        score[0] = 0\n"
        "        best, index = score.topk(2)\n        return index\n"
    )
    assert findings(source) == []


def test_the_finding_points_to_the_operation_that_kept_the_tensor() -> None:
    source = (
        "class N(nn.Module):\n    def __init__(self):\n        self.up = nn.Linear(2, 2)\n\n    def forward(self, x):\n"
        "        h = x + 1\n        h += self.up(h)\n        return h\n"
    )
    (found,) = findings(source)
    assert found.rule == "GP405"
    assert "nn.Linear in line 12" in found.message
    assert found.hypothesis["tensor"] == "h"
    assert found.hypothesis["kept"] == "input"
    assert found.settled_by == ("gradcheck", "finding_search")


@pytest.mark.parametrize(
    "body",
    [
        "x[...] += 1\nreturn x",
        "x: int = 3\nx += 1\nreturn x",
        "a, *b = x\nb[0] += 1\nreturn b",
        "for i, (j, k) in enumerate(x):\n    x[i] = j @ k\n    x @= k\nelse:\n    x **= 2\nreturn x",
        "try:\n    x += 1\nexcept ValueError as e:\n    return e\nfinally:\n    del x\n",
        "match x:\n    case [a]:\n        a += 1\n    case _:\n        return x\n",
        "while x.sum() > 0:\n    x <<= 1\n    x &= 3\n    break\nreturn (y := x).add_(1)",
        "with torch.no_grad() as g, open('f') as f:\n    x.data.mul_(2)\nreturn lambda: x.add_(1)",
        "async def inner():\n    async for i in x:\n        i += 1\nreturn [y.add_(1) for y in x]",
        "self.a.b.data[0].T.add_(x)\nself.a.b += x\nx.y.z *= 2\nreturn f'{x.add_(1)}'",
        "return torch.add(*x, out=x[0])",
        "x[0:1, None, ..., -1] //= 2\nx %= 3\nx |= x\nx ^= x\nx >>= x\nreturn not x",
    ],
)
def test_odd_statements_are_run_through_without_harm(body: str) -> None:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    findings(f"class N(nn.Module):\n    def forward(self, x):\n{lines}")
