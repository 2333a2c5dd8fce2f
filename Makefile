# 'make' alone lists what there is.
.DEFAULT_GOAL := help
.PHONY: help check fmt lint test run demo

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

check: fmt lint test ## Everything that must pass before a change lands

fmt: ## Is the code formatted?
	cargo fmt --check

lint: ## Does clippy find nothing?
	cargo clippy --locked --all-targets -- -D warnings

test: ## Run all tests
	cargo test --locked

run: ## Run the service with the sample registry
	cargo run --release -- serve

demo: ## Run the service with stand-in gateways and sample intents
	cargo run --release -- demo
