"""Parts that plugins bring: routes beside the server's own, tasks beside the card's, and what they run under."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import dataclass, replace

import av
import numpy as np
import pytest
import torch
from starlette.responses import JSONResponse
from starlette.routing import Route

from fastvideo_core.card import InputSpec, ParameterSpec, TaskSpec
from fastvideo_core.cli.setup import Setup
from fastvideo_core.errors import InputError, PluginError, StateError
from fastvideo_core.extend import ServerPartSpec
from fastvideo_core.extend.collect import Brought
from fastvideo_core.extend.extensions import NO_EXTENSIONS
from fastvideo_core.loop.work import StepCost
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.patches import WeightPatch
from fastvideo_core.runtime.serving import OfferedTask, ServerPart, Wanted, WeightStack
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.jobs.records import JobRecord
from fastvideo_server.serve import open_parts

MODULE = "parts_of_a_plugin"
COST = StepCost(1.0, weight_bytes=1.0)


def scaling(factor):
    def put_on(module):
        base = [one.clone() for one in module.parameters()]
        for one in module.parameters():
            one.mul_(factor)

        def undo():
            with torch.no_grad():
                for one, kept in zip(module.parameters(), base, strict=True):
                    one.copy_(kept)

        return undo

    return WeightPatch(f"x{factor}", put_on, COST, COST)


def stack(factor):
    return WeightStack(f"x{factor}", lambda instance: {"transformer": scaling(factor)})


def make_part(host):
    """A part with a route that runs a request, and a task with a word for the card's prompt."""
    base = host.card.task(host.card.capabilities.default_task)

    def build(call):
        if call.parameters.get("subject") == "nothing":
            raise InputError("nothing to show", field="subject", value="nothing")
        return build_request(
            host.card, f"a {call.parameters.get('subject', 'dog')}", parameters={"seed": 1, "num_inference_steps": 2}
        )

    task = TaskSpec(
        program=base.program, inputs={"image": InputSpec(modality="image", required=False)}, outputs=base.outputs,
        parameters={"subject": ParameterSpec(type="string", default="dog"),
                    "factor": ParameterSpec(type="number", default=1.0)},
        description="shows something",
    )  # fmt: skip

    async def run(request):
        wanted = Wanted(build_request(host.card, "x", parameters={"seed": 1, "num_inference_steps": 2}))
        (job,) = await host.begin([wanted], host.identify(request))
        await job.ended.wait()
        return JSONResponse({"frames": len(job.result.video.frames), "error": str(job.error)})

    async def fail(request):
        raise InputError("not so", field="x", value=1, allowed="2")

    routes = [Route("/gallery", run), Route("/gallery/fail", fail)]
    weights = lambda call: stack(call.parameters["factor"]) if "factor" in call.parameters else None  # noqa: E731
    return ServerPart(routes, {"show": OfferedTask(task, build, weights, "3")})


def make_doubled(host):
    return ServerPart(tasks={host.card.capabilities.default_task: None})


def make_hidden(host):
    return ServerPart([Route("/v1/models", make_part)])


@dataclass(frozen=True)
class PluggedSetup(Setup):
    made: str = "make_part"

    def extensions(self, card):
        spec = ServerPartSpec("gallery", f"{MODULE}:{self.made}")
        return replace(NO_EXTENSIONS, server_parts={"gallery": Brought("server.gallery", spec)})


@pytest.fixture(scope="module", autouse=True)
def module():
    """This module, under a name that a description can have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, MODULE, sys.modules[__name__])
        yield


@pytest.fixture(scope="module")
def plugged(running, tiny_card, tmp_path_factory):
    with running(tiny_card, tmp_path_factory.mktemp("plugged"), setup=PluggedSetup()) as server:
        yield server


@pytest.fixture
def client(plugged):
    with plugged.client() as client:
        yield client


def made(client, **fields):
    job = client.post("/v1/videos", json={"task": "show", **fields}).json()
    end = time.monotonic() + 60
    while job["status"] not in ("completed", "failed"):
        assert time.monotonic() < end
        time.sleep(0.02)
        job = client.get(f"/v1/videos/{job['id']}").json()
    assert job["status"] == "completed", job["error"]
    return client.get(f"/v1/videos/{job['id']}/content").content


def test_its_routes_are_there_and_fail_like_the_servers_own(client):
    assert client.get("/gallery").json() == {"frames": 9, "error": "None"}
    answer = client.get("/gallery/fail")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x"
    assert answer.headers["X-Request-Id"]


def test_its_tasks_are_listed_and_called(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["tasks"]["show"]["version"] == "3"
    assert card["tasks"]["show"]["parameters"]["subject"]["default"] == "dog"
    assert made(client, subject="fox")
    for fields, param in (
        ({"subject": 5}, "subject"), ({"prompt": "x"}, "prompt"), ({"subject": "nothing"}, "subject"),
        ({"exact": True}, "exact"), ({"latency_class": "soon"}, "latency_class"), ({"factor": "x"}, "factor"),
    ):  # fmt: skip
        answer = client.post("/v1/videos", json={"task": "show", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    answer = client.post("/v1/videos", json={"task": "shwo", "prompt": "x"})
    assert answer.json()["error"]["nearest"] == "show"


def test_jobs_run_on_the_weights_that_they_ask_for(client, plugged):
    module = plugged.parts.service.engine.instance.component("transformer")
    base = [one.clone() for one in module.parameters()]
    plain = made(client)
    jobs = [client.post("/v1/videos", json={"task": "show", "factor": one}).json()["id"] for one in (1.5, 1.0, 1.5)]
    jobs.append(client.post("/v1/videos", json={"task": "show"}).json()["id"])
    end = time.monotonic() + 60
    while any(client.get(f"/v1/videos/{one}").json()["status"] != "completed" for one in jobs):
        assert time.monotonic() < end
        time.sleep(0.02)
    first, same, third, last = (frames(client.get(f"/v1/videos/{one}/content").content) for one in jobs)
    assert np.array_equal(first, third)
    assert not np.array_equal(first, same)
    assert np.array_equal(same, frames(plain))
    assert np.array_equal(last, frames(plain))
    assert all(torch.equal(one, kept) for one, kept in zip(module.parameters(), base, strict=True))


def frames(data):
    with av.open(io.BytesIO(data)) as video:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)])


def test_a_job_goes_on_only_under_the_weights_that_it_began_with(plugged):
    preparer = plugged.parts.service.preparer
    record = JobRecord("j", "anybody", "queued", 0.0, "tiny", "show", "", "", "", asked={"factor": 1.5}, weights="x1.5")
    assert preparer.weights_again(record).key == "x1.5"
    assert preparer.weights_again(replace(record, weights=None)) is None
    for changed in (replace(record, weights="x2"), replace(record, asked={}), replace(record, task="gone")):
        with pytest.raises(StateError, match="are not those that job j began with"):
            preparer.weights_again(changed)


@pytest.mark.parametrize(
    ("name", "message"),
    [("make_doubled", "tasks whose names are taken"), ("make_hidden", "routes that are there already: /v1/models"),
     ("nothing", "implementation of 'gallery'")],
)  # fmt: skip
def test_parts_that_cannot_be(name, message, tiny_card, tmp_path):
    settings = ServerConfig(folder=tmp_path, min_free=0)
    with (
        pytest.raises(PluginError, match=message),
        open_parts(settings, tiny_card, setup=PluggedSetup(made=name), device="cpu") as parts,
    ):
        create_app(parts)
