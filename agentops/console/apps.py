"""The web admin: the site and the console's own pages."""

from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AppConfig):
    name = "agentops.console"
    label = "console"


class ConsoleAdminConfig(AdminConfig):
    default_site = "agentops.console.site.ConsoleSite"
