"""Write small Paddle models: `python -m tests.frontends.paddle.write_models FOLDER`.

A script of its own, for Paddle must not share a process with TensorFlow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
from paddle import nn


class Recurrent(nn.Layer):
    def __init__(self, kind):
        super().__init__()
        self.layer = getattr(nn, kind)(16, 32, num_layers=2, direction="bidirect")
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class TimeMajor(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(16, 24, time_major=True, direction="bidirect")

    def forward(self, x):
        return self.layer(x)[0]


class EncoderDecoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.LSTM(16, 24), nn.LSTM(16, 24)

    def forward(self, source, target):
        return self.decoder(target, self.encoder(source)[1])[0]


class Loop(nn.Layer):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(16, 16, bias_attr=False)

    def forward(self, x):
        start = [paddle.zeros([1], "int64"), x]
        return paddle.static.nn.while_loop(
            lambda i, x: i < 3, lambda i, x: [i + 1, self.dense(x)], start
        )[1]


class OwnCell(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = nn.RNN(nn.LSTMCell(16, 24))

    def forward(self, x):
        return self.layer(x)[0]


class TwoInputs(nn.Layer):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.dense = nn.Linear(8, 4)

    def forward(self, ids, scale):
        return self.dense(self.table(ids) * scale)


class OneStep(nn.Layer):
    """Calls a function on what layers give."""

    def __init__(self, function, *layers):
        super().__init__()
        self.layers, self.function = nn.Sequential(*layers), function

    def forward(self, x):
        return self.function(self.layers(x))


def mended():
    """Models that Paddle2ONNX fails on as they are, with the sizes of their input."""
    image, row = [None, 3, 16, 16], [None, 4, 20]
    resize = nn.functional.interpolate
    return {
        "upsample": (nn.Upsample(scale_factor=2), image),
        "resize": (OneStep(lambda x: resize(x, scale_factor=2, mode="bilinear")), image),
        "upsample_1d": (
            nn.Upsample(scale_factor=2, mode="linear", data_format="NCW"),
            [None, 3, 8],
        ),
        "conv_same": (nn.Conv1D(4, 8, 5, padding="same", dilation=2), row),
        "group_norm": (nn.Sequential(nn.Conv1D(4, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()), row),
        "mean": (OneStep(lambda x: x + x.mean(), nn.Linear(20, 20)), row),
    }


def refused():
    """Models with an operator that it cannot export."""
    row = [None, 4, 20]
    return {
        "nms": (OneStep(lambda x: paddle.vision.ops.nms(x, 0.5), nn.Linear(4, 4)), [20, 4]),
        "plain_rnn": (OneStep(lambda x: x[0], nn.SimpleRNN(20, 8)), row),
        "inverse": (OneStep(paddle.inverse, nn.Linear(8, 8)), [None, 8, 8]),
        "irfft": (OneStep(lambda x: paddle.fft.irfft(paddle.fft.rfft(x)), nn.Linear(20, 20)), row),
    }


class SteppedRNN(nn.Layer):
    """The way out for a plain recurrent layer: its steps in a loop of Python."""

    def __init__(self):
        super().__init__()
        self.cell = nn.SimpleRNNCell(20, 8)

    def forward(self, x):
        state = None
        for step in range(4):
            _, state = self.cell(x[:, step], state)
        return state


def small_cnn():
    return nn.Sequential(
        nn.Conv2D(3, 8, 3, padding=1),
        nn.BatchNorm2D(8),
        nn.Hardswish(),
        nn.MaxPool2D(2),
        nn.AdaptiveAvgPool2D(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


def save(folder, name, model, *inputs):
    model.eval()
    specs = [paddle.static.InputSpec(shape, kind, n) for n, shape, kind in inputs]
    paddle.jit.save(model, str(folder / name), input_spec=specs)


def save_old(folder, name, make=None, shape=(None, 3, 16, 16)):
    """Write the program format of Paddle 2: `.pdmodel`."""
    paddle.enable_static()
    with paddle.pir_utils.OldIrGuard():
        program, start = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(program, start):
            x = paddle.static.data("x", list(shape), "float32")
            model = (make or small_cnn)()
            model.eval()
            y = model(x)
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(start)
        paddle.static.save_inference_model(str(folder / name), [x], [y], executor, program=program)


def main(folder: Path) -> None:
    paddle.seed(0)
    image = ("x", [None, 3, 16, 16], "float32")
    save(folder, "cnn", small_cnn(), image)
    save(folder, "fixed", small_cnn(), ("x", [4, 3, 16, 16], "float32"))
    save(folder, "anysize", small_cnn(), ("x", [None, 3, None, None], "float32"))
    for kind in ("LSTM", "GRU"):
        save(folder, kind, Recurrent(kind), ("x", [None, 10, 16], "float32"))
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, activation="gelu"), 1)
    save(folder, "encoder", encoder, ("x", [None, 10, 32], "float32"))
    save(
        folder, "two", TwoInputs(), ("ids", [None, 6], "int64"), ("scale", [None, 6, 8], "float32")
    )
    save(folder, "time_major", TimeMajor(), ("x", [10, None, 16], "float32"))
    sequences = [(n, [None, length, 16], "float32") for n, length in (("x", 10), ("y", 7))]
    save(folder, "encoder_decoder", EncoderDecoder(), *sequences)
    save(folder, "loop", Loop(), ("x", [None, 16], "float32"))
    save(folder, "own_cell", OwnCell(), sequences[0])
    zeros = small_cnn()
    for tensor in (*zeros.parameters(), *zeros.buffers()):
        tensor.set_value(paddle.zeros_like(tensor))
    save(folder, "zeros", zeros, image)
    for name, (model, shape) in (mended() | refused()).items():
        save(folder, name, model, ("x", shape, "float32"))
    save(folder, "stepped_rnn", SteppedRNN(), ("x", [None, 4, 20], "float32"))
    save_old(folder, "old")
    olds = [
        name for name in mended() | refused() if name != "irfft"
    ]  # static graphs lack its kernel
    for name in olds:
        shape = (mended() | refused())[name][1]
        save_old(folder, f"old_{name}", lambda name=name: (mended() | refused())[name][0], shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
