#!/bin/sh
# Finds a Python >= 3.12, or lets uv bring one, and hands over to bootstrap.py; says the next step when there is none.
# usage: sh agentops/local/bootstrap.sh requirements.txt
cd "$(dirname "$0")/../.." || exit 1

# A candidate counts when it runs: version managers put names on PATH that only print an error.
is_new_enough() { "$1" -I -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }

for python in python3.13 python3.12 python3.14 python3 python "$HOME"/.pyenv/versions/*/bin/python3; do
  is_new_enough "$python" && exec "$python" -I agentops/local/bootstrap.py "$@"
done

for uv in uv "$HOME/.local/bin/uv"; do
  "$uv" --version >/dev/null 2>&1 || continue
  python=$("$uv" python find --no-project '>=3.12' 2>/dev/null) || {
    echo "no Python >= 3.12 here: uv fetches one"
    "$uv" python install 3.13 && python=$("$uv" python find --no-project 3.13) || break
  }
  exec "$python" -I agentops/local/bootstrap.py "$@"
done

echo "AgentOps needs Python 3.12 or newer and found none: install one (Debian 13: apt-get install python3 python3-venv;" \
  "macOS: brew install python@3.13) or uv (https://docs.astral.sh/uv/), then run the same command again." >&2
exit 1
