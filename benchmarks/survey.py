"""`make survey`: how far Gradproof gets, without configuration, on real packages.

    python -m benchmarks.survey [PACKAGE…] [--sample N] [--seed S] [--wheels DIR] [--python EXE] [--no-sandbox]
                                [--unseen | --unseen-later | --unseen-last] [--harness-only]
                                [--redeclare] [--rerun]

Each package is unpacked and given to `gradproof check` as it is. Printed for each: its targets with those that can't
have a gradient counted apart; those that ran forward and backward by the step that found their harness and by grade;
reasons of those that did not; checks and findings by verdict; seconds for a target (median, nine in ten) and in all.
Then the sums. A package that fails is told and left out. Everything is written under `benchmarks/results/`.

`--sample N`: files are drawn with the seed until they hold N targets. `--harness-only`: with one check that has nothing
to do on a CPU, so that the time is that of finding harnesses. `--redeclare`: every harness is declared as it was shown,
and everything is run again: the verdicts should be the same. `--rerun`: again unchanged, and with one changed file:
which share of targets and time that costs. `--unseen`, `--unseen-later`, `--unseen-last`: the packages that nobody had
looked at, and those that were chosen after the first, and after these, had shown what was missing. Without `--python`,
an environment with the dependencies of the packages is built first (network).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.targets import declare_targets
from benchmarks.packages import (
    DEPENDENCIES,
    SURVEYED,
    UNSEEN,
    UNSEEN_DEPENDENCIES,
    UNSEEN_LAST,
    UNSEEN_LAST_DEPENDENCIES,
    UNSEEN_LATER,
    UNSEEN_LATER_DEPENDENCIES,
    environment,
    unpacked,
)

RESULTS = Path(__file__).parent / "results"
GRADPROOF = Path(sys.executable).parent / "gradproof"
TIMEOUT_S = 4 * 3600
Json = dict[str, Any]
# Of each flag for packages that nobody had looked at: which they are, and what they import.
UNSEEN_SETS = {
    "unseen": (UNSEEN, UNSEEN_DEPENDENCIES),
    "unseen-later": (UNSEEN_LATER, UNSEEN_LATER_DEPENDENCIES),
    "unseen-last": (UNSEEN_LAST, UNSEEN_LAST_DEPENDENCIES),
}


@dataclass(slots=True)
class Survey:
    """One package as it is asked for. `cache` keeps the results of its runs apart from those of the user."""

    place: Path
    paths: list[str]
    python: Path
    cache: Path
    arguments: argparse.Namespace

    def check(self, *more: str) -> tuple[Json, float]:
        """The report of the package and the seconds that it took. Raises `SurveyError`."""
        command = [str(GRADPROOF), "check", *self.paths, "--root", str(self.place), "--format", "json"]
        command += ["--python", str(self.python), *more]
        command += ["--checks", "device_compare"] if self.arguments.harness_only else []
        command += ["--no-sandbox"] if self.arguments.no_sandbox else []
        begun = time.monotonic()
        variables = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "GRADPROOF_DATA_DIR": str(self.cache)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=variables
            )
            return json.loads(done.stdout), time.monotonic() - begun
        except subprocess.TimeoutExpired as error:
            raise SurveyError(f"longer than {TIMEOUT_S} s") from error
        except ValueError as error:
            raise SurveyError(f"exit {done.returncode}: {' '.join(done.stderr.split())[-500:]}") from error


class SurveyError(Exception):
    """A package that gave no report."""


@dataclass(slots=True)
class Row:
    """The figures of one package, or of all of them together."""

    found: int = 0
    ran: int = 0
    not_eligible: Counter[str] = field(default_factory=Counter)
    not_run: Counter[str] = field(default_factory=Counter)
    found_by: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    total_s: float = 0.0

    @classmethod
    def of(cls, report: Json, seconds: float) -> Row:
        counts = report["summary"]["targets"]
        apart = Counter(counts.get("not_eligible", {}))
        row = cls(not_eligible=apart, total_s=seconds)
        for target in report["targets"]:
            reason, harness = target["not_run_reason"], target["harness"]
            if reason in apart:
                continue
            if reason is None and harness is not None and harness["reason"]:
                # It has a harness, which gives nothing to differentiate: compared on devices and compilers only.
                row.not_eligible[harness["reason"]] += 1
                continue
            row.found += 1
            if reason is not None or harness is None:
                row.not_run[reason or "no harness"] += 1
            else:
                row.ran += 1
                row.found_by[harness["found_by"]] += 1
                row.grades[harness["grade"]] += 1
            row.seconds += [target["duration_s"]] if target.get("duration_s") else []
        row.checks.update(
            f"{check['check']} {check['verdict']}" for target in report["targets"] for check in target["checks"]
        )
        row.findings.update(finding["verdict"] for finding in report["findings"])
        return row

    def add(self, other: Row) -> None:
        self.found += other.found
        self.ran += other.ran
        self.total_s += other.total_s
        self.seconds += other.seconds
        for name in ("not_eligible", "not_run", "found_by", "grades", "checks", "findings"):
            getattr(self, name).update(getattr(other, name))

    def lines(self) -> Iterator[str]:
        agreed, apart = self.grades["A"] + self.grades["B"], sum(self.not_eligible.values())
        yield (f"ran forward and backward {self.ran} of {self.found} ({_percent(self.ran, self.found)}), "
               f"grade A or B {agreed} ({_percent(agreed, self.found)}); {apart} counted apart; "
               f"{self.pace()}, {self.total_s:.0f} s in all")  # fmt: skip
        for title, counts in (
            ("found by", self.found_by),
            ("grades", self.grades),
            ("not run", self.not_run),
            ("counted apart", self.not_eligible),
            ("checks", self.checks),
            ("findings", self.findings),
        ):
            if counts:
                yield f"  {title}: {', '.join(f'{count} {name}' for name, count in counts.most_common())}"

    def pace(self) -> str:
        if not self.seconds:
            return "no target was timed"
        ordered = sorted(self.seconds)
        return f"{statistics.median(ordered):.2f} s a target (nine in ten under {ordered[int(0.9 * len(ordered))]:.2f})"

    def figures(self) -> Json:
        ordered = sorted(self.seconds) or [0.0]
        return {
            "eligible": self.found,
            "ran": self.ran,
            "agreed": self.grades["A"] + self.grades["B"],
            "not_eligible": dict(self.not_eligible),
            "not_run": dict(self.not_run),
            "found_by": dict(self.found_by),
            "grades": dict(self.grades),
            "checks": dict(self.checks),
            "findings": dict(self.findings),
            "median_s": statistics.median(ordered),
            "p90_s": ordered[int(0.9 * len(ordered))],
            "total_s": self.total_s,
        }


def _percent(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.0%}"


# ------------------------------------------------------------------------------------------------- what is looked at


def asked_paths(name: str, place: Path, *, sample: int | None, seed: int) -> list[str]:
    """What of a package is to be checked: its part, and of it files drawn until they hold enough targets.

    The other files stay where they are: what is checked imports them.
    """
    within = SURVEYED.get(name, ())
    if sample is None:
        return [str(place / part) for part in within] or [str(place)]
    paths = [str(path.relative_to(place)) for path in sorted(place.rglob("*.py"))]
    held = Counter(target.path for target in declare_targets(place, paths))
    files = sorted(path for path in held if not within or path.startswith(within))
    random.Random(seed).shuffle(files)
    drawn: list[str] = []
    while files and sum(held[path] for path in drawn) < sample:
        drawn.append(files.pop())
    return [str(place / path) for path in sorted(drawn)]


# ------------------------------------------------------------------------------------------------------ run again


def verdicts(report: Json) -> dict[tuple[str, str, str], str]:
    """What was said of each target that had a harness, by check and device."""
    return {
        (target["name"], check["check"], check["device"]): check["verdict"]
        for target in report["targets"]
        if target["harness"] is not None
        for check in target["checks"]
    }


def redeclared(survey: Survey, first: Json) -> Json:
    """Declare what was found, run again, and compare."""
    survey.check(f"--write-targets={survey.place / 'gradproof.toml'}")
    again, _ = survey.check("--no-cache")
    before, after = verdicts(first), verdicts(again)
    other = {
        " ".join(key): f"{before[key]} -> {after.get(key, 'gone')}" for key in before if before[key] != after.get(key)
    }
    declared = sum((target["harness"] or {}).get("source") == "declared" for target in again["targets"])
    return {"declared": declared, "verdicts": len(before), "same": len(before) - len(other), "other": other}


def rerun(survey: Survey, first_s: float, seed: int) -> Json:
    """Again unchanged, and with one changed file: the share of targets that were run, and of the time."""
    shares = {}
    report, seconds = survey.check()
    shares["unchanged"] = _share(report, seconds, first_s)
    begun = sorted({target["path"] for target in report["targets"] if target["harness"] is not None})
    if begun:
        changed = random.Random(seed).choice(begun)
        with (survey.place / changed).open("a") as file:
            file.write("\n\n_GRADPROOF_SURVEY_CHANGED = True\n")
        report, seconds = survey.check()
        shares[f"one file changed ({changed})"] = _share(report, seconds, first_s)
    return shares


def _share(report: Json, seconds: float, first_s: float) -> Json:
    apart = report["summary"]["targets"].get("not_eligible", {})
    asked = [target for target in report["targets"] if target["not_run_reason"] not in apart]
    run = sum(not target.get("reused") for target in asked)
    return {
        "run": run,
        "of": len(asked),
        "share": run / max(1, len(asked)),
        "time_share": seconds / max(first_s, 0.001),
    }


# ------------------------------------------------------------------------------------------------------------- main


def surveyed(survey: Survey, name: str, total: Row) -> Json:
    """Everything about one package, printed as it comes."""
    asked = survey.arguments
    report, seconds = survey.check()
    (RESULTS / f"survey-{name}.json").write_text(json.dumps(report, indent=1))
    row = Row.of(report, seconds)
    total.add(row)
    print(f"{name}: {report['snapshot']['files']} files, {report['snapshot']['lines']} lines", flush=True)
    for line in row.lines():
        print(f"  {line}", flush=True)
    for target in report["targets"]:
        for check in target["checks"]:
            if check["verdict"] == "fail":
                print(f"  FAIL {target['name']} {check['check']}: {check['summary'][:200]}", flush=True)
    figures = row.figures()
    if asked.rerun:
        figures["rerun"] = rerun(survey, seconds, asked.seed)
        for what, share in figures["rerun"].items():
            print(
                f"  {what}: {share['run']} of {share['of']} targets run, {share['time_share']:.0%} of the time",
                flush=True,
            )
    if asked.redeclare:
        figures["redeclared"] = told = redeclared(survey, report)
        print(
            f"  declared again: {told['same']} of {told['verdicts']} verdicts the same; {told['other'] or ''}",
            flush=True,
        )
    return figures


def main(arguments: Sequence[str]) -> int:
    """Survey these packages; returns the exit code: 1 if one of them gave no report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wheels", type=Path, metavar="DIR")
    parser.add_argument("--python", type=Path, metavar="EXE")
    sets = parser.add_mutually_exclusive_group()
    for name in UNSEEN_SETS:
        sets.add_argument(f"--{name}", action="store_const", dest="unseen", const=name)
    for flag in ("--no-sandbox", "--harness-only", "--redeclare", "--rerun"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args(arguments)
    known, dependencies, place = _packages(asked)
    names = asked.packages or list(known)
    RESULTS.mkdir(parents=True, exist_ok=True)
    total, figures, failed = Row(), {}, []
    with tempfile.TemporaryDirectory(prefix="gradproof-survey-") as directory:
        python = asked.python or environment(RESULTS / place, dependencies)
        with unpacked(names, asked.wheels) as places:
            for name, place in places.items():
                paths = asked_paths(name, place, sample=asked.sample, seed=asked.seed)
                survey = Survey(place, paths, python.absolute(), Path(directory) / name, asked)
                try:
                    figures[name] = surveyed(survey, name, total)
                except SurveyError as error:
                    failed.append(name)
                    print(f"{name}: no report: {error}", flush=True)
                _write({"packages": figures, "total": total.figures(), "failed": failed})
    print(f"all {len(figures)} packages:")
    for line in total.lines():
        print(f"  {line}")
    return 1 if failed else 0


def _packages(asked: argparse.Namespace) -> tuple[dict[str, tuple[str, ...]], list[str], str]:
    """Which packages are meant, what they import, and the folder of the environment that holds it."""
    if asked.unseen is None:
        return SURVEYED, DEPENDENCIES, "environment"
    packages, dependencies = UNSEEN_SETS[asked.unseen]
    return packages, dependencies, f"environment-{asked.unseen}"


def _write(figures: Json) -> None:
    (RESULTS / "survey.json").write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
