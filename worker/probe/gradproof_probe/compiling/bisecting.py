"""Which pass or lowering of inductor is guilty, by torch's own bisector, which leaves out more and more of them."""

from __future__ import annotations

import contextlib
import io
import time
from typing import Any

from gradproof_probe.checks.base import CheckContext
from gradproof_probe.compiling.running import observed, observed_compiled
from gradproof_probe.equivalence.observation import Mode, bitwise_differences


class _OutOfTimeError(Exception):
    pass


def guilty_pass(context: CheckContext, mode: Mode, limit: float, until: float) -> dict[str, Any]:
    """`pass` (or the subsystem) and what it `applied`; nothing if time runs out or no single one is guilty."""
    from torch._inductor import config
    from torch._inductor.compiler_bisector import CompilerBisector

    plain = observed(context, mode, calls=1)

    def agrees() -> bool:
        if time.monotonic() > until:
            raise _OutOfTimeError
        found = bitwise_differences(plain, observed_compiled(context, mode, "inductor", calls=1))
        return not found or found[0].relative <= limit

    with contextlib.redirect_stdout(io.StringIO()), config.patch(fx_graph_cache=False):
        try:
            result = CompilerBisector.do_bisect(agrees)
        except Exception:
            return {}
    if result is None or result.subsystem is None:
        return {}
    return {"pass": result.subsystem, "applied": str(result.debug_info or result.bisect_number)[:200]}
