# A worker with vLLM: the wheel, which has the agent and the Python package for its engine processes, on vLLM's own
# image.
#   docker build -f deploy/container/worker-vllm.Dockerfile -t rollout-worker-vllm:0.1.0 .
# You can pass vLLM's image by digest: README.md in this directory.
# In worker.toml, set python = "/usr/bin/python3". docs/vllm.md describes the rest.
ARG VLLM=vllm/vllm-openai:v0.32.0

FROM ${VLLM} AS wheel
ARG RUST=1.95.0
RUN apt-get update && apt-get install -y --no-install-recommends \
      build-essential ca-certificates clang cmake curl libclang-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
RUN curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain $RUST
ENV PATH=/root/.cargo/bin:$PATH
WORKDIR /source
COPY . .
# The commit that `--version` prints. The build context has no .git.
ARG ROLLOUT_COMMIT=
RUN cargo build --release --locked --bins -p rollout-programs \
    && bash tests/wheel/build.sh /wheels python3 target/release/rollout-programs

FROM ${VLLM}
# The programs too are the wheel's. pip's directory of programs is before /usr/bin in PATH, so a copy of rollout-worker
# in /usr/bin would not run.
COPY --from=wheel /wheels /wheels
# Compile vLLM's bytecode once: without it each start of an engine takes a minute longer.
RUN python3 -m pip install --no-index --no-deps /wheels/*.whl && rm -r /wheels \
    && rollout-worker --version \
    && (python3 -m compileall -q "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true)
USER 65532:65532
ENTRYPOINT []
STOPSIGNAL SIGTERM
CMD ["rollout-worker", "--config", "/etc/rollout/worker.toml"]
