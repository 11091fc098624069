#!/usr/bin/env bash
# `./dev bench`: see `./dev help bench`.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$RAYCTL_ROOT/scripts/common.sh"
cd "$RAYCTL_ROOT"

peers=
for argument; do
  [[ $argument == --peers ]] && peers=1
done
build release rayctl rayctl-shim rayctl_bench
if [[ -n $peers ]]; then
  need_packages peers || say "Slurm cannot be installed here; it is left out"
  ray=.venv/bench
  if [[ ! -f $ray/ready ]]; then
    say "installing Ray into $ray (once)"
    if python3 -m venv "$ray" && "$ray/bin/pip" install -q --only-binary :all: 'ray[default]'; then
      touch "$ray/ready"
    else
      say "Ray cannot be installed here; it is left out"
    fi
  fi
fi
exec python3 bench/run.py "$@"
