"""Tensors of an ONNX file as numpy arrays: embedded in it, or in a file of their own beneath its folder.

Source    onnx.proto (TensorProto), ExternalData.md
"""

from __future__ import annotations

import math
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from minicnn.errors import MinicnnError, ModelError, UnsupportedError
from minicnn.geometry import ceil_div

# Element types stored with several elements to a byte; all others take whole bytes.
_PACKED_BITS = {
    "INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
}  # fmt: skip


def text(value: str | bytes, what: str = "a tensor name") -> str:
    """protobuf hands out bytes where a string isn't UTF-8."""
    if isinstance(value, bytes):
        raise ModelError(f"{what} that isn't text", found=value[:40])
    return value


def numpy_dtype(data_type: int) -> np.dtype:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(data_type))
    except KeyError:
        raise UnsupportedError("an unknown element type", found=data_type) from None


class TensorReader:
    """Reads the tensors of one model file; their sizes are held against their dims before any allocation.

    mapped    external data files by location, as bytes; their tensors stay on disk until they are used
    """

    def __init__(self, file: Path, memory_limit: int):
        self.file = file
        self.memory_limit = memory_limit
        self.memory_used = 0
        self.mapped: dict[str, np.ndarray] = {}

    def array(self, tensor: TensorProto, what: str = "", raw: memoryview | None = None) -> np.ndarray:
        """The values, read-only; `what` names the tensor where it has no name of its own.

        raw    its raw_data, where the proto was parsed without
        """
        name = text(tensor.name) or what
        try:
            array = self._values(tensor, raw)
        except MinicnnError as error:
            raise error.at(tensor=name) from None
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ModelError(f"a tensor that can't be read: {error}", tensor=name) from None
        if array.dtype == np.bool_:  # a file may hold any byte, and numpy relies on 0 and 1
            array = np.asarray(array.view(np.uint8) != 0)
        array.flags.writeable = False
        return array

    def embed(self, tensor: TensorProto) -> None:
        """Checks a tensor that stays a proto, and brings its values into it if they lie in another file."""
        array = self.array(tensor, "a tensor of a subgraph")
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    def _values(self, tensor: TensorProto, detached: memoryview | None) -> np.ndarray:
        shape = tuple(tensor.dims)
        dtype = numpy_dtype(tensor.data_type)
        kind = TensorProto.DataType.Name(tensor.data_type)
        if any(extent < 0 for extent in shape):
            raise ModelError("a negative extent", found=shape)
        if tensor.HasField("segment"):
            raise UnsupportedError("a tensor in segments")
        count = math.prod(shape)
        stored = f"{dtype} {'x'.join(map(str, shape)) or 'scalar'}"
        self.memory_used += count * dtype.itemsize
        is_external = tensor.data_location == TensorProto.EXTERNAL
        if not is_external and detached is None and not tensor.HasField("raw_data"):
            found = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
            _same(found, _entries(kind, count), f"values of {stored}")
            self._check_memory()
            return numpy_helper.to_array(tensor)
        if dtype.hasobject:
            raise ModelError("text stored as raw bytes")
        nbytes = ceil_div(count * _PACKED_BITS.get(kind, 8 * dtype.itemsize), 8)
        raw = self._external(tensor, nbytes) if is_external else detached or tensor.raw_data
        _same(len(raw), nbytes, f"bytes of {stored}")
        self._check_memory()
        if kind in _PACKED_BITS or sys.byteorder == "big":
            copied = TensorProto(dims=shape, data_type=tensor.data_type, raw_data=bytes(raw))
            return numpy_helper.to_array(copied)
        array = np.frombuffer(raw, dtype=dtype).reshape(shape)
        return array if array.flags.aligned or detached is not None else array.copy()

    def _check_memory(self) -> None:
        if self.memory_used > self.memory_limit:
            accepted = f"{self.memory_limit} bytes"
            raise ModelError("the constants pass the memory limit", found=self.memory_used, accepted=accepted)

    def _external(self, tensor: TensorProto, nbytes: int) -> np.ndarray:
        facts = {text(e.key, "a key"): text(e.value, "external data") for e in tensor.external_data}
        location = facts.get("location", "")
        data = self._map(location)
        numbers = {}
        for key, default in (("offset", 0), ("length", nbytes)):
            digits = facts.get(key, str(default))
            if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
                raise ModelError(f"external data with a bad {key}", found=digits[:40])
            numbers[key] = int(digits)
        end = numbers["offset"] + numbers["length"]
        if end > len(data):
            raise ModelError(f"external data past the end of '{location}'", expected=end, found=len(data))
        return data[numbers["offset"] : end]

    def _map(self, location: str) -> np.ndarray:
        if location in self.mapped:
            return self.mapped[location]
        windows = PureWindowsPath(location)  # splits at both kinds of slash
        is_absolute = bool(windows.anchor) or PurePosixPath(location).is_absolute()
        if not location or is_absolute or ".." in windows.parts or "\0" in location:
            raise ModelError("external data not beneath the model's folder", found=repr(location))
        try:
            target = (self.file.parent / location).resolve(strict=True)
            # Caches of models keep a folder of links: what lies beside the model's real file is its own, too.
            folders = (self.file.parent.resolve(), self.file.resolve().parent)
            if not any(target.is_relative_to(folder) for folder in folders):
                raise ModelError("external data not beneath the model's folder", found=target)
            if not target.is_file():
                raise ModelError("external data that isn't a regular file", found=target)
            is_empty = target.stat().st_size == 0  # which can't be mapped
            data = np.empty(0, np.uint8) if is_empty else np.memmap(target, mode="r", dtype=np.uint8)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle
            raise ModelError(f"external data that can't be read: {error}", found=repr(location)) from None
        self.mapped[location] = data.view(np.ndarray)
        return self.mapped[location]


def _same(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise ModelError(
            "a tensor's data and its dims contradict each other", expected=f"{expected} {what}", found=found
        )


def _entries(kind: str, count: int) -> int:
    """How many values of the typed field (float_data, int32_data, ...) `count` elements take."""
    if kind.startswith("COMPLEX"):
        return 2 * count
    bits = _PACKED_BITS.get(kind, 8)
    return ceil_div(count * bits, 8) if bits in (2, 4) else count
