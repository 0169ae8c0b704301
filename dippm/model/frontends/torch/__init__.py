"""A module of PyTorch becomes an exported program, without a weight.

archive, prepare: what was given, as a module in evaluation mode without its weights.
signature, usual_inputs, fallback_inputs, input_shapes: what its `forward` takes.
candidates, export, batch_check: the call that it accepts, traced at a batch that stands for all.
constant_folding, data_dependent_sizes, lifetimes, ...: what is told apart while it is traced.
program: what the exported program takes.
"""
