"""The documentation site: what is made while it is built. `mkdocs.yml` is where to start reading."""
