from html.parser import HTMLParser

import pytest
from django.test import Client

from agentops.api.openapi import document


class Page(HTMLParser):
    """What a browser would load, run or style from the page, its anchors and its ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.links, self.ids = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src"):
                self.links.append(value)


@pytest.fixture
def page():
    answer = Client().get("/v1/docs")
    assert answer.status_code == 200
    return answer, Page(answer.content.decode())


def test_the_page_works_under_our_policy_for_content(page):
    answer, parsed = page
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    assert not {"script", "style", "iframe", "object"} & set(parsed.tags)
    assert not {name for name in parsed.attributes if name.startswith("on")} | ({"style"} & parsed.attributes)
    assert all(link.startswith(("/", "#")) for link in parsed.links)


def test_the_page_names_every_route_with_its_scope_and_every_shape(page):
    text = page[0].content.decode()
    for path, methods in document()["paths"].items():
        for operation in methods.values():
            assert path in text
            assert operation["operationId"] in page[1].ids
    for name in document()["components"]["schemas"]:
        assert f"shape-{name}" in page[1].ids


def test_every_anchor_leads_somewhere_and_no_id_stands_twice(page):
    ids = page[1].ids
    assert len(ids) == len(set(ids))
    assert {link[1:] for link in page[1].links if link.startswith("#")} <= set(ids)


def test_the_document_is_served_as_it_is_exported():
    answer = Client().get("/v1/openapi.json")
    assert answer["Content-Type"] == "application/json"
    assert answer.json() == document()


def test_the_styles_and_the_icon_of_the_page_are_served(page):
    files = [link for link in page[1].links if link.startswith("/static/")]
    assert {link.rsplit(".", 1)[1] for link in files} == {"css", "svg"}
    for link in files:
        assert Client().get(link).status_code == 200
