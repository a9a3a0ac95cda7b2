//! The Debian packages: packed from what is built here, looked at by lintian, then installed, upgraded and
//! purged by dpkg with their scripts, in a copy of this system that is thrown away (an overlay in a mount
//! namespace).

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_e2e::balancer::{evenkeel_binary, lab_binary};
use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::process::{are_installed, program, report_skipped, succeeds};
use evenkeel_e2e::{apxs, libarm};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Puts what is packed into `folder`: without what a debugger needs, which takes long to compress.
fn build(folder: &Folder) {
    for file in [
        evenkeel_binary(),
        lab_binary(),
        &libarm::folder().join("libarm.so"),
    ] {
        let to = folder.join(file.file_name().unwrap().to_str().unwrap());
        let mut strip = Command::new("strip");
        assert!(succeeds(strip.arg("-o").arg(to).arg(file)), "strip works");
    }
    let include = root().join("crates/arm/include");
    let include = format!("-I{}", include.display());
    let library = format!("-L{}", libarm::folder().display());
    let source = root().join("modules/apache/mod_evenkeel.c");
    let more = ["-Wc,-Wno-unused-parameter", &include, &library, "-larm"];
    apxs::build(&source, &more, folder);
}

/// Packs `built` as a version: the packages, in `folder`.
fn pack(built: &Folder, folder: &Path, version: &str) -> Vec<PathBuf> {
    let packed = Command::new(root().join("scripts/deb"))
        .arg(built.path())
        .env("DEB_MODULE", built.join(".libs/mod_evenkeel.so"))
        .env("DEB_OUT", folder)
        .env("DEB_VERSION", version)
        .env("DEB_COMPRESSION", "-Zgzip -z1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&packed.stderr);
    assert!(packed.status.success(), "{said}");
    let text = String::from_utf8(packed.stdout).unwrap();
    let packages: Vec<_> = text.lines().map(PathBuf::from).collect();
    assert_eq!(packages.len(), 7, "{text}{said}");
    packages
}

/// The file of a package.
fn package(name: &str, version: &str) -> String {
    let architecture = Command::new("dpkg").arg("--print-architecture").output();
    let architecture = String::from_utf8(architecture.unwrap().stdout).unwrap();
    format!("{name}_{version}_{}.deb", architecture.trim())
}

/// Script for the packages, run as root in the copy: its arguments are the folders of two versions.
const STORY: &str = r#"
set -eu
old=$1 new=$2
say() { echo "story: $*"; }
none() { if grep "$1" /run/story/asked; then echo "that was not to be asked"; exit 1; fi; }
# What this machine has of an earlier installation, and what its image leaves out of packages (manual pages), is not
# there.
dpkg --purge evenkeel evenkeel-agent evenkeel-bin libapache2-mod-evenkeel libarm-dev libarm >/dev/null 2>&1 || true
rm -rf /etc/evenkeel /var/lib/evenkeel /var/log/evenkeel /usr/share/evenkeel
userdel evenkeel 2>/dev/null || true
sed -i '/^path-exclude/d' /etc/dpkg/dpkg.cfg $(find /etc/dpkg/dpkg.cfg.d -type f)
# Nobody searches the manual pages; their index takes long.
rm -f /var/lib/man-db/auto-update
# There is no init: what the scripts ask it is answered by this, which knows the balancer by its number.
mkdir -p /run/systemd/system /run/story /run/lock /run/apache2
cat > /usr/bin/systemctl <<'END'
#!/bin/sh
echo "systemctl $*" >> /run/story/asked
case "$*" in
  *is-active*evenkeel.service*) [ -e /run/story/pid ] && kill -0 "$(cat /run/story/pid)" ;;
  *is-active*) exit 3 ;;
esac
END
chmod +x /usr/bin/systemctl
cat > /usr/bin/deb-systemd-invoke <<'END'
#!/bin/sh
echo "invoke $*" >> /run/story/asked
END
: > /run/story/asked
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
chmod +x /usr/sbin/policy-rc.d
export DEBIAN_FRONTEND=noninteractive

say install
dpkg -i "$old"/*.deb
id evenkeel
[ "$(stat -c %U:%G:%a /etc/evenkeel/evenkeel.toml)" = root:evenkeel:640 ]
[ "$(stat -c %U:%a /var/lib/evenkeel)" = evenkeel:750 ]
grep -q "invoke start.*evenkeel.service" /run/story/asked
none "invoke start.*agent"
[ -e /etc/apache2/mods-enabled/evenkeel.load ]
apache2ctl -t -D DUMP_MODULES 2>&1 | grep -q evenkeel_module
evenkeel check /etc/evenkeel/evenkeel.toml
evenkeel --version
man -l /usr/share/man/man1/evenkeel-ctl-drain.1.gz | grep -q MEMBER
man -l /usr/share/man/man1/evenkeel-lab-load.1.gz | grep -q -e --rate
evenkeel-lab list | grep -q "virtual time"
for program in evenkeel evenkeel-lab; do
  bash -c ". /usr/share/bash-completion/completions/$program; complete -p $program"
done
cc -x c - -larm -o /run/story/arm <<'END'
#include <arm.h>
int main(void) { return arm_init("a", "*", 0, 0, 0) > 0 ? 0 : 1; }
END

say run
# As the unit does it, with the files that systemd would make.
echo 'user = "evenkeel"' | grep -qf - /etc/evenkeel/evenkeel.toml
sed -i 's/127.0.0.1:9900/127.0.0.1:0/' /etc/evenkeel/evenkeel.toml
evenkeel run /etc/evenkeel/evenkeel.toml > /run/story/out 2> /run/story/log &
echo $! > /run/story/pid
for i in $(seq 600); do grep -q ^ready /run/story/out && break; sleep 0.1; done
grep ^ready /run/story/out
[ "$(stat -c %U /proc/$!)" = evenkeel ]

say upgrade
: > /run/story/asked
dpkg -i "$new"/*.deb
kill -0 "$(cat /run/story/pid)"
# The administrator's configuration stays.
grep -q 127.0.0.1:0 /etc/evenkeel/evenkeel.toml
cat /run/story/asked
# A balancer that runs is upgraded, and restarted only where that fails; never stopped.
none "stop.*evenkeel.service"
grep -q "is-active evenkeel.service" /run/story/asked
kill "$(cat /run/story/pid)"; wait || true
cat /run/story/log
rm /run/story/pid
: > /run/story/asked
dpkg -i "$new"/evenkeel_*.deb "$new"/evenkeel-bin_*.deb
none "restart.*evenkeel.service"

say purge
echo x > /var/log/evenkeel/access.log
echo x > /var/lib/evenkeel/state
dpkg --purge evenkeel evenkeel-agent evenkeel-bin evenkeel-lab libapache2-mod-evenkeel libarm-dev libarm
for left in /etc/evenkeel /var/lib/evenkeel /var/log/evenkeel /usr/bin/evenkeel /usr/bin/evenkeel-lab /usr/share/evenkeel \
  /etc/apache2/mods-enabled/evenkeel.load /etc/logrotate.d/evenkeel /usr/lib/systemd/system/evenkeel.service \
  /lib/systemd/system/evenkeel.service; do
  [ ! -e "$left" ] || { echo "left: $left"; exit 1; }
done
[ -z "$(dpkg-query -W -f '${Package} ${Status}\n' 'evenkeel*' 'libarm*' libapache2-mod-evenkeel 2>/dev/null | grep -v 'unknown ok not-installed')" ]
say end
"#;

#[test]
fn packages_are_clean_and_are_installed_upgraded_and_purged() {
    let programs = [
        "dh", "lintian", "apxs", "strip", "dpkg", "adduser", "apache2", "man", "cc", "ip",
    ];
    if !are_installed(&programs) {
        return;
    }
    let alone = ["--mount", "--pid", "--net", "--fork", "--kill-child"];
    if !rustix::process::geteuid().is_root()
        || !succeeds(Command::new("unshare").args(alone).arg("true"))
    {
        return report_skipped("no right to make namespaces; run it as root");
    }
    let folder = Folder::new();
    build(&folder);
    let (old, new) = (folder.make_folder("0.1.0"), folder.make_folder("0.1.1"));
    let packages = pack(&folder, &old, "0.1.0");
    // The program needs the C library, and nothing else.
    let mut field = Command::new("dpkg-deb");
    field
        .arg("-f")
        .arg(old.join(package("evenkeel-bin", "0.1.0")));
    let output = field.arg("Depends").output().unwrap();
    let needs = String::from_utf8(output.stdout).unwrap();
    assert!(
        needs.starts_with("libc6 ") && !needs.contains(','),
        "{needs}"
    );
    // It takes a while.
    let mut lintian = program("lintian");
    lintian.args(["--fail-on", "error,warning", "--allow-root", "--no-cfg"]);
    lintian.args(["--tag-display-limit", "0"]).args(&packages);
    let lintian = lintian.stdout(Stdio::piped()).stderr(Stdio::piped());
    let lintian = lintian.spawn().unwrap();

    pack(&folder, &new, "0.1.1");
    // The layers are in memory; what is in /tmp is seen through the overlay.
    let enter = r#"
        set -e
        mount -t tmpfs scratch /mnt
        mkdir /mnt/upper /mnt/work /mnt/root
        mount -t overlay scratch -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
        mount -t proc proc /mnt/root/proc
        mount --rbind /dev /mnt/root/dev
        mount -t tmpfs scratch /mnt/root/run
        ip link set lo up
        exec chroot /mnt/root bash -c "$0" story "$@"
    "#;
    let mut story = program("unshare");
    story.args(alone).args(["bash", "-c", enter, STORY]);
    let output = story
        .arg(&old)
        .arg(&new)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("story: end"),
        "{told}"
    );

    under_systemd(&old, &new);

    let output = lintian.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let mut found = said
        .lines()
        .filter(|line| !line.starts_with("N:") && !line.is_empty());
    assert!(output.status.success() && found.next().is_none(), "{said}");
}

/// Tests the packages with a systemd that runs: the unit with all its limits, reloads, rotated
/// logs, an upgrade.
fn under_systemd(old: &Path, new: &Path) {
    if !are_installed(&["systemctl", "logrotate", "curl"]) {
        return;
    }
    let mut can = Command::new("unshare");
    can.args([
        "--mount", "--cgroup", "mount", "-t", "cgroup2", "none", "/mnt",
    ]);
    if !succeeds(&mut can) {
        return report_skipped("no right to mount control groups, which systemd needs");
    }
    let scripts = root().join("e2e/packages");
    let mut systemd = program("bash");
    systemd.arg(scripts.join("systemd.sh")).args([old, new]);
    let systemd = systemd.arg(scripts.join("under-systemd.sh"));
    let output = systemd.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let told = format!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("story: end"), "{told}");
}

/// The folder that becomes an image: nothing but the program, what starts it, and what it reads.
#[test]
fn the_container_runs_from_scratch() {
    if !are_installed(&["chroot", "ldd"]) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return report_skipped("only root may change the root folder; run it as root");
    }
    let folder = Folder::new();
    let made = Command::new(root().join("scripts/rootfs"))
        .arg(evenkeel_binary())
        .arg(folder.join("root"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let image = folder.join("root");
    let inside = |arguments: &[&str]| {
        let mut chroot = Command::new("chroot");
        chroot.arg("--userspec=65532:65532").arg(&image);
        let output = chroot
            .arg("/usr/bin/evenkeel")
            .args(arguments)
            .output()
            .unwrap();
        let said = [&output.stdout[..], &output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let (works, said) = inside(&["--version"]);
    assert!(works, "{said}");
    let (works, said) = inside(&["check", "/etc/evenkeel/evenkeel.toml"]);
    assert!(works, "{said}");
    assert!(
        !image.join("bin/sh").exists() && image.join("etc/ssl/certs/ca-certificates.crt").exists()
    );
    // The file for engines copies this folder, and starts what is in it.
    let text = fs::read_to_string(root().join("packaging/container/Containerfile")).unwrap();
    let instructions: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    assert_eq!(instructions.first(), Some(&"FROM scratch"), "{text}");
    assert!(
        text.contains("USER 65532") && text.contains("\"/usr/bin/evenkeel\", \"run\""),
        "{text}"
    );
}
