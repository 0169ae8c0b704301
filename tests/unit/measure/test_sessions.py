"""Files of other frameworks, written and run for real, each framework in a process of its own."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

MEASURE = """
from dippm.errors import DippmError
from dippm.measure.measurement import measure_model
from dippm.measure.protocol import Regime, Settings

quick = Settings(warm_up_steps=1, timed_steps=3, settle_s=0.0)
def show(path, **options):
    try:
        m = measure_model(path, device="cpu", settings=quick, **options)
        print(m.columns["framework"].split()[0], m.latency_ms > 0, m.memory_mb > 0)
    except DippmError as error:
        print(type(error).__name__, error.message, error.hint)
"""
KERAS = """
import keras
inputs = keras.Input((8, 8, 3))
x = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(x)))
model.save(FOLDER + "/net.keras")
model.save(FOLDER + "/net.h5")
model.export(FOLDER + "/saved", verbose=False)
show(FOLDER + "/net.keras", batch=2)
show(FOLDER + "/net.h5", batch=2)
show(FOLDER + "/net.h5", batch=2, trust=True)
show(FOLDER + "/saved", batch=2)
show(FOLDER + "/saved", batch=2, trust=True)
show(FOLDER + "/net.keras", regime=Regime("bf16"))
"""
PADDLE = """
import paddle
net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.ReLU(), paddle.nn.Flatten(),
                           paddle.nn.Linear(144, 2))
spec = [paddle.static.InputSpec([None, 3, 8, 8], "float32")]
paddle.jit.save(net, FOLDER + "/net", input_spec=spec)
show(FOLDER + "/net.json", batch=2)
show(FOLDER + "/net.json", batch=2, input="3,8,9")
import pathlib
pathlib.Path(FOLDER + "/net.pdiparams").unlink()
show(FOLDER + "/net.json", batch=2)
"""


def lines(script: str, folder) -> list[str]:
    code = f"{MEASURE}\nFOLDER = {str(folder)!r}\n{script}"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    known = ("keras", "tensorflow", "paddle", "Unsafe", "Conditions", "Input", "Model", "Measure")
    return [line for line in answer.stdout.splitlines() if line.startswith(known)]


@pytest.mark.tensorflow
@pytest.mark.skipif(not find_spec("tensorflow"), reason="TensorFlow is not installed")
def test_keras_and_savedmodel_files_run_in_tensorflow(tmp_path):
    archive, h5, trusted, saved, trusted_saved, half = lines(KERAS, tmp_path)
    assert archive == trusted == "keras True True"
    assert h5.startswith("UnsafeModelError net.h5")
    assert saved.startswith("UnsafeModelError saved is a SavedModel")
    assert trusted_saved == "tensorflow True True"
    assert half.startswith("ConditionsError net.keras is measured as it is")


@pytest.mark.paddle
@pytest.mark.skipif(not find_spec("paddle"), reason="PaddlePaddle is not installed")
def test_paddle_programs_run_in_paddle(tmp_path):
    good, wrong, lost = lines(PADDLE, tmp_path)
    assert good == "paddle True True"
    assert wrong.startswith(("MeasurementError", "InputShapeError"))
    assert lost.startswith("ModelNotFoundError net.pdiparams is missing")
