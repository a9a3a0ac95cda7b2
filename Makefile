# Two commands do everything on a fresh machine: `make demo` and `make test`.

DEMO_SECONDS ?= 0

# What this machine has the tools to build, asked after setup.
FEATURES = $$(scripts/features)

COUNTS_ACCEPT ?=

.PHONY: help demo docs test e2e test-papers test-vm test-kubernetes counts properties bench bench-load bench-balance bench-console bench-telemetry bench-inference bench-upgrade bench-xds bench-fleet bench-gateway bench-arm bench-on-demand bench-corba bench-kernel bench-l4 lab regret experiment soak soak-fleet fuzz build build-lab deb container console arm install-arm apache install-apache omniorb install-omniorb java

help:
	@echo "make demo    see adaptive balancing beside round robin (DEMO_SECONDS=30 ends by itself)"
	@echo "make docs    the manual as a site, with search: target/site/index.html"
	@echo "make test    format, lints, unit, property and end-to-end tests"
	@echo "make e2e     one program of end-to-end tests, or one test (PROGRAM=http TEST=smuggling::)"
	@echo "make test-papers  the statistics of papers as a whole, of which make test has a quick form (ten minutes)"
	@echo "make test-kubernetes  members and gateways from a real API server of Kubernetes, built from Go modules at the first run (ten minutes), and the conformance suite of the Gateway API"
	@echo "make test-vm the kernel load monitor on Debian's kernel and over Soft-RoCE, under QEMU (part of make test)"
	@echo "make counts  instructions of hot paths against counts/figures.txt (part of make test; COUNTS_ACCEPT=\"WHY\" takes new figures)"
	@echo "make properties  property tests with other seeds and PROPERTY_CASES (4000) cases each (15 minutes)"
	@echo "make bench   side by side with HAProxy, nginx and Envoy (BENCH_QUICK=1 for six minutes)"
	@echo "make bench-balance  how well they balance, and Traefik: slow, stalling, failing members and more (90 minutes; BENCH_QUICK=1 for six)"
	@echo "make bench-console  what open pages of the web console cost (15 minutes; BENCH_QUICK=1 for four)"
	@echo "make bench-inference  the strategy for engines of language models beside rules of other routers, in virtual time, and beside their programs before simulated engines (an hour; BENCH_QUICK=1 for six minutes)"
	@echo "make bench-upgrade  how much later requests are answered while the balancer is replaced (six minutes; BENCH_QUICK=1 for two)"
	@echo "make bench-telemetry  what the access log and traces cost (15 minutes; BENCH_QUICK=1 for three)"
	@echo "make bench-xds  what weights for clients of xDS cost: 1,000 clusters with 100 endpoints (a minute)"
	@echo "make bench-fleet  how soon ten balancers know of an alert, and how soon another one decides (three minutes; BENCH_QUICK=1 for one)"
	@echo "make bench-gateway how Evenkeel, Traefik, Caddy and Envoy cope with 5,000 routes, and what a pod that fails still gets (as root; an hour, BENCH_QUICK=1 for 15 minutes; kube-apiserver and peers are built once, which takes 20 more)"
	@echo "make bench-load  how fast and how late the load generator is itself, and wrk (two minutes)"
	@echo "make bench-corba  the CORBA service: overhead, effectiveness, scalability, forwards, relay"
	@echo "make bench-kernel  the kernel load monitor: accuracy, latency, cost, balance (as root; BENCH_QUICK=1 for six minutes)"
	@echo "make bench-l4  rules that the kernel forwards beside the proxy, nftables and IPVS; UDP rules beside nginx and Envoy (as root; 20 minutes, BENCH_QUICK=1 for four)"
	@echo "make lab     the experiments of five papers in virtual time: figures, verdicts and pages in lab/results (LAB=NAME selects)"
	@echo "make regret  how far each strategy is from the best one in 2,000 random worlds (half an hour): bench/results/regret"
	@echo "make experiment  the QoS broker's policies on three Apaches (EXPERIMENT_TIMES=1 for four minutes)"
	@echo "make build   the binary that users run: target/dist/evenkeel (scripts/setup kernel before, for BPF and RDMA)"
	@echo "make build-lab  the workbench, target/dist/evenkeel-lab: experiments, load generator, demonstration"
	@echo "make deb     Debian packages of balancer, agent, workbench, libarm and the Apache module: target/deb (docs/service.md)"
	@echo "make container  an image FROM scratch with the balancer (CONTAINER_ENGINE=docker)"
	@echo "make console the web console's bundle, which build, demo and test put into the binary where there is Node.js"
	@echo "make arm     libarm.so, with which servers tell their load: target/dist/libarm.so"
	@echo "make apache  mod_evenkeel.so for Apache httpd, beside it; install-arm, install-apache (PREFIX=/usr/local)"
	@echo "make omniorb libevenkeel-omniorb.a for CORBA servers on omniORB, with its example; install-omniorb (PREFIX)"
	@echo "make java    the jar for CORBA servers on JacORB, with its example: target/dist/java/lib"
	@echo "make soak    an hour under load while all around the balancer changes: what was lost, what grew (SOAK_MINUTES=480: eight hours)"
	@echo "make soak-fleet  ten minutes in which etcds and servers of ten balancers fail (FLEET_SECONDS=60: one; FLEET_SEED repeats a run)"
	@echo "make fuzz    every fuzz target for FUZZ_SECONDS (60)"

demo:
	@scripts/setup build
	@scripts/demo
	@exec target/demo/evenkeel-lab demo --seconds $(DEMO_SECONDS)

build:
	@scripts/setup build
	@scripts/console
	cargo build --profile dist -p evenkeel $(FEATURES)

build-lab:
	@scripts/setup build
	cargo build --profile dist -p evenkeel-lab

# The manual as a site. Needs mdBook, which setup gets.
docs:
	@scripts/setup docs
	@scripts/docs

# What is packed is what `make build`, `make build-lab`, `make arm` and `make apache` build; DEB_FROM=FOLDER packs another build.
deb:
	@scripts/setup deb
	$(if $(DEB_FROM),,$(MAKE) build build-lab apache)
	scripts/deb $(DEB_FROM)

CONTAINER_ENGINE ?= docker
container: build
	scripts/rootfs target/dist/evenkeel target/container/root
	$(CONTAINER_ENGINE) build -t evenkeel -f packaging/container/Containerfile target/container

console:
	@scripts/setup console
	@scripts/console

arm:
	@scripts/setup build
	cargo build --profile dist -p evenkeel-arm

PREFIX ?= /usr/local
install-arm: arm
	install -d $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include
	install -s -m 644 target/dist/libarm.so $(DESTDIR)$(PREFIX)/lib/
	install -m 644 crates/arm/include/arm.h crates/arm/include/evenkeel.h $(DESTDIR)$(PREFIX)/include/
	[ -n "$(DESTDIR)" ] || ldconfig

apache install-apache: arm
	@scripts/setup apache
	$(MAKE) -C modules/apache BUILD=$(CURDIR)/target/dist/mod_evenkeel LIBARM=$(CURDIR)/target/dist $(if $(filter install-apache,$@),install)

omniorb install-omniorb:
	@scripts/setup omniorb
	$(MAKE) -C modules/omniorb BUILD=$(CURDIR)/target/dist/omniorb PREFIX=$(PREFIX) \
	  $(if $(filter install-omniorb,$@),install,all example)

java:
	@scripts/setup java
	mvn -q -f modules/java/pom.xml package -Dbuild.folder=$(CURDIR)/target/dist/java

test:
	@scripts/setup test
	@scripts/console
	cargo fmt --all --check
	scripts/deny
	scripts/tests $(FEATURES)

# One program of end-to-end tests, or one test of it, with the binaries built as `make test` builds them.
# `make e2e PROGRAM=http TEST=smuggling::`
PROGRAM ?= http
TEST ?=
e2e:
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/scripts/lint-rustc cargo test --workspace $(FEATURES) --test $(PROGRAM) -- $(TEST)

# Statistics that guard claims of papers, as a whole; `make test` has a quick form of each.
test-papers:
	@scripts/setup test
	EVENKEEL_PAPERS=whole cargo test --workspace $(FEATURES) --test sim --test workbench --test corba -- --nocapture \
	  few_members:: broker_experiment:: effectiveness::

test-vm:
	@scripts/setup test
	cargo test --workspace $(FEATURES) --test kernel -- --nocapture vm::
	cargo test --workspace $(FEATURES) --test machines -- --nocapture --ignored

# The API server stays in a cache: `make test` uses it if it is there.
test-kubernetes:
	@scripts/setup test
	EVENKEEL_KUBERNETES="$$(scripts/kubernetes conformance)" && export EVENKEEL_KUBERNETES && \
	cargo test --workspace $(FEATURES) --test fleet -- --nocapture kubernetes:: gateway deployment:: ingress:: inference_pools:: && \
	cargo test --workspace $(FEATURES) --test fleet -- --nocapture --ignored --exact \
	  conformance::claimed_features_pass

# Hot paths are held by the instructions that they take, which do not depend on what else the
# machine does.
counts:
	@scripts/setup test
	scripts/counts $(if $(COUNTS_ACCEPT),--accept "$(COUNTS_ACCEPT)")

# `make test` gives property tests the same seed each time, so that what passes once passes again. This
# looks further.
PROPERTY_CASES ?= 4000
properties:
	@scripts/setup test
	PROPTEST_CASES=$(PROPERTY_CASES) cargo test --no-fail-fast --workspace --exclude evenkeel-e2e --exclude evenkeel-bench \
	  --exclude evenkeel-counts --lib --bins --tests

bench:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel -p evenkeel-bench
	target/dist/bench
	target/dist/slow_member --as-built

# Latency of clients through each balancer and policy. BALANCE="--only slow --members 3" selects.
bench-balance:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel -p evenkeel-bench
	target/dist/balance --as-built $(BALANCE)

# Routers for engines of language models. INFERENCE="--traces FOLDER --seeds 5" selects in virtual time (BENCH_QUICK=1 leaves this part out),
# SOCKETS="--traces FOLDER --rounds 3 --only evenkeel|smg" over sockets. EVENKEEL=PROGRAM takes a program that is there.
bench-inference:
	@scripts/setup bench
	[ -n "$(BENCH_QUICK)" ] || cargo run --profile dist -p evenkeel-sim --example inference -- --write bench/results/inference $(INFERENCE)
	[ -n "$(EVENKEEL)" ] || cargo build --profile dist -p evenkeel
	bench/inference/play.py --evenkeel $(or $(EVENKEEL),target/dist/evenkeel) $(SOCKETS)

# How fast evenkeel-lab load is against a server that does nothing, and how late.
bench-load:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel-lab
	cargo build --profile dist -p evenkeel-bench --bin load_own
	target/dist/load_own --out target/load.md

# What open pages of the console cost.
bench-console:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel
	bench/console.py target/dist/evenkeel

# What the access log and traces cost.
bench-telemetry:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel
	bench/telemetry.py target/dist/evenkeel

# How much later requests are answered during an upgrade.
bench-upgrade:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel $(FEATURES)
	bench/upgrade.py

# How soon ten balancers know of a load alert, and how soon another one decides when that one is killed.
bench-fleet:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel $(FEATURES)
	bench/fleet.py

# How gateways cope with many routes, and what a pod that fails still gets: Evenkeel and its peers, in turns. Needs root: addresses.
# GATEWAY="--only evenkeel,traefik" selects.
bench-gateway:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel $(FEATURES)
	bench/gateway.py --programs "$$(scripts/kubernetes)" --peers "$$(bench/gateway-peers)" $(GATEWAY)

# What weights for clients of xDS cost.
bench-xds:
	cargo build --profile dist -p evenkeel-bench --bin xds
	for round in 1 2 3; do target/dist/xds; done

bench-arm:
	@scripts/setup apache
	cargo build --profile dist -p evenkeel-arm -p evenkeel-bench
	target/dist/arm
	target/dist/apache

# The experiments of the five papers in virtual time. LAB="cygnus --real" selects.
LAB ?= all
# Strategies in random worlds: REGRET="--worlds 300 --seeds 4" are those for tuning.
REGRET ?= --judge --worlds 2000 --seeds 8 --out bench/results/regret
regret:
	@scripts/setup lab
	cargo build --release -p evenkeel-lab
	target/release/evenkeel-lab regret $(REGRET)

lab:
	@scripts/setup lab
	cargo build --profile dist -p evenkeel -p evenkeel-lab $(FEATURES)
	target/dist/evenkeel-lab run $(LAB) --out lab/results

EXPERIMENT_TIMES ?= 10
experiment:
	@scripts/setup test
	EXPERIMENT_TIMES=$(EXPERIMENT_TIMES) EXPERIMENT_FOLDER=$(CURDIR)/target/experiment \
	  cargo test --release -p evenkeel-e2e --test workbench broker_experiment -- --nocapture --test-threads 1

# Endurance: kills, reloads, changes of members, upgrades and attacks under load.
SOAK_MINUTES ?= 60
soak:
	@scripts/setup bench
	cargo build --profile dist -p evenkeel -p evenkeel-lab $(FEATURES)
	bench/soak.py --binary target/dist/evenkeel --minutes $(SOAK_MINUTES) --json target/soak.json

# The same for ten balancers with a configuration in etcd.
FLEET_SECONDS ?= 600
soak-fleet:
	@scripts/setup test
	EVENKEEL_FAULT_SECONDS=$(FLEET_SECONDS) $(if $(FLEET_SEED),EVENKEEL_FAULT_SEED=$(FLEET_SEED)) \
	  cargo test --release -p evenkeel-e2e --test fleet faults:: -- --nocapture

# A client that the negotiator has bound, against one that knew the address.
bench-on-demand:
	@scripts/setup apache
	cargo build --profile dist -p evenkeel-arm -p evenkeel -p evenkeel-bench
	target/dist/on_demand

# The CORBA service: what binding costs and does, and the relay and forwards beside omniORB.
bench-corba:
	@scripts/setup omniorb
	cargo build --profile dist -p evenkeel -p evenkeel-bench
	target/dist/corba
	target/dist/locate
	target/dist/corba_relay

# The kernel load monitor beside its rivals, and how many back-ends one core can ask. Needs
# root: namespaces, cgroups, BPF. KERNEL_PARTS="latency cost" measures only these.
bench-kernel:
	@scripts/setup kernel
	cargo build --profile dist -p evenkeel -p evenkeel-bench $(FEATURES)
	target/dist/kernel $(KERNEL_PARTS)
	-[ -n "$(KERNEL_PARTS)" ] || target/dist/monitor --csv bench/results/kernel/monitor.csv

# Forwarding in the kernel, and UDP rules. Needs root: namespaces, BPF. L4="cost udp" measures only these parts.
bench-l4:
	@scripts/setup l4
	cargo build --profile dist -p evenkeel -p evenkeel-bench $(FEATURES)
	target/dist/l4 $(L4)

FUZZ_SECONDS ?= 60
FUZZ_SANITIZER ?= address
# fuzz/README.md says what the variables are. A target that fails keeps no other one from its turn.
fuzz:
	@scripts/setup build
	@command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
	@cd fuzz && export RUSTC_BOOTSTRAP=1 && failed= && \
	for target in $(or $(FUZZ_TARGETS),$$(cargo fuzz list)); do \
	  echo "== $$target"; mkdir -p corpus/$$target; \
	  cargo fuzz run --sanitizer $(FUZZ_SANITIZER) $$target corpus/$$target $$(ls -d seeds/$$target 2>/dev/null) -- \
	    -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
	    $$(ls dictionaries/$$target 2>/dev/null | sed s/^/-dict=/) || failed="$$failed $$target"; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }
