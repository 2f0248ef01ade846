# syntax=docker/dockerfile:1
# Hearth's daemon.
#
#   docker build -t hearth .                                              CPU backend
#   docker build -t hearth:cuda12 --build-arg EXTRA=cuda12 \
#     --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .           GPUs; EXTRA=cuda13 with
#                                                                         BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04
#   docker run --rm --gpus all --shm-size 1g -v /run/hearth:/run/hearth hearth:cuda12
#
# Clients on the host and in other containers need only the mounted /run/hearth (hearth.connect(), as the same user or
# as a tenant of the configuration). User 7421 must own the directory: `install -d -o 7421 -g 7421 /run/hearth`.
#
# The daemon listens on TCP only on the container's loopback. To serve other hosts, mount a configuration with [tls] and
# [[tenants]] (deploy/examples), name it with -e HEARTH_CONFIG=/etc/hearth/hearth.toml, and publish 7421 and 7423. Use
# this file and HEARTH_* variables instead of flags, because the health check reads them as well.
#
# The root file system may be read-only (--read-only). The daemon writes to /run/hearth (sockets), /var/cache/hearth
# (compiled modules, caches of CuPy and the driver) and /tmp (temporary files of compiles; --tmpfs /tmp). Keep the cache
# in a named volume, so that compiled kernels outlive the container. With several GPUs, NCCL needs more of /dev/shm than
# the default of 64 MiB: --shm-size 1g. Hearth itself shares memory by memfd.
# The container needs no capability (--cap-drop ALL --security-opt no-new-privileges), no --ipc host and no --init: as
# process 1 hearthd reaps the processes that it inherits. The daemon drains for drain_timeout (10 s): --stop-timeout 30.
#
# Tags can change, digests cannot. For reproducible builds, name both, as in
# --build-arg BASE=python:3.12.11-slim-bookworm@sha256:... (`docker buildx imagetools inspect TAG` prints the digest).
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

# ---- parent of the next two stages: the base with Python and the daemon's user ----
FROM ${BASE} AS base
# The CUDA images have no Python; the slim Python image has. No version is pinned, because Debian and Ubuntu keep only
# one version of a package at a time.
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

# ---- the packages, from wheels, so without a compiler (sdnotify has no wheel, and is pure Python) ----
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
# The wheel is that of the stage `wheel`, whatever its version. The extra "cpu" is "server" with ziglang, a compiler for
# systems without one; the image installs the system's compiler instead.
# hadolint ignore=DL3013
RUN wheel="$(ls /wheels/*.whl)" \
    && if [ "${EXTRA}" = cpu ]; then extra=server; else extra="${EXTRA}"; fi \
    && /opt/hearth/bin/pip install --no-cache-dir --only-binary=:all: --no-binary=sdnotify "${wheel}[${extra}]" \
    && /opt/hearth/bin/pip uninstall --yes pip

# ---- the image ----
FROM base AS runtime
ARG EXTRA=cpu
# The CPU backend compiles kernels with the system's C++ compiler, the CUDA backend with NVRTC from CuPy's packages.
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
# NVIDIA_*: the devices and the parts of the driver that NVIDIA's container runtime adds; without it they have no
# effect. HEARTH_LISTEN_UNIX is set, so that a mount that is not writable is an error; with "auto" the daemon would use
# another path. HOME is in the volume of the cache, because CuPy, the driver and others write caches below it.
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
# Readiness: a device serves, and the daemon does not drain. The check uses the Unix socket, so it needs no TCP listener
# and no token. For liveness, on which a container is restarted: `hearthd health --live`.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --start-interval=2s --retries=3 CMD ["hearthd", "health"]
# Exec form: SIGTERM reaches the daemon, which drains; a second SIGTERM ends it immediately.
STOPSIGNAL SIGTERM
ENTRYPOINT ["hearthd"]
CMD ["serve"]
