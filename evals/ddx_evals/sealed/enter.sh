# Makes a root of its own out of a list of mounts, goes there without a way back, and runs a command as nobody special.
#
#     unshare --mount --pid --fork … sh enter.sh ROOT MOUNTS DIRECTORY COMMAND…
#
# A line of MOUNTS is `ro|rw|hidden`, a source and a target below ROOT, separated by tabs. The sources are still where
# they were; ROOT and its parts exist. Needs mount, pivot_root and setpriv (util-linux).
set -eu
root=$1 mounts=$2 directory=$3
shift 3

mount --make-rprivate /
mount --bind "$root" "$root"
while IFS="$(printf '\t')" read -r mode source target; do
    case $mode in
        ro) mount -o bind,ro "$source" "$root$target" ;;
        rw) mount --bind "$source" "$root$target" ;;
        hidden) mount -t tmpfs -o ro,mode=755 tmpfs "$root$target" ;;
    esac
done <"$mounts"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
cd "$root"
pivot_root . outside
umount -l /outside
# The root itself is only where things are hung up: whatever may be written is a mount of its own.
mount -o remount,bind,ro /
cd "$directory"
unset OLDPWD
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
