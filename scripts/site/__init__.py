"""The documentation site: what is made while it is built. Start reading at `mkdocs.yml`."""
