"""What is told of a process tree, by whichever means.

CPU seconds are read anew every time, resident memory at most 20 times a second, all else 10 times.
"""

from dippm.measure.readings import Quantity

ENDED = "every process of the tree has ended"
QUANTITIES = (
    Quantity("cpu_s", "s", "tree", "CPU time of all threads, ended ones too", counter=True),
    Quantity("cpu_percent", "%", "tree", "of one core, mean of the last half second"),
    Quantity("rss_mb", "MiB", "tree", "resident memory; shared pages count in each process"),
    Quantity("peak_rss_mb", "MiB", "tree", "most of the readings so far"),
    Quantity("pss_mb", "MiB", "tree", "resident memory, shared pages divided; every 5 s at most"),
    Quantity("threads", "threads", "tree", "alive"),
    Quantity("processes", "processes", "tree", "alive"),
    Quantity("lost_processes", "processes", "tree", "ended unseen by any ancestor", counter=True),
    Quantity("read_mb", "MiB", "tree", "from storage", counter=True),
    Quantity("written_mb", "MiB", "tree", "to storage", counter=True),
)
