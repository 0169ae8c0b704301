"""Recordings: real ones of this kind of machine, and synthetic ones that say so."""

import json
from pathlib import Path

import pytest

from dippm.errors import MeasurementError
from dippm.measure.readings import AbsentSource
from dippm.measure.sources.nvml import QUANTITIES
from dippm.measure.sources.recorded import ENDED, RecordedSource, load, record
from dippm.measure.sources.registry import open_source

RECORDINGS = Path(__file__).parents[2] / "recordings"
FILES = sorted(RECORDINGS.glob("*.jsonl"))


def test_there_are_recordings():
    assert {file.stem for file in FILES} >= {"host", "tree", "nvml-synthetic", "gpm-synthetic"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_recordings_say_where_they_come_from(file):
    recording = load(file)
    assert recording.origin == ("synthetic" if "synthetic" in file.stem else "measured")
    assert recording.device
    assert recording.date
    names = {quantity.name for quantity in recording.quantities}
    for reading in recording.readings:
        assert set(reading.values) | set(reading.absent) == names
    times = [reading.time_ns for reading in recording.readings]
    assert times == sorted(times)
    assert times[0] == 0


def test_counters_only_grow_in_what_was_measured():
    recording = load(RECORDINGS / "tree.jsonl")
    for quantity in recording.quantities:
        if quantity.counter:
            column = [reading.values[quantity.name] for reading in recording.readings]
            assert column == sorted(column)
    assert recording.readings[-1].values["cpu_s"] > recording.readings[0].values["cpu_s"]


def test_the_synthetic_gpu_has_the_quantities_of_the_real_source():
    assert load(RECORDINGS / "nvml-synthetic.jsonl").quantities == QUANTITIES


def test_a_recording_says_the_same_again(tmp_path):
    kept = record(open_source("tree"), tmp_path / "t.jsonl", hz=50, seconds=0.3, device="here")
    assert kept.origin == "measured"
    assert len(kept.readings) == 15
    replayed = open_source("recorded", path=tmp_path / "t.jsonl")
    assert (replayed.name, replayed.quantities) == ("tree", kept.quantities)
    for reading in kept.readings:
        assert replayed.read().values == reading.values
    assert replayed.read().absent["cpu_s"] == ENDED


def test_replay_can_follow_the_clock():
    recording = load(RECORDINGS / "nvml-synthetic.jsonl")
    now = [10**12]
    source = RecordedSource(recording, pace="time", clock=lambda: now[0])
    assert source.read().values == recording.readings[0].values
    now[0] += recording.readings[3].time_ns + 1
    assert source.read().values == recording.readings[3].values
    now[0] += 10**12
    assert source.read().absent["power_w"] == ENDED


def test_replay_can_begin_anew():
    recording = load(RECORDINGS / "gpm-synthetic.jsonl")
    source = RecordedSource(recording, repeat=True)
    count = len(recording.readings)
    seen = [source.read() for _ in range(count + 1)]
    assert seen[count].values == seen[0].values


def test_a_recorder_that_was_killed_costs_its_last_line(tmp_path):
    text = (RECORDINGS / "tree.jsonl").read_text()
    cut = tmp_path / "cut.jsonl"
    whole = load(RECORDINGS / "tree.jsonl").readings
    cut.write_text(text[:-9])
    assert load(cut).readings == whole[:-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"origin": "invented"}, "line 1"),
        ({"recording": 2}, "line 1"),
        ({"quantities": None}, "line 1"),
    ],
)
def test_headers_are_checked(tmp_path, change, words):
    lines = (RECORDINGS / "tree.jsonl").read_text().splitlines()
    lines[0] = json.dumps({**json.loads(lines[0]), **change})
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(MeasurementError, match=words):
        load(tmp_path / "bad.jsonl")


def test_damage_in_the_middle_is_named_by_line(tmp_path):
    lines = (RECORDINGS / "tree.jsonl").read_text().splitlines()
    lines[3] = '{"t": "soon"}'
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(MeasurementError, match="line 4"):
        load(tmp_path / "bad.jsonl")
    lines[1], lines[3] = '{"t":0,"v":{}}', lines[2]
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(MeasurementError, match="line 2: neither value nor reason"):
        load(tmp_path / "bad.jsonl")


def test_a_missing_recording_is_a_reason():
    source = open_source("recorded", path="/nowhere.jsonl")
    assert isinstance(source, AbsentSource)
    assert "/nowhere.jsonl" in source.reason
