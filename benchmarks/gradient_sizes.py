"""`make bench-gradient-sizes`: seconds and peak memory of one gradient check as the input grows.

    python -m benchmarks.gradient_sizes [--sizes 10000 1000000] [--slow-up-to 10000] [--repeats 3]

LayerNorm, attention, a convolution and an MLP, as plain torch code, at about so many input elements: our check, and
slow and fast `torch.autograd.gradcheck`. Each measurement runs in a process of its own, which reports how much its
peak resident memory grew; the fastest of the repeats counts. Slow gradcheck needs dense Jacobians: at a million
elements that is 8 TB, so it is left out beyond `--slow-up-to`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradproof_probe import check_gradients
from torch import Tensor
from torch.nn import functional

RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 600


def layer_norm(elements: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Rows of 128."""
    rows = max(1, elements // 128)
    return (lambda x, w, b: functional.layer_norm(x, (128,), w, b)), _leaves((rows, 128), (128,), (128,))


def attention(elements: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """One head of size 64; three inputs of a third each, in sequences of at most 64."""
    length = 64 if elements >= 3 * 64 * 64 else max(2, elements // (3 * 64))
    batch = max(1, elements // (3 * 64 * length))
    shape = (batch, length, 64)
    return (lambda q, k, v: ((q @ k.mT) / 8).softmax(-1) @ v), _leaves(shape, shape, shape)


def convolution(elements: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """3 x 3 over 8 channels of 32 x 32."""
    batch = max(1, round(elements / (8 * 32 * 32)))
    return (lambda x, w, b: functional.conv2d(x, w, b, padding=1)), _leaves((batch, 8, 32, 32), (8, 8, 3, 3), (8,))


def mlp(elements: int) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """64 to 32 to 16; most of the elements are the batch."""
    rows = max(1, elements // 64)
    shapes = ((rows, 64), (32, 64), (32,), (16, 32), (16,))
    return (
        lambda x, w1, b1, w2, b2: functional.linear(functional.gelu(functional.linear(x, w1, b1)), w2, b2)
    ), _leaves(*shapes)


def _leaves(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes)


CASES: dict[str, Callable[[int], tuple[Callable[..., Tensor], tuple[Tensor, ...]]]] = {
    "LayerNorm": layer_norm,
    "attention": attention,
    "Conv2d": convolution,
    "MLP": mlp,
}


def _ours(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> str:
    return check_gradients(function, inputs).verdict


def _gradcheck(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, fast: bool) -> str:
    return "pass" if torch.autograd.gradcheck(function, inputs, raise_exception=False, fast_mode=fast) else "fail"


CHECKS: dict[str, Callable[[Callable[..., Tensor], tuple[Tensor, ...]], str]] = {
    "gradproof": _ours,
    "slow": lambda function, inputs: _gradcheck(function, inputs, fast=False),
    "fast": lambda function, inputs: _gradcheck(function, inputs, fast=True),
}


def measure(case: str, check: str, elements: int, repeats: int) -> dict[str, Any]:
    """In this process: the fastest of the repeats, and the growth of its peak memory. A small run warms it up."""
    torch.set_num_threads(1)
    function, inputs = CASES[case](200)
    CHECKS[check](function, inputs)
    function, inputs = CASES[case](elements)
    function(*inputs)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    verdict = ""
    for _ in range(repeats):
        start = time.perf_counter()
        verdict = CHECKS[check](function, inputs)
        times.append(time.perf_counter() - start)
        if times[-1] > 5:
            break
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    count = sum(item.numel() for item in inputs)
    return {"verdict": verdict, "seconds": min(times), "peak_mb": grown, "elements": count}


def main(arguments: list[str]) -> int:
    """Measure, print, keep as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--slow-up-to", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=3, metavar=("CASE", "CHECK", "ELEMENTS"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.one:
        print(json.dumps(measure(asked.one[0], asked.one[1], int(asked.one[2]), asked.repeats)))
        return 0
    rows = []
    print(f"{'':12s}{'elements':>10s}" + "".join(f"{name:>26s}" for name in CHECKS))
    for elements in asked.sizes:
        for case in CASES:
            found = {
                check: _apart(case, check, elements, asked.repeats)
                for check in CHECKS
                if check != "slow" or elements <= asked.slow_up_to
            }
            cells = "".join(f"{_cell(found.get(check)):>26s}" for check in CHECKS)
            print(f"{case:12s}{found['gradproof'].get('elements', elements):10d}{cells}", flush=True)
            rows.append({"case": case, "elements": elements, **found})
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "gradient-sizes.json").write_text(json.dumps(rows, indent=1))
    return 0


def _apart(case: str, check: str, elements: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.gradient_sizes", "--repeats", str(repeats)]
    try:
        done = subprocess.run(
            [*command, "--one", case, check, str(elements)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=Path(__file__).parent.parent,
        )
    except subprocess.TimeoutExpired:
        return {"verdict": f"over {TIMEOUT_S} s"}
    if done.returncode:
        return {"verdict": f"ended with {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "left out"
    if "seconds" not in found:
        return str(found["verdict"])
    return f"{found['verdict']} {found['seconds']:.3f} s {found['peak_mb']:.0f} MB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
