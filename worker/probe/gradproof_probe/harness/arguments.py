"""One argument as a small value that can be changed and written as an expression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

ArgumentKind = Literal["float", "int", "bool", "literal"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor of `shape` (float: standard normal, int: 0..high-1, bool), or a literal expression.

    `guessed`: nothing but its name says that the literal is one, so an error about its type is ours and no fault.
    """

    name: str
    kind: ArgumentKind = "float"
    shape: tuple[int, ...] = ()
    high: int = 4
    text: str = ""
    positive: bool = False
    keyword: bool = False
    guessed: bool = False

    def render(self) -> str:
        prefix = f"{self.name}=" if self.keyword else ""
        return prefix + self._value()

    def _value(self) -> str:
        shape = ", ".join(map(str, self.shape))
        if self.kind == "float":
            return f"torch.{'rand' if self.positive else 'randn'}({shape or '()'})"
        if self.kind == "int":
            return f"torch.randint(0, {self.high}, ({shape}{',' if len(self.shape) == 1 else ''}))"
        if self.kind == "bool":
            # The first place of every row stays set: a row without any would ask about another thing (empty rows).
            size = f"({shape}{',' if len(self.shape) == 1 else ''})"
            return f"torch.ones({size}, dtype=torch.bool)" if shape else "torch.tensor(True)"
        return self.text

    def with_shape(self, shape: tuple[int, ...]) -> Argument:
        return replace(self, shape=shape)

    @property
    def is_tensor(self) -> bool:
        return self.kind != "literal"
