"""torch.compile: does the graph break at this line, does this line make it compile again?

Dynamo alone is asked, which takes a tenth of what a compilation takes; what the code generator makes of the graph is
the business of `compile_equivalence`.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Final

import torch

from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached

_CALLS: Final = 4
_SLACK: Final = 1
_PLACE: Final = re.compile(r"Graph break in user code at (.+):(\d+)$", re.MULTILINE)
_REASON: Final = re.compile(r"Explanation: (.+)$", re.MULTILINE)


class GraphBreak:
    """GP501 to GP505, GP507."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        if (unreached := bench.unreached(suspect)) is not None:
            return unreached
        breaks = BreakLog()
        try:
            built = bench.built()
            reseed(bench.seed)
            with breaks:
                torch.compile(built.call, backend="eager")(*built.args, **built.kwargs)
        except ExpressionError as error:
            return not_reached(describe_error(error.cause))
        except Exception as error:
            return not_reached(f"Dynamo can't trace the call: {describe_error(error)[:200]}")
        wanted = os.path.realpath(bench.source_root / suspect.path)
        for filename, line, reason in breaks.found:
            near = suspect.line - _SLACK <= line <= suspect.end_line + _SLACK
            if near and os.path.realpath(filename) == wanted:
                return confirmed(f"torch.compile breaks the graph at this line: {reason}", breaks=len(breaks.found))
        return held(f"torch.compile does not break the graph here ({len(breaks.found)} breaks in all)")


class BreakLog(logging.Handler):
    """Collects where Dynamo breaks graphs and why, out of its log: it is told so for breaks before any operation too,
    which `torch._dynamo.explain` leaves out (measured on torch 2.13)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int, str]] = []

    def __enter__(self) -> None:
        import torch._dynamo

        torch._dynamo.reset()
        torch._logging.set_logs(graph_breaks=True)
        logging.getLogger("torch._dynamo").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("torch._dynamo").removeHandler(self)
        torch._logging.set_logs()
        torch._dynamo.reset()

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.endswith("graph_breaks"):
            return
        text = record.getMessage()
        place, reason = _PLACE.search(text), _REASON.search(text)
        if place is not None:
            self.found.append((place[1], int(place[2]), (reason[1] if reason else "no reason given")[:160]))


class Recompiled:
    """GP506: state that a call changes, and that the next call is compiled for again."""

    def settle(self, bench: Bench, _suspect: Suspect) -> Answer:
        import torch._dynamo
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        try:
            built = bench.built()
            compiled = torch.compile(built.call, backend="eager")
            graphs = []
            for _ in range(_CALLS):
                reseed(bench.seed)
                compiled(*built.args, **built.kwargs)
                graphs.append(int(counters["stats"]["unique_graphs"]))
        except ExpressionError as error:
            return not_reached(describe_error(error.cause))
        except Exception as error:
            return not_reached(f"Dynamo can't trace the call: {describe_error(error)[:200]}")
        finally:
            torch._dynamo.reset()
            counters.clear()
        if graphs[-1] > graphs[1] > graphs[0] or graphs[-1] >= graphs[0] + _CALLS - 1:
            return confirmed(
                f"with the same input each call is compiled anew: {graphs[-1]} graphs after {_CALLS} calls",
                graphs=graphs,
            )
        return held(f"{_CALLS} calls with the same input need no further graph ({graphs[-1]} in all)")
