"""The routes that are asked now and then, by FastAPI: health, metadata, versions, measures, the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from perennial.server.link.fleet_keys import Refusal
from perennial.server.predict.serving.measures import Measures
from perennial.server.predict.serving.shelf import Edition, Shelf
from perennial.server.predict.serving.tensors import DATATYPES, DTYPES

_TITLE = "Perennial"
_EXTENSIONS = ["binary_tensor_data"]


def cold_routes(name: str, shelf: Shelf, measures: Measures, version: str) -> FastAPI:
    """Return the routes of a server that serves the model ``name``. version: of Perennial."""
    # The page of FastAPI's own loads scripts from elsewhere.
    app = FastAPI(title=_TITLE, version=version, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _no_route)

    def known(model: str) -> None:
        if model != name:
            raise Refusal(404, f"there is no model {model[:80]!r}; it is called {name}")

    async def ready(edition: Callable[[], Any]) -> JSONResponse:
        found = await edition()
        return JSONResponse({"name": name, "ready": True, "version": str(found.version.number)})

    @app.get("/v2/health/live", tags=["health"])
    async def is_live() -> dict[str, bool]:
        """Tell whether the server answers."""
        return {"live": True}

    @app.get("/v2/health/ready", tags=["health"], responses=_NOT_READY)
    async def is_ready() -> JSONResponse:
        """Tell whether there is a version to predict with."""
        return await ready(lambda: shelf.edition(None))

    @app.get("/v2", tags=["metadata"])
    async def server() -> dict[str, Any]:
        """Return what the server is, and which extensions of the protocol it speaks."""
        return {"name": _TITLE.lower(), "version": version, "extensions": _EXTENSIONS}

    @app.get("/v2/models/{model}", tags=["metadata"], responses=_NOT_FOUND)
    async def metadata(model: str) -> dict[str, Any]:
        """Return inputs, outputs, versions and blocks of the newest version."""
        known(model)
        return _metadata(name, await shelf.edition(None), shelf.versions())

    @app.get("/v2/models/{model}/versions/{version}", tags=["metadata"], responses=_NOT_FOUND)
    async def metadata_of(model: str, version: str) -> dict[str, Any]:
        """Return the same of another version."""
        known(model)
        return _metadata(name, await shelf.edition(version), shelf.versions())

    @app.get("/v2/models/{model}/ready", tags=["health"], responses=_NOT_FOUND)
    async def is_model_ready(model: str) -> JSONResponse:
        """Tell whether the model can be asked."""
        known(model)
        return await ready(lambda: shelf.edition(None))

    @app.get("/v2/models/{model}/versions/{version}/ready", tags=["health"], responses=_NOT_FOUND)
    async def is_version_ready(model: str, version: str) -> JSONResponse:
        """Tell whether a version can be asked."""
        known(model)
        return await ready(lambda: shelf.edition(version))

    @app.get("/metrics", tags=["metrics"], response_class=Response)
    async def page() -> Response:
        """Return the measures for Prometheus."""
        content, media_type = measures.text()
        return Response(content, media_type=media_type)

    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    return app


async def _refused(_request: Any, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Refusal)
    return JSONResponse({"error": str(refusal)}, refusal.status)


async def _no_route(_request: Any, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": f"{error.detail}; /openapi.json has the routes"}, error.status_code, error.headers)


def _metadata(name: str, edition: Edition, versions: list[str]) -> dict[str, Any]:
    version, network = edition.version, edition.any
    signature = network.signature if network else None
    inputs = [
        {"name": one, "datatype": DATATYPES[kind.dtypes[-1]], "shape": [-1, *kind.shape]}
        for one, kind in zip(network.names if network else (), signature.x if signature else (), strict=True)
    ]
    outputs = [{"name": one, "datatype": kind, "shape": [-1, *shape]} for one, kind, shape in edition.outputs]
    said = version.manifest
    about = {"version": version.number, "run": said["run"], "published": said["published"], "blocks": version.blocks,
             "trained": said["trained"], "score": said["score"], "scores": said["scores"],
             "schedule": said["schedule"]}  # fmt: skip
    return {"name": name, "versions": versions, "platform": "perennial", "inputs": inputs, "outputs": outputs,
            "parameters": about}  # fmt: skip


# --- The page of all routes -------------------------------------------------------------------------------------------

_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _says(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ERROR}}}


_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: _says("No such model or version."), 400: _says("No version yet.")}
_NOT_READY: dict[int | str, dict[str, Any]] = {400: _says("No version yet.")}
_NUMBERS = {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "array"}]}}
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "datatype": {"type": "string", "enum": list(DTYPES)},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer", "minimum": 0}}},
        "data": _NUMBERS,
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string", "maxLength": 200},
        "parameters": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "description": "a time with a zone, which says the block; default: now"},
                "block": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "the block instead"},
                "binary_data_output": {"type": "boolean"},
            },
        },
        "inputs": {"type": "array", "minItems": 1, "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string"},
            "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}}}}},
    },
}  # fmt: skip
_ANSWER = {
    "type": "object",
    "required": ["model_name", "model_version", "parameters", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "parameters": {
            "type": "object",
            "required": ["block", "version"],
            "properties": {"block": {"type": "string"}, "version": {"type": "integer"}},
        },
        "outputs": {"type": "array", "items": _TENSOR},
    },
}
_REFUSALS: Mapping[str, str] = {
    "400": "The request is no inference request for this model.",
    "404": "No such model or version.",
    "405": "POST it.",
    "408": "The body comes too slowly.",
    "411": "Say how long the body is.",
    "413": "The body is too large.",
    "415": "The body is encoded.",
    "429": "Too many requests at the same time.",
}


_INFER = {
    "/v2/models/{model}/infer": ["model"],
    "/v2/models/{model}/versions/{version}/infer": ["model", "version"],
}
_SUMMARY = "Predict by the block of now, of a time, or by name."
_TOKEN = "A server that is reached from elsewhere wants `authorization: Bearer TOKEN` for all routes but health."


def _schema(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's schema with the route of ``infer.py`` in it."""
    schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
    operation = {
        "tags": ["infer"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _REQUEST}}},
        "responses": {
            "200": {"description": "The outputs.", "content": {"application/json": {"schema": _ANSWER}}},
            **{status: _says(text) for status, text in _REFUSALS.items()},
        },
    }
    for path, names in _INFER.items():
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        about = {"operationId": f"infer_{'_'.join(names)}", "parameters": parameters, "summary": _SUMMARY}
        schema["paths"][path] = {"post": {**operation, **about}}
    schema["info"]["description"] = _TOKEN
    return schema
