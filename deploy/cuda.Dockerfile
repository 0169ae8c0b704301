# DIPPM beside a GPU: measured and tracked runs. The host brings the driver, torch brings CUDA.
#   docker build -f deploy/cuda.Dockerfile -t dippm:cuda .
#   docker run --gpus all --pid=host dippm:cuda doctor
FROM python:3.11.13-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/dippm \
    && /opt/dippm/bin/pip install torch==2.13.0
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY dippm dippm
COPY checkpoints checkpoints
RUN /opt/dippm/bin/pip install -c constraints.txt ".[pmgns,measure,track,report,postgresql]" boto3==1.44.5

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 dippm \
    && useradd --uid 10001 --gid dippm --create-home dippm
COPY --from=build /opt/dippm /opt/dippm
# "utility" mounts NVML, from which counters are read.
ENV PATH=/opt/dippm/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /home/dippm
ENTRYPOINT ["dippm"]
CMD ["--help"]
