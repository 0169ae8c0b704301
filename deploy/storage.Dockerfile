# A server of S3's protocol whose folder belongs to a user who is not root.
#   docker build -f deploy/storage.Dockerfile -t dippm-storage .
FROM minio/minio:RELEASE.2025-04-22T22-12-26Z
RUN mkdir -p /data && chown 10001:10001 /data
USER 10001:10001
VOLUME /data
CMD ["server", "/data"]
