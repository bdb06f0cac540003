from __future__ import annotations

import io
import json

import pytest

from fastvideo_core.cli import lines as lines_module
from fastvideo_core.cli.lines import read_lines
from fastvideo_core.errors import MediaError, ParameterError, PromptError


@pytest.fixture
def read(tmp_path):
    """Read a file of such a content."""

    def read_text(content, **options):
        path = tmp_path / "requests.jsonl"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_lines(str(path), **{"is_exact": False, **options})

    return read_text


@pytest.fixture
def read_one(read):
    """Read a file of one line, given as text or as what JSON holds."""

    def read_line(content, **options):
        text = content if isinstance(content, (str, bytes)) else json.dumps(content)
        (line,) = read(text, **options)
        return line

    return read_line


def test_a_line_is_an_ask(read_one):
    line = read_one({"id": "a-1", "prompt": "x", "task": "t", "image": "i.png", "seed": 7, "sampler": None})
    assert (line.number, line.request_id, line.error) == (1, "a-1", None)
    assert (line.ask.prompt, line.ask.task, line.ask.image) == ("x", "t", "i.png")
    assert line.ask.parameters == {"seed": 7, "sampler": None}
    assert line.ask.request_id == "a-1"


def test_a_line_may_have_a_video_and_actions(read_one, tmp_path):
    line = read_one({"prompt": "x", "task": "t", "video": "v.mp4", "actions": [[0.5, 1]]})
    assert line.ask.inputs == {"video": "v.mp4", "actions": [[0.5, 1]]}
    path = tmp_path / "moves.json"
    path.write_text("[[1, 2], [3, 4]]")
    assert read_one({"prompt": "x", "actions": str(path)}).ask.inputs == {"actions": [[1, 2], [3, 4]]}
    assert read_one({"prompt": "x"}).ask.inputs == {}


def test_the_id_is_the_lines_number_where_none_is_given(read):
    assert [(line.number, line.request_id) for line in read('\n{"prompt": "x"}\r\n\n  \n{"prompt": "y"}')] == [
        (2, "2"),
        (5, "5"),
    ]


@pytest.mark.parametrize(
    ("given", "flag", "expected"), [({}, True, True), ({"exact": False}, True, False), ({}, False, False)]
)
def test_a_line_goes_before_the_flag(given, flag, expected, read_one):
    assert read_one({"prompt": "x", **given}, is_exact=flag).ask.is_exact is expected


def test_a_byte_order_mark_is_no_part_of_the_first_line(read_one):
    assert read_one(b'\xef\xbb\xbf{"prompt": "x"}').ask.prompt == "x"


@pytest.mark.parametrize("value", [7, "7", "a.b_c-D", "x" * 120])
def test_good_ids(value, read_one):
    assert read_one({"prompt": "x", "id": value}).request_id == str(value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{bad", "not JSON: Expecting property name enclosed in double quotes at character 2"),
        ('{"prompt": "x"', "not JSON: Expecting ',' delimiter"),
        ('{"prompt": "x"} {}', "not JSON: Extra data"),
        (b'{"prompt": "\xff"}', "not UTF-8: byte 13 is 0xff"),
        ('{"prompt": "x", "seed": NaN}', "not JSON: NaN is no number there"),
        ('{"prompt": "x", "seed": -Infinity}', "not JSON: -Infinity"),
        ('{"prompt": "x", "fps": -1e999}', "not usable JSON: -1e999 is too large for a number"),
        ("[" * 100_000, "not usable JSON: nested too deeply"),
        ('{"prompt": "x", "seed": ' + "9" * 5000 + "}", "not usable JSON: a number with too many digits"),
        ('["x"]', "a JSON array; allowed: an object with at least a prompt"),
        ("null", "a JSON null"),
        ("7", "a JSON number"),
        ('{"prompt": "x", "seed": 1, "seed": 2}', "seed=2: given twice"),
        ({}, "prompt=None: missing; allowed: text"),
        ({"promt": "x"}, "prompt=None: missing; is 'promt' misspelt\\?"),
        ({"prompt": 3}, "prompt=3: a JSON number; allowed: text"),
        ({"prompt": None}, "prompt=None: a JSON null; allowed: text"),
        ({"prompt": "x", "exact": 1}, "exact=1: a JSON number; allowed: true or false"),
        ({"prompt": "x", "image": ["a.png"]}, "image=.*: a JSON array; allowed: text"),
        ({"prompt": "x", "video": 3}, "video=3: a JSON number; allowed: text"),
        ({"prompt": "x", "actions": 3}, "actions=3: a JSON number; allowed: the path of a .json file, or a list"),
        ({"prompt": "x", "actions": "nowhere.json"}, "actions='nowhere.json': actions cannot be read: No such file"),
        ({"prompt": "x", "id": 1.5}, "id=1.5: a JSON number; allowed: text, or a whole number"),
        ({"prompt": "x", "id": True}, "id=True: a JSON boolean"),
        ({"prompt": "x", "id": -1}, "id='-1': not usable as a file name"),
        ({"prompt": "x", "id": ""}, "id='': not usable as a file name"),
        ({"prompt": "x", "id": "../../etc/passwd"}, "id='../../etc/passwd': not usable.*; nearest: etc-passwd"),
        ({"prompt": "x", "id": "/tmp/x"}, "not usable"),
        ({"prompt": "x", "id": ".hidden"}, "not usable.*; nearest: hidden"),
        ({"prompt": "x", "id": "a\u0000b"}, "not usable"),
        ({"prompt": "x", "id": "x" * 121}, "not usable as a file name.*120 at most"),
        ({"prompt": "x", "id": "con"}, "id='con': not usable as a file name"),
        ({"prompt": "x", "id": "a."}, "id='a.': not usable as a file name"),
        ({"prompt": "x", "id": "Summary"}, "reserved for the summary"),
        ({"prompt": "x", "card": "y"}, "card='y': holds for all requests; allowed: --card"),
        ({"prompt": "x", "max_running": 2}, "max_running=2: holds for all requests; allowed: --max-running"),
    ],
)
def test_a_bad_line_says_what_is_wrong(content, text, read_one):
    line = read_one(content)
    assert line.ask is None
    with pytest.raises(type(line.error), match=text):
        raise line.error
    assert "\n" not in str(line.error)


def test_the_kinds_of_errors(read_one):
    assert isinstance(read_one({}).error, PromptError)
    assert isinstance(read_one({"prompt": "x", "id": "/"}).error, ParameterError)


def test_a_bad_line_leaves_the_others_alone(read):
    good = '{"prompt": "x"}\n'
    assert [line.ask is not None for line in read(good + "{bad\n" + good)] == [True, False, True]


@pytest.mark.parametrize("second", ['{"prompt": "y", "id": "a"}', '{"prompt": "y", "id": "A"}'])
def test_an_id_is_used_once(second, read):
    first, other = read('{"prompt": "x", "id": "a"}\n' + second)
    assert first.error is None
    assert "used by line 1" in str(other.error)


def test_an_id_may_not_be_the_number_of_a_line_that_has_none(read):
    assert "used by line 1" in str(read('{"prompt": "x", "id": "2"}\n{"prompt": "y"}')[1].error)


def test_a_line_that_is_bad_for_another_reason_keeps_it(read):
    assert "missing" in str(read('{"prompt": "x", "id": "a"}\n{"id": "a"}')[1].error)


@pytest.mark.parametrize("content", ["", "\n \n\t\n"])
def test_a_file_without_requests_is_refused(content, read):
    with pytest.raises(MediaError, match="holds no request; allowed: one JSON object a line"):
        read(content)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path, text in [(tmp_path / "none.jsonl", "No such file"), (tmp_path, "directory"), ("a\0b", "null")]:
        with pytest.raises(MediaError, match=f"cannot be read: .*{text}"):
            read_lines(str(path), is_exact=False)


def test_a_file_without_end_is_refused(read, monkeypatch):
    monkeypatch.setattr(lines_module, "MAX_BYTES", 10)
    with pytest.raises(MediaError, match="too large"):
        read('{"prompt": "x"}')


def test_stdin_is_a_file_too(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "x"}')))
    assert read_lines("-", is_exact=False)[0].ask.prompt == "x"


def test_urgency_and_deadline_are_the_requests_own(tmp_path):
    lines = [
        {"prompt": "a", "latency_class": "interactive", "deadline_s": 2.5},
        {"prompt": "b", "deadline_s": 3},
        {"prompt": "c", "deadline_s": True},
        {"prompt": "d", "latency_class": 1},
    ]
    path = tmp_path / "jobs.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    first, second, third, fourth = read_lines(str(path), is_exact=False)
    assert (first.ask.latency_class, first.ask.deadline_s, first.ask.parameters) == ("interactive", 2.5, {})
    assert (second.ask.latency_class, second.ask.deadline_s) == (None, 3)
    assert "deadline_s=True: a JSON boolean; allowed: a number of seconds" in str(third.error)
    assert "latency_class=1: a JSON number; allowed: text" in str(fourth.error)


def test_options_of_plugins_are_the_requests_own(read_one):
    line = read_one('{"prompt": "x", "plugins": {"interceptor.hold": {"period": 3}}}')
    assert line.ask.plugins == {"interceptor.hold": {"period": 3}}
    assert line.ask.parameters == {}
    wrong = read_one('{"prompt": "x", "plugins": {"interceptor.hold": 3}}')
    assert "plugins.interceptor.hold=3: a JSON number; allowed: an object of options" in str(wrong.error)
    assert "plugins=[]: a JSON array; allowed: an object of options by plugin" in str(
        read_one('{"prompt": "x", "plugins": []}').error
    )
