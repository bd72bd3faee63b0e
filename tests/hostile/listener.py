"""A hostile peer that listens: it answers hellos, and answers offers with any message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from mend_optim.transport._pb import peer_pb2 as pb
from mend_optim.transport.connection import SERVICE
from mend_optim.transport.frames import ACK
from tests.hostile.attacker import Attacker, own_files


class Listener:
    """The server of an attacker, at `address`. `answer` makes the frames that answer an offer.
    `directory` has its certificate, if it is to have one."""

    def __init__(
        self,
        attacker: Attacker,
        answer: Callable[[pb.Offer], Iterable[bytes]] = lambda _: (),
        directory: Path | None = None,
    ) -> None:
        self._attacker, self._answer = attacker, answer
        #: The hellos and the headers of offers that came.
        self.hellos: list[pb.Hello] = []
        self.offers: list[pb.Offer] = []
        self._server = grpc.server(ThreadPoolExecutor(8))
        methods = {
            "Hello": grpc.unary_unary_rpc_method_handler(self._greet),
            "Exchange": grpc.stream_stream_rpc_method_handler(self._take),
        }
        handler = grpc.method_handlers_generic_handler(SERVICE, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self.address = f"127.0.0.1:{self._add_port('127.0.0.1:0', directory)}"
        self._server.start()

    def _add_port(self, address: str, directory: Path | None) -> int:
        if directory is None:
            return int(self._server.add_insecure_port(address))
        ca, chain, key = own_files(directory)
        credentials = grpc.ssl_server_credentials([(key, chain)], ca, True)
        return int(self._server.add_secure_port(address, credentials))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def _greet(self, request: bytes, _: object) -> bytes:
        self.hellos.append(pb.Hello.FromString(request))
        mine = pb.Hello()
        mine.CopyFrom(self._attacker.host)
        mine.peer.CopyFrom(self._attacker.me)
        mine.address = self.address
        answer: bytes = mine.SerializeToString()
        return answer

    def _take(self, frames: Iterator[bytes], _: object) -> Iterator[bytes]:
        """Take an offer whole, and answer it."""
        offer = pb.Offer()
        coming = 1
        for frame in map(pb.Frame.FromString, frames):
            if frame.HasField("header"):
                offer = frame.header.offer
                coming += sum(section.nbytes for section in frame.header.sections)
            coming -= len(frame.chunk)
            if coming == 1:
                break
        self.offers.append(offer)
        yield ACK
        yield from self._answer(offer)
