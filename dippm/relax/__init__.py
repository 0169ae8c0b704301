"""The only place that knows TVM: a framework's program → Relax → plain data."""
