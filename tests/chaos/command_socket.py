"""Commands to a process of a laboratory: JSON lines on a Unix socket, which all network namespaces share."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any


async def obey(path: Path, act: Callable[[dict[str, Any]], None]) -> None:
    """Call ``act`` for each command, and say when it is done."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        act(json.loads(await reader.readline()))
        writer.write(b"done\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    async with server:
        await server.serve_forever()


def command(path: Path, **words: Any) -> None:
    """Send one command; return when it is obeyed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(json.dumps(words).encode() + b"\n")
        assert connection.recv(16) == b"done\n"
