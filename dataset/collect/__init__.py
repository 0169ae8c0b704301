"""Runs a plan on the local GPU or CPU and keeps every outcome, failures included.

    python -m dataset.collect --out build/own --device cuda:0 --budget 8m

A supervisor that never uses CUDA (`supervisor`) sends a worker process (`worker`) one point at a
time; a worker that hangs or dies costs one row. Rows go to a journal, the journal to shards
(`store`). Only PyTorch and the model zoos are required; pyarrow, rich, psutil and Ray are used if
installed.
"""
