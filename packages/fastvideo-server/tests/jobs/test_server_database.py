from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest

from fastvideo_core.errors import ResourceError, StateError
from fastvideo_server.jobs.records import JobRecord
from fastvideo_server.jobs.sqlite import SqliteDatabase

RECORD = JobRecord(
    "video_1", "ann", "accepting", 1.5, "tiny", "text_to_video", "x", "8x8", "1", {"seed": 3}, warnings=("w",)
)


@pytest.fixture
def database(tmp_path):
    one = SqliteDatabase(tmp_path / "jobs.sqlite3")
    yield one
    one.close()


def make(database, number, owner="ann", **fields):
    record = replace(RECORD, job_id=f"video_{number}", owner=owner, status="queued", **fields)
    database.insert(record)
    return record


def test_what_is_written_is_read_by_the_next_process(database, tmp_path):
    database.insert(RECORD)
    database.update(replace(RECORD, status="completed"), events="a\nb\n")
    other = SqliteDatabase(tmp_path / "jobs.sqlite3")
    assert other.get("video_1") == replace(RECORD, status="completed")
    assert other.events("video_1") == "a\nb\n"
    assert other.get("video_2") is None
    assert other.events("video_2") == ""
    other.close()


def test_a_key_finds_its_job_and_is_used_once_by_each_owner(database):
    record = make(database, 1, idempotency_key="k")
    make(database, 2, owner="bob", idempotency_key="k")
    make(database, 3)
    make(database, 4)
    assert database.by_key("ann", "k") == record
    assert database.by_key("cid", "k") is None
    with pytest.raises(StateError, match="UNIQUE"):
        make(database, 5, idempotency_key="k")
    assert database.get("video_5") is None


def test_pages(database):
    for number in range(7):
        make(database, number)
    make(database, "other", owner="bob")
    database.insert(replace(RECORD, job_id="video_hidden"))
    ids = lambda records: [record.job_id[-1] for record in records]  # noqa: E731
    first, has_more = database.page("ann", after=None, limit=3, order="desc")
    assert (ids(first), has_more) == (["6", "5", "4"], True)
    second, has_more = database.page("ann", after="video_4", limit=4, order="desc")
    assert (ids(second), has_more) == (["3", "2", "1", "0"], False)
    assert ids(database.page("ann", after="video_4", limit=9, order="asc")[0]) == ["5", "6"]


def test_what_is_deleted_stays_deleted(database):
    record = make(database, 1, idempotency_key="k")
    database.mark_deleted(record)
    database.update(replace(record, status="completed"), events="late")
    found = database.get("video_1")
    assert (found.status, found.prompt, database.events("video_1")) == ("deleted", "", "")
    assert database.deleted() == [found]
    assert database.unfinished() == []
    database.remove("video_1")
    assert database.get("video_1") is None


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text").write_text("no database, and long enough to be read as one" * 50)
    with pytest.raises((StateError, ResourceError)):
        SqliteDatabase(tmp_path / "text")
    with sqlite3.connect(tmp_path / "foreign") as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(StateError, match="another program"):
        SqliteDatabase(tmp_path / "foreign")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ResourceError, match="cannot be used"):
        SqliteDatabase(tmp_path / "missing" / "jobs.sqlite3")
