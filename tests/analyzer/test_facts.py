"""The generated facts say what the installed torch does: saved tensors, in-place writes, names, and its interface."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from analyzer.facts import deprecations, graph_breaks, history, names, operations, signatures
from analyzer.facts.loader import RESULT, read_facts

ROOT = Path(__file__).parents[2]


def test_the_committed_facts_are_what_the_installed_torch_gives() -> None:
    """The one slow test here (15 s): a fresh interpreter, because what was imported before changes what `dir` says."""
    command = [sys.executable, "tools/make_facts.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def positive_matrix() -> torch.Tensor:
    """Symmetric, positive definite, entries in (0.2, 1): in the domain of nearly every operation."""
    matrix = torch.full((3, 3), 0.25, dtype=torch.float64) + 0.5 * torch.eye(3, dtype=torch.float64)
    return matrix.requires_grad_()


def plain_unary_methods() -> list[str]:
    """Methods without arguments that give one new real tensor and can be differentiated, as far as torch says."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(torch.Tensor):
            full = f"torch.Tensor.{name}"
            if not operations().kept(full, "T") or operations().writes(full):
                continue
            value = positive_matrix().clone()
            try:
                result = getattr(value, name)()
                result.sum().backward()
            except (RuntimeError, TypeError, AttributeError, ValueError):
                continue
            if result.is_floating_point() and result.data_ptr() != value.data_ptr():
                found.append(name)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", [RESULT, "0"])
@pytest.mark.parametrize("method", plain_unary_methods())
def test_backward_raises_exactly_when_what_is_kept_was_written(method: str, word: str) -> None:
    """The version counters decide here, not the hooks that the facts were observed with."""
    value = positive_matrix().clone()
    result = getattr(value, method)()
    with torch.no_grad():
        (result if word == RESULT else value).add_(0)
    if word in operations().kept(f"torch.Tensor.{method}", "T")["0"]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()
    else:
        result.sum().backward()


def test_operations_known_from_the_manual_are_read_right() -> None:
    facts = operations()
    for name in ("torch.sigmoid", "torch.tanh", "torch.exp", "torch.sqrt", "torch.rsqrt", "torch.relu"):
        assert facts.kept(name, "T") == {"0": frozenset({RESULT})}, name
    assert facts.kept("torch.nn.functional.softmax", "T", keywords=True) == {"0": frozenset({RESULT})}
    assert facts.kept("operator.add", "TT") == {"0": frozenset(), "1": frozenset()}
    assert facts.kept("operator.mul", "TT") == {"0": frozenset({"1"}), "1": frozenset({"0"})}
    assert facts.kept("operator.mul", "TN") == {"0": frozenset()}
    assert facts.kept("operator.pow", "TN") == {"0": frozenset({"0"})}
    assert facts.kept("torch.nn.Linear", "T")["parameters"] == {"0"}
    assert facts.kept("torch.nn.ReLU", "T") == {"0": frozenset({RESULT})}
    assert facts.kept("torch.nn.BatchNorm2d", "T")["0"] == {"0"}


def test_where_the_form_of_a_call_is_not_known_only_what_all_forms_keep_is_told() -> None:
    facts = operations()
    assert facts.kept("operator.pow", "T?") == {"0": frozenset({"0"})}
    assert facts.kept("torch.Tensor.max", "T?")["0"] == frozenset()


def test_an_unknown_operation_keeps_nothing() -> None:
    assert operations().kept("torch.no_such_operation", "TT") == {}
    assert not operations().known("torch.no_such_operation")


def test_writing_viewing_and_in_place_flags_are_told_apart() -> None:
    facts = operations()
    assert facts.writes("torch.Tensor.mul_")
    assert facts.writes("torch.nn.functional.relu_")
    assert facts.writes("torch.nn.init.zeros_")
    for name in ("torch.Tensor.mul", "torch.Tensor.squeeze_", "torch.Tensor.requires_grad_", "torch.Tensor.detach_"):
        assert not facts.writes(name)
    assert facts.views("torch.Tensor.view")
    assert not facts.views("torch.Tensor.reshape")
    assert facts.in_place_flag("torch.nn.ReLU") == 0
    assert facts.in_place_flag("torch.nn.functional.dropout") == 3
    assert facts.in_place_flag("torch.nn.Sigmoid") is None
    assert facts.never_differentiable("torch.argmax")
    assert facts.results("torch.topk") == (True, False)


def test_every_listed_name_of_the_main_modules_exists() -> None:
    for module in ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.autograd", "torch.Tensor"):
        value: object = torch
        for part in module.split(".")[1:]:
            value = getattr(value, part)
        for name in dir(value):
            assert names().missing(f"{module}.{name}") is None


@pytest.mark.parametrize(
    ("dotted", "suggestion"),
    [
        ("torch.nn.functionnal", "torch.nn.functional"),
        ("torch.autograd.Funtion", "torch.autograd.Function"),
        ("torch.softplus", "torch.nn.functional.softplus"),
        ("torch.nn.Rnn", "torch.nn.RNN"),
        ("torch.rfft", "torch.fft.rfft"),
    ],
)
def test_a_missing_name_comes_with_the_one_that_was_meant(dotted: str, suggestion: str) -> None:
    missing = names().missing(dotted)
    assert missing is not None
    assert missing.suggestion == suggestion
    assert names().missing(suggestion) is None


@pytest.mark.parametrize(
    "dotted",
    ["torch.ops.mine.op", "torch._C._anything", "torch.classes.mine.K", "torch.utils.tensorboard.SummaryWriter"],
)
def test_open_and_lazily_loaded_places_are_not_judged(dotted: str) -> None:
    assert names().missing(dotted) is None


def test_the_facts_name_the_version_they_were_made_from() -> None:
    assert operations().version == names().version == torch.__version__.partition("+")[0]


# --- what torch says of its own interface ---------------------------------------------------------------------------


def full_value(dotted: str) -> object:
    value: object = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part)
    return value


def valid_calls() -> list[tuple[str, int, tuple[str, ...]]]:
    """How torch's own tests call its functions: (name, positional arguments, keywords)."""
    found: set[tuple[str, int, tuple[str, ...]]] = set()
    for operator in op_db:
        name = f"torch.{operator.name}"
        if not signatures().known(name) or operator.op is not full_value(name):
            continue
        try:
            # Not `sample_inputs`, which seeds and reads the whole stack for every sample: nine tenths of the time.
            samples = list(operator.sample_inputs_func(operator, "cpu", torch.float32, False))
        except (RuntimeError, AssertionError, ModuleNotFoundError):
            continue
        found.update((name, 1 + len(sample.args), tuple(sorted(sample.kwargs))) for sample in samples)
    return sorted(found)


@pytest.mark.filterwarnings("ignore")
def test_every_call_that_torch_tests_itself_with_fits_the_signatures() -> None:
    calls = valid_calls()
    assert len({name for name, _, _ in calls}) > 250
    assert [call for call in calls if not signatures().accepts(*call)] == []


@pytest.mark.parametrize(
    ("name", "positional", "keywords"),
    [
        ("torch.zeros", 2, ("memory_format",)),
        ("torch.tensor", 1, ("copy",)),
        ("torch.concatenate", 2, ("dim",)),
        ("torch.nn.functional.softmax", 1, ("axis",)),
        ("torch.nn.Linear", 1, ()),
        ("torch.stack", 3, ()),
        ("torch.softmax", 2, ("dim",)),
    ],
)
def test_a_call_that_does_not_fit_raises(name: str, positional: int, keywords: tuple[str, ...]) -> None:
    assert not signatures().accepts(name, positional, keywords)
    function = full_value(name)
    assert callable(function)
    with pytest.raises(TypeError):
        function(*[torch.ones(2, 2)] * positional, **dict.fromkeys(keywords, 1))


def test_names_of_numpy_are_taken_only_where_torch_takes_them() -> None:
    assert signatures().accepts("torch.sum", 1, ("axis", "keepdims"))
    assert torch.sum(torch.ones(2, 2), axis=0, keepdims=True).shape == (1, 2)
    assert signatures().unknown_keywords("torch.nn.functional.softmax", ("axis",)) == ["axis"]
    assert signatures().missing("torch.nn.Linear", 1, ()) == ["out_features"]
    assert signatures().most_positional("torch.stack") == 2
    assert signatures().most_positional("torch.zeros") is None
    assert not signatures().known("torch.nn.LSTM"), "it takes anything and says nothing of it"


def test_every_replacement_of_a_deprecated_name_exists() -> None:
    document = read_facts("deprecations")
    entries = {**document["deprecated"], **document["removed"]}
    assert len(entries) > 100
    for name, (said, replacement, _, source) in entries.items():
        assert said, name
        assert source in "WMR", name
        if replacement:
            assert full_value(replacement) is not None


def test_a_removed_function_raises_and_a_deprecated_one_warns() -> None:
    gone = deprecations().removed("torch.symeig")
    assert gone is not None
    with pytest.raises(RuntimeError, match="now removed"):
        full_value("torch.symeig")(torch.ones(2, 2))  # type: ignore[operator]
    entry = deprecations().deprecated("torch.nn.init.uniform")
    assert entry is not None
    assert (entry.replacement, entry.arguments, entry.warns) == ("torch.nn.init.uniform_", "args...", True)
    with pytest.warns(FutureWarning, match="deprecated"):
        torch.nn.init.uniform(torch.ones(2))
    assert deprecations().deprecated("torch.nn.init.uniform_") is None
    autocast = deprecations().deprecated("torch.cuda.amp.autocast")
    assert autocast is not None
    assert (autocast.replacement, autocast.arguments) == ("torch.amp.autocast", "'cuda', args...")


def test_graph_breaks_carry_the_numbers_of_torch_s_own_registry() -> None:
    registry = json.loads((Path(torch.__file__).parent / "_dynamo" / "graph_break_registry.json").read_text())
    for rule in ("GP501", "GP502", "GP503", "GP504", "GP505", "GP506", "GP507", "GP508"):
        for number in graph_breaks().numbers(rule):
            assert number in registry, rule
    assert graph_breaks().number("GP501", "Data-dependent") == "GB0170"


def test_the_history_knows_what_came_and_what_went() -> None:
    assert history().since("torch.compile") == "2.0"
    assert history().since("torch.nn.RMSNorm") == "2.4"
    assert history().since("torch.nn.Linear") is None, "older than what is compared"
    assert history().until("torch.rfft") == "1.7"
    assert history().until("torch.nn.Linear") is None
    assert history().version == torch.__version__.partition("+")[0]


def test_every_name_that_is_said_to_be_new_exists() -> None:
    for table in read_facts("history", stem="torch")["since"].values():
        for module, listed in table.items():
            absent = [name for name in listed.split() if names().missing(f"{module}.{name}") is not None]
            assert absent == [], module
