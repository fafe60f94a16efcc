"""Click data: rows of categorical fields, and whether the row was clicked.

MovieLens-100k (Harper and Konstan, TiiS 5(4), 2015) is turned into clicks: a rating of 4 or 5 is
one. Each user's latest ratings are held out, so that nothing is learnt from the future.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HELD_OUT = 0.2
CRITEO_NUMBERS, CRITEO_CATEGORIES = 13, 26
_CLICKED_FROM = 4


class DataError(Exception):
    """The data is missing or cannot be read; the sentence says what to do."""


@dataclass(frozen=True)
class Rows:
    """features: (rows, fields) int64, each below `ClickData.features`; no two fields share a
    number. clicked: (rows,) float32 of 0 and 1."""

    features: npt.NDArray[np.int64]
    clicked: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.clicked)

    def part(self, start: int, stop: int) -> Rows:
        return Rows(self.features[start:stop], self.clicked[start:stop])


@dataclass(frozen=True)
class ClickData:
    """fields: names of the columns. features: how many different feature numbers there are."""

    fields: tuple[str, ...]
    features: int
    train: Rows
    test: Rows


@cache
def movielens() -> ClickData:
    """MovieLens-100k as clicks: 80,000 rows to train on, in order of time, and the latest 20%
    of each user's to test with. Raises DataError when the package that ships it is missing."""
    folder = _movielens_folder()
    users = {row["user_id"]: row for row in _table(folder / "ml-100k.user")}
    items = {row["item_id"]: row for row in _table(folder / "ml-100k.item")}
    ratings = sorted(_table(folder / "ml-100k.inter"), key=lambda row: float(row["timestamp"]))
    columns: dict[str, Callable[[dict[str, str]], str]] = {
        "user": lambda row: row["user_id"],
        "item": lambda row: row["item_id"],
        "age": lambda row: str(int(users[row["user_id"]]["age"]) // 10),
        "gender": lambda row: users[row["user_id"]]["gender"],
        "occupation": lambda row: users[row["user_id"]]["occupation"],
        "year": lambda row: items[row["item_id"]]["release_year"],
        "genre": lambda row: items[row["item_id"]]["class"].partition(" ")[0],
    }
    values = [[value(row) for value in columns.values()] for row in ratings]
    clicked = np.array([float(row["rating"]) >= _CLICKED_FROM for row in ratings], np.float32)
    return _split(tuple(columns), values, clicked, held_out=_latest_of_each(values))


def criteo(path: Path, rows: int = 100_000, buckets: int = 10_000) -> ClickData:
    """The first `rows` rows of a Criteo display-advertising file (tab-separated: label, 13 counts,
    26 categories; .gz too). Each field is hashed into `buckets` features; counts go by their
    logarithm. The last 20% are the test rows. Raises DataError."""
    values: list[list[str]] = []
    clicked: list[float] = []
    width = 1 + CRITEO_NUMBERS + CRITEO_CATEGORIES
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file, delimiter="\t"), 1):
                if len(row) != width or row[0] not in ("0", "1"):
                    raise DataError(
                        f"{path}:{number} is no line of a Criteo file: it has {len(row)} columns, "
                        f"a label and {width - 1} more are right"
                    )
                clicked.append(float(row[0]))
                values.append(
                    [_magnitude(cell, path, number) for cell in row[1 : 1 + CRITEO_NUMBERS]]
                    + [str(zlib.crc32(cell.encode()) % buckets) for cell in row[-26:]]
                )
                if number == rows:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if len(values) < 10:
        raise DataError(f"{path} has {len(values)} rows; at least 10 are needed")
    names = [f"count{i}" for i in range(1, 14)] + [f"category{i}" for i in range(1, 27)]
    late = np.arange(len(values)) >= len(values) * (1 - HELD_OUT)
    return _split(tuple(names), values, np.array(clicked, np.float32), held_out=late)


def _magnitude(cell: str, path: Path, number: int) -> str:
    if not cell:
        return "missing"
    try:
        return str(int(np.log2(max(int(cell), 0) + 1)))
    except ValueError:
        raise DataError(f"{path}:{number}: {cell!r} is no whole number") from None


def _movielens_folder() -> Path:
    # Found, not imported: its code has dependencies that are not installed.
    spec = importlib.util.find_spec("recbole")
    if spec is None or spec.origin is None:
        raise DataError("MovieLens-100k is missing; `make demo` installs it")
    return Path(spec.origin).parent / "dataset_example" / "ml-100k"


def _table(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        names = [column.partition(":")[0] for column in next(lines)]
        for row in lines:
            yield dict(zip(names, row, strict=True))


def _latest_of_each(values: Iterable[list[str]]) -> npt.NDArray[np.bool_]:
    """Marks the last 20% of each user's rows; users are the first field."""
    user = np.array([row[0] for row in values])
    held_out = np.zeros(len(user), bool)
    for name in np.unique(user):
        rows = np.flatnonzero(user == name)
        held_out[rows[len(rows) - int(len(rows) * HELD_OUT) :]] = True
    return held_out


def _split(
    fields: tuple[str, ...],
    values: list[list[str]],
    clicked: npt.NDArray[np.float32],
    held_out: npt.NDArray[np.bool_],
) -> ClickData:
    features = np.empty((len(values), len(fields)), np.int64)
    first = 0
    for column in range(len(fields)):
        names, numbers = np.unique([row[column] for row in values], return_inverse=True)
        features[:, column] = first + numbers
        first += len(names)
    rows = [Rows(features[mask], clicked[mask]) for mask in (~held_out, held_out)]
    return ClickData(fields, first, *rows)
