"""Write the documentation pages that come from the code: rules, checks, tables, settings, configuration.

Usage: `python -m tools.make_docs [--check]`. With `--check` nothing is written, and the exit code says whether the
pages on disk are what the code says (`make check` runs it so).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from gradproof_probe.checks import ALL_CHECKS

from analyzer.registry import all_rules
from services.checks.documentation import CheckDocumentation
from services.documentation import check_page, rule_page, rules_table
from services.documentation.configuration import configuration_page
from services.documentation.settings import settings_table

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CHECKS = ROOT / "services" / "checks" / "documentation.json"


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    checks = [
        CheckDocumentation(
            name=check.name,
            summary=check.documentation.summary,
            what_it_does=check.documentation.what_it_does,
            how_it_decides=check.documentation.how_it_decides,
        )
        for check in ALL_CHECKS
    ]
    texts = {DOCS / "rules" / f"{rule.id}.md": rule_page(rule) for rule in all_rules()}
    texts |= {DOCS / "checks" / f"{check.name}.md": check_page(check) for check in checks}
    texts[DOCS / "rules" / "README.md"] = rules_table()
    texts[DOCS / "settings.md"] = settings_table()
    texts[DOCS / "configuration.md"] = configuration_page()
    texts[CHECKS] = json.dumps([asdict(check) for check in checks], indent=2) + "\n"
    return texts


def main(arguments: list[str]) -> int:
    """Write or compare; returns the exit code."""
    wanted = pages()
    on_disk = {path for folder in ("rules", "checks") for path in (DOCS / folder).glob("*.md")}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    orphans = sorted(on_disk - set(wanted))
    if "--check" in arguments:
        for path in [*stale, *orphans]:
            sys.stderr.write(f"{path.relative_to(ROOT)} is not what the code says: run `make docs`\n")
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path])
    for path in orphans:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
