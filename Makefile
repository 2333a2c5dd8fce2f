# 'make' without a target lists the targets.
.DEFAULT_GOAL := help
.PHONY: help check quick fmt lint test test-sqlserver tsql model simulate simulate-sqlserver simulate-bugs chaos upgrade attack accessibility conformance deny fuzz docs deb run demo

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

check: fmt lint test ## Check formatting and lints, run all tests: must pass before a change is merged

fmt: ## Check the formatting of the code
	cargo fmt --check

lint: ## Run clippy and rustdoc, with warnings as errors
	cargo clippy --locked --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --quiet

test: ## Run all tests; installs the programs that they start, or lists what was not run
	tests/run.sh

quick: fmt ## Check formatting, lints and unit tests, without the simulation: about a minute after a small change
	cargo clippy --locked --lib --bins --tests -- -D warnings
	cargo test --locked --lib -- --skip simulation::

test-sqlserver: ## Run the store and service tests on the server that SM_TEST_SQLSERVER names
	@test -n "$$SM_TEST_SQLSERVER" || { echo 'set SM_TEST_SQLSERVER to a connection string without a database, such as'; \
		echo "  Server=tcp:localhost,1433;User Id=sa;Password='…';TrustServerCertificate=true"; exit 1; }
	SM_REQUIRE_SQLSERVER=1 cargo test --locked --lib sqlserver
	SM_REQUIRE_SQLSERVER=1 SM_TEST_SERVICE_STORE=sqlserver cargo test --locked --test service -- --test-threads=2

tsql: ## Write every statement that the SQL Server store can send to target/tsql, for checkers of T-SQL
	cargo test --locked --lib store::sqlserver::tests::catalogue::write_all_to_files -- --ignored --nocapture

chaos: ## Run a fleet under load and inject faults: SECONDS_EACH=60 RUNS=1 SEED=<number>
	SM_CHAOS_SECONDS=$(or $(SECONDS_EACH),60) SM_CHAOS_RUNS=$(or $(RUNS),1) $(if $(SEED),SM_CHAOS_SEED=$(SEED)) \
		cargo test --locked --test service fleet::chaos -- --nocapture

upgrade: ## Upgrade a fleet under load from the binary of an earlier version: PREVIOUS=<file>
	@test -x "$(PREVIOUS)" || { echo 'set PREVIOUS to the binary of an earlier version'; exit 1; }
	SM_TEST_PREVIOUS_BINARY=$(abspath $(PREVIOUS)) cargo test --locked --test service fleet::rolling -- --nocapture

attack: ## Run an instance with malicious gateways and clients: SECONDS_EACH=60 SEED=<number>
	SM_ATTACK_SECONDS=$(or $(SECONDS_EACH),60) $(if $(SEED),SM_ATTACK_SEED=$(SEED)) \
		cargo test --locked --test service -- --nocapture --test-threads=2 \
		hostile:: attack:: connections:: memory:: http_answers:: slow:: access:: overload::

model: ## Explore the model of lease and attempt further than the tests do
	cargo test --locked --release --lib domain::model -- --include-ignored --nocapture

# SQLite counts the memory that it uses, under a lock that all threads share. The simulation does without.
simulate simulate-bugs: export LIBSQLITE3_FLAGS = -DSQLITE_DEFAULT_MEMSTATUS=0

simulate: ## Simulate fleets with faults: SEEDS=10000 FIRST=0, or repeat one: SEED=<number>
	SM_SIMULATION_SEEDS=$(or $(SEEDS),10000) SM_SIMULATION_FIRST=$(or $(FIRST),0) SM_SIMULATION_SEED=$(SEED) \
		SM_SIMULATION_INSTANCES=$(INSTANCES) SM_SIMULATION_INTENTS=$(INTENTS) SM_SIMULATION_WITHOUT=$(WITHOUT) \
		SM_SIMULATION_BUG=$(BUG) SM_SIMULATION_STORE=$(STORE) \
		cargo test --locked --profile simulate --lib simulation::tests::simulate -- --ignored --exact --nocapture

simulate-sqlserver: ## Simulate fleets on the server that SM_TEST_SQLSERVER names: SEEDS=200 FIRST=0, or SEED=<number>
	@test -n "$$SM_TEST_SQLSERVER" || { echo 'set SM_TEST_SQLSERVER as for test-sqlserver'; exit 1; }
	$(MAKE) --no-print-directory simulate SEEDS=$(or $(SEEDS),200) STORE=sqlserver

simulate-bugs: ## Report how many seeds the simulation needs to find each deliberate bug, or one: BUG=<name>
	SM_SIMULATION_BUG=$(BUG) SM_SIMULATION_SEEDS=$(SEEDS) \
		cargo test --locked --profile simulate --lib simulation::tests::how_many -- --ignored --nocapture

accessibility: ## Check every console page with axe-core (fetches it with npm)
	mkdir -p target/axe && cd target/axe && npm pack --silent axe-core@4 && tar -xzf axe-core-4*.tgz package/axe.min.js
	SM_AXE=$(CURDIR)/target/axe/package/axe.min.js cargo test --locked --test service browser

conformance: ## Test a running service against its OpenAPI document (fetches schemathesis with pip): EXAMPLES=100
	tests/conformance/run.sh

deny: ## Check licences, sources and advisories of dependencies (needs cargo-deny)
	cargo deny --log-level error check --hide-inclusion-graph bans licenses sources
	if cargo deny fetch db; then cargo deny check advisories; \
		else echo 'advisories were not checked: their database cannot be reached'; fi

fuzz: ## Fuzz the code that parses untrusted input (needs cargo-fuzz): SECONDS_EACH=30
	fuzz/run.sh

docs: ## Build the documents into a book with search, in target/book (needs mdbook)
	@command -v mdbook >/dev/null || { echo "mdbook is missing; install it with: cargo install --locked mdbook"; exit 1; }
	rm -rf target/book-source && mkdir -p target/book-source
	cp -r --parents *.md LICENSE-* docs deploy registry schema/*.md clients/*.md clients/*/*.md examples/*.* examples/*/*.* target/book-source
	sed -E 's|\]\(([^.)])|](docs/\1|; s|\]\(\.\./|](|' docs/SUMMARY.md > target/book-source/SUMMARY.md
	mdbook build docs
	@echo "open target/book/index.html"

deb: ## Build a Debian package, in target/debian (needs cargo-deb)
	@command -v cargo-deb >/dev/null || { echo "cargo-deb is missing; install it with: cargo install --locked cargo-deb"; exit 1; }
	cargo build --release --locked
	rm -rf target/package && mkdir -p target/package/man target/package/completions
	target/release/submission-manager man --directory target/package/man
	target/release/submission-manager completions bash > target/package/completions/submission-manager
	target/release/submission-manager completions zsh > target/package/completions/_submission-manager
	target/release/submission-manager completions fish > target/package/completions/submission-manager.fish
	cargo deb --locked --no-build

run: ## Run the service with the sample registry
	cargo run --release -- serve

demo: ## Run the service with stand-in gateways and sample intents
	cargo run --release -- demo
