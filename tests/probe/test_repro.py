"""The scripts that come with a failure: each shows it by itself, and shows nothing once the Function is mended."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gradproof_probe.gradients.situations import ORDINARY, Cotangent, Situation, Values
from gradproof_probe.harness.recipe import Recipe
from gradproof_probe.repros.situation import situation_repro
from gradproof_probe.request import Target

MATRIX = ("torch.randn(4, 5)",)
PAIR = ("torch.randn(4, 5)", "torch.randn(4, 5)")
SQUARE = "ctx.save_for_backward(x)\nreturn x ** 2"
RIGHT = "x, = ctx.saved_tensors\nreturn 2 * x * g"
PRODUCT = "ctx.save_for_backward(x, y)\nreturn x * y"
SLOTS = "x, y = ctx.saved_tensors\nreturn g * y, g * x"
# What reads memory as if it were contiguous, from the first element on.
AS_MEMORY = "torch.as_strided({0}, {0}.shape, torch.empty({0}.shape).stride(), 0)"


@dataclass(frozen=True)
class Faulty:
    """A Function by the bodies of its methods; `right` is the mended backward."""

    situation: Situation
    wrong: str
    right: str = RIGHT
    forward: str = SQUARE
    parameters: str = "x"
    grads: str = "g"
    inputs: tuple[str, ...] = MATRIX
    cause: str = "wrong_coordinates"
    worst: Mapping[str, Any] | None = field(default_factory=lambda: {"ordinal": 0, "index": [0, 1]})
    second_order: bool = False
    mended_forward: str | None = None
    before: str = ""
    single: bool = False

    def source(self, *, mended: bool) -> str:
        forward = self.mended_forward if mended and self.mended_forward is not None else self.forward
        return "\n".join(
            [
                "import torch",
                self.before,
                "class Fn(torch.autograd.Function):",
                "    @staticmethod",
                f"    def forward(ctx, {self.parameters}):",
                textwrap.indent(forward, "        "),
                "    @staticmethod",
                f"    def backward(ctx, {self.grads}):",
                textwrap.indent(self.right if mended else self.wrong, "        "),
                "",
            ]
        )


def when(test: str, wrong: str = "return x * g") -> str:
    """The right backward but for one case."""
    return f"x, = ctx.saved_tensors\nif {test}:\n    {wrong}\nreturn 2 * x * g"


def input_layout(layout: Any, inputs: tuple[str, ...] = MATRIX) -> Faulty:
    values = Values("equal_rows") if layout == "expanded" else Values()
    return Faulty(
        Situation(input_layout=layout, values=values),
        f"x, = ctx.saved_tensors\nreturn 2 * {AS_MEMORY.format('x')} * g",
        inputs=inputs,
    )


def cotangent_layout(layout: Any, kind: Any = "random", inputs: tuple[str, ...] = MATRIX) -> Faulty:
    return Faulty(
        Situation(cotangent=Cotangent(kind, layout=layout)),
        f"x, = ctx.saved_tensors\nreturn 2 * x * {AS_MEMORY.format('g')}",
        inputs=inputs,
    )


def sequence(name: Any, forward: str, wrong: str, **more: Any) -> Faulty:
    return Faulty(Situation(sequence=name), wrong, **{"forward": forward, "mended_forward": SQUARE, **more})


STATE = "Fn.last = x.detach()\nctx.save_for_backward(x)\nreturn x ** 2"
COUNT = "Fn.calls = getattr(Fn, 'calls', 0) + 1\nctx.save_for_backward(x)\nreturn x ** 2"
IMAGES = ("torch.randn(2, 3, 4, 5)",)

FAULTY: dict[str, Faulty] = {
    # values
    "ordinary": Faulty(ORDINARY, "x, = ctx.saved_tensors\nreturn x * g"),
    "ordinary_everywhere": Faulty(ORDINARY, "x, = ctx.saved_tensors\nreturn x * g", worst=None),
    "values_around": Faulty(
        Situation(values=Values("around", 20.0)),
        "x, = ctx.saved_tensors\nreturn torch.where(x > 20, x, 2 * x) * g",
        worst={"ordinal": 0, "index": [0, 2]},
    ),
    "values_of_one_input": Faulty(
        Situation(values=Values("some_zero", only=1)),
        "x, y = ctx.saved_tensors\nreturn g * y, g * torch.where(y == 0, 0.5 * x, x)",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=PAIR,
        worst={"ordinal": 1, "index": [0, 3]},
    ),
    "values_sorted": Faulty(
        Situation(values=Values("sorted")),
        when("bool((x.diff(dim=-1) >= 0).all())"),
        worst={"ordinal": 0, "index": [1, 4]},
    ),
    # sizes
    "resize": Faulty(
        Situation(resize=((4, 300),)),
        "x, = ctx.saved_tensors\ng = g.clone()\ng[256:] *= 0.5\nreturn 2 * x * g",
        worst={"ordinal": 0, "index": [299, 1]},
    ),
    "resize_everywhere": Faulty(
        Situation(resize=((4, 300),)),
        "x, = ctx.saved_tensors\ng = g.clone()\ng[256:] *= 0.5\nreturn 2 * x * g",
        worst=None,
    ),
    "rank_more": Faulty(Situation(rank=1), when("x.dim() == 3"), worst={"ordinal": 0, "index": [1, 0, 1]}),
    "rank_less": Faulty(Situation(rank=-1), when("x.dim() == 1"), worst={"ordinal": 0, "index": [1]}),
    # memory
    "input_transposed": input_layout("transposed"),
    "input_strided": input_layout("strided"),
    "input_offset": input_layout("offset"),
    "input_expanded": input_layout("expanded"),
    "input_channels_last": input_layout("channels_last", IMAGES),
    "cotangent_transposed": cotangent_layout("transposed"),
    "cotangent_strided": cotangent_layout("strided"),
    "cotangent_offset": cotangent_layout("offset"),
    "cotangent_expanded": cotangent_layout("expanded", "ones"),
    "cotangent_expanded_rows": cotangent_layout("expanded"),
    "cotangent_channels_last": cotangent_layout("channels_last", inputs=IMAGES),
    "cotangent_that_needs_a_view": Faulty(
        Situation(cotangent=Cotangent(layout="transposed")),
        "x, = ctx.saved_tensors\nreturn 2 * x * g.view(-1).view(x.shape)",
        cause="grad_output_layout",
        worst=None,
    ),
    # incoming gradients
    "cotangent_ones": Faulty(Situation(cotangent=Cotangent("ones")), when("bool((g == 1).all())")),
    "cotangent_large": Faulty(
        Situation(cotangent=Cotangent("scaled", 1e4)), "x, = ctx.saved_tensors\nreturn 2 * x * g.clamp(-100, 100)"
    ),
    "cotangent_zero_rows": Faulty(
        Situation(cotangent=Cotangent("zero_rows")),
        when("not bool(g.any(-1).all())"),
        worst={"ordinal": 0, "index": [2, 1]},
    ),
    "ignores_grad_output": Faulty(ORDINARY, "x, = ctx.saved_tensors\nreturn 2 * x", cause="ignores_grad_output"),
    "one_output_used": Faulty(
        Situation(cotangent=Cotangent(outputs=(1,))),
        "x, = ctx.saved_tensors\nreturn g * 2 * x if not bool(g.any()) else g * 2 * x + h * 3",
        "x, = ctx.saved_tensors\nreturn g * 2 * x + h * 3",
        "ctx.save_for_backward(x)\nreturn x ** 2, 3 * x",
        grads="g, h",
    ),
    # who asks
    "wanted": Faulty(
        Situation(wanted=(1,)),
        "x, y = ctx.saved_tensors\nif not ctx.needs_input_grad[0]:\n    return None, g * y\nreturn g * y, g * x",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=PAIR,
        worst={"ordinal": 1, "index": [0, 1]},
    ),
    "wanted_raises": Faulty(
        Situation(wanted=(0,)),
        "x, y = ctx.saved_tensors\nreturn g * y, (g * x if ctx.needs_input_grad[1] else 1 / 0)",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=PAIR,
        cause="requires_grad_subset",
        worst=None,
    ),
    "alias": Faulty(
        Situation(alias=True),
        "x, y = ctx.saved_tensors\nreturn g * y, (g * x if x.data_ptr() != y.data_ptr() else None)",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=PAIR,
    ),
    # precision
    "float32": Faulty(Situation(dtype="float32"), when("x.dtype == torch.float32")),
    "bfloat16": Faulty(
        Situation(dtype="bfloat16"),
        "x, = ctx.saved_tensors\ntotal = torch.zeros((), dtype=x.dtype)\n"
        "for item in x.view(-1):\n    total += item.abs()\nreturn g * total.expand(x.shape) * x.sign()",
        "x, = ctx.saved_tensors\nreturn (g.double() * x.double().abs().sum() * x.sign().double()).to(x.dtype)",
        "ctx.save_for_backward(x)\nreturn (0.5 * x.double().abs().sum() ** 2).to(x.dtype)",
        inputs=("torch.randn(3000)",),
        worst=None,
    ),
    "autocast": Faulty(
        Situation(dtype="float32", autocast="throughout"), when("torch.is_autocast_enabled('cpu')"), worst=None
    ),
    "float16_of_large_values": Faulty(
        Situation(dtype="float16", values=Values("scaled", 100.0)),
        "x, = ctx.saved_tensors\nreturn g / (x * x + 1) * x",
        "x, = ctx.saved_tensors\nw = x.float()\nreturn (g.float() / (w * w + 1) * w).to(x.dtype)",
        "ctx.save_for_backward(x)\nreturn (0.5 * (x.double() ** 2 + 1).log()).to(x.dtype)",
        inputs=("torch.full((4, 5), 4.0)",),
        worst={"ordinal": 0, "index": [0, 1], "analytic": 0.0, "numeric": 2.5e-3},
    ),
    "rounded": Faulty(
        ORDINARY, "x, = ctx.saved_tensors\nreturn (2 * x * g).float().double()", cause="rounded", worst=None
    ),
    "in_float32_alone": Faulty(
        ORDINARY, "x, = ctx.saved_tensors\nassert x.dtype == torch.float32\nreturn x * g", single=True
    ),
    # order of calls
    "interleaved": sequence("interleaved", STATE, "return 2 * Fn.last * g"),
    "after_another": sequence(
        "after_another",
        "Fn.first = getattr(Fn, 'first', x.detach().clone())\nctx.save_for_backward(x)\nreturn x ** 2",
        "return 2 * Fn.first * g",
    ),
    "repeated": sequence("repeated", COUNT, when("Fn.calls > 3")),
    "second_backward": sequence(
        "second_backward", SQUARE, when("hasattr(ctx, 'seen')").replace("\nreturn 2", "\nctx.seen = 1\nreturn 2")
    ),
    "output_written": sequence(
        "output_written", "out = x.exp()\nctx.out = out\nreturn out", "return g * ctx.out.detach()", worst=None
    ),
    "input_written": sequence("input_written", "ctx.x = x\nreturn x ** 2", "return 2 * ctx.x.detach() * g", worst=None),
    "other_seed": sequence(
        "other_seed",
        "ctx.save_for_backward(x)\nctx.state = torch.get_rng_state()\nreturn x * (torch.rand_like(x) > 0.5)",
        "x, = ctx.saved_tensors\nreturn g * (torch.rand_like(x) > 0.5)",
        right="torch.set_rng_state(ctx.state)\nx, = ctx.saved_tensors\nreturn g * (torch.rand_like(x) > 0.5)",
        mended_forward=None,
        worst=None,
    ),
    "create_graph": sequence("create_graph", SQUARE, when("torch.is_grad_enabled()")),
    "used_twice": sequence(
        "used_twice", "Fn.open = getattr(Fn, 'open', 0) + 1\n" + SQUARE, when("Fn.open > 1"), worst=None
    ),
    "inference_first": sequence(
        "inference_first",
        "Fn.trained = getattr(Fn, 'trained', any(ctx.needs_input_grad))\nctx.save_for_backward(x)\nreturn x ** 2",
        when("not Fn.trained"),
    ),
    "other_thread": sequence(
        "other_thread",
        SQUARE,
        when("threading.current_thread() is not threading.main_thread()"),
        before="import threading",
    ),
    # arguments and switches
    "argument": Faulty(
        Situation(arguments=((1, 3),)),
        "x, = ctx.saved_tensors\nreturn ctx.n * x ** (ctx.n - 1) * g * (2 if ctx.n == 3 else 1), None",
        "x, = ctx.saved_tensors\nreturn ctx.n * x ** (ctx.n - 1) * g, None",
        "ctx.save_for_backward(x)\nctx.n = n\nreturn x ** n",
        "x, n",
        inputs=("torch.randn(4, 5)", "2"),
    ),
    "flag_deterministic": Faulty(
        Situation(flags=("deterministic",)), when("torch.are_deterministic_algorithms_enabled()")
    ),
    "flag_anomaly": Faulty(Situation(flags=("anomaly",)), when("torch.is_anomaly_enabled()")),
    "flag_default_float32": Faulty(
        Situation(flags=("default_float32",)), when("torch.get_default_dtype() == torch.float32")
    ),
    "flag_precision": Faulty(
        Situation(flags=("float32_precision_high",)), when("torch.get_float32_matmul_precision() == 'high'")
    ),
    # several at once
    "values_and_layout": Faulty(
        Situation(values=Values("negative"), cotangent=Cotangent(layout="transposed")),
        when("bool((x < 0).all()) and not g.is_contiguous()"),
    ),
    "size_and_subset": Faulty(
        Situation(resize=((5, 9),), wanted=(0,)),
        "x, y = ctx.saved_tensors\nodd = x.shape[1] == 9 and not ctx.needs_input_grad[1]\n"
        "return g * (x if odd else y), g * x",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=PAIR,
    ),
    # what backward may not do
    "grad_output_mutated": Faulty(
        ORDINARY, "x, = ctx.saved_tensors\nreturn g.mul_(2 * x)", cause="grad_output_mutated", worst=None
    ),
    "saved_tensor_mutated": Faulty(
        ORDINARY, "x, = ctx.saved_tensors\nreturn x.mul_(2) * g", cause="saved_tensor_mutated", worst=None
    ),
    "saved_intermediate_mutated": Faulty(
        ORDINARY,
        "x, = ctx.saved_tensors\nreturn x.mul_(2) * g",
        forward="ctx.save_for_backward(x.clone())\nreturn x ** 2",
        cause="saved_tensor_mutated",
        worst=None,
    ),
    "backward_raises": Faulty(ORDINARY, "return g, g", cause="backward_raises", worst=None),
    "gradient_not_finite": Faulty(
        ORDINARY,
        "x, = ctx.saved_tensors\nreturn 2 * x * g / (x != x[0, 1])",
        "x, = ctx.saved_tensors\nreturn 2 * x * g",
        cause="nan_gradient",
    ),
    "complex": Faulty(
        ORDINARY,
        "x, = ctx.saved_tensors\nreturn 2 * x * g",
        "x, = ctx.saved_tensors\nreturn 2 * x.conj() * g",
        inputs=("torch.randn(4, 5, dtype=torch.complex128)",),
        cause="missing_conjugate",
    ),
    # second order
    "second_order": Faulty(
        ORDINARY,
        "return ctx.slope * g",
        forward="ctx.save_for_backward(x)\nctx.slope = 2 * x.detach()\nreturn x ** 2",
        cause="saved_intermediate",
        second_order=True,
    ),
    "second_order_everywhere": Faulty(
        ORDINARY,
        "x, = ctx.saved_tensors\nreturn 2 * x.detach() * g",
        cause="saved_intermediate",
        second_order=True,
        worst=None,
    ),
    "second_order_of_grad_output": Faulty(
        ORDINARY,
        "x, = ctx.saved_tensors\nreturn 2 * x * g.detach()",
        cause="saved_intermediate",
        second_order=True,
        worst={"kind": "cotangent", "ordinal": 0, "index": [0, 1]},
    ),
}


def script_of(faulty: Faulty) -> str:
    script = situation_repro(
        Target("pkg.functions:Fn", "autograd_function", "pkg/functions.py", 1, "", "pkg.functions", "Fn"),
        Recipe("declared", "A", None, faulty.inputs, "here"),
        seed=3,
        summary="the gradient is wrong",
        situation=faulty.situation,
        cause=faulty.cause,
        worst=faulty.worst,
        second_order=faulty.second_order,
        single=faulty.single,
    )
    assert script is not None
    return script


def repository(folder: Path, source: str) -> Path:
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "pkg" / "functions.py").write_text(source, encoding="utf-8")
    return folder


# Imports torch once, then runs each script in a fork of its own, started as the file itself would be: python's isolated
# mode, an empty folder as working directory, the repository as argument.
RUNNER = """
import os, runpy, sys
import torch
torch.set_num_threads(1)
for line in sys.stdin:
    script, root, out = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        stream = os.open(out, os.O_WRONLY | os.O_CREAT)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.argv = [script, root]
        try:
            runpy.run_path(script, run_name="__main__")
            status = 0
        except SystemExit as error:
            status = int(error.code or 0)
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Shown:
    status: int
    output: str


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Shown]:
    """What each script says, for the faulty and for the mended Function."""
    folder = tmp_path_factory.mktemp("repros")
    empty = folder / "empty"
    empty.mkdir()
    jobs = []
    for name, faulty in FAULTY.items():
        script = folder / f"{name}.py"
        script.write_text(script_of(faulty), encoding="utf-8")
        for mended in (False, True):
            root = repository(folder / f"{name}_{mended}", faulty.source(mended=mended))
            jobs.append((name, mended, script, root, folder / f"{name}_{mended}.txt"))
    lines = "".join(f"{script}\t{root}\t{out}\n" for _, _, script, root, out in jobs)
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUNNER], input=lines, capture_output=True, text=True, cwd=empty, check=True
    )
    assert not list(empty.iterdir())
    return {
        (name, mended): Shown(int(status), out.read_text(encoding="utf-8"))
        for (name, mended, _, _, out), status in zip(jobs, done.stdout.split(), strict=True)
    }


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_shows_and_two_numbers_differ(shown: dict[tuple[str, bool], Shown], name: str) -> None:
    found = shown[name, False]
    assert found.status == 1, found.output
    said = dict(line.strip().split(":", 1) for line in found.output.splitlines() if line.startswith("  "))
    assert said["expected"].strip() != said["got"].strip()


@pytest.mark.parametrize("name", FAULTY)
def test_nothing_shows_once_the_function_is_mended(shown: dict[tuple[str, bool], Shown], name: str) -> None:
    found = shown[name, True]
    assert found.status == 0, found.output
