"""Kernel tables: the kernels of one step, their durations, and their operators.

* profile: one profiled step → a trace, after all timing of a point → kernels with the operators
  that launched them; modules mark their calls, so that a kernel has the path of its module
* record: `TracedKernel`, one row of a table
* join: kernels ↔ the calls and operators of our graph
"""
