#!/usr/bin/env bash
# Makes a machine of Debian's kernel and a RAM disk: `image.sh CACHE OUT PROGRAM...`.
#
# KERNEL is the package that stands for the kernel (linux-image-amd64).
# The kernel package is fetched into CACHE at first, or when KERNEL is another one, and unpacked there; OUT/vmlinuz and
# OUT/initrd are what QEMU boots. The RAM disk has busybox, ip, rdma and ethtool, the kernel's modules
# for Soft-RoCE, for network interfaces without hardware and for filters, the RDMA libraries, and the
# programs, all with the shared libraries that they need.
#
# Exit code 3 says that something cannot be had, on standard error.
set -eu
cache=$1 out=$2
shift 2
kernel=${KERNEL:-linux-image-amd64}
here=$(cd "$(dirname "$0")" && pwd)

lacks() {
  echo "$1" >&2
  exit 3
}
for program in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio \
  ip:iproute2 rdma:iproute2 ethtool:ethtool strip:binutils dpkg:dpkg; do
  PATH=$PATH:/usr/sbin:/sbin command -v "${program%%:*}" >/dev/null ||
    lacks "there is no ${program%%:*} (package ${program##*:})"
done
PATH=$PATH:/usr/sbin:/sbin
[ "$(uname -m)" = x86_64 ] || lacks "this machine is no x86-64 one"

# The package that stands for the newest kernel depends on the one with its files.
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
of=$(cat "$cache/kernel/of" 2>/dev/null || echo linux-image-amd64)
if ! ls "$cache"/kernel/boot/vmlinuz-* >/dev/null 2>&1 || [ "$of" != "$kernel" ]; then
  command -v apt-get >/dev/null || lacks "there is no apt-get to fetch Debian's kernel with"
  package=$(apt-cache depends "$kernel" 2>/dev/null |
    sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
  if [ -z "$package" ]; then
    apt-get update -qq >/dev/null 2>&1 || true
    package=$(apt-cache depends "$kernel" 2>/dev/null |
      sed -n 's/^ *Depends: *\(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
  fi
  [ -n "$package" ] || lacks "no package $kernel is known here"
  rm -rf "$cache/fresh" && mkdir "$cache/fresh"
  (cd "$cache/fresh" && { apt-get download -qq "$package" || { apt-get update -qq && apt-get download -qq "$package"; }; }) \
    >/dev/null 2>&1 || lacks "the package $package cannot be fetched"
  dpkg -x "$cache"/fresh/*.deb "$cache/fresh/kernel"
  echo "$kernel" >"$cache/fresh/kernel/of"
  rm -rf "$cache/kernel" && mv "$cache/fresh/kernel" "$cache/kernel"
  rm -rf "$cache/fresh"
fi
flock -u 9

root=$out/root
mkdir -p "$root"/{bin,dev,etc/libibverbs.d,lib/modules,proc,sys,run,tmp,root}

# A program or a library, with what the loader would look for.
add() {
  install -D -m 755 "$1" "$root$2"
  { ldd "$1" 2>/dev/null || true; } | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p; s/^\t\(\/[^ ]*\) (.*/\1/p' |
    while read -r library; do
      [ -e "$root$library" ] || install -D -m 755 "$(realpath "$library")" "$root$library"
    done
}

add "$(command -v busybox)" /bin/busybox
for program in ip rdma ethtool; do add "$(command -v "$program")" "/bin/$program"; done
for program in "$@"; do
  strip -o "$out/stripped" "$program"
  add "$out/stripped" "/bin/$(basename "$program")"
done
rm -f "$out/stripped"

# Libraries that are looked for at run time, and the provider of Soft-RoCE.
library() { ldconfig -p | sed -n "s|.*$1 .*x86-64.*=> ||p" | head -n 1; }
for name in librdmacm.so.1 libibverbs.so.1; do
  path=$(library "$name")
  [ -n "$path" ] || lacks "there is no $name (packages librdmacm1 libibverbs1)"
  add "$path" "$path"
done
provider=$(ls "$(dirname "$(library libibverbs.so.1)")"/libibverbs/librxe-rdmav*.so 2>/dev/null | head -n 1)
[ -n "$provider" ] || lacks "there is no provider of Soft-RoCE (package ibverbs-providers)"
# The library looks where it was built to, below /usr or not.
add "$provider" "/usr${provider#/usr}"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"

# Modules, each after those that it needs. What is built in has no file.
number=0
find "$cache/kernel" -name '*.ko*' >"$out/modules"
module() {
  local name=${1//-/_} file other
  case " $have " in *" $name "*) return ;; esac
  have="$have $name"
  file=$(grep -E "/(${name}|${name//_/-})\.ko(\.xz)?\$" "$out/modules" | head -n 1)
  [ -n "$file" ] || return 0
  case $file in
    *.xz) xz -dc "$file" >"$out/module" ;;
    *) cp "$file" "$out/module" ;;
  esac
  for other in $(tr '\0' '\n' <"$out/module" | sed -n 's/^depends=//p' | tr , ' '); do
    cp "$out/module" "$out/module-$name"
    module "$other"
    mv "$out/module-$name" "$out/module"
  done
  number=$((number + 1))
  mv "$out/module" "$root/lib/modules/$(printf %02d $number)-$name.ko"
}
have=
for name in crc32_generic crc32c_generic virtio_pci virtio_net dummy veth rdma_rxe rdma_ucm \
  sch_ingress cls_bpf; do
  module $name
done

install -m 755 "$here/init" "$root/init"
cp "$(ls "$cache"/kernel/boot/vmlinuz-* | head -n 1)" "$out/vmlinuz"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$out/initrd"
rm -rf "$root" "$out/modules"
