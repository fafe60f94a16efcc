#!/bin/sh
# Finds a Python that can make virtual environments, installing one where it may, and lets it do
# the rest: sh bootstrap/setup.sh demo|test|packages
set -eu
umask 022
cd "$(dirname "$0")/.."

usable() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c '
import sys, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        usable "$PYTHON" && python=$PYTHON
        return
    fi
    for python in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
        usable "$python" && return
    done
    return 1
}

package() {
    case $(apt-cache show python3-venv 2>/dev/null | sed -n 's/^Version: *//p' | head -n 1) in
        3.1[1-4].*) echo python3-venv ;;
        *) for version in 3.14 3.13 3.12 3.11; do
               if apt-cache show "python$version-venv" >/dev/null 2>&1; then
                   echo "python$version-venv"
                   return
               fi
           done
           echo python3-venv ;;
    esac
}

# What else will be missing, as far as a Python without venv can tell.
others() {
    for python in python3 /usr/bin/python3; do
        "$python" -B bootstrap/install.py missing 2>/dev/null && return
    done
    command -v bwrap >/dev/null 2>&1 || echo bubblewrap
    modules=/lib/modules/$(uname -r)
    if ! command -v linux.uml >/dev/null 2>&1 &&
        ! grep -qs sch_netem /proc/modules "$modules/modules.dep" "$modules/modules.builtin" &&
        apt-cache show user-mode-linux >/dev/null 2>&1; then
        echo user-mode-linux
    fi
}

if ! find_python; then
    if [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON is not Python 3.11 to 3.14 with venv; name another one." >&2
        exit 3
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "Python 3.11 to 3.14 with venv is missing; install it and run again." >&2
        exit 3
    fi
    if [ "$(id -u)" != 0 ]; then
        echo "Python 3.11 to 3.14 with venv is missing. This command mends it:" >&2
        echo "    sudo apt-get install -y --no-install-recommends $(package)" \
            $(others) >&2
        exit 3
    fi
    echo "Installing Python's venv"
    apt-get -qq update </dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 \
        install -y --no-install-recommends "$(package)" </dev/null >/dev/null
    if ! find_python; then
        echo "This system has no Python 3.11 to 3.14; install one and run again." >&2
        exit 3
    fi
fi
exec "$python" bootstrap/install.py "$@"
