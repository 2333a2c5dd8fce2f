# 'make' alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help check fmt lint test test-sqlserver tsql model chaos accessibility conformance deny fuzz run demo

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

check: fmt lint test ## Everything that must pass before a change lands

fmt: ## Is the code formatted?
	cargo fmt --check

lint: ## Does clippy find nothing?
	cargo clippy --locked --all-targets -- -D warnings

test: ## Run all tests
	cargo test --locked

test-sqlserver: ## Run the store and service tests on the server in SM_TEST_SQLSERVER
	SM_REQUIRE_SQLSERVER=1 cargo test --locked --lib sqlserver
	SM_REQUIRE_SQLSERVER=1 SM_TEST_SERVICE_STORE=sqlserver cargo test --locked --test service -- --test-threads=2

tsql: ## Write every statement that the SQL Server store can send to target/tsql, for checkers of T-SQL
	cargo test --locked --lib store::sqlserver::tests::catalogue::write_all_to_files -- --ignored --nocapture

chaos: ## Let everything go wrong for a while: SECONDS_EACH=60 RUNS=1 SEED=<number>
	SM_CHAOS_SECONDS=$(or $(SECONDS_EACH),60) SM_CHAOS_RUNS=$(or $(RUNS),1) $(if $(SEED),SM_CHAOS_SEED=$(SEED)) \
		cargo test --locked --test service fleet::chaos -- --nocapture

model: ## Explore the model of lease and attempt further than the tests do
	cargo test --locked --release --lib domain::model -- --include-ignored --nocapture

accessibility: ## Let axe-core look at every page of the console (fetches it with npm)
	cd target && npm pack --silent axe-core@4 && tar -xzf axe-core-4*.tgz package/axe.min.js
	SM_AXE=$(CURDIR)/target/package/axe.min.js cargo test --locked --test service browser

conformance: ## Hold a running service to its OpenAPI document (fetches schemathesis with pip): EXAMPLES=100
	tests/conformance/run.sh

deny: ## Are licences, duplicates, sources and advisories of dependencies fine? (needs cargo-deny)
	cargo deny --log-level error check --hide-inclusion-graph bans licenses sources
	if cargo deny fetch db; then cargo deny check advisories; \
		else echo 'advisories were not looked at: their database cannot be reached'; fi

fuzz: ## Fuzz what reads strangers' bytes (needs cargo-fuzz): SECONDS_EACH=30
	fuzz/run.sh

run: ## Run the service with the sample registry
	cargo run --release -- serve

demo: ## Run the service with stand-in gateways and sample intents
	cargo run --release -- demo
