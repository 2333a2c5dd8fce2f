# syntax=docker/dockerfile:1
# The service as an image. Dependencies are cached as a layer; it runs as an unprivileged user on a read-only root.
#
#   docker build --build-arg VERSION="$(cargo pkgid | sed 's/.*[#@]//')" \
#     --build-arg SOURCE_COMMIT="$(git rev-parse HEAD)" -t submission-manager .
#   docker run --read-only -p 127.0.0.1:8082:8082 -v submissions:/data -v ./registry:/registry:ro \
#     -e SM_CONSOLE_AUTH submission-manager
#
# It contains the sample registry, whose gateways do not exist. The console is closed without SM_CONSOLE_AUTH.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /source
COPY Cargo.toml Cargo.lock ./
# Dependencies first: they change seldom and take most of the time.
RUN mkdir src && echo 'fn main() {}' > src/main.rs && touch src/lib.rs \
    && cargo build --release --locked && rm -r src
COPY build.rs ./
COPY src src
COPY schema schema
COPY registry registry
COPY templates templates
# What '--version' shows: the commit, and the date of the build in seconds since 1970.
ARG SOURCE_COMMIT
ARG SOURCE_DATE_EPOCH
RUN touch src/lib.rs src/main.rs && cargo build --release --locked
# Folders of the image. They are created here because the second stage runs no commands.
RUN mkdir -p /image/data /image/registry && cp registry/*.json /image/registry/ \
    && chown -R 65532:65532 /image/data

FROM debian:bookworm-slim
ARG VERSION=unknown
LABEL org.opencontainers.image.title="Submission Manager" \
      org.opencontainers.image.description="Durable submissions to HTTP gateways" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /source/target/release/submission-manager /usr/local/bin/submission-manager
COPY --from=build /image /
# A numeric id, so that platforms can check that it is not root.
USER 65532:65532
WORKDIR /
ENV SM_LISTEN=0.0.0.0:8082 \
    SM_STORE=sqlite:/data/submission.db \
    SM_REGISTRY=/registry/submission_targets.json \
    TMPDIR=/data
VOLUME /data
EXPOSE 8082
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD ["submission-manager", "health"]
# The service is process 1, so signals reach it: SIGTERM stops gracefully, SIGHUP reloads the registry.
ENTRYPOINT ["submission-manager"]
CMD ["serve"]
