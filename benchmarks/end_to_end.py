"""`make bench-service`: whole packages through `gradproof serve` and REST, as a team would submit them.

    python -m benchmarks.end_to_end [PACKAGE…] [--budget MINUTES] [--wheels DIR] [--python EXE] [--keep DIR]

Printed for each: minutes from the POST to the finished report, targets by what became of them, verdicts, how many
findings were settled, the largest memory of the server with its workers and of what ran submitted code (sums of
proportional set sizes, looked at twice a second), size of the report and of its page and how long the page takes.
`--budget`: minutes for the targets of one analysis (the service's own default is half an hour). `--keep`: a directory
for the reports and pages, to be looked at. Without `--python`, an environment with the dependencies of the packages is
built first (network).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.packages import DEPENDENCIES, environment, unpacked
from tools.demo import DemoError, Service, running_service

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("vit-pytorch", "x-transformers", "kornia", "monai")
LONGEST_S = 3 * 3600
_EVERY_S = 0.5
Json = dict[str, Any]


class Memory:
    """The largest memory that was seen, of the service and of the sandboxes that it started, in bytes.

    Pages that processes share are counted once (proportional set size): a worker and its forks share most of theirs.
    """

    def __init__(self) -> None:
        self.service = 0
        self.sandboxes = 0
        self.sandbox = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        end = threading.Event()
        thread = threading.Thread(target=self._watch, args=(end,))
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()

    def _watch(self, end: threading.Event) -> None:
        while not end.wait(_EVERY_S):
            service = sandboxes = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    size = process.memory_full_info().pss
                    submitted = process.uids().real != os.getuid() or "/gradproof" in " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if submitted:
                    sandboxes += size
                    self.sandbox = max(self.sandbox, size)
                else:
                    service += size
            self.service, self.sandboxes = max(self.service, service), max(self.sandboxes, sandboxes)


def submitted(service: Service, name: str, place: Path, keep: Path | None) -> Json:
    """One package through the service: its figures. Raises `DemoError`."""
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=httpx.Timeout(60.0, read=300.0)) as client:
        memory = Memory()
        begun = time.monotonic()
        with memory.watched():
            files = {"archive": (f"{name}.tar.gz", _packed(place))}
            accepted = _answer(client.post("/api/v1/analyses", files=files, data={"options": "{}"})).json()
            analysis = str(accepted["id"])
            status = _ended(client, analysis, begun)
        seconds = time.monotonic() - begun
        if status["status"] != "finished":
            raise DemoError(f"{name}: the analysis is {status['status']}: {status.get('reason')}")
        text = _answer(client.get(f"/api/v1/analyses/{analysis}/report", params={"format": "json"})).text
        page, page_s = _page(service, analysis)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{name}.json").write_text(text)
        (keep / f"{name}.html").write_text(page)
    return {
        **_figures(json.loads(text)),
        "minutes": seconds / 60,
        "service_mib": memory.service / 2**20,
        "sandboxes_mib": memory.sandboxes / 2**20,
        "sandbox_mib": memory.sandbox / 2**20,
        "report_kib": len(text) / 1024,
        "page_kib": len(page) / 1024,
        "page_s": page_s,
    }


def _packed(place: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            archive.add(path, arcname=str(path.relative_to(place)), recursive=False)
    return packed.getvalue()


def _ended(client: httpx.Client, analysis: str, begun: float) -> Json:
    while time.monotonic() - begun < LONGEST_S:
        state = _answer(client.get(f"/api/v1/analyses/{analysis}")).json()
        if state["status"] not in ("queued", "running"):
            return dict(state)
        time.sleep(1.0)
    raise DemoError(f"the analysis has not ended after {LONGEST_S} s")


def _page(service: Service, analysis: str) -> tuple[str, float]:
    """The HTML of the report's page and the seconds until it is there, signed in as a person would be."""
    with httpx.Client(base_url=service.url, timeout=300.0, follow_redirects=True) as browser:
        _answer(browser.post("/sign-in", data={"token": service.token, "next": "/"}))
        begun = time.monotonic()
        answer = _answer(browser.get(f"/analyses/{analysis}"))
        return answer.text, time.monotonic() - begun


def _answer(response: httpx.Response) -> httpx.Response:
    if not response.is_success:
        raise DemoError(f"{response.request.url.path} answers {response.status_code}: {response.text[:500]}")
    return response


def _figures(report: Json) -> Json:
    summary = report["summary"]
    return {
        "files": report["snapshot"]["files"],
        "targets": summary["targets"],
        "not_run": Counter(target["not_run_reason"] for target in report["targets"] if target["not_run_reason"]),
        "checks": Counter(check["verdict"] for target in report["targets"] for check in target["checks"]),
        "failing": [
            f"{target['name']} {check['check']}: {check['summary'][:160]}"
            for target in report["targets"]
            for check in target["checks"]
            if check["verdict"] == "fail"
        ],
        "findings": Counter(finding["verdict"] for finding in report["findings"]),
        "severities": Counter(finding["severity"] for finding in report["findings"]),
    }


def _told(name: str, figures: Json) -> Iterator[str]:
    def counts(of: Json) -> str:
        return ", ".join(f"{count} {what}" for what, count in of.items() if not isinstance(count, dict)) or "none"

    yield f"{name}: {figures['files']} files, {figures['minutes']:.1f} minutes"
    yield (f"  memory: service {figures['service_mib']:.0f} MiB, all sandboxes {figures['sandboxes_mib']:.0f} MiB, "
           f"the largest {figures['sandbox_mib']:.0f} MiB")  # fmt: skip
    yield (f"  report {figures['report_kib']:.0f} KiB, page {figures['page_kib']:.0f} KiB "
           f"in {figures['page_s']:.2f} s")  # fmt: skip
    yield f"  targets: {counts(figures['targets'])}; not run: {counts(figures['not_run'])}"
    yield f"  checks: {counts(figures['checks'])}"
    yield f"  findings: {counts(figures['findings'])}; {counts(figures['severities'])}"
    for failing in figures["failing"]:
        yield f"  FAIL {failing}"


def main(arguments: Sequence[str]) -> int:
    """Submit these packages one after the other; returns the exit code: 1 if one of them gave no report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", default=list(PACKAGES))
    parser.add_argument("--budget", type=float, metavar="MINUTES")
    parser.add_argument("--wheels", type=Path, metavar="DIR")
    parser.add_argument("--python", type=Path, metavar="EXE")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    asked = parser.parse_args(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    python = asked.python or environment(RESULTS / "environment", DEPENDENCIES)
    os.environ["GRADPROOF_PYTHON"] = str(python.absolute())
    if asked.budget is not None:
        os.environ["GRADPROOF_ANALYSIS_BUDGET"] = str(round(60 * asked.budget))
    figures: dict[str, Json] = {}
    with (
        tempfile.TemporaryDirectory(prefix="gradproof-service-") as directory,
        unpacked(asked.packages, asked.wheels) as places,
        running_service(Path(directory)) as service,
    ):
        for name, place in places.items():
            try:
                figures[name] = submitted(service, name, place, asked.keep)
            except (DemoError, httpx.HTTPError) as error:
                print(f"{name}: no report: {error}", flush=True)
                continue
            print("\n".join(_told(name, figures[name])), flush=True)
            (RESULTS / "end_to_end.json").write_text(json.dumps(figures, indent=1))
    return 0 if len(figures) == len(asked.packages) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
