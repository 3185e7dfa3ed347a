"""All entries of a batch, one after the other; what one shows of another's parts is kept for that one.

An entry whose target nobody knew how to call waits for the end of the batch and is tried once more, if calls of it
were recorded in the meantime. It never imports submitted code.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradproof_probe.conversation import Conversation
from gradproof_probe.lines import PART_CALLS
from gradproof_probe.processes import LineWriter
from gradproof_probe.request import Mined, Request
from gradproof_probe.target_budget import Budget

# For a target that was searched in vain, once calls of it are known: what they don't show at once they don't show.
AGAIN_S: Final = 6.0


class BatchRun:
    """The state that the entries of one batch share."""

    def __init__(self, request: Request, writer: LineWriter) -> None:
        self._request = request
        self._writer = writer
        self._stand_ins: list[str] = []
        self._inductor_left = request.limits.inductor_s
        self._parts: dict[str, tuple[Mined, ...]] = {}
        self._until = time.monotonic() + request.limits.batch_s if request.limits.batch_s else None

    def run(self) -> None:
        """Answer every entry."""
        conversations = [
            Conversation(self._request, entry, self._writer, self._stand_ins) for entry in self._request.batch
        ]
        waiting: dict[str, list[Conversation]] = {}
        ahead = [conversation.target for conversation in conversations]
        with tempfile.TemporaryDirectory(prefix="gradproof-", ignore_cleanup_errors=True) as directory:
            scratch = Path(directory)
            for conversation in conversations:
                ahead.pop(0)
                if self._over():
                    conversation.leave_out()
                    continue
                wanted = frozenset(ahead) | waiting.keys()
                self._hold(conversation, scratch, wanted - {conversation.target}, may_wait=bool(ahead))
                if conversation.waits:
                    waiting.setdefault(conversation.target, []).append(conversation)
            for name, left in waiting.items():
                for conversation in left:
                    if name in self._parts and not self._over():
                        self._hold(conversation, scratch, frozenset(), may_wait=False, again=True)
                    else:
                        conversation.give_up()

    def _hold(
        self, conversation: Conversation, scratch: Path, wanted: frozenset[str], *, may_wait: bool, again: bool = False
    ) -> None:
        harness_s = self._request.limits.harness_s
        conversation.hold(
            scratch,
            Budget(self._inductor_left, min(harness_s, AGAIN_S) if again else harness_s),
            calls=self._parts.get(conversation.target, ()),
            wanted=wanted,
            may_wait=may_wait,
        )
        self._inductor_left = max(0.0, self._inductor_left - conversation.inductor_used_s)
        self._keep(conversation.parts)

    def _keep(self, parts: Mapping[str, tuple[Mined, ...]]) -> None:
        for name, calls in parts.items():
            self._parts[name] = (*self._parts.get(name, ()), *calls)[:PART_CALLS]

    def _over(self) -> bool:
        return self._until is not None and time.monotonic() > self._until
