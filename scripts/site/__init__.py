"""Generated parts of the documentation site. Start reading at `mkdocs.yml`."""
