#!/usr/bin/env bash
# `./dev clean-room`: see `./dev help clean-room`. Mounts and processes live in namespaces of their own, so that they are
# gone with this script, however it ends.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$RAYCTL_ROOT/scripts/common.sh"

share_ccache=
keep=
installed=
while (($#)); do
  case $1 in
    --share-ccache) share_ccache=1 ;;
    --keep) keep=1 ;;
    --installed) installed=1 ;;
    --) shift && break ;;
    -*) die "no such option: $1; see ./dev help clean-room" ;;
    *) break ;;
  esac
  shift
done

prefix=/opt/rayctl # Of the installed tree, in its room.

if [[ -z ${RAYCTL_ROOM:-} ]]; then
  # Outside: make the rooms, go in, clear up.
  ((EUID == 0)) || die "a clean room needs root (debootstrap and chroot): sudo ./dev clean-room"
  need_packages clean-room
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/rayctl
  mkdir -p "$cache"
  rooms=$(mktemp -d "${TMPDIR:-/tmp}/rayctl-clean-room.XXXXXX")
  # shellcheck disable=SC2317  # Called by the trap.
  clear_up() {
    if [[ -n $keep ]]; then
      say "the rooms are kept in $rooms"
    else
      rm -rf --one-file-system -- "$rooms"
    fi
  }
  trap clear_up EXIT
  trap 'exit 130' INT TERM
  chmod 755 "$rooms" # As a root folder is: tests become other users, who must be able to look in.

  # make_room NAME: a bare Debian 12 with git, in RAYCTL_ROOM.
  make_room() {
    local base=$cache/bookworm-git.tar mirror path
    export RAYCTL_ROOM=$rooms/$1
    mkdir "$RAYCTL_ROOM"
    if [[ ! -f $base ]]; then
      # The mirror is the machine's own, so that this works wherever apt does.
      # shellcheck disable=SC2016  # apt-get expands these.
      mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Created-By: Packages' |
        awk '$2 == "bookworm" { print $1; exit }')
      [[ -n $mirror ]] || die "apt on this machine knows no mirror of bookworm"
      say "making a bare Debian 12 with git (once; kept in $base)"
      debootstrap --variant=minbase --include=git bookworm "$RAYCTL_ROOM" "$mirror" >"$cache/debootstrap.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$cache/debootstrap.log")"
      tar -C "$RAYCTL_ROOM" -cf "$base.part" .
      mv "$base.part" "$base"
    else
      say "unpacking a bare Debian 12 with git"
      tar -C "$RAYCTL_ROOM" -xf "$base"
    fi
    chmod 755 "$RAYCTL_ROOM"
    # What a fresh machine also has: name resolution, the same sources and settings of apt, its certificates.
    for path in /etc/resolv.conf /etc/hosts /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d \
      /usr/share/keyrings; do
      [[ -e $path ]] && mkdir -p "$RAYCTL_ROOM${path%/*}" && cp -aL "$path" "$RAYCTL_ROOM${path%/*}/"
    done
  }

  # enter [OPTIONS -- COMMAND...]: this script again, in the room.
  enter() {
    export RAYCTL_ROOT
    unshare --mount --pid --fork --kill-child --propagation private "$RAYCTL_ROOT/scripts/clean_room.sh" "$@"
  }

  tree=$rooms/tree
  if [[ -n $installed ]]; then
    build release rayctl_installed
    DESTDIR=$tree cmake --install "$RAYCTL_ROOT/build/release" --prefix "$prefix" >/dev/null
  else
    make_room build
    git clone -q --no-hardlinks "$RAYCTL_ROOT" "$RAYCTL_ROOM/rayctl"
    enter ${share_ccache:+--share-ccache} -- "$@"
    if (($#)); then
      say "the clean room is content"
      exit 0
    fi
    mv "$RAYCTL_ROOM/tree" "$tree"
  fi
  make_room run
  cp -a "$tree/." "$RAYCTL_ROOM/"
  mkdir "$RAYCTL_ROOM/rayctl"
  cp -a "$RAYCTL_ROOT/scripts" "$RAYCTL_ROOT/dev" "$RAYCTL_ROOM/rayctl/"
  # Not installed by what it is to prove the need of.
  enter -- /bin/sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends libssl3 >/dev/null'
  enter -- ./dev demo --bin "$prefix/bin"
  say "the clean room is content"
  exit 0
fi

# Inside the namespaces.
mount -t proc proc "$RAYCTL_ROOM/proc"
mount --rbind /sys "$RAYCTL_ROOM/sys"
mount --rbind /dev "$RAYCTL_ROOM/dev"
if [[ -n $share_ccache ]]; then
  mkdir -p "$RAYCTL_ROOM/root/.cache/ccache" "$HOME/.cache/ccache"
  mount --bind "$HOME/.cache/ccache" "$RAYCTL_ROOM/root/.cache/ccache"
fi
inside() {
  say "in the clean room: $*"
  env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    chroot "$RAYCTL_ROOM" /bin/sh -c 'cd /rayctl && exec "$@"' sh "$@" </dev/null
}
if (($#)); then
  inside "$@"
else
  inside ./dev test
  inside ./dev demo
  inside ./dev build release rayctl_installed
  inside env DESTDIR=/tree cmake --install build/release --prefix "$prefix"
fi
