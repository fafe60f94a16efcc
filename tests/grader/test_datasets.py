"""Real data comes whole, split without a look into the future, and a bad file is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from grader.auc import auc
from grader.datasets.clicks import DataError, criteo, movielens
from grader.datasets.digits import digits
from grader.ended import Failed


def test_movielens_has_all_ratings_and_numbers_of_its_own_for_each_field() -> None:
    data = movielens()
    assert len(data.train) + len(data.test) == 100_000
    assert data.fields[:2] == ("user", "item")
    both = np.concatenate([data.train.features, data.test.features])
    seen = [np.unique(column) for column in both.T]
    assert sum(map(len, seen)) == len(np.unique(both)) == data.features
    assert (len(seen[0]), len(seen[1])) == (943, 1682)


def test_what_is_held_out_of_movielens_is_each_users_latest() -> None:
    data = movielens()
    users, counts = np.unique(data.test.features[:, 0], return_counts=True)
    trained = dict(zip(*np.unique(data.train.features[:, 0], return_counts=True), strict=True))
    assert all(c == int((c + trained[u]) * 0.2) for u, c in zip(users, counts, strict=True))


def test_digits_are_the_real_ones() -> None:
    train, test = digits()
    assert (len(train), len(test), train.images.shape[1]) == (1500, 297, 64)
    assert train.images.max() == 1 and set(np.unique(train.labels)) == set(range(10))


def test_auc_is_the_one_of_scikit_learn_ties_included() -> None:
    rng = np.random.default_rng(3)
    clicked = rng.integers(0, 2, 500).astype(np.float32)
    scores = rng.integers(0, 20, 500) + clicked
    assert auc(clicked, scores) == pytest.approx(roc_auc_score(clicked, scores), abs=1e-12)


def test_predictions_that_are_not_finite_have_no_auc() -> None:
    with pytest.raises(Failed, match="1 of 2 predictions are NaN"):
        auc(np.array([0, 1], np.float32), np.array([0.5, np.nan]))


def test_a_criteo_file_is_read(tmp_path: Path) -> None:
    lines = [
        "\t".join([str(row % 2), *(["", "-1", "7"] * 5)[:13], *[f"{row % 4:08x}"] * 26])
        for row in range(40)
    ]
    file = tmp_path / "train.txt"
    file.write_text("\n".join(lines) + "\n")
    data = criteo(file)
    assert (len(data.train), len(data.test), len(data.fields)) == (32, 8, 39)
    assert data.train.clicked[:4].tolist() == [0, 1, 0, 1]
    assert data.features == 13 + 26 * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1\t2\t3\n", "train.txt:1 is no line of a Criteo file: it has 3 columns"),
        ("\t".join(["1", *["x"] * 13, *["a"] * 26]) + "\n", "train.txt:1: 'x' is no whole number"),
        ("", "has 0 rows"),
    ],
)
def test_another_file_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "train.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        criteo(file)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        criteo(tmp_path / "none.txt")
