"""The scripts that come with a failure: each shows it by itself, and shows nothing once the Function is mended."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from gradproof_probe.gradients import making
from gradproof_probe.gradients.making import make_cotangent, make_values
from gradproof_probe.gradients.situations import ORDINARY, Cotangent, CotangentKind, Situation, Values
from gradproof_probe.gradients.subject import Subject
from gradproof_probe.harness.recipe import Recipe, default_dtype
from gradproof_probe.lines import REPRO
from gradproof_probe.repro import library_repro, situation_repro
from gradproof_probe.repros.calling import cotangent_text, values_text
from gradproof_probe.repros.library import expression
from gradproof_probe.repros.pieces import reseed
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
    after: str = ""
    mended_after: str | None = None
    single: bool = False
    target: tuple[str, str] = ("autograd_function", "Fn")  # what the harness built
    inside: bool = False  # whether the situation is one of the Function inside the target

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
                self.mended_after if mended and self.mended_after is not None else self.after,
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


JVP = """
    @staticmethod
    def jvp(ctx, u):
        x, = ctx.saved_tensors
        return {0} * x * u
"""
VMAP = """
class Fn(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x ** 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 2 * x * g

    @staticmethod
    def vmap(info, in_dims, x):
        return Fn.apply(x) + {0} * x.sum(), 0
"""
MODULE = """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        return Fn.apply(x.exp(), self.weight).sum()
"""
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
    "rank_of_the_first": Faulty(
        Situation(rank=1, rank_of="first"),
        "x, y = ctx.saved_tensors\nreturn g * y, g[0] * x[0]",
        "x, y = ctx.saved_tensors\nreturn g * y, (g * x).sum(0) if x.dim() > y.dim() else g * x",
        PRODUCT,
        "x, y",
        inputs=PAIR,
        worst={"ordinal": 1, "index": [0, 1]},
    ),
    "broadcast": Faulty(
        Situation(broadcast=((1, "axis 0"),)),
        "x, y = ctx.saved_tensors\nreturn g * y, (g * x).mean(0, keepdim=True).expand(y.shape)",
        "x, y = ctx.saved_tensors\nreturn g * y, (g * x).sum_to_size(y.shape)",
        PRODUCT,
        "x, y",
        inputs=(
            "torch.randn(4, 5)",
            "torch.randn(4, 5)",
        ),
        worst={"ordinal": 1, "index": [0, 1]},
    ),
    "others": Faulty(
        Situation(others="equal"),
        "i, = ctx.saved_tensors\nout = g.new_zeros(4, 5)\nout[i] = g\nreturn out, None",
        "i, = ctx.saved_tensors\nreturn g.new_zeros(4, 5).index_add(0, i, g), None",
        "ctx.save_for_backward(i)\nreturn x[i]",
        "x, i",
        inputs=("torch.randn(4, 5)", "torch.tensor([2, 1, 3])"),
        worst={"ordinal": 0, "index": [2, 1]},
    ),
    "values_masked": Faulty(
        Situation(values=Values("masked")),
        "y, = ctx.saved_tensors\nreturn y * (g - (g * y).mean(-1, keepdim=True))",
        "y, = ctx.saved_tensors\nreturn y * (g - (g * y).sum(-1, keepdim=True))",
        "y = x.softmax(-1)\nctx.save_for_backward(y)\nreturn y",
    ),
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
    "after_update": sequence(
        "after_update",
        "Fn.kept = getattr(Fn, 'kept', {})\nctx.at = x.data_ptr()\nFn.kept.setdefault(ctx.at, x.detach().clone())\n"
        "return x ** 2",
        "return 2 * Fn.kept[ctx.at] * g",
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
    "input_mutated": Faulty(
        ORDINARY,
        RIGHT,
        forward="ctx.save_for_backward(x)\nreturn x.clamp_(min=0) ** 2",
        mended_forward=SQUARE,
        cause="input_mutated",
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
    "second_order_refused_once_mended": Faulty(
        ORDINARY,
        "return ctx.slope * g",
        "@once_differentiable\ndef first(ctx, g):\n    return ctx.slope * g\nreturn first(ctx, g)",
        "ctx.slope = 2 * x.detach()\nreturn x ** 2",
        cause="wrong_second_order",
        second_order=True,
        worst=None,
        before="from torch.autograd.function import once_differentiable",
    ),
    # other ways through a Function
    "forward_mode": Faulty(
        ORDINARY,
        RIGHT,
        forward=f"ctx.save_for_forward(x)\n{SQUARE}",
        cause="forward_mode",
        worst=None,
        after=JVP.format("3"),
        mended_after=JVP.format("2"),
    ),
    "forward_mode_raises": Faulty(
        ORDINARY,
        RIGHT,
        forward=f"ctx.save_for_forward(x)\n{SQUARE}",
        cause="forward_mode",
        worst=None,
        after=JVP.format("v"),
        mended_after=JVP.format("2"),
    ),
    "batched": Faulty(
        ORDINARY, RIGHT, cause="batched", worst=None, after=VMAP.format("1"), mended_after=VMAP.format("0")
    ),
    # inputs that no gradient is asked for, Functions inside other targets
    "constants": Faulty(
        Situation(values=Values("scaled", 2.0, only=0), cotangent=Cotangent(layout="transposed")),
        f"x, y = ctx.saved_tensors\nreturn None, {AS_MEMORY.format('g')} * x",
        "x, y = ctx.saved_tensors\nreturn None, g * x",
        PRODUCT,
        "x, y",
        inputs=("torch.randn(4, 5)", "torch.randn(4, 5).requires_grad_()"),
    ),
    "inside_a_module": Faulty(
        Situation(cotangent=Cotangent(layout="strided")),
        f"x, y = ctx.saved_tensors\nreturn {AS_MEMORY.format('g')} * y, g * x",
        SLOTS,
        PRODUCT,
        "x, y",
        target=("module", "Scale"),
        inside=True,
        after=MODULE,
    ),
    "inside_a_function": Faulty(
        Situation(wanted=(0,)),
        "x, y = ctx.saved_tensors\nreturn g * (y if ctx.needs_input_grad[1] else x), g * x",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=("torch.randn(4, 5)", "by=dict(a=torch.randn(5))"),
        target=("function", "scale"),
        inside=True,
        after="def scale(x, by):\n    return Fn.apply(torch.cos(x), by['a'].expand(4, 5))",
    ),
    "whole_module": Faulty(
        Situation(cotangent=Cotangent(layout="transposed")),
        f"x, y = ctx.saved_tensors\nreturn {AS_MEMORY.format('g')} * y, g * x",
        SLOTS,
        PRODUCT,
        "x, y",
        inputs=("torch.randn(4, 5)", "scale=torch.tensor(2.0)"),
        target=("module", "Scaled"),
        after=MODULE.replace("Scale(", "Scaled(")
        .replace("(self, x)", "(self, x, scale)")
        .replace(".sum()", " * scale"),
    ),
    "whole_function": Faulty(
        Situation(values=Values("shifted", 3.0)),
        "x, = ctx.saved_tensors\nreturn torch.where(x > 2, x, 2 * x) * g",
        worst=None,
        target=("function", "square"),
        after="def square(x):\n    return {'out': [Fn.apply(x)]}",
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
    kind, name = faulty.target
    fn = type("Fn", (), {"__module__": "pkg.functions", "__qualname__": "Fn"})
    script = situation_repro(
        Target(f"pkg.functions:{name}", kind, "pkg/functions.py", 1, "", "pkg.functions", name),  # type: ignore[arg-type]
        Recipe("declared", "A", None, faulty.inputs, "here"),
        seed=3,
        summary="the gradient is wrong",
        situation=faulty.situation,
        cause=faulty.cause,
        worst=faulty.worst,
        second_order=faulty.second_order,
        single=faulty.single,
        inside=fn if faulty.inside else None,
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
# The first backward of a process imports what takes half a second.
one = torch.ones(1, requires_grad=True)
torch.autograd.grad(one * 1, one, torch.ones(1))
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


@pytest.mark.parametrize("kind", ["scaled", "around", "constant", "some_zero"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_values_written_out_are_those_of_the_engine(kind: str, dtype: torch.dtype) -> None:
    arg = torch.randn(4, 5, dtype=dtype)
    made = eval(values_text(kind, 0.3), {"torch": torch, "arg": arg, **vars(making)})
    assert torch.equal(made, make_values(kind, 0.3, arg))


@pytest.mark.parametrize("kind", get_args(CotangentKind))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex128])
@pytest.mark.parametrize("number", [0.0, 0.3])
def test_incoming_gradients_written_out_are_those_of_the_engine(kind: str, dtype: torch.dtype, number: float) -> None:
    output = torch.zeros(4, 5, dtype=dtype)
    made = eval(cotangent_text(kind, number), {"torch": torch, "o": output, "i": 2, "SEED": 3, **vars(making)})
    assert torch.equal(made, make_cotangent(kind, number, output, 3 + 22 + 7))


ALONE = [
    name
    for name, faulty in FAULTY.items()
    if faulty.target[1] == "Fn"
    and not faulty.second_order
    and faulty.cause in ("wrong_coordinates", "rounded")
    # Reading beyond the only element of an expanded tensor raises, here and there.
    and "expanded" not in name
]


@pytest.mark.parametrize("name", ALONE)
def test_the_script_makes_the_very_gradients_of_the_engine(name: str) -> None:
    """Each in a copy of the module of its own: some Functions keep state."""
    faulty = FAULTY[name]
    source = faulty.source(mended=False)
    engine: dict[str, Any] = {}
    exec(source, engine)
    with default_dtype(torch.float64):
        reseed(4)
        args = eval(f"({', '.join(faulty.inputs)},)", {"torch": torch})
    with default_dtype(torch.float32 if faulty.single else torch.float64):
        subject = Subject(
            engine["Fn"].apply,
            None,
            args,
            names=(),
            seed=3,
            positions=[i for i, item in enumerate(args) if getattr(item, "requires_grad", False)] or None,
            base_dtype=torch.float32 if faulty.single else torch.float64,
        )
        subject.random = "rand" in source
        expected = subject.pull(faulty.situation)
    script: dict[str, Any] = {"__name__": "repro"}
    module = types.ModuleType("pkg.functions")
    exec(source, vars(module))
    with mounted(module), default_dtype(torch.float64):
        exec(script_of(faulty), script)
        found, _ = script["special"]()
    assert [g if g is None else g.detach().tolist() for g in found] == [
        g if g is None else g.tolist() for g in expected.gradients
    ]


@contextmanager
def mounted(module: types.ModuleType) -> Iterator[None]:
    sys.modules[module.__name__] = module
    path = list(sys.path)
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        sys.path[:] = path


def shown_alone(script: str, root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    path = folder / "repro.py"
    path.write_text(script, encoding="utf-8")
    assert "gradproof" not in script
    return subprocess.run(
        [sys.executable, "-I", str(path), str(root)], capture_output=True, text=True, cwd=folder, check=False
    )


LARGER = "x, = ctx.saved_tensors\nreturn torch.where(x > 1, x, 2 * x) * g"


def of_library(
    module: types.ModuleType, inputs: tuple[Any, ...], worst: Mapping[str, Any] | None = None, situation: Any = ORDINARY
) -> str | None:
    return library_repro(
        module.Fn, inputs, seed=3, summary="wrong", situation=situation, cause="wrong_region", worst=worst
    )


@pytest.fixture
def library(tmp_path: Path) -> Iterator[tuple[types.ModuleType, Path]]:
    root = repository(tmp_path / "library", Faulty(ORDINARY, LARGER, parameters="x, n=2").source(mended=False))
    module = types.ModuleType("pkg.functions")
    exec((root / "pkg" / "functions.py").read_text(encoding="utf-8"), vars(module))
    with mounted(module):
        yield module, root


def test_a_failure_outside_of_an_analysis_is_shown_at_the_very_numbers(
    library: tuple[types.ModuleType, Path], tmp_path: Path
) -> None:
    module, root = library
    script = of_library(module, (torch.tensor([[0.5, 1.5]]),), {"ordinal": 0, "index": [0, 1]})
    assert script is not None
    found = shown_alone(script, root, tmp_path / "empty")
    assert found.returncode == 1, found.stderr
    assert "1.5]]" in script
    script = of_library(module, (torch.tensor([[0.5, 1.5]]),), {"ordinal": 0, "index": [0, 0]})
    assert script is not None
    assert shown_alone(script, root, tmp_path / "beside").returncode == 0


def test_many_numbers_are_drawn_anew_and_the_coordinate_is_not_trusted(
    library: tuple[types.ModuleType, Path], tmp_path: Path
) -> None:
    module, root = library
    script = of_library(module, (torch.randn(30, 40),), {"ordinal": 0, "index": [0, 0]})
    assert script is not None
    assert "along one random direction" in script
    found = shown_alone(script, root, tmp_path / "empty")
    assert found.returncode == 1, found.stderr


def test_a_script_that_finds_no_repository_says_that_it_cannot_run(
    library: tuple[types.ModuleType, Path], tmp_path: Path
) -> None:
    script = of_library(library[0], (torch.ones(2),))
    assert script is not None
    found = shown_alone(script, tmp_path, tmp_path / "empty")
    assert (found.returncode, "No module named 'pkg'" in found.stderr) == (2, True)


def test_what_no_other_process_could_build_gets_no_script(library: tuple[types.ModuleType, Path]) -> None:
    module, _ = library

    class Local(torch.autograd.Function):
        pass

    assert of_library(module, (torch.ones(2),)) is not None
    assert of_library(types.SimpleNamespace(Fn=Local), (torch.ones(2),)) is None  # type: ignore[arg-type]
    assert of_library(module, (torch.ones(2), object())) is None
    assert of_library(module, (torch.ones(2), 2), situation=Situation(arguments=((1, object()),))) is None
    assert of_library(module, (torch.ones(2),), {"kind": "parameter", "ordinal": 0, "index": [0]}) is None
    assert of_library(module, (torch.ones(2), "n" * REPRO)) is None


EXAMPLES = [
    torch.tensor([[0.1, -2.5], [float("nan"), float("-inf")]], dtype=torch.float64),
    torch.tensor(3.0),
    torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True),
    torch.tensor([1 + 2j, -3j]),
    torch.tensor([[3, -4]]),
    torch.tensor([True, False]),
    torch.zeros(3, 0, 2),
]


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: str(value.dtype))
def test_a_tensor_that_is_written_out_is_that_tensor(value: torch.Tensor) -> None:
    text = expression(value, 0, drawn=False)
    assert text is not None
    again = eval(text, {"torch": torch})
    assert (again.shape, again.dtype, again.requires_grad) == (value.shape, value.dtype, value.requires_grad)
    assert torch.equal(
        torch.view_as_real(again) if again.is_complex() else again.nan_to_num(),
        (torch.view_as_real(value) if value.is_complex() else value.nan_to_num()),
    )


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (torch.rand(300) + 1, lambda made: bool(((made >= 1) & (made <= 2)).all())),
        (torch.randint(2, 9, (300,)), lambda made: bool(((made >= 2) & (made < 9)).all())),
        (torch.randn(30, 10, dtype=torch.float64) * 5, lambda made: 4 < float(made.std()) < 6 and made.min() < 0),
        (torch.rand(300) < 0.5, lambda made: 0.3 < float(made.double().mean()) < 0.7),
        (torch.randn(300, dtype=torch.complex128), lambda made: made.is_complex()),
    ],
    ids=["positive", "integers", "signed", "mask", "complex"],
)
def test_numbers_that_are_drawn_anew_are_of_the_same_kind(value: torch.Tensor, kept: Any) -> None:
    text = expression(value, 0, drawn=True)
    assert text is not None
    made = eval(text, {"torch": torch})
    assert (made.shape, made.dtype) == (value.shape, value.dtype)
    assert kept(made)
    again = eval(text, {"torch": torch})
    assert torch.equal(made, again)
