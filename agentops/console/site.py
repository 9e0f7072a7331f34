"""The admin site: Django's own, with the console's pages in front."""

from django.contrib import admin


class ConsoleSite(admin.AdminSite):
    site_header = "AgentOps"
    site_title = "AgentOps"
    index_title = "Overview"
