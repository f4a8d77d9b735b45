#!/usr/bin/env bash
# Runs every check and every test, and stops at the first that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests/services.sh
if [ -z "${MONGOD:-}" ]; then
    MONGOD=$(command -v mongod || echo "$PWD/.services/mongod")
fi
export MONGOD

step() {
    echo "run: $*"
    "$@"
}

step cargo fmt --check
step cargo clippy --all-targets -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --no-deps
step cargo test
