"""The same architectures written alike in each framework.

`python -m tests.frontends.twins.<framework> FOLDER NAME [zeros|ones|random]` writes one model
file and prints its path. Each runs in its own process: TensorFlow and Paddle never share one.
"""
