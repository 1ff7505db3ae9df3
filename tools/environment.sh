#!/usr/bin/env bash
# Makes or updates a virtual environment: environment.sh DIRECTORY PIP-ARGUMENT...
# PYTHON names the interpreter; without it, python3 or else the newest one that works.
set -euo pipefail
directory=$1
shift

works() { # A pyenv shim can be on PATH and still not run, so each candidate is tried.
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || return 1
    [ -n "$uv" ] || "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

uv=$(command -v uv || true)
if [ -z "${PYTHON:-}" ]; then
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if works "$candidate"; then PYTHON=$candidate && break; fi
    done
fi
if [ -z "${PYTHON:-}" ]; then
    echo "no Python from 3.11 up with venv found: install python3 and python3-venv, or uv" >&2
    exit 1
fi

if ! "$directory/bin/python" -c '' >/dev/null 2>&1; then
    echo "making $directory with $("$PYTHON" --version)"
    if [ -n "$uv" ]; then
        uv venv --quiet --clear --python "$PYTHON" "$directory"
    else
        "$PYTHON" -m venv --clear "$directory"
    fi
fi
echo "installing into $directory: $*"
if [ -n "$uv" ]; then
    uv pip install --quiet --python "$directory/bin/python" "$@"
else
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$@" 2> >(
        grep -vE "^WARNING: (Location .* is ignored|Running pip as the 'root' user|The directory)" >&2
    )
fi
