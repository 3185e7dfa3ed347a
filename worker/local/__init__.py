"""A whole analysis in this process, without a database or a broker: what `gradproof check` does.

It uses the same readers, sandbox, probe, settling, gate and report as the service. It must not keep anything: the
snapshot lies in a temporary directory that goes away.
"""

from __future__ import annotations

from worker.local.analysis import LocalAnalysis, LocalOptions
from worker.local.progress import Progress, SilentProgress

__all__ = ["LocalAnalysis", "LocalOptions", "Progress", "SilentProgress"]
