.DEFAULT_GOAL := help
.PHONY: help run build test lint fmt proto-lint ci bench bench-hot bench-regress bench-peers redis-cost long conformance model credit durability faults hostile chart kube monitoring trace tls-clients sbom image image-test example examples gym migration

# The tools of the tests come first: python3 is then the one that has grpcio.
TOOLS := $(CURDIR)/.tools/venv/bin:$(CURDIR)/.tools/bin

# Tests wait more than they compute: for time to pass, for processes to start and to end.
TEST_THREADS ?= $(shell echo $$((4 * $$(getconf _NPROCESSORS_ONLN))))

help: ## Print this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
		printf '%-14s %s\n' "$$name" "$$text"; done

run: ## Run a server on 127.0.0.1:7700, data in ringq-data; ARGS="--flag value" adds flags
	cargo run --locked -- serve $(ARGS)

build: ## Build the release binary, target/release/ringq
	cargo build --locked --release

test: ## Run all tests, a failed one twice; what needs a tool that cannot be had is skipped, with CI=true an error
	.ci/install-test-tools
	PATH="$(TOOLS):$$PATH" RUST_TEST_THREADS=$(TEST_THREADS) .ci/test

lint: ## Check formatting, clippy, the documentation, the dependencies and the contract
	.ci/run fmt clippy doc deny proto-lint

fmt: ## Format the code
	cargo fmt

proto-lint: ## Check the contract alone
	.ci/run proto-lint

ci: ## Run everything that a change has to pass
	.ci/run

bench: ## Measure against the targets; ARGS="lifecycle unary --rounds 5" chooses
	cargo bench --locked --bench load -- $(ARGS)

bench-hot: ## Time the pure hot paths; ARGS="receipt" chooses
	cargo bench --locked --bench hot -- $(ARGS)

bench-regress: ## Count what the hot paths cost and compare with the baseline; BLESS=1 makes it the baseline
	.ci/install-test-tools
	cargo bench --locked --profile dev --bench regress -- $(if $(BLESS),--bless)

bench-peers: build ## Do the same work on ringq and on other queues; ARGS="ringq nats --rounds 3" chooses
	benches/peers/install
	benches/peers/run.py $(ARGS)

redis-cost: ## Measure what a job costs Redis, also beside 1,000,000 stored ones
	RINGQ_STORED=$${RINGQ_STORED:-1000000} cargo test --locked --test it -- redis_cost --include-ignored --nocapture --test-threads 1

long: ## Run every suite that make ci leaves out in the background; ARGS="chart trace" chooses, --status prints, --resume goes on
	.ci/long $(ARGS)

conformance: ## Run what every store must do on every store; one that cannot be had is an error
	.ci/install-test-tools
	CI=true PATH="$(TOOLS):$$PATH" RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --test it -- conformance --include-ignored

model: ## Run the model test in full: 100 seeds of 10,000 steps
	RINGQ_MODEL_SEEDS=$${RINGQ_MODEL_SEEDS:-100} RINGQ_MODEL_STEPS=$${RINGQ_MODEL_STEPS:-10000} \
		cargo test --locked --test it -- model --nocapture

credit: ## Settle 1,000,000 jobs through the other of two replicas while hints get lost
	RINGQ_CREDIT_JOBS=$${RINGQ_CREDIT_JOBS:-1000000} \
		cargo test --locked --test it -- e2e::credit --nocapture

durability: ## Kill a server on files 50 times under load, cut its power and that of Redis 10 times, as root
	RINGQ_KILLS=$${RINGQ_KILLS:-50} RINGQ_CUTS=$${RINGQ_CUTS:-10} \
		cargo test --locked --test faults -- power image files::killed --include-ignored --nocapture --test-threads 1

faults: build ## Kill, stop, fill and cut off servers and Redis under load, each for 22 seconds
	RINGQ_BIN=$${RINGQ_BIN:-$(CURDIR)/target/release/ringq} RINGQ_FAULT_SECONDS=$${RINGQ_FAULT_SECONDS:-22} RINGQ_MIXED_SECONDS=$${RINGQ_MIXED_SECONDS:-120} \
		RINGQ_DROPS=$${RINGQ_DROPS:-1000} cargo test --locked --test faults -- --include-ignored --nocapture --test-threads 1

hostile: build ## Flood, stall and starve a server on both ports, beside a client that is measured; ARGS="floods" chooses
	RINGQ_BIN=$${RINGQ_BIN:-$(CURDIR)/target/release/ringq} cargo test --locked --test hostile -- $(ARGS) --include-ignored --nocapture --test-threads 1

chart: ## Check the Helm chart: schemas, policies, values that must be refused; ARGS=--render renders the manifests
	[ -n "$$RINGQ_BIN$(ARGS)" ] || cargo build --locked
	.ci/check-chart $(ARGS)

kube: ## Install, upgrade and scale the chart on a real Kubernetes API server, and use its tokens; ARGS="--only accounts" chooses
	tests/kube/install
	tests/monitoring/install
	[ -n "$$RINGQ_BIN" ] || cargo build --locked
	tests/kube/run.py $(ARGS)

monitoring: ## Evaluate every panel and provoke the alerts on a real Prometheus under load
	.ci/install-test-tools
	cargo build --locked
	PATH="$(TOOLS):$$PATH" RINGQ_BIN=$${RINGQ_BIN:-$(CURDIR)/target/debug/ringq} tests/monitoring/run

trace: ## Trace jobs from Python to Go and check what a real OpenTelemetry Collector receives; ARGS="whole away" chooses
	.ci/install-test-tools
	tests/trace/install
	[ -n "$$RINGQ_BIN" ] || cargo build --locked
	.tools/trace/venv/bin/python tests/trace/run.py $(ARGS)

tls-clients: ## Make each mistake with TLS by clients in Go, Java and Python and compare what both sides print; ARGS="go java" chooses
	.ci/install-test-tools
	tests/tls_clients/install
	[ -n "$$RINGQ_BIN" ] || cargo build --locked
	tests/tls_clients/run.py $(ARGS)

migration: ## Run the code of docs/from-*.md, and all attempts of its retry policies; ARGS="--language go" chooses
	[ -n "$$RINGQ_BIN" ] || cargo build --locked
	tests/migration/run $(ARGS)

sbom: ## List what the binary is made of as CycloneDX, target/sbom/ringq.cdx.json, and check the list
	.ci/sbom

example: ## Hash a tree of files with Python workers while the server is killed; ARGS=DIR
	examples/hash_tree/run $(ARGS)

gym: ## Play the gym with workers in ARGS="go python -- --only first_job", or with yours: ARGS="--worker CMD --producer CMD"
	tests/gym/run $(ARGS)

LANGUAGES := rust go python typescript java ruby cpp php

examples: ## Install what the workers in all languages need, as root, build and test them, and let them share a queue
	examples/install $(filter-out rust,$(LANGUAGES))
	CI=true tests/gym/run $(LANGUAGES)
	tests/gym/run python -- --broken
	CI=true tests/gym/run $(LANGUAGES) -- --exchange

image: ## Build the image by docker, podman or buildah; ARGS="--compile-here" needs no base image
	deploy/image $(ARGS)

image-test: ## Build the image twice, compare, and run it and the chart with buildah, as root; ARGS="tls chart" chooses
	tests/image/run $(ARGS)
