"""Where Dynamo breaks the graph, and what makes it compile again: reasons with the submitted lines."""

from __future__ import annotations

import contextlib
import logging
import re
from typing import Any, Final

import torch

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.running import backend_named, observed, plain_function
from gradproof_probe.equivalence.observation import Mode
from gradproof_probe.gradients.attribution import Place, relative
from gradproof_probe.harness.recipe import build
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.graphs import BreakLog
from gradproof_probe.trees import transform

_SHOWN: Final = 10
CALLS: Final = 4  # a shape that changes is compiled for a second time and then no more; a counter each time
_GUARD: Final = re.compile(r"^\s*- \d+/\d+: (.+)$", re.MULTILINE)
_GUARDED_LINE: Final = re.compile(r"\s{2,}# .*$")
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')


def graph_breaks(context: CheckContext, mode: Mode) -> list[dict[str, Any]]:
    """Each reason once, with the submitted lines where it happened. Dynamo alone, one call."""
    log = BreakLog()
    with contextlib.suppress(Exception), log:  # what was told until then stands
        observed(
            context,
            mode,
            calls=1,
            wrap=lambda call: torch.compile(plain_function(call), backend=backend_named("eager")),
        )
    found: dict[str, dict[str, Any]] = {}
    for filename, line, reason in log.found:
        record = found.setdefault(reason, {"reason": reason, "times": 0, "lines": []})
        record["times"] += 1
        path = relative(filename, context.source_root)
        if path is not None and f"{path}:{line}" not in record["lines"]:
            record["lines"].append(f"{path}:{line}")
    return list(found.values())[:_SHOWN]


def recompilations(context: CheckContext, mode: Mode) -> list[dict[str, Any]]:
    """Of several calls with the same inputs: each call that had to be compiled again, the guard and its line.

    Forward only, and Dynamo alone. Asked for where a second call was compiled again.
    """
    log = _RecompileLog()
    built = build(context.resolved, context.recipe, seed=context.seed)
    if built.instance is not None:
        built.instance.train(mode == "train")
    found: list[dict[str, Any]] = []
    torch._dynamo.reset()
    call = torch.compile(plain_function(built.instance or built.call), backend=backend_named("eager"))
    with log:
        for number in range(1, CALLS + 1):
            log.messages.clear()
            reseed(context.seed)
            call(
                *(transform(value, torch.Tensor.clone) for value in built.args),
                **{name: transform(value, torch.Tensor.clone) for name, value in built.kwargs.items()},
            )
            if log.messages:
                found.append({"call": number, **_guard(context, log.messages[-1])})
    return found


def _guard(context: CheckContext, message: str) -> dict[str, Any]:
    """The newest guard that failed: what was compiled last is compared first."""
    guard = _GUARD.search(message)
    frames = [(relative(name, context.source_root), int(line)) for name, line in _FRAME.findall(message)]
    own = next((Place(path, line) for path, line in frames if path is not None), None)
    condition = _GUARDED_LINE.sub("", guard[1]).strip() if guard else message.strip().splitlines()[-1].strip()
    return {"guard": condition[:200], "line": None if own is None else f"{own.path}:{own.line}"}


class _RecompileLog(logging.Handler):
    """What Dynamo logs of the guards that made it compile again."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def __enter__(self) -> _RecompileLog:
        torch._logging.set_logs(recompiles=True)
        logging.getLogger("torch._dynamo").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("torch._dynamo").removeHandler(self)
        torch._logging.set_logs()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.endswith("recompiles"):
            self.messages.append(record.getMessage())
