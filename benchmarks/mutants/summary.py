"""From the answers of one run to figures, and from figures to tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from benchmarks.mutants.corpus import FORMULA

Record = dict[str, Any]


def _column(record: Record) -> str:
    return f"{record['check']} {record['elements']}"


def _shares(records: Iterable[Record], key: str) -> dict[str, dict[str, list[int]]]:
    """For each value of `key` and each column: how many were objected to, of how many."""
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for record in records:
        cell = counts[record[key]][_column(record)]
        cell[0] += record["objected"]
        cell[1] += 1
    return {name: dict(row) for name, row in counts.items()}


def document(records: list[Record]) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    wrong = [record for record in records if record["kind"] != "right"]
    right = [record for record in records if record["kind"] == "right"]
    ours = [record for record in wrong if record["check"] == "gradproof"]
    return {
        "mutants": len({record["mutant"] for record in wrong}),
        "kinds": len({record["kind"] for record in wrong}),
        "detection": _shares(wrong, "kind"),
        "detection_by_group": _shares(wrong, "group"),
        "detection_by_form": _shares(wrong, "form"),
        "detection_of_all": _shares([record | {"all": "all"} for record in wrong], "all"),
        "false_alarms": _shares(right, "regime"),
        "false_alarms_of_all": _shares([record | {"all": "all"} for record in right], "all"),
        "verdicts_on_right": Counter(record["verdict"] for record in right if record["check"] == "gradproof"),
        "verdicts_on_wrong": Counter(record["verdict"] for record in ours),
        "diagnosis": _diagnosis(ours),
    }


def _diagnosis(ours: list[Record]) -> dict[str, Any]:
    """Of the detected ones for whose fault there is a name: how often the first failure bears it."""
    found: dict[str, list[int]] = {
        "standard slips": [0, 0],
        "formula bugs": [0, 0],
        "formula bugs without a name": [0, 0],
    }
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for record in ours:
        if not record["objected"]:
            continue
        formula = record["kind"] == FORMULA
        if formula and not record["expected"]:
            cell, fits = found["formula bugs without a name"], record["located"]
        else:
            cell = found["formula bugs" if formula else "standard slips"]
            fits = bool(record["causes"]) and record["causes"][0] in record["expected"]
        cell[0] += fits
        cell[1] += 1
        by_kind[record["kind"]][(record["causes"] or ["none"])[0]] += 1
    return {"shares": found, "named": {kind: dict(names.most_common(6)) for kind, names in by_kind.items()}}


def _columns(found: dict[str, Any]) -> list[str]:
    rows = [*found["detection_of_all"].values(), *found["false_alarms_of_all"].values()]
    order = {"gradproof": 0, "slow": 1, "fast": 2, "max": 3}
    names = {column for row in rows for column in row}
    return sorted(names, key=lambda name: (order[name.split()[0]], int(name.split()[1])))


def _percent(cell: list[int] | None, digits: int = 0) -> str:
    return "" if cell is None else f"{100 * cell[0] / cell[1]:.{digits}f}"


def _rows(found: dict[str, Any]) -> list[tuple[str, dict[str, list[int]], int]]:
    """Name, cells, decimals."""
    kinds = sorted(found["detection"].items())
    groups = [(f"group: {name}", row) for name, row in sorted(found["detection_by_group"].items())]
    forms = [(f"form: {name}", row) for name, row in sorted(found["detection_by_form"].items())]
    regimes = [(f"right, {name}", row) for name, row in sorted(found["false_alarms"].items())]
    every = [("all wrong ones", row) for row in found["detection_of_all"].values()]
    right = [("all right ones (false alarms)", row) for row in found["false_alarms_of_all"].values()]
    return [
        *((name, row, 0) for name, row in kinds),
        *((name, row, 1) for name, row in [*groups, *forms, *every]),
        *((name, row, 1) for name, row in [*regimes, *right]),
    ]


def table(found: dict[str, Any]) -> str:
    """For a terminal: percent of what each check objected to."""
    columns = _columns(found)
    lines = [f"{'objected to, in %':38s}{'n':>6s}" + "".join(f"{name:>15s}" for name in columns)]
    for name, row, digits in _rows(found):
        number = max(cell[1] for cell in row.values())
        cells = "".join(f"{_percent(row.get(column), digits):>15s}" for column in columns)
        lines.append(f"{name:38s}{number:6d}{cells}")
    for part in ("times", "memory"):
        lines += [f"{part}: {name}: {_figures(value)}" for name, value in found.get(part, {}).items()]
    lines += ["", *_words_on(found)]
    return "\n".join(lines)


def markdown(found: dict[str, Any]) -> str:
    """The tables of docs/benchmark-gradients.md."""
    columns = _columns(found)
    lines = [f"| objected to, in % | n | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    for name, row, digits in _rows(found):
        cells = " | ".join(_percent(row.get(column), digits) for column in columns)
        lines.append(f"| {name} | {max(cell[1] for cell in row.values())} | {cells} |")
    if "times" in found:
        lines += ["", "| check, elements | mean ms | median ms | Functions | MiB at most |", "|---|---|---|---|---|"]
        for name, value in found["times"].items():
            grown = f"{found['memory'][name]:.0f}" if name in found.get("memory", {}) else ""
            lines.append(
                f"| {name} | {value['mean_ms']:.1f} | {value['median_ms']:.1f} | {value['functions']} | {grown} |"
            )
    lines += ["", *_words_on(found)]
    return "\n".join(lines)


def _figures(value: Any) -> str:
    return (
        " ".join(f"{key} {number:.1f}" for key, number in value.items())
        if isinstance(value, dict)
        else f"{value:.0f} MiB"
    )


def _words_on(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['environment']}", f"{found['mutants']} mutants of {found['kinds']} kinds"]
    for name, cell in found["diagnosis"]["shares"].items():
        said = "located" if "without" in name else "named right"
        lines += [f"diagnosis, {name}: {cell[0]} of {cell[1]} {said} ({_percent(cell, 1)} %)"] if cell[1] else []
    lines.append(
        f"verdicts on right ones: {dict(found['verdicts_on_right'])}; on wrong: {dict(found['verdicts_on_wrong'])}"
    )
    return lines


def misses(records: list[Record]) -> list[str]:
    """Every miss, false alarm and wrong name of ours, for whoever works on the engine."""
    lines = []
    for record in records:
        if record["check"] != "gradproof":
            continue
        where = f"{record['function']} at {record['elements']}"
        if record["kind"] == "right":
            if record["objected"] or record["verdict"] == "raised":
                lines.append(
                    f"FALSE ALARM {where} {record['regime']} seed {record['seed']}: "
                    f"{record['verdict']} {record['causes']} {record['reason'][:300]}"
                )
        elif not record["objected"]:
            what = record["slip"] or record["kind"]
            lines.append(f"MISS [{what}] {where} ({record['form']}): {record['verdict']}: {record['reason'][:200]}")
        elif record["expected"] and (not record["causes"] or record["causes"][0] not in record["expected"]):
            what = record["slip"] or record["kind"]
            lines.append(f"NAME [{what}] {where}: said {record['causes']}, fits {record['expected']}")
    return sorted(lines)
