from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RecommendRequest(_message.Message):
    __slots__ = ("version", "coefficients", "k", "categories")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COEFFICIENTS_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    version: int
    coefficients: _containers.RepeatedScalarFieldContainer[float]
    k: int
    categories: int
    def __init__(self, version: _Optional[int] = ..., coefficients: _Optional[_Iterable[float]] = ..., k: _Optional[int] = ..., categories: _Optional[int] = ...) -> None: ...

class RecommendReply(_message.Message):
    __slots__ = ("version", "items", "scores")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    version: int
    items: _containers.RepeatedScalarFieldContainer[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, version: _Optional[int] = ..., items: _Optional[_Iterable[int]] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ModelPiece(_message.Message):
    __slots__ = ("version", "total_bytes", "data", "protocol")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    version: int
    total_bytes: int
    data: bytes
    protocol: int
    def __init__(self, version: _Optional[int] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ..., protocol: _Optional[int] = ...) -> None: ...
