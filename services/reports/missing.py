"""Which packages are missing, told once for an analysis out of what the probe says of each target.

The details are untrusted text: only what looks like the name of a module or a package is taken from them. Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from services.reports.document import MissingPackage, TargetInfo

REASON: Final = "missing dependency"
# One repository does not lack more than it can import; what a hostile one makes up is cut here.
_MOST: Final = 50
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]{0,99}"
_IMPORTED: Final = re.compile(
    rf"^No module named '({_NAME})(?:\.[\w.]*)?'|^({_NAME})(?:\.[\w.]*)?(?: \(on PyPI| is not)"
)
_PACKAGE: Final = re.compile(r"\(on PyPI: ([A-Za-z0-9][A-Za-z0-9._-]{0,99})\)")


def missing_packages(targets: Iterable[TargetInfo]) -> list[MissingPackage]:
    """Each missing package with the number of targets that lack it, the one that would mend most first."""
    return missing_from(Counter(target.not_run_detail for target in targets if target.not_run_reason == REASON))


def missing_from(details: Mapping[str, int]) -> list[MissingPackage]:
    """The same from how often each sentence was said of targets with this `REASON`."""
    lacking: Counter[tuple[str, str]] = Counter()
    for detail, number in details.items():
        found = _IMPORTED.search(detail)
        if found is not None:
            name = found.group(1) or found.group(2)
            package = _PACKAGE.search(detail)
            lacking[name, package.group(1) if package else name] += number
    ranked = sorted(lacking.items(), key=lambda item: (-item[1], item[0]))
    return [
        MissingPackage(imported=name, package=package, targets=number) for (name, package), number in ranked[:_MOST]
    ]
