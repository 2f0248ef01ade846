# syntax=docker/dockerfile:1
# Hearth's daemon.
#
#   docker build -t hearth .                                              CPU backend
#   docker build -t hearth:cuda12 --build-arg EXTRA=cuda12 \
#     --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .           GPUs; EXTRA=cuda13 with
#                                                                         BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
#   docker run --rm --gpus all --shm-size 1g -v /run/hearth:/run/hearth hearth:cuda12
#
# A mounted /run/hearth is all that clients on the host and in other containers need (hearth.connect(), as the same
# user or as a tenant of the configuration). It has to belong to user 7421: `install -d -o 7421 -g 7421 /run/hearth`.
#
# TCP is the container's loopback alone. To serve other hosts, mount a configuration with [tls] and [[tenants]]
# (deploy/examples), say so with -e HEARTH_CONFIG=/etc/hearth/hearth.toml, and publish 7421 and 7423. Configure by that
# file and by HEARTH_* variables rather than by flags: the health check reads them as well.
#
# The root file system may be read-only (--read-only). What is written: /run/hearth (sockets), /var/cache/hearth
# (compiled modules, CuPy's and the driver's caches) and /tmp (a compile's scratch; --tmpfs /tmp). Keep the cache in a
# named volume: compiled kernels then outlive the container. NCCL wants more of /dev/shm than the 64 MiB that containers have, so --shm-size 1g for several GPUs;
# Hearth itself shares memory by memfd.
# No capability is needed (--cap-drop ALL --security-opt no-new-privileges), no --ipc host and no --init: as process 1
# hearthd waits for the processes that it inherits. The daemon drains for drain_timeout (10 s): --stop-timeout 30.
#
# Tags can be moved, digests cannot: for builds that are the same next year, name both, as in
# --build-arg BASE=python:3.12.11-slim-bookworm@sha256:... (`docker buildx imagetools inspect TAG` says which).
ARG BUILDER=python:3.12.11-slim-bookworm
ARG BASE=python:3.12.11-slim-bookworm

# ---- the wheel, from the tree ----
FROM ${BUILDER} AS wheel
WORKDIR /src
RUN pip install --no-cache-dir build==1.3.0
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY client client
COPY proto proto
COPY server server
COPY deploy/hearth.toml deploy/
COPY deploy/examples deploy/examples
COPY deploy/systemd deploy/systemd
RUN python -m build --wheel --outdir /wheels

# ---- what both of the next have: the base with Python and the daemon's user ----
FROM ${BASE} AS base
# The CUDA images come without Python; the slim Python image has it. Debian and Ubuntu keep one version of a package at
# a time, which a pinned one would outlive.
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --system --gid 7421 hearth \
    && useradd --system --uid 7421 --gid hearth --home-dir /var/cache/hearth --no-create-home hearth \
    && install -d -o hearth -g hearth -m 0700 /var/cache/hearth \
    && install -d -o hearth -g hearth -m 0755 /run/hearth

# ---- the packages, from wheels, so no compiler (sdnotify has none: it is plain Python) ----
FROM base AS packages
ARG EXTRA=cpu
# hadolint ignore=DL3008
RUN if ! python3 -c 'import ensurepip' 2>/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/hearth
COPY --from=wheel /wheels /wheels
# The wheel is the one that was just built, by whatever version it has. The extra "cpu" is "server" and ziglang, a
# compiler for where none can be had; the image has a better one.
# hadolint ignore=DL3013
RUN wheel="$(ls /wheels/*.whl)" \
    && if [ "${EXTRA}" = cpu ]; then extra=server; else extra="${EXTRA}"; fi \
    && /opt/hearth/bin/pip install --no-cache-dir --only-binary=:all: --no-binary=sdnotify "${wheel}[${extra}]" \
    && /opt/hearth/bin/pip uninstall --yes pip

# ---- the image ----
FROM base AS runtime
ARG EXTRA=cpu
# The CPU backend compiles kernels with the system's C++ compiler. On GPUs NVRTC, which CuPy's packages bring, does.
# hadolint ignore=DL3008
RUN if [ "${EXTRA}" = cpu ]; then \
      apt-get update \
      && apt-get install -y --no-install-recommends g++ \
      && rm -rf /var/lib/apt/lists/*; \
    fi
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hearthd" \
      org.opencontainers.image.description="Keeps a node's GPUs warm: a daemon that owns the CUDA contexts" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=packages /opt/hearth /opt/hearth
# NVIDIA_*: which devices and which parts of its driver NVIDIA's container runtime puts in; without it they do nothing.
# listen.unix is named, so that a mount that cannot be written is an error and not another place. What CuPy, the driver
# and others put under HOME is for the cache's volume, too.
ENV PATH=/opt/hearth/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/var/cache/hearth \
    CACHE_DIRECTORY=/var/cache/hearth \
    HEARTH_LISTEN_UNIX=/run/hearth/hearth.sock \
    HEARTH_LOG_FORMAT=json \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 7421:7421
WORKDIR /var/cache/hearth
VOLUME ["/run/hearth", "/var/cache/hearth"]
EXPOSE 7421 7422 7423
# Readiness: some device serves and nothing drains. Over the Unix socket, so whatever listens on TCP, and without a
# token. Liveness, for what restarts a container: `hearthd health --live`.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --start-interval=2s --retries=3 CMD ["hearthd", "health"]
# Exec form: SIGTERM reaches the daemon, which drains; a second one ends it at once.
STOPSIGNAL SIGTERM
ENTRYPOINT ["hearthd"]
CMD ["serve"]
