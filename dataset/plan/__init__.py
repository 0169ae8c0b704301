"""The plan of the collector: its jobs and their order.

    python -m dataset.plan --part inference --out plan.jsonl --summary

A plan is a list of jobs: a workload that is built once, and the points at which it runs.
"""
