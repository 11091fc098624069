#!/usr/bin/env bash
# `./dev demo`: see `./dev help demo`. Everything that it starts and writes is in one temporary folder.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$RAYCTL_ROOT/scripts/common.sh"

ready_seconds_max=60
if [[ ${1:-} == --bin && -x ${2:-}/rayctl ]]; then
  bin=$(cd "$2" && pwd)
elif (($#)); then
  die "demo takes --bin FOLDER, in which rayctl is, or nothing"
else
  build release rayctl rayctl-shim
  bin=$RAYCTL_ROOT/build/release/bin
fi

folder=$(mktemp -d "${TMPDIR:-/tmp}/rayctl-demo.XXXXXX")
# A home of its own: the person's clusters and tokens are neither seen nor touched.
for name in $(compgen -e RAYCTL_ || true); do
  [[ $name == RAYCTL_ROOT ]] || unset "$name"
done
export HOME=$folder/home XDG_STATE_HOME=$folder/state PATH=$bin:$PATH
mkdir "$HOME"
state=$folder/state/demo

# shellcheck disable=SC2317  # Called by the trap.
clear_up() {
  local status=$?
  trap - EXIT
  if [[ -d $state ]]; then
    rayctl stop --state-dir "$state" >/dev/null 2>&1 || true
  fi
  if ((status != 0)) && [[ -d $state ]]; then
    printf 'the demo failed; what the daemons said last:\n' >&2
    find "$state" -name '*.log' -exec tail -n 5 {} + >&2
  fi
  rm -rf -- "$folder"
  exit "$status"
}
trap clear_up EXIT
trap 'exit 130' INT TERM

show() {
  printf '\n\033[1m$ %s\033[0m\n' "$*"
  "$@"
}

say "starting a head and an agent on this machine"
printf '\n\033[1m$ rayctl start --head\033[0m\n'
rayctl start --head --port 0 --dashboard-port 0 --node-name demo --state-dir "$state"
show rayctl status

say "a job of two ranks: in attempt 0 they would work for a long time, in attempt 1 they end at once"
mkfifo "$folder/ready" "$folder/go"
cat >"$folder/job.yaml" <<END
name: demo
entrypoint: |
  echo "hello from rank \$RANK of \$WORLD_SIZE, attempt \$RAYCTL_ATTEMPT"
  if [ "\$RAYCTL_ATTEMPT" = 0 ]; then
    trap 'echo "stopping \$RANK" > $folder/ready; read go < $folder/go; exit 0' TERM  # Takes its time to end.
    echo "\$RANK \$\$" > $folder/ready
    sleep 600 & wait
  fi
scaling_config:
  num_workers: 2
  resources_per_worker: {CPU: 0.5}
run_config:
  failure_config: {max_failures: 1}
END
printf '\n\033[1m$ cat job.yaml\033[0m\n'
sed "s|$folder|…|" "$folder/job.yaml"

printf '\n\033[1m$ rayctl submit job.yaml\033[0m\n'
rayctl submit "$folder/job.yaml" &
submit=$!

# Each rank says its number and pid; the pipe is held open on both sides, so that neither is lost.
exec {ready}<>"$folder/ready"
victim=
for _ in 0 1; do
  read -r -t "$ready_seconds_max" -u "$ready" rank pid || die "the ranks did not start within $ready_seconds_max s"
  [[ $rank == 1 ]] && victim=$pid
done
show rayctl list workers

say "killing rank 1 (pid $victim) in the middle of its work"
kill -KILL "$victim"
read -r -t "$ready_seconds_max" -u "$ready" _ || die "rank 0 was not told to stop"
show rayctl list jobs
echo go >"$folder/go"
status=0
wait "$submit" || status=$?
((status == 0)) || die "submit exited $status"

say "the job recovered: attempt 1, one failure, SUCCEEDED"
show rayctl describe demo
show rayctl status

say "stopping the cluster"
show rayctl stop --state-dir "$state"
left=
for cmdline in /proc/[0-9]*/cmdline; do # Named before any search starts, so that none finds itself.
  if grep -qsF -- "$state" "$cmdline"; then
    tr '\0' ' ' <"$cmdline" >&2 && echo >&2
    left=1
  fi
done
[[ -z $left ]] || die "processes were left behind"
say "nothing is left behind; that was the demo"
