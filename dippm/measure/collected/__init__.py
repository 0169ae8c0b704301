"""A collected set: the folder that the collector writes and all other tools read.

    DIR/shard-0000.parquet ...    rows, with the columns of `dippm.measure.columns`
    DIR/shard-0000.jsonl.gz ...   the same, from a machine without pyarrow
    DIR/kernels-0000.parquet ...  kernel tables of the rows of that shard, see `kernels`
    DIR/journal.jsonl             one JSON object per row, the newest rows of a running campaign
    DIR/campaigns/<id>.json       the request and the result of one start of the collector

`Store` writes it row by row, so that a crash loses at most the row in flight; `collected` reads it
as a table, even while a collector is writing. A row that is both in a shard and in the journal is
read once.
"""
