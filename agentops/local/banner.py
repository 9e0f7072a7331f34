"""The lines below `ready`: where to look, who to sign in as, and two commands to try."""

import json
from collections.abc import Iterator
from pathlib import Path


def lines(url: str, data: Path) -> Iterator[str]:
    yield f"  approvals inbox  {url}admin/approvals/"
    yield f"  admin            {url}admin/"
    yield f"  REST, to try     {url}v1/docs"
    demo_file = data / "demo.json"
    if not demo_file.exists():
        return
    demo = json.loads(demo_file.read_text())
    token = demo["tokens"]["acme"]
    yield f"  provider's books {demo['provider_url']}/_books"
    yield f"  all of this      {demo_file}"
    yield ""
    yield "  accounts (name, password, role)"
    for account in demo["accounts"]:
        yield f"    {account['name']:<16} {account['password']:<24} {account['role']}"
    yield ""
    yield "  start a run:"
    yield f"    curl -s {url}v1/runs -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \\"
    yield '      -H "Idempotency-Key: $(date +%s)" \\'
    yield '      -d \'{"agent": "support-agent", "input": "My order A-1001 arrived damaged, please refund it."}\''
    yield "  follow it, with the run_id from the answer:"
    yield f"    curl -N {url}v1/runs/RUN_ID/events -H 'Authorization: Bearer {token}'"
