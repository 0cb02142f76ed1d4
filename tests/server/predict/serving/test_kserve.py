"""KServe's own REST client gets the right answers from ``flower-predict serve``, in an environment of its own.

Its requirements do not go with those of the development environment, so that it is downloaded into a folder beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perennial.server.predict.publishing import publish
from tests.install.environments import variables
from tests.server.predict.published import answer, learnt
from tests.server.predict.serving.served import X, serving

CLIENT = """
import asyncio, json, sys
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
import numpy as np

async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1))
    found = {"live": await client.is_server_live(url), "ready": await client.is_server_ready(url),
             "model": await client.is_model_ready(url, "rides")}
    for binary in (False, True):
        one = InferInput(name="x", shape=[2, 3], datatype="FP32")
        one.set_data_from_numpy(np.array(json.loads(sys.argv[2]), np.float32), binary_data=binary)
        request = InferRequest(model_name="rides", infer_inputs=[one], parameters={"block": "night"})
        reply = await client.infer(url, request, model_name="rides")
        found[str(binary)] = [reply.parameters, reply.outputs[0].as_numpy().tolist()]
    print(json.dumps(found))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kserve_s_client_gets_the_right_answers_as_it_is(tmp_path: Path) -> None:
    python = tmp_path / "kserve" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "kserve"], check=True)
    # Flower brings uv.
    subprocess.run([sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "kserve"], check=True)
    run = tmp_path / "rides"
    for number in (1, 2):
        publish(run, learnt(number))
    with serving(run) as served:
        done = subprocess.run(
            [python, "-c", CLIENT, f"http://{served.url}", json.dumps(X)],
            env=variables(), capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [found.pop(name) for name in ("live", "ready", "model")] == [True] * 3
    for parameters, outputs in found.values():
        # KServe's client leaves the version out that the protocol has a key for.
        assert parameters == {"block": "night", "version": 2}
        assert np.allclose(outputs, answer(X, 2, "night"))
