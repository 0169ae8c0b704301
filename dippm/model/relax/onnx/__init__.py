"""ONNX → Relax: weights dropped, sizes bound and traced, operators translated."""
