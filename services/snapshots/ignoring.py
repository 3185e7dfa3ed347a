"""What `.gitignore` files say about a path, by git's own rules.

Later patterns decide over earlier ones, deeper files over shallower ones, and nothing below an ignored directory can
come back. `.git/info/exclude` counts least. Whether a file is tracked is not known here: a file that is tracked and
ignored is ignored. Patterns that git could not read are passed over, as git does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.base import GitIgnorePatternError


@dataclass(frozen=True, slots=True)
class _Layer:
    """The patterns of one file, which apply below the directory that holds it ("" or a path with a final slash)."""

    base: str
    patterns: GitIgnoreSpec


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The patterns in force in one directory, shallowest first."""

    layers: tuple[_Layer, ...] = ()

    def extended(self, directory: str, text: str) -> IgnoreRules:
        """These rules and those of an ignore file with this text in `directory` ("" for the top)."""
        patterns = _patterns(text.removeprefix("\ufeff").splitlines())
        if not patterns.patterns:
            return self
        return IgnoreRules((*self.layers, _Layer(f"{directory}/" if directory else "", patterns)))

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether a path is ignored, given that no directory above it is."""
        name = f"{path}/" if is_directory else path
        for layer in reversed(self.layers):
            if name.startswith(layer.base):
                verdict = layer.patterns.check_file(name[len(layer.base) :]).include
                if verdict is not None:
                    return verdict
        return False


def _patterns(lines: Iterable[str]) -> GitIgnoreSpec:
    readable = []
    for line in lines:
        try:
            GitIgnoreSpec.from_lines([line])
        except GitIgnorePatternError:
            continue
        readable.append(line)
    return GitIgnoreSpec.from_lines(readable)
