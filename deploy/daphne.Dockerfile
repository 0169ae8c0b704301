# DIPPM beside DAPHNE, for its scripts and for pipelines of Python: UMLAUT's second container.
# DAPHNE's published image has what DAPHNE needs; its release or your build is mounted at /daphne.
#   docker build -f deploy/daphne.Dockerfile -t dippm:daphne .
#   docker run --rm -v "$PWD/daphne:/daphne:ro" -v "$PWD:/work" dippm:daphne \
#     run -- /daphne/bin/daphne script.daphne
# Its third container, with a GPU, is the same on DAPHNE's image of CUDA: another FROM.
FROM daphneeu/daphne-dev:2024-10-16_X86-64_BASE_ubuntu24.04
USER 0:0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/dippm \
    && groupadd --gid 10001 dippm \
    && useradd --uid 10001 --gid dippm --create-home dippm
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dippm dippm
COPY checkpoints checkpoints
RUN /opt/dippm/bin/pip install -c constraints.txt ".[measure,track,report,umlaut]"
ENV PATH=/opt/dippm/bin:$PATH LD_LIBRARY_PATH=/daphne/lib:/usr/local/lib
USER 10001:10001
WORKDIR /work
ENTRYPOINT ["dippm"]
CMD ["--help"]
