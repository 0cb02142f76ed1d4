"""A FastAPI and torch endpoint as their tutorials have it: the body as a model, the tensor out of its numbers.

``python -m benchmarks.sides.bare_endpoint PORT`` serves the network of benchmarks/serving.py, which starts it.
``--threads``: the route is ``def``, which FastAPI runs in a thread, instead of ``async def``.
"""

from __future__ import annotations

import sys

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from perennial.common.task import models


class InputTensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class InferenceRequest(BaseModel):
    inputs: list[InputTensor]


app = FastAPI()
torch.set_num_threads(1)
model = models.build("cnn", (3, 32, 32), 10).eval()


def predict(request: InferenceRequest) -> dict[str, object]:
    tensor = request.inputs[0]
    with torch.no_grad():
        output = model(torch.tensor(tensor.data).reshape(tensor.shape))
    return {
        "model_name": "cnn",
        "outputs": [{"name": "output", "shape": list(output.shape), "datatype": "FP32",
                     "data": output.flatten().tolist()}],
    }  # fmt: skip


if "--threads" in sys.argv:

    @app.post("/v2/models/cnn/infer")
    def infer_in_a_thread(request: InferenceRequest) -> dict[str, object]:
        return predict(request)

else:

    @app.post("/v2/models/cnn/infer")
    async def infer(request: InferenceRequest) -> dict[str, object]:
        return predict(request)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical", access_log=False)
