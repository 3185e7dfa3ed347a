"""Whether anything but torch's own formulas runs in a backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradproof_probe.gradients.experiment import Experiment
from gradproof_probe.gradients.own_backward import runs_own_code
from torch.utils.checkpoint import checkpoint


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0]


@torch.library.custom_op("gradproof_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


tripled.register_autograd(lambda _ctx, grad: 3 * grad)


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y.register_hook(lambda grad: grad.clamp(-1, 1))
    return y.sin()


def plain(x: torch.Tensor) -> torch.Tensor:
    y = torch.nn.functional.layer_norm(x.reshape(2, 3), (3,))
    y[0] = 0
    return torch.cat([y, x.reshape(2, 3).detach()]).softmax(-1)


def hooked_module() -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.ReLU())
    module[0].register_full_backward_hook(lambda _module, given, _taken: given)
    return module


def hooked_parameter() -> torch.nn.Module:
    module = torch.nn.Linear(6, 3)
    module.weight.register_hook(lambda grad: 2 * grad)
    return module


def own_code(call: Callable[..., Any]) -> bool:
    return runs_own_code(
        Experiment(
            call,
            [torch.randn(6, dtype=torch.float64)],
            {},
            instance=call if isinstance(call, torch.nn.Module) else None,
            seed=0,
        )
    )


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda x: Double.apply(x.exp()).sum(), id="a Function"),
        pytest.param(lambda x: tripled(x).sin(), id="a custom operator"),
        pytest.param(lambda x: checkpoint(torch.sin, x, use_reentrant=True), id="a reentrant checkpoint"),
        pytest.param(hooked, id="a hook on a tensor"),
        pytest.param(hooked_module(), id="a hook on a module"),
        pytest.param(hooked_parameter(), id="a hook on a parameter since it was built"),
    ],
)
def test_code_that_is_not_torchs_is_seen(call: Callable[..., Any]) -> None:
    assert own_code(call)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(plain, id="views, writes and cuts"),
        pytest.param(torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.GELU()), id="a module"),
        pytest.param(lambda x: x.detach(), id="no gradient"),
    ],
)
def test_torchs_own_formulas_are_no_code_of_somebody_else(call: Callable[..., Any]) -> None:
    assert not own_code(call)
