"""Programs that a check starts, with their certificates, ports and files."""

import pathlib
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request


def toml(text):
    return tomllib.loads(text)


def free_port():
    """A free loopback port, below those that the system assigns."""
    for port in range(23_000 + time.time_ns() % 4000, 32_000):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("no port of loopback is free")


def certificates(bin_dir, into, members, workers):
    """An authority, and certificates under the names that the chart uses."""
    ctl = bin_dir / "rolloutctl"
    ca = into.parent / "ca"
    run = lambda *args: subprocess.run([ctl, "cert", *args], check=True, capture_output=True, timeout=60)
    run("init-ca", "--ca-dir", ca, "--cluster", "check")
    for role, names in (("member", members), ("worker", workers), ("admin", ["admin"])):
        for name in names:
            dns = ["--dns", "localhost"] if role == "member" else []
            run("issue", role, name, "--ca-dir", ca, "--out-dir", into, *dns)
            for ending in ("pem", "key"):
                into.joinpath(f"{role}-{name}.{ending}").rename(into / f"{name}.{ending}")


class Member:
    """A coordinator that is stopped at the end of the block."""

    def __init__(self, bin_dir, config, env, log):
        self.log = pathlib.Path(log)
        self.command = [bin_dir / "rollout-coordinator", "--config", config]
        self.env = env

    def __enter__(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command, env=self.env, stderr=log, stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def answers(self, port, path, status):
        """Waits until the path answers with that status; returns the text."""
        seen = None
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    seen, text = answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                seen, text = error.code, error.read().decode()
            except OSError as error:
                seen, text = error, ""
            if seen == status:
                return text
            if self.process.poll() is not None:
                break
            time.sleep(0.05)  # The poll; the condition decides.
        raise AssertionError(f"{path}: {seen}, not {status}\n{self.log.read_text()[-3000:]}")
