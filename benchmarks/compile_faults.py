"""`make compile-faults`: four models compiled by a backend with nine kinds of kernels, and what is said of each.

    python -m benchmarks.compile_faults [--verbose]

The backend is AOTAutograd's, in inductor's place; the graphs that it is given run forward and backward with the kernels
of `device_faults`. The ratio is the worst tensor's error over that of plain eager execution, both against float64.
Ends with status 1 where a healthy variation is not silent, or a fault is not named with its operation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from gradproof_probe.compiling.inductor import inductor_stage
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from benchmarks.device_faults import models
from benchmarks.device_faults.asking import SECONDS, context_of
from benchmarks.device_faults.kernels import VARIATIONS, Kernels, Variation

RESULTS = Path(__file__).parent / "results" / "compile-faults.json"
# By the kernels of a fault: what Dynamo's graph calls the operations that they compute.
NAMED: Final = {
    "TF32 products": r"linear|matmul|conv|attention|addmm|mm",
    "bfloat16 products": r"linear|matmul|conv|attention|addmm|mm",
    "layer norm backward without eps": r"layer_norm",
    "tanh-GELU for GELU": r"gelu",
    "half-precision softmax": r"softmax|attention",
}
_RATIO: Final = re.compile(r"([\d.]+) times eager's error")
_ERRORS: Final = re.compile(r"is off by ([\d.e+-]+) at .*?, eager by ([\d.e+-]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one kind of kernels."""

    model: str
    kernels: str
    used: bool
    verdict: str
    operation: str
    ratio: float
    right: bool
    summary: str
    took_s: float


def patched(variation: Variation, used: list[bool]) -> Callable[..., Any]:
    """A backend that computes with these kernels; `used` is told whether one was."""

    def compiler(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            kernels = variation.make()
            with kernels:
                found = graph(*args)
            used.append(kernels.used if isinstance(kernels, Kernels) else True)
            return found

        return make_boxed_func(run)

    backend: Callable[..., Any] = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
    return backend


def compared(kind: type, inputs: str, variation: Variation) -> Row:
    """`right` where the kernels were not used by the model, only if nothing is said."""
    context = context_of(kind, inputs, "cpu")
    used: list[bool] = []
    begun = time.monotonic()
    answer = inductor_stage(context, begun + SECONDS, patched(variation, used))
    took = time.monotonic() - begun
    named = NAMED.get(variation.name) if any(used) else None
    operation = str(answer.numbers.get("operation", ""))
    silent = answer.verdict == "pass"
    right = silent if named is None else not silent and re.search(named, operation) is not None
    return Row(
        kind.__name__,
        variation.name,
        any(used),
        answer.verdict,
        operation,
        _ratio(answer.text),
        right,
        answer.text,
        took,
    )


def _ratio(text: str) -> float:
    if (found := _RATIO.search(text)) is not None:
        return float(found[1])
    if (errors := _ERRORS.search(text)) is not None:
        return float(errors[1]) / max(float(errors[2]), 2.0**-23)
    return 0.0


def main() -> int:
    """Print the table; 0 if everything is named rightly."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verbose", action="store_true", help="what is said of each")
    verbose = parser.parse_args().verbose
    rows = [compared(kind, inputs, variation) for variation in VARIATIONS for kind, inputs in models.MODELS]
    print("| kernels | " + " | ".join(kind.__name__ for kind, _ in models.MODELS) + " | said |")
    print("|---|" + "---|" * (len(models.MODELS) + 1))
    for variation in VARIATIONS:
        own = [row for row in rows if row.kernels == variation.name]
        cells = ["-" if not row.used else f"{row.ratio:.3g}" + ("" if row.right else " (!)") for row in own]
        said = sorted({f"begins with `{row.operation}`" if row.operation else row.verdict for row in own if row.used})
        print(f"| {variation.name} | " + " | ".join(cells) + f" | {'; '.join(said)} |")
    wrong = [row for row in rows if not row.right]
    for row in rows if verbose else wrong:
        print(f"{'right' if row.right else 'WRONG'}: {row.model}, {row.kernels} ({row.took_s:.2f} s): {row.summary}")
    print(f"{len(rows) - len(wrong)} of {len(rows)} named rightly; {sum(row.took_s for row in rows):.1f} s")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
