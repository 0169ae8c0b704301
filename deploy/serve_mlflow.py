"""Become MLflow's server on a database and a bucket; passwords come from files of secrets.

Read from the environment: DATABASE (its address, without a password), BUCKET (s3://NAME[/FOLDER]),
HOST, PORT, WORKERS, and DATABASE_PASSWORD_FILE, STORAGE_PASSWORD_FILE where they are needed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

SECRETS = {
    "DATABASE_PASSWORD_FILE": "PGPASSWORD",
    "STORAGE_PASSWORD_FILE": "AWS_SECRET_ACCESS_KEY",
}
PATIENCE_S = 60.0


def main() -> None:
    """Make the bucket if there is none, then serve."""
    for given, wanted in SECRETS.items():
        if path := os.environ.get(given):
            os.environ[wanted] = Path(path).read_text(encoding="utf-8").strip()
    bucket = os.environ["BUCKET"]
    make_bucket(bucket.removeprefix("s3://").partition("/")[0])
    program = shutil.which("mlflow", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        sys.exit("mlflow is not installed")
    words = [
        *("mlflow", "server", "--backend-store-uri", os.environ["DATABASE"]),
        *("--artifacts-destination", bucket),
        *("--host", os.environ.get("HOST", "127.0.0.1"), "--port", os.environ.get("PORT", "5000")),
        *("--workers", os.environ.get("WORKERS", "2")),
    ]
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.execv(program, words)


def make_bucket(name: str) -> None:
    """Make a bucket unless it is there; its server may still be starting."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client("s3", endpoint_url=os.environ.get("MLFLOW_S3_ENDPOINT_URL"))
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            if name not in {held["Name"] for held in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=name)
            return
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > end:
                sys.exit(f"the bucket {name} cannot be made: {error}")
            time.sleep(0.5)


if __name__ == "__main__":
    main()
