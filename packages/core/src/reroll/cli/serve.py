"""`reroll serve MODEL`: a model behind SGLang's routes and OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import socket

    from reroll.models.files import ModelFiles
    from reroll.serving.http.served import Renderer

LOOPBACK = "127.0.0.1"


def serve(
    model: Annotated[
        str, typer.Argument(help="What model.path takes: a folder, a GGUF file, builtin:NAME.", metavar="MODEL")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than loopback lets other machines in.")
    ] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the key that requests need, written if there is none yet. "
            "Without it, and without REROLL_API_KEY, a key is generated for this start."
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A Jinja file to use instead of the model's own chat template.")
    ] = None,
    max_running_requests: Annotated[int, typer.Option(min=1, help="Most requests that are advanced at once.")] = 256,
    max_context_len: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and response; by default the model's own limit.")
    ] = None,
    kv_cache_mb: Annotated[int, typer.Option(min=1, help="Most memory for keys and values, in MiB.")] = 2048,
    prefill_tokens: Annotated[int, typer.Option(min=1, help="Most prompt tokens that one step takes in.")] = 8192,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the arithmetic.")] = 1,
) -> None:
    """Serve a model over HTTP, on loopback and with a key."""
    import asyncio
    import errno

    from reroll.models.files import resolve_model
    from reroll.serving.http.app import require_serve_extra
    from reroll.serving.http.listening import bound, cannot_listen
    from reroll.tasks.render import Renderer
    from reroll.workers.host import is_loopback

    require_serve_extra()
    options = {
        "max_running_requests": max_running_requests,
        "max_context_len": max_context_len,
        "kv_cache_mb": kv_cache_mb,
        "prefill_tokens": prefill_tokens,
        "threads": threads,
    }
    # What is at fault with the address is told before the model is loaded.
    with bound(host, port) as sockets:
        if not is_loopback(host):
            typer.echo(f"--host {host}: other machines can reach this, and keys travel unencrypted", err=True)
        files = resolve_model(model)
        files.check()
        renderer = Renderer(files, chat_template.read_text("utf-8") if chat_template else None)
        with _key(key_file) as (key, where):
            try:
                asyncio.run(_serve(model, files, renderer, options, sockets, key, where))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise cannot_listen(host, port, error) from None


@contextmanager
def _key(file: Path | None) -> Iterator[tuple[str, str]]:
    """The key and where the user finds it. One that was generated without a file to keep goes with the server."""
    import tempfile

    from reroll.api import RerollError
    from reroll.serving.http.auth import KEY_VARIABLE, key_from_environment, read_key, write_key

    given = key_from_environment()
    if given is not None and file is not None:
        raise RerollError(f"--key-file {file}: {KEY_VARIABLE} gives a key as well; give one of them")
    if given is not None:
        yield given, KEY_VARIABLE
    elif file is not None:
        yield read_key(file) if file.exists() else write_key(file), str(file)
    else:
        # A folder that only its owner can look into, whatever the umask is.
        with tempfile.TemporaryDirectory(prefix="reroll-serve-") as folder:
            file = Path(folder) / "key"
            yield write_key(file), str(file)


async def _serve(
    model: str,
    files: ModelFiles,
    renderer: Renderer,
    options: dict[str, Any],
    sockets: Sequence[socket.socket],
    key: str,
    where: str,
) -> None:
    """From the engine's start to its end."""
    import asyncio
    import tempfile

    from reroll.api import EngineContext
    from reroll.placement.local import LocalPlacement
    from reroll.serving.http.app import Stop, serve
    from reroll.serving.http.served import Served
    from reroll.serving.local.engine import LocalEngine, LocalEngineConfig

    stop = Stop()
    stop.on_signals()
    placement = LocalPlacement()
    placement.on_death = stop.died
    with tempfile.TemporaryDirectory(prefix="reroll-serve-") as logs:
        try:
            # Requests bring the model's EOS tokens along, since one may ask to go on past them.
            config = LocalEngineConfig(**options, eos_token_ids=())
            context = EngineContext("engine", files.directory, 0, placement, Path(logs) / "engine.log")
            starting = asyncio.ensure_future(LocalEngine.start(config, context))
            stopping = asyncio.ensure_future(stop.wanted.wait())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return
            engine = starting.result()
            context_len = (await engine.health())["context_len"]
            served = Served(engine, files, renderer, model, context_len)
            await serve(
                served,
                key,
                sockets,
                stop,
                lambda url: typer.echo(f"serving {model} at {url}; the key is in {where}"),
            )
        finally:
            await placement.close()
