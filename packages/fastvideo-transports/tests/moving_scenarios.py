"""Moves a session between two processes, killing one of them at some point of the protocol; run as a program.

    python moving_scenarios.py FOLDER SIDE:POINT ...

Prints one JSON line a scenario. Everything is imported once; each worker is a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import torch

from fastvideo_core import Engine
from fastvideo_core.errors import FastVideoError
from fastvideo_core.loop.chunks import PushText
from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions import LoggedPush, SessionOptions
from fastvideo_core.runtime.sessions.migration import receive_session, recover, save_session, send_session
from fastvideo_core.runtime.sessions.vault import SessionVault
from fastvideo_testing.tiny import tiny_causal_card, write_tiny_checkpoint
from fastvideo_transports.shm import SharedMemoryTransport

NUM_CHUNKS = 8
TIMEOUT_S = 60.0
PARAMETERS = {"seed": 5, "num_inference_steps": 2, "height": 16, "width": 16}


def deliver(folder, chunk):
    """Hand a chunk to the viewer; one that has come before is an error."""
    path = folder / f"chunk-{chunk.index:03d}"
    with path.open("xb") as file:
        file.write(chunk.data.numpy().tobytes())


def delivered(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("chunk-*"))}


def watch(session, folder, num_chunks=NUM_CHUNKS):
    """Deliver chunks until so many have been delivered in all, or the session ends."""
    while len(delivered(folder)) < num_chunks:
        event = session.outbox.get(TIMEOUT_S)
        if event is None:
            return
        if isinstance(event, MediaChunk):
            deliver(folder, event)


def begin(engine):
    # It runs ahead of its viewer by two chunks, so that some media have come out and not been read; one push is applied
    # early, one waits for its step while the session moves.
    pushes = (LoggedPush(6, PushText("a blue square")), LoggedPush(24, PushText("a green bar")))
    options = SessionOptions(num_chunks=NUM_CHUNKS, buffer_s=2.0, replay=pushes)
    return engine.session("a red circle", exact=True, options=options, session_id="s", **PARAMETERS)


def killing(side, mine, point):
    def at(reached):
        if (side, point) == (mine, reached):
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def source(card, folder, at):
    vault, transport = SessionVault(folder / "vault"), SharedMemoryTransport()
    with Engine.open(card) as engine:
        session = begin(engine)
        save_session(session, vault, owner="source")
        watch(session, folder, 3)
        save_session(session, vault, owner="source")
        listener = transport.listen()
        (folder / "address.new").write_text(listener.address)
        (folder / "address.new").rename(folder / "address")
        channel = listener.accept(timeout_s=TIMEOUT_S)
        try:
            send_session(session, channel, vault, owner="source", to="target", timeout_s=TIMEOUT_S, at=at)
        except FastVideoError:
            watch(session, folder)
        channel.close()
        listener.close()


def target(card, folder, at):
    vault = SessionVault(folder / "vault")
    while not (folder / "address").exists():
        time.sleep(0.01)
    with Engine.open(card) as engine:
        channel = SharedMemoryTransport().connect((folder / "address").read_text(), timeout_s=TIMEOUT_S)
        try:
            session = receive_session(engine, channel, vault, owner="target", timeout_s=TIMEOUT_S, at=at)
        except FastVideoError:
            return  # it was not handed over
        watch(session, folder)
        channel.close()


def restarted(card, folder, owner):
    with Engine.open(card) as engine:
        seen = {"s": len(delivered(folder))}
        for session in recover(engine, SessionVault(folder / "vault"), owner=owner, seen=seen):
            watch(session, folder)


def undisturbed(card, folder):
    """The same session, and nobody who moves it."""
    with Engine.open(card) as engine:
        session = begin(engine)
        watch(session, folder)


def forked(function, *arguments):
    """Run a function in a process of its own, and return the process's id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        function(*arguments)
    except BaseException:  # noqa: BLE001 - whatever it is, the fork must not go on as its parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def scenario(card, folder, side, point):
    folder.mkdir()
    pids = {
        "source": forked(source, card, folder, killing(side, "source", point)),
        "target": forked(target, card, folder, killing(side, "target", point)),
    }
    codes = {name: status_of(pid) for name, pid in pids.items()}
    for name, code in tuple(codes.items()):
        if code == -signal.SIGKILL:
            codes[f"{name} again"] = status_of(forked(restarted, card, folder, name))
    return {
        "side": side,
        "point": point,
        "codes": codes,
        "owner": SessionVault(folder / "vault").owner_of("s"),
        "chunks": {name: hash_of(data) for name, data in delivered(folder).items()},
        "open": [str(path) for path in Path("/dev/shm").glob("fastvideo*")],
    }


def hash_of(data):
    import hashlib

    return hashlib.sha256(data).hexdigest()


def main():
    torch.set_num_threads(1)
    folder, *wanted = sys.argv[1:]
    place = Path(folder)
    write_tiny_checkpoint(place / "model")
    card = tiny_causal_card(place / "model")
    (place / "alone").mkdir()
    assert status_of(forked(undisturbed, card, place / "alone")) == 0
    print(json.dumps({name: hash_of(data) for name, data in delivered(place / "alone").items()}), flush=True)
    for number, one in enumerate(wanted):
        side, point = one.split(":")
        print(json.dumps(scenario(card, place / str(number), side, point)), flush=True)


if __name__ == "__main__":
    main()
