"""Compare what ranks handed in with what is right, and say where the first difference is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grader.ended import Failed

Array = npt.NDArray[Any]


def explain(expected: str, got: str, where: str, cause: str, next_step: str) -> str:
    """The shape of every failure message: what, where, why it usually happens, what to do."""
    text = f"expected {expected}, got {got}, {where}."
    if cause:
        text += f"\nUsual cause: {cause}"
    if next_step:
        text += f"\nNext step: {next_step}"
    return text


def output(outputs: Mapping[str, Array], name: str, rank: int) -> Array:
    """The array `name` that a rank handed in. Raises Failed if it is not there."""
    if name not in outputs:
        raise Failed(f"rank {rank} handed in no {name}")
    return outputs[name]


def expect_equal(
    got: Array, want: Array, *, where: str, cause: str = "", next_step: str = ""
) -> None:
    """Raise Failed at the first element in which `got` differs from `want`; NaN equals NaN."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise Failed(
            explain(
                f"{want.dtype} of shape {want.shape}",
                f"{got.dtype} of shape {got.shape}",
                where,
                cause,
                next_step,
            )
        )
    differs = _differs(got, want)
    if differs is not None:
        index, count = differs
        text_index = ", ".join(map(str, index))
        raise Failed(
            explain(
                _number(want[index]),
                _number(got[index]),
                f"at element [{text_index}] {where} ({count:,} of {want.size:,} elements differ)",
                cause,
                next_step,
            )
        )


def expect_close(
    got: Array,
    want: Array,
    *,
    relative: float,
    where: str,
    cause: str = "",
    next_step: str = "",
) -> None:
    """Raise Failed at the worst element if it is off by more than `relative` x the largest
    magnitude in `want`."""
    if got.shape != want.shape or got.dtype.kind not in "biuf":
        expect_equal(got, want, where=where, cause=cause, next_step=next_step)
    if not want.size:
        return
    scale = float(np.max(np.abs(want.astype(np.float64)))) or 1.0
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    error = np.where(np.isfinite(error), error, np.inf)
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    if error[index] > relative * scale:
        text_index = ", ".join(str(int(i)) for i in index)
        raise Failed(
            explain(
                f"{_number(want[index])} within {relative:g} of {scale:g}",
                _number(got[index]),
                f"at element [{text_index}] {where}",
                cause,
                next_step,
            )
        )


def expect_ranks_agree(
    arrays: Sequence[Array], *, name: str, where: str, cause: str = "", next_step: str = ""
) -> None:
    """Raise Failed unless every rank holds the same bits as rank 0."""
    first = np.ascontiguousarray(arrays[0])
    for rank, array in enumerate(arrays[1:], start=1):
        other = np.ascontiguousarray(array)
        if other.shape != first.shape or other.dtype != first.dtype:
            expect_equal(other, first, where=f"{name} on rank {rank} against rank 0, {where}")
        if first.tobytes() == other.tobytes():
            continue
        differs = _differs(other, first, bitwise=True)
        assert differs is not None
        index, count = differs
        text_index = ", ".join(map(str, index))
        raise Failed(
            explain(
                f"the same bits on all ranks ({_number(first[index])} on rank 0)",
                f"{_number(other[index])} on rank {rank}",
                f"at {name}[{text_index}], {where} ({count:,} of {first.size:,} elements differ)",
                cause,
                next_step,
            )
        )


def _differs(
    got: Array, want: Array, *, bitwise: bool = False
) -> tuple[tuple[int, ...], int] | None:
    if bitwise:
        bytes_got = got.reshape(-1).view(np.uint8).reshape(got.size, got.itemsize)
        bytes_want = want.reshape(-1).view(np.uint8).reshape(want.size, want.itemsize)
        unequal = (bytes_got != bytes_want).any(axis=1).reshape(got.shape)
    else:
        unequal = got != want
        if want.dtype.kind == "f":
            unequal &= ~(np.isnan(got) & np.isnan(want))
    if not unequal.any():
        return None
    index = np.unravel_index(int(np.argmax(unequal)), unequal.shape)
    return tuple(int(i) for i in index), int(unequal.sum())


def _number(value: Any) -> str:
    return repr(value.item()) if isinstance(value, np.generic) else repr(value)
