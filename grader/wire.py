"""Read what ranks hand in: arrays without pickle and small JSON, checked before memory is taken."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt

_JSON_LIMIT = 1 << 20


class Malformed(Exception):
    """A rank handed in something that is not what the protocol allows."""


def encode_array(array: npt.NDArray[Any]) -> bytes:
    """`array` in npy format."""
    array, stream = np.asarray(array), io.BytesIO()
    # numpy writes into a stream that is no file piece by piece, which costs two more copies.
    if array.flags.c_contiguous and array.ndim and array.size and not array.dtype.hasobject:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(stream, header)
        return b"".join((stream.getbuffer(), array.view(np.uint8).data.cast("B")))
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def decode_array(content: bytes) -> npt.NDArray[Any]:
    """The array of an npy file. Raises Malformed; never unpickles, never over-allocates."""
    try:
        return _decode(content)
    except Malformed:
        raise
    except Exception as error:  # numpy raises half a dozen kinds, SystemError among them
        raise Malformed(f"not an npy file: {type(error).__name__}: {str(error)[:200]}") from None


def _decode(content: bytes) -> npt.NDArray[Any]:
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise Malformed(f"npy version {version} is not supported")
    if dtype.hasobject or dtype.kind not in "biufcSU" or not dtype.itemsize:
        raise Malformed(f"arrays of {dtype} are not taken")
    start = stream.tell()
    if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(content) - start:
        raise Malformed(f"the file does not hold an array of shape {shape}")
    flat = np.frombuffer(content, dtype, offset=start)
    if dtype.kind == "U":  # numpy makes strings of any 32 bits, and fails when they are read
        content[start:].decode("utf-32-be" if dtype.byteorder == ">" else "utf-32-le")
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def decode_json(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises Malformed."""
    if len(content) > _JSON_LIMIT:
        raise Malformed("a status message exceeds 1 MiB")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return value
