"""The warm parent: imports torch once, forks a process per target, passes on what that process says.

It never imports submitted code, never runs a backward pass and never touches a device (a process that did can't fork
safely any more).
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import sys
import time
from pathlib import Path

from gradproof_probe.batch import BatchRun
from gradproof_probe.compiling import kept_kernels
from gradproof_probe.errors import ProbeError
from gradproof_probe.processes import LineWriter, harden_parent, watch
from gradproof_probe.request import Request
from gradproof_probe.source_texts import source_texts


def supervise(request: Request, descriptor: int) -> None:
    """Answer the whole request. Raises `ProbeError` if torch can't be imported."""
    writer = LineWriter(descriptor)
    archive = kept_kernels.output_descriptor()
    version, took = prepare(request)
    writer.write(
        {
            "type": "ready",
            "torch": version,
            "python": platform.python_version(),
            "devices": visible_devices(request),
            "import_torch_s": round(took, 3),
        }
    )
    if request.mine is not None:
        from gradproof_probe.mining.mine import mine

        # It runs submitted code in children of its own, and rebuilds what they say before it passes it on.
        mine(request.source_root, request.mine.targets, request.mine.budget_s, writer.write)
    else:
        source_texts(request.source_root)  # read once, for all that are forked from here
        BatchRun(request, writer).run()
        if archive is not None:
            kept_kernels.hand_out(archive)
    writer.write({"type": "done"})


def prepare(request: Request) -> tuple[str, float]:
    """Import what children need, so that each finds it loaded; torch's version, and how long `import torch` took."""
    harden_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True  # the source is read-only, and may be mounted for several runs
    # Inductor starts a pool of compile processes at import unless it is told not to: the parent must stay alone.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # Whether the compiler can vectorise is found out by compiling and loading samples, 4.4 s of CPU with every fresh
    # cache; what the processor can do is read from its flags all the same.
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    try:
        import torch
    except ImportError as error:
        raise ProbeError(f"torch can't be imported: {error}") from error
    took = time.monotonic() - started
    torch.set_num_threads(1)  # a pool of threads does not survive fork
    if any("compile_equivalence" in entry.checks for entry in request.batch):
        from gradproof_probe.checks.compile_equivalence import preload

        preload()  # 2 to 4 s, once for the batch instead of once for each target
        _lend_headers()
        kept_kernels.take_over()
    warm_up()
    return str(torch.__version__), took


def _lend_headers() -> None:
    """Put headers that were compiled elsewhere where inductor looks for its own, as links to what is read-only."""
    shown = os.environ.get("GRADPROOF_COMPILED_HEADERS")
    if not shown:
        return
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        place = Path(default_cache_dir()) / "precompiled_headers"
        place.mkdir(parents=True, exist_ok=True)
        for file in Path(shown).iterdir():
            (place / file.name).symlink_to(file)
    except (ImportError, OSError):
        return  # another torch, another place: inductor makes its own


def warm_up() -> None:
    """Load the probe's own modules here once, not in every child."""
    import gradproof_probe.checks
    import gradproof_probe.harness.synthesis
    import gradproof_probe.mining.parts
    import gradproof_probe.target_process  # noqa: F401

    with contextlib.suppress(ImportError):
        # torch.autograd.grad imports it at its first call, and sympy with it: 0.5 s in every child.
        import torch.fx.experimental.symbolic_shapes  # noqa: F401


def visible_devices(request: Request) -> list[str]:
    """Asked for in a child: the first look at CUDA would make every later fork unusable."""
    if request.device == "cpu":
        return ["cpu"]
    if request.device == "sim":
        return ["cpu", "simulated"]
    names: list[str] = []

    def look(writer: LineWriter) -> None:
        import torch

        if torch.cuda.is_available():
            writer.write({"names": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]})

    def hear(line: bytes) -> None:
        names.extend(str(name)[:80] for name in json.loads(line)["names"])

    until = time.monotonic() + 60.0  # the first look at a driver takes up to 20 s on a cold machine
    watch(look, deadline=lambda: until, on_line=hear)
    return ["cpu", *(f"cuda:{index} {name}" for index, name in enumerate(names))]
