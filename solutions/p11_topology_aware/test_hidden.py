"""Harder cases of problem 11, not shown to a learner."""

import re
from dataclasses import replace

import data
import numpy as np
import pytest
from model import STYLES
from test_grade import expect_best_ring, expect_topology


@pytest.mark.points(5)
@pytest.mark.needs("test_ring_is_the_best_there_is", "test_reads_nccl_xml")
def test_sixteen_gpus(cluster, rng):
    """Sixteen GPUs, 15! rings: the best one is found within the time of a case, in a matrix and
    in XML, with links in both directions and in one."""
    with cluster.job(1, "sixteen GPUs") as job:
        expect_best_ring(job, data.dgx2_v100().shuffled(rng), "2023", 150.0)
        for form, one_way in (("2021", False), ("xml", True), ("xml", True)):
            machine = data.drawn(rng, 16, one_way=one_way)
            best = best_bottleneck(machine.truth(form)["bandwidth"])
            expect_best_ring(
                job,
                machine,
                form,
                best,
                cause="a search that gives up, or does not end, where there are many rings.",
                next_step="remember which GPUs a path over a *set* of GPUs can end at.",
            )


@pytest.mark.points(5)
@pytest.mark.needs("test_reads_the_matrix_of_every_driver", "test_reads_nccl_xml")
def test_texts_as_people_hand_them_in(cluster, rng):
    """Texts with the command above them, Windows line ends, a comment or capital letters in the
    XML, and GPUs of other generations."""
    with cluster.job(1, "texts as handed in") as job:
        for name in ("dgx_a100", "bridged_pairs"):
            for style in STYLES:
                expect_topology(job, Captured(data.MACHINES[name]().shuffled(rng)), style)
        for sm in (60, 70, 100, 103):
            machine = replace(data.drawn(rng, 6), sm=sm)
            expect_topology(
                job,
                Captured(machine),
                "xml",
                cause="GB/s of an NVLink taken for the same in all generations, or bus ids "
                "compared as they are written.",
            )


class Captured:
    """A machine whose text went through a terminal, a mail and an editor."""

    def __init__(self, machine):
        self.name, self.truth, self._machine = machine.name, machine.truth, machine

    def text(self, form, **look):
        text = self._machine.text(form, **look)
        if form == "xml":
            text = '<?xml version="1.0"?>\n<!-- dumped by rank 0 -->\n' + text
            return re.sub(
                r'target="[^"]*"', lambda m: m[0].upper().replace("TARGET", "target"), text
            )
        return ("user@node7:~$ nvidia-smi topo -m\n" + text).replace("\n", "\r\n")


def best_bottleneck(bandwidth):
    """The slowest link of the best ring, by dynamic programming over sets of GPUs.

    best[visited, j]: over all paths from GPU 0 through `visited` that end at j, the fastest
    slowest link.
    """
    n = len(bandwidth)
    best = np.zeros((1 << n, n))
    best[1, 0] = np.inf
    sets = np.arange(1 << n)
    sizes = np.array([int(s).bit_count() for s in sets])
    for size in range(2, n + 1):
        for j in range(1, n):
            now = sets[(sizes == size) & (sets >> j & 1 == 1) & (sets & 1 == 1)]
            through = np.minimum(best[now ^ (1 << j)], bandwidth[:, j])
            best[now, j] = through.max(axis=1)
    return float(np.minimum(best[-1], bandwidth[:, 0]).max())
