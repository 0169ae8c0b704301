"""`dippm serve`: questions and answers over HTTP, by upload, by path under a root, or by name.

    connections.py   sockets, and limits on who holds them         (uvicorn)
    app.py           HTTP: routes, bodies, codes                    (FastAPI)
    access.py        who may ask: the token of the page, too
    questions.py     what may be asked, checked once
    uploads.py       files of strangers, until they are answered
    service.py       results by content, jobs, one queue for all
    settings.py      what whoever runs it allows
    jobs.py          a job, and the queue that is fair to clients
    pool.py          the processes that answer, one for each thread of the queue
    answering.py     what such a process does; conversions go to its sandboxed workers
    admission.py     AdmissionReview in, JSON Patch out
    metrics.py       Prometheus' text
    log.py           a line of JSON for each event

Imports run upwards in this list; `access.py` and `errors.py` need no library of the web.
"""
