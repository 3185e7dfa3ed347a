"""torch.compile: does the graph break at this line, does this line make it compile again?

Dynamo alone is asked, which takes a tenth of what a compilation takes; what the code generator makes of the graph is
the business of `compile_equivalence`.
"""

from __future__ import annotations

import os
from typing import Any, Final

from gradproof_probe.harness.recipe import ExpressionError
from gradproof_probe.importing import describe_error
from gradproof_probe.seeding import reseed
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.suspect import Answer, Suspect, confirmed, held, not_reached

_CALLS: Final = 4
_SLACK: Final = 1


class GraphBreak:
    """GP501 to GP505, GP507."""

    def settle(self, bench: Bench, suspect: Suspect) -> Answer:
        calls: list[int] = []

        def watch(role: str, value: Any) -> Any:
            if role == "before":
                calls.append(1)
            return value

        with bench.watching(suspect, watch):
            seen = bench.call(backward=False)
        if not calls:
            return not_reached(f"no call came to this line{': ' + seen.words if seen.error else ''}")
        import torch._dynamo

        torch._dynamo.reset()
        try:
            built = bench.built()
            reseed(bench.seed)
            explained = torch._dynamo.explain(built.call)(*built.args, **built.kwargs)
        except ExpressionError as error:
            return not_reached(describe_error(error.cause))
        except Exception as error:
            return not_reached(f"Dynamo can't trace the call: {describe_error(error)[:200]}")
        finally:
            torch._dynamo.reset()
        wanted = os.path.realpath(bench.source_root / suspect.path)
        for reason in explained.break_reasons:
            for frame in getattr(reason, "user_stack", None) or ():
                near = suspect.line - _SLACK <= (frame.lineno or 0) <= suspect.end_line + _SLACK
                if near and os.path.realpath(frame.filename) == wanted:
                    first = str(reason.reason).strip().splitlines()[0][:160]
                    return confirmed(
                        f"torch.compile breaks the graph at this line ({first}); {explained.graph_count} graphs in all",
                        graphs=int(explained.graph_count),
                    )
        return held(f"torch.compile does not break the graph here ({explained.graph_count} graphs in all)")


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
