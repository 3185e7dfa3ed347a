"""The work on a file grows with its size, and no faster, whatever the file was made for."""

import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from analyzer import file_analysis
from analyzer.alarm import interrupted_after
from analyzer.context import DeadlineError
from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.registry import all_rules
from analyzer.rules.division import HandNormalisation

HEAD = "import torch\nimport torch.nn as nn\n"


def many(line: str, count: int) -> str:
    return "".join(line.replace("#", str(number)) for number in range(count))


def module_variable(count: int) -> str:
    return HEAD + many("x = torch.sqrt(x)\n", count)


def variable(count: int) -> str:
    body = many("    x = torch.sqrt(x)\n", count)
    return f"{HEAD}def f(x):\n{body}    return torch.log(x)\n"


def functions(count: int) -> str:
    return HEAD + many("def f#(x):\n    y = torch.sqrt(x)\n    return torch.log(y)\n", count)


def branches(count: int) -> str:
    body = many("    if x > #:\n        y = y + x.log()\n    else:\n        y = y * x\n", count)
    return f"{HEAD}def f(x, y):\n{body}    return y.sqrt()\n"


def loops(count: int) -> str:
    body = many("    for i in x:\n        y = y / x.norm()\n        x = x + y.sqrt()\n", count)
    return f"{HEAD}def f(x, y):\n{body}    return y.sqrt()\n"


def attempts(count: int) -> str:
    body = many("    try:\n        x = x.sqrt()\n    except ValueError:\n        x = x.log()\n", count)
    return f"{HEAD}def f(x):\n{body}    return x\n"


def methods(count: int) -> str:
    body = many("    def m#(self, x):\n        self.a = self.a + 1\n        return self.m0(x) / self.a.norm()\n", count)
    return f"{HEAD}class M(nn.Module):\n    def __init__(self):\n        self.a = 0\n{body}"


def descendants(count: int) -> str:
    bodies = (
        f"class M{number + 1}(M{number}):\n    def forward(self, x):\n        return x.sqrt()\n"
        for number in range(count)
    )
    return HEAD + "class M0(nn.Module):\n    pass\n" + "".join(bodies)


def autograd_functions(count: int) -> str:
    bodies = (f"class F{number}(F{number + 1}):\n    pass\n" for number in range(count))
    return HEAD + "".join(bodies) + f"class F{count}(torch.autograd.Function):\n    pass\n"


def backward(count: int) -> str:
    body = many("        g = g * x\n", count)
    return (
        f"{HEAD}class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        ctx.save_for_backward(x)\n        return x.exp()\n    @staticmethod\n    def backward(ctx, g):\n"
        f"        x, = ctx.saved_tensors\n{body}        return g\n"
    )


def misspelt_names(count: int) -> str:
    return HEAD + many("torch.squareroot#(1)\n", count)


def calls_of(source: str) -> int:
    """How many calls of Python functions the analysis of a source takes."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        analysis = analyze_source(source, "package/layers.py")
    finally:
        sys.setprofile(None)
    assert not [finding for finding in analysis.findings if finding.rule in ("GP001", "GP002")]
    return calls


@pytest.mark.parametrize(
    "source",
    [
        module_variable, variable, functions, branches, loops, attempts, methods, descendants, autograd_functions,
        backward, misspelt_names,
    ],
)  # fmt: skip
def test_twice_the_file_is_twice_the_work(source: Callable[[int], str]) -> None:
    all_rules()
    calls_of(source(4))  # what is made once a process is made
    one, two = calls_of(source(200)), calls_of(source(400))
    assert two < 2.6 * one


def test_a_rule_that_never_looks_at_the_clock_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(self: HandNormalisation, file: object) -> list[object]:
        while True:
            pass

    monkeypatch.setattr(HandNormalisation, "check", check)
    monkeypatch.setattr(file_analysis, "_GRACE_SECONDS", 0)
    source = f"{HEAD}def f(x):\n    return x / x.norm()\n"
    analysis = analyze_source(source, "a.py", options=AnalyzerOptions(max_seconds_per_file=0.1))
    assert [finding.rule for finding in analysis.findings] == ["GP002"]
    assert "took longer" in analysis.findings[0].message


def test_an_alarm_leaves_nothing_behind() -> None:
    with interrupted_after(60, DeadlineError):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_an_alarm_that_was_taken_for_another_rings_again() -> None:
    end = time.monotonic() + 60

    def deaf() -> None:
        with suppress(DeadlineError):
            while time.monotonic() < end:
                pass
        while time.monotonic() < end:
            pass

    with pytest.raises(DeadlineError), interrupted_after(0, DeadlineError):
        deaf()
    assert time.monotonic() < end


def test_somebody_elses_alarm_is_left_alone() -> None:
    def theirs(_signal: int, _frame: object) -> None:
        """Somebody waits for it."""

    signal.signal(signal.SIGALRM, theirs)
    try:
        with interrupted_after(60, DeadlineError):
            assert signal.getsignal(signal.SIGALRM) is theirs
            assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
