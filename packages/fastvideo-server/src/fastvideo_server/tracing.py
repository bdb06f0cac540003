"""OpenTelemetry spans: one for a request over HTTP, and one for the job that it makes, which lasts longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from fastvideo_core.errors import ResourceError, describe_failure
from fastvideo_server.jobs.records import JobRecord

__all__ = ["begin_job", "configure", "end_span", "request_span"]

_NAME = "fastvideo_server"


def configure(exporter: str) -> None:
    """Let spans go somewhere, unless somebody has arranged that already.

    Args:
        exporter: `none`, `console` for stderr, or `otlp` for what the OTEL_ variables name.

    Raises:
        ResourceError: A package for it is not installed.
    """
    if exporter == "none":
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ResourceError("server.traces needs opentelemetry-sdk: pip install 'fastvideo-server[traces]'") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "fastvideo-server"}))
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    trace.set_tracer_provider(provider)


def _exporter(name: str) -> Any:
    import sys

    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ResourceError(
            "server.traces: otlp needs opentelemetry-exporter-otlp-proto-http: pip install 'fastvideo-server[traces]'"
        ) from error
    return OTLPSpanExporter()


@contextmanager
def request_span(method: str, path: str, headers: Mapping[str, str], request_id: str) -> Iterator[Span]:
    """Open the span of a request, below the caller's where its headers name one."""
    tracer = trace.get_tracer(_NAME)
    attributes = {"http.request.method": method, "url.path": path, "fastvideo.request_id": request_id}
    context = propagate.extract(headers)
    with tracer.start_as_current_span(
        method, context=context, kind=SpanKind.SERVER, attributes=attributes, record_exception=False
    ) as span:
        yield span


def begin_job(record: JobRecord) -> Span:
    """Begin the span of a job, below the request that made it."""
    attributes = {"fastvideo.job_id": record.job_id, "fastvideo.card": record.model, "fastvideo.task": record.task}
    return trace.get_tracer(_NAME).start_span("job", attributes=attributes)


def end_span(span: Span | None, error: Exception | None) -> None:
    """End a job's span, if it has one, with what came of it."""
    if span is None:
        return
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, describe_failure(error)))
    span.end()
