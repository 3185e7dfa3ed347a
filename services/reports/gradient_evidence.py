"""What a gradient check shows for its verdict, read from its evidence and said in a few lines, for every format alike.

Evidence comes out of the sandbox: every key may be missing, of another type, endless or a lie about its own code. So
each is taken only in the shape that the probe gives it, and cut. This module must not judge: the verdict stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.reports.jacobian_picture import Jacobians, read_jacobians
from services.reports.untrusted import one_line, shorten

_LONGEST_TEXT: Final = 600
_LONGEST_NAME: Final = 80
_MOST_LINES: Final = 500
_MOST_AXES: Final = 12
_LAST_LINE: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Worst:
    """The coordinate at which the gradient is most wrong. Numbers are texts: `1.5`, `nan`."""

    variable: str
    index: tuple[int, ...]
    analytic: str
    reference: str
    error: str | None

    @property
    def text(self) -> str:
        """In words."""
        place = f"{self.variable}[{', '.join(map(str, self.index))}]" if self.index else self.variable
        margin = f" ± {self.error}" if self.error is not None else ""
        return f"{place}: autograd returns {self.analytic}, the reference is {self.reference}{margin}"


@dataclass(frozen=True, slots=True)
class GradientEvidence:
    """What there is; None and empty for what there isn't.

    `situation`: the circumstances that it takes. `look_at`: where in backward to look, for what. `by_design`: why the
    difference seems to be meant. `unexecuted_lines`: lines of backward that no scenario ran. `given`: the input that
    shows it. `birth`: where the first value that isn't finite came from.
    """

    situation: str | None = None
    worst: Worst | None = None
    look_at: str | None = None
    by_design: str | None = None
    unexecuted_lines: tuple[int, ...] = ()
    given: str | None = None
    birth: str | None = None
    jacobians: Jacobians | None = None

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a label and a sentence, in the order in which a person asks for them."""
        pairs = (
            ("situation", self.situation),
            ("worst", None if self.worst is None else self.worst.text),
            ("input", self.given),
            ("born", self.birth),
            ("look at", self.look_at),
            ("by design", self.by_design),
            ("never run", lines_in_words(self.unexecuted_lines) or None),
        )
        return tuple((label, text) for label, text in pairs if text is not None)

    def shown_keys(self) -> frozenset[str]:
        """The keys of the evidence that are told by `facts` and the picture: what is left is to be shown as it is."""
        told = {
            "situation": self.situation,
            "worst": self.worst,
            "input": self.given,
            "birth": self.birth,
            "look_at": self.look_at,
            "by_design": self.by_design,
            "unexecuted_lines": self.unexecuted_lines or None,
            "jacobians": self.jacobians,
        }
        return frozenset(key for key, value in told.items() if value is not None)


def gradient_evidence(evidence: Mapping[str, object]) -> GradientEvidence:
    """The evidence of a check as far as it has the shape that the probe gives it."""
    return GradientEvidence(
        situation=_text(evidence.get("situation")),
        worst=_worst(evidence.get("worst")),
        look_at=_text(evidence.get("look_at")),
        by_design=_text(evidence.get("by_design")),
        unexecuted_lines=unexecuted_lines(evidence) or (),
        given=in_words(evidence.get("input")),
        birth=_birth(evidence.get("birth")),
        jacobians=read_jacobians(evidence.get("jacobians")),
    )


def unexecuted_lines(evidence: Mapping[str, object]) -> tuple[int, ...] | None:
    """The lines of backward that nothing ran, ascending; None if the check doesn't say."""
    value = evidence.get("unexecuted_lines")
    if not isinstance(value, list):
        return None
    numbers = {item for item in value if isinstance(item, int) and not isinstance(item, bool)}
    return tuple(sorted(number for number in numbers if 1 <= number <= _LAST_LINE)[:_MOST_LINES])


def lines_in_words(lines: Sequence[int]) -> str:
    """Line numbers with runs drawn together: `line 12`, `lines 12-14, 20`; empty for none."""
    runs: list[tuple[int, int]] = []
    for line in lines:
        if runs and line == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], line)
        else:
            runs.append((line, line))
    if not runs:
        return ""
    said = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"line{'' if len(lines) == 1 else 's'} {shorten(said, _LONGEST_TEXT)}"


def in_words(value: object) -> str | None:
    """A text, or a flat record as `key value, key value`; None for what is neither."""
    if isinstance(value, Mapping):
        entries = list(value.items())[:_MOST_AXES]
        said = [
            one_line(f"{str(key)[:_LONGEST_NAME].replace('_', ' ')} {str(item)[:_LONGEST_TEXT]}")
            for key, item in entries
            if isinstance(item, str | int | float) and not isinstance(item, bool)
        ]
        return shorten(", ".join(said), _LONGEST_TEXT) or None
    return _text(value)


def _birth(value: object) -> str | None:
    """Where the first value that isn't finite was made: `nan in the backward of div, pkg/a.py:4`."""
    operation = _text(value.get("operation")) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or operation is None:
        return in_words(value)
    born = value.get("value")
    said = f"{born} in " if isinstance(born, str) and born in {"nan", "inf"} else ""
    said += f"the backward of {operation}" if value.get("phase") == "backward" else operation
    path, line = _text(value.get("path")), value.get("line")
    if path is not None and isinstance(line, int):
        said += f", {path}:{line}"
    return shorten(said, _LONGEST_TEXT)


def _text(value: object) -> str | None:
    return shorten(one_line(value), _LONGEST_TEXT) or None if isinstance(value, str) else None


def _worst(value: object) -> Worst | None:
    if not isinstance(value, Mapping):
        return None
    analytic = _number(value.get("analytic"))
    reference = _number(value.get("reference", value.get("numeric")))
    if analytic is None or reference is None:
        return None
    variable = value.get("variable")
    index = value.get("index")
    return Worst(
        variable=shorten(one_line(variable), _LONGEST_NAME) if isinstance(variable, str) else "the input",
        index=tuple(item for item in index if isinstance(item, int))[:_MOST_AXES] if isinstance(index, list) else (),
        analytic=analytic,
        reference=reference,
        error=_number(value.get("error", value.get("error_estimate")), digits=2),
    )


def _number(value: object, digits: int = 6) -> str | None:
    if isinstance(value, str) and value in {"nan", "inf", "-inf"}:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return f"{value:.{digits}g}"
    except OverflowError:  # an integer of a thousand digits
        return None
