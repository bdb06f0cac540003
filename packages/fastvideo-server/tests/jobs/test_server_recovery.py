"""SIGKILL at any moment: every accepted job is there and goes on; what is finished is not run again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import httpx2

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 1}
SCRIPT = """
import sys
from pathlib import Path
from fastvideo_testing.tiny import tiny_card
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.protocol import DrainingServer, uvicorn_config
from fastvideo_server.serve import open_parts
import torch
torch.set_num_threads(1)
config = ServerConfig(folder=sys.argv[2], port=0, min_free=0)
options = RuntimeOptions(SchedulerConfig(max_running=2), memory_bytes=1 << 30)
with open_parts(config, tiny_card(Path(sys.argv[1])), options=options) as parts:
    tell = lambda url: print(url, flush=True)
    DrainingServer(uvicorn_config(create_app(parts), config), parts.service.drain, tell).run()
"""


class Process:
    def __init__(self, weights, folder):
        self._process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(weights), str(folder)], stdout=subprocess.PIPE, text=True
        )
        url = self._process.stdout.readline().strip()
        assert url, self._process.wait(10)
        self.client = httpx2.Client(base_url=url, timeout=30)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        self._process.stdout.close()
        self.client.close()


def wait(client, video_id):
    deadline = time.monotonic() + 40
    while (video := client.get(f"/v1/videos/{video_id}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, video
        time.sleep(0.02)
    return video


def test_killed_and_started_again(tiny_card, tmp_path):
    weights = tiny_card.checkpoint.source.location
    first = Process(weights, tmp_path / "s")
    try:
        done = first.client.post("/v1/videos", json={**QUICK, "seed": 1}, headers={"Idempotency-Key": "k"}).json()["id"]
        assert wait(first.client, done)["status"] == "completed"
        content = first.client.get(f"/v1/videos/{done}/content")
        gone = first.client.post("/v1/videos", json=QUICK).json()["id"]
        first.client.delete(f"/v1/videos/{gone}")
        accepted = [
            first.client.post("/v1/videos", json={**QUICK, "num_inference_steps": 250, "seed": seed}).json()["id"]
            for seed in range(5)
        ]
        while first.client.get(f"/v1/videos/{accepted[0]}").json()["status"] == "queued":
            time.sleep(0.01)
    finally:
        first.kill()
    artifact = tmp_path / "s/artifacts" / done / "video.mp4"
    written_at = artifact.stat().st_mtime_ns
    second = Process(weights, tmp_path / "s")
    try:
        listed = [one["id"] for one in second.client.get("/v1/videos?order=asc").json()["data"]]
        assert listed == [done, *accepted]
        again = second.client.post("/v1/videos", json={**QUICK, "seed": 1}, headers={"Idempotency-Key": "k"}).json()
        assert (again["id"], again["status"]) == (done, "completed")
        for video_id in accepted:
            assert wait(second.client, video_id)["status"] == "completed"
        assert artifact.stat().st_mtime_ns == written_at
        assert second.client.get(f"/v1/videos/{done}/content").content == content.content
        events = second.client.get(f"/v1/videos/{accepted[-1]}/events", headers={"Last-Event-ID": "1.3"}).text
        assert events.startswith("id: 2.0\n"), "it is another run, which is told from its beginning"
        assert second.client.get(f"/v1/videos/{gone}").status_code == 404
    finally:
        second.kill()
