"""Spans and log lines: what a request was, and the job that it made."""

from __future__ import annotations

import json
import logging
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fastvideo_server import logs, tracing

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 1}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def ended(spans, *names):
    """Return spans by name, once those that are named have ended; a request's ends after its answer is there."""
    deadline = time.monotonic() + 10
    while not set(names) <= (found := {span.name: span for span in spans.get_finished_spans()}).keys():
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def test_a_job_is_below_the_request_that_made_it(client, spans):
    video_id = client.post("/v1/videos", json=QUICK, headers={"traceparent": PARENT}).json()["id"]
    client.get(f"/v1/videos/{video_id}/events")
    found = ended(spans, "POST /v1/videos", "job")
    made, job = found["POST /v1/videos"], found["job"]
    assert made.context.trace_id == int(PARENT.split("-")[1], 16)
    assert made.parent.span_id == int(PARENT.split("-")[2], 16)
    assert (job.parent.span_id, job.context.trace_id) == (made.context.span_id, made.context.trace_id)
    assert made.attributes["http.response.status_code"] == 200
    assert job.attributes["fastvideo.job_id"] == video_id
    assert job.end_time > job.start_time
    assert job.status.is_unset


def test_a_job_that_fails_says_so_in_its_span(client, spans):
    video_id = client.post("/v1/videos", json={**QUICK, "num_inference_steps": 1000}).json()["id"]
    client.delete(f"/v1/videos/{video_id}")
    job = ended(spans, "job")["job"]
    assert not job.status.is_ok
    assert "deleted by the caller" in job.status.description


def test_spans_can_be_sent(monkeypatch):
    taken = []
    monkeypatch.setattr(trace, "set_tracer_provider", taken.append)
    tracing.configure("none")
    assert taken == []
    for exporter in ("console", "otlp"):
        tracing.configure(exporter)
        taken.pop().shutdown()


def test_a_line_of_the_log_is_one_object_with_the_request(client, capsys):
    logs.configure("json")
    written, deadline = "", time.monotonic() + 30
    try:
        client.get("/v1/models", headers={"X-Request-Id": "abc"})
        while "fastvideo_server.access" not in written:  # it comes once the answer is sent
            assert time.monotonic() < deadline
            written += capsys.readouterr().err
        logging.getLogger("fastvideo_server").info("two\nlines")
    finally:
        for name in ("fastvideo_server", "fastvideo_core", "uvicorn"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [], True
    written += capsys.readouterr().err
    lines = [json.loads(line) for line in written.splitlines()]
    access = next(line for line in lines if line["logger"] == "fastvideo_server.access")
    assert (access["request_id"], access["path"], access["status"], access["key"]) == (
        "abc",
        "/v1/models",
        200,
        "anybody",
    )
    assert access["duration_ms"] > 0
    assert lines[-1]["message"] == "two\nlines"
