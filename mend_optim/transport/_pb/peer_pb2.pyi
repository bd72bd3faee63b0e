from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerId(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("tokens", "version", "digest")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    version: int
    digest: bytes
    def __init__(self, tokens: _Optional[int] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("peer", "address", "model", "policy", "protocol", "refusal", "namesake")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    NAMESAKE_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    address: str
    model: _containers.RepeatedCompositeFieldContainer[Field]
    policy: _containers.RepeatedCompositeFieldContainer[Field]
    protocol: int
    refusal: str
    namesake: Namesake
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., address: _Optional[str] = ..., model: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., policy: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., protocol: _Optional[int] = ..., refusal: _Optional[str] = ..., namesake: _Optional[_Union[Namesake, _Mapping]] = ...) -> None: ...

class Namesake(_message.Message):
    __slots__ = ("peer", "life")
    PEER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    life: str
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., life: _Optional[str] = ...) -> None: ...

class Control(_message.Message):
    __slots__ = ("beat", "goodbye", "call", "want")
    BEAT_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    beat: Beat
    goodbye: Goodbye
    call: Call
    want: Want
    def __init__(self, beat: _Optional[_Union[Beat, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("peer", "address", "count", "step", "tokens", "seconds_per_step", "training", "genesis", "reports", "roster", "ping", "pong", "position", "paces", "latency", "finishes", "ready", "turned_away", "ended", "zone", "takes_joint", "declines", "rests")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PACES_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TURNED_AWAY_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    TAKES_JOINT_FIELD_NUMBER: _ClassVar[int]
    DECLINES_FIELD_NUMBER: _ClassVar[int]
    RESTS_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    address: str
    count: int
    step: int
    tokens: int
    seconds_per_step: float
    training: bool
    genesis: bytes
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    roster: _containers.RepeatedCompositeFieldContainer[Rumor]
    ping: int
    pong: int
    position: int
    paces: _containers.RepeatedCompositeFieldContainer[Pace]
    latency: int
    finishes: bool
    ready: bytes
    turned_away: _containers.RepeatedCompositeFieldContainer[PeerId]
    ended: bytes
    zone: str
    takes_joint: int
    declines: bool
    rests: bool
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., address: _Optional[str] = ..., count: _Optional[int] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ..., seconds_per_step: _Optional[float] = ..., training: bool = ..., genesis: _Optional[bytes] = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., roster: _Optional[_Iterable[_Union[Rumor, _Mapping]]] = ..., ping: _Optional[int] = ..., pong: _Optional[int] = ..., position: _Optional[int] = ..., paces: _Optional[_Iterable[_Union[Pace, _Mapping]]] = ..., latency: _Optional[int] = ..., finishes: bool = ..., ready: _Optional[bytes] = ..., turned_away: _Optional[_Iterable[_Union[PeerId, _Mapping]]] = ..., ended: _Optional[bytes] = ..., zone: _Optional[str] = ..., takes_joint: _Optional[int] = ..., declines: bool = ..., rests: bool = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("cause", "now", "before", "spread", "run")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    cause: str
    now: float
    before: float
    spread: float
    run: int
    def __init__(self, cause: _Optional[str] = ..., now: _Optional[float] = ..., before: _Optional[float] = ..., spread: _Optional[float] = ..., run: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("key", "held", "group", "content", "latency")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    held: _containers.RepeatedCompositeFieldContainer[Merged]
    group: bytes
    content: Content
    latency: int
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., held: _Optional[_Iterable[_Union[Merged, _Mapping]]] = ..., group: _Optional[bytes] = ..., content: _Optional[_Union[Content, _Mapping]] = ..., latency: _Optional[int] = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("key", "digest")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    key: Key
    digest: bytes
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class Rumor(_message.Message):
    __slots__ = ("peer", "address", "count", "left", "finishes", "ready", "tokens", "proof", "reached", "declines", "hops")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    FINISHES_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    DECLINES_FIELD_NUMBER: _ClassVar[int]
    HOPS_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    address: str
    count: int
    left: bool
    finishes: bool
    ready: bytes
    tokens: int
    proof: bytes
    reached: bool
    declines: bool
    hops: int
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., address: _Optional[str] = ..., count: _Optional[int] = ..., left: bool = ..., finishes: bool = ..., ready: _Optional[bytes] = ..., tokens: _Optional[int] = ..., proof: _Optional[bytes] = ..., reached: bool = ..., declines: bool = ..., hops: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("peer", "proof")
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    proof: bytes
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("peer", "fragment", "key")
    PEER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    fragment: int
    key: Key
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., fragment: _Optional[int] = ..., key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("peer", "fragment", "have")
    PEER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    fragment: int
    have: bytes
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., fragment: _Optional[int] = ..., have: _Optional[bytes] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("header", "chunk", "ack", "checksum")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    header: Header
    chunk: bytes
    ack: Ack
    checksum: int
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., chunk: _Optional[bytes] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., checksum: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Header(_message.Message):
    __slots__ = ("offer", "seal", "state", "sections")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SECTIONS_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    seal: Seal
    state: State
    sections: _containers.RepeatedCompositeFieldContainer[Section]
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ..., seal: _Optional[_Union[Seal, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., sections: _Optional[_Iterable[_Union[Section, _Mapping]]] = ...) -> None: ...

class Section(_message.Message):
    __slots__ = ("name", "codec", "numel", "nbytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    NUMEL_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    codec: str
    numel: int
    nbytes: int
    def __init__(self, name: _Optional[str] = ..., codec: _Optional[str] = ..., numel: _Optional[int] = ..., nbytes: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("peer", "fragment", "seq", "tokens", "steps", "genesis", "key", "due", "inherited", "follows", "again_tokens", "again_steps", "rate", "others")
    PEER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    fragment: int
    seq: int
    tokens: int
    steps: int
    genesis: bytes
    key: Key
    due: bool
    inherited: Merged
    follows: int
    again_tokens: int
    again_steps: int
    rate: float
    others: _containers.RepeatedCompositeFieldContainer[Offer]
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., fragment: _Optional[int] = ..., seq: _Optional[int] = ..., tokens: _Optional[int] = ..., steps: _Optional[int] = ..., genesis: _Optional[bytes] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., due: bool = ..., inherited: _Optional[_Union[Merged, _Mapping]] = ..., follows: _Optional[int] = ..., again_tokens: _Optional[int] = ..., again_steps: _Optional[int] = ..., rate: _Optional[float] = ..., others: _Optional[_Iterable[_Union[Offer, _Mapping]]] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("sealer", "fragment", "base", "key", "members", "absent", "reason", "payload", "period")
    SEALER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    sealer: PeerId
    fragment: int
    base: bytes
    key: Key
    members: _containers.RepeatedCompositeFieldContainer[Member]
    absent: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    payload: bytes
    period: int
    def __init__(self, sealer: _Optional[_Union[PeerId, _Mapping]] = ..., fragment: _Optional[int] = ..., base: _Optional[bytes] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., absent: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., payload: _Optional[bytes] = ..., period: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("peer", "seq", "tokens", "steps", "weight", "again_tokens", "again_steps")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_STEPS_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    seq: int
    tokens: int
    steps: int
    weight: float
    again_tokens: int
    again_steps: int
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., seq: _Optional[int] = ..., tokens: _Optional[int] = ..., steps: _Optional[int] = ..., weight: _Optional[float] = ..., again_tokens: _Optional[int] = ..., again_steps: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("peer", "fragment", "lineage", "content", "period")
    PEER_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    fragment: int
    lineage: Lineage
    content: bytes
    period: int
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., fragment: _Optional[int] = ..., lineage: _Optional[_Union[Lineage, _Mapping]] = ..., content: _Optional[bytes] = ..., period: _Optional[int] = ...) -> None: ...

class Lineage(_message.Message):
    __slots__ = ("key", "genesis", "merged")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    key: Key
    genesis: bytes
    merged: _containers.RepeatedCompositeFieldContainer[Merged]
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., genesis: _Optional[bytes] = ..., merged: _Optional[_Iterable[_Union[Merged, _Mapping]]] = ...) -> None: ...

class Merged(_message.Message):
    __slots__ = ("peer", "seq")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    seq: int
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., seq: _Optional[int] = ...) -> None: ...

class Look(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class Sight(_message.Message):
    __slots__ = ("version", "peer", "address", "joined", "step", "tokens", "position", "cluster_step", "cluster_tokens", "seconds_per_step", "sync_every", "latency", "rounds", "unmerged_tokens", "dropped_tokens", "superseded_tokens", "bytes_sent", "bytes_received", "codec", "roster", "last", "reported", "quiet_s", "zone")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_STEP_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    SYNC_EVERY_FIELD_NUMBER: _ClassVar[int]
    LATENCY_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    UNMERGED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    QUIET_S_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    version: int
    peer: PeerId
    address: str
    joined: bool
    step: int
    tokens: int
    position: int
    cluster_step: int
    cluster_tokens: int
    seconds_per_step: float
    sync_every: int
    latency: int
    rounds: int
    unmerged_tokens: int
    dropped_tokens: int
    superseded_tokens: int
    bytes_sent: int
    bytes_received: int
    codec: str
    roster: _containers.RepeatedCompositeFieldContainer[Seen]
    last: _containers.RepeatedCompositeFieldContainer[SeenRound]
    reported: _containers.RepeatedCompositeFieldContainer[Reported]
    quiet_s: float
    zone: str
    def __init__(self, version: _Optional[int] = ..., peer: _Optional[_Union[PeerId, _Mapping]] = ..., address: _Optional[str] = ..., joined: bool = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ..., position: _Optional[int] = ..., cluster_step: _Optional[int] = ..., cluster_tokens: _Optional[int] = ..., seconds_per_step: _Optional[float] = ..., sync_every: _Optional[int] = ..., latency: _Optional[int] = ..., rounds: _Optional[int] = ..., unmerged_tokens: _Optional[int] = ..., dropped_tokens: _Optional[int] = ..., superseded_tokens: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ..., codec: _Optional[str] = ..., roster: _Optional[_Iterable[_Union[Seen, _Mapping]]] = ..., last: _Optional[_Iterable[_Union[SeenRound, _Mapping]]] = ..., reported: _Optional[_Iterable[_Union[Reported, _Mapping]]] = ..., quiet_s: _Optional[float] = ..., zone: _Optional[str] = ...) -> None: ...

class Seen(_message.Message):
    __slots__ = ("peer", "address", "state", "step", "tokens", "slow", "finishing", "zone", "declines", "missed")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOW_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    DECLINES_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    peer: PeerId
    address: str
    state: str
    step: int
    tokens: int
    slow: float
    finishing: bool
    zone: str
    declines: bool
    missed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, peer: _Optional[_Union[PeerId, _Mapping]] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., step: _Optional[int] = ..., tokens: _Optional[int] = ..., slow: _Optional[float] = ..., finishing: bool = ..., zone: _Optional[str] = ..., declines: bool = ..., missed: _Optional[_Iterable[int]] = ...) -> None: ...

class SeenRound(_message.Message):
    __slots__ = ("fragment", "version", "tokens", "reason", "sealer", "members", "absent")
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEALER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    fragment: int
    version: int
    tokens: int
    reason: str
    sealer: str
    members: _containers.RepeatedScalarFieldContainer[str]
    absent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fragment: _Optional[int] = ..., version: _Optional[int] = ..., tokens: _Optional[int] = ..., reason: _Optional[str] = ..., sealer: _Optional[str] = ..., members: _Optional[_Iterable[str]] = ..., absent: _Optional[_Iterable[str]] = ...) -> None: ...

class Reported(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("clock", "send", "take", "chunk", "dial")
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DIAL_FIELD_NUMBER: _ClassVar[int]
    clock: bool
    send: int
    take: int
    chunk: bytes
    dial: int
    def __init__(self, clock: bool = ..., send: _Optional[int] = ..., take: _Optional[int] = ..., chunk: _Optional[bytes] = ..., dial: _Optional[int] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("turn", "clock", "chunk", "taken", "token", "dialled")
    TURN_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIALLED_FIELD_NUMBER: _ClassVar[int]
    turn: Turn
    clock: Reading
    chunk: bytes
    taken: int
    token: bytes
    dialled: str
    def __init__(self, turn: _Optional[_Union[Turn, _Mapping]] = ..., clock: _Optional[_Union[Reading, _Mapping]] = ..., chunk: _Optional[bytes] = ..., taken: _Optional[int] = ..., token: _Optional[bytes] = ..., dialled: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("wait_s", "seen_ip")
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    SEEN_IP_FIELD_NUMBER: _ClassVar[int]
    wait_s: float
    seen_ip: str
    def __init__(self, wait_s: _Optional[float] = ..., seen_ip: _Optional[str] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("received_ns", "answered_ns")
    RECEIVED_NS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_NS_FIELD_NUMBER: _ClassVar[int]
    received_ns: int
    answered_ns: int
    def __init__(self, received_ns: _Optional[int] = ..., answered_ns: _Optional[int] = ...) -> None: ...
