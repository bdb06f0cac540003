"""Sessions: streams side by side, suspended, moved, and how soon they begin.

    fps_one_session          frames a second of one session
    coalesce_gain_4          frames a second of four sessions together, over four in turn
    first_chunk_ratio        from asking for a session to its first frames, over the time of a steady chunk, after load
    suspend_resume_overhead  suspending a session and resuming it, over the time of a steady chunk: in host memory
                             nothing is copied, so that all of it is overhead
    migration_overhead       moving a session to another process, less writing its state to disk and sending it, both
                             at the same time, over the time of a steady chunk
    migration_copy_ratio     bytes a second of slabs as 1.3B models have them, through the transport, over copying them
                             into memory that both processes share and out of it

Both processes of a migration are on this machine, and the vault is in `--vault`. A steady chunk is the median of the
chunks after the first two. The card is a parameter; the targets are those of `wan-shapes-causal`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from _common import make_parser, positive, report
from fastvideo_core import Engine
from fastvideo_core.request.events import MediaChunk
from fastvideo_core.runtime.sessions import ParkedState, Session, SessionOptions
from fastvideo_core.runtime.sessions.migration import Point, receive_session, save_session, send_session
from fastvideo_core.runtime.sessions.parked import write_parked
from fastvideo_core.runtime.sessions.vault import SessionVault
from fastvideo_core.transport import Channel, Message
from fastvideo_transports.shm import SharedMemoryTransport

TIMEOUT_S = 600.0
SLAB_SHAPE = (2, 30, 4680, 12, 128)
QUICK_SLAB_SHAPE = (2, 2, 512, 12, 128)
"""Keys and values of three latent frames at 480x832 in 30 layers; a window of LongLive has four of them."""


class Streams:
    """Makes sessions that nobody holds up.

    Args:
        engine: Where they run.
        prompt: What they show.
    """

    def __init__(self, engine: Engine, prompt: str) -> None:
        self.engine = engine
        self._prompt = prompt
        self._seed = 0

    def begin(self, num_chunks: int | None = None, **given: Any) -> Session:
        """Begin the stream of another seed."""
        self._seed += 1
        options = SessionOptions(**{"num_chunks": num_chunks, "buffer_s": 1e9, **given})
        return self.engine.session(self._prompt, seed=self._seed, options=options)

    def chunk_times(self, num_chunks: int) -> tuple[float, list[float], int]:
        """Return the seconds to a session's first frames, those of each further chunk, and frames of the last one."""
        asked_at = time.perf_counter()
        arrivals, frames = [], 0
        with self.begin(num_chunks) as session:
            for chunk in session.chunks(TIMEOUT_S):
                arrivals.append(time.perf_counter())
                frames = len(chunk.data)
        return arrivals[0] - asked_at, [later - sooner for sooner, later in itertools.pairwise(arrivals)], frames

    def together(self, num_sessions: int, num_chunks: int) -> float:
        """Return the seconds of some sessions that all run at once."""
        started_at = time.perf_counter()
        sessions = [self.begin(num_chunks) for _ in range(num_sessions)]
        for session in sessions:
            for _ in session.chunks(TIMEOUT_S):
                pass
        return time.perf_counter() - started_at

    def suspended_s(self, num_rounds: int) -> float:
        """Return the median seconds of suspending a session that is held between two chunks, and resuming it."""
        seconds = []
        with self.begin(buffer_s=0.0) as session:
            _read(session, 2)
            for _ in range(num_rounds):
                session.pause()
                _wait_for(session, "session.held")
                started_at = time.perf_counter()
                session.suspend()
                session.resume()
                seconds.append(time.perf_counter() - started_at)
                _read(session, 1)
        return statistics.median(seconds)


def _read(session: Session, num_chunks: int) -> None:
    for event in session.events(TIMEOUT_S):
        num_chunks -= isinstance(event, MediaChunk)
        if num_chunks == 0:
            return


def _wait_for(session: Session, kind: str) -> None:
    for event in session.events(TIMEOUT_S):
        if event.type == kind:
            return


def target(link: Connection, card: str, vault: str, num_threads: int) -> None:
    """Take sessions, and then bare copies, in a process of its own."""
    torch.set_num_threads(num_threads)
    transport = SharedMemoryTransport()
    listener = transport.listen()
    link.send(listener.address)
    channel = listener.accept(timeout_s=TIMEOUT_S)
    with Engine.open(card) as engine, SessionVault(Path(vault)) as box:
        link.send("ready")
        while (name := link.recv()) is not None:
            points: dict[str, float] = {}

            def note(point: Point, points: dict[str, float] = points) -> None:
                points[point] = time.monotonic()

            session = receive_session(engine, channel, box, owner=name, at=note)
            link.send(points["going on"])
            session.close()
            message = channel.receive(timeout_s=TIMEOUT_S)
            channel.send(Message({"got": len(message.tensors)}), timeout_s=TIMEOUT_S)
    _take_copies(link, channel)


def _take_copies(link: Connection, channel: Channel) -> None:
    shared: torch.Tensor = link.recv()
    for _ in range(link.recv()):
        kept = []
        for _ in range(link.recv()):
            link.recv()
            kept.append(shared.clone())
            link.send("taken")
        del kept
        message = channel.receive(timeout_s=TIMEOUT_S)
        channel.send(Message({"got": len(message.tensors)}), timeout_s=TIMEOUT_S)
        del message


@contextmanager
def _other_process(card: str, vault: Path) -> Iterator[tuple[Connection, Channel]]:
    context = multiprocessing.get_context("spawn")
    link, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, card, str(vault), torch.get_num_threads()), daemon=True)
    process.start()
    channel = SharedMemoryTransport().connect(link.recv(), timeout_s=TIMEOUT_S)
    assert link.recv() == "ready"
    try:
        yield link, channel
        process.join(TIMEOUT_S)
    finally:
        channel.close()
        link.close()


def migration_s(streams: Streams, link: Connection, channel: Channel, vault: Path, num_rounds: int) -> float:
    """Return the median seconds of moving a session, less those of writing and sending its tensors alone."""
    overheads = []
    box = SessionVault(vault)
    for number in range(num_rounds):
        session = streams.begin(buffer_s=0.0)
        save_session(session, box, owner="source")
        _read(session, 3)
        session.pause()
        _wait_for(session, "session.held")
        name = f"target-{number}"
        link.send(name)
        packed = session.snapshot()
        started_at = time.monotonic()
        send_session(session, channel, box, owner="source", to=name)
        moved_s: float = link.recv() - started_at
        overheads.append(moved_s - _bare_copy_s(packed, channel, vault))
        box.remove(session.session_id, owner=name)
    link.send(None)
    return max(0.0, statistics.median(overheads))


def _bare_copy_s(packed: ParkedState, channel: Channel, vault: Path) -> float:
    """Return the seconds of writing a state to the vault's disk and sending it meanwhile, and nothing else."""
    started_at = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_parked, packed, vault / "bare.json")
        channel.send(Message({}, packed.tensors), timeout_s=TIMEOUT_S)
        channel.receive(timeout_s=TIMEOUT_S)
        writing.result()
    return time.monotonic() - started_at


def copy_ratio(
    link: Connection, channel: Channel, num_slabs: int, num_rounds: int, shape: tuple[int, ...] = SLAB_SHAPE
) -> float:
    """Return bytes a second through the transport over those of plain copies through shared memory."""
    slab = torch.zeros(shape, dtype=torch.bfloat16)
    shared = torch.zeros(shape, dtype=torch.bfloat16).share_memory_()
    link.send(shared)
    link.send(num_rounds)
    plain, ours = [], []
    for _ in range(num_rounds):
        link.send(num_slabs)
        started_at = time.perf_counter()
        for _ in range(num_slabs):
            shared.copy_(slab)
            link.send("there")
            link.recv()
        plain.append(time.perf_counter() - started_at)
        started_at = time.perf_counter()
        channel.send(Message({}, {str(index): slab for index in range(num_slabs)}), timeout_s=TIMEOUT_S)
        channel.receive(timeout_s=TIMEOUT_S)
        ours.append(time.perf_counter() - started_at)
    return statistics.median(plain) / statistics.median(ours)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = make_parser(__doc__.splitlines()[0], num_rounds=3)
    parser.add_argument("--card", default="wan-shapes-causal", help="card or checkpoint folder (default: %(default)s)")
    parser.add_argument("--prompt", default="a red circle moving right", help="what the streams show")
    parser.add_argument("--chunks", type=positive, default=12, help="chunks of a session (default: %(default)s)")
    parser.add_argument("--slabs", type=positive, default=4, help="slabs of the copied state (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="small slabs, to see that it runs")
    parser.add_argument("--vault", type=Path, help="folder of states (default: a temporary one)")
    args = parser.parse_args(argv)
    report(measure(args), as_json=args.json)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    with tempfile.TemporaryDirectory() as folder, Engine.open(args.card) as engine:
        vault = args.vault or Path(folder)
        streams = Streams(engine, args.prompt)
        streams.chunk_times(args.chunks)
        runs = [streams.chunk_times(args.chunks) for _ in range(args.rounds)]
        chunk_s = statistics.median(seconds for _, after, _ in runs for seconds in after[1:])
        frames = runs[0][2]
        serial, parallel = [], []
        for _ in range(args.rounds):
            serial.append(sum(streams.together(1, args.chunks) for _ in range(4)))
            parallel.append(streams.together(4, args.chunks))
        figures: dict[str, Any] = {
            "fps_one_session": frames / chunk_s,
            "coalesce_gain_4": statistics.median(serial) / statistics.median(parallel),
            "first_chunk_ratio": statistics.median(first for first, _, _ in runs) / chunk_s,
            "suspend_resume_overhead": streams.suspended_s(3 * args.rounds) / chunk_s,
        }
        with _other_process(args.card, vault) as (link, channel):
            figures["migration_overhead"] = migration_s(streams, link, channel, vault, 3 * args.rounds) / chunk_s
            figures["migration_copy_ratio"] = copy_ratio(
                link, channel, args.slabs, args.rounds, QUICK_SLAB_SHAPE if args.quick else SLAB_SHAPE
            )
        return {**figures, "chunk_s": chunk_s, "card": engine.card.model_id}


if __name__ == "__main__":
    main()
