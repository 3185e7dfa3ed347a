"""What the rules on lost gradients and in-place writes claim is true of the installed torch, on their own examples."""

import contextlib

import pytest
import torch

from analyzer.engine import analyze_source
from analyzer.registry import rule


def sources(identifier: str, kind: str = "invalid") -> list[str]:
    """The examples of a rule that are a module with a forward of one argument."""
    found = rule(identifier)
    assert found is not None
    texts = [item if isinstance(item, str) else item.source for item in getattr(found, kind)]
    return [text for text in texts if isinstance(text, str) and "def forward(self, x):" in text]


def built(source: str) -> torch.nn.Module:
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(source, "example.py", "exec"), space)
    net = next(space[name] for name in ("Net", "Block") if name in space)
    assert isinstance(net, type)
    torch.manual_seed(0)
    made = net()
    assert isinstance(made, torch.nn.Module)
    return made


def given() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(4, 4).requires_grad_() * 1


def backward(result: object) -> None:
    tensor = result[0] if isinstance(result, tuple) else result
    assert isinstance(tensor, torch.Tensor)
    tensor.float().sum().backward()


@pytest.mark.parametrize("source", sources("GP406") + sources("GP407"))
def test_a_refused_write_raises_or_overlaps(source: str) -> None:
    if ".unfold(" in source:
        net = built(source)
        fresh = built(source.replace("w.mul_(2)", "w = w * 2"))
        assert not torch.allclose(net(given()), fresh(given()))
        return
    with pytest.raises(RuntimeError, match=r"in-place|inplace|single memory location|out=\.\.\."):
        backward(built(source)(given()))


@pytest.mark.parametrize("source", sources("GP406", "valid") + sources("GP407", "valid"))
def test_a_write_that_is_left_alone_works(source: str) -> None:
    if "show(" in source:
        return
    with contextlib.suppress(NotImplementedError):
        built(source)(given())


@pytest.mark.parametrize("source", sources("GP402") + sources("GP403"))
def test_a_write_past_autograd_changes_the_gradient_without_an_error(source: str) -> None:
    def gradients(text: str) -> torch.Tensor:
        net = built(text)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(3)
        backward(net(given()))
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    honest = [
        line
        for line in source.splitlines()
        if not any(word in line for word in ("numpy()", "out=a", "a[0]", "a *= 2", "a.sort", "t.mul_", ".data ="))
    ]
    assert not torch.allclose(gradients(source), gradients("\n".join(honest)))


@pytest.mark.parametrize("source", sources("GP411"))
def test_state_with_a_history_breaks_the_second_backward(source: str) -> None:
    net = built(source)
    backward(net(given()))
    with pytest.raises(RuntimeError, match=r"second time|modified by an inplace"):
        backward(net(given()))


@pytest.mark.parametrize("source", [text for text in sources("GP411", "valid") if "def update" not in text])
def test_state_without_a_history_is_used_again_and_again(source: str) -> None:
    net = built(source)
    for _ in range(2):
        result = net(given())
        if isinstance(result, torch.Tensor) and result.requires_grad:
            backward(result)


@pytest.mark.parametrize("source", sources("GP412"))
def test_an_attribute_changed_through_a_name_changes_with_every_call(source: str) -> None:
    net = built(source)
    x = torch.ones(2, 2) if "view(2, 2)" in source else torch.ones(4)
    attribute = getattr(net, "shift", None)
    if attribute is None:
        attribute = net.m
    before = attribute.clone()
    net(x)
    assert not torch.equal(before, attribute)


@pytest.mark.parametrize("source", sources("GP415"))
def test_a_graph_from_init_serves_one_backward_only(source: str) -> None:
    net = built(source)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5)
    backward(net(given()))
    with pytest.raises(RuntimeError, match="second time"):
        backward(net(given()))


@pytest.mark.parametrize("source", sources("GP408"))
def test_a_changed_argument_is_changed_for_the_caller(source: str) -> None:
    x = torch.linspace(-1, 1, 16).view(4, 4)
    before = x.clone()
    net = built(source)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.7)
        net(x)
    assert not torch.equal(before, x)


@pytest.mark.parametrize("source", sources("GP202") + sources("GP203"))
def test_what_is_cut_off_gets_no_gradient(source: str) -> None:
    finding = next(f for f in analyze_source(source, "package/layers.py").findings if f.rule in {"GP202", "GP203"})
    name = str(finding.hypothesis["source"]).removeprefix("self.")
    net = built(source)
    x = given().detach().requires_grad_()
    result = net(x)
    if result.requires_grad:
        backward(result)
    lost = [p.grad for own, p in (*net.named_parameters(), ("x", x)) if own.split(".")[0] == name]
    assert lost
    assert all(gradient is None or not gradient.any() for gradient in lost)


@pytest.mark.parametrize("source", sources("GP205"))
def test_what_is_not_registered_is_no_parameter(source: str) -> None:
    assert list(built(source).parameters()) == []


def test_a_flag_on_a_module_freezes_nothing() -> None:
    net = torch.nn.Linear(2, 2)
    net.requires_grad = False  # type: ignore[assignment]
    assert all(parameter.requires_grad for parameter in net.parameters())


@pytest.mark.parametrize(
    ("expression", "value", "gradient"),
    [
        ("(x + q - x).detach()", 1.0, None),
        ("x + (q - x)", 1.0, 0.0),
        ("q + (x - q).detach()", 0.7, 0.0),
        ("x + (x - q).detach()", 0.4, 1.0),
        ("q - x + x.detach()", 1.0, -1.0),
        ("x + (q - x).detach()", 1.0, 1.0),
    ],
)
def test_straight_through_forms_have_the_value_and_gradient_that_is_said(
    expression: str, value: float, gradient: float | None
) -> None:
    x = torch.tensor(0.7, requires_grad=True)
    result = eval(expression, {"x": x, "q": torch.round(x)})
    assert result.item() == pytest.approx(value)
    if gradient is None:
        assert not result.requires_grad
    else:
        result.backward()
        assert x.grad is not None
        assert x.grad.item() == pytest.approx(gradient)


def test_a_gradient_without_a_graph_is_a_constant() -> None:
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3, requires_grad=True)
    (plain,) = torch.autograd.grad((w * x).pow(2).sum(), x, retain_graph=True)
    assert not plain.requires_grad


def test_replacing_data_reaches_what_was_kept_as_an_input_and_not_a_result() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * x
    x.data = torch.full((2,), 5.0)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [10.0, 10.0]
    z = torch.ones(2, requires_grad=True)
    e = z.exp()
    e.data = torch.full((2,), 9.0)
    e.sum().backward()
    assert z.grad is not None
    assert z.grad[0].item() == pytest.approx(2.7183, abs=1e-3)


@pytest.mark.parametrize("method", ["chunk(2)", "split(1)", "unbind(0)"])
def test_parts_may_not_be_written(method: str) -> None:
    base = torch.rand(2, 2, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match="returns multiple views"):
        eval(f"base.{method}", {"base": base})[0].mul_(2)
    base.tensor_split(2)[0].mul_(2)


@pytest.mark.parametrize(
    "body",
    [
        "a, *b = x\nreturn b[0].item()",
        "for i, (j, k) in enumerate(zip(x, x)):\n    x[i] = float(j @ k)\nelse:\n    x **= 2\nreturn x",
        "try:\n    y = float(x)\nexcept ValueError as e:\n    return e\nfinally:\n    del x\nreturn y",
        "match x:\n    case [a]:\n        a = int(a)\n    case _:\n        return x\nreturn a",
        "while x.sum() > 0:\n    x = x.round()\n    break\nreturn (y := x).detach() + y",
        "with torch.no_grad() as g, open('f') as f:\n    x.data.mul_(2)\nreturn lambda: x.item()",
        "async def inner():\n    async for i in x:\n        i += 1\nreturn [y.argmax() for y in x if (z := y) > 0]",
        "self.a.b.data[0].T.add_(x)\nself.a.b += x\nx.y.z *= 2\nreturn f'{x.item()}'",
        "return torch.tensor(*x, out=x[0]).detach()",
        "return self.forward(self.forward(float(x)))",
        "x.a = x.data = x\nx[0], x.b = x, int(x)\nreturn x",
    ],
)
def test_odd_statements_are_followed_without_harm(body: str) -> None:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    source = f"import torch\nimport torch.nn as nn\n\n\nclass N(nn.Module):\n    def forward(self, x):\n{lines}"
    assert "GP002" not in {finding.rule for finding in analyze_source(source, "package/layers.py").findings}
