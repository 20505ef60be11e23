"""Runs the shell blocks of pages word for word, one after the other in one shell, in an empty directory.

    run.py DIRECTORY-OF-BINARIES PAGE...

Invariant: no block is left out, altered or run twice; the first command that fails ends the run and reports its
line of the page. Absent: checks of its own. A page's own commands show whether its promises hold.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 900


def blocks(page):
    """(line of the page, text) of each block marked as `sh`."""
    found, begun, lines = [], None, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if begun is None and line.rstrip() == "```sh":
            begun, lines = number + 1, []
        elif begun is not None and line.rstrip() == "```":
            found.append((begun, "\n".join(lines)))
            begun = None
        elif begun is not None:
            lines.append(line)
    assert begun is None, f"{page}:{begun}: the block has no end"
    return found


def script(pages):
    """The blocks as one script. A subshell or an `eval` would differ from what a reader does; blocks do not see the
    `trap`."""
    parts = ["set -euo pipefail", "__place=none", """trap 'echo "the block at $__place failed" >&2' ERR"""]
    for page in pages:
        name, found = page.relative_to(ROOT), blocks(page)
        assert found, f"{page} has no block that is marked sh"
        for line, text in found:
            parts.append(f"__place={name}:{line}; echo; echo \"== $__place\"\n{text}")
        parts += ["echo", f"echo '{name}: {len(found)} blocks passed, 0 failed'"]
    return "\n".join(parts) + "\n"


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    pages = [pathlib.Path(page).resolve() for page in sys.argv[2:]]
    assert pages, "no page is named"
    keep = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    env = keep | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="rollout-guide-", ignore_cleanup_errors=True) as there:
        path = pathlib.Path(there) / "guide.sh"
        path.write_text(script(pages))
        home = pathlib.Path(there) / "machine"
        home.mkdir()
        shell = subprocess.Popen(["bash", path], cwd=home, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = shell.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"{sys.argv[2:]}: not done after {LIMIT_S} s", file=sys.stderr)
            code = 1
        # Stop what the page started and did not stop: a local cluster, which is detached, and the process group of
        # its shell.
        if (home / ".rollout" / "dev").exists():
            stop = [binaries / "rollout", "dev", "stop"]
            subprocess.run(stop, cwd=home, env=env, capture_output=True, timeout=60, check=False)
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if code:
            for log in sorted(home.glob("*/*.log")):
                print(f"-- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
