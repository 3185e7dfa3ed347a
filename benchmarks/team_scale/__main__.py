"""`make bench-team`: the pages and lists of a service with 100,000 findings and 1,000 analyses.

    python -m benchmarks.team_scale [--database sqlite|postgresql] [--times N] [--small] [--slowest N] [--only TEXT]

For each database: it is filled (one analysis of 5,000 targets among the others), then every GET route is asked over and
over over HTTP, by a token that may see everything. Printed for each address: median and 95th
percentile, bytes, statements, rows (PostgreSQL only) and the most rows of a single statement. An answer that is not
200, a route without an address, and a statement that gave more than 10,000 rows for anything but a document of a whole
analysis are named at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import httpx
from pydantic import SecretStr

from api.pages.badges import badge_address
from benchmarks.team_scale.asking import Asked, Watch, addresses, ask
from benchmarks.team_scale.filling import Filler, Size, sources
from services.accounts import create_token
from services.accounts.access import SYSTEM
from services.database.migrate import upgrade
from services.settings import Settings
from services.snapshots import SnapshotStore
from services.snapshots.directories import read_directory
from tests.servers import PostgresServer
from tests.serving import RunningServer

RESULTS = Path(__file__).parent.parent / "results"
MOST_ROWS = 10_000
# Documents of a whole analysis: they read all of it, as far as the limits of an analysis go.
WHOLE = ("/report", "/compliance")
SMALL = Size(projects=2, analyses=20, findings=400, large_targets=200, large_findings=100, audit_events=50)


@contextmanager
def database(kind: str, home: Path) -> Iterator[str]:
    """The URL of an empty database of this kind."""
    if kind == "sqlite":
        yield f"sqlite:///{home / 'scale.sqlite3'}"
        return
    server = PostgresServer()
    try:
        server.start()
        yield server.create_database("scale")
    finally:
        server.close()


def measure(kind: str, size: Size, times: int, only: str) -> tuple[list[Asked], list[str]]:
    """Fill one database and ask everything whose address holds `only`; also the routes that could not be asked."""
    with tempfile.TemporaryDirectory() as directory, database(kind, Path(directory)) as url:
        home = Path(directory)
        settings = Settings(
            data_dir=home / "data", database_url=url, secret_key=SecretStr("a key that is long enough for a benchmark")
        )
        upgrade(settings)
        tree = home / "source"
        for path, content in sources().items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
        snapshot = SnapshotStore(settings.snapshot_dir).put(read_directory(tree))
        token = create_token(settings, name="benchmark", scope="admin", lifetime=timedelta(days=1))
        with RunningServer(settings) as server:
            engine = server.app.state.context.database.engine
            start = time.perf_counter()
            filled = Filler(engine, snapshot, size).fill()
            rows = sum(filled.rows.values())
            print(f"{kind}: {rows:,} rows in {time.perf_counter() - start:.0f} s, {filled.rows['findings']:,} findings")
            context = server.app.state.context
            filled.share = context.shares.create(SYSTEM, filled.analysis, 7).code
            filled.badge = badge_address(context.settings, filled.project).rpartition("/")[2].removesuffix(".svg")
            wanted, unknown = addresses(server.app, filled)
            watch = Watch(engine)
            with httpx.Client(base_url=server.url, timeout=120, headers={"Accept": "text/html"}) as client:
                client.post("/sign-in", data={"token": token, "next": "/"}, headers={"Sec-Fetch-Site": "same-origin"})
                client.headers["Authorization"] = f"Bearer {token}"
                with watch.watched():
                    return [ask(client, address, times, watch) for address in wanted if only in address], unknown


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), action="append")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--small", action="store_true", help="a tenth of a per cent of it, to try the benchmark itself")
    parser.add_argument("--slowest", type=int, default=1_000, help="print this many addresses only")
    parser.add_argument("--only", default="", help="ask those addresses alone that hold this")
    options = parser.parse_args()
    results, amiss = {}, []
    for kind in options.database or ("sqlite", "postgresql"):
        asked, unknown = measure(kind, SMALL if options.small else Size(), options.times, options.only)
        asked.sort(key=lambda each: -each.p95)
        results[kind] = [each.figures() for each in asked]
        print(f"{'median':>8} {'p95':>8} {'kB':>7} {'stmts':>5} {'rows':>6}  address")
        for each in asked[: options.slowest]:
            figures = each.figures()
            print(
                f"{figures['median_s']:8.3f} {figures['p95_s']:8.3f} {each.size / 1000:7.0f}"
                f" {each.reading.statements:5} {each.reading.rows:6}  {each.status} {each.address}"
            )
        amiss += [f"{kind}: nobody has an address for {path}" for path in unknown]
        amiss += [f"{kind}: {each.status} of {each.address}" for each in asked if each.status not in {200, 303}]
        amiss += [
            f"{kind}: a statement of {each.address} gave {each.reading.most_rows:,} rows"
            for each in asked
            if each.reading.most_rows > MOST_ROWS and not any(whole in each.address for whole in WHOLE)
        ]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "team-scale.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print("\n".join(amiss) or "every route was asked, answered 200, and read no more than it may")
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
