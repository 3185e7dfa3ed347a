"""Processes of one group find each other inside: by a file and the loopback interface of the sandbox alone."""

from __future__ import annotations

from pathlib import Path

from tests.sandbox.inside import Inside

PROBE = Path(__file__).parents[2] / "worker" / "probe"
CODE = """
sys.path.insert(0, "/gradproof")
import time
from pathlib import Path
import torch
from torch import distributed
from gradproof_probe.offline import go_offline
from gradproof_probe.training.ranks import run_ranks

def add(rank, found):
    found.tensors["sum"] = torch.tensor([1.0 + rank])
    distributed.all_reduce(found.tensors["sum"])

go_offline()
ranks = run_ranks(add, world=2, deadline=time.monotonic() + 15, source_root=Path("/nowhere"))
say([ranks.why, [] if ranks.found is None else [found.tensors["sum"].item() for found in ranks.found]])
"""


def test_two_ranks_meet_inside(confined: Inside) -> None:
    ran = confined.run(CODE, site=True, read_only={PROBE: "/gradproof"}, memory=2 * 2**30, processes=128)
    assert ran.answer == ["", [3.0, 3.0]], ran.outcome
