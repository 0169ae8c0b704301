"""Presentation of answers and runs: tables, report pages, the page of `dippm ui`, the service."""
