"""Runs in the child process: SavedModels with loops, branches and inputs of all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WIDTH, STEPS = 16, 7


def save(name: str, folder: Path) -> Path:
    """Write the model of that name in `MODELS`; its only weight is WIDTH × WIDTH."""
    import tensorflow as tf

    function, inputs = MODELS[name]
    signature = [tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in inputs.items()]
    module = tf.Module()
    module.weight = tf.Variable(tf.ones((WIDTH, WIDTH)))

    def call(*arguments: Any) -> dict[str, Any]:
        return {"y": tf.autograph.to_graph(function)(tf, module.weight, *arguments)}

    module.call = tf.function(call, input_signature=signature, autograph=False)
    tf.saved_model.save(module, str(folder), signatures=module.call)
    return folder


def _loop(tf, w, x):
    return tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, tf.matmul(x, w)), (0, x))[1]


def _nested(tf, w, x):
    for i in tf.range(3):
        for _ in tf.range(i + 1):
            x = tf.matmul(x, w)
    return x


def _stepping(tf, w, x):
    y = x[:, 0]
    for i in tf.range(tf.shape(x)[1]):
        y = tf.matmul(y, w) + x[:, i]
    return y


def _written(tf, w, x):
    rows = tf.TensorArray(tf.float32, size=STEPS)
    for i in tf.range(STEPS):
        rows = rows.write(i, tf.matmul(x[:, i], w))
    return tf.reshape(tf.transpose(rows.stack(), [1, 0, 2]), (-1, STEPS * WIDTH))


def _pushed(tf, w, x):
    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(STEPS):
        rows = rows.write(rows.size(), tf.matmul(x[:, i], w))
    return tf.transpose(rows.stack(), [1, 0, 2])


def _scan(tf, w, x):
    return tf.scan(lambda a, row: tf.matmul(a, w) + row, tf.transpose(x, [1, 0, 2]))


def _backwards(tf, w, x):
    rows = tf.transpose(x, [1, 0, 2])
    return tf.scan(lambda a, row: tf.matmul(a, w) + row, rows, x[:, 0], reverse=True)


def _fold(tf, w, x):
    return tf.foldl(lambda a, row: tf.matmul(a, w) + row, tf.transpose(x, [1, 0, 2]))


def _some_rows(tf, w, x):
    """A recurrent cell on the first four of seven steps."""
    rows = tf.TensorArray(tf.float32, size=STEPS).unstack(tf.transpose(x, [1, 0, 2]))
    state = tf.zeros_like(x[:, 0])
    for i in tf.range(4):
        state = tf.tanh(tf.matmul(rows.read(i), w) + tf.matmul(state, w))
    return state


def _all_rows(tf, w, x):
    rows = tf.TensorArray(tf.float32, size=STEPS).unstack(tf.transpose(x, [1, 0, 2]))
    state = tf.zeros_like(x[:, 0])
    for i in tf.range(STEPS):
        state = tf.tanh(tf.matmul(rows.read(i), w) + tf.matmul(state, w))
    return state


def _map_steps(tf, w, x):
    return tf.map_fn(lambda row: tf.matmul(row, w), tf.transpose(x, [1, 0, 2]))


def _map_samples(tf, w, x):
    return tf.map_fn(lambda row: tf.matmul(row, w), x)


def _vectorized(tf, w, x):
    return tf.vectorized_map(lambda row: tf.matmul(row, w), x)


def _growing(tf, w, ids):
    def body(ids):
        scores = tf.matmul(tf.one_hot(ids[:, -1], WIDTH), w)
        return (tf.concat([ids, tf.argmax(scores, -1, tf.int32)[:, None]], 1),)

    free = (tf.TensorShape([None, None]),)
    return tf.while_loop(lambda ids: tf.shape(ids)[1] < 9, body, (ids,), free)[0]


def _data(tf, w, x):
    step = lambda x: (tf.matmul(x, w),)  # noqa: E731  autograph reads it
    return tf.while_loop(lambda x: tf.reduce_sum(x) > 0, step, (x,))[0]


def _at_most(tf, w, x):
    step = lambda x: (tf.matmul(x, w),)  # noqa: E731  autograph reads it
    return tf.while_loop(lambda x: tf.reduce_sum(x) > 0, step, (x,), maximum_iterations=5)[0]


def _endless(tf, w, x):
    for _ in tf.range(100_000):
        x = tf.matmul(x, w)
    return x


def _thousands(tf, w, x):
    for _ in tf.range(1_100):
        for _ in tf.range(3_000):
            x = tf.matmul(x, w)
    return x


def _deep(tf, w, x):
    """Twelve branches in one another."""

    def branch(depth):
        if depth == 0:
            return tf.matmul(x, w)
        return tf.cond(tf.reduce_sum(x) > depth, lambda: branch(depth - 1), lambda: x * 2.0)

    return branch(12)


def _unknown_sizes(tf, w, ids):
    def body(ids):
        return (tf.concat([ids, ids[:, -1:] + tf.cast(w[0, 0], tf.int32)], 1),)

    free = (tf.TensorShape([None, None]),)
    return tf.while_loop(lambda ids: tf.reduce_sum(ids) < 99, body, (ids,), free)[0]


def _branch(tf, w, x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: tf.matmul(x, w))


def _known_branch(tf, w, x):
    return tf.cond(tf.shape(x)[1] > 20, lambda: tf.matmul(x, w), lambda: x * 2.0)


def _switch(tf, w, x, n):
    return tf.switch_case(
        n, [lambda: x, lambda: tf.matmul(x, w), lambda: tf.matmul(tf.matmul(x, w), w)]
    )


def _times(tf, w, x, n):
    for _ in tf.range(n):
        x = tf.matmul(x, w)
    return x


def _dense(tf, w, x):
    return tf.matmul(x, w)


def _edges(tf, w, x, edges):
    sums = tf.math.unsorted_segment_sum(tf.gather(x, edges[0]), edges[1], tf.shape(x)[0])
    return tf.matmul(sums, w)


def _signal(tf, w, x):
    spectrum = tf.signal.rfft(x, [WIDTH])
    return tf.matmul(tf.signal.irfft(spectrum, [WIDTH]), w)


def _sparse_updates(tf, w, x):
    rows = tf.tensor_scatter_nd_update(x, [[0]], x[:1] * 2.0)
    return tf.matmul(tf.asinh(rows), w) / tf.norm(x, axis=1, keepdims=True)


def _patches(tf, w, x):
    crops = tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    return tf.matmul(crops, w)


def _masked(tf, w, x, mask):
    return tf.matmul(tf.where(mask, x, 0.0), w)


def _text(tf, w, x):
    return tf.matmul(tf.one_hot(tf.strings.length(x), WIDTH), w)


_ROW, _ROWS = ([None, WIDTH], "float32"), ([None, STEPS, WIDTH], "float32")
MODELS: dict[str, Any] = {
    "loop": (_loop, {"x": _ROW}),
    "nested": (_nested, {"x": _ROW}),
    "stepping": (_stepping, {"x": _ROWS}),
    "written": (_written, {"x": _ROWS}),
    "pushed": (_pushed, {"x": _ROWS}),
    "scan": (_scan, {"x": _ROWS}),
    "backwards": (_backwards, {"x": _ROWS}),
    "fold": (_fold, {"x": _ROWS}),
    "some_rows": (_some_rows, {"x": _ROWS}),
    "all_rows": (_all_rows, {"x": _ROWS}),
    "map_steps": (_map_steps, {"x": _ROWS}),
    "map_samples": (_map_samples, {"x": _ROWS}),
    "vectorized": (_vectorized, {"x": _ROWS}),
    "growing": (_growing, {"ids": ([None, 2], "int32")}),
    "data": (_data, {"x": _ROW}),
    "at_most": (_at_most, {"x": _ROW}),
    "endless": (_endless, {"x": _ROW}),
    "thousands": (_thousands, {"x": _ROW}),
    "deep": (_deep, {"x": _ROW}),
    "unknown_sizes": (_unknown_sizes, {"ids": ([None, 2], "int32")}),
    "branch": (_branch, {"x": _ROW}),
    "known_branch": (_known_branch, {"x": _ROW}),
    "switch": (_switch, {"x": _ROW, "n": ([], "int32")}),
    "times": (_times, {"x": _ROW, "n": ([], "int32")}),
    "time_major": (_dense, {"x": ([STEPS, None, WIDTH], "float32")}),
    "edges": (_edges, {"x": _ROW, "edges": ([2, 30], "int32")}),
    "free_edges": (_edges, {"x": _ROW, "edges": ([2, None], "int32")}),
    "fixed_edges": (_edges, {"x": ([300, WIDTH], "float32"), "edges": ([2, 30], "int32")}),
    "signal": (_signal, {"x": _ROW}),
    "sparse_updates": (_sparse_updates, {"x": _ROW}),
    "patches": (_patches, {"x": ([None, 8, 8, 4], "float32")}),
    "masked": (_masked, {"x": _ROW, "mask": ([None, WIDTH], "bool")}),
    "text": (_text, {"x": ([None], "string")}),
}
