"""Jobs in PostgreSQL and artifacts in S3: a real database, and moto's server."""

from __future__ import annotations

import io
import os
import time
import uuid
from dataclasses import replace

import pytest

from fastvideo_core.errors import ResourceError, StateError
from fastvideo_server.jobs.records import JobRecord

URL = os.environ.get("FASTVIDEO_TEST_POSTGRES")
needs_postgres = pytest.mark.skipif(
    URL is None, reason="needs PostgreSQL: the variable FASTVIDEO_TEST_POSTGRES is not set (see .ci/with-postgres)"
)
RECORD = JobRecord(
    "video_1", "ann", "accepting", 1.5, "tiny", "text_to_video", "x", "8x8", "1", {"seed": 3}, warnings=("w",)
)
QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 5, "seed": 3}


@pytest.fixture
def url():
    """A database of its own, dropped afterwards."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(URL, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield f"{URL.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(url):
    from fastvideo_server.jobs.postgres import PostgresDatabase

    one = PostgresDatabase(url)
    yield one
    one.close()


@pytest.fixture(scope="module")
def s3():
    """A bucket of moto's server, as fsspec's options reach it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    options = {
        "key": "x",
        "secret": "y",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"},
    }
    import s3fs

    s3fs.S3FileSystem(**options).mkdir("videos")
    yield options
    server.stop()


def make(database, number, owner="ann", **fields):
    record = replace(RECORD, job_id=f"video_{number}", owner=owner, status="queued", **fields)
    database.insert(record)
    return record


def wait(client, video_id):
    deadline = time.monotonic() + 60
    while (video := client.get(f"/v1/videos/{video_id}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, video
        time.sleep(0.02)
    return video


@needs_postgres
def test_what_is_written_is_read_by_the_next_process(url):
    from fastvideo_server.jobs.postgres import PostgresDatabase

    first = PostgresDatabase(url)
    first.insert(RECORD)
    first.update(replace(RECORD, status="completed"), events="a\nb\n")
    first.update(replace(RECORD, status="completed"))
    first.close()
    other = PostgresDatabase(url)
    assert other.get("video_1") == replace(RECORD, status="completed")
    assert other.events("video_1") == "a\nb\n"
    assert (other.get("video_2"), other.events("video_2")) == (None, "")
    other.check()
    other.close()


@needs_postgres
def test_keys_pages_and_deletions_are_sqlites(database):
    keyed = make(database, 0, idempotency_key="k")
    make(database, "other", owner="bob", idempotency_key="k")
    for number in range(1, 5):
        make(database, number)
    assert database.by_key("ann", "k") == keyed
    with pytest.raises(StateError, match="jobs_by_key"):
        make(database, 9, idempotency_key="k")
    assert database.get("video_9") is None  # and the connection still works
    found, has_more = database.page("ann", after=None, limit=3, order="desc")
    assert ([one.job_id for one in found], has_more) == (["video_4", "video_3", "video_2"], True)
    found, has_more = database.page("ann", after="video_2", limit=3, order="asc")
    assert ([one.job_id for one in found], has_more) == (["video_3", "video_4"], False)
    database.mark_deleted(keyed)
    database.update(replace(keyed, status="completed"), events="late")
    assert [one.job_id for one in database.deleted()] == ["video_0"]
    assert database.events("video_0") == ""
    database.remove("video_0")
    assert database.get("video_0") is None
    assert len(database.unfinished()) == 5


@needs_postgres
def test_a_broken_connection_is_opened_again(database, url):
    import psycopg

    make(database, 1)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid != pg_backend_pid()"
        )
    assert database.get("video_1").job_id == "video_1"


@needs_postgres
def test_a_second_server_is_refused(database, url, monkeypatch):
    from fastvideo_server.jobs import postgres

    monkeypatch.setattr(postgres, "_LOCK_S", 0.2)
    with pytest.raises(ResourceError, match="another server"):
        postgres.PostgresDatabase(url)


def test_a_database_that_is_not_there_is_told_without_its_password():
    pytest.importorskip("psycopg")
    from fastvideo_server.jobs.postgres import PostgresDatabase

    with pytest.raises(ResourceError) as refused:
        PostgresDatabase("postgresql://ann:secret@127.0.0.1:1/none")
    assert "127.0.0.1/none" in str(refused.value)
    assert "secret" not in str(refused.value)


@needs_postgres
def test_jobs_and_files_outlive_the_server_and_nothing_is_in_its_folder(tiny_card, tmp_path, running, url, s3):
    stores = {"database": url, "artifacts": "s3://videos/one", "artifact_options": s3}
    with running(tiny_card, tmp_path / "server", **stores) as server, server.client() as client:
        headers = {"Idempotency-Key": "k"}
        video = client.post("/v1/videos", json=QUICK, headers=headers).json()
        assert wait(client, video["id"])["status"] == "completed"
        content = client.get(f"/v1/videos/{video['id']}/content")
        assert content.content[4:8] == b"ftyp"
        assert client.get("/health/ready").json()["status"] == "ok"
    assert not (tmp_path / "server/artifacts").exists()
    assert not (tmp_path / "server/jobs.sqlite3").exists()
    assert list((tmp_path / "server/uploads").iterdir()) == []
    with running(tiny_card, tmp_path / "server", **stores) as server, server.client() as client:
        assert client.post("/v1/videos", json=QUICK, headers=headers).json()["id"] == video["id"]
        again = client.get(f"/v1/videos/{video['id']}/content", headers={"Range": "bytes=4-7"})
        assert (again.status_code, again.content) == (206, b"ftyp")
        assert again.headers["ETag"] == content.headers["ETag"]
        not_modified = client.get(f"/v1/videos/{video['id']}/content", headers={"If-None-Match": again.headers["ETag"]})
        assert not_modified.status_code == 304
        for variant in ("thumbnail", "spritesheet"):
            assert len(client.get(f"/v1/videos/{video['id']}/content?variant={variant}").content) > 100
        assert client.delete(f"/v1/videos/{video['id']}").status_code == 200
        assert client.get(f"/v1/videos/{video['id']}/content").status_code == 404
    import s3fs

    assert s3fs.S3FileSystem(skip_instance_cache=True, **s3).find("videos/one") == []


def test_a_result_counts_once_its_manifest_is_there(s3, tmp_path, tiny_card):
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_server.jobs.remote import RemoteArtifacts

    store = RemoteArtifacts("s3://videos/two", s3, tmp_path / "uploads")
    with Engine.open(tiny_card) as engine:
        video = engine.generate("x", num_inference_steps=1, num_frames=1).video
    assert store.manifest("video_1") is None
    store.save("video_1", video, {"record": {"a": 1}})
    assert store.manifest("video_1") == {"record": {"a": 1}}
    file = store.file("video_1", "video")
    with file.open() as opened:
        data = opened.read()
    assert len(data) == file.num_bytes
    assert io.BytesIO(data).read(8)[4:] == b"ftyp"
    assert store.problem() is None
    store.remove("video_1")
    store.remove("video_1")
    assert (store.manifest("video_1"), store.file("video_1", "video")) == (None, None)
    with pytest.raises(StateError):
        store.manifest("../secrets")


def test_a_store_that_is_not_there_is_told(s3, tmp_path):
    from fastvideo_server.jobs.remote import RemoteArtifacts

    with pytest.raises(ResourceError, match="s3://nowhere/x"):
        RemoteArtifacts("s3://nowhere/x", s3, tmp_path / "uploads")
    with pytest.raises(ResourceError, match="nosuchthing"):
        RemoteArtifacts("nosuchthing://x", {}, tmp_path / "uploads")


def test_any_store_of_fsspec_will_do(tiny_card, tmp_path, running):
    stores = {"artifacts": "memory://videos", "min_free": 0}
    with running(tiny_card, tmp_path / "server", **stores) as server, server.client() as client:
        video = client.post("/v1/videos", json=QUICK).json()
        assert wait(client, video["id"])["status"] == "completed"
        assert client.get(f"/v1/videos/{video['id']}/content").content[4:8] == b"ftyp"
        assert client.get("/health/ready").json()["status"] == "ok"
