"""A hostile peer: a raw client on the project's own messages, which follows no rule of theirs.

It has one outbound connection, no listening port, and the model and settings of an insider. It runs
in the process of the test, so that it costs the learners no more than its messages do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Bulk, Offer
from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import CALLER, SERVICE
from mend_optim.transport.frames import to_frames

REPLY_S = 20.0
MESSAGE_LIMIT = 4 << 20
_END = object()
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class Call:
    """One stream to a learner. What is put goes out in order; what comes back is kept."""

    def __init__(self, rpc: Any, me: pb.PeerId, ending: threading.Condition) -> None:
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: list[bytes] = []
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self._ending = ending
        self.is_open = True
        metadata = ((CALLER, me.SerializeToString()),)
        self._rpc = rpc(iter(self._outbox.get, _END), metadata=metadata)
        threading.Thread(target=self._read, daemon=True).start()

    def put(self, *frames: bytes) -> None:
        for frame in frames:
            self._outbox.put(frame)

    def finish(self) -> None:
        self._outbox.put(_END)

    def cancel(self) -> None:
        self._outbox.put(_END)
        self._rpc.cancel()

    def ended(self, within_s: float = REPLY_S) -> bool:
        """Whether the learner ends the stream in time."""
        with self._ending:
            return self._ending.wait_for(lambda: not self.is_open, within_s)

    def _read(self) -> None:
        try:
            for answer in self._rpc:
                self.answers.append(answer)
            self.code = self._rpc.code()
        except grpc.RpcError as fault:
            self.code, self.details = fault.code(), fault.details()
        with self._ending:
            self.is_open = False
            self._ending.notify_all()


class Attacker:
    """A peer of any name, at the door of the learner at `address`, whose hello it knows."""

    def __init__(
        self,
        address: str,
        host: pb.Hello,
        name: str,
        incarnation: int = 0,
        channel: grpc.Channel | None = None,
    ) -> None:
        self.me = pb.PeerId(name=name, incarnation=incarnation or time.time_ns())
        self.channel = channel or grpc.insecure_channel(address, options=_OPTIONS)
        self.calls: list[Call] = []
        self.host = host
        #: Notified at the end of each call.
        self._ending = threading.Condition()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for call in self.calls:
            call.cancel()
        self.channel.close()

    # ── saying hello ──────────────────────────────────────────────────────────────────────────────

    def hello(self, **changes: Any) -> pb.Hello:
        """Say hello, with the learner's own model and settings; return the answer."""
        mine = pb.Hello()
        mine.CopyFrom(self.host)
        mine.peer.CopyFrom(self.me)
        mine.address = ""
        for field, value in changes.items():
            setattr(mine, field, value)
        return self._hello(mine)

    def _hello(self, hello: pb.Hello) -> pb.Hello:
        call = self.channel.unary_unary(f"/{SERVICE}/Hello")
        answer = call(hello.SerializeToString(), timeout=REPLY_S, wait_for_ready=True)
        return pb.Hello.FromString(answer)

    # ── streams ───────────────────────────────────────────────────────────────────────────────────

    def open(self, method: str, *frames: bytes) -> Call:
        """Open a stream of this method, and send these frames on it."""
        call = Call(self.channel.stream_stream(f"/{SERVICE}/{method}"), self.me, self._ending)
        call.put(*frames)
        self.calls.append(call)
        return call

    def ended_but_one(self, within_s: float = REPLY_S) -> list[Call]:
        """The calls that have ended, once the learner has ended all but one, or the time is over.

        It need not be the last that stays. A thread of its own sends the first message of each
        call, so those of two calls may arrive in the other order."""
        with self._ending:
            self._ending.wait_for(lambda: sum(call.is_open for call in self.calls) <= 1, within_s)
            return [call for call in self.calls if not call.is_open]

    def control(self, *messages: Any) -> Call:
        """Open a control stream, and say these messages on it."""
        return self.open("Control", *map(control, messages))

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    def beat(self, **fields: Any) -> pb.Beat:
        """A beat of the attacker; without reports it shows no anchor."""
        return pb.Beat(**{"peer": self.me, "count": 1, "training": True, **fields})

    def want(self, fragment: int = 0) -> pb.Want:
        return pb.Want(peer=self.me, fragment=fragment)

    def push(self, message: Bulk) -> Call:
        """Hand a seal or a whole anchor over that nobody has asked for."""
        call = self.open("Push", *to_frames(message))
        call.finish()
        return call

    def offers(self, offer: Offer, method: str = "Exchange") -> Call:
        """Hand an offer over, with its bytes."""
        call = self.open(method, *to_frames(offer))
        if method != "Exchange":
            call.finish()
        return call

    @property
    def id(self) -> PeerId:
        return PeerId(self.me.name, self.me.incarnation)

    def offer(self, sections: Iterable[tuple[str, int]], **fields: Any) -> bytes:
        """The header of an offer with sections of these sizes in bytes."""
        known = {"peer": self.me, "seq": 1, "tokens": 1, "steps": 1, "key": pb.Key(), "due": True}
        return header(sections, offer=pb.Offer(**{**known, **fields}))


def own_files(directory: Path) -> Iterator[bytes]:
    """The authority's certificate, the attacker's own, and its key."""
    return ((directory / f"{part}.pem").read_bytes() for part in ("ca", "cert", "key"))


def tls_channel(address: str, host: str, directory: Path, *, named: bool = True) -> grpc.Channel:
    """A connection with the certificate in this directory, or with none."""
    ca, chain, key = own_files(directory)
    own = (key, chain) if named else (None, None)
    options = [*_OPTIONS, ("grpc.ssl_target_name_override", host)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, *own), options=options)


def control(message: Any) -> bytes:
    """A message as it goes over a control stream."""
    kind = type(message).__name__.lower()
    data: bytes = pb.Control(**{kind: message}).SerializeToString()
    return data


def header(sections: Iterable[tuple[str, int]], **kind: Any) -> bytes:
    """The first frame of a bulky message."""
    listed = [
        pb.Section(name=name, codec="none", numel=nbytes // 4, nbytes=nbytes)
        for name, nbytes in sections
    ]
    data: bytes = pb.Frame(header=pb.Header(sections=listed, **kind)).SerializeToString()
    return data


def chunks(nbytes: int, size: int = 1 << 20) -> Iterator[bytes]:
    """Frames that carry so many bytes."""
    while nbytes > 0:
        yield pb.Frame(chunk=b"\1" * min(size, nbytes)).SerializeToString()
        nbytes -= size


def rumors(count: int, start: int = 0, **fields: Any) -> list[pb.Rumor]:
    """News of peers that do not exist."""
    now = time.time_ns()
    return [
        pb.Rumor(**{"peer": pb.PeerId(name=f"phantom-{n}", incarnation=now), "count": 1, **fields})
        for n in range(start, start + count)
    ]


def say(stream: Call, *messages: Any) -> None:
    """Say control messages on an open stream."""
    with suppress(ValueError):
        stream.put(*map(control, messages))
