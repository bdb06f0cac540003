"""Settings and files that ComfyUI's page keeps on the server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from fastvideo_comfy.serve.user_files import UserFiles
from fastvideo_core.errors import InputError


def status(comfy, path, method="GET", data=None):
    try:
        with urlopen(Request(f"{comfy.url}{path}", data=data, method=method, headers=comfy.headers)) as answer:
            return answer.status
    except HTTPError as error:
        with error:
            return error.code


def test_settings_are_kept(comfy):
    comfy.post("/api/settings", {"Comfy.Locale": "de", "__proto__": {"a": 1}})
    comfy.post("/settings/Comfy.ColorPalette", b'"light"')
    found = comfy.json("/settings")
    assert {"Comfy.Locale": "de", "__proto__": {"a": 1}, "Comfy.ColorPalette": "light"}.items() <= found.items()
    assert comfy.json("/settings/Comfy.Locale") == "de"
    assert comfy.json("/settings/never.set") is None
    assert comfy.json("/users") == {"storage": "server", "migrated": True}
    assert comfy.json("/api/i18n") == {}
    assert [status(comfy, path, "POST", b"{") for path in ("/settings", "/settings/x")] == [400, 400]


@pytest.mark.parametrize("body", [b"NaN", b"-Infinity", b'"\\ud800"', b'{"\\ud800": 1}', b"[" * 100_000, b"\xff", b""])
def test_settings_that_could_not_be_sent_back_are_refused(comfy, body):
    assert status(comfy, "/settings/odd", "POST", body) == 400
    assert status(comfy, "/settings", "POST", b'{"odd": ' + body + b"}") == 400
    assert "odd" not in comfy.json("/settings")


def test_workflows_are_kept_listed_and_deleted(comfy):
    assert status(comfy, "/userdata?dir=nothing") == 404
    path = "/api/userdata/workflows%2Fa.json"
    assert comfy.post(path, b'{"a": 1}') == "workflows/a.json"
    assert status(comfy, f"{path}?overwrite=false", "POST", b"2") == 409
    data, headers = comfy.get(path)
    assert data == b'{"a": 1}'
    assert headers["Content-Type"] == "application/octet-stream"
    assert comfy.json("/userdata", dir="workflows", recurse="true") == ["a.json"]
    assert [status(comfy, path, "DELETE") for _ in range(2)] == [204, 404]


@pytest.mark.parametrize("name", ["..%2F..%2Fjobs.sqlite3", "%2Fetc%2Fpasswd", "..%5Cx", "C:%5Cx", "a%00b"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_names_do_not_leave_the_users_folder(comfy, name, method):
    assert status(comfy, f"/userdata/{name}", method, b"x" if method == "POST" else None) == 400
    assert status(comfy, f"/userdata?dir={name}") == 400


def test_links_do_not_lead_out(tmp_path):
    files = UserFiles(tmp_path / "owner")
    files.keep("a.json", b"1", is_replacing=True)
    (tmp_path / "owner/user/out").symlink_to(tmp_path)
    with pytest.raises(InputError, match="leaves its folder"):
        files.keep("out/x", b"1", is_replacing=True)


def test_settings_set_at_once_are_all_kept_also_for_the_next_server(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: UserFiles(tmp_path).change({str(n): n}), range(40)))
    assert UserFiles(tmp_path).settings() == {str(n): n for n in range(40)}
    assert [path.name for path in tmp_path.iterdir()] == ["comfy.settings.json"]
