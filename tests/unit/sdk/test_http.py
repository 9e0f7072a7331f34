"""The SDK's HTTP client reads and does nothing else: it is no way round the ledger."""

from contextlib import nullcontext

import pytest

from agentops.sdk.errors import Terminal
from agentops.sdk.http import client
from tests.conformance.connectors.servers import Scripted


class Silent:
    """A signal that never comes."""

    def aborting(self, _abort):
        return nullcontext()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "SEND"])
def test_it_reads_and_sends_nothing_else(method):
    with Scripted() as server:
        server.says(200, b"{}")
        with client(Silent(), timeout=5) as http:
            assert http.get(server.url).status_code == 200
            with pytest.raises(Terminal, match=r"ctx\.operation"):
                http.request(method, server.url)
        assert len(server.taken) == 1
