"""The large initializers of a model file apart from the rest, so that their values needn't be copied to be
read; and memory of mapped files given back.

protobuf's parser takes a copy of all it reads and hands out another. Here the file's bytes are walked as far
as the initializers, and what is given to the parser lacks their raw_data: views into the bytes take its
place.

Source    Protocol Buffers, "Encoding": fields as (number << 3 | wire type), then a varint, 4, 8 or a counted
          number of bytes; onnx.proto for the numbers
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

_GRAPH, _FUNCTIONS = 7, 25  # of ModelProto
_INITIALIZER = 5  # of GraphProto
_RAW_DATA = 9  # of TensorProto
_COUNTED = 2  # the wire type of messages and bytes
_LARGE = 4096  # bytes of raw_data from which on it is worth it


class _DamagedError(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class _Field:
    """From `start` to `end` in the file; a counted one's content begins at `content`."""

    number: int
    wire: int
    start: int
    content: int
    end: int


def detach(data: memoryview) -> tuple[bytes | memoryview, dict[int, memoryview]]:
    """(the model without large raw_data, place among the graph's initializers -> that raw_data)

    Where the bytes aren't what they should be, or functions may move initializers, all of it is returned as
    it came: the parser says what is wrong.
    """
    parts: list[bytes | memoryview] = []
    raw: dict[int, memoryview] = {}
    count = 0
    try:
        for field in _fields(data, 0, len(data)):
            if field.number == _FUNCTIONS:
                return data, {}
            if field.number != _GRAPH or field.wire != _COUNTED:
                parts.append(data[field.start : field.end])
                continue
            graph: list[bytes | memoryview] = []
            for inner in _fields(data, field.content, field.end):
                is_initializer = inner.number == _INITIALIZER and inner.wire == _COUNTED
                values = _raw_data(data, inner) if is_initializer else None
                if values is None:
                    graph.append(data[inner.start : inner.end])
                else:
                    raw[count] = data[values.content : values.end]
                    graph += _counted(
                        _INITIALIZER, [data[inner.content : values.start], data[values.end : inner.end]]
                    )
                count += is_initializer
            parts += _counted(_GRAPH, graph)
    except _DamagedError:
        return data, {}
    return b"".join(parts), raw


def _raw_data(data: memoryview, tensor: _Field) -> _Field | None:
    """The raw_data of an initializer, if it is large and there once."""
    if tensor.end - tensor.content < _LARGE:
        return None
    found = [f for f in _fields(data, tensor.content, tensor.end) if f.number == _RAW_DATA]
    is_one = len(found) == 1 and found[0].wire == _COUNTED
    return found[0] if is_one and found[0].end - found[0].content >= _LARGE else None


def _fields(data: memoryview, start: int, end: int) -> Iterator[_Field]:
    while start < end:
        key, place = _varint(data, start, end)
        wire, content = key & 7, place
        if wire == 0:
            _, place = _varint(data, place, end)
        elif wire == 1:
            place += 8
        elif wire == _COUNTED:
            length, content = _varint(data, place, end)
            place = content + length
        elif wire == 5:
            place += 4
        else:
            raise _DamagedError
        if place > end:
            raise _DamagedError
        yield _Field(number=key >> 3, wire=wire, start=start, content=content, end=place)
        start = place


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    """(the number, the place behind it)"""
    value = 0
    for shift in range(0, 70, 7):
        if place >= end:
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise _DamagedError


def _counted(number: int, parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """A counted field with this content."""
    length = sum(map(len, parts))
    head = bytearray()
    for value in (number << 3 | _COUNTED, length):
        while value >= 0x80:
            head.append(value & 0x7F | 0x80)
            value >>= 7
        head.append(value)
    return [bytes(head), *parts]


def release(arrays: Iterable[np.ndarray]) -> None:
    """Gives back the memory of arrays mapped from files; whoever reads them again gets the pages anew."""
    mappings = {id(mapping): mapping for array in arrays if (mapping := _mapping(array)) is not None}
    for mapping in mappings.values():
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """The mapped file that an array is a part of."""
    owner: object = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap.mmap) else None
