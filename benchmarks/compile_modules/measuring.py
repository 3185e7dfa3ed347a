"""Measures each module in forks of one process that has torch and its compilers loaded: a line of JSON for each.

    python -m benchmarks.compile_modules.measuring [MODULE…]

Run by `benchmarks.compile_modules`, under an interpreter that has what the models import. A fork has compiled nothing:
cold, its cache is an empty directory; warm, it is the directory that the cold one left. CPU seconds are those of the
fork and of every process that it started, from building the module to its last gradient; the references that results
are compared with are not among them, nor is inductor's header, which is compiled once for all.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

os.environ.update(TORCHINDUCTOR_COMPILE_THREADS="1", TORCHINDUCTOR_VEC_ISA_OK="1", OMP_NUM_THREADS="1")
# vit-pytorch names it in modules that are not measured here.
for _name in ("torchvision", "torchvision.transforms"):
    sys.modules.setdefault(_name, ModuleType(_name))
vars(sys.modules["torchvision"]).setdefault("transforms", sys.modules["torchvision.transforms"])

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
from gradproof_probe.checks.base import CheckContext  # noqa: E402
from gradproof_probe.checks.compile_equivalence import CompileEquivalence, preload  # noqa: E402
from gradproof_probe.compiling import kept_kernels  # noqa: E402
from gradproof_probe.compiling.inductor import errors_of, worst_of  # noqa: E402
from gradproof_probe.compiling.running import Counter, backend_named, observed, observed_compiled  # noqa: E402
from gradproof_probe.equivalence.observation import bitwise_differences  # noqa: E402
from gradproof_probe.harness.recipe import Recipe  # noqa: E402
from gradproof_probe.importing import Resolved  # noqa: E402
from gradproof_probe.processes import LineWriter, watch  # noqa: E402
from gradproof_probe.request import Target  # noqa: E402

from benchmarks.compile_modules import models  # noqa: E402

WITHIN_S: Final = 600.0
Json = dict[str, Any]


def measured(number: int, kind: type[torch.nn.Module], inputs: str) -> Json:
    """Everything about one module."""
    context = _context(kind, inputs)
    row: Json = {"number": number, "module": kind.__name__}
    row["parameters"] = sum(parameter.numel() for parameter in kind().parameters())
    with tempfile.TemporaryDirectory() as directory:
        for backend in ("eager", "aot_eager", "inductor"):
            cache = f"{directory}/{backend}"
            row[backend] = {
                start: _in_fork(lambda cache=cache, backend=backend: _compiled(context, backend, cache))
                for start in ("cold", "warm")
            }
        row["check"] = {start: _in_fork(lambda: _checked(context, f"{directory}/check")) for start in ("cold", "warm")}
    return row


def _context(kind: type[torch.nn.Module], inputs: str) -> CheckContext:
    target = Target(f"models:{kind.__name__}", "module", "__init__.py", 1, "", "models", kind.__name__)
    return CheckContext(
        resolved=Resolved(target, models, kind),
        recipe=Recipe("declared", "A", f"{kind.__name__}()", (inputs,), "benchmark"),
        source_root=Path(models.__file__).parent,
        device="cpu",
        seed=0,
        deadline=time.monotonic() + 10 * WITHIN_S,
        inductor_s=WITHIN_S,
    )


def _compiled(context: CheckContext, backend: str, cache: str) -> Json:
    """One backend: forward and backward in train mode, twice, as the check calls it (inductor: once)."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch._inductor.config.fallback_random = True
    calls = 1 if backend == "inductor" else 2
    plain = observed(context, "train", calls=calls)
    counter = Counter(backend_named(backend))
    begun = _cpu_s()
    compiled = observed_compiled(context, "train", counter, calls=calls)
    found: Json = {
        "cpu_s": round(_cpu_s() - begun, 2),
        "graphs": counter.graphs,
        "operations": counter.operations,
        "bitwise": not bitwise_differences(plain, compiled),
    }
    if backend == "inductor":
        reference = observed(context, "train", calls=calls, dtype=torch.float64)
        found["ratio"], found["tensor"], *_ = worst_of(errors_of(plain, compiled, reference))
        found |= kept_kernels.counted()
    return found


def _checked(context: CheckContext, cache: str) -> Json:
    """The whole check, as it runs for a target."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    begun = _cpu_s()
    result = CompileEquivalence().run(context)
    cause = None if result.diagnosis is None else result.diagnosis.cause
    return {
        "cpu_s": round(_cpu_s() - begun, 2),
        "verdict": result.verdict,
        "cause": cause,
        "summary": result.summary,
        "breaks": len(result.evidence.get("graph_breaks", [])),
        "inductor_cache": result.evidence.get("inductor_cache"),
    }


def _in_fork(work: Callable[[], Json]) -> Json:
    said: list[Json] = []

    def speak(writer: LineWriter) -> None:
        writer.write(work())

    until = time.monotonic() + WITHIN_S
    end = watch(speak, deadline=lambda: until, on_line=lambda line: said.append(json.loads(line)))
    return said[0] if said else {"failed": f"{end.describe()} {end.stderr_tail[-300:]}"}


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _header() -> Json:
    """Compile inductor's header, where all forks find it."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        begun = _cpu_s()
        torch.compile(lambda x: x.sin() + 1)(torch.ones(64))
        return {"cpu_s": round(_cpu_s() - begun, 2)}


def main() -> None:
    torch.set_num_threads(1)
    preload()
    print(
        json.dumps({"number": 0, "module": None, "header": _in_fork(_header), "torch": torch.__version__}), flush=True
    )
    for number, (kind, inputs) in enumerate(models.INPUTS.items(), 1):
        if len(sys.argv) == 1 or kind.__name__ in sys.argv[1:]:
            print(json.dumps(measured(number, kind, inputs)), flush=True)


if __name__ == "__main__":
    main()
