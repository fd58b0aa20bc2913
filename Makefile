.DEFAULT_GOAL := help
.PHONY: help setup format check test long demo

help: ## show this help
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 10

setup: ## make .venv and resolve the Delta JARs
	@scripts/setup

format: setup ## format the code and apply safe lint fixes
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

check: setup ## lint, types and the tests that need no Spark: seconds
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/python -m pytest tests/unit

test: ## lint, types, the tests but for the slow ones
	scripts/test

long: ## all tests, with many more drawn examples
	scripts/test --long

demo: ## the whole story on sample data
	scripts/demo
