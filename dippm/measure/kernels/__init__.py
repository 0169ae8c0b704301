"""Kernel tables: what one step launches, how long each kernel takes, and whose it is.

* paths: modules mark their calls, so that a kernel knows its module
* profile: one profiled step → a trace, after all timing of a point
* trace_file: a trace in the profiler's format → kernels with the operators that launched them
* record: `TracedKernel`, one row of a table
* table: tables of many points → one Parquet file, and back
* join: kernels ↔ the calls and operators of our graph
"""
