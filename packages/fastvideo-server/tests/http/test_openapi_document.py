"""The OpenAPI document is true: schemathesis makes calls of it, good and bad, and checks every answer against it."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import hypothesis
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

KEY = {
    "name": "ann",
    "sha256": hashlib.sha256(b"secret").hexdigest(),
    "max_queued": 10_000,
    "requests_per_minute": 1_000_000,
}


def operations(url):
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return [operation.ok() for operation in schema.get_all_operations()]


def test_every_operation_answers_as_it_says(serve):
    with serve(keys=[KEY], max_queued=10_000) as server:
        check_all(operations(server.url))


def check_all(found):
    assert len(found) >= 13
    for operation in found:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            strategy = operation.as_strategy(generation_mode=mode)

            @hypothesis.settings(max_examples=5, derandomize=True, deadline=None, database=None,
                                 suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
            @hypothesis.given(case=strategy)
            def check(case):
                # The document does not hold a card's grid, so what fits it may still be refused.
                case.call_and_validate(
                    timeout=30, headers={"Authorization": "Bearer secret"}, excluded_checks=[positive_data_acceptance]
                )

            with suppress(hypothesis.errors.Unsatisfiable):  # nothing can be wrong where there is no parameter
                check()
