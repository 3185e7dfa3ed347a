"""Arguments of losses on embeddings: rows, and the class of each row, with several rows of a class.

Such a loss compares rows of one class with rows of others. With a few rows, or with labels that aren't class numbers,
no two have the same class, and the loss is zero whatever the embeddings are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gradproof_probe.harness.axes import Axis

if TYPE_CHECKING:
    from gradproof_probe.harness.demanded import Slot

_EMBEDDINGS: Final = re.compile(r"^(ref_)?(embeddings?|embs?)$")
_LABELS: Final = re.compile(r"^(ref_)?labels?$")
_ROWS: Final = 10  # of two classes: that one has fewer than two rows happens to one draw in fifty


def as_labelled_rows(slots: Sequence[Slot], parameters: Collection[str]) -> None:
    """`parameters`: all that the function has, those that aren't given as well."""
    if not any(_EMBEDDINGS.search(name) for name in parameters) or not any(_LABELS.search(name) for name in parameters):
        return
    rows = Axis()
    rows.least = _ROWS
    for slot in slots:
        if slot.is_tensor and slot.argument.kind == "float" and _EMBEDDINGS.search(slot.argument.name):
            if slot.form.set_rank(2):
                slot.form.axis(0).join(rows)
        elif slot.is_tensor and _LABELS.search(slot.argument.name) and slot.form.set_rank(1):
            slot.form.axis(0).join(rows)
            slot.argument = replace(slot.argument, kind="int", high=slot.form.high or 2)
