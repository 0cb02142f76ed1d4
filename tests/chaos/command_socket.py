"""Commands to a process of a laboratory: JSON lines on a Unix socket, which all network namespaces share."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any


async def obey(path: Path, act: Callable[[dict[str, Any]], dict[str, int]]) -> None:
    """Call ``act`` for each command, and say what it returns."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = act(json.loads(await reader.readline()))
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        await server.serve_forever()


def command(path: Path, **words: Any) -> dict[str, int]:
    """Send one command; return the answer, once it is obeyed."""
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answer:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(json.dumps(words).encode() + b"\n")
        said: dict[str, int] = json.loads(answer.readline())
        return said
