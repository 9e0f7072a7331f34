"""The addresses of REST, its documentation, and of what the surroundings ask."""

from django.urls import path

from . import docs, health, hooks
from .rest import api

urlpatterns = [
    path("v1/docs", docs.docs, name="docs"),
    path("v1/openapi.json", docs.openapi_json, name="openapi-json"),
    path("v1/", api.urls),
    path("hooks/<str:connection_id>", hooks.receive, name="hook"),
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path(".well-known/jwks.json", health.jwks, name="jwks"),
]
