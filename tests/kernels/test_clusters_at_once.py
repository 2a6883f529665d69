"""How many clusters a persistent grid has."""

from __future__ import annotations

import pytest

from graphene.kernels import GemmConfig, gemm_launches
from graphene.kernels.tma import clusters_at_once


def test_clusters_that_run_at_once_leave_multiprocessors_over() -> None:
    assert [clusters_at_once(132, n) for n in range(1, 9)] == [132, 66, 39, 30, 22, 17, 15, 15]  # of an H200's driver
    assert [clusters_at_once(66, n) for n in (1, 2, 4)] == [66, 33, 15]


@pytest.mark.parametrize(("cluster", "said"), [((2, 1, 1), "sm_count//2)"), ((2, 2, 1), "max((sm_count*5)//22, 1)")])
def test_a_grid_has_no_more_clusters_than_run_at_once(cluster: tuple[int, int, int], said: str) -> None:
    config = GemmConfig((128, 128, 64), 3, (8, 1), kernel="gemm_sm90", cluster=cluster)
    ((kernel, _),) = gemm_launches(config)
    assert said in str(kernel)
