# Two commands do everything on a fresh Debian machine with Rust and make: `make demo` and `make test`.
# Where CARGO_TARGET_DIR is set, everything is built there. `xtask` builds, tests, lints, measures and releases.

SHELL := /bin/bash
CARGO ?= cargo
# By binary, not by package: see .cargo/config.toml.
XTASK := $(CARGO) run --quiet --bin xtask --
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# Every target; none is a file.
.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*/\1/p' $(MAKEFILE_LIST))

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

preflight: ## check what the build needs, and install what is missing if permitted
	@bash deploy/demo/preflight.sh

build: preflight ## build every binary, and the extension module of the Python package
	$(XTASK) build

demo: build ## run 2,000 prompts on three members and four workers, kill the leader halfway, and verify the output
	@bash deploy/demo/demo.sh "$(TARGET)/debug"

test: preflight ## run the default tests; the last lines list the failures
	$(XTASK) test

latency: preflight ## run members with round trips of 0.5 to 200 ms, with jitter, with one long link, and beyond the limits: ten minutes
	$(XTASK) test --process cluster::latency:: -- --include-ignored

test-deploy: preflight ## check the chart, units, configurations, alert rules and dashboard in deploy/
	$(XTASK) check deploy

test-docs: preflight ## compare the commands, configurations and code in every page with the programs and schemas
	$(XTASK) check docs

test-guide: preflight ## run the shell blocks of docs/quickstart.md, docs/guide.md and docs/guide-repairs.md, unchanged
	$(XTASK) check guide

test-preflight: preflight ## run preflight in clean Debian roots (90 s, needs root); ROLLOUT_PREFLIGHT_MAKE=demo also builds and runs the demo
	$(XTASK) check preflight

test-preflight-demo: ## run test-preflight, then build and run the demo in a root that had nothing; compiles RocksDB; for nightly runs
	@ROLLOUT_PREFLIGHT_MAKE=demo bash tests/preflight/check.sh "$(TARGET)/preflight"

test-images: release-binaries ## build the images of coordinator and worker twice, compare their digests, check their SBOM, and start both; release build, needs root
	@bash tests/images/check.sh "$(TARGET)/images" "$(TARGET)/release/rollout-programs"

test-ops: release-binaries ## check that handovers take 300 ms in the median and 1 s at worst, and membership changes less than an election; release build, a quiet machine
	$(CARGO) test --release -p rollout-tests --test cluster -- rolling_restart:: membership:: --test-threads=1 --nocapture
	$(CARGO) build --release -p rollout-preload -p rollout-jepsen
	@for nemesis in membership rolling; do \
	  "$(TARGET)/release/rollout-jepsen" run --workload item --nemesis $$nemesis --seed 1 --secs 90 || exit; done

test-upgrade: preflight ## upgrade a cluster from each build of release/BASELINES, under load; builds each once (15 min); for nightly runs
	@bash tests/upgrade/baselines.sh "$(TARGET)/baselines"
	ROLLOUT_REQUIRE_BASELINES=1 $(XTASK) test --process cluster::rolling_upgrade::
	$(CARGO) build -p rollout-preload -p rollout-jepsen
	@for workload in item run; do \
	  "$(TARGET)/debug/rollout-jepsen" run --workload $$workload --nemesis upgrade --seed 1 --secs 90 || exit; done

python: build ## build the Python package, with its extension module, in target/python
	@mkdir -p "$(TARGET)/python" && cp -r worker/python/rollout "$(TARGET)/python/"
	@cp "$(TARGET)/debug/librollout_native.so" "$(TARGET)/python/rollout/_native.abi3.so"
	@bash worker/python/plugin.sh "$(TARGET)/python"

wheel: preflight ## build the wheel, with the Python package and the programs, in target/wheels; test it in Python 3.11, 3.12, 3.13 and, if present, 3.14
	@bash tests/wheel/check.sh "$(TARGET)/wheels"

test-install: wheel test-images ## run test-images; in clean Debian roots, install the wheel, run a batch within a minute, kill the leader, and test upgrades and outputs with the wheel's programs (20 min after the builds, also those of release/BASELINES; needs root)
	@bash tests/install/check.sh "$(TARGET)"/wheels/*.whl "$(TARGET)/install"
	@bash tests/install/check_oldest.sh "$(TARGET)"/wheels/*.whl "$(TARGET)/install"
	$(XTASK) test --no-run >"$(TARGET)/tests.list"
	@bash tests/upgrade/baselines.sh "$(TARGET)/baselines"
	@ROLLOUT_REQUIRE_BASELINES=1 bash tests/install/check_tests.sh "$(TARGET)"/wheels/*.whl "$(TARGET)/install" "$(TARGET)/tests.list"

test-slurm: build ## run deploy/slurm with Debian's packages of Slurm in a clean Debian root: start, cancel, requeue and time out workers during a batch (4 min, needs root)
	@bash tests/slurm/check.sh "$(TARGET)/debug" "$(TARGET)/slurm"

test-systemd: build ## run a cluster and a worker with the systemd units, in a clean Debian root that systemd boots (4 min, needs root)
	@bash tests/systemd/check.sh "$(TARGET)/debug" "$(TARGET)/systemd"

test-vllm: build python wheel ## test with vLLM on this CPU; creates an environment of 6 GB once
	@set -e; python="$$(bash tests/vllm/setup.sh)"; \
	  ROLLOUT_VLLM_PYTHON="$$python" ROLLOUT_PYTHON_PACKAGE="$(TARGET)/python" \
	  $(XTASK) test --process --features vllm vllm

bench-vllm: ## measure the overhead compared with LLM.generate: ENGINE_DEVICE, MODEL, ENGINE_ARGS, ROWS; half an hour on a CPU
	$(XTASK) release --build-only
	$(CARGO) build --release -p rollout-python
	$(CARGO) build --release -p rollout-tests --features vllm --bin bench-vllm
	@mkdir -p "$(TARGET)/python-release" && cp -r worker/python/rollout "$(TARGET)/python-release/"
	@cp "$(TARGET)/release/librollout_native.so" "$(TARGET)/python-release/rollout/_native.abi3.so"
	@bash worker/python/plugin.sh "$(TARGET)/python-release"
	@set -e; python="$${ROLLOUT_VLLM_PYTHON:-$$(bash tests/vllm/setup.sh)}"; \
	  ROLLOUT_VLLM_PYTHON="$$python" ROLLOUT_PYTHON_PACKAGE="$(TARGET)/python-release" "$(TARGET)/release/bench-vllm"

test-torch: build python ## test with torch on this CPU; creates an environment of 5 GB once, or uses ROLLOUT_TORCH_PYTHON
	@set -e; python="$${ROLLOUT_TORCH_PYTHON:-$$(bash tests/torch/setup.sh)}"; \
	  not_run="$(TARGET)/test-torch-not-run.txt"; : > "$$not_run"; status=0; \
	  ROLLOUT_TORCH_PYTHON="$$python" ROLLOUT_PYTHON_PACKAGE="$(TARGET)/python" ROLLOUT_TORCH_NOT_RUN="$$not_run" \
	  $(XTASK) test --process --features torch torch_store torch_run || status=$$?; \
	  cat "$$not_run"; exit "$$status"

bench-torch: ## compare sets and gets of the shared store with TCPStore's: SECONDS of each; three minutes
	$(XTASK) release --build-only
	$(CARGO) build --release -p rollout-python
	$(CARGO) build --release -p rollout-tests --features torch --bin bench-torch-store
	@mkdir -p "$(TARGET)/python-release" && cp -r worker/python/rollout "$(TARGET)/python-release/"
	@cp "$(TARGET)/release/librollout_native.so" "$(TARGET)/python-release/rollout/_native.abi3.so"
	@set -e; python="$${ROLLOUT_TORCH_PYTHON:-$$(bash tests/torch/setup.sh)}"; \
	  ROLLOUT_TORCH_PYTHON="$$python" ROLLOUT_PYTHON_PACKAGE="$(TARGET)/python-release" "$(TARGET)/release/bench-torch-store"

bench-redis: preflight ## compare bench ledger with Redis 7 streams, in alternating runs: ROUNDS, SECONDS; ten minutes; needs redis-server
	$(XTASK) release --build-only
	$(CARGO) build --release -p rollout-tests --features redis --bin bench-beside-redis
	"$(TARGET)/release/bench-beside-redis"

bench-costs: preflight ## print what a million rows and an idle cluster cost, and recovery times: PART (rows, idle or recovery), ROWS, ROW_MS, WORKERS, SECONDS, TIMES, WORKER_TIMES; half an hour
	@$(XTASK) release --build-only
	@$(CARGO) build --release --bin bench-costs
	@"$(TARGET)/release/bench-costs" $(PART)

jepsen: build ## inject faults into every workload with three seeds, membership changes, rolling restarts and leases: ninety seconds each, ROLLOUT_JEPSEN_JOBS at a time
	$(CARGO) build -p rollout-preload
	@{ for nemesis in membership rolling; do echo "--workload item --nemesis $$nemesis --seed 1"; done; \
	  echo "--workload store --nemesis lease --seed 1"; \
	  for seed in 1 2 3; do for workload in item steal session run store rendezvous barrier shards; do \
	  echo "--workload $$workload --seed $$seed"; done; done; } | \
	  xargs -L1 -P "$${ROLLOUT_JEPSEN_JOBS:-1}" "$(TARGET)/debug/rollout-jepsen" run --secs 90

jepsen-nightly: build ## inject every family of faults into every workload for an hour: ROLLOUT_JEPSEN_BUDGET, _JOBS, _OUT, _SEED, _ALL_PAIRS=1
	$(CARGO) build -p rollout-preload
	"$(TARGET)/debug/rollout-jepsen" matrix --budget "$${ROLLOUT_JEPSEN_BUDGET:-1h}" --jobs "$${ROLLOUT_JEPSEN_JOBS:-1}" \
	  --seed "$${ROLLOUT_JEPSEN_SEED:-$$(( $$(date -u +%s) / 86400 * 1000 ))}" $${ROLLOUT_JEPSEN_ALL_PAIRS:+--all-pairs} \
	  --out "$${ROLLOUT_JEPSEN_OUT:-$(TARGET)/jepsen-nightly/$$(date -u +%Y-%m-%dT%H%M%S)}"

# Built without the commit: a commit that changes no program does not start the matrix anew.
kill-matrix: export ROLLOUT_COMMIT :=
kill-matrix: preflight ## report which seeded bugs the fault tests find: hours; continues where an earlier call ended
	$(CARGO) build --workspace --lib --bins
	$(CARGO) build -p rollout-coordinator --features seeded-bugs --target-dir "$(TARGET)/seeded-bugs"
	"$(TARGET)/debug/rollout-jepsen" bugs --seeds 5 --secs 90 --out "$(TARGET)/kill-matrix"

gc: preflight ## check that ten runs of a million rows, in sequence, use the space of one, in memory and on disk
	ROLLOUT_GC_ROWS=1000000 $(XTASK) test --process batch::ten_runs::

smoke-3node-aws: preflight ## run three members and workers on loopback, with a steal and an AWS preemption: 30 s at most
	$(XTASK) test --process batch::smoke_3node_aws

smoke-3node-gcp: preflight ## run the same with GCP
	$(XTASK) test --process batch::smoke_3node_gcp

soak: preflight ## kill processes at random for ten minutes: 50,000 rows, some of which kill engines, fail or are invalid
	ROLLOUT_SOAK_SECONDS=600 ROLLOUT_SOAK_ROWS=50000 $(XTASK) test --process batch::soak::

FUZZ_TARGETS := $(or $(FUZZ_TARGET),commands images consensus records snapshots objects store_requests engine_messages requests credentials inputs files)

fuzz: preflight ## run each decoder of untrusted bytes under libFuzzer, for FUZZ_SECONDS (600) each: FUZZ_TARGET, FUZZ_NUMBER
	RUSTC_WORKSPACE_WRAPPER="$(CURDIR)/tests/fuzz/rustc.sh" $(CARGO) build -p rollout-fuzz --features libfuzzer
	@for target in $(FUZZ_TARGETS); do \
	  bash tests/fuzz/run.sh "$(TARGET)" $$target $(or $(FUZZ_SECONDS),600) $(FUZZ_NUMBER) || exit; done

fuzz-keep: ## pack what `make fuzz` found into tests/fuzz/corpus, which the gate replays
	@set -e; for target in $(FUZZ_TARGETS); do \
	  least="$(TARGET)/fuzz/$$target.least"; rm -rf "$$least"; mkdir -p "$$least"; \
	  ROLLOUT_FUZZ_TARGET=$$target "$(TARGET)/debug/rollout-fuzz" "$$least" "$(TARGET)/fuzz/$$target" -set_cover_merge=1 \
	    -use_counters=0 -use_cmp=0 -max_len=1024 >"$$least.log" 2>&1; \
	  python3 tests/fuzz/keep.py $$target "$$least"; done

test-deny: ## check licenses and sources of the dependencies, banned crates and duplicate versions (deny.toml)
	@bash tests/deny/check.sh "$(TARGET)/deny-tools"

deny: ## run test-deny, and check for known vulnerabilities if the database can be fetched: before a release
	@bash tests/deny/check.sh "$(TARGET)/deny-tools" advisories-if-possible

lint: preflight ## check formatting and clippy, with warnings as errors, and run test-deny
	$(XTASK) lint

release: preflight ## build the programs, optimized, after deny; fails if one contains a seeded bug
	$(XTASK) release

release-binaries: preflight ## build the programs, optimized
	$(XTASK) release --build-only

nightly: preflight ## run long faults, the kill matrix, vLLM, torch, fuzzing and benchmarks: hours; writes a report into docs/nightly
	$(XTASK) nightly

bench: preflight ## print the figures of docs/figures.md, as JSON lines
	@$(XTASK) bench
