"""A collected set: the folder that the collector writes and everybody else reads.

    DIR/shard-0000.parquet ...    rows, with the columns of `dippm.measure.columns`
    DIR/shard-0000.jsonl.gz ...   the same, from a machine without pyarrow
    DIR/kernels-0000.parquet ...  kernel tables of the rows of that shard, see `kernels`
    DIR/journal.jsonl             one JSON object per row, the newest rows of a running campaign
    DIR/campaigns/<id>.json       what one start of the collector was asked for

`Store` writes it, row by row, so that a crash loses the row in flight at most; `collected` reads it
as a table, also while a collector writes there. A row that stands in a shard and in the journal is
read once.
"""
