"""Bad input and abuse over the wire: 4xx with the field and what is allowed, and the server goes on."""

from __future__ import annotations

import base64
import io
import json
import socket
import struct
import time
import zlib

import pytest
from PIL import Image

QUICK = {"prompt": "x", "num_inference_steps": 1, "num_frames": 1}


def refusal(response, status, *, param=None, code=None):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert param is None or error["param"] == param
    assert code is None or error["code"] == code
    return error


def raw(shared, data, *, timeout=10):
    """Send bytes as they are and return what comes back until the server closes, or for a while."""
    host, port = shared.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as connection:
        connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
                if b"\r\n\r\n" in received and b'"error"' in received:
                    break
        except (TimeoutError, ConnectionResetError):
            pass
    return received


def png(width, height, *, extra=b""):
    """Return a small PNG file that says to be of any size."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = part(b"IDAT", zlib.compress(b"\0" * min(1 + 3 * width, 1000)))
    return b"\x89PNG\r\n\x1a\n" + header + extra + body + part(b"IEND", b"")


def cut_short():
    """Return half of a PNG file."""
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 100).save(buffer, format="PNG")
    return buffer.getvalue()[: buffer.tell() // 2]


@pytest.fixture(autouse=True)
def goes_on(client):
    yield
    assert client.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "no object"),
        (b"null", "no object"),
        (b'{"prompt": "a", "prompt": "b"}', "key twice"),
        (b'{"prompt": "a", "fps": NaN}', "NaN is no number"),
        (b'{"prompt": "a", "fps": Infinity}', "Infinity is no number"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_json(body, said, client):
    response = client.post("/v1/videos", content=body, headers={"Content-Type": "application/json"})
    assert said in refusal(response, 400, code="malformed_body")["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"--x", b"--x\r\n\r\n", b"--y\r\nContent-Disposition: form-data; name=prompt\r\n\r\na\r\n--y--\r\n",
     b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--\r\n",
     b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na', b"\0" * 1000],
)  # fmt: skip
def test_malformed_multipart(body, client):
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = client.post("/v1/videos", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["code"] in ("malformed_body", "missing_field")


def test_multipart_without_a_boundary(client):
    response = client.post("/v1/videos", content=b"x", headers={"Content-Type": "multipart/form-data"})
    refusal(response, 400, code="malformed_body")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "image/png"])
def test_other_bodies_are_not_read(kind, client):
    response = client.post("/v1/videos", content=b"prompt=x", headers={"Content-Type": kind})
    assert "multipart/form-data" in refusal(response, 415, param="Content-Type")["allowed"]


def test_a_packed_body_is_not_unpacked(client):
    bomb = zlib.compress(b" " * 50_000_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": "deflate"}
    refusal(client.post("/v1/videos", content=bomb, headers=headers), 415, param="Content-Encoding")


def test_a_body_of_a_gigabyte_is_refused_before_it_is_read(shared):
    head = (
        b"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n"
    )
    begun = time.monotonic()
    answer = raw(shared, head + b" " * 1000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer
    assert time.monotonic() - begun < 5


def test_a_chunked_body_is_counted(serve):
    with serve(max_body=1 << 20) as server, server.client() as client:

        def parts():
            for _ in range(64):
                yield b" " * (1 << 16)

        response = client.post("/v1/videos", content=parts(), headers={"Content-Type": "application/json"})
        assert refusal(response, 413)["allowed"] == "1 MiB"


def test_a_slow_writer_is_not_waited_for(serve):
    with serve(read_timeout_s=0.3) as server:
        head = b"POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n{"
        assert raw(server, head).startswith(b"HTTP/1.1 408")
        assert raw(server, b"GET /v1/models HTTP/1.1\r\nHos") == b"", "a head that does not end"
        assert raw(server, b"") == b"", "a connection without a word"
        with server.client() as client:
            assert client.get("/health/live").status_code == 200


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (png(60000, 60000), "too large"),
        (png(2_000_000_000, 2), "too large"),
        (png(0, 0), "image"),
        (b"", "empty"),
        (b"not an image", "not an image"),
        (b"GIF89a" + b"\xff" * 50, "image"),
        (cut_short(), "broken"),
    ],
    ids=["square", "line", "nothing", "empty", "text", "half a gif", "cut short"],
)
def test_images_that_are_none_or_too_large(image, said, client):
    response = client.post("/v1/videos", data={"prompt": "x"}, files={"input_reference": ("a.png", image, "image/png")})
    assert said in refusal(response, 400, param="input_reference")["message"]


def test_a_decompression_bomb_in_a_picture(client):
    text = b"comment\0\0" + zlib.compress(b"a" * 100_000_000)
    extra = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    begun = time.monotonic()
    response = client.post(
        "/v1/videos", data={"prompt": "x"}, files={"input_reference": ("a.png", png(8, 8, extra=extra))}
    )
    refusal(response, 400, param="input_reference")
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "reference",
    [
        {"image_url": "http://127.0.0.1:1/a.png"},
        {"image_url": "file:///etc/passwd"},
        {"image_url": "data:image/png;base64,!!!"},
        {"file_id": "file-1"},
        {"image_url": 3},
        ["a"],
        "/etc/passwd",
    ],
)
def test_nothing_is_fetched_and_no_path_is_opened(reference, client):
    refusal(client.post("/v1/videos", json={**QUICK, "input_reference": reference}), 400, param="input_reference")


def test_an_image_in_json(client):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    response = client.post("/v1/videos", json={**QUICK, "input_reference": {"image_url": url}})
    assert response.json()["task"] == "image_to_video"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "x" * 5000}, "prompt"),
        ({"prompt": "x", "size": "64"}, "size"),
        ({"prompt": "x", "size": "999999x999999"}, "height"),
        ({"prompt": "x", "size": "-8x8"}, "size"),
        ({"prompt": "x", "size": "32x32", "width": 48}, "width"),
        ({"prompt": "x", "seconds": "long"}, "seconds"),
        ({"prompt": "x", "seconds": -1}, "seconds"),
        ({"prompt": "x", "seconds": 1e300}, "seconds"),
        ({"prompt": "x", "seed": 2**64}, "seed"),
        ({"prompt": "x", "seed": 1.5}, "seed"),
        ({"prompt": "x", "seed": True}, "seed"),
        ({"prompt": "x", "deadline_s": 0}, "deadline_s"),
        ({"prompt": "x", "output_path": "../../etc/x.mp4"}, "output_path"),
        ({"prompt": "x", "request_id": "../x"}, "request_id"),
        ({"prompt": "x", "n": 2}, "n"),
    ],
)
def test_fields_that_are_not_allowed(fields, param, client):
    response = client.post("/v1/videos", content=json.dumps(fields), headers={"Content-Type": "application/json"})
    assert refusal(response, 400, param=param)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "name",
    ["..", "../jobs.sqlite3", "..%2f..%2fjobs.sqlite3", "%2e%2e%2fjobs.sqlite3", "video_x%00", ".gone-x", "a" * 5000,
     "video_%F0%9F%98%80", "*", "video_1%2f..%2fvideo_2", "~root"],
)  # fmt: skip
@pytest.mark.parametrize("tail", ["", "/content", "/events", "/content?variant=thumbnail"])
def test_names_lead_nowhere_else(name, tail, client):
    response = client.get(f"/v1/videos/{name}{tail}")
    assert response.status_code in (400, 404), response.text
    assert "error" in response.json()


@pytest.mark.parametrize("variant", ["../video", "manifest", "video.mp4", ""])
def test_variants_are_those_that_there_are(variant, client):
    response = client.get("/v1/videos/video_1/content", params={"variant": variant})
    assert "thumbnail" in refusal(response, 400, param="variant")["allowed"]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("order=up", "order")],
)
def test_pages_that_are_none(query, param, client):
    refusal(client.get(f"/v1/videos?{query}"), 400, param=param)


def test_a_page_after_nothing(client):
    refusal(client.get("/v1/videos?after=video_0"), 404)


def test_routes_that_there_are_not(client):
    assert refusal(client.get("/v1/completions"), 404, code="not_found")["type"] == "invalid_request_error"
    refusal(client.put("/v1/videos"), 405, code="method_not_allowed")


@pytest.mark.parametrize(
    "data",
    [b"GARBAGE\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\0\xff" * 1000],
)
def test_what_is_no_http(data, shared):
    assert raw(shared, data, timeout=3)[:12] in (b"", b"HTTP/1.1 400")


def test_a_page_of_another_origin_cannot_make_jobs(client):
    response = client.post("/v1/videos", json=QUICK, headers={"Origin": "http://evil.example"})
    refusal(response, 403, param="Origin")
    own = f"http://{client.base_url.netloc.decode()}"
    assert client.post("/v1/videos", json=QUICK, headers={"Origin": own}).status_code == 200


def test_request_ids_are_kept_or_made(client):
    assert client.get("/health/live", headers={"X-Request-Id": "abc-1"}).headers["X-Request-Id"] == "abc-1"
    made = client.get("/health/live", headers={"X-Request-Id": "a b"}).headers["X-Request-Id"]
    assert made not in ("a b", "")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"n": "2"}, "n"),
        ({"response_format": "url"}, "response_format"),
        ({"output_format": "bmp"}, "output_format"),
        ({"num_frames": 5}, "num_frames"),
        ({"stream": True}, "stream"),
    ],
)
def test_images_refuse_what_they_cannot(fields, param, client):
    refusal(client.post("/v1/images/generations", json={"prompt": "x", **fields}), 400, param=param)
