"""The search for inputs at which values or gradients are not finite. It must not judge gradients that are."""

from gradproof_probe.nan_search.judgement import Fault
from gradproof_probe.nan_search.search import NanReport, search

__all__ = ["Fault", "NanReport", "search"]
