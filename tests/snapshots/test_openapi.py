"""The public contract changes on purpose or not at all."""

import json
from io import StringIO
from pathlib import Path

from django.core.management import call_command
from pydantic import TypeAdapter

from agentops.api import examples, shapes
from agentops.api.openapi import document

SNAPSHOT = Path(__file__).with_name("openapi.json")


def test_the_openapi_document_is_as_it_was_last_agreed():
    out = StringIO()
    call_command("export_openapi", stdout=out)
    assert json.loads(out.getvalue()) == json.loads(SNAPSHOT.read_text()), (
        "The public contract has changed. If that is meant: manage.py export_openapi > tests/snapshots/openapi.json"
    )


def test_every_route_has_an_id_of_its_own_a_scope_and_its_problems():
    operations = [(path, each) for path, methods in document()["paths"].items() for each in methods.values()]
    ids = [operation["operationId"] for _, operation in operations]
    assert len(set(ids)) == len(ids)
    for path, operation in operations:
        assert operation["security"][0]["BearerToken"]
        expected = {"401", "403", "429", "500", "503"}
        expected |= {"404"} if "{" in path else set()
        expected |= {"400", "413", "415", "422"} if "requestBody" in operation else set()
        assert expected <= set(operation["responses"])


def test_every_reference_leads_somewhere():
    whole = document()

    def references(value):
        match value:
            case dict():
                yield from ([value["$ref"]] if "$ref" in value else [])
                for item in value.values():
                    yield from references(item)
            case list():
                for item in value:
                    yield from references(item)

    for reference in references(whole):
        found = whole
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_every_example_fits_its_shape():
    for shape, example in (
        (shapes.StartRun, examples.START),
        (shapes.Approve, examples.APPROVE),
        (shapes.Reject, examples.REJECT),
        (shapes.Started, examples.STARTED),
        (shapes.Approval, examples.APPROVAL),
        (shapes.Operation, examples.OPERATION),
        (shapes.Run, examples.RUN),
        (shapes.Cancelled, examples.CANCEL),
    ):
        read = TypeAdapter(shape).validate_python(example)
        assert json.loads(read.model_dump_json(exclude_unset=True)) == example
