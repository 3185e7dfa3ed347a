"""`make bench-compile`: fourteen modules compiled, cold and warm, and what compile_equivalence says of each.

    python -m benchmarks.compile_modules [--wheels DIRECTORY] [--python EXECUTABLE] [MODULE…]

The modules are those of `benchmarks.compile_modules.models`. vit-pytorch and x-transformers are fetched (or taken from
`--wheels`) and unpacked into a temporary directory, never installed; `--python` names an interpreter that has what they
import, without it one is made. `measuring.py` says what is measured. Results of modules that are not named are kept
from an earlier run. Ends with status 1 where a module is a false alarm: all of them compute the same when compiled, and
the LSTM, of which Dynamo captures nothing, has to be `inconclusive`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.packages import environment, unpacked

RESULTS: Final = Path(__file__).parents[1] / "results" / "compile-modules.json"
ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ["vit-pytorch", "x-transformers"]
NEEDED: Final = ["einops", "einx", "frozendict", "loguru", "numpy", "packaging", "sympy", "torch-einops-utils"]
NOTHING_CAPTURED: Final = "Recurrent"
Json = dict[str, Any]


def measured(python: Path, places: list[Path], names: list[str]) -> Iterator[Json]:
    """The rows of these modules (none: of all), as they come. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="gradproof-compile-") as scratch:
        paths = [ROOT, ROOT / "worker" / "probe", *places]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TMPDIR": scratch}
        command = [str(python), "-m", "benchmarks.compile_modules.measuring", *names]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
            yield from (json.loads(line) for line in process.stdout or () if line.startswith("{"))
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)


def table(rows: list[Json]) -> list[str]:
    """The lines of the page."""
    lines = [
        "| module | parameters | captured | graphs/breaks | eager CPU s | aot_eager CPU s | inductor CPU s cold, warm "
        "| error ratio | whole check CPU s cold, warm | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        eager, aot, inductor, check = (row[name] for name in ("eager", "aot_eager", "inductor", "check"))
        captured = aot["cold"]
        ratio = f"{inductor['cold']['ratio']:.2f}" if captured["graphs"] else "-"
        lines.append(
            f"| {row['module']} | {row['parameters']:,} | {captured['operations']} "
            f"| {captured['graphs']}/{check['cold']['breaks']} | {_mean(eager):.1f} | {_mean(aot):.1f} "
            f"| {inductor['cold']['cpu_s']:.1f}, {inductor['warm']['cpu_s']:.1f} | {ratio} "
            f"| {check['cold']['cpu_s']:.1f}, {check['warm']['cpu_s']:.1f} | {check['cold']['verdict']} |"
        )
    return lines


def _mean(starts: Json) -> float:
    """Nothing of it is cached: cold and warm are two measurements of the same."""
    return float(starts["cold"]["cpu_s"] + starts["warm"]["cpu_s"]) / 2


def _number(row: Json) -> int:
    return int(row["number"])


def wrong(row: Json) -> bool:
    """Whether cold or warm is another verdict than the module deserves."""
    right = "inconclusive" if row["module"] == NOTHING_CAPTURED else "pass"
    return any(row["check"][start].get("verdict") != right for start in ("cold", "warm"))


def main() -> int:
    """Print the table and write the results; 0 if there is no false alarm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("modules", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, unpacked(PACKAGES, arguments.wheels) as places:
        python = arguments.python or environment(Path(directory), NEEDED)
        rows = json.loads(RESULTS.read_text(encoding="utf-8")) if arguments.modules and RESULTS.exists() else []
        for row in measured(python, list(places.values()), arguments.modules):
            # One after the other, so that what is interrupted has not measured in vain.
            rows = sorted([row, *(old for old in rows if old["number"] != row["number"])], key=_number)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    modules = [row for row in rows if row["module"] is not None]
    print("\n".join(table(modules)))
    alarms = [row["module"] for row in modules if wrong(row)]
    print(f"{len(modules)} modules; wrong: {', '.join(alarms) or 'none'}")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
