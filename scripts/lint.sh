#!/usr/bin/env bash
# `./dev lint`: see `./dev help lint`. RAYCTL_LINT_PRESET names the build folder whose commands clang-tidy uses.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$RAYCTL_ROOT/scripts/common.sh"
cd "$RAYCTL_ROOT"
need_packages build lint

commits=20
preset=${RAYCTL_LINT_PRESET:-dev}
declare -a files=()
if (($#)); then
  files=("$@")
else
  # A shallow or young history has fewer commits: then everything counts as changed.
  base=$(git rev-parse --verify -q "HEAD~$commits" || git hash-object -t tree /dev/null)
  mapfile -t files < <({
    git diff --name-only --diff-filter=d "$base" HEAD
    git diff --name-only --diff-filter=d HEAD
    git ls-files -o --exclude-standard
  } | sort -u)
fi

declare -a cpp=() sources=() shell=()
for file in "${files[@]}"; do
  [[ -f $file ]] || continue
  case $file in
    *.cc) cpp+=("$file") sources+=("$file") ;;
    *.h) cpp+=("$file") ;;
    *.sh | dev | .ci/run) shell+=("$file") ;;
  esac
done

failed=()
check() {
  local name=$1
  shift
  say "$name"
  "$@" || failed+=("$name")
}

formatted() { ((${#cpp[@]} == 0)) || printf '%s\0' "${cpp[@]}" | xargs -0 -n 20 -P "$(nproc)" clang-format-14 --dry-run -Werror; }
scripts_clean() { ((${#shell[@]} == 0)) || shellcheck -x -P "$RAYCTL_ROOT" "${shell[@]}"; }

# What the repository says must hold on any machine.
places() {
  local found pattern
  # Split so that the pattern does not find itself.
  pattern='/wor''k/(mai''n|share''d|\.)|(^|[^A-Za-z_])/roo''t/|\.\./share''d|snapshot\.debia''n|deb\.debia''n|pypi\.or''g'
  if found=$(git grep -nIE -e "$pattern"); then
    printf 'these lines name a place on one machine, or a registry:\n%s\n' "$found" >&2
    return 1
  fi
}

tidy() {
  ((${#sources[@]})) || return 0
  build "$preset" rayctl_proto rayctl_proto_local rayctl_proto_journal
  python3 scripts/tidy.py "build/$preset" "${sources[@]}"
}

check "format of ${#cpp[@]} files" formatted
check "shell scripts (${#shell[@]})" scripts_clean
check "who includes whom" python3 scripts/includes.py
check "no place on one machine" places
check "clang-tidy on ${#sources[@]} files" tidy
((${#failed[@]} == 0)) || die "lint failed: $(printf '%s; ' "${failed[@]}")"
say "lint is clean"
