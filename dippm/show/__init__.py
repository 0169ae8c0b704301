"""Answers and runs as people see them: tables, pages, the page of `dippm ui`."""
