"""The addresses of the web process."""

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from agentops.streaming.sse import run_events

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("v1/runs/<str:run_id>/events", run_events),
    path("", include("agentops.api.urls")),
]
handler403 = "agentops.console.errors.forbidden"
handler404 = "agentops.console.errors.not_found"
handler500 = "agentops.console.errors.broken"
