"""What the model knows of a GPU: those of its table by name, others as the driver describes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphene import _core, select
from graphene.errors import LaunchError
from graphene.select import device as devices
from graphene.select.device import H200, named
from graphene.select.gemm import GemmProblem, choose, estimate
from graphene.select.model import TILES, measured_us


@pytest.fixture(autouse=True)
def _forget() -> Any:
    named.cache_clear()
    yield
    named.cache_clear()


def driver_with(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    described = {"arch": "sm_86", "sm_count": 46, "shared_bytes": 99 << 10, "clock_khz": 0, "memory_clock_khz": 0,
                 "memory_bus_bits": 0}  # fmt: skip
    monkeypatch.setattr(_core, "driver_info", lambda: {"devices": [described | found]})


@pytest.mark.parametrize(
    ("name", "arch", "sms"),
    [
        ("NVIDIA H200", "sm_90a", 132),
        ("NVIDIA H100 80GB HBM3", "sm_90a", 132),
        ("NVIDIA H100 PCIe", "sm_90a", 114),
        ("NVIDIA A100-SXM4-80GB", "sm_80", 108),
    ],
)
def test_devices_of_the_table_are_known_without_a_driver(
    name: str, arch: str, sms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_core, "driver_info", lambda: pytest.fail("the table knows it"))
    found = named(name)
    assert (found.name, found.arch, found.sm_count) == (name, arch, sms)


def test_another_device_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_with(monkeypatch, name="My GPU", clock_khz=1_800_000, memory_clock_khz=7_000_000, memory_bus_bits=256)
    found = named("My GPU")
    assert found == select.current_device()
    assert (found.arch, found.sm_count, found.shared_bytes) == ("sm_86", 46, 99 << 10)
    assert found.clock_ghz == pytest.approx(devices.SUSTAINED * 1.8)
    assert found.memory_rate == pytest.approx(devices.REACHED * 448)  # bytes in a nanosecond: 2 * 7 GHz * 32 bytes


def test_a_driver_that_says_no_clocks_leaves_those_of_the_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    driver_with(monkeypatch, name="My GPU")
    typical = select.of_arch("sm_86")
    assert named("My GPU") == replace(typical, name="My GPU", sm_count=46)


def test_what_nobody_knows_has_the_rates_of_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> Any:
        raise LaunchError("there is none   [LAUNCH_NO_DRIVER]")

    monkeypatch.setattr(_core, "driver_info", no_driver)
    assert named("Some GPU") == replace(H200, name="Some GPU", arch="sm_90")  # and no instructions of sm_90a


def test_a_product_is_chosen_for_the_size_of_the_device_that_is_named() -> None:
    card, h200 = (
        select.select_gemm(2048, 2048, 2048, device="NVIDIA A100", sms=d.sm_count, shared_bytes=d.shared_bytes)
        for d in (named("NVIDIA A100"), H200)
    )
    assert select.select_gemm(2048, 2048, 2048, device="NVIDIA A100") == card != h200


def test_measured_times_are_those_of_an_h200_and_scaled_elsewhere() -> None:
    tile, size = TILES[0], (8192, 8192, 8192)
    same_size = select.of_arch("sm_80").of_size(H200.sm_count, H200.shared_bytes)
    here, there = (measured_us(tile, *size, 1, 1, 1.0, d) for d in (H200, same_size))
    assert there / here == pytest.approx(H200.tensor_rate / same_size.tensor_rate, rel=0.02)


def test_a_device_with_less_shared_memory_gets_tiles_that_fit(own_records: Any) -> None:
    p = GemmProblem(4096, 4096, 4096)
    small = select.of_arch("sm_86")
    (bm, bn, bk), stages = estimate(p, small).tile, estimate(p, small).stages
    assert (bm + bn) * bk * 2 * stages <= small.shared_bytes
    assert choose(p, small) == estimate(p, small)  # there are no records for it
    assert estimate(p, replace(H200, arch="sm_90")).tile == (256, 128, 64)
