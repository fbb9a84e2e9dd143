from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetGrowthRequest(_message.Message):
    __slots__ = ("number", "head", "charged", "charged_heads")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    CHARGED_HEADS_FIELD_NUMBER: _ClassVar[int]
    number: int
    head: str
    charged: int
    charged_heads: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, number: _Optional[int] = ..., head: _Optional[str] = ..., charged: _Optional[int] = ..., charged_heads: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetGrowthReply(_message.Message):
    __slots__ = ("number", "head", "entries_sha256", "more")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_SHA256_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    number: int
    head: str
    entries_sha256: _containers.RepeatedScalarFieldContainer[bytes]
    more: bool
    def __init__(self, number: _Optional[int] = ..., head: _Optional[str] = ..., entries_sha256: _Optional[_Iterable[bytes]] = ..., more: _Optional[bool] = ...) -> None: ...

class EnrollRequest(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, tokens: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    def __init__(self, token: _Optional[bytes] = ...) -> None: ...

class EnrollReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: int
    def __init__(self, users: _Optional[int] = ...) -> None: ...

class ReportFrame(_message.Message):
    __slots__ = ("run", "round", "total_bytes", "data")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    total_bytes: int
    data: bytes
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("accepted", "rejected")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    rejected: _containers.ScalarMap[str, int]
    def __init__(self, accepted: _Optional[int] = ..., rejected: _Optional[_Mapping[str, int]] = ...) -> None: ...

class EnrolledRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EnrolledReply(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: int
    def __init__(self, users: _Optional[int] = ...) -> None: ...

class GetBudgetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBudgetReply(_message.Message):
    __slots__ = ("spent_epsilon", "limit_epsilon", "delta", "left_epsilon", "unit", "noise")
    SPENT_EPSILON_FIELD_NUMBER: _ClassVar[int]
    LIMIT_EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    LEFT_EPSILON_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    NOISE_FIELD_NUMBER: _ClassVar[int]
    spent_epsilon: float
    limit_epsilon: float
    delta: float
    left_epsilon: float
    unit: str
    noise: str
    def __init__(self, spent_epsilon: _Optional[float] = ..., limit_epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., left_epsilon: _Optional[float] = ..., unit: _Optional[str] = ..., noise: _Optional[str] = ...) -> None: ...

class GetStatementRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class GetStatementReply(_message.Message):
    __slots__ = ("statement", "signature", "certificate")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    statement: str
    signature: str
    certificate: str
    def __init__(self, statement: _Optional[str] = ..., signature: _Optional[str] = ..., certificate: _Optional[str] = ...) -> None: ...

class OpenRunRequest(_message.Message):
    __slots__ = ("run", "plan")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    run: str
    plan: bytes
    def __init__(self, run: _Optional[str] = ..., plan: _Optional[bytes] = ...) -> None: ...

class OpenRunReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenRoundRequest(_message.Message):
    __slots__ = ("run", "round", "header", "digest", "timeout_s", "ledger_head", "quorum", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HEAD_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    header: bytes
    digest: str
    timeout_s: float
    ledger_head: str
    quorum: int
    attempt: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., header: _Optional[bytes] = ..., digest: _Optional[str] = ..., timeout_s: _Optional[float] = ..., ledger_head: _Optional[str] = ..., quorum: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    __slots__ = ("run", "round", "wait_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    wait_s: float
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class CloseRoundRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class GetReleaseRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class ReleaseFrame(_message.Message):
    __slots__ = ("total_bytes", "sha256", "data")
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    total_bytes: int
    sha256: str
    data: bytes
    def __init__(self, total_bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class RoundStatus(_message.Message):
    __slots__ = ("run", "round", "digest", "phase", "attempt", "enrolled", "reported", "clipped", "rejected", "remaining_s", "release_sha256", "ledger_head", "quorum")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    CLIPPED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_S_FIELD_NUMBER: _ClassVar[int]
    RELEASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    LEDGER_HEAD_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    digest: str
    phase: str
    attempt: int
    enrolled: int
    reported: int
    clipped: int
    rejected: _containers.ScalarMap[str, int]
    remaining_s: float
    release_sha256: str
    ledger_head: str
    quorum: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., digest: _Optional[str] = ..., phase: _Optional[str] = ..., attempt: _Optional[int] = ..., enrolled: _Optional[int] = ..., reported: _Optional[int] = ..., clipped: _Optional[int] = ..., rejected: _Optional[_Mapping[str, int]] = ..., remaining_s: _Optional[float] = ..., release_sha256: _Optional[str] = ..., ledger_head: _Optional[str] = ..., quorum: _Optional[int] = ...) -> None: ...

class GetAttemptRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class GetAttemptReply(_message.Message):
    __slots__ = ("attempt", "nonce", "ticket")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    nonce: bytes
    ticket: bytes
    def __init__(self, attempt: _Optional[int] = ..., nonce: _Optional[bytes] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class GetStandingRequest(_message.Message):
    __slots__ = ("run", "round")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ...) -> None: ...

class GetStandingReply(_message.Message):
    __slots__ = ("attempt", "nonce", "ticket", "has_held", "agreed", "ready", "published", "time_s", "coin_own", "coin_following", "opened", "accepted")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    HAS_HELD_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    COIN_OWN_FIELD_NUMBER: _ClassVar[int]
    COIN_FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    nonce: bytes
    ticket: bytes
    has_held: bool
    agreed: bytes
    ready: bytes
    published: bool
    time_s: int
    coin_own: bytes
    coin_following: bytes
    opened: bytes
    accepted: bytes
    def __init__(self, attempt: _Optional[int] = ..., nonce: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., has_held: _Optional[bool] = ..., agreed: _Optional[bytes] = ..., ready: _Optional[bytes] = ..., published: _Optional[bool] = ..., time_s: _Optional[int] = ..., coin_own: _Optional[bytes] = ..., coin_following: _Optional[bytes] = ..., opened: _Optional[bytes] = ..., accepted: _Optional[bytes] = ...) -> None: ...

class GetHeldRequest(_message.Message):
    __slots__ = ("run", "round", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    attempt: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class GetExplicitRequest(_message.Message):
    __slots__ = ("run", "round", "attempt", "first", "last")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    attempt: int
    first: int
    last: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class GetKeyRequest(_message.Message):
    __slots__ = ("run", "round", "attempt")
    RUN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    run: str
    round: int
    attempt: int
    def __init__(self, run: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class GetKeyReply(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...
