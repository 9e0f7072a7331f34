"""The addresses of the web process."""

from django.contrib import admin
from django.urls import include, path

from agentops.streaming.sse import run_events

urlpatterns = [
    path("admin/", admin.site.urls),
    path("v1/runs/<str:run_id>/events", run_events),
    path("", include("agentops.api.urls")),
]
