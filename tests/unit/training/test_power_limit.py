"""The fit finds a law that made the data, and says its errors on GPUs that it did not see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dippm.estimate.models.power_limit import FILE, PowerLimitLaw, fitted
from training.hybrid.fit.power_limit import OUT, bands, errors, fit, left_out, main, points

LAW = PowerLimitLaw(
    idle_share=0.25, knee=0.6, sharpness=5.0, slope=0.7, reach=1.0, bend=6.0
)  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    generator = np.random.default_rng(0)
    runs = []
    for gpu, highest in (("A", 300), ("B", 250), ("C", 250)):
        for batch in range(12):
            power = highest * generator.uniform(0.3, 0.95)
            for limit in range(100, highest + 1, 25):
                slow = np.exp(LAW.log_slowdown(limit, power, highest)) if limit < highest else 1.0
                less = np.exp(LAW.log_power_ratio(limit, power)) if limit < highest else 1.0
                run = {"gpu": gpu, "dataset": "d", "network": f"n{batch % 3}", "batch_size": batch}
                run |= {"optimizer": "o", "power_limit_w": limit}
                noise = np.exp(0.01 * generator.standard_normal())
                run |= {"time_per_epoch_s": 10 * slow * noise, "avg_power_w": power * less}
                runs.append(run)
    return points(pd.DataFrame(runs))


def test_rows_are_ratios_to_the_highest_limit(rows):
    assert len(rows) == 12 * (8 + 6 + 6)
    assert (rows["limit_w"] < rows["highest_w"]).all()
    assert rows["log_time"].min() > -0.1


def test_the_fit_finds_the_law(rows):
    found = fit(rows)
    assert errors(found, rows).abs().quantile(0.9).max() < 0.05
    assert found.knee == pytest.approx(LAW.knee, rel=0.2)


def test_errors_are_of_what_was_left_out(rows):
    wrong = left_out(rows, "gpu").loc[rows.index]
    half, low = bands(rows, wrong)
    assert half.lowest_share == 0.5
    assert 0 < half.time_log_error < 0.1
    assert half.n > low.n > 0


def test_the_shipped_file_is_the_script_s():
    assert OUT.name == FILE
    document = json.loads(OUT.read_text())
    assert document["points"] > 1000
    assert document["errors_percent"]["GPU left out"]["time"]["median"] < 5
    assert len(fitted().gpus) == 4


def test_a_missing_table_is_named_with_what_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["power_limit", "--data", str(tmp_path)])
    assert main() == 1
    told = capsys.readouterr().err
    assert told.startswith("error: no file ")
    assert "`python -m dataset.fetch zeus` gets it." in told
