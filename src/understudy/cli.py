"""The command line: parse, call, print."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def host(
    name: Annotated[str, typer.Option()],
    coordinator: Annotated[str, typer.Option()],
    folder: Annotated[Path, typer.Option()] = Path(".understudy/host"),
    listen: Annotated[str, typer.Option()] = "127.0.0.1:0",
    master: Annotated[str, typer.Option()] = "local[*]",
    conf: Annotated[list[str] | None, typer.Option()] = None,
    queue_mb: Annotated[int, typer.Option()] = 256,
) -> None:
    from understudy.runtime.host import HostConfig, serve

    token = os.environ["UNDERSTUDY_TOKEN"]
    settings = dict(c.split("=", 1) for c in conf or [])
    serve(HostConfig(name, folder, coordinator, token, listen, master, settings, queue_mb << 20))


@app.command()
def version() -> None:
    pass


def main() -> None:
    app()
