"""The page in headless Chromium, used with the keyboard, on a wide and on a narrow screen."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections import deque
from contextlib import contextmanager

import pytest

from fastvideo_server.protocol import TimedWebSocket

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


class Browser:
    """Chromium over its debugging pipe: JSON messages, each ended by a zero byte."""

    def __init__(self, profile):
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        command = f'exec "$@" 3<&{read_there} 4>&{write_there}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, "chromium", CHROMIUM, *flags, "about:blank"],
            pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        self._in, self._out = os.fdopen(read_here, "rb"), os.fdopen(write_here, "wb")
        self._number = 0
        self._buffer = b""
        self.events = deque(maxlen=5000)
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._buffer:
            part = os.read(self._in.fileno(), 1 << 20)
            assert part, "the browser is gone"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def evaluate(self, code):
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, code, *, within_s=60):
        deadline = time.monotonic() + within_s
        while not (value := self.evaluate(code)):
            assert time.monotonic() < deadline, (code, self.evaluate("document.body.innerText"))
            time.sleep(0.05)
        return value

    def press(self, key, text=""):
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        common = {"key": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def tab_to(self, code):
        for _ in range(40):
            if self.evaluate(f"document.activeElement === {code}"):
                return
            self.press("Tab")
        raise AssertionError(f"{code} is not reached with the keyboard")

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def requests(self):
        return {
            one["params"]["request"]["url"] for one in self.events if one.get("method") == "Network.requestWillBeSent"
        }

    def complaints(self):
        found = [one for one in self.events if one.get("method") == "Runtime.exceptionThrown"]
        return found + [
            one for one in self.events
            if one.get("method") == "Log.entryAdded" and one["params"]["entry"]["level"] == "error"
        ]  # fmt: skip

    def close(self):
        self._session = None
        self.call("Browser.close")
        self._process.wait(20)
        self._in.close()
        self._out.close()


@contextmanager
def browsing(profile):
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()


def test_a_video_is_made_watched_and_made_again(shared, tmp_path):
    with browsing(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=shared.url)
        browser.until("document.querySelector('#parameters input[name=num_frames]') !== null")
        assert browser.evaluate("document.activeElement.id") == "prompt"
        browser.call("Input.insertText", text="a red circle")
        browser.tab_to("document.querySelector('#more summary')")
        browser.press("Enter", "\r")
        browser.tab_to("document.querySelector('[name=num_frames]')")
        browser.call("Input.insertText", text="5")
        browser.tab_to("document.querySelector('[name=seed]')")
        browser.call("Input.insertText", text="7")
        browser.tab_to("document.querySelector('button[type=submit]')")
        browser.press("Enter", "\r")
        browser.until("document.querySelector('#now video')?.readyState >= 2")
        assert browser.evaluate("document.querySelector('#now video').videoWidth") == 32
        browser.until("document.querySelectorAll('#history li img').length === 1")
        table = browser.evaluate("document.querySelector('#history table').textContent")
        assert "num_frames5request" in table
        assert "seed7request" in table
        browser.tab_to(
            "[...document.querySelectorAll('#history button')].find(one => one.textContent.startsWith('Again'))"
        )
        browser.press("Enter", "\r")
        browser.until("document.querySelectorAll('#history li img').length === 2")
        with shared.client() as client:
            videos = client.get("/v1/videos").json()["data"]
        seeds = [video["parameters"]["seed"] for video in videos]
        assert seeds[1] == {"value": 7, "source": "request"}
        assert (seeds[0]["source"], videos[0]["parameters"]["num_frames"]["value"]) == ("engine", 5)
        assert "tiny on cpu" in browser.until(
            "(text => text.includes('running') && text)(document.getElementById('state').textContent)"
        )
        browser.picture(tmp_path / "wide.png")
        browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.picture(tmp_path / "narrow.png")
        assert all(url.startswith((shared.url, f"blob:{shared.url}", "data:")) for url in browser.requests())
        assert browser.complaints() == []


def test_what_is_refused_is_told(shared, tmp_path):
    with browsing(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=shared.url)
        browser.until("document.querySelector('#parameters input[name=num_frames]') !== null")
        browser.evaluate("document.getElementById('prompt').value = '<b>x</b>'")
        browser.evaluate("document.querySelector('[name=num_frames]').value = 6")
        browser.evaluate("document.querySelector('button[type=submit]').click()")
        assert "4k + 1" in browser.until("document.getElementById('problem').textContent")


def test_a_key_is_asked_for_and_prompts_are_text(serve, tmp_path):
    keys = [{"name": "ann", "sha256": hashlib.sha256(b"secret").hexdigest()}]
    with serve(keys=keys) as server, server.client("secret") as client, browsing(tmp_path / "profile") as browser:
        fields = {"prompt": "<img src=x onerror=document.title='pwned'>", "num_inference_steps": 1, "num_frames": 1}
        assert client.post("/v1/videos", json=fields).status_code == 200
        browser.call("Page.navigate", url=server.url)
        browser.until("document.getElementById('key-dialog')?.open")
        browser.call("Input.insertText", text="secret")
        browser.press("Enter", "\r")
        browser.until("document.querySelectorAll('#history li').length === 1")
        assert browser.evaluate("document.querySelector('#history .what p').textContent").startswith("<img src=x")
        assert browser.evaluate("document.title") == "FastVideo"


def test_the_page_lets_nothing_else_in(client):
    response = client.get("/")
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert "http" not in response.text.replace("utf-8", "")
    for name in ("app.js", "style.css"):
        assert client.get(f"/page/{name}").status_code == 200
    for name in ("../config.py", "..%2fconfig.py", "config.py", ""):
        assert client.get(f"/page/{name}").status_code == 404


def test_previews_are_shown_while_it_runs(shared, tmp_path):
    with browsing(tmp_path / "profile") as browser:
        browser.call("Page.navigate", url=shared.url)
        browser.until("document.querySelector('#parameters input[name=num_frames]') !== null")
        browser.evaluate(
            "window.seen = new Set(); new MutationObserver(() => { const one = document.querySelector('#now .preview');"
            " if (one?.naturalWidth) seen.add(one.src); }).observe(document.getElementById('now'),"
            " { subtree: true, childList: true, attributes: true })"
        )
        browser.evaluate(
            "document.getElementById('prompt').value = 'a red circle';"
            "document.querySelector('[name=num_inference_steps]').value = 400;"
            "document.querySelector('[name=height]').value = 64; document.querySelector('[name=width]').value = 64;"
            "document.querySelector('button[type=submit]').click()"
        )
        browser.until("document.querySelector('#now .preview')?.naturalWidth === 64")
        browser.picture(tmp_path / "preview.png")
        browser.until("document.querySelector('#now video')?.readyState >= 2")
        assert browser.evaluate("seen.size") >= 2
        assert browser.complaints() == []


def test_a_live_session_is_steered_while_it_plays(causal_card, running, tmp_path):
    keys = [{"name": "ann", "sha256": hashlib.sha256(b"secret").hexdigest()}]
    with (
        running(causal_card, tmp_path / "server", keys=keys) as server,
        browsing(tmp_path / "profile") as browser,
    ):
        browser.call("Page.navigate", url=server.url)
        browser.until("document.getElementById('key-dialog')?.open")
        browser.call("Input.insertText", text="secret")
        browser.press("Enter", "\r")
        browser.until("document.getElementById('go-live').hidden === false")
        browser.evaluate("document.getElementById('prompt').focus()")
        browser.call("Input.insertText", text="a red circle")
        browser.tab_to("document.getElementById('go-live')")
        browser.press("Enter", "\r")
        browser.until("document.getElementById('screen').currentTime > 0.3")
        assert browser.evaluate("document.activeElement.id") == "push"
        browser.call("Input.insertText", text="a blue square")
        browser.press("Enter", "\r")
        browser.until("document.querySelectorAll('#pushed li')[1]?.classList.contains('applied')")
        (session,) = server.parts.service.engine.sessions
        before = browser.evaluate("document.getElementById('screen').currentTime")
        for one in list(server.server.server_state.connections):
            if isinstance(one, TimedWebSocket):
                one.loop.call_soon_threadsafe(one.transport.abort)
        browser.until(f"document.getElementById('screen').currentTime > {before} + 1")
        assert browser.evaluate("document.getElementById('screen').buffered.length") == 1
        browser.until("document.querySelector('#queue tbody').textContent.includes('Live sessions1')")
        browser.picture(tmp_path / "live.png")
        browser.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        browser.picture(tmp_path / "live-narrow.png")
        browser.evaluate("document.getElementById('pause').click()")
        browser.until("document.getElementById('live-state').textContent === 'paused'")
        browser.evaluate("document.getElementById('end').click()")
        browser.until("document.getElementById('live-state').textContent === 'the session has ended'")
        assert session.state == "terminate"
        assert [push.push.text for push in session.log] == ["a blue square"]
        assert [one for one in browser.complaints() if one["method"] == "Runtime.exceptionThrown"] == []
