"""Callbacks of training frameworks, with the frameworks themselves where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import dippm
from dippm.errors import FrameworkNotInstalledError
from dippm.runs.store.folder import read_folder
from dippm.runs.tracking import callbacks

KERAS = """
import dippm, keras, numpy
from dippm.runs.tracking.callbacks import keras_callback
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse", optimizer="sgd")
x = numpy.zeros((8, 3), "float32")
class Stops(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise KeyError
with dippm.track("keras", metrics=()) as run:
    given = dict(batch_size=2, epochs=2, verbose=0)
    model.fit(x, x[:, :1], callbacks=[keras_callback()], **given)
    model.predict(x, verbose=0)
    tracked = keras_callback("again")
    try:
        model.fit(x, x[:, :1], callbacks=[tracked, Stops()], **given)
    except KeyError:
        pass
    model.fit(x, x[:, :1], callbacks=[tracked], **given)
model.fit(x, x[:, :1], callbacks=[keras_callback()], **given)  # outside of a run
print(run.path)
"""


@pytest.fixture(autouse=True)
def _spool(monkeypatch, tmp_path):
    monkeypatch.setenv("DIPPM_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DIPPM_ATTACH", "no")


@pytest.mark.tensorflow
def test_batches_of_keras_are_spans_and_its_epochs_are_logged():
    held = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "KERAS_BACKEND": "torch"}
    words = [sys.executable, "-c", KERAS]
    done = subprocess.run(words, capture_output=True, text=True, env=held)
    assert done.returncode == 0, done.stderr
    run = read_folder(Path(done.stdout.split()[-1]))
    spans = [(span.name, span.status) for span in run.spans]
    assert spans[:8] == [("step", "ok")] * 8
    assert spans[8:] == [("again", "failed"), *[("again", "ok")] * 8]
    assert all(span.parent == 0 for span in run.spans)
    logged = [(value.name, value.step) for value in run.values][:2]
    assert logged == [("loss", 0), ("loss", 1)]


def test_steps_of_transformers_are_spans_and_what_it_logs_is_kept():
    """Its own handler calls as its trainer does, which needs accelerate."""
    pytest.importorskip("transformers")
    from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

    tracked = callbacks.transformers_callback()
    state, control = TrainerState(), TrainerControl()
    with dippm.track("trainer", metrics=()) as run:
        handler = CallbackHandler([tracked], None, None, None, None)
        handler.on_train_begin(None, state, control)
        for step in range(3):
            handler.on_step_begin(None, state, control)
            handler.on_substep_end(None, state, control)
            state.global_step = step + 1
            handler.on_step_end(None, state, control)
        handler.on_log(None, state, control, {"loss": 0.5, "note": "no number"})
        handler.on_step_begin(None, state, control)
        handler.on_train_end(None, state, control)
        path = run.path
    recorded = read_folder(path)
    assert [(s.name, s.status) for s in recorded.spans] == [
        *[("step", "ok")] * 3, ("step", "failed")
    ]  # fmt: skip
    assert [(v.name, v.data, v.step) for v in recorded.values] == [("loss", 0.5, 3)]


def test_batches_of_lightning_are_spans():
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    import torch

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, _):
            loss = self.layer(batch[0]).sum()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 3)))
    with dippm.track("lightning", metrics=()) as run:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        given = [callbacks.lightning_callback()]
        trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=given, **quiet)
        trainer.fit(Net(), loader)
        path = run.path
    recorded = read_folder(path)
    assert [span.status for span in recorded.spans] == ["ok"] * 4
    assert [value.name for value in recorded.values] == ["loss"]


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_of_two_names_of_a_framework_the_imported_one_counts(monkeypatch, package):
    for module in callbacks.LIGHTNING:
        name = module.partition(".")[0]
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(Callback=type(name, (), {})))
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    assert callbacks.callback_class("Callback", *callbacks.LIGHTNING).__name__ == package


def test_a_framework_that_is_missing_is_named(monkeypatch):
    for module in callbacks.LIGHTNING:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FrameworkNotInstalledError, match="lightning is not installed"):
        callbacks.lightning_callback()
