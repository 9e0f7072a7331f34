#!/usr/bin/env python
"""Django's command line."""

import os
import sys

from agentops.local.environment import of_a_demo


def main() -> None:
    os.environ.update(of_a_demo(os.environ))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentops.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
