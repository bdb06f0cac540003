"""The official OpenAI client asks a card with a reasoner."""

from __future__ import annotations

import base64
import io
import time

import httpx2
import openai
import pytest
from PIL import Image

from fastvideo_core.cli.jobs import find_card
from fastvideo_core.request.build import build_request

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "What is a gripper?"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def talking(tmp_path_factory, running):
    from fastvideo_cosmos3.testing import write_checkpoint

    folder = write_checkpoint(tmp_path_factory.mktemp("cosmos3") / "tiny")
    with running(find_card(str(folder)), tmp_path_factory.mktemp("talking")) as server:
        yield server


@pytest.fixture
def openai_client(talking):
    with openai.OpenAI(base_url=f"{talking.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def ask(model_id, **fields):
    return {**ASK, "model": model_id, **fields}


@pytest.fixture
def model_id(talking):
    return talking.parts.service.card.model_id


def engine_answer(server, prompt, *, image=None, history=None, **parameters):
    engine = server.parts.service.engine
    inputs = {} if history is None else {"history": history}
    request = build_request(
        engine.card, prompt, task="reasoning_text", image=image, inputs=inputs, parameters=parameters
    )
    return engine.submit(request).result().artifacts["text"]


def test_an_answer_is_the_reasoners_own(openai_client, model_id, talking):
    completion = openai_client.chat.completions.create(**ask(model_id))
    wanted = engine_answer(talking, "What is a gripper?", max_tokens=12)
    (choice,) = completion.choices
    assert (completion.object, completion.model) == ("chat.completion", model_id)
    assert (choice.message.role, choice.message.content) == ("assistant", wanted.text)
    assert choice.finish_reason == "length"
    assert completion.usage.completion_tokens == len(wanted.token_ids) == 12
    assert completion.usage.prompt_tokens == wanted.num_read > 5


def test_a_streamed_answer_is_the_same_in_parts(openai_client, model_id):
    whole = openai_client.chat.completions.create(**ask(model_id))
    stream = openai_client.chat.completions.create(**ask(model_id), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(text for text in texts if text) == whole.choices[0].message.content
    assert sum(bool(text) for text in texts) > 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_earlier_turns_and_an_image_are_seen(openai_client, model_id, talking, tmp_path):
    path = tmp_path / "red.png"
    Image.new("RGB", (32, 32), (255, 0, 0)).save(path)
    url = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}],
        },
        {"role": "assistant", "content": "A square."},
        {"role": "user", "content": "Of what colour?"},
    ]
    found = openai_client.chat.completions.create(**ask(model_id, messages=messages))
    history = (
        '[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},'
        ' {"role": "assistant", "content": [{"type": "text", "text": "A square."}]}]'
    )
    wanted = engine_answer(talking, "Of what colour?", image=path, history=history, max_tokens=12)
    assert found.choices[0].message.content == wanted.text
    assert found.usage.prompt_tokens == wanted.num_read


def test_sampling_and_stops_are_the_cards(openai_client, model_id, talking):
    fields = {"temperature": 1.5, "top_p": 0.9, "seed": 5}
    found = openai_client.chat.completions.create(**ask(model_id, **fields), extra_body={"top_k": 50})
    wanted = engine_answer(talking, "What is a gripper?", max_tokens=12, top_k=50, **fields)
    assert found.choices[0].message.content == wanted.text
    text = engine_answer(talking, "What is a gripper?", max_tokens=12).text
    stopped = openai_client.chat.completions.create(**ask(model_id, stop=text[4:6]))
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text[: text.index(text[4:6])]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages.0.content"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
                ]
            },
            "messages.0.content",
        ),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"n": 2}, "n"),
        ({"tools": []}, "tools"),
        ({"stream_options": {"x": 1}, "stream": True}, "stream_options"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(fields, param, openai_client, model_id):
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.chat.completions.create(**ask(model_id), extra_body=fields)
    assert refused.value.param == param


def test_a_card_without_a_reasoner_says_so(shared):
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(**ASK)
        assert refused.value.code == "unsupported"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_goes_away_ends_its_answer(is_streamed, talking, model_id):
    fields = ask(model_id, max_tokens=4000, stream=is_streamed)
    service = talking.parts.service
    steps = []
    service.on_end.append(lambda job, error: steps.append((len(job.handle.stream.read()), error)))
    with httpx2.Client(base_url=talking.url, timeout=1.0) as client:
        if is_streamed:
            with client.stream("POST", "/v1/chat/completions", json=fields) as response:
                next(response.iter_lines())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                client.post("/v1/chat/completions", json=fields)
    deadline = time.monotonic() + 30
    while service.num_unfinished:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ((count, error),) = steps
    service.on_end.clear()
    assert error is not None
    assert count < 4000


def test_videos_are_made_beside_answers(talking):
    with talking.client() as client:
        fields = {"prompt": "x", "num_frames": 5, "size": "32x32", "num_inference_steps": 1}
        video = client.post("/v1/videos", json=fields)
        assert video.status_code == 200, video.text
        events = client.get(f"/v1/videos/{video.json()['id']}/events").text
        assert "request.completed" in events
        assert Image.open(
            io.BytesIO(client.get(f"/v1/videos/{video.json()['id']}/content?variant=thumbnail").content)
        ).size == (32, 32)
