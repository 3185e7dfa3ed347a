"""`make bench-static`: the static analyzer against parsers and other linters, on the same files in one run.

    python -m benchmarks.static_speed [--wheels DIRECTORY] [--scaling] [PACKAGE…]

Every tenth Python file of the unpacked wheels is read by `ast.parse`, by `libcst.parse_module`, by our analyzer (one
process: cold, cold while it fills its cache, and from the cache) and, from virtual environments of their own, by
TorchFix and torch-preflight. Times are CPU seconds of one child process each, start-up included for every one of
them; ratios of one run are what counts, the machine is noisy. `--scaling` measures cost against the size of one file
and against the number of files instead.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import venv
from itertools import pairwise
from pathlib import Path

from benchmarks.packages import CORPUS, unpacked

RESULTS = Path(__file__).parent / "results"

AST = "import ast, sys\nfor p in sys.stdin.read().split('\\n'):\n    ast.parse(open(p, 'rb').read())"
LIBCST = "import libcst, sys\nfor p in sys.stdin.read().split('\\n'):\n    libcst.parse_module(open(p, 'rb').read())"
OURS = (
    "import os, sys\nfrom pathlib import Path\nfrom analyzer.engine import analyze_files\n"
    "paths = sys.stdin.read().split('\\n')\nroot = os.path.commonpath(paths) if len(paths) > 1 else '/'\n"
    "cache = Path(sys.argv[1]) if len(sys.argv) > 1 else None\n"
    "found = analyze_files(Path(root), [os.path.relpath(p, root) for p in paths], cache=cache)\n"
    "print(len(found.findings))"
)


def cpu_seconds(command: list[str], files: list[Path], directory: Path | None = None) -> tuple[float, float]:
    """CPU seconds of one run of the command and its children, and its peak memory in MiB; files go in by stdin."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory or Path.cwd(),
    )
    assert process.stdin is not None
    process.stdin.write("\n".join(map(str, files)).encode())
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{command[:3]} ended with {os.waitstatus_to_exitcode(status)}")
    assert isinstance(usage, resource.struct_rusage)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def linter(directory: Path, package: str) -> Path:
    """The command of a linter in a virtual environment of its own."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True, stderr=subprocess.DEVNULL)
    return directory / "bin" / package


def compare(files: list[Path], lines: int) -> dict[str, tuple[float, float]]:
    """CPU seconds and peak MiB of every reader on these files."""
    with tempfile.TemporaryDirectory() as place:
        tools = Path(place)
        names = list(map(str, files))
        ours, cached = [sys.executable, "-c", OURS], [sys.executable, "-c", OURS, str(tools / "cache")]
        torchfix = [str(linter(tools / "torchfix", "torchfix")), "--select", "ALL", "-j", "1", *names]
        preflight = [str(linter(tools / "preflight", "torch-preflight")), "check", "--jobs", "1", "--quiet", *names]
        commands = {
            "ast.parse": [sys.executable, "-c", AST],
            "libcst.parse_module": [sys.executable, "-c", LIBCST],
            "gradproof, cold": ours,
            "gradproof, filling cache": cached,
            "gradproof, warm cache": cached,
            "torchfix --select ALL": torchfix,
            "torch-preflight": preflight,
        }
        figures = {}
        for name, command in commands.items():
            figures[name] = cpu_seconds(command, files)
            _show(name, figures[name], lines, figures["ast.parse"][0])
    return figures


def _show(name: str, figure: tuple[float, float], lines: int, base: float) -> None:
    seconds, memory = figure
    print(
        f"{name:26s} {seconds:8.2f} CPU s {lines / seconds:9.0f} lines/s {seconds / base:7.2f}x {memory:6.0f} MiB",
        flush=True,
    )


def scaling(files: list[Path]) -> dict[str, dict[str, float]]:
    """CPU seconds of ours for each CPU second that `ast.parse` needs more: for a file that grows, for more files.

    Differences between one input and the next larger one, so that neither start-up nor the loading of facts counts.
    """
    average = sorted((path for path in files if path.stat().st_size > 40_000), key=lambda path: path.stat().st_size)[0]
    text = average.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        grown = {}
        for times in (1, 8, 16, 32, 64):
            path = Path(place) / f"grown_{times}.py"
            path.write_text("\n".join([text] * times), encoding="utf-8")
            grown[f"{path.stat().st_size // 1024} KiB"] = [path]
        figures = {
            "size of one file": _growth(grown),
            "number of files": _growth({str(len(files[::share])): files[::share] for share in (16, 8, 4, 2, 1)}),
        }
    for name, row in figures.items():
        print(
            f"CPU seconds for each more of ast.parse, by {name}: "
            + ", ".join(f"to {k}: {v:.2f}" for k, v in row.items())
        )
    return figures


def _growth(inputs: dict[str, list[Path]]) -> dict[str, float]:
    ours = {name: cpu_seconds([sys.executable, "-c", OURS], files)[0] for name, files in inputs.items()}
    parser = {name: cpu_seconds([sys.executable, "-c", AST], files)[0] for name, files in inputs.items()}
    names = list(inputs)
    return {
        name: (ours[name] - ours[before]) / max(parser[name] - parser[before], 1e-3) for before, name in pairwise(names)
    }


def main(arguments: list[str]) -> int:
    """Measure on these packages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", default=CORPUS)
    parser.add_argument("--wheels", type=Path, help="a directory with the wheels, instead of fetching them")
    parser.add_argument("--scaling", action="store_true")
    asked = parser.parse_args(arguments)
    with unpacked(asked.packages, asked.wheels) as places:
        files = sorted(path for place in places.values() for path in place.rglob("*.py"))[::10]
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        print(f"{len(files)} files, {lines} lines of {', '.join(asked.packages)} (every tenth file)", flush=True)
        figures: object = scaling(files) if asked.scaling else compare(files, lines)
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = "static_scaling.json" if asked.scaling else "static_speed.json"
    (RESULTS / name).write_text(json.dumps({"files": len(files), "lines": lines, "figures": figures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
