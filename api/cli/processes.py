"""`gradproof serve`, `api` and `worker`: the long-running processes, together or apart."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import typer

from api.cli.console import say
from api.cli.supervision import WorkerProcess
from services.accounts import ensure_first_token, is_anybody_let_in
from services.database.migrate import require_current, upgrade
from services.jobs.model import CONTROL_QUEUE, CPU_QUEUE, gpu_queue, needs_a_device
from services.problems import BadInputError, SurroundingsError
from services.settings import Settings, read_settings


class UnprotectedAddressError(BadInputError):
    """The service would be reachable from other machines before anybody holds a token."""

    code = "unprotected-address"
    title = "Refusing to serve on this address"


class DataDirectoryError(BadInputError):
    """What --data-dir names can't hold the service's data."""

    code = "data-directory"
    title = "The data directory can't be used"


class AddressInUseError(SurroundingsError):
    """Another process listens there."""

    code = "address-in-use"
    title = "The address is taken"


def register(app: typer.Typer) -> None:
    """Add the long-running processes to the command line."""
    app.command("serve")(serve)
    app.command("api")(api)
    app.command("worker")(worker)


def serve(
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on; 0: any free one."),
    data_dir: Path | None = typer.Option(None, help="Where everything is kept; ~/.gradproof unless told otherwise."),
    sandbox: bool = typer.Option(
        True, "--sandbox/--no-sandbox", help="--no-sandbox: run submitted code unconfined. Only for code of your own."
    ),
) -> None:
    """API, pages and a worker on embedded parts: nothing else is needed. Ctrl-C stops it all."""
    from api.pages.sessions import console_link  # noqa: PLC0415 - FastAPI takes half a second to import

    listener = _listen(host, port)
    address = _address(host, listener.getsockname()[1])
    settings = _embedded(data_dir, address, sandbox=sandbox)
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataDirectoryError(f"{settings.data_dir}: {error.strerror or error}") from error
    upgrade(settings)
    if _is_loopback(host):
        token = ensure_first_token(settings)
        if token is not None:
            typer.echo(f"Token (shown only now; keep it): {token}")
        link = console_link(settings)
        if link is not None:
            typer.echo(f"Sign in here within ten minutes: {link}")
    else:
        _require_tokens(settings, host)
    with ExitStack() as workers:
        for queues, device in _workers(settings):
            workers.enter_context(WorkerProcess(queues, _environment(settings), device))
        typer.echo(f"Gradproof serves {address} with data in {settings.data_dir}; Ctrl-C stops it.")
        _serve_http(settings, listener)


def api(
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    port: int = typer.Option(8000, min=0, max=65535, help="Port to listen on."),
) -> None:
    """The API and the pages alone; settings come from the environment."""
    settings = read_settings()
    require_current(settings)
    if not _is_loopback(host):
        _require_tokens(settings, host)
    _serve_http(settings, _listen(host, port))


def worker(
    queues: str = typer.Option(
        "control,cpu",
        help="Queues to serve, with commas between: control, cpu, gpu.<class>; gpu: those of all classes.",
    ),
    concurrency: int | None = typer.Option(
        None, min=1, help="Jobs at a time; GRADPROOF_CONCURRENCY unless told otherwise."
    ),
    device: str | None = typer.Option(
        None, help="The GPU of a worker for gpu.<class>: cuda:1, as nvidia-smi counts, or a UUID. Else: any free one."
    ),
) -> None:
    """A worker alone; settings come from the environment. SIGTERM gives its jobs back and ends it."""
    from worker.celery_app import run_worker  # noqa: PLC0415 - Celery takes half a second to import

    settings = read_settings()
    raise typer.Exit(run_worker(settings, _named_queues(queues, settings), concurrency=concurrency, device=device))


def _named_queues(words: str, settings: Settings) -> list[str]:
    """The queues that are meant; `gpu` stays as it is where there is no class, and is then refused as unknown."""
    all_gpus = [gpu_queue(name) for name in settings.gpu_classes] or ["gpu"]
    names = [name.strip() for name in words.split(",") if name.strip()]
    return [queue for name in names for queue in (all_gpus if name == "gpu" else [name])]


def _workers(settings: Settings) -> Iterator[tuple[tuple[str, ...], str | None]]:
    """The queues of each worker of `serve`, and its device: one for what needs no GPU, and one for each GPU."""
    from worker.devices import InventoryError, read_inventory, visible  # noqa: PLC0415 - few machines have any

    queues = [gpu_queue(name) for name in settings.gpu_classes]
    yield (CONTROL_QUEUE, CPU_QUEUE, *(queue for queue in queues if not needs_a_device(queue))), None
    for_gpus = tuple(queue for queue in queues if needs_a_device(queue))
    if not for_gpus:
        return
    try:
        gpus = visible(read_inventory(settings.nvidia_smi))
    except InventoryError as error:
        say(f"No worker has a GPU: {error.message}.")
        return
    if not gpus:
        say("No worker has a GPU: there is no CUDA device on this machine.")
    for gpu in gpus:
        yield for_gpus, gpu.uuid


def _serve_http(settings: Settings, listener: socket.socket) -> None:
    import uvicorn  # noqa: PLC0415

    from api.app import create_app  # noqa: PLC0415 - FastAPI takes half a second to import

    configuration = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        server_header=False,
        # Whoever signs in is slowed down by address: behind a proxy that isn't trusted, everybody has the same one.
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
        # The stream of events of a running analysis stays open: it must not hold up the end for longer than this.
        timeout_graceful_shutdown=3,
    )
    # Once it has shut down in order, uvicorn raises the signal again for whoever handled it before: without a handler
    # the process would die of it there and then, and nothing around this call would be ended.
    signal.signal(signal.SIGTERM, _end_in_order)
    uvicorn.Server(configuration).run(sockets=[listener])


def _end_in_order(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Of a socket that does not name its protocol, asyncio leaves on that small packets wait for others (Nagle): each
    # answer on a connection that is kept open came 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AddressInUseError(f"{host} port {port}: {error.strerror or error}; choose another --port") from error
    return listener


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _embedded(data_dir: Path | None, address: str, *, sandbox: bool) -> Settings:
    """The settings of the environment, with what the command line says on top."""
    settings = read_settings()
    changes: dict[str, object] = {}
    if data_dir is not None:
        changes["data_dir"] = data_dir.absolute()
    if not sandbox:
        changes["sandbox"] = False
    if "public_url" not in settings.model_fields_set:
        changes["public_url"] = address
    return settings.model_copy(update=changes)


def _environment(settings: Settings) -> dict[str, str]:
    """What a worker process needs to come to the same settings."""
    return {
        **os.environ,
        "GRADPROOF_DATA_DIR": str(settings.data_dir),
        "GRADPROOF_PUBLIC_URL": settings.public_url,
        "GRADPROOF_SANDBOX": "true" if settings.sandbox else "false",
    }


def _require_tokens(settings: Settings, host: str) -> None:
    if not is_anybody_let_in(settings):
        raise UnprotectedAddressError(
            f"{host} is reachable from other machines and nobody can get in yet: run `gradproof user create NAME "
            "--operator` or `gradproof token create NAME` first, or serve on 127.0.0.1"
        )
    say(f"{host} is reachable from other machines: put a TLS proxy in front.")
