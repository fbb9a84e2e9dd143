from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Piece(_message.Message):
    __slots__ = ("id", "total_bytes", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    total_bytes: int
    data: bytes
    def __init__(self, id: _Optional[str] = ..., total_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("kind", "said", "numbers", "arrays")
    class SaidEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ArraysEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    said: _containers.ScalarMap[str, bytes]
    numbers: _containers.ScalarMap[str, int]
    arrays: _containers.ScalarMap[str, bytes]
    def __init__(self, kind: _Optional[str] = ..., said: _Optional[_Mapping[str, bytes]] = ..., numbers: _Optional[_Mapping[str, int]] = ..., arrays: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class GreetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GreetReply(_message.Message):
    __slots__ = ("time_s",)
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    def __init__(self, time_s: _Optional[float] = ...) -> None: ...
