"""Requests that are made out of the server's own OpenAPI: none fails it, and none hangs."""

from __future__ import annotations

import os
import warnings

import pytest

from tests.server.predict.serving.served import Served

EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "8"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_request_out_of_the_schema_fails_the_server_or_hangs(shared: Served) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        from hypothesis import HealthCheck, Phase, given, settings

    schema = schemathesis.openapi.from_url(f"http://{shared.url}/openapi.json")
    statuses = {}
    for operation in schema.get_all_operations():
        checked = operation.ok()

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck),
                  phases=[Phase.generate], database=None, derandomize=True)  # fmt: skip
        @given(case=checked.as_strategy())
        def ask(case: schemathesis.Case) -> None:
            # A server that hangs ends in a timeout.
            reply = case.call(timeout=60)
            assert reply.status_code < 500, reply.text
            statuses.setdefault(case.path, set()).add(reply.status_code)
            case.validate_response(reply, checks=[schemathesis.checks.not_a_server_error])

        ask()
    assert len(statuses) == 10
    assert "/v2/models/{model}/infer" in statuses
