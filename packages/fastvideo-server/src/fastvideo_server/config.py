"""The `server` section of the deploy config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ByteSize, ConfigDict, Field, StringConstraints, model_validator

__all__ = ["KeyConfig", "ServerConfig"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KeyConfig(_Section):
    """An API key. The file has its digest, so that who reads the file cannot use the key."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="whose it is; logs and jobs have this name"
    )
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the key, in lower-case hexadecimal digits"
    )
    max_queued: int = Field(default=64, ge=1, description="jobs of this key that have not ended")
    max_sessions: int = Field(default=4, ge=0, description="sessions of this key that have not ended")
    requests_per_minute: int = Field(
        default=600, ge=1, description="jobs, images, answers and sessions that this key may ask for"
    )
    weight: float = Field(default=1.0, gt=0, le=1000, description="share of the machine beside other keys")


class ServerConfig(_Section):
    """How the server is reached, what it keeps where, and what it lets in."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port; 0 takes a free one")
    folder: Path = Field(default=Path("fastvideo-server"), description="jobs, their states and their files")
    database: str | None = Field(
        default=None,
        pattern=r"^postgres(ql)?://",
        description="PostgreSQL for the jobs, by URL; else a file in the folder",
    )
    artifacts: str | None = Field(
        default=None, pattern=r"^[a-z][a-z0-9+.-]*://", description="fsspec URL for what jobs make; else in the folder"
    )
    previews: bool = Field(default=True, description="whether jobs show pictures while they run")
    artifact_options: dict[str, Any] = Field(default_factory=dict, description="what fsspec's file system takes")
    keys: tuple[KeyConfig, ...] = Field(default=(), description="API keys; none lets everybody in")
    is_open: bool = Field(default=False, description="let everybody in who reaches a host other than this machine")
    max_body: ByteSize = Field(default=ByteSize(32 << 20), gt=0, description="bytes of a request's body")
    max_image_pixels: int = Field(default=16_000_000, ge=1, description="width times height of an input image")
    max_queued: int = Field(default=256, ge=1, description="jobs of everybody that have not ended")
    max_sessions: int = Field(default=16, ge=0, description="sessions of everybody, where there are no keys")
    session_reconnect_s: float = Field(
        default=60.0, ge=0, description="seconds without a connection after which a session ends"
    )
    session_suspend_s: float | None = Field(
        default=30.0, gt=0, description="seconds after which a session that makes nothing leaves the device"
    )
    max_connections: int = Field(default=1000, ge=1, description="requests at a time; more are answered with 503")
    read_timeout_s: float = Field(default=30.0, gt=0, description="seconds for a request's body to arrive")
    write_timeout_s: float = Field(default=60.0, gt=0, description="seconds for a reader to take a part of an answer")
    heartbeat_s: float = Field(default=15.0, gt=0, description="seconds of silence in an event stream")
    stall_s: float = Field(default=300.0, gt=0, description="seconds of one step after which the server is not ready")
    drain_s: float = Field(default=30.0, ge=0, description="seconds for running jobs to end after SIGTERM")
    min_free: ByteSize = Field(default=ByteSize(256 << 20), description="free bytes of the disk that new jobs need")
    cors_origins: tuple[str, ...] = Field(default=(), description="origins of pages that may call the server")
    tls_certificate: Path | None = Field(default=None, description="PEM file with the certificate chain")
    tls_key: Path | None = Field(default=None, description="PEM file with the certificate's key")
    log_format: Literal["json", "text"] = Field(default="json", description="form of the log's lines")
    traces: Literal["none", "console", "otlp"] = Field(default="none", description="where OpenTelemetry spans go")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [key.name for key in self.keys]
        if len(set(names)) < len(names) or len({key.sha256 for key in self.keys}) < len(names):
            raise ValueError("two keys have one name or one digest")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.host not in _LOOPBACK and not self.keys and not self.is_open:
            raise ValueError(f"host {self.host} is reached from elsewhere: give keys, or is_open: true")
        return self
