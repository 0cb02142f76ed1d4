"""The one route that must be quick, as a plain ASGI application: a request's body in, the predictor's outputs out.

FastAPI serves the other routes. It would take 0.45 ms for a request of this one, five times what the rest costs here.
"""

from __future__ import annotations

import asyncio
import time

from perennial.common.data.examples import Inputs
from perennial.server.link.asgi import ENDLESS, Answer, Request
from perennial.server.link.fleet_keys import Refusal
from perennial.server.predict.predictor_network import PredictorNetwork, output_names
from perennial.server.predict.serving import tensors
from perennial.server.predict.serving.bounds import Bounds
from perennial.server.predict.serving.gathering import Batches
from perennial.server.predict.serving.measures import Measures
from perennial.server.predict.serving.shelf import Shelf

# Of a body: this long without a byte, or slower than that in all, is too slow.
_SILENT, _BYTES_A_SECOND = 10.0, 2**14
# Bytes of bodies that are read at the same time, in sizes of the largest.
_BODIES = 4
_JSON, _BINARY = (b"content-type", b"application/json"), (b"content-type", b"application/octet-stream")


class Infer:
    """Answers inference requests for the model ``name``."""

    def __init__(self, name: str, shelf: Shelf, measures: Measures, bounds: Bounds) -> None:
        self._name, self._shelf, self._measures, self._bounds = name, shelf, measures, bounds
        self._batches = Batches(measures.call)
        self._requests = self._bytes = 0
        self._start, self._between = f"/v2/models/{name}", "/versions/"

    def close(self) -> None:
        self._batches.close()

    def asked_by(self, path: str) -> bool:
        """Return whether a path is one of this route."""
        return path.startswith("/v2/models/") and path.endswith("/infer")

    async def __call__(self, request: Request) -> Answer:
        """Return the answer to a request. Raises ``Refusal``."""
        begin, status = time.perf_counter(), 500
        try:
            answer = await self._answer(request)
            status = answer.status
        except Refusal as refusal:
            status = refusal.status
            raise
        finally:
            self._measures.request(status, time.perf_counter() - begin)
        return answer

    async def _answer(self, request: Request) -> Answer:
        version = self._version(request.path)
        if request.method != "POST":
            raise Refusal(405, "POST an inference request")
        body = await self._body(request)
        header = request.headers.get(tensors.HEADER.encode())
        asked = tensors.read_request(body, None if header is None else header.decode("latin-1"))
        edition = await self._shelf.edition(version)
        network = edition.pick(asked.at, asked.block)
        x = tensors.examples(asked, network.signature, self._bounds.examples)
        return await self._answer_with(asked, network, x)

    async def _answer_with(self, asked: tensors.Asked, network: PredictorNetwork, x: Inputs) -> Answer:
        found = await self._batches.ask(network, x)
        self._measures.answered(network.block, len(x[0]))
        head = {"model_name": self._name, "model_version": str(network.version),
                "parameters": {"block": network.block, "version": network.version}}  # fmt: skip
        outputs = dict(zip(output_names(len(found)), found, strict=True))
        content, length = tensors.answer(head, asked, outputs)
        if length is None:
            return Answer(200, content, headers=[_JSON])
        return Answer(200, content, headers=[_BINARY, (tensors.HEADER.encode(), str(length).encode())])

    def _version(self, path: str) -> str | None:
        """Return the version that a path names, if it names one; it must name this model."""
        rest = path.removesuffix("/infer")
        if rest == self._start:
            return None
        model, found, version = rest.removeprefix("/v2/models/").partition(self._between)
        if model != self._name or (not found and rest != self._start):
            raise Refusal(404, f"there is no model {model[:80]!r}; it is called {self._name}")
        return version

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request; who sends too much or too slowly is told so, and costs no memory."""
        length, most = request.length, self._bounds.body
        if request.headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refusal(415, "send the body as it is, without content-encoding")
        if length == ENDLESS:
            raise Refusal(411, "say how long the body is (content-length)")
        if length > most:
            raise Refusal(413, f"a body has at most {most} bytes, got {length}; send the examples in several requests")
        if self._requests >= self._bounds.requests or (self._bytes and self._bytes + length > _BODIES * most):
            raise Refusal(429, "too many requests at the same time", retry=1.0)
        self._requests += 1
        self._bytes += length
        try:
            async with asyncio.timeout(_SILENT + length / _BYTES_A_SECOND):
                return await _read(request)
        except TimeoutError:
            raise Refusal(408, "the body comes too slowly") from None
        finally:
            self._requests -= 1
            self._bytes -= length


async def _read(request: Request) -> bytes:
    pieces, more = [], True
    while more:
        message = await request.receive()
        if message["type"] != "http.request":
            raise Refusal(400, "the request was cut off")
        pieces.append(message.get("body", b""))
        request.read += len(pieces[-1])
        more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
