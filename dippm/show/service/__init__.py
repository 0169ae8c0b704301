"""`dippm serve`: questions and answers over HTTP, by upload, by path under a root, or by name.

    connections.py   sockets, with limits on their number and pace (uvicorn)
    app.py           HTTP: routes, bodies, status codes            (FastAPI)
    access.py        access control, shared with the page
    questions.py     validated questions
    uploads.py       untrusted files, until they are answered
    service.py       results by content, jobs, one queue for all
    settings.py      settings of the operator
    jobs.py          a job, and the queue that is fair to clients
    pool.py          the worker processes, one per thread
    answering.py     main loop of a worker process; conversions run in its sandboxed workers
    admission.py     AdmissionReview in, JSON Patch out
    metrics.py       metrics in Prometheus' text format, and a line of JSON per event

`access.py` and `errors.py` need no web library.
"""
