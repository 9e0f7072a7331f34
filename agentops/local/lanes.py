"""Runs commands side by side, each with its output in one piece: lanes of tests on a few cores."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main(commands: list[str]) -> int:
    """The first command speaks as it goes; the others are shown whole when they have ended. 0 where all succeeded."""
    with tempfile.TemporaryDirectory() as folder:
        lanes = []
        for number, command in enumerate(commands):
            kept = (Path(folder) / str(number)).open("wb+") if number else None
            started = subprocess.Popen(
                ["sh", "-c", command], stdout=kept, stderr=subprocess.STDOUT if kept else None
            )
            lanes.append((command, started, kept))

        def stop(*_: object) -> None:
            for _command, lane, _kept in lanes:
                lane.terminate()

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)
        began = time.monotonic()
        failed = 0
        for command, lane, kept in lanes:
            code = lane.wait()
            failed |= code != 0
            if kept is not None:
                kept.seek(0)
                print(f"\n--- {command}", flush=True)
                sys.stdout.buffer.write(kept.read())
                kept.close()
            said = "ended well" if code == 0 else f"failed ({code})"
            print(f"--- {said} after {time.monotonic() - began:.0f} s: {command}", flush=True)
        return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
