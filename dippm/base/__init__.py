"""Foundations of all packages: untrusted files, printed text, numbers, progress, processes."""
