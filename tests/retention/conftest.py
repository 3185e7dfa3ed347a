"""The bench of the job tests."""

from __future__ import annotations

from tests.jobs.conftest import bench

__all__ = ["bench"]
