"""What the rules on custom Functions claim is true of the installed torch: their faulty examples fail in it."""

import pytest
import torch

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.findings import Finding, Severity
from analyzer.registry import all_rules, rule
from analyzer.rules.base import Invalid

HEAD = "import torch\nfrom torch.autograd import Function\n\n\n"


def examples(identifier: str) -> list[Invalid]:
    found = rule(identifier)
    assert found is not None
    return list(found.invalid)


def findings(source: str, identifier: str) -> list[Finding]:
    found = analyze_source(HEAD + source, "package/layers.py", options=AnalyzerOptions(rules=frozenset({identifier})))
    return [finding for finding in found.findings if finding.rule == identifier]


def function_class(source: str | bytes) -> type[torch.autograd.Function]:
    """The autograd Function of one of our own examples."""
    space: dict[str, object] = {}
    exec(compile(source, "example.py", "exec"), space)
    return next(
        value
        for value in space.values()
        if isinstance(value, type)
        and issubclass(value, torch.autograd.Function)
        and value is not torch.autograd.Function
    )


def inputs_of(function: type[torch.autograd.Function]) -> list[torch.Tensor]:
    code = function.forward.__code__
    count = code.co_argcount - (code.co_varnames[0] == "ctx")
    return [torch.rand(3, dtype=torch.float64).add_(0.5).requires_grad_() for _ in range(count)]


@pytest.mark.parametrize("example", examples("GP301") + examples("GP303"))
def test_a_wrong_count_raises_in_backward_and_not_before(example: Invalid) -> None:
    function = function_class(example.source)
    if "if " in str(example.source):
        # One branch of this example is at fault, and the condition belongs to the example.
        assert findings(str(example.source).removeprefix(HEAD), "GP303")
        return
    result = function.apply(*inputs_of(function))
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        result.sum().backward()


def test_further_nones_at_the_end_are_accepted_by_torch() -> None:
    function = function_class(
        HEAD + "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad * 2, None, None\n"
    )
    (x,) = inputs_of(function)
    function.apply(x).sum().backward()
    assert x.grad is not None


def test_a_tensor_on_the_context_gives_a_wrong_gradient_in_silence_where_a_saved_one_raises() -> None:
    documentation = rule("GP302").documentation  # type: ignore[union-attr]
    x, weight = torch.full((2,), 2.0, requires_grad=True), torch.ones(2, requires_grad=True)
    changed = x * 1
    product = function_class(documentation.faulty_example).apply(changed, weight)
    with torch.no_grad():
        changed.mul_(10)
    product.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [20.0, 20.0]

    changed = x * 1
    product = function_class(documentation.right_example).apply(changed, weight)
    with torch.no_grad():
        changed.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("example", examples("GP307"))
def test_the_history_of_an_unmarked_input_is_lost(example: Invalid) -> None:
    function = function_class(example.source)
    leaves = inputs_of(function)
    # Values of both signs: some of the examples change negative ones only.
    values = [leaf - leaf.detach().mean() for leaf in leaves]
    before = values[0].detach().clone()
    function.apply(*values)
    assert not torch.equal(values[0].detach(), before), "the example changes its input"
    assert "Double" not in str(values[0].grad_fn), "autograd does not know"


def test_a_marked_input_gets_the_function_into_its_history() -> None:
    function = function_class(rule("GP307").documentation.right_example)  # type: ignore[union-attr]
    (x,) = inputs_of(function)
    value = x * 1
    function.apply(value)
    assert "Double" in str(value.grad_fn)
    value.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_the_message_on_arity_names_both_counts_and_the_inputs() -> None:
    (found,) = findings(
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x, weight, bias):\n"
        "        return x * weight + bias\n\n    @staticmethod\n    def backward(ctx, grad):\n"
        "        return grad, grad\n",
        "GP303",
    )
    assert found.message == "backward returns 2 gradients; forward takes 3 inputs (x, weight, bias)"
    assert found.hypothesis == {"function": "F", "expected": 3, "returned": 2}
    assert found.settled_by == ("gradcheck",)


def test_the_message_on_saved_tensors_names_what_is_taken_and_what_is_kept() -> None:
    (found,) = findings(
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x, w):\n        ctx.save_for_backward(x)\n"
        "        return x * w\n\n    @staticmethod\n    def backward(ctx, grad):\n        x, w, b = ctx.saved_tensors\n"
        "        return grad * w, grad * x\n",
        "GP301",
    )
    assert "unpacks 3 tensors (x, w, b)" in found.message
    assert "saves 1 tensor (x)" in found.message


def test_a_tensor_that_backward_deletes_again_is_only_a_note() -> None:
    (found,) = findings(
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.x = x\n        return x * x\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        result = 2 * grad * ctx.x\n        del ctx.x\n"
        "        return result\n",
        "GP302",
    )
    assert found.severity is Severity.NOTE


def test_a_method_inherited_from_a_class_of_the_same_file_is_read() -> None:
    source = (
        "class Base(Function):\n    @staticmethod\n    def backward(ctx, grad):\n        return grad\n\n\n"
        "class Child(Base):\n    @staticmethod\n    def forward(ctx, x, y):\n        return x * y\n"
    )
    assert [finding.region.start_line for finding in findings(source, "GP303")] == [8]


@pytest.mark.parametrize(
    "source",
    [
        "class F(Function):\n    pass\n",
        "class F(Function):\n    forward = staticmethod(len)\n    backward = staticmethod(len)\n",
        "class F(Function):\n    @staticmethod\n    def forward():\n        pass\n    @staticmethod\n"
        "    def backward():\n        pass\n",
        "class F(Function):\n    def forward(ctx, *, x):\n        ctx.a, (ctx.b, *ctx.c) = x\n"
        "    def backward(ctx, *g):\n        return g\n",
        "class F(Function):\n    def forward(*args, **kwargs):\n        return args\n    def backward(*grads):\n"
        "        return grads[0].mul_(2), *grads\n",
        "class F(Function):\n    @classmethod\n    def forward(cls):\n        cls.x = 1\n    @classmethod\n"
        "    def backward(cls):\n        return cls.x.detach()\n",
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x\n    @staticmethod\n"
        "    def backward(ctx, g):\n        (a, b), *c = ctx.saved_tensors\n        return (*c, *[g])\n",
    ],
)
def test_odd_functions_are_read_without_a_claim_that_breaks(source: str) -> None:
    chosen = frozenset({"GP002", *(found.id for found in all_rules() if found.id.startswith("GP3"))})
    found = analyze_source(HEAD + source, "package/layers.py", options=AnalyzerOptions(rules=chosen))
    assert [finding.message for finding in found.findings if finding.rule == "GP002"] == []
