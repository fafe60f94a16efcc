"""How well scores rank clicked rows above others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from grader.ended import Failed


def auc(clicked: npt.NDArray[np.float32], scores: npt.NDArray[np.floating]) -> float:
    """Area under the ROC curve: the share of (clicked, other) pairs in which the clicked row scores
    higher, ties half (Mann and Whitney, 1947). Raises Failed when a score is not finite."""
    if not np.isfinite(scores).all():
        raise Failed(
            f"{np.count_nonzero(~np.isfinite(scores)):,} of {scores.size:,} predictions are NaN or "
            "infinite: the model has diverged"
        )
    positive = clicked > 0.5
    ones, zeros = np.count_nonzero(positive), np.count_nonzero(~positive)
    ranks = rankdata(scores)
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))
