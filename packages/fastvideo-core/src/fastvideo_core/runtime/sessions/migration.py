"""Moving a session to another engine, in this process or another one: frozen, sent, installed, verified, handed over.

1. The source ends the session's leg at a chunk boundary and gives its reader nothing more.
2. It sends state, unread media and waiting pushes; the target installs them, without a step, and answers with the
   digest of what it has. Meanwhile the source saves the session in the vault.
3. Once it is both saved and installed, the source, and only the source, changes the owner in the vault: one row, at
   once. Up to here the session is its own, from here on it is the target's.
4. The target, told so, or finding so in the vault when the source is gone, goes on.

Whoever is killed, the row says whose the session is; `recover` goes on from what was saved last: before step 3 that may
be older than what was sent, but nobody has gone on from what was sent.

Source: the consistency protocol of TurboServe, section 6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fastvideo_core.errors import FastVideoError, SessionEndedError, SessionError, StateError, TransportError
from fastvideo_core.runtime.sessions.moving import pack_session, unpack_session
from fastvideo_core.runtime.sessions.parked import ParkedState, digest_of
from fastvideo_core.runtime.sessions.session import Session
from fastvideo_core.runtime.sessions.vault import SessionVault
from fastvideo_core.transport import Channel, Message

if TYPE_CHECKING:
    from fastvideo_core.runtime.engine import Engine

__all__ = ["Point", "receive_session", "recover", "save_session", "send_session"]

Point = Literal["frozen", "sent", "installed", "saved", "handed over", "told", "going on"]
"""Where the protocol is."""

_WITHDRAW_S = 1.0
"""Seconds in which the other end is told that it gets nothing; it finds out by itself too."""


def _no_matter(point: Point) -> None:
    """Take no notice of where the protocol is."""
    del point


def save_session(session: Session, vault: SessionVault, *, owner: str) -> None:
    """Put a session into a vault, or its state at the beginning of the chunk in progress in place of an older one.

    Before its first chunk, what is saved is its request.

    Raises:
        SessionEndedError: It has ended, or is another's now.
        StateError: It reads files, which might be gone.
    """
    packed = pack_session(session, *session.captured())
    if vault.owner_of(session.session_id) is None:
        vault.add(session.session_id, packed, owner=owner)
    else:
        vault.save(session.session_id, packed, owner=owner)


def send_session(
    session: Session,
    channel: Channel,
    vault: SessionVault,
    *,
    owner: str,
    to: str,
    timeout_s: float = 60.0,
    at: Callable[[Point], object] = _no_matter,
) -> None:
    """Move a session to whoever is at the other end of a channel; it has ended here when this returns.

    Args:
        session: The session, which is in the vault.
        channel: Leads to `receive_session`.
        vault: Says whose sessions are.
        owner: Who has it, as the vault has it.
        to: Who is to have it.
        timeout_s: Seconds that each message may take.
        at: Told where the protocol is.

    Raises:
        TransportError: It could not be moved; it goes on here.
        SessionError: The target refuses it, or it is not the owner's; in the first case it goes on here.
    """
    if vault.owner_of(session.session_id) != owner:
        raise SessionEndedError(f"session {session.session_id} is not {owner}'s to send")
    session.freeze()
    try:
        at("frozen")
        packed = pack_session(session, *session.captured())
        # The disk and the other process take their time side by side.
        with ThreadPoolExecutor(1, "fastvideo-vault") as pool:
            saving = pool.submit(vault.save, session.session_id, packed, owner=owner)
            _offer(session.session_id, packed, channel, timeout_s, at)
            at("installed")
            _hand_over(session.session_id, channel, vault, saving, owner=owner, to=to, at=at)
    except Exception:
        with suppress(FastVideoError):  # without a place it stays suspended; why it was not moved matters more
            session.unfreeze()
        raise
    at("handed over")
    session.leave()
    try:
        channel.send(Message({"owner": to}), timeout_s=timeout_s)
    except TransportError:
        return  # the target finds it in the vault
    at("told")


def receive_session(
    engine: Engine,
    channel: Channel,
    vault: SessionVault,
    *,
    owner: str,
    timeout_s: float = 60.0,
    at: Callable[[Point], object] = _no_matter,
) -> Session:
    """Take a session that `send_session` sends, and go on with it.

    Args:
        engine: Where it goes on.
        channel: Leads to the source.
        vault: Says whose sessions are.
        owner: Who this is, as the vault has it.
        timeout_s: Seconds that each message may take.
        at: Told where the protocol is.

    Raises:
        TransportError: The source is gone, and the session was not handed over.
        FastVideoError: The session cannot go on here; the source is told, and goes on with it.
    """
    message = channel.receive(timeout_s=timeout_s)
    packed = ParkedState(message.header, message.tensors)
    try:
        session = _install(engine, packed, seen=0)
    except FastVideoError as error:
        channel.send(Message({"refused": " ".join(str(error).split())}), timeout_s=timeout_s)
        raise
    try:
        channel.send(Message({"digest": digest_of(packed)}), timeout_s=timeout_s)
        at("installed")
        if (why := channel.receive(timeout_s=timeout_s).header.get("withdrawn")) is not None:
            session.leave()
            raise SessionError(f"session {session.session_id} stays where it was: {why}")
    except TransportError:
        if vault.owner_of(session.session_id) != owner:
            session.leave()
            raise
    at("told")
    session.unfreeze()
    at("going on")
    return session


def recover(
    engine: Engine, vault: SessionVault, *, owner: str, seen: Mapping[str, int] | None = None
) -> tuple[Session, ...]:
    """Go on with all sessions that are an owner's, from what was saved of them: after it was killed.

    Args:
        engine: Where they go on.
        vault: Where they were saved.
        owner: Who this is.
        seen: How many chunks the viewer of a session has; media before are not given out again.

    Raises:
        StateError: A file is corrupt.
    """
    sessions = []
    for session_id in vault.owned_by(owner):
        session = _install(engine, vault.load(session_id), seen=(seen or {}).get(session_id, 0))
        session.unfreeze()
        sessions.append(session)
    return tuple(sessions)


def _install(engine: Engine, packed: ParkedState, *, seen: int) -> Session:
    """Make a session that is frozen."""
    moved = unpack_session(packed, engine.card)
    options = replace(moved.options, replay=moved.waiting)
    return engine.install_session(moved, options, seen=seen)


def _offer(
    session_id: str, packed: ParkedState, channel: Channel, timeout_s: float, at: Callable[[Point], object]
) -> None:
    """Send a session, and wait until it is installed at the other end."""
    channel.send(Message(dict(packed.document), packed.tensors), timeout_s=timeout_s)
    at("sent")
    digest = digest_of(packed)  # while the other end installs it
    answer = channel.receive(timeout_s=timeout_s)
    if "refused" in answer.header:
        raise SessionError(f"session {session_id} is refused where it was sent: {answer.header['refused']}")
    if answer.header.get("digest") != digest:
        error = StateError(f"session {session_id} has arrived changed")
        _withdraw(channel, error)
        raise error


def _hand_over(
    session_id: str,
    channel: Channel,
    vault: SessionVault,
    saving: Future[None],
    *,
    owner: str,
    to: str,
    at: Callable[[Point], object],
) -> None:
    """Change the owner of a session that is installed, once it is saved too."""
    try:
        saving.result()
        at("saved")
        if not vault.hand_over(session_id, owner=owner, to=to):
            raise SessionError(f"session {session_id} is not {owner}'s to hand over")
    except Exception as error:
        _withdraw(channel, error)
        raise


def _withdraw(channel: Channel, error: Exception) -> None:
    """Tell who has installed a session that it is not given to them."""
    with suppress(TransportError):
        channel.send(Message({"withdrawn": " ".join(str(error).split())}), timeout_s=_WITHDRAW_S)
