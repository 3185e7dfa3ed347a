"""`make bench-static`: the static analyzer against parsers and the best-known linter, on the same files in one run.

    python -m benchmarks.static_speed [PACKAGE…]

Every tenth Python file of the unpacked wheels is read by `ast.parse`, by `libcst.parse_module`, by our analyzer (one
process, cold) and, from a virtual environment of its own, by TorchFix. Times are CPU seconds of one child process
each, start-up included for every one of them; ratios of one run are what counts, the machine is noisy.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.packages import unpacked

DEFAULT = ["kornia", "x-transformers", "vit-pytorch", "e3nn", "timm"]
RESULTS = Path(__file__).parent / "results"

AST = "import ast, sys\nfor p in sys.stdin.read().split('\\n'):\n    ast.parse(open(p, 'rb').read())"
LIBCST = "import libcst, sys\nfor p in sys.stdin.read().split('\\n'):\n    libcst.parse_module(open(p, 'rb').read())"
OURS = (
    "import os, sys\nfrom pathlib import Path\nfrom analyzer.engine import analyze_files\n"
    "paths = sys.stdin.read().split('\\n')\nroot = os.path.commonpath(paths)\n"
    "found = analyze_files(Path(root), [os.path.relpath(p, root) for p in paths])\n"
    "print(len(found.findings))"
)


def cpu_seconds(command: list[str], files: list[Path]) -> tuple[float, float]:
    """CPU seconds of one run of the command, and its peak memory in MiB; the files go in by name on stdin."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path.cwd()
    )
    assert process.stdin is not None
    process.stdin.write("\n".join(map(str, files)).encode())
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{command[:3]} ended with {os.waitstatus_to_exitcode(status)}")
    assert isinstance(usage, resource.struct_rusage)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def torchfix(directory: Path) -> list[str]:
    """A TorchFix in a virtual environment of its own."""
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "torchfix"], check=True, stderr=subprocess.DEVNULL)
    return [str(directory / "bin" / "torchfix"), "--select", "ALL", "-j", "1"]


def main(names: list[str]) -> int:
    """Measure on these packages; returns the exit code."""
    with unpacked(names) as places, tempfile.TemporaryDirectory() as tools:
        files = sorted(path for place in places.values() for path in place.rglob("*.py"))[::10]
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        print(f"{len(files)} files, {lines} lines of {', '.join(names)} (every tenth file)")
        commands = {
            "ast.parse": [sys.executable, "-c", AST],
            "libcst.parse_module": [sys.executable, "-c", LIBCST],
            "gradproof": [sys.executable, "-c", OURS],
            "torchfix --select ALL": [*torchfix(Path(tools) / "torchfix"), *map(str, files)],
        }
        figures = {name: cpu_seconds(command, files) for name, command in commands.items()}
    base = figures["ast.parse"][0]
    for name, (seconds, memory) in figures.items():
        speed, ratio = lines / seconds, seconds / base
        print(f"{name:24s} {seconds:8.2f} CPU s {speed:9.0f} lines/s {ratio:7.1f}x {memory:6.0f} MiB")
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {"files": len(files), "lines": lines, "cpu_s_and_peak_mib": figures}
    (RESULTS / "static_speed.json").write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or DEFAULT))
