"""All published templates: no crash, honest refusals, and what is the same however a template is given."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastvideo_comfy.cli.coverage import measure
from fastvideo_comfy.compiler import examine
from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.graph import flatten, parse_document, read_document
from fastvideo_core.cli.main import main

WAN = {
    "image_to_video_wan.json",
    "text_to_video_wan.json",
    "video_wan2_2_14B_flf2v.json",
    "video_wan2_2_14B_i2v.json",
    "video_wan2_2_14B_t2v.json",
    "video_wan2_2_5B_ti2v.json",
}


@pytest.fixture(scope="module")
def coverage(templates):
    return measure(templates[0].parent)


def test_every_template_is_judged(coverage, templates):
    assert len(coverage.reports) == len(templates) == 644
    assert sum(coverage.total.values()) == 644
    assert {name for name, report in coverage.reports.items() if report.is_supported} == WAN


def test_every_refusal_names_nodes_of_the_file(coverage):
    for name, report in coverage.reports.items():
        if report.is_supported:
            continue
        known = {node.node_id for node in report.nodes}
        assert all(problem.message for problem in report.problems), name
        # A problem without a node is one of the file as a whole: no output, a broken definition.
        assert {problem.node for problem in report.problems} - known <= {""} or any(
            problem.code in ("missing_definition", "widget_count") for problem in report.problems
        ), name


def test_the_types_of_the_wan_and_cosmos_templates_have_reasons_of_substance(coverage):
    used, unknown = Counter(), Counter()
    for name, report in coverage.reports.items():
        if name.startswith("api_") or ("wan" not in name and "cosmos" not in name):
            continue
        for node in report.nodes:
            if node.status != "inert":
                used[node.type] += 1
            if "no rule for this node type" in node.why:
                unknown[node.type] += 1
    common = [kind for kind, _ in used.most_common(60)]
    assert [kind for kind in common if kind in unknown] == []


@pytest.mark.parametrize("name", sorted(WAN))
def test_a_template_in_api_form_is_the_same_program(templates, find_card, name):
    document = read_document(templates[0].parent / name)
    program = examine(document, find_card=find_card).expect()
    prompt = parse_document(json.dumps(flatten(document).to_prompt()), name=document.name)
    assert examine(prompt, find_card=find_card).expect() == program


def test_the_command_prints_shares_by_family(templates, tmp_path, capsys):
    for name in ("text_to_video_wan.json", "api_wan_text_to_video.json", "video_wan_vace_14B_t2v.json"):
        (tmp_path / name).write_bytes((templates[0].parent / name).read_bytes())
    (tmp_path / "other.json").write_text("[]")
    assert main(["comfy", "coverage", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "wan              1     2  50.0%" in out
    assert "partner          0     1   0.0%" in out
    assert "no workflows: 1 files" in out
    assert main(["comfy", "coverage", str(tmp_path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["compiles"] for line in lines] == [False, True, False]


SAMPLE = ("text_to_video_wan.json", "video_wan2_2_14B_t2v.json", "video_wan2_2_14B_i2v.json", "image_to_video_wan.json")
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8),
    st.sampled_from(["__proto__", "constructor", "../../etc/passwd", "C:\\x", "{a|b}", "(x:1.2)", [], {}, [1]]),
)  # fmt: skip


def places(content, path=()):
    """Return the paths of all values of a document."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def mutate(content, path, value, how):
    for key in path[:-1]:
        content = content[key]
    key = path[-1]
    if how == "replace":
        content[key] = value
    elif how == "delete":
        del content[key]
    elif isinstance(content, list):
        content.insert(key, content[key])
    else:
        content[f"{key}_"] = content[key]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_templates_give_a_report_and_never_a_traceback(templates, find_card, data):
    name = data.draw(st.sampled_from(SAMPLE))
    is_api = data.draw(st.booleans())
    text = (templates[0].parent / name).read_text(encoding="utf-8")
    content = flatten(parse_document(text)).to_prompt() if is_api else json.loads(text)
    for _ in range(data.draw(st.integers(1, 4))):
        every = [path for path in places(content) if path]
        path = every[data.draw(st.integers(0, len(every) - 1))]
        mutate(content, path, data.draw(JUNK), data.draw(st.sampled_from(["replace", "delete", "double"])))
    try:
        document = parse_document(content)
    except WorkflowError:
        return  # the door refuses what is no workflow
    report = examine(document, find_card=find_card).report
    json.loads(report.to_json())
    assert report.table().splitlines()[-1].startswith("workflow: ")
    assert report.is_supported == (report.errors()["node_errors"] == {} and not report.problems)
