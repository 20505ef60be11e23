# Sourced by scripts that make a Python environment once and print its interpreter's path: `begin_env HOME STAMP`. It
# sets `env`, a folder of HOME that is named after STAMP. If that is complete, it prints the path and exits. Otherwise it
# makes an empty environment there. `end_env` marks it as complete and prints the path.
say() { echo "setup: $*" >&2; }

begin_env() {
  local home="$1" python="${PYTHON:-}" candidate
  env="$home/env-$2"
  mkdir -p "$home"
  # Of tests that run beside each other, one makes it. The others wait.
  exec 9>"$home/lock"
  flock 9
  if [ -f "$env/made" ]; then
    echo "$env/bin/python"
    exit 0
  fi
  for candidate in "$python" python3.13 python3.12 python3.11 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python="$candidate"
      break
    fi
  done
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { say "Python 3.11 or newer is needed"; exit 1; }
  say "making $env with $("$python" --version)"
  rm -rf "$env"
  "$python" -m venv "$env"
}

end_env() {
  touch "$env/made"
  echo "$env/bin/python"
}
