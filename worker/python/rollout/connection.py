"""The cluster's address, and this process's certificate for it.

Arguments override the environment, which overrides the context file, as in every `rollout` command. TLS is used unless
a setting explicitly disables it.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rollout._native import Cluster

ENDPOINT = "127.0.0.1:7420"
NAMESPACE = "default"
_FILES = (("ca_file", "ROLLOUT_CA_CERT"), ("cert_file", "ROLLOUT_CERT"), ("key_file", "ROLLOUT_KEY"))
_KEYS = {"endpoints", "ca_file", "cert_file", "key_file", "insecure_plaintext", "dial_map", "namespace"}


@dataclass(frozen=True)
class Connection:
    """The settings of all sources, merged; `Connection.find` makes one."""

    endpoints: list[str]
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure_plaintext: bool = False
    dial_map: list[str] = field(default_factory=list)
    namespace: str = NAMESPACE
    timeout_ms: int = 30_000

    @classmethod
    def find(
        cls,
        endpoints: str | list[str] | None = None,
        *,
        context: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        insecure_plaintext: bool | None = None,
        dial_map: list[str] | None = None,
        namespace: str | None = None,
    ) -> Connection:
        """Merges the arguments with ROLLOUT_ENDPOINTS, ROLLOUT_CONTEXT, ROLLOUT_CA_CERT, ROLLOUT_CERT, ROLLOUT_KEY,
        ROLLOUT_INSECURE_PLAINTEXT, ROLLOUT_DIAL_MAP and ROLLOUT_NAMESPACE, and with the context: a file, or a name of
        `rolloutctl context`, or else the current one of those. `insecure_plaintext=False` forces TLS."""
        given = {"ca_file": ca_file, "cert_file": cert_file, "key_file": key_file}
        files = {key: _path(given[key]) or os.environ.get(name) or None for key, name in _FILES}
        plain = insecure_plaintext
        if plain is None:
            plain = os.environ.get("ROLLOUT_INSECURE_PLAINTEXT", "").lower() in ("1", "true", "yes")
        if plain and any(files.values()):
            raise ValueError("insecure_plaintext contradicts the certificate files")
        addresses = split_endpoints(endpoints) or _listed("ROLLOUT_ENDPOINTS")
        wanted = os.fspath(context or os.environ.get("ROLLOUT_CONTEXT") or "")
        # If the cluster and its security are already specified, the current context is ignored.
        says_all = bool(addresses) and (plain or all(files.values()))
        base = {} if says_all and not wanted else _named(wanted)
        if insecure_plaintext is None and not any(files.values()):
            plain = plain or bool(base.get("insecure_plaintext"))
        files = {} if plain else {key: value or base.get(key) for key, value in files.items()}
        missing = [key for key, value in files.items() if not value]
        if missing:
            raise ValueError(f"tls needs {', '.join(missing)} too, or a context, or insecure_plaintext=True")
        return cls(
            endpoints=addresses or base.get("endpoints") or [ENDPOINT],
            insecure_plaintext=plain,
            dial_map=dial_map or _listed("ROLLOUT_DIAL_MAP") or base.get("dial_map") or [],
            namespace=namespace or os.environ.get("ROLLOUT_NAMESPACE") or base.get("namespace") or NAMESPACE,
            ca_file=files.get("ca_file"),
            cert_file=files.get("cert_file"),
            key_file=files.get("key_file"),
        )

    def cluster(self) -> Cluster:
        """A client; it connects with its first request."""
        return Cluster(
            self.endpoints,
            ca=self.ca_file,
            cert=self.cert_file,
            key=self.key_file,
            insecure_plaintext=self.insecure_plaintext,
            dial_map=self.dial_map,
            timeout_ms=self.timeout_ms,
        )


def split_endpoints(text: str | list[str] | None) -> list[str]:
    """The addresses in a list, or in a text separated by commas; each may have a scheme, as in grpc://host:port."""
    parts = text.split(",") if isinstance(text, str) else text or []
    found = []
    for part in (part.strip() for part in parts):
        if "://" in part:
            url = urlsplit(part)
            if url.scheme not in ("grpc", "grpcs", "http", "https", "rollout"):
                raise ValueError(f"{part}: an address is host:port, or grpc://host:port")
            part = url.netloc
        if part:
            found.append(part)
    return found


def _listed(variable: str) -> list[str]:
    return [part.strip() for part in os.environ.get(variable, "").split(",") if part.strip()]


def _path(given: str | os.PathLike[str] | None) -> str | None:
    return os.fspath(given) if given else None


def _named(wanted: str) -> dict[str, Any]:
    """The named context, a file or a name of `rolloutctl context`; without a name, the current context."""
    # A context's name has no slash and no extension.
    path = Path(wanted)
    if wanted and (path.suffix or os.sep in wanted or path.is_file()):
        with path.open("rb") as file:
            return _context(path, tomllib.load(file))
    contexts, path = _contexts()
    name = wanted or contexts.get("current")
    if not name:
        return {}
    known = contexts.get("context", {})
    if name not in known:
        raise ValueError(f"there is no context {name!r}; known are {', '.join(sorted(known)) or 'none'}")
    return _context(path, known[name])


def _contexts() -> tuple[dict[str, Any], Path]:
    """The contexts of `rolloutctl context`, if any, and their file."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(config):
        home = os.environ.get("HOME")
        if home is None:
            return {}, Path()
        config = os.path.join(home, ".config")
    path = Path(config) / "rollout" / "contexts.toml"
    try:
        with path.open("rb") as file:
            return tomllib.load(file), path
    except FileNotFoundError:
        return {}, path


def _context(path: Path, context: dict[str, Any]) -> dict[str, Any]:
    """A context from a file, with paths relative to the file's directory."""
    unknown = sorted(set(context) - _KEYS)
    if unknown:
        raise ValueError(f"context {path}: unknown key {unknown[0]}")
    for key, _ in _FILES:
        if key in context:
            context[key] = str(path.parent / context[key])
    return context
