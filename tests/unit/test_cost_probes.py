"""Measured costs in files: found again, measured anew where they are of no use, and never in the way."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from ps2.algorithms.embeddings.cost_probes import MAX_AGE_S, VARIABLE, cached_costs
from ps2.algorithms.embeddings.work import UnitCosts

COSTS = UnitCosts(1e-4, 2e-9, 3e-10, 4e-10)
KEY = {"servers": ["127.0.0.1"], "size": 128}


class Measure:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return COSTS


@pytest.fixture
def measure():
    return Measure()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "costs"))
    return tmp_path / "costs"


def test_costs_when_asked_for_again_then_are_remembered(measure):
    assert [cached_costs(KEY, measure) for _ in range(3)] == [COSTS] * 3
    assert measure.calls == 1
    cached_costs({**KEY, "size": 64}, measure)
    assert measure.calls == 2


def test_costs_when_switched_off_then_are_measured_each_time(measure, folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    for _ in range(2):
        cached_costs(KEY, measure)
    assert measure.calls == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'{"costs": {}, "measured_s": 1}', b'{"costs": {"latency_s": "x"}}', b"\xff\xfe"],
)
def test_costs_when_file_is_corrupt_then_are_measured_anew(measure, folder, caplog, content):
    cached_costs(KEY, measure)
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert cached_costs(KEY, measure) == cached_costs(KEY, measure) == COSTS
    assert measure.calls == 2
    assert "is ignored, and costs are measured again" in caplog.text


@pytest.mark.parametrize("change", [{"latency_s": float("nan")}, {"byte_s": -1.0}])
def test_costs_when_they_are_no_costs_then_are_measured_anew(measure, folder, caplog, change):
    cached_costs(KEY, measure)
    (file,) = folder.iterdir()
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, "costs": {**result["costs"], **change}}))
    assert cached_costs(KEY, measure) == COSTS
    assert measure.calls == 2
    assert "is ignored" in caplog.text


def test_costs_when_they_are_old_then_are_measured_anew(measure, folder):
    cached_costs(KEY, measure)
    (file,) = folder.iterdir()
    result = json.loads(file.read_text())
    file.write_text(json.dumps({**result, "measured_s": result["measured_s"] - MAX_AGE_S - 1}))
    cached_costs(KEY, measure)
    assert measure.calls == 2


def test_costs_when_folder_is_a_file_then_training_goes_on(measure, folder):
    folder.write_text("no folder")
    assert cached_costs(KEY, measure) == COSTS


def test_costs_when_programs_write_at_once_then_file_is_whole(measure, folder):
    with ThreadPoolExecutor(8) as threads:
        result = list(threads.map(lambda _: cached_costs(KEY, measure), range(64)))
    assert result == [COSTS] * 64
    assert len(os.listdir(folder)) == 1
    before = measure.calls
    assert cached_costs(KEY, measure) == COSTS
    assert measure.calls == before
