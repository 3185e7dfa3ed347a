"""Which rule's suspicion is settled how. This module must not import what runs submitted code before it is asked."""

from __future__ import annotations

from typing import Final, Protocol

from gradproof_probe.suspicions.batches import BroadcastLoss, ImplicitDimension, Mixing
from gradproof_probe.suspicions.bench import Bench
from gradproof_probe.suspicions.cuts import Cut
from gradproof_probe.suspicions.evaluating import MovingStatistics, Noise
from gradproof_probe.suspicions.functions import KeptOnContext, UnmarkedWrite
from gradproof_probe.suspicions.graphs import GraphBreak, Recompiled
from gradproof_probe.suspicions.kept_state import (
    FlagOnModule,
    FrozenMode,
    KeptGraph,
    LeftBehind,
    Reload,
    Unregistered,
)
from gradproof_probe.suspicions.layers import Unused, WrongLossInput
from gradproof_probe.suspicions.placement import OtherDevice
from gradproof_probe.suspicions.precision import HalfOverflow, OtherDtype
from gradproof_probe.suspicions.recomputation import Recomputed
from gradproof_probe.suspicions.suspect import CUT_RULES, Answer, Suspect
from gradproof_probe.suspicions.writes import ArgumentWrite, Refused, SavedWrite, SecondName, SharedWrite


class Family(Protocol):
    """One way of settling. Raises nothing for a fault of the submitted code."""

    def settle(self, bench: Bench, suspect: Suspect, /) -> Answer:
        """What became of one suspicion."""


FAMILIES: Final[dict[str, Family]] = {
    **dict.fromkeys(("GP118", "GP126"), HalfOverflow()),
    **dict.fromkeys(("GP123", "GP124", "GP141"), WrongLossInput()),
    **dict.fromkeys(CUT_RULES, Cut()),
    "GP205": Unregistered(),
    "GP206": FlagOnModule(),
    "GP302": KeptOnContext(),
    "GP307": UnmarkedWrite(),
    **dict.fromkeys(("GP401", "GP402", "GP403", "GP404", "GP405"), SavedWrite()),
    **dict.fromkeys(("GP406", "GP414"), Refused()),
    "GP407": SharedWrite(),
    **dict.fromkeys(("GP408", "GP412"), ArgumentWrite()),
    "GP413": SecondName(),
    **dict.fromkeys(("GP411", "GP415"), KeptGraph()),
    **dict.fromkeys(("GP501", "GP502", "GP503", "GP504", "GP505", "GP507"), GraphBreak()),
    "GP506": Recompiled(),
    **dict.fromkeys(("GP602", "GP618", "GP621"), OtherDevice()),
    **dict.fromkeys(("GP603", "GP610"), OtherDtype()),
    **dict.fromkeys(("GP604", "GP615", "GP616", "GP624"), LeftBehind()),
    **dict.fromkeys(("GP617", "GP625"), Reload()),
    "GP713": BroadcastLoss(),
    "GP715": ImplicitDimension(),
    **dict.fromkeys(("GP714", "GP720", "GP731"), Noise()),
    **dict.fromkeys(("GP718", "GP721", "GP722", "GP725", "GP726", "GP734", "GP735"), Mixing()),
    **dict.fromkeys(("GP719", "GP724", "GP728"), Unused()),
    **dict.fromkeys(("GP730", "GP733"), MovingStatistics()),
    "GP732": FrozenMode(),
    **dict.fromkeys(("GP801", "GP802", "GP803", "GP804", "GP805", "GP806", "GP807"), Recomputed()),
}
