"""Runs that do not fit are refused before their first step, by the frameworks themselves."""

from __future__ import annotations

import pytest
import torch

from dippm.errors import ConditionsError, DippmWarning, DoesNotFitError, FrameworkNotInstalledError
from dippm.runs.memory_guards import accelerate_guard, lightning_guard, transformers_guard

SMALL_MB = 100
"""Less than a CUDA context."""


class Items(torch.utils.data.Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 16

    def __getitem__(self, place):
        self.seen.append(place)
        return {"input_ids": torch.zeros(12, dtype=torch.int64), "labels": torch.tensor(1)}


def trainer_of(guard, folder, **settings):
    pytest.importorskip("accelerate", reason="the trainer needs Accelerate")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], disable_tqdm=True, save_strategy="no", optim="adamw_torch", **settings,
    )  # fmt: skip
    return transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        arguments,
        train_dataset=Items(),
        callbacks=[guard],
    )


def test_a_trainer_of_transformers_is_refused_before_its_first_step(tmp_path):
    trainer = trainer_of(transformers_guard(device="A100", room_mb=SMALL_MB), tmp_path)
    with pytest.raises(DoesNotFitError, match=r"training step of Bert.* \(adamw\) at batch 4"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("settings", [{}, {"bf16": True, "gradient_checkpointing": True}])
def test_a_trainer_of_transformers_that_fits_runs(tmp_path, settings):
    trainer = trainer_of(transformers_guard(device="A100", strict=True), tmp_path, **settings)
    trainer.train()
    assert trainer.state.global_step == 2


def test_a_run_on_no_gpu_is_told_and_goes_on_unless_strict(tmp_path):
    trainer = trainer_of(transformers_guard(), tmp_path)
    with pytest.warns(DippmWarning, match="was not checked: the run is on the device cpu"):
        trainer.train()
    assert trainer.state.global_step == 2
    strict = trainer_of(transformers_guard(strict=True), tmp_path)
    with pytest.raises(ConditionsError, match="device cpu"):
        strict.train()


def lightning_run(guard, *, forward=True, precision="32-true", **given):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.steps = 0

        def training_step(self, batch, _):
            self.steps += 1
            return (self.layer(batch[0]) - batch[1]).square().sum()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    if forward:
        Net.forward = lambda self, x: self.layer(x)
    net = Net()
    data = torch.utils.data.TensorDataset(torch.zeros(8, 3), torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callbacks = [guard(net) if callable(guard) else guard]
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=callbacks, precision=precision, **quiet
    )
    return net, lambda: trainer.fit(net, loader, **given)


def lightning_or_skip():
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


def test_a_trainer_of_lightning_is_refused_before_its_first_step():
    lightning_or_skip()
    net, fit = lightning_run(lightning_guard(device="A100", room_mb=SMALL_MB))
    with pytest.raises(DoesNotFitError, match=r"training step of Net \(adam\) at batch 2"):
        fit()
    assert net.steps == 0


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_trainer_of_lightning_that_fits_runs(precision):
    lightning_or_skip()
    net, fit = lightning_run(lightning_guard(device="A100", strict=True), precision=precision)
    fit()
    assert net.steps == 4


def test_lightning_without_a_forward_is_asked_about_a_part():
    lightning_or_skip()
    net, fit = lightning_run(lightning_guard(device="A100"), forward=False)
    with pytest.warns(DippmWarning, match="was not checked"):
        fit()
    assert net.steps == 4
    part = lambda net: lightning_guard(  # noqa: E731
        model=net.layer, device="A100", room_mb=SMALL_MB
    )
    part.__name__ = "part"
    net, fit = lightning_run(part, forward=False)
    with pytest.raises(DoesNotFitError, match="Linear"):
        fit()
    assert net.steps == 0


@pytest.mark.parametrize("mixed", ["no", "bf16"])
def test_a_loop_of_accelerate_is_checked_before_and_after_prepare(mixed):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is not installed")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed)
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.zeros(4, 3)
    before = accelerate_guard(accelerator, module, x, optimizer=optimizer, device="A100")
    module, optimizer = accelerator.prepare(module, optimizer)
    forward = module.forward
    after = accelerate_guard(accelerator, module, x, optimizer=optimizer, device="A100")
    assert module.forward == forward
    assert before.peak_mb == after.peak_mb
    assert after.prediction.conditions.optimizer == "adamw"
    with pytest.raises(DoesNotFitError):
        accelerate_guard(
            accelerator, module, x, optimizer=optimizer, device="A100", room_mb=SMALL_MB
        )
    with pytest.warns(DippmWarning, match="device cpu"):
        assert accelerate_guard(accelerator, module, x, optimizer=optimizer) is None


def test_a_framework_that_is_missing_is_named(monkeypatch):
    import sys

    for module in ("transformers", "lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FrameworkNotInstalledError, match="transformers is not installed"):
        transformers_guard()
    with pytest.raises(FrameworkNotInstalledError, match="lightning is not installed"):
        lightning_guard()
