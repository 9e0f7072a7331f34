# Two commands: `make up` runs AgentOps on this machine until Ctrl-C, `make test` runs every check and test.
# PORT=8001 and AGENTOPS_DATA=folder set port and data; T=tests/unit/test_x.py runs one place of the tests.

python = .venv/bin/python
# Under a name of its own: a recipe that says $(MAKE) would run its tests also under `make -n`.
checks = $(MAKE) --no-print-directory --keep-going check
throwaway = $(python) -m agentops.local.throwaway --

lane_of_kills = tests/faults tests/integration/streaming tests/integration/local
lane_of_stacks = tests/conformance tests/integration/console tests/acceptance

.PHONY: up test unit check format lint types imports migrations browser installed installed-dev

up: installed
	@exec $(python) -m agentops.local

# Three lanes on two cores, alike in length: what computes, what is killed or serves, and what starts a browser or all of `make up`.
test: installed-dev browser
ifdef T
	@exec $(throwaway) $(python) -m pytest $(T)
else
	@exec $(python) -m agentops.local.lanes \
	  '$(throwaway) $(python) -m pytest $(addprefix --ignore=,$(lane_of_kills) $(lane_of_stacks))' \
	  '$(throwaway) $(python) -m pytest $(lane_of_kills)' \
	  '$(checks); checked=$$?; $(throwaway) $(python) -m pytest $(lane_of_stacks) && exit $$checked'
endif

unit: installed-dev
	@$(python) -m pytest tests/unit

check: format lint types imports migrations

format: installed-dev
	@.venv/bin/ruff format --check .

lint: installed-dev
	@.venv/bin/ruff check .

types: installed-dev
	@.venv/bin/mypy

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
