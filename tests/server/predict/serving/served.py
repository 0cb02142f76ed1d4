"""A server in this process, requests to it, and what their answers say."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perennial.server.link.listener import Listener
from perennial.server.predict.serving.bounds import Bounds
from perennial.server.predict.serving.serve_command import application
from perennial.server.predict.serving.shelf import Shelf
from tests.server.predict.published import answer

X = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.said["error"])

    @property
    def version(self) -> int:
        return int(self.said["model_version"])

    def is_right(self, x: Any = X) -> bool:
        """Tell whether the outputs are those of the version and the block that the answer names."""
        said = self.said
        (output,) = said["outputs"]
        found = np.reshape(output["data"], output["shape"])
        expected = answer(x, self.version, said["parameters"]["block"])
        return said["parameters"]["version"] == self.version and np.allclose(found, expected)


@dataclass
class Served:
    port: int
    shelf: Shelf

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        """Send one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def infer(self, said: Any, model: str = "rides", **headers: str) -> Reply:
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        return self.ask("POST", f"/v2/models/{model}/infer", body, **headers)

    def wait_for(self, version: int) -> None:
        until(lambda: self.shelf.current is not None and self.shelf.current.version.number == version)


def request(x: Any = X, **changes: Any) -> dict[str, Any]:
    """Return a request for examples (n, 3)."""
    tensor = {"name": "x", "shape": list(np.shape(x)), "datatype": "FP32", "data": x}
    return {"inputs": [tensor], "parameters": {"block": "day"}, **changes}


@contextmanager
def serving(
    folder: Path, name: str = "rides", token: str | None = None, bounds: Bounds | None = None
) -> Iterator[Served]:
    """Serve a run's folder in a thread."""
    app, shelf = application(folder, name, token, bounds or Bounds())
    shelf.look()
    listener = Listener(app, "127.0.0.1", 0)
    listener.start()
    try:
        yield Served(listener.port, shelf)
    finally:
        listener.stop()


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
