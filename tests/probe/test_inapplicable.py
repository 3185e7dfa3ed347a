"""An error that only says that a check does not apply is no error of the target."""

from __future__ import annotations

import pytest
import torch
from gradproof_probe.checks.base import CheckResult
from gradproof_probe.checks.inapplicable import where_it_applies
from gradproof_probe.importing import describe_error
from torch import distributed


def raised_by_second_backward() -> CheckResult:
    loss = torch.nn.Linear(3, 1)(torch.randn(2, 3)).exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    return CheckResult("error", f"plain eager raises {describe_error(caught.value)}")


def raised_without_group() -> CheckResult:
    with pytest.raises(ValueError, match="process group") as caught:
        distributed.all_reduce(torch.ones(1))
    return CheckResult("error", f"plain eager raises {describe_error(caught.value)}")


def test_a_step_that_returns_a_loss_whose_graph_is_gone_is_left_out() -> None:
    found = where_it_applies(raised_by_second_backward(), trains=True)
    assert found.verdict == "skipped"
    assert "training_step" in found.summary


def test_a_graph_walked_twice_stays_an_error_of_what_does_not_train() -> None:
    assert where_it_applies(raised_by_second_backward(), trains=False).verdict == "error"


@pytest.mark.parametrize("trains", [True, False])
def test_what_waits_for_other_ranks_is_left_out(*, trains: bool) -> None:
    assert where_it_applies(raised_without_group(), trains=trains).verdict == "skipped"


@pytest.mark.parametrize("verdict", ["fail", "pass", "inconclusive"])
def test_what_a_check_found_stays_as_it_is(verdict: str) -> None:
    result = CheckResult(verdict, raised_by_second_backward().summary)  # type: ignore[arg-type]
    assert where_it_applies(result, trains=True) is result
