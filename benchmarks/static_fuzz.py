"""`make fuzz`: mutated real files through the analyzer; nothing may raise, and no file may exceed its time limit.

    python -m benchmarks.static_fuzz [--wheels DIRECTORY] [--count 10000] [--seed 1] [PACKAGE…]

Each mutant is a real file with tokens deleted, doubled or exchanged, lines moved, the end cut off, or bytes made
random. A rule's own mistake counts as a failure although the engine survives it (GP002 names the rule).
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
import tokenize
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from analyzer.engine import AnalyzerOptions, analyze_source
from analyzer.rules.engine_notes import SyntaxErrorNote, UnreadableFileNote
from benchmarks.packages import CORPUS, unpacked

# Larger files are as rare among real ones as they are slow to mutate ten thousand times.
_MAX_BYTES = 40_000
_CHUNK = 100
_LIMIT_S = AnalyzerOptions().max_seconds_per_file


def _tokens(data: bytes) -> list[tuple[int, int]]:
    """Places of the tokens in the file, as byte offsets; words where it can't be tokenized."""
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    try:
        read = list(tokenize.tokenize(io.BytesIO(data).readline))
    except (tokenize.TokenError, SyntaxError):
        return []
    return [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in read
        if token.string and 0 < token.start[0] <= len(starts) and token.end[0] <= len(starts)
    ]


def delete_tokens(data: bytes, source: random.Random) -> bytes:
    """Up to three tokens are gone."""
    for _ in range(source.randrange(1, 4)):
        places = _tokens(data)
        if places:
            start, end = source.choice(places)
            data = data[:start] + data[end:]
    return data


def double_tokens(data: bytes, source: random.Random) -> bytes:
    """A run of tokens stands there twice, or many times."""
    places = _tokens(data)
    if not places:
        return data
    first = source.randrange(len(places))
    last = min(first + source.randrange(1, 30), len(places) - 1)
    piece = data[places[first][0] : places[last][1]]
    return data[: places[last][1]] + b" " + piece * source.choice([1, 1, 2, 50]) + data[places[last][1] :]


def exchange_tokens(data: bytes, source: random.Random) -> bytes:
    """Names and operators change places: mostly valid Python that nobody would write."""
    for _ in range(source.randrange(1, 12)):
        places = _tokens(data)
        if len(places) < 2:
            return data
        (a, b), (c, d) = sorted(source.sample(places, 2))
        data = data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]
    return data


def move_lines(data: bytes, source: random.Random) -> bytes:
    """A block of lines stands elsewhere."""
    lines = data.splitlines(keepends=True)
    start = source.randrange(len(lines) + 1)
    block = lines[start : start + source.randrange(1, 40)]
    rest = lines[:start] + lines[start + len(block) :]
    place = source.randrange(len(rest) + 1)
    return b"".join([*rest[:place], *block, *rest[place:]])


def truncate(data: bytes, source: random.Random) -> bytes:
    """The end is missing."""
    return data[: source.randrange(len(data) + 1)]


def randomise_bytes(data: bytes, source: random.Random) -> bytes:
    """Some bytes are anything."""
    mutable = bytearray(data)
    for _ in range(source.randrange(1, 40)):
        if mutable:
            mutable[source.randrange(len(mutable))] = source.randrange(256)
    return bytes(mutable)


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    delete_tokens, double_tokens, exchange_tokens, move_lines, truncate, randomise_bytes,
]  # fmt: skip


def run(work: tuple[list[Path], int, int]) -> tuple[Counter[str], list[str], float]:
    """(what happened, failures in words, longest time in seconds) of a chunk of mutants."""
    files, seed, count = work
    source = random.Random(seed)
    happened: Counter[str] = Counter()
    failures: list[str] = []
    longest = 0.0
    for _ in range(count):
        file, mutation = source.choice(files), source.choice(MUTATIONS)
        mutant = mutation(file.read_bytes(), source)
        start = time.monotonic()
        try:
            notes = {finding.rule: finding.message for finding in analyze_source(mutant, "package/layers.py").findings}
        except Exception:  # noqa: BLE001  any exception at all is what is looked for
            failures.append(f"{mutation.__name__} of {file.name}: {traceback.format_exc(limit=-3)}")
            continue
        longest = max(longest, time.monotonic() - start)
        unread = notes.get(UnreadableFileNote.id, "")
        if "failed on it" in unread or "took longer" in unread:
            failures.append(f"{mutation.__name__} of {file.name} (seed {seed}): {unread}")
        happened["invalid Python" if SyntaxErrorNote.id in notes else "unreadable" if unread else "analysed"] += 1
    return happened, failures, longest


def main(arguments: list[str]) -> int:
    """Mutate and analyse; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=CORPUS)
    parser.add_argument("--wheels", type=Path, help="a directory with the wheels, instead of fetching them")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    happened: Counter[str] = Counter()
    failures: list[str] = []
    longest = 0.0
    with unpacked(asked.packages, asked.wheels) as places, ProcessPoolExecutor() as pool:
        files = sorted(path for place in places.values() for path in place.rglob("*.py"))
        files = [path for path in files if 0 < path.stat().st_size < _MAX_BYTES and b"torch" in path.read_bytes()]
        chunks = range(0, asked.count, _CHUNK)
        work = [(files, asked.seed * 1_000_003 + at, min(_CHUNK, asked.count - at)) for at in chunks]
        for counts, failed, seconds in pool.map(run, work):
            happened += counts
            failures += failed
            longest = max(longest, seconds)
    print(
        f"{asked.count} mutants of {len(files)} files: {dict(happened)}; longest {longest:.2f} s, limit {_LIMIT_S:g} s"
    )
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
