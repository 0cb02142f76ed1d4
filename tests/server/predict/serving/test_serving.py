"""Served predictors: the protocol, by clients as they are and by hand; the block of the hour; and everything bad."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from perennial.server.predict import loading
from perennial.server.predict.publishing import ModelSpec, publish
from perennial.server.predict.serving import infer, shelf
from perennial.server.predict.serving.bounds import Bounds
from perennial.server.predict.versions import path_of
from tests.server.predict.published import BY_ROUNDS, answer, learnt, publication
from tests.server.predict.serving.served import Served, X, request, serving, until

BERLIN = ZoneInfo("Europe/Berlin")
Serve = Callable[..., Served]


def tensor(x: Any, *, binary: bool) -> triton.InferInput:
    found = triton.InferInput("x", list(np.shape(x)), "FP32")
    found.set_data_from_numpy(np.asarray(x, np.float32), binary_data=binary)
    return found


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("outputs", [None, True, False])
def test_triton_s_client_gets_the_right_answers_as_it_is(shared: Served, binary_in: bool, outputs: bool | None) -> None:
    with triton.InferenceServerClient(shared.url) as client:
        wanted = None if outputs is None else [triton.InferRequestedOutput("output", binary_data=outputs)]
        for version, block in (("", "night"), ("1", "day")):
            found = client.infer(
                "rides", [tensor(X, binary=binary_in)], model_version=version, outputs=wanted, request_id="7",
                parameters={"block": block},
            )  # fmt: skip
            said = found.get_response()
            number = int(version or 2)
            assert (said["model_name"], said["model_version"], said["id"]) == ("rides", str(number), "7")
            assert said["parameters"] == {"block": block, "version": number}
            assert np.allclose(found.as_numpy("output"), answer(X, number, block))


def test_triton_s_client_finds_health_metadata_and_versions(shared: Served) -> None:
    with triton.InferenceServerClient(shared.url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("rides")
        assert client.is_model_ready("rides", "1")
        assert not client.is_model_ready("rides", "9")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        said = client.get_model_metadata("rides")
        assert said["versions"] == ["1", "2"]
        assert said["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        assert said["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 4]}]
        assert said["parameters"]["blocks"] == ["day", "night"]
        assert client.get_model_metadata("rides", "1")["parameters"]["version"] == 1
        with pytest.raises(InferenceServerException, match="there is no block 'dusk'; the blocks are: day, night"):
            client.infer("rides", [tensor(X, binary=True)], parameters={"block": "dusk"})


def test_the_block_is_the_one_of_now_in_the_schedule_s_zone(shared: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for hour, block in ((3, "night"), (13, "day")):
        now = datetime(2026, 1, 5, hour, tzinfo=BERLIN)
        monkeypatch.setattr(loading, "utc_now", lambda now=now: now)
        reply = shared.infer(request(parameters={}))
        assert reply.said["parameters"]["block"] == block
        assert reply.is_right()


@pytest.mark.parametrize(
    ("parameters", "block"),
    [({"at": "2026-01-05T12:00+01:00"}, "day"), ({"at": "2026-01-05T12:00-08:00"}, "night"),
     ({"at": "2026-01-05T08:00:00Z"}, "day"), ({"block": "night"}, "night"), ({"block": 0}, "day"),
     ({"block": "1"}, "night"), ({"block": "day", "unknown": 5}, "day")],
)  # fmt: skip
def test_a_time_or_a_block_is_asked_for_in_parameters(shared: Served, parameters: Any, block: str) -> None:
    reply = shared.infer(request(parameters=parameters))
    assert reply.said["parameters"]["block"] == block
    assert reply.is_right()


def test_a_run_by_rounds_wants_a_block(tmp_path: Path, serve: Serve) -> None:
    publish(tmp_path, learnt(1, schedule=BY_ROUNDS))
    served = serve(tmp_path)
    assert served.infer(request()).is_right()
    reply = served.infer(request(parameters={}))
    assert (reply.status, reply.error) == (
        400, "the run counts rounds and has no clock; give block, one of: day, night"
    )  # fmt: skip


def test_data_may_be_nested_or_flat(shared: Served) -> None:
    flat = request()
    flat["inputs"][0]["data"] = [1, 2, 3, 4, 5, 6]
    for said in (flat, request()):
        assert shared.infer(said).is_right()


def bad(**changes: Any) -> dict[str, Any]:
    found = request()
    found["inputs"][0].update(changes)
    return found


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", "the body is no JSON"),
        (b"{", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b"\xff", "the body is no JSON"),
        ([], "the body must be a JSON object"),
        ({}, "inputs must be a list with each of the model's tensors"),
        ({"inputs": [5]}, "an input must be a JSON object, got 5"),
        (request(id=5), "id must be a text"),
        (request(parameters=[]), "parameters must be a JSON object"),
        (request(parameters={"at": "2026-01-05T12:00"}), "at must be a time with a zone"),
        (request(parameters={"at": "noon"}), "at must be a time with a zone"),
        (request(parameters={"at": 5}), "at must be a time with a zone"),
        (request(parameters={"at": "0001-01-01T00:00+14:00"}), "at must be a time with a zone"),
        (request(parameters={"at": "2026-01-05T12:00Z", "block": "day"}), "give at or block, not both"),
        (request(parameters={"block": "dusk"}), "there is no block 'dusk'; the blocks are: day, night"),
        (request(parameters={"block": 7}), "there is no block 7"),
        (request(parameters={"block": ["day"]}), "there is no block"),
        (request(outputs=[{"name": "logits"}]), "there is no output 'logits'; the outputs are: output"),
        (bad(name="z"), "inputs must be x, got 'z'"),
        (bad(datatype="FP64"), "input x must be FP32, got 'FP64'"),
        (bad(datatype=["FP32"]), "input x must be FP32"),
        (bad(shape=[2, 4]), "shape of input x must be [n, 3], got [2, 4]"),
        (bad(shape=[6]), "shape of input x must be [n, 3], got [6]"),
        (bad(shape=None), "shape of input x must be [n, 3], got None"),
        (bad(shape=[-2, 3]), "shape of input x must be [n, 3]"),
        (bad(shape=[0, 3], data=[]), "a request has from 1 to 4096 examples, got 0"),
        (bad(shape=[2**30, 3]), "a request has from 1 to 4096 examples"),
        (bad(data=[[1.0, 2.0, 3.0]]), "input x needs 6 numbers by its shape, got 3"),
        (bad(data=[]), "input x needs 6 numbers by its shape, got 0"),
        (bad(data=[[1.0], [2.0, 3.0]]), "data of input x must be FP32 and nothing else"),
        (bad(data=["1", "2", "3", "4", "5", "6"]), "data of input x must be FP32 and nothing else"),
        (bad(data=[1, 2, 3, 4, 5, None]), "data of input x must be FP32 and nothing else"),
        (bad(data=[1, 2, 3, 4, 5, 1e300]), "input x has values that are not finite"),
        (bad(data=5), "input x needs data, a list of numbers"),
        (bad(parameters={"binary_data_size": 24}), "binary_data_size of input x must be bytes behind the JSON"),
        (bad(parameters={"binary_data_size": "24"}), "binary_data_size of input x must be bytes behind the JSON"),
    ],
)
def test_a_bad_request_is_one_clear_error(shared: Served, said: Any, error: str) -> None:
    reply = shared.infer(said)
    assert reply.status == 400
    assert error in reply.error
    assert "\n" not in reply.error


def binary(header: dict[str, Any], tail: bytes) -> tuple[bytes, str]:
    text = json.dumps(header).encode()
    return text + tail, str(len(text))


@pytest.mark.parametrize(
    ("size", "tail", "error"),
    [(24, bytes(23), "must be bytes behind the JSON, which has 23, got 24"), (20, bytes(24), "4 bytes behind the JSON"),
     (20, bytes(20), "input x needs 24 bytes by its shape, got 20"), (24, b"\x00\x00\xc0\x7f" * 6, "not finite")],
)  # fmt: skip
def test_bad_bytes_behind_the_json_are_one_clear_error(shared: Served, size: int, tail: bytes, error: str) -> None:
    said = bad(parameters={"binary_data_size": size})
    del said["inputs"][0]["data"]
    body, length = binary(said, tail)
    reply = shared.infer(body, inference_header_content_length=length)
    assert reply.status == 400
    assert error in reply.error


@pytest.mark.parametrize("length", ["-1", "x", "99999", "9" * 40])
def test_a_header_length_that_cannot_be_is_refused(shared: Served, length: str) -> None:
    reply = shared.infer(request(), inference_header_content_length=length)
    assert (reply.status, "must be the bytes of the JSON" in reply.error) == (400, True)


def test_another_model_route_method_version_or_encoding_is_refused(shared: Served) -> None:
    assert (shared.infer(request(), "other").status, shared.infer(request(), "rides/versions/9").status) == (404, 404)
    assert "the versions are: 1, 2" in shared.infer(request(), "rides/versions/9").error
    assert shared.infer(request(), "rides/versions/../../x").status == 404
    assert shared.ask("GET", "/v2/models/rides/infer").status == 405
    assert shared.ask("DELETE", "/v2").status == 405
    assert "has the routes" in shared.ask("GET", "/").error
    assert shared.infer(request(), content_encoding="gzip").status == 415


def test_too_much_is_refused_and_costs_no_memory(run: Path, serve: Serve) -> None:
    served = serve(run, bounds=Bounds(examples=1, body=1000, requests=1))
    assert served.infer(request()).error == "a request has from 1 to 1 examples, got 2; send several"
    reply = served.infer(b"x" * 20_000_000)
    assert (reply.status, "at most 1000 bytes, got 20000000" in reply.error) == (413, True)
    # A gigabyte is announced, and never sent.
    with socket.create_connection(("127.0.0.1", served.port), 30) as sock:
        sock.sendall(b"POST /v2/models/rides/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\nhello")
        assert b"413" in sock.recv(1000)
    with socket.create_connection(("127.0.0.1", served.port), 30) as sock:
        sock.sendall(b"POST /v2/models/rides/infer HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert b"411" in sock.recv(1000)


def test_a_slow_client_is_told_so_and_keeps_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infer, "_SILENT", 0.5)
    with socket.create_connection(("127.0.0.1", served.port), 30) as sock:
        sock.sendall(b"POST /v2/models/rides/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert served.infer(request()).is_right()
        assert b"408" in sock.recv(1000)


def test_so_many_requests_are_read_at_the_same_time_and_others_come_again(run: Path, serve: Serve) -> None:
    served = serve(run, bounds=Bounds(requests=1))
    with socket.create_connection(("127.0.0.1", served.port), 30) as sock:
        sock.sendall(b"POST /v2/models/rides/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: served.infer(request()).status == 429)
        assert served.infer(request()).headers["retry-after"] == "1"
    until(lambda: served.infer(request()).status == 200)


def test_a_token_is_wanted_for_everything_but_health(run: Path, serve: Serve) -> None:
    served = serve(run, token="a-long-enough-token")
    assert served.ask("GET", "/v2/health/ready").status == 200
    for headers in ({}, {"authorization": "Bearer another"}, {"authorization": "Basic a-long-enough-token"}):
        for path in ("/v2", "/metrics", "/openapi.json", "/v2/models/rides"):
            assert served.ask("GET", path, **headers).status == 401
        assert served.infer(request(), **headers).status == 401
    bearer = {"authorization": "Bearer a-long-enough-token"}
    assert served.ask("GET", "/metrics", **bearer).status == 200
    assert served.infer(request(), **bearer).is_right()


def test_metrics_are_those_of_what_was_asked(served: Served) -> None:
    served.infer(request())
    served.infer(b"{")
    lines = served.ask("GET", "/metrics").body.decode().splitlines()
    for line in ('perennial_serve_requests_total{status="200"} 1.0', 'perennial_serve_requests_total{status="400"} 1.0',
                 'perennial_serve_examples_total{block="day"} 2.0', "perennial_serve_version 2.0"):  # fmt: skip
        assert line in lines


# --- Versions ---------------------------------------------------------------------------------------------------------


def test_a_new_version_is_taken_up_and_a_damaged_one_is_not(run: Path, served: Served) -> None:
    publish(run, learnt(3))
    served.wait_for(3)
    assert served.infer(request()).version == 3
    publish(run, learnt(4))
    path = path_of(run, 4) / "block-0.safetensors"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + b"?")
    # Perhaps it was taken up before it was damaged; the next one is damaged before it has its name.
    publish(run.parent / "aside", learnt(5, run="5f0c"))
    (path_of(run.parent / "aside", 1) / "block-1.safetensors").write_bytes(b"half")
    refused = served.shelf.refused
    path_of(run.parent / "aside", 1).rename(path_of(run, 9))
    until(lambda: served.shelf.refused > refused)
    reply = served.infer(request())
    assert reply.is_right()
    assert reply.version in (3, 4)
    assert served.infer(request(), "rides/versions/9").status == 404


def test_a_version_of_another_model_is_not_taken_up(run: Path, served: Served) -> None:
    publish(run, publication(3))
    publish(run, publication(4, model=ModelSpec("linear", (3,), 2)))
    until(lambda: served.shelf.refused == 2)
    assert served.infer(request()).version == 2


def test_a_run_without_versions_is_waited_for(tmp_path: Path, serve: Serve) -> None:
    served = serve(tmp_path)
    assert served.ask("GET", "/v2/health/live").status == 200
    assert served.ask("GET", "/v2/health/ready").status == 400
    assert served.ask("GET", "/v2/models/rides").error == "no version is published yet; ask again later"
    assert served.infer(request()).error == "no version is published yet; ask again later"
    publish(tmp_path, learnt(1))
    served.wait_for(1)
    assert served.infer(request()).is_right()


def test_a_block_that_is_not_trained_yet_is_told(tmp_path: Path, serve: Serve) -> None:
    whole = learnt(1)
    publish(tmp_path, learnt(1, predictors=(whole.predictors[0], None), folded=(1, 0)))
    served = serve(tmp_path)
    assert served.infer(request()).is_right()
    reply = served.infer(request(parameters={"block": "night"}))
    assert (reply.status, reply.error) == (400, "block night is not trained yet in version 1; trained are: day")


def test_a_run_that_begins_anew_is_taken_up_though_its_numbers_are_lower(run: Path, served: Served) -> None:
    for number in (2, 1):
        path_of(run, number).rename(run.parent / f"gone-{number}")
    publish(run, learnt(1, run="another"))
    served.wait_for(1)
    assert served.infer(request()).is_right()


def test_requests_are_answered_by_one_version_each_while_new_ones_are_published(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.server.predict.serving.storm import storm

    monkeypatch.setattr(shelf, "_SECONDS", 0.01)
    seen = storm(run, requests=400, versions=20, connections=8)
    assert len(seen) >= 2


def test_a_network_that_fails_on_an_example_spoils_no_other_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perennial.server.predict.predictor_network import PredictorNetwork

    publish(tmp_path, learnt(1))
    with serving(tmp_path) as served:
        right = PredictorNetwork.outputs

        def outputs(self: PredictorNetwork, x: Any) -> Any:
            if (x[0] == 99).any():
                raise IndexError("99 is out of range")
            return right(self, x)

        monkeypatch.setattr(PredictorNetwork, "outputs", outputs)
        replies = {}
        # Together, so that some share a call of the network.
        threads = [
            threading.Thread(target=lambda n=n: replies.update({n: served.infer(request([[n, 0.0, 0.0]]))}))
            for n in (*range(20), 99)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert replies[99].status == 400
        assert "the network does not take these examples: IndexError: 99 is out of range" in replies[99].error
        assert all(reply.is_right([[n, 0.0, 0.0]]) for n, reply in replies.items() if n != 99)
