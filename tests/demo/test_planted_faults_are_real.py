"""The demo repository is wrong exactly where its expectation file says, shown with torch alone.

No part of Gradproof takes part: this is the independent referee of the demo's claims.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from tools.planted import EXPECTED, REPOSITORY, planted_faults

FAULTS = {fault.id: fault for fault in planted_faults()}
DECLARED = {
    entry["target"]: entry
    for entry in tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["gradproof"]["targets"]
}
FAIL_WHEN_RUN = {target for fault in FAULTS.values() for target in fault.targets}
# Wrong, and torch's gradcheck does not see it: it compiles nothing, sends contiguous gradients only, writes to no
# input, and goes to no singular point.
BEYOND_GRADCHECK = {
    "vislang.attention:CosineAttention",
    "vislang.blocks:RMSNorm",
    "vislang.functions.distances:SoftClip",
    "vislang.functions.pooling:PairSum",
    "vislang.losses:ContrastiveLoss",
    "vislang.losses:FocalLoss",
    "vislang.losses:aspect_loss",
    "vislang.losses:box_angle",
}
# Straight-through estimators differ from finite differences by design: the gradient is the identity, the step is not.
BY_DESIGN = {"vislang.quantise:PromptQuantiser"}
Case = tuple[Callable[..., Any], list[Any], list[torch.nn.Parameter]]


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Iterator[None]:
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(REPOSITORY))
    threads = torch.get_num_threads()
    # Tensors of a few hundred numbers: a second thread only waits, the more so beside other tests.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    sys.path.remove(str(REPOSITORY))
    sys.dont_write_bytecode = before
    for name in [name for name in sys.modules if name.split(".")[0] == "vislang"]:
        del sys.modules[name]


def part(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def build(target: str) -> Case:
    """The target as the repository declares it, in float64: a callable, its inputs, its parameters."""
    declared = DECLARED[target]
    module_name, _, name = target.partition(":")
    module: ModuleType = import_module(module_name)
    names = {**vars(module), "torch": torch}
    torch.manual_seed(0)
    inputs = [eval(expression, names) for expression in declared["inputs"]]  # our own expressions, from our own file
    inputs = [value.double() if torch.is_tensor(value) and value.is_floating_point() else value for value in inputs]
    inputs = [
        value.requires_grad_() if torch.is_tensor(value) and value.is_floating_point() else value for value in inputs
    ]
    if "constructor" in declared:
        built = eval(declared["constructor"], names).double()
        return built, inputs, list(built.parameters())
    function = getattr(module, name)
    return (function.apply if isinstance(function, type) else function), inputs, []


def passes_gradcheck(target: str) -> bool:
    """torch's own gradcheck on inputs and parameters; an exception of the backward counts as failing."""
    function, inputs, parameters = build(target)

    def of_everything(*values: Any) -> Any:
        if not parameters:
            return function(*values)
        names = [name for name, _ in function.named_parameters()]  # type: ignore[attr-defined]
        state = dict(zip(names, values[len(inputs) :], strict=True))
        return torch.func.functional_call(function, state, values[: len(inputs)])

    leaves = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    try:
        # Projected Jacobians for modules: whole ones take a minute for a thousand parameters on a busy machine.
        return gradcheck(of_everything, (*inputs, *leaves), fast_mode=bool(parameters))
    except (RuntimeError, ValueError):
        return False


def outputs_and_gradients(function: Callable[..., Any], case: Case) -> list[torch.Tensor | None]:
    """Outputs and gradients under a random cotangent, seeded alike for every call."""
    _, inputs, parameters = case
    leaves = [
        value.detach().clone().requires_grad_(value.requires_grad) if torch.is_tensor(value) else value
        for value in inputs
    ]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in outputs]
    wanted = [*(leaf for leaf in leaves if torch.is_tensor(leaf) and leaf.requires_grad), *parameters]
    return [*outputs, *torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)]


def agrees_when_compiled(target: str) -> bool:
    case = build(target)
    torch.compiler.reset()
    eager = outputs_and_gradients(case[0], case)
    compiled = outputs_and_gradients(torch.compile(case[0], backend="aot_eager"), case)
    return all(
        (one is None and other is None)
        or (one is not None and other is not None and torch.equal(one.detach(), other.detach()))
        for one, other in zip(eager, compiled, strict=True)
    )


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_each_planted_line_is_where_the_expectation_says(fault: Any) -> None:
    lines = (REPOSITORY / fault.path).read_text(encoding="utf-8").splitlines()
    assert lines[fault.line - 1].strip() == fault.text


def test_the_faults_are_of_many_kinds_and_several_show_only_at_run_time() -> None:
    assert len({fault.kind for fault in FAULTS.values()}) == len(FAULTS) >= 10
    assert len([fault for fault in FAULTS.values() if fault.check is not None]) >= 2
    assert len([fault for fault in FAULTS.values() if fault.rule is not None and fault.targets]) >= 3


def test_the_expectation_is_not_part_of_what_is_submitted() -> None:
    assert EXPECTED.parent == REPOSITORY.parent
    assert not list(REPOSITORY.rglob("*expected*"))


@pytest.mark.parametrize("target", sorted(set(DECLARED) - FAIL_WHEN_RUN - BY_DESIGN))
def test_the_right_parts_pass_gradcheck(target: str) -> None:
    assert passes_gradcheck(target)


@pytest.mark.parametrize("target", sorted(FAIL_WHEN_RUN - BEYOND_GRADCHECK))
def test_the_wrong_parts_fail_gradcheck(target: str) -> None:
    assert not passes_gradcheck(target)


@pytest.mark.parametrize("target", sorted(BEYOND_GRADCHECK))
def test_what_is_beyond_gradcheck_passes_it(target: str) -> None:
    assert passes_gradcheck(target)


def test_pair_sum_misreads_gradients_that_are_not_contiguous() -> None:
    function, (x,), _ = build("vislang.functions.pooling:PairSum")
    cotangent = torch.randn(4, 3, dtype=torch.float64).t()
    (wrong,) = torch.autograd.grad(function(x), x, cotangent)
    (right,) = torch.autograd.grad(function(x), x, cotangent.contiguous())
    assert not torch.allclose(wrong, right)


def test_cosine_attention_differs_when_compiled() -> None:
    assert not agrees_when_compiled("vislang.attention:CosineAttention")


@pytest.mark.parametrize("target", ["vislang.attention:CrossAttention", "vislang.functions.activations:Mish"])
def test_the_right_parts_agree_when_compiled(target: str) -> None:
    assert agrees_when_compiled(target)


def test_squared_relu_lacks_a_factor_of_two() -> None:
    function, (x,), _ = build("vislang.functions.activations:SquaredReLU")
    (wrong,) = torch.autograd.grad(function(x).sum(), x)
    (right,) = torch.autograd.grad(x.relu().square().sum(), x)
    assert torch.equal(2.0 * wrong, right)


def test_channel_affine_exchanges_the_gradients_of_gamma_and_beta() -> None:
    function, inputs, _ = build("vislang.functions.scaling:ChannelAffine")
    wrong = torch.autograd.grad(function(*inputs).sum(), inputs)
    x, gamma, beta = inputs
    right = torch.autograd.grad((x * gamma + beta).sum(), inputs)
    torch.testing.assert_close((wrong[0], wrong[2], wrong[1]), right)


def test_soft_clip_is_silently_wrong_when_its_input_changes_later() -> None:
    soft_clip = part("vislang.functions.distances", "SoftClip")
    leaf = torch.randn(5, dtype=torch.float64, requires_grad=True)
    x = leaf * 1.0
    clipped = soft_clip.apply(x, 2.0)
    with torch.no_grad():
        x.add_(5.0)
    (wrong,) = torch.autograd.grad(clipped.sum(), leaf)
    (right,) = torch.autograd.grad((2.0 * torch.tanh(leaf / 2.0)).sum(), leaf)
    assert not torch.allclose(wrong, right)


def test_warmup_scale_loses_the_history_of_its_input() -> None:
    warmup = part("vislang.functions.scaling", "WarmupScale")
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 1.0
    warmup.apply(x, 0.5)
    (wrong,) = torch.autograd.grad((x * 2.0).sum(), leaf)
    assert torch.equal(x.detach(), torch.full((3,), 0.5))
    assert torch.equal(wrong, torch.full((3,), 2.0))  # 0.5 * 2 would be right


def test_pruned_attention_writes_behind_autograd() -> None:
    attention, (x,), _ = build("vislang.attention:PrunedAttention")
    q, k, _ = attention.qkv(x).chunk(3, dim=-1)  # type: ignore[attr-defined]
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    assert (weights < attention.keep).any()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "name", "arguments", "inputs"),
    [
        ("vislang.losses", "ContrastiveLoss", (), (torch.eye(3), torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 1]]))),
        ("vislang.losses", "FocalLoss", (), (torch.tensor([[-200.0]]), torch.tensor([[1.0]]))),
        (
            "vislang.losses",
            "aspect_loss",
            None,
            (torch.tensor([[0.0, 0.5, 1.0, 0.5]]), torch.tensor([[0.0, 0.0, 1.0, 1.0]])),
        ),
        ("vislang.losses", "spread_loss", None, (torch.randn(3, 4),)),
        ("vislang.losses", "box_angle", None, (torch.tensor([[0.0, 0.5, 0.0, 0.5]]),)),
        ("vislang.blocks", "RMSNorm", (4,), (torch.zeros(2, 4),)),
        ("vislang.blocks", "RootPool", (), (torch.tensor([[[[-1.0, 1.0]]]]),)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_numerical_faults_give_nan_gradients(module: str, name: str, arguments: Any, inputs: Any) -> None:
    made = part(module, name)
    function = made if arguments is None else made(*arguments)
    leaves = [value.clone().requires_grad_() for value in inputs]
    gradients = torch.autograd.grad(function(*leaves).sum(), leaves, allow_unused=True)
    assert any(gradient is not None and not gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("masked_mean", (torch.randn(2, 3), torch.zeros(2, 3))),
        ("attention_entropy", (torch.tensor([[1.0, 0.0, 0.0]]),)),
        ("log_depth_error", (torch.randn(2, 2), torch.full((2, 2), -1.0))),
        ("box_iou_loss", (torch.ones(1, 4), torch.ones(1, 4))),
        ("balanced", None),
    ],
)
def test_the_guarded_idioms_stay_finite_at_their_edge(name: str, inputs: Any) -> None:
    function = part("vislang.losses", name)
    leaves = [value.clone().requires_grad_() for value in (inputs or (torch.zeros(()),))]
    result = function(*leaves) if inputs is not None else function(leaves)
    for gradient in torch.autograd.grad(result.sum(), leaves):
        assert gradient.isfinite().all()


def test_the_quantiser_passes_its_gradient_straight_through() -> None:
    function, (x,), _ = build("vislang.quantise:PromptQuantiser")
    cotangent = torch.randn_like(x)
    assert torch.equal(torch.autograd.grad(function(x), x, cotangent)[0], cotangent)


def test_the_name_in_the_training_script_does_not_exist() -> None:
    assert not hasattr(torch.nn.utils, "clip_gradient_norm_")
    assert hasattr(torch.nn.utils, "clip_grad_norm_")
