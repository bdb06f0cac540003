from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from fastvideo_core.errors import CheckpointError, DownloadError, ResourceError, UnsafeFormatError
from fastvideo_core.runtime.weights import disk, download, hub
from fastvideo_core.runtime.weights.files import list_weight_files
from fastvideo_core.runtime.weights.hub import HubAccess, fetch_configs, fetch_snapshot
from fastvideo_testing.hub import HubServer

REPO = "some-lab/tiny-video"
PARTS = ("transformer", "tokenizer")


@pytest.fixture
def server():
    with HubServer() as running:
        yield running
    huggingface_hub.close_session()


@pytest.fixture
def checkpoint(tmp_path):
    """A repository with everything that people put into one: both formats, a variant, documents, a tokenizer."""
    folder = tmp_path / "repo"
    (folder / "transformer").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    (folder / "model_index.json").write_text("{}")
    (folder / "README.md").write_text("about")
    tensors = {"weight": torch.arange(40_000, dtype=torch.float32)}
    save_file(tensors, folder / "transformer/diffusion_pytorch_model.safetensors")
    save_file(tensors, folder / "transformer/diffusion_pytorch_model.fp16.safetensors")
    (folder / "transformer/diffusion_pytorch_model.bin").write_bytes(b"\x80\x02pickle")
    (folder / "transformer/config.json").write_text('{"a": 1}')
    (folder / "tokenizer/spiece.model").write_bytes(b"pieces" * 100)
    (folder / "tokenizer/tokenizer.json").write_text("{}")
    (folder / "vae").mkdir()
    save_file(tensors, folder / "vae/diffusion_pytorch_model.safetensors")
    return folder


@pytest.fixture
def repository(server, checkpoint):
    return server.add_folder(REPO, checkpoint)


@pytest.fixture
def access(server, tmp_path):
    return HubAccess(cache_dir=tmp_path / "cache", endpoint=server.endpoint, retry_wait_s=0.01)


def weights_of(folder):
    return load_file(folder / "transformer/diffusion_pytorch_model.safetensors")["weight"]


def test_downloads_what_the_components_need_and_nothing_else(repository, access, checkpoint, server):
    folder, commit = fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    assert commit == repository.commit
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "model_index.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "transformer/config.json",
        "tokenizer/spiece.model",
        "tokenizer/tokenizer.json",
    }
    for name in found:
        assert (folder / name).read_bytes() == (checkpoint / name).read_bytes()
    assert (folder / "transformer/diffusion_pytorch_model.safetensors").is_symlink()
    assert not any(path.endswith((".bin", ".md", ".fp16.safetensors")) for path in server.downloads())
    # The links of the cache are as good as files.
    assert list(list_weight_files(folder, "transformer").tensors) == ["weight"]


def test_a_pinned_commit_in_the_cache_needs_no_network(repository, access, server):
    first = fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    server.requests.clear()
    assert fetch_snapshot(REPO, repository.commit, PARTS, access=access) == first
    assert server.requests == []


def test_another_component_is_fetched_on_top(repository, access, server):
    fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    server.requests.clear()
    folder, _ = fetch_snapshot(REPO, repository.commit, ("vae",), access=access)
    assert (folder / "vae/diffusion_pytorch_model.safetensors").exists()
    # The same content as the transformer's: its blob is there already.
    assert server.downloads() == []


def test_a_variant_is_taken_when_asked_for(repository, access):
    folder, _ = fetch_snapshot(REPO, repository.commit, ("transformer",), variant="fp16", access=access)
    names = {path.name for path in (folder / "transformer").iterdir()}
    assert names == {"config.json", "diffusion_pytorch_model.fp16.safetensors"}


def test_progress_counts_every_byte_once(repository, access):
    told = []
    fetch_snapshot(REPO, "main", PARTS, access=access, on_progress=lambda done, total: told.append((done, total)))
    sizes = [
        len(repository.files[f"{name}"])
        for name in (
            "model_index.json",
            "transformer/diffusion_pytorch_model.safetensors",
            "transformer/config.json",
            "tokenizer/spiece.model",
            "tokenizer/tokenizer.json",
        )
    ]
    assert [total for _, total in told] == [sum(sizes)] * len(told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1][0] == sum(sizes)


def test_a_dropped_connection_is_resumed(repository, access, server):
    name = "transformer/diffusion_pytorch_model.safetensors"
    repository.break_after[name] = [50_000, 30_000]
    folder, _ = fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert torch.equal(weights_of(folder), torch.arange(40_000, dtype=torch.float32))
    ranges = [r.asked_range for r in server.requests if r.method == "GET" and r.path.endswith(name)]
    assert ranges == ["bytes=0-", "bytes=50000-", "bytes=80000-"]


def test_a_later_call_resumes_what_an_interrupted_one_left(repository, access, server, monkeypatch):
    name = "transformer/diffusion_pytorch_model.safetensors"
    monkeypatch.setattr(download, "_MAX_FAILURES", 0)
    repository.break_after[name] = [70_000, 0]
    with pytest.raises(DownloadError, match=r"broke off 1 times at byte 70000 of \d+ .*run again to go on"):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert not list(access.cache_dir.rglob("*.safetensors"))
    server.requests.clear()
    told = []
    folder, _ = fetch_snapshot(
        REPO, repository.commit, ("transformer",), access=access, on_progress=lambda done, _: told.append(done)
    )
    assert told[0] == 70_000
    ranges = [r.asked_range for r in server.requests if r.method == "GET" and r.path.endswith(name)]
    assert ranges == ["bytes=70000-"]
    assert torch.equal(weights_of(folder), torch.arange(40_000, dtype=torch.float32))
    assert not list(access.cache_dir.rglob("*.incomplete"))


def test_a_server_without_ranges_starts_over(repository, access):
    repository.ignores_ranges = True
    repository.break_after["transformer/diffusion_pytorch_model.safetensors"] = [50_000]
    folder, _ = fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert torch.equal(weights_of(folder), torch.arange(40_000, dtype=torch.float32))


def test_a_damaged_file_never_gets_its_name(repository, access):
    name = "transformer/diffusion_pytorch_model.safetensors"
    data = bytearray(repository.files[name])
    data[-1] ^= 1
    repository.corrupted[name] = bytes(data)
    with pytest.raises(DownloadError, match=r"arrived damaged.*SHA-256.*thrown away"):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert not list(access.cache_dir.rglob("*.safetensors"))
    repository.corrupted.clear()
    folder, _ = fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert hashlib.sha256((folder / name).read_bytes()).digest() == hashlib.sha256(repository.files[name]).digest()


def test_an_interrupt_ends_the_threads_and_keeps_the_part(repository, access):
    name = "transformer/diffusion_pytorch_model.safetensors"
    repository.break_after[name] = [60_000] + [0] * 100
    slow = HubAccess(access.cache_dir, access.endpoint, retry_wait_s=60)

    def interrupt(done, total):
        if done == 60_000:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=slow, on_progress=interrupt)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("fastvideo-fetch")]
    assert workers == [], f"{before} before"
    assert [path.stat().st_size for path in access.cache_dir.rglob("*.resume.incomplete")] == [60_000]


@pytest.mark.parametrize(
    ("token", "remedy"), [(None, "run `hf auth login`, or set HF_TOKEN"), ("hf_not_on_the_list", "then run again")]
)
def test_gated(repository, server, tmp_path, token, remedy):
    repository.is_gated = True
    access = HubAccess(tmp_path / "cache", server.endpoint, token)
    with pytest.raises(DownloadError) as caught:
        fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    message = str(caught.value)
    assert f"{REPO} is gated: accept its terms on {server.endpoint}/{REPO}" in message
    assert remedy in message
    assert "\n" not in message


def test_gated_with_a_granted_token(repository, server, tmp_path):
    repository.is_gated, repository.allowed_tokens = True, ("hf_granted",)
    access = HubAccess(tmp_path / "cache", server.endpoint, "hf_granted")
    folder, _ = fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    assert weights_of(folder).numel() == 40_000


def test_gated_small_files_only(repository, access):
    repository.is_gated = True
    del repository.files["tokenizer/spiece.model"]
    with pytest.raises(DownloadError, match="is gated"):
        fetch_snapshot(REPO, repository.commit, ("tokenizer",), access=access)


def test_no_such_repository(repository, access):
    with pytest.raises(DownloadError, match=r"no repository some-lab/other on http.*or it is private"):
        fetch_snapshot("some-lab/other", None, PARTS, access=access)


def test_a_token_that_this_user_may_not_read(repository, server, tmp_path, monkeypatch):
    def denied():
        raise PermissionError("token")

    monkeypatch.setattr("huggingface_hub.get_token", denied)
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", denied)
    with pytest.raises(DownloadError, match="token"):
        fetch_snapshot(REPO, repository.commit, PARTS, access=HubAccess(tmp_path / "cache", server.endpoint))


def test_no_such_revision(repository, access):
    with pytest.raises(DownloadError, match=f"no such revision: {REPO} at v9; see"):
        fetch_snapshot(REPO, "v9", PARTS, access=access)


@pytest.mark.parametrize("repo_id", ["", "name", "a/b/c", "a b/c", "../x", "a/b:c"])
def test_not_a_repository_name(access, repo_id):
    with pytest.raises(DownloadError, match="allowed: org/name"):
        fetch_snapshot(repo_id, None, PARTS, access=access)


def test_no_such_component(repository, access):
    with pytest.raises(CheckpointError, match=r"no folder 'transformers'; it has .*; nearest: transformer$"):
        fetch_snapshot(REPO, repository.commit, ("transformers",), access=access)


def test_pickles_only_are_refused_before_any_download(repository, access, server):
    for name in list(repository.files):
        if name.startswith("transformer/") and name.endswith(".safetensors"):
            del repository.files[name]
    with pytest.raises(UnsafeFormatError, match=r"diffusion_pytorch_model.bin: pickle formats can run code"):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert server.downloads() == []


def test_offline_with_an_empty_cache(repository, access):
    offline = HubAccess(access.cache_dir, access.endpoint, is_offline=True)
    with pytest.raises(DownloadError, match=r"is not in the cache .*; the Hub is offline .*go online once, or give"):
        fetch_snapshot(REPO, repository.commit, PARTS, access=offline)


@pytest.mark.parametrize("revision", ["main", None, "commit"])
def test_offline_with_a_full_cache(repository, access, server, revision):
    revision = repository.commit if revision == "commit" else revision
    expected = fetch_snapshot(REPO, revision, PARTS, access=access)
    server.requests.clear()
    offline = HubAccess(access.cache_dir, access.endpoint, is_offline=True)
    assert fetch_snapshot(REPO, revision, PARTS, access=offline) == expected
    assert server.requests == []


def test_offline_with_half_a_cache(repository, access):
    fetch_snapshot(REPO, repository.commit, ("tokenizer",), access=access)
    offline = HubAccess(access.cache_dir, access.endpoint, is_offline=True)
    with pytest.raises(
        DownloadError, match=r"2 files are not in the cache .*: transformer/config.json, transformer/diff"
    ):
        fetch_snapshot(REPO, repository.commit, PARTS, access=offline)


def test_offline_with_a_cache_of_another_client(repository, access, tmp_path):
    """Older clients leave no list of files: the folder is taken, and what it lacks shows when it is read."""
    folder = access.cache_dir / "models--some-lab--tiny-video/snapshots" / repository.commit
    (folder / "transformer").mkdir(parents=True)
    offline = HubAccess(access.cache_dir, access.endpoint, is_offline=True)
    assert fetch_snapshot(REPO, repository.commit, PARTS, access=offline) == (folder, repository.commit)


def test_a_cache_of_another_client_is_completed_when_online(repository, access):
    folder = access.cache_dir / "models--some-lab--tiny-video/snapshots" / repository.commit
    (folder / "transformer").mkdir(parents=True)
    found, _ = fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    assert found == folder
    assert weights_of(folder).numel() == 40_000


def test_the_clients_own_offline_switch(repository, access, monkeypatch, server):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="the Hub is offline"):
        fetch_snapshot(REPO, repository.commit, PARTS, access=access)
    assert server.requests == []


@pytest.fixture
def dead_endpoint(server):
    with HubServer() as other:
        return other.endpoint


def test_unreachable_with_an_empty_cache(dead_endpoint, tmp_path):
    access = HubAccess(tmp_path / "cache", dead_endpoint)
    with pytest.raises(
        DownloadError, match=r"not in the cache .*; cannot reach http://127.0.0.1:\d+ \(.+\); check the net"
    ):
        fetch_snapshot(REPO, "a" * 40, PARTS, access=access)


def test_unreachable_with_a_full_cache(repository, access, dead_endpoint):
    expected = fetch_snapshot(REPO, "main", PARTS, access=access)
    assert fetch_snapshot(REPO, "main", PARTS, access=HubAccess(access.cache_dir, dead_endpoint)) == expected


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, "its token is not valid"),
        (403, "your account may not read it"),
        (429, "too many requests"),
        (500, "wait and run again"),
    ],
)
def test_refusals(repository, access, server, status, text):
    server.refuse_status = status
    with pytest.raises(DownloadError, match=f"answered {status}; {text}"):
        fetch_snapshot(REPO, "main", PARTS, access=access)


def test_a_full_disk_is_noticed_before_the_download(repository, access, server, monkeypatch):
    monkeypatch.setattr(disk, "free_disk_bytes", lambda folder: 1000)
    with pytest.raises(
        ResourceError, match=r"not enough disk for 3 files of .*: 160 kB needed in .*, 1 kB free; .*HF_HOME"
    ):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert server.downloads() == []


def test_a_disk_that_fills_up_on_the_way(repository, access, monkeypatch):
    def no_space(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_append", no_space)
    with pytest.raises(ResourceError, match=r"the disk is full: .*blobs; free some space and run again"):
        fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)


def test_a_revision_that_moves_meanwhile(repository, access, monkeypatch):
    listed = hub._list_repository

    def list_then_move(wanted, access):
        answer = listed(wanted, access)
        repository.commit = "b" * 40
        repository.revisions += (answer[0],)
        return answer

    monkeypatch.setattr(hub, "_list_repository", list_then_move)
    with pytest.raises(DownloadError, match=r"moved from .* to b{40} while it was downloaded; run again"):
        fetch_snapshot(REPO, "main", PARTS, access=access)


def test_two_at_once_download_each_file_once(repository, access, server):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_snapshot(REPO, repository.commit, PARTS, access=access)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert sum(path.endswith("diffusion_pytorch_model.safetensors") for path in server.downloads()) == 1
    assert torch.equal(weights_of(results[0][0]), torch.arange(40_000, dtype=torch.float32))


def test_odd_names(server, access, tmp_path):
    folder = tmp_path / "odd"
    part = folder / "my part [a] é"
    part.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, part / "model.safetensors")
    (part / "config.json").write_text("{}")
    repository = server.add_folder(REPO, folder)
    found, _ = fetch_snapshot(REPO, repository.commit, (part.name,), access=access)
    assert (found / part.name / "config.json").exists()
    assert list_weight_files(found, part.name).num_bytes == (part / "model.safetensors").stat().st_size


def test_the_environment_names_the_hub(repository, server, tmp_path):
    """`HF_ENDPOINT` and `HF_HOME` are read by the client when it is imported: so in a process of its own."""
    code = (
        "import sys; from fastvideo_core.runtime.weights.hub import fetch_snapshot;"
        f"print(fetch_snapshot({REPO!r}, 'main', ('transformer',))[0]); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home")}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().startswith(str(tmp_path / "home"))
    assert run.stderr == ""


def test_large_files_from_another_host_without_the_token(repository, server, tmp_path):
    """The Hub redirects large files to a store, which must not be told the user's token."""
    repository.is_gated, repository.allowed_tokens = True, ("hf_granted",)
    access = HubAccess(tmp_path / "cache", server.endpoint, "hf_granted")
    assert "hf_granted" not in repr(access)
    with HubServer() as store:
        repository.store = store
        folder, _ = fetch_snapshot(REPO, repository.commit, PARTS, access=access)
        assert len(store.requests) == 2
        assert all(request.authorization is None for request in store.requests)
    assert any(request.authorization == "Bearer hf_granted" for request in server.requests)
    assert weights_of(folder).numel() == 40_000


def test_optional_folders(repository, access):
    folder, _ = fetch_snapshot(REPO, repository.commit, ("tokenizer",), optional=("vae", "sound"), access=access)
    assert sorted(path.name for path in folder.iterdir()) == ["model_index.json", "tokenizer", "vae"]


def test_a_server_that_is_busy_for_a_moment(repository, access, server, monkeypatch):
    append, calls = download._append, []

    def busy_twice(*args):
        calls.append(1)
        server.refuse_status = 503 if len(calls) < 3 else None
        append(*args)

    monkeypatch.setattr(download, "_append", busy_twice)
    folder, _ = fetch_snapshot(REPO, repository.commit, ("transformer",), access=access)
    assert len(calls) == 3
    assert weights_of(folder).numel() == 40_000


def test_configurations_alone(repository, access, server):
    repository.files["card.json"] = b"{}"
    repository.files["scheduler/scheduler_config.json"] = b"{}"
    repository.files["deep/er/config.json"] = b"{}"
    folder = fetch_configs(REPO, access=access)
    assert folder.name == repository.commit
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "card.json",
        "model_index.json",
        "transformer/config.json",
        "scheduler/scheduler_config.json",
    }
    server.requests.clear()
    assert fetch_configs(REPO, repository.commit, access=access) == folder
    assert fetch_configs(REPO, access=HubAccess(access.cache_dir, is_offline=True)) == folder
    assert server.requests == []


def test_a_repository_of_something_else(server, access, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/README.md").write_text("about")
    server.add_folder(REPO, tmp_path / "other")
    with pytest.raises(DownloadError, match="has none of the files that describe a model, such as model_index.json"):
        fetch_configs(REPO, access=access)
