"""What would have made a call pass, read from what it raised: values are checked by making the call with them."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from gradproof_probe.harness.conditions import Change, holds, solve
from gradproof_probe.harness.raised_conditions import Guard, guards

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F

TABLE = {"small": 1, "large": 2}

def exists(v):
    return v is not None

def check(condition, message):
    if not condition:
        raise ValueError(message)

def divides(dim, heads):
    assert dim % heads == 0

class Heads(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        divides(dim, heads)

class Wide(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        check(dim >= 32 and dim % heads == 0, "wide")

class Optional(nn.Module):
    def __init__(self, dim, other=None):
        super().__init__()
        assert exists(other), "needed"

class Chosen(nn.Module):
    def __init__(self, kind):
        super().__init__()
        if kind not in ("conv", "linear"):
            raise NotImplementedError(kind)

class Looked(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.size = TABLE[kind]

class Lengths(nn.Module):
    def __init__(self, widths, depths):
        super().__init__()
        assert len(widths) == len(depths)

class Pair(nn.Module):
    def __init__(self, size):
        super().__init__()
        a, b = size

class Calls(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layer = make(8)

class Base(nn.Module):
    def __init__(self, *, width, groups=3):
        super().__init__()
        half = width // 2
        self.quarter = half // 2
        if self.quarter % groups:
            raise ValueError("groups")

class Derived(Base):
    def __init__(self, depth, **kwargs):
        super().__init__(**kwargs)

class Needing(nn.Module):
    def __init__(self, width, layers=None, groups=4):
        super().__init__()
        if layers is None:
            raise ValueError("layers must be given")
        if width % groups:
            raise ValueError("groups")

class Between(nn.Module):
    def __init__(self, width, **more):
        super().__init__()
        self.inner = Needing(width, **more)

class Outside(nn.Module):
    def __init__(self, width, **kwargs):
        super().__init__()
        self.inner = Between(width, **kwargs)

class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)

class Rank(nn.Module):
    def forward(self, x):
        b, c, h, w = x.shape
        assert h % 4 == 0
        return x

class Ranked(nn.Module):
    def forward(self, x, y):
        if x.dim() != 3 or x.size(1) != y.size(0):
            raise ValueError
        return x
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("made") / "made_conditions.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("made_conditions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raised(function: Any, *args: Any, **kwargs: Any) -> BaseException:
    try:
        function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is asked for
        return error
    raise AssertionError("nothing was raised")


def asked(error: BaseException, code: Any) -> list[tuple[Change, ...]]:
    """The answers in the words of one function."""
    return [a for guard in guards(error) if guard.code is code for a in solve(guard.condition, guard.names)]


def values(error: BaseException, code: Any, subject: str) -> list[Any]:
    return [change.value for (change,) in (a for a in asked(error, code) if len(a) == 1) if change.text == subject]


def test_a_helper_s_condition_is_solved_for_the_arguments_of_its_caller(made: Any) -> None:
    code = made.Heads.__init__.__code__
    error = raised(made.Heads, 8, 3)
    assert values(error, code, "heads")[0] in (2, 4)
    assert 9 in values(error, code, "dim")


def test_a_check_that_takes_the_condition_is_read_at_its_call(made: Any) -> None:
    code = made.Wide.__init__.__code__
    error = raised(made.Wide, 8, 3)
    assert values(error, code, "dim")
    for dim in values(error, code, "dim")[:4]:
        assert dim >= 32
    made.Wide(36, 3)


def test_a_test_for_none_asks_for_a_value(made: Any) -> None:
    answers = asked(raised(made.Optional, 8), made.Optional.__init__.__code__)
    assert [(c.text, c.relation) for (c,) in answers] == [("other", "given")]


@pytest.mark.parametrize(("name", "known"), [("Chosen", "conv"), ("Looked", "small")])
def test_a_word_is_one_of_those_it_is_compared_with(made: Any, name: str, known: str) -> None:
    cls = getattr(made, name)
    assert values(raised(cls, "relu"), cls.__init__.__code__, "kind")[0] == known


def test_lengths_that_must_agree_are_given_each_other_s(made: Any) -> None:
    code = made.Lengths.__init__.__code__
    error = raised(made.Lengths, (8, 8, 8), (1, 1))
    assert values(error, code, "len(widths)")[0] == 2
    assert values(error, code, "len(depths)")[0] == 3


def test_an_unpacking_says_how_many_and_a_number_there_that_it_is_a_sequence(made: Any) -> None:
    code = made.Pair.__init__.__code__
    assert 2 in values(raised(made.Pair, (1, 2, 3)), code, "len(size)")
    (change,) = asked(raised(made.Pair, 8), code)[0]
    assert (change.text, change.relation) == ("size", "instance")


def test_what_is_called_has_to_be_callable(made: Any) -> None:
    (change,) = asked(raised(made.Calls, 8), made.Calls.__init__.__code__)[0]
    assert (change.text, change.relation) == ("make", "callable")


def test_a_condition_is_followed_through_definitions_and_keyword_sinks(made: Any) -> None:
    error = raised(made.Derived, 1, width=8)
    found = values(error, made.Derived.__init__.__code__, "kwargs['width']")
    assert found
    for width in found[:3]:
        made.Derived(1, width=width)


def test_what_a_keyword_sink_left_out_can_be_given_through_it(made: Any) -> None:
    code = made.Outside.__init__.__code__
    answers = asked(raised(made.Outside, 8), code)
    assert ("kwargs['layers']", "given") in [(change.text, change.relation) for (change,) in answers]
    groups = values(raised(made.Outside, 6, layers=1), code, "kwargs['groups']")
    assert groups
    made.Outside(6, layers=1, groups=groups[0])


def test_a_condition_of_torch_s_own_constructor_is_solved_for_the_submitted_arguments(made: Any) -> None:
    code = made.Attention.__init__.__code__
    error = raised(made.Attention, 8, 3)
    for heads in values(error, code, "heads")[:2]:
        made.Attention(8, heads)
    assert values(error, code, "heads")


def test_sizes_of_tensors_are_subjects(made: Any) -> None:
    error = raised(made.Rank(), torch.zeros(2, 3, 6, 8))
    assert values(error, made.Rank.forward.__code__, "x.shape[2]")[0] in (4, 8)
    error = raised(made.Ranked(), torch.zeros(2, 3, 6, 8), torch.zeros(5))
    assert 3 in values(error, made.Ranked.forward.__code__, "x.ndim")
    assert values(error, made.Ranked.forward.__code__, "x.shape[1]")[0] == 5


def test_what_would_run_code_is_unknown() -> None:
    called: list[int] = []
    names = {"run": called.append, "x": 1, "len": len}
    assert holds(ast.parse("run(1) is None", mode="eval").body, names) is None
    assert list(solve(ast.parse("run(x)", mode="eval").body, names)) == []
    assert called == []


def test_a_power_or_a_loop_without_end_is_unknown() -> None:
    for text in ("9 ** 999999 > 0", "'a' * 10 ** 9 == ''", "sum(i for i in range(10 ** 9)) > 0"):
        assert holds(ast.parse(text, mode="eval").body, {"range": range, "sum": sum}) is None


def test_every_value_makes_the_condition_true() -> None:
    names = {"a": 5, "b": 12, "c": 0.5, "k": "x", "len": len, "w": [1, 2]}
    for text in ("b % a == 0", "a * 2 == b", "0 < c < 0.2", "k in ('p', 'q')", "len(w) == a", "(b - a) // 2 > 10"):
        condition = ast.parse(text, mode="eval").body
        answers = list(solve(condition, names))
        assert answers, text
        for answer in answers:
            if text != "0 < c < 0.2":
                assert holds(condition, names, {change.text: change.value for change in answer}) is True


def test_a_guard_says_where_it_stands(made: Any) -> None:
    first: Guard = next(guards(raised(made.Heads, 8, 3)))
    assert first.text == "dim % heads == 0"
    assert first.code is made.divides.__code__
