"""The language of rules: a bounded piece of CEL over typed variables, its lint, and the versions of a tenant's rules."""
