"""The web admin: the site and the console's own pages."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AppConfig):
    name = "agentops.console"
    label = "console"


class ConsoleAdminConfig(AdminConfig):
    default_site = "agentops.console.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        from django.contrib import admin
        from django.contrib.auth.models import Group

        admin.site.unregister(Group)  # a role in a tenant; people get one by their membership
