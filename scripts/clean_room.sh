#!/usr/bin/env bash
# `./dev clean-room`: see `./dev help clean-room`. Mounts and processes live in namespaces of their own, so that they are
# gone with this script, however it ends.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$RAYCTL_ROOT/scripts/common.sh"

share_ccache=
keep=
while (($#)); do
  case $1 in
    --share-ccache) share_ccache=1 ;;
    --keep) keep=1 ;;
    --) shift && break ;;
    -*) die "no such option: $1; see ./dev help clean-room" ;;
    *) break ;;
  esac
  shift
done

if [[ -z ${RAYCTL_ROOM:-} ]]; then
  # Outside: make the room, go in, clear up.
  ((EUID == 0)) || die "a clean room needs root (debootstrap and chroot): sudo ./dev clean-room"
  need_packages clean-room
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/rayctl
  mkdir -p "$cache"
  RAYCTL_ROOM=$(mktemp -d "${TMPDIR:-/tmp}/rayctl-clean-room.XXXXXX")
  export RAYCTL_ROOM
  # shellcheck disable=SC2317  # Called by the trap.
  clear_up() {
    if [[ -n $keep ]]; then
      say "the room is kept at $RAYCTL_ROOM"
    else
      rm -rf --one-file-system -- "$RAYCTL_ROOM"
    fi
  }
  trap clear_up EXIT
  trap 'exit 130' INT TERM

  base=$cache/bookworm-git.tar
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
  chmod 755 "$RAYCTL_ROOM" # As a root folder is: tests become other users, who must be able to look in.
  # What a fresh machine also has: name resolution, the same sources and settings of apt, this machine's certificates.
  for path in /etc/resolv.conf /etc/hosts /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/apt.conf.d \
    /usr/share/keyrings; do
    [[ -e $path ]] && mkdir -p "$RAYCTL_ROOM${path%/*}" && cp -aL "$path" "$RAYCTL_ROOM${path%/*}/"
  done
  git clone -q --no-hardlinks "$RAYCTL_ROOT" "$RAYCTL_ROOM/rayctl"
  status=0
  export RAYCTL_ROOT
  unshare --mount --pid --fork --kill-child --propagation private \
    "$RAYCTL_ROOT/scripts/clean_room.sh" ${share_ccache:+--share-ccache} -- "$@" || status=$?
  if ((status == 0)); then say "the clean room is content"; fi
  exit "$status"
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
fi
