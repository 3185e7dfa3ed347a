"""`gradproof submit`: hand a directory, an archive or a git URL to a server, watch, and fetch the report."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import httpx
import typer

from api.cli.console import deliver, people, say
from services.problems import BadInputError, SurroundingsError
from services.reports.formats import FORMATS
from services.snapshots.directories import read_directory

Format = StrEnum("Format", {name: name for name in FORMATS})  # type: ignore[misc]  # the choices are data

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".py")
# Between two events the server sends a comment every few seconds: a minute of silence is a server that is gone.
_TIMEOUT = httpx.Timeout(30.0, read=60.0)
# Before a stream that was refused is asked for again.
_PAUSE_S = 2
_LONGEST_PAUSE_S = 60


class ServerError(SurroundingsError):
    """The server can't be reached, or failed."""

    code = "server"
    title = "The server did not answer as it should"


class RefusedError(BadInputError):
    """The server refused the request; carries its own words."""

    code = "refused"
    title = "The server refused"


def register(app: typer.Typer) -> None:
    """Add `submit` to the command line."""
    app.command("submit")(submit)


def submit(
    source: str = typer.Argument(metavar="PATH_OR_GIT_URL", help="A directory, an archive, or an https git URL."),
    server: str = typer.Option("http://127.0.0.1:8000", envvar="GRADPROOF_SERVER", help="Where the server is."),
    token: str = typer.Option("", envvar="GRADPROOF_TOKEN", help="The API token.", show_default=False),
    ref: str = typer.Option("", help="With a git URL: branch, tag or commit."),
    project: str = typer.Option("", help="The project it belongs to."),
    wait: bool = typer.Option(True, "--wait/--no-wait", help="Watch until it has ended, then fetch the report."),
    output_format: Format = typer.Option("text", "--format", help="How the report is written."),
    output: Path | None = typer.Option(None, help="Write the report to this file instead of stdout."),
) -> None:
    """Submit to a server over REST and, unless told otherwise, wait for the report with live progress."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(base_url=server, headers=headers, timeout=_TIMEOUT, follow_redirects=False) as client:
        accepted = _submit(client, source, ref, project)
        analysis = str(accepted["id"])
        say(f"Analysis {analysis}: {server.rstrip('/')}/analyses/{analysis}")
        if not wait:
            typer.echo(analysis)
            return
        state = _watch(client, analysis)
        report = _call(client, "GET", f"/api/v1/analyses/{analysis}/report", params={"format": output_format.value})
        deliver(report.text, output)
    if state.get("status") != "finished":
        say(f"The analysis is {state.get('status')}: {state.get('reason') or 'no reason was given'}")
    gate = state.get("gate") or {}
    if not gate.get("passed", False):
        raise typer.Exit(1)


def _submit(client: httpx.Client, source: str, ref: str, project: str) -> dict[str, Any]:
    path = Path(source)
    if path.exists():
        with _packed(path) as (name, stream):
            files = {"archive": (name, stream)}
            data = {"options": json.dumps({}), **({"project": project} if project else {})}
            return dict(_call(client, "POST", "/api/v1/analyses", files=files, data=data).json())
    if "://" not in source:
        raise BadInputError(f"{source!r} is neither a file, nor a directory, nor a URL", source=source)
    body = {"git_url": source, **({"ref": ref} if ref else {}), **({"project": project} if project else {})}
    return dict(_call(client, "POST", "/api/v1/analyses", json=body).json())


class _packed:  # noqa: N801 - used like a function, as a context manager
    """The archive to send for a path: the file itself, or the files of a directory that belong to its snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> tuple[str, IO[bytes]]:
        if self._path.is_file():
            if not self._path.name.endswith(_ARCHIVES):
                raise BadInputError(f"{self._path} is no archive: {', '.join(_ARCHIVES)} can be sent")
            self._stream = self._path.open("rb")
            return self._path.name, self._stream
        self._stream = tempfile.TemporaryFile()
        with read_directory(self._path) as tree, tarfile.open(fileobj=self._stream, mode="w:gz") as archive:
            for name in tree:
                member = tarfile.TarInfo(name)
                content = tree[name]
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        self._stream.seek(0)
        return f"{self._path.resolve().name}.tar.gz", self._stream

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


def _call(client: httpx.Client, method: str, path: str, **arguments: Any) -> httpx.Response:
    try:
        response = client.request(method, path, **arguments)
    except httpx.ConnectError as error:
        raise ServerError(
            f"nothing answers at {client.base_url} ({error}); `gradproof serve` starts one, --server names another",
        ) from error
    except httpx.UnsupportedProtocol as error:
        raise BadInputError(f"--server has to begin with http:// or https://, not {client.base_url}") from error
    except httpx.HTTPError as error:
        raise ServerError(f"{client.base_url}: {error or type(error).__name__}", server=str(client.base_url)) from error
    if response.is_success:
        return response
    problem = _problem(response)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        problem += "; --token or GRADPROOF_TOKEN gives one (`gradproof token create` makes one)"
    if response.status_code >= 500:
        raise ServerError(problem, status=response.status_code)
    raise RefusedError(problem, status=response.status_code)


def _problem(response: httpx.Response) -> str:
    try:
        body = response.json()
    except ValueError:
        return f"{response.status_code} {response.reason_phrase}"
    detail = body.get("detail") or body.get("title") if isinstance(body, dict) else None
    return str(detail or f"{response.status_code} {response.reason_phrase}")


def _watch(client: httpx.Client, analysis: str) -> dict[str, Any]:
    """Show progress until the analysis has ended; returns its last state. A broken stream is taken up again."""
    console = people()
    shown = ""
    for _ in range(1000):
        for state in _events(client, analysis):
            line = progress_line(state)
            if line != shown:
                console.print(line)
                shown = line
        final = dict(_call(client, "GET", f"/api/v1/analyses/{analysis}").json())
        if final.get("status") not in ("queued", "running"):
            return final
    raise ServerError(f"the stream of events of analysis {analysis} broke off again and again")


def progress_line(state: dict[str, Any]) -> str:
    """One line about how far an analysis is."""
    stages = [
        f"{stage['name']} {stage['done']}/{stage['total']}" for stage in state.get("progress", []) if stage.get("total")
    ]
    return f"{state.get('status')}: {', '.join(stages)}" if stages else str(state.get("status"))


def _events(client: httpx.Client, analysis: str) -> Iterator[dict[str, Any]]:
    """The states that the server sends, until it closes the stream or the connection breaks."""
    try:
        with client.stream("GET", f"/api/v1/analyses/{analysis}/events") as response:
            if not response.is_success:
                after = response.headers.get("Retry-After", "")
                time.sleep(min(int(after), _LONGEST_PAUSE_S) if after.isdigit() else _PAUSE_S)
                return
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield dict(json.loads(line.removeprefix("data:")))
    except (httpx.HTTPError, ValueError):
        return
