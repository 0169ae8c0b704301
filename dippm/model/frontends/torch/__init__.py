"""From a PyTorch module to an exported program, without weights.

archive, prepare: the given model as a module in evaluation mode without its weights.
signature, usual_inputs, fallback_inputs, input_shapes: the inputs of its `forward`.
candidates, export, batch_check: an accepted call, traced at a batch that stands for all.
constant_folding, data_dependent_sizes, lifetimes, ...: observations and rewrites during tracing.
program: the inputs of an exported program.
"""
