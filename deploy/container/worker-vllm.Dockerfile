# A worker with vLLM: the agent, and the Python package for its engine processes, on vLLM's own image.
#   docker build -f deploy/container/Dockerfile -t rollout:0.1.0 .
#   docker build -f deploy/container/worker-vllm.Dockerfile -t rollout-worker-vllm:0.1.0 .
# You can pass both images by digest: README.md in this directory.
# In worker.toml, set python = "/usr/bin/python3". docs/vllm.md describes the rest.
ARG ROLLOUT=rollout:0.1.0
ARG VLLM=vllm/vllm-openai:v0.32.0

FROM ${VLLM} AS wheel
ARG RUST=1.95.0
RUN apt-get update && apt-get install -y --no-install-recommends build-essential ca-certificates curl \
    && rm -rf /var/lib/apt/lists/*
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain $RUST
ENV PATH=/root/.cargo/bin:$PATH
WORKDIR /source
COPY . .
RUN python3 -m venv /maturin \
    && /maturin/bin/pip install --require-hashes --no-deps -r tests/wheel/maturin.lock \
    && /maturin/bin/maturin build --release --locked --interpreter python3 \
         --manifest-path worker/python/Cargo.toml --out /wheels

FROM ${ROLLOUT} AS programs

FROM ${VLLM}
COPY --from=programs /usr/bin/rollout-worker /usr/bin/rollout-worker
COPY --from=wheel /wheels /wheels
# Compile vLLM's bytecode once: without it each start of an engine takes a minute longer.
RUN python3 -m pip install --no-index --no-deps /wheels/*.whl && rm -r /wheels \
    && (python3 -m compileall -q "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true)
USER 65532:65532
ENTRYPOINT []
STOPSIGNAL SIGTERM
CMD ["rollout-worker", "--config", "/etc/rollout/worker.toml"]
