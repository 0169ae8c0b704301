import json

import pytest

from dippm import devices
from dippm.base.number_format import show
from dippm.estimate.comparison import Comparison
from dippm.estimate.conditions import Conditions
from dippm.estimate.models.targets import Estimate, Estimates, Interval
from dippm.estimate.prediction import Prediction, Provenance
from dippm.model.graph.model_graph import ModelGraph
from dippm.show.report.predictions import render_report

GRAPH = ModelGraph((), (), (), (), 0, {}, "1", 1, False)
PROVENANCE = Provenance("net.onnx", "roofline-test 1.0.0", "test-roofline", "ab" * 32, "1", "0.1.0")


def estimate(value):
    return Estimate(value, Interval(0.5 * value, 2 * value, 0.9))


def prediction(device="A100", mig=None, batch=32, memory_mb=2865.4, bound_mb=3300.0, **more):
    gpu = devices.find(device)
    slices = {profile.name: profile for profile in gpu.mig_profiles}
    values = {
        "memory_mb": estimate(memory_mb),
        "energy_j": estimate(1.23456),
        "latency_ms": estimate(12.3456),
        "power_w": estimate(100.0),
        **more,
    }
    return Prediction.of(
        Estimates(
            {name: value for name, value in values.items() if value},
            {"energy_j": "no meter"} if not values["energy_j"] else {},
            bound_mb,
        ),
        GRAPH,
        conditions=Conditions(device=gpu, batch=batch, mig=mig and slices[mig]),
        provenance=PROVENANCE,
    )


def test_the_documented_line_prints_four_numbers():
    line = "Predicted Memory {0} MB, Energy {1} J, Latency {2} ms, MIG {3}"
    assert line.format(*prediction()) == (
        "Predicted Memory 2865 MB, Energy 1.235 J, Latency 12.35 ms, MIG 1g.5gb"
    )


def test_fields_are_not_rounded():
    assert prediction().latency_ms == 12.3456


def test_the_slice_holds_the_bound_not_the_point_value():
    tight = prediction(memory_mb=4700.0, bound_mb=5200.0)
    assert tight.mig.name == "1g.10gb"
    assert tight.seed_mig.name == "1g.5gb"


def test_nothing_fits():
    huge = prediction(memory_mb=60_000.0, bound_mb=70_000.0)
    assert huge.mig is None
    assert huge.seed_mig is None
    assert "no slice of A100-40GB holds 70,000 MB" in str(huge)
    assert any("may run out of memory" in warning for warning in huge.warnings)


def test_a_gpu_without_slices_says_so():
    assert "none: RTX-3090 has no MIG profiles" in str(prediction(device="RTX-3090"))
    assert prediction(device="RTX-3090").seed_mig is None


def test_a_slice_that_is_too_small_is_warned_about():
    assert not prediction(mig="2g.10gb").warnings
    (warning,) = prediction(mig="1g.5gb", bound_mb=9000.0).warnings
    assert "1g.5gb has 4,864 MB" in warning


def test_an_absent_target_has_its_reason():
    without = prediction(energy_j=None)
    assert without.energy_j is None
    assert without.absent["energy_j"] == "no meter"
    assert "not available: no meter" in str(without)
    assert "not available: no meter" in without._repr_html_()


def test_a_silent_predictor_still_gets_a_reason():
    assert prediction(power_w=None).absent["power_w"] == "roofline-test 1.0.0 does not predict it"


def test_the_table():
    assert str(prediction()).splitlines()[:4] == [
        " net.onnx · batch 32 · A100-40GB · fp32 · eager",
        "              predicted     90 % interval",
        " memory       2,865 MB      1,433 – 5,731",
        " energy       1.235 J       0.6173 – 2.469",
    ]


def test_to_dict_is_json():
    document = json.loads(json.dumps(prediction().to_dict(), allow_nan=False))
    assert document["mig"] == "1g.5gb"
    assert document["conditions"]["device"] == "A100-40GB"
    assert document["intervals"]["memory_mb"] == {
        "low": 2865.4 / 2,
        "high": 2865.4 * 2,
        "coverage": 0.9,
    }


def test_names_from_files_cannot_inject_markup():
    hostile = Provenance("<script>x</script>.onnx", *("x",) * 5)
    page = render_report(
        Prediction.of(
            Estimates({"latency_ms": estimate(1.0)}),
            GRAPH,
            conditions=Conditions(device=devices.find("A100")),
            provenance=hostile,
        )
    )
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.0012344, "0.001234"), (9.9996, "10.000"), (123.44, "123.4"), (12345.6, "12,346")],
)
def test_four_digits(value, text):
    assert show(value) == text


def test_comparison_sorts_and_tabulates():
    table = Comparison((prediction(batch=1), prediction(batch=8, latency_ms=estimate(2.0))))
    assert [p.conditions.batch for p in table.sorted_by("latency_ms")] == [8, 1]
    assert table.to_pandas()["latency_ms"].tolist() == [12.3456, 2.0]
    assert len(str(table).splitlines()) == 3
    assert isinstance(table[:1], Comparison)
    with pytest.raises(ValueError, match="no column 'speed'"):
        table.sorted_by("speed")
