# Hearth's daemon.
#
#   docker build -t hearth .                                              CPU backend
#   docker build -t hearth:cuda --build-arg EXTRA=cuda12 \
#     --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .           GPUs
#   docker run --rm --gpus all -v /run/hearth:/run/hearth hearth:cuda     a mounted socket is enough for clients
#
# It listens on the container's loopback and on the Unix socket in /run/hearth. To serve other hosts, publish the ports
# and say so: -e HEARTH_INSECURE=true -e HEARTH_LISTEN_GRPC=0.0.0.0:7421 (there is no authentication yet).
ARG BASE=python:3.12-slim

FROM python:3.12-slim AS wheel
WORKDIR /src
RUN pip install --no-cache-dir build==1.3.0
COPY pyproject.toml README.md ./
COPY client client
COPY proto proto
COPY server server
RUN python -m build --wheel --outdir /wheels

FROM ${BASE} AS runtime
ARG EXTRA=cpu
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PATH=/opt/hearth/bin:$PATH
# The CUDA images come without Python; the slim Python image has it. The CPU backend compiles with the ziglang package.
RUN if ! command -v python3 >/dev/null; then \
      apt-get update \
      && apt-get install -y --no-install-recommends python3 python3-venv \
      && rm -rf /var/lib/apt/lists/*; \
    fi \
    && python3 -m venv /opt/hearth \
    && groupadd --system --gid 7421 hearth \
    && useradd --system --uid 7421 --gid hearth --home-dir /var/cache/hearth --create-home hearth \
    && install -d -o hearth -g hearth -m 0700 /run/hearth
COPY --from=wheel /wheels /wheels
RUN wheel="$(ls /wheels/*.whl)" && pip install --no-cache-dir "${wheel}[${EXTRA}]" && rm -rf /wheels

USER hearth
WORKDIR /var/cache/hearth
ENV CACHE_DIRECTORY=/var/cache/hearth
EXPOSE 7421 7422 7423
VOLUME ["/run/hearth", "/var/cache/hearth"]
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7422/healthz', timeout=2)"]
# Exec form: SIGTERM reaches the daemon, which drains. Use --stop-timeout 30 where sessions should have longer than 10 s.
ENTRYPOINT ["hearthd"]
CMD ["serve", "--log-format", "json"]
