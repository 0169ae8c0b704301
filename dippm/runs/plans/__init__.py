"""Plans: tables of runs, executed workload by workload, with the status of each row written back.

a file → rows (`table`, `sweep`) → workloads → rows in separate processes → the file again
"""
