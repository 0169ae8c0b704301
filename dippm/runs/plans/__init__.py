"""Plans: runs in a table, carried out workload by workload, with what became of each written back.

a file → rows (`table`, `sweep`) → workloads → rows in processes of their own → the file again
"""
