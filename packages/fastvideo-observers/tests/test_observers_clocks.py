from __future__ import annotations

import time

import pytest
import torch

from fastvideo_observers.clocks import CpuClock, CudaClock, start_clock


def test_waiting_takes_the_wall_and_not_the_cores():
    before = time.perf_counter()
    clock = start_clock("cpu")
    time.sleep(0.05)
    times = clock.stop()
    assert isinstance(clock, CpuClock)
    assert before <= times.began_s <= time.perf_counter() - times.wall_s
    assert times.wall_s >= 0.05
    assert times.device_s < 0.04


def test_work_takes_the_cores():
    clock = CpuClock()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert clock.stop().device_s >= 0.05


@pytest.mark.gpu
def test_a_device_is_waited_for_and_timed_on_its_stream():
    matrix = torch.full((4096, 4096), 0.5, device="cuda")
    torch.cuda.synchronize()
    clock = start_clock("cuda")
    assert isinstance(clock, CudaClock)
    for _ in range(20):
        matrix = matrix @ matrix * 1e-4
    launched_s = time.perf_counter()
    times = clock.stop()
    assert times.device_s > 1e-3  # 20 products of 4096² take longer than that on anything there is
    assert times.device_s <= times.wall_s * 1.05
    assert times.wall_s > launched_s - times.began_s
