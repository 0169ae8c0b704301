# MLflow's server on PostgreSQL and S3, for the runs of a team.
#   docker build -f deploy/mlflow.Dockerfile -t dippm-mlflow .
FROM python:3.11.13-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY deploy/requirements.txt /opt/requirements.txt
RUN pip install -r /opt/requirements.txt \
    && groupadd --gid 10001 mlflow \
    && useradd --uid 10001 --gid mlflow --create-home mlflow
COPY deploy/serve_mlflow.py /opt/serve_mlflow.py
USER 10001:10001
WORKDIR /home/mlflow
EXPOSE 5000
ENTRYPOINT ["python", "/opt/serve_mlflow.py"]
