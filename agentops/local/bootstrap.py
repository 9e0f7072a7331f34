"""Makes the project's own .venv hold the pins of one requirements file; quick when it already does."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Each of these would let a person's own configuration bend what the pins say, or install beside the venv.
_BENDING = (
    "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIREMENT", "PIP_REQUIRE_HASHES", "UV_CONSTRAINT", "UV_OVERRIDE",
    "UV_BUILD_CONSTRAINT", "UV_REQUIRE_HASHES", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH",
)  # fmt: skip
# These outweigh the same settings in a pip.conf, which may name the only index that can be reached and so is read.
_STRAIGHT = {"PIP_CONSTRAINT": os.devnull, "PIP_USER": "0"}


def main(name: str) -> int:
    requirements = list(_with_included(ROOT / name))
    with requirements[-1].open() as lock:  # two makes at once: the second waits, and finds the work done
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_usable(PYTHON) and _stamp(name).exists() and _stamp(name).read_text() == _digest(requirements):
            return 0
        begun = time.monotonic()
        print(f"installing {name} into .venv (a minute or two the first time)", flush=True)
        if refusal := _make_venv() or _install(ROOT / name):
            print(f"{refusal}, then run the same command again.", file=sys.stderr)
            return 1
        for index, file in enumerate(requirements):
            _stamp(file.name).write_text(_digest(requirements[index:]))
        print(f"installed in {time.monotonic() - begun:.0f} s", flush=True)
    return 0


def _with_included(file: Path) -> Iterator[Path]:
    yield file
    for line in file.read_text().splitlines():
        if line.startswith("-r "):
            yield from _with_included(file.parent / line[3:].strip())


def _digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _stamp(name: str) -> Path:
    return VENV / f"installed-{name}.sha256"


def _is_usable(python: Path) -> bool:
    new_enough = "import sys; sys.exit(sys.version_info < (3, 12))"
    return _run(python, "-I", "-c", new_enough, quiet=True)


def _make_venv() -> str | None:
    if _is_usable(PYTHON):
        return None
    if VENV.is_symlink():
        return f"{VENV} is a link to something without a Python >= 3.12: remove the link"
    shutil.rmtree(VENV, ignore_errors=True)  # of an older Python, or of one that is gone
    made = _run(sys.executable, "-I", "-m", "venv", "--without-pip", VENV)
    return None if made else "Python could not make a virtual environment, see above: mend that"


def _install(requirements: Path) -> str | None:
    """uv where it runs, since it is much faster; pip where it does not, or cannot reach an index that pip can."""
    calm = [] if sys.stderr.isatty() else ["--quiet"]
    pins: list[str | Path] = ["--no-deps", "-r", requirements, *calm]
    if uv := _find_uv():
        if _run(uv, "pip", "install", "--python", PYTHON, *pins):
            return None
        print("uv could not install the packages: trying pip", flush=True)
    pip: list[str | Path] = [PYTHON, "-I", "-m", "pip"]
    if not _run(*pip, "--version", quiet=True) and not _run(PYTHON, "-I", "-m", "ensurepip", quiet=True):
        return "This Python comes without pip: install its venv package (Debian: apt-get install python3-venv) or uv"
    if _run(*pip, "install", "--no-input", "--disable-pip-version-check", *pins):
        return None
    return "The packages could not be installed, see above: check the network, or the index that pip is set up with"


def _find_uv() -> Path | None:
    for folder in (*os.get_exec_path(), os.path.expanduser("~/.local/bin")):
        uv = Path(folder, "uv")
        if _run(uv, "--version", quiet=True):  # a version manager's uv may only print an error
            return uv
    return None


def _run(*argv: str | Path, quiet: bool = False) -> bool:
    straight = {name: value for name, value in os.environ.items() if name not in _BENDING} | _STRAIGHT
    output = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(argv, env=straight, cwd=ROOT, stdout=output, stderr=output, check=False)
    except OSError:  # not there, or not for us to run
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
