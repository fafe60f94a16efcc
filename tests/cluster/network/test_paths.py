from __future__ import annotations

from typing import Any

import pytest

from cluster.network.netem import CUT
from cluster.network.paths import Path, partition


@pytest.mark.parametrize("ends", [(None, None), (1, 1), (-1, None), ("0", 1), (True, 0)])
def test_a_path_that_leads_nowhere_is_refused(ends: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="Path"):
        Path(*ends)


def test_a_partition_cuts_every_link_between_groups_both_ways() -> None:
    rules = partition([{0, 1}, {2}])
    assert rules == dict.fromkeys([Path(0, 2), Path(1, 2), Path(2, 0), Path(2, 1)], CUT)


@pytest.mark.parametrize("groups", [[], [{0, 1}], [{0}, set()], [{0, 1}, {1, 2}]])
def test_a_partition_that_divides_nothing_is_refused(groups: list[set[int]]) -> None:
    with pytest.raises(ValueError, match="partition"):
        partition(groups)
