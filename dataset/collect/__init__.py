"""Runs a plan on the GPU or CPU at hand and keeps every outcome, failures included.

    python -m dataset.collect --out build/own --device cuda:0 --budget 8m

A supervisor that never touches CUDA (`supervisor`) asks a worker process (`worker`) for one point
at a time; a worker that hangs or dies costs one row. Rows go to a journal, the journal to shards
(`store`). Only PyTorch and the model zoos are needed; pyarrow, rich, psutil and Ray are used where
they are installed.
"""
