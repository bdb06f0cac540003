from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import torch
from safetensors.torch import save_file

from fastvideo_core.errors import ResourceError
from fastvideo_core.runtime.weights.disk import check_disk, free_disk_bytes
from fastvideo_core.runtime.weights.files import list_weight_files
from fastvideo_core.runtime.weights.keys import names_matching, rename_by_rules
from fastvideo_core.runtime.weights.memory import available_memory, cgroup_headrooms, check_memory, estimate_bytes
from fastvideo_core.runtime.weights.text import format_bytes, nearest_name, sample_names


def test_estimates(tmp_path):
    save_file(
        {
            "block.w": torch.ones(10, dtype=torch.bfloat16),
            "block.norm": torch.ones(3, dtype=torch.float16),
            "ids": torch.ones(5, dtype=torch.int64),
            "flags": torch.ones(7, dtype=torch.bool),
        },
        tmp_path / "model.safetensors",
    )
    files = list_weight_files(tmp_path)
    others = 5 * 8 + 7
    assert estimate_bytes(files) == 10 * 2 + 3 * 2 + others
    assert estimate_bytes(files, "float32") == 13 * 4 + others
    assert estimate_bytes(files, torch.float8_e4m3fn) == 13 + others
    keep = names_matching(["^layer.norm$"])
    rename = rename_by_rules([("^block", "layer")])
    assert estimate_bytes(files, "bfloat16", keep_float32=keep, key_map=rename) == 10 * 2 + 3 * 4 + others
    assert estimate_bytes(files, ignored=names_matching(["^flags", "^ids"])) == 26


def test_what_is_available_is_below_what_there_is():
    assert 0 < available_memory() <= psutil.virtual_memory().total


def test_too_little_memory():
    with pytest.raises(ResourceError) as caught:
        check_memory(28_600_000_000, purpose="wan-14b in bfloat16", available_bytes=12_100_000_000)
    assert str(caught.value) == (
        "not enough memory for wan-14b in bfloat16: 28.6 GB needed on cpu, 12.1 GB available; "
        "choose a smaller card or a 16-bit precision, or free memory"
    )
    check_memory(12, available_bytes=12)
    check_memory(1)
    with pytest.raises(ResourceError, match=r"1e.03 TB needed"):
        check_memory(10**15)


def test_no_such_device():
    with pytest.raises(ResourceError, match="no device 'npu' here; there is cpu"):
        available_memory("npu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_no_cuda():
    with pytest.raises(ResourceError, match=r"no device 'cuda:0' here; there is cpu$"):
        check_memory(1, device="cuda:0")


@pytest.mark.gpu
def test_cuda_counts_what_torch_holds_unused():
    before = available_memory("cuda:0")
    block = torch.empty(2**26, dtype=torch.uint8, device="cuda:0")
    assert before - available_memory("cuda:0") >= 2**26
    del block
    assert abs(available_memory("cuda:0") - before) < 2**26


GIB = 2**30


def fake_system(root, groups, mounts):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in groups))
    (root / "proc/self/mountinfo").write_text("".join(f"{line}\n" for line in mounts))


def fake_group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def test_groups_of_version_2(tmp_path):
    fake_system(
        tmp_path,
        ["0::/user/job"],
        ["31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw"],
    )
    place = tmp_path / "sys/fs/cgroup"
    stat = f"anon {2 * GIB}\ninactive_file {GIB}"
    fake_group(place / "user/job", memory__max=8 * GIB, memory__current=3 * GIB, memory__stat=stat)
    fake_group(place / "user", memory__max="max", memory__current=4 * GIB, memory__stat="")
    # The group above is tighter than one's own.
    fake_group(place, memory__max=5 * GIB, memory__current=4 * GIB, memory__stat="")
    assert cgroup_headrooms(tmp_path) == [6 * GIB, GIB]


def test_groups_of_version_1(tmp_path):
    fake_system(
        tmp_path,
        ["5:memory:/docker/abc", "4:cpu,cpuacct:/docker/abc", "0::/"],
        [
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "36 31 0:33 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
        ],
    )
    fake_group(
        tmp_path / "sys/fs/cgroup/memory",
        memory__limit_in_bytes=4 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat=f"total_inactive_file {GIB // 2}",
    )
    assert cgroup_headrooms(tmp_path) == [GIB + GIB // 2]


def test_groups_without_limit(tmp_path):
    fake_system(
        tmp_path,
        ["5:memory:/", "0::/"],
        [
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "31 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ],
    )
    fake_group(
        tmp_path / "sys/fs/cgroup/memory",
        memory__limit_in_bytes=9223372036854771712,
        memory__usage_in_bytes=GIB,
        memory__stat="",
    )
    assert cgroup_headrooms(tmp_path) == []


def test_a_system_without_groups(tmp_path):
    assert cgroup_headrooms(tmp_path) == []
    fake_system(tmp_path, ["nonsense", ""], ["nonsense", "a - b", "1 2 3 4 5 - cgroup2 x y"])
    assert cgroup_headrooms(tmp_path) == []


def test_disk(tmp_path):
    place = tmp_path / "not/yet/there"
    assert free_disk_bytes(place) == pytest.approx(free_disk_bytes(tmp_path), rel=0.1)
    check_disk(1, place, purpose="x", remedy="y")
    with pytest.raises(ResourceError) as caught:
        check_disk(2_500, place, purpose="3 files", remedy="free some space", available_bytes=1_024)
    assert str(caught.value) == (
        f"not enough disk for 3 files: 2.5 kB needed in {place}, 1.02 kB free; free some space"
    )


def test_wording():
    sizes = [0, 999, 1000, 1_530_000_000, 28_000_000_000, 4e15]
    assert [format_bytes(size) for size in sizes] == ["0 bytes", "999 bytes", "1 kB", "1.53 GB", "28 GB", "4e+03 TB"]
    assert sample_names(["a", "b", "c"]) == "a, b, c"
    assert sample_names(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert nearest_name("transfomer", ["vae", "transformer"]) == "transformer"
    assert nearest_name("x", ["vae", "transformer"]) is None


def test_checks_need_no_torch():
    code = (
        "import sys\n"
        "from fastvideo_core.runtime.weights import disk, files, header, hub, keys, locate\n"
        "from fastvideo_core.runtime.weights import memory, selection, version\n"
        "memory.available_memory(); memory.check_memory(1)\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
