# Two commands: `make up` runs AgentOps on this machine until Ctrl-C, `make test` runs every check and test.
# PORT=8001 and AGENTOPS_DATA=folder set port and data; T=tests/unit/test_x.py runs one place of the tests.

python = .venv/bin/python
throwaway = $(python) -m agentops.local.throwaway --
AGENTOPS_DEMO ?= 1
export AGENTOPS_DEMO

.PHONY: up test unit check format lint types imports migrations browser installed installed-dev

up: installed
	@exec $(python) -m agentops.local

# All of it, also behind a check that failed: the last lines should say how the tests stand.
test: installed-dev browser
	@failed=; \
	$(if $(T),,$(MAKE) --no-print-directory --keep-going check || failed=1;) \
	$(throwaway) $(python) -m pytest $(T) || failed=1; \
	test -z "$$failed"

unit: installed-dev
	@$(python) -m pytest tests/unit

check: format lint types imports migrations

format: installed-dev
	@$(python) -m ruff format --check .

lint: installed-dev
	@$(python) -m ruff check .

types: installed-dev
	@$(python) -m mypy

imports: installed-dev
	@.venv/bin/lint-imports

# Compares models with migrations; the missing server that Django warns of is not needed for it.
migrations: installed-dev
	@$(python) -W "ignore:Got an error checking:RuntimeWarning" manage.py makemigrations --check --dry-run

browser: installed-dev
	@$(python) -m agentops.local.browser

installed:
	@sh agentops/local/bootstrap.sh requirements.txt

installed-dev:
	@sh agentops/local/bootstrap.sh requirements-dev.txt
