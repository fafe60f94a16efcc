#!/bin/sh
# Resolves pyproject.toml anew in an empty environment and writes requirements.lock.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-input --disable-pip-version-check \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -e ".[test]"
{
    echo "# Exact versions of all that distlab runs and is tested with; \`make lock\` renews them."
    echo "# What a CUDA build of torch adds is pinned by torch itself."
    "$folder/venv/bin/pip" freeze --all --exclude pip --exclude-editable |
        sed -n -e '/^\(nvidia\|cuda\)-\|^triton==/d' -e 's/^\([A-Za-z0-9._-]*==[0-9a-z.]*\).*/\1/p'
} >"$folder/lock"
cp "$folder/lock" requirements.lock
