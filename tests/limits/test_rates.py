"""A caller has so many requests a minute, in one process, and hears when the next one is taken."""

from __future__ import annotations

import pytest

from services.limits import LimitReachedError, Rates


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def refusal(rates: Rates, caller: str) -> LimitReachedError:
    with pytest.raises(LimitReachedError) as caught:
        rates.take(caller)
    return caught.value


def test_what_is_used_up_comes_back_evenly_over_a_minute() -> None:
    clock = Clock()
    rates = Rates(30, clock=clock)
    for _ in range(30):
        rates.take("a")
    error = refusal(rates, "a")
    assert error.details == {"limit": "request_rate", "allowed": 30, "used": 30, "retry_after_s": 2}
    assert "30 requests a minute" in error.message
    assert "in 2 s" in error.message
    clock.now += 2
    rates.take("a")
    refusal(rates, "a")
    clock.now += 3_600
    for _ in range(30):
        rates.take("a")
    refusal(rates, "a")


def test_being_refused_costs_nothing() -> None:
    clock = Clock()
    rates = Rates(60, clock=clock)
    for _ in range(60):
        rates.take("a")
    for _ in range(100):
        refusal(rates, "a")
    clock.now += 1
    rates.take("a")


def test_callers_do_not_share_and_without_a_rate_nobody_is_refused() -> None:
    rates = Rates(1, clock=Clock())
    rates.take("a")
    rates.take("b")
    refusal(rates, "a")
    free = Rates(0, clock=Clock())
    for _ in range(1_000):
        free.take("a")


def test_however_many_callers_come_few_are_remembered() -> None:
    rates = Rates(1, clock=Clock())
    for number in range(10_050):
        rates.take(f"caller {number}")
    refusal(rates, "caller 10049")
    rates.take("caller 0")  # forgotten, and taken for a new one
    assert len(rates._left) == 10_000
