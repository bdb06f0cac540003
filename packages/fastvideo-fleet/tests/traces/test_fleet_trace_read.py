from __future__ import annotations

import time

import numpy as np
import pytest

from fastvideo_fleet.errors import TraceError
from fastvideo_fleet.traces import (
    EventKind,
    TraceSettings,
    find_problems,
    format_trace,
    make_trace,
    parse_trace,
    read_trace,
    summarise,
)

HEADER = "time_s,session_id,event,attributes\n"


def parse(*lines):
    return parse_trace(HEADER + "\n".join(lines) + "\n", origin="t.csv")


def test_a_trace_is_read():
    trace = parse(
        "0,a,arrive,model=m;state_bytes=5;slo_s=0.5;tenant=x",
        *("1.5,a,idle,", "2,b,arrive,", "2,a,activate,", "9,a,depart,"),
    )
    assert trace.ids == ("a", "b")
    assert trace.time_s.tolist() == [0, 1.5, 2, 2, 9]
    assert [EventKind(kind).name for kind in trace.kind] == ["ARRIVE", "IDLE", "ARRIVE", "ACTIVATE", "DEPART"]
    first = trace.attributes[0]
    assert (first.model, first.state_bytes, first.slo_s, first.tenant) == ("m", 5, 0.5, "x")
    assert trace.active_counts().tolist() == [1, 0, 1, 2, 1]
    assert trace.duration_s == 9
    assert trace.mean_active() == pytest.approx((1.5 + 2 * 7) / 9)


def test_attributes_and_the_last_columns_may_be_left_out():
    assert parse("0,a,arrive").num_sessions == 1


def test_an_end_line_gives_the_duration():
    assert parse("0,a,arrive,", "60,,end,").duration_s == 60


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["x,a,arrive,"], r"line 2: not a number; .*|time_s='x'"),
        (["-1,a,arrive,"], r"time_s='-1': t.csv line 2: not a time within a trace; allowed: seconds from 0"),
        (["nan,a,arrive,"], "time_s='nan'"),
        (["5,a,arrive,", "4,b,arrive,"], r"line 3: earlier than the line before; allowed: at least 5.0"),
        (["0,a,arrives,"], r"event='arrives': t.csv line 2: no such event; allowed: arrive, .*; nearest: arrive"),
        (["0,a,idle,"], r"session_id='a': t.csv line 2: idle of a session that has not arrived; allowed: arrive"),
        (["0,a,arrive,", "1,a,arrive,"], r"line 3: arrive of a session that is active; allowed: idle or depart"),
        (["0,a,arrive,", "1,a,activate,"], "activate of a session that is active"),
        (["0,a,arrive,", "1,a,idle,", "2,a,idle,"], "idle of a session that is idle; allowed: activate or depart"),
        (["0,a,arrive,", "1,a,depart,", "2,a,arrive,"], "arrive of a session that has departed; allowed: nothing"),
        (["0,,arrive,"], r"session_id='': .*no name"),
        (["0,a"], r"columns='0,a': t.csv line 2: 2 columns"),
        (["0,a,arrive,size=3"], r"attributes='size=3': .*allowed: name=value"),
        (["0,a,arrive,slo=3"], "nearest: slo_s"),
        (["0,a,arrive,state_bytes=-3"], r"attributes.state_bytes='-3'"),
        (["0,a,arrive,slo_s=1;slo_s=2"], "given twice"),
        (["0,a,arrive,", "1,a,idle,model=m"], "attributes after the arrival"),
        (["0,a,arrive,", "1,,end,", "2,b,arrive,"], "after the end"),
        (["0,a,arrive,", "1,a,end,"], "belongs to no session"),
        ([], "no events"),
    ],
)
def test_a_bad_line_is_named(lines, message):
    with pytest.raises(TraceError, match=message):
        parse(*lines)


@pytest.mark.parametrize("text", ["", "time,session\n0,a\n", "0,a,arrive,\n"])
def test_a_file_without_the_header_is_refused(text):
    with pytest.raises(TraceError, match=r"line 1: not the header.*allowed: time_s,session_id,event,attributes"):
        parse_trace(text, origin="t.csv")


def test_a_quote_that_does_not_end_is_refused():
    with pytest.raises(TraceError, match="line 2"):
        parse('0,"a,arrive,')


def test_no_text_and_no_file_are_refused(tmp_path):
    with pytest.raises(TraceError, match="cannot be read as text"):
        read_trace(tmp_path / "missing.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="cannot be read as text"):
        read_trace(tmp_path / "b.csv")


def test_a_check_tells_of_several_problems_and_stops_at_a_limit(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "0,a,arrive,\n1,b,idle,\n2,a,idle,\n3,a,idle,\n")
    problems, trace = find_problems(path)
    assert [(problem.line, problem.field) for problem in problems] == [(3, "session_id"), (5, "session_id")]
    assert trace.num_events == 2
    path.write_text(HEADER + "x,a,arrive,\n" * 100)
    assert len(find_problems(path)[0]) == 20


def test_one_bad_line_among_a_million_is_found(tmp_path):
    lines = []
    for index in range(250_000):
        lines += [f"{index},s{index},arrive,", f"{index}.25,s{index},idle,", f"{index}.5,s{index},activate,"]
        lines.append(f"{index}.75,s{index},depart,")
    lines[700_001] = lines[700_001].replace("idle", "idel")
    path = tmp_path / "million.csv"
    path.write_text(HEADER + "\n".join(lines) + "\n")
    start = time.perf_counter()
    with pytest.raises(TraceError, match=r"event='idel': .*line 700003: no such event; .*nearest: idle"):
        read_trace(path)
    assert time.perf_counter() - start < 60


def test_what_is_written_is_read_back_to_the_bit(tmp_path):
    trace = make_trace(TraceSettings(0.3, 4, 300.0, state_sigma=0.5, model="m"))
    path = tmp_path / "t.csv"
    path.write_text(format_trace(trace))
    again = read_trace(path)
    for name in ("time_s", "session", "kind"):
        assert np.array_equal(getattr(trace, name), getattr(again, name))
    assert (trace.attributes, trace.ids, trace.duration_s) == (again.attributes, again.ids, again.duration_s)


def test_a_summary():
    lines = ("0,a,arrive,tenant=t", "10,a,idle,", "30,b,arrive,model=m", "70,a,depart,", "80,b,depart,")
    figures = summarise(parse(*lines))
    assert (figures.num_sessions, figures.num_events, figures.max_active) == (2, 5, 1)
    assert figures.median_length_s == 60
    assert figures.mean_active_spell_s == 30
    assert figures.max_arrivals_per_minute == 2
    assert (figures.models, figures.tenants) == (("m",), ("t",))
