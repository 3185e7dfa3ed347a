"""What `.gitignore` files say about a path, by git's own rules.

Later patterns decide over earlier ones, deeper files over shallower ones, and nothing below an ignored directory can
come back. `.git/info/exclude` counts least. Whether a file is tracked is not known here: a file that is tracked and
ignored is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.snapshots.patterns import Pattern, parse_patterns


@dataclass(frozen=True, slots=True)
class _Layer:
    """The patterns of one file, last first; they apply below `base` ("" or a path with a final slash)."""

    base: str
    patterns: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns in force in one directory, deepest first."""

    layers: tuple[_Layer, ...] = ()

    def extended(self, directory: str, text: str) -> IgnoreRules:
        """These rules and those of an ignore file with this text in `directory` ("" for the top)."""
        patterns = parse_patterns(text.removeprefix("\ufeff").split("\n"))
        if not patterns:
            return self
        return IgnoreRules((_Layer(f"{directory}/" if directory else "", patterns[::-1]), *self.layers))

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether a path below the top is ignored, given that no directory above it is."""
        for layer in self.layers:
            relative = path.removeprefix(layer.base)
            for pattern in layer.patterns:
                if pattern.matches(relative, is_directory=is_directory):
                    return not pattern.negated
        return False
