"""The Chromium that the browser tests use: finds it, installs it in CI, says elsewhere how to get it.

A missing browser fails `make test`: a skipped acceptance test would look like a passed one.
"""

import os
import shutil
import subprocess
import sys

from agentops.local.terminal import say

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC_PLACES = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
# Two apt jobs at once would fail on the lock: ours waits for the other.
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=600")


def find() -> str | None:
    named = [os.environ.get("AGENTOPS_BROWSER"), *map(shutil.which, _NAMES), *_MAC_PLACES]
    return next((place for place in named if place and os.path.isfile(place)), None)


def main() -> int:
    if find() is None and os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get"):
        say("installing Chromium for the browser tests")
        _install()
    if find() is None:
        say(
            "The browser tests need Chromium and there is none: install it (Debian: `sudo apt-get install chromium`, "
            "macOS: `brew install --cask chromium`) or set AGENTOPS_BROWSER to one, then run `make test` again."
        )
        return 1
    return 0


def _install() -> None:
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run((*_APT, "-qq", "update"), env=quiet, check=False)
    install = (*_APT, "-qq", "install", "-y", "--no-install-recommends", "chromium")
    subprocess.run(install, env=quiet, stdout=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.exit(main())
