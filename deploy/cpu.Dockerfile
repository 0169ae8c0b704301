# DIPPM without a GPU: predictions, tracked runs, the page.
#   docker build -f deploy/cpu.Dockerfile -t dippm:cpu .
FROM python:3.11.13-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/dippm \
    && /opt/dippm/bin/pip install --index-url "$TORCH_INDEX" torch==2.13.0
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dippm dippm
COPY checkpoints checkpoints
RUN /opt/dippm/bin/pip install -c constraints.txt ".[pmgns,measure,track,report,postgresql,ui,serve]" boto3==1.44.5

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 dippm \
    && useradd --uid 10001 --gid dippm --create-home dippm
COPY --from=build /opt/dippm /opt/dippm
ENV PATH=/opt/dippm/bin:$PATH
USER 10001:10001
WORKDIR /home/dippm
ENTRYPOINT ["dippm"]
CMD ["--help"]
