# syntax=docker/dockerfile:1

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches keep what was fetched and compiled from one build to the next; the binary is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    cargo build --release --locked && install -D target/release/danmakud /out/danmakud

FROM debian:bookworm-slim
RUN groupadd --system --gid 10001 danmakud \
    && useradd --system --uid 10001 --gid danmakud --home-dir /data --shell /usr/sbin/nologin danmakud \
    && install -d -o danmakud -g danmakud -m 0750 /data
COPY --from=build /out/danmakud /usr/local/bin/danmakud
COPY LICENSE /usr/share/doc/danmakud/LICENSE

USER danmakud
# Holds the embedded store and what the store refused. A volume that takes this folder's owner on its first use.
VOLUME /data
WORKDIR /data
ENV DANMAKUD_LISTEN=0.0.0.0:8080 \
    DANMAKUD_DATA_DIR=/data
EXPOSE 8080

# Asks the server in this container, by its own binary: the image has no curl. It asks whether the process lives, not
# whether it is ready: while MongoDB is away the server holds the only copy of what waits, and must not be replaced.
# Ask for readiness (health --ready, or /readyz) where traffic is steered.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/danmakud", "health"]

# No shell in between, so that the signal reaches the server and nothing that is queued is lost. Give it the time:
# docker stop waits 10 seconds, compose has stop_grace_period, Kubernetes terminationGracePeriodSeconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/danmakud"]
