# Shared by ./dev, .ci/run and the scripts beside this file. Sourced, never run.
# shellcheck shell=bash

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Debian packages by what needs them. Each list names everything that it uses itself, so that none rests on what another
# package happens to bring along; the -dev packages hold the archives of the static release link as well.
packages_of() {
  case $1 in
    build)
      printf '%s\n' git ca-certificates cmake ninja-build ccache mold g++ pkg-config python3 procps \
        libgrpc++-dev libgrpc-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc libabsl-dev libre2-dev \
        libc-ares-dev zlib1g-dev libboost-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libspdlog-dev libfmt-dev \
        libsqlite3-dev libarchive-dev libssl-dev catch2
      ;;
    network) printf '%s\n' iproute2 nftables util-linux ;;
    lint) printf '%s\n' clang-format-14 clang-tidy-14 shellcheck ;;
    peers) printf '%s\n' python3-venv slurm-wlm munge ;;
    clean-room) printf '%s\n' debootstrap util-linux ;;
    *) die "no such list of packages: $1" ;;
  esac
}

# need_packages LIST...: installs what is missing. Asking dpkg takes a moment and cannot be out of date, so there is no
# record of what an earlier run did; a run that was cut short is completed by the next.
need_packages() {
  local list package state
  local -a wanted=() missing=()
  command -v dpkg-query >/dev/null ||
    die "this is set up for Debian 12; elsewhere install the counterparts of: $(for list; do packages_of "$list"; done | tr '\n' ' ')"
  for list; do
    while read -r package; do wanted+=("$package"); done < <(packages_of "$list")
  done
  for package in "${wanted[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $state == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local -a root=()
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      root=(sudo -n)
    else
      printf 'error: %d Debian packages are missing, and only root may install them. Run this line, then the command again:\n' \
        "${#missing[@]}" >&2
      printf '  apt-get update && apt-get install -y --no-install-recommends %s\n' "${missing[*]}" >&2
      exit 1
    fi
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  local -a quiet=(env DEBIAN_FRONTEND=noninteractive)
  if [[ -n $(dpkg --audit) ]]; then
    say "completing an installation that was interrupted"
    "${root[@]}" "${quiet[@]}" dpkg --configure -a
  fi
  "${root[@]}" "${quiet[@]}" apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update -qq
  "${root[@]}" "${quiet[@]}" apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 install -y -q \
    --no-install-recommends "${missing[@]}"
}

# The compiler cache finds a file again in another checkout and in another build folder.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$RAYCTL_ROOT} CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

is_preset() { [[ $1 =~ ^(dev|release|asan|tsan|ci)$ ]]; }

# build PRESET [TARGET...]
build() {
  local preset=$1
  shift
  need_packages build
  if [[ ! -f $RAYCTL_ROOT/build/$preset/build.ninja ]]; then
    say "configuring build/$preset"
    (cd "$RAYCTL_ROOT" && cmake --preset "$preset" --log-level=WARNING >/dev/null)
  fi
  say "building build/$preset${*:+ ($*)}"
  local -a targets=()
  (($# == 0)) || targets=(--target "$@")
  (cd "$RAYCTL_ROOT" && cmake --build --preset "$preset" "${targets[@]}")
}
