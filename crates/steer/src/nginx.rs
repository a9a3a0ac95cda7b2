//! nginx, as it is told by a file that an `upstream` includes, and a reload.

use std::fmt::Write;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_config::SteerNginx;
use evenkeel_control::shares::ServiceState;
use evenkeel_core::address::Address;
use evenkeel_net::replacement::Replacement;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{self, Failed};
use crate::status::SteeredMember;
use crate::wanted::MemberShare;

/// Largest file that is read to be put back, in bytes.
const MOST: u64 = 16 << 20;

/// Names of the processes of nginx and of programs that are made of it.
const NAMES: [&str; 6] = [
    "nginx",
    "openresty",
    "angie",
    "freenginx",
    "tengine",
    "nginx-debug",
];

/// Reason why nginx was not told.
#[derive(Debug, thiserror::Error)]
pub enum NginxError {
    /// No member could be asked.
    #[error("the group has no member to which nginx could send requests: {} stays unchanged", .0.display())]
    Nobody(PathBuf),
    /// The file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not right.
    #[error("{} was put back, as the check failed: {failed}", path.display())]
    Check {
        /// The file.
        path: PathBuf,
        /// Failure of the check.
        failed: Failed,
    },
    /// The file could not be put back either.
    #[error("the check failed ({failed}), and {} cannot be put back: {error}", path.display())]
    Back {
        /// The file.
        path: PathBuf,
        /// Failure of the check.
        failed: Failed,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is written, but nginx was not reloaded.
    #[error("nginx was not reloaded: {0}")]
    Reload(String),
}

/// The file for an `upstream`: a line for each member that can have one.
pub fn text(name: &str, group: &str, nginx: &SteerNginx, wanted: &[MemberShare]) -> String {
    let mut text =
        format!("# Written by evenkeel: [steer.{name}], group {group}. Other changes are lost.\n");
    let parameters = nginx.parameters.trim();
    let before = if parameters.is_empty() { "" } else { " " };
    for want in wanted {
        let Some(address) = address(&want.address) else {
            continue;
        };
        // Writing to a text cannot fail.
        let _ = match want.standing {
            ServiceState::Serving => writeln!(
                text,
                "server {address} weight={}{before}{parameters};",
                want.weight.max(1)
            ),
            other => writeln!(
                text,
                "server {address} down{before}{parameters}; # {}",
                other.name()
            ),
        };
    }
    text
}

/// An address as nginx has it; `None` if it has no such.
fn address(address: &Address) -> Option<String> {
    match address {
        Address::Ip(address) => Some(match address.is_ipv6() {
            true => format!("[{}]:{}", address.ip(), address.port()),
            false => address.to_string(),
        }),
        Address::Unix(path) => {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "/-_.+".contains(c);
            let is_plain = path.starts_with('/') && path.chars().all(is_part);
            is_plain.then(|| format!("unix:{path}"))
        }
    }
}

/// The members as they are in the file.
pub fn list_members(wanted: &[MemberShare]) -> Vec<SteeredMember> {
    let row = |want: &MemberShare| {
        let address = address(&want.address);
        SteeredMember {
            name: want.name.to_string(),
            member: want.member.to_string(),
            address: want.address.to_string(),
            state: want.standing.name().into(),
            weight: want.weight,
            note: address
                .is_none()
                .then(|| "nginx takes no such address: the member is left out".into()),
            has: address.is_some().then_some(want.weight),
            server: address,
        }
    };
    wanted.iter().map(row).collect()
}

/// Result of writing the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileWriteResult {
    /// The file says the same already.
    Same,
    /// The file is new, and nginx was reloaded, or somebody else does that.
    Changed,
}

/// Writes the file, has it checked, and has nginx reloaded; does nothing if the file says the same. A file
/// that fails the check is put back.
///
/// # Errors
///
/// One of these steps has failed.
pub async fn apply_file(nginx: &SteerNginx, text: &str) -> Result<FileWriteResult, NginxError> {
    let path = &nginx.file;
    let write = |error| NginxError::Write {
        path: path.clone(),
        error,
    };
    if !text.lines().any(|line| line.starts_with("server ")) {
        return Err(NginxError::Nobody(path.clone()));
    }
    let before = read(path).map_err(write)?;
    if before.as_deref() == Some(text) {
        return Ok(FileWriteResult::Same);
    }
    write_or_remove(path, Some(text)).map_err(write)?;
    if let Err(failed) = command::run(&nginx.check, nginx.timeout).await {
        let path = path.clone();
        return Err(match write_or_remove(&path, before.as_deref()) {
            Ok(()) => NginxError::Check { path, failed },
            Err(error) => NginxError::Back {
                path,
                failed,
                error,
            },
        });
    }
    run_reload(nginx).await?;
    Ok(FileWriteResult::Changed)
}

/// Has nginx read its configuration again.
///
/// # Errors
///
/// nginx cannot be told.
pub async fn run_reload(nginx: &SteerNginx) -> Result<(), NginxError> {
    let done = command::run(&nginx.reload, nginx.timeout).await;
    done.map_err(|failed| NginxError::Reload(failed.to_string()))?;
    match &nginx.pid_file {
        Some(file) => signal(file).map_err(NginxError::Reload),
        None => Ok(()),
    }
}

fn signal(file: &Path) -> Result<(), String> {
    let at = file.display();
    let text = evenkeel_config::read_file(file, 64).map_err(|error| format!("{at}: {error}"))?;
    let number = text.trim().parse().ok().filter(|number: &i32| *number > 1);
    let pid = number.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| format!("{at} has no process id"))?;
    // SIGHUP ends most programs: one that has the number of an nginx that is gone must not get it.
    let comm = format!("/proc/{}/comm", pid.as_raw_pid());
    let name = std::fs::read_to_string(comm).map_err(|_| {
        format!(
            "process {}, which {at} names, does not exist any more",
            pid.as_raw_pid()
        )
    })?;
    if !NAMES.contains(&name.trim()) {
        return Err(format!(
            "process {}, which {at} names, is not nginx but {:?}",
            pid.as_raw_pid(),
            name.trim()
        ));
    }
    kill_process(pid, Signal::HUP).map_err(|error| {
        format!(
            "cannot send SIGHUP to process {}: {}; nginx must run as the same user, or use `reload`",
            pid.as_raw_pid(),
            io::Error::from(error)
        )
    })
}

/// Reads the file; `None` if there is none.
fn read(path: &Path) -> io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(about) if about.len() > MOST => return Err(io::Error::other("the file is too large")),
        Ok(_) => {}
    }
    std::fs::read_to_string(path).map(Some)
}

/// Gives the file this text, or removes it.
fn write_or_remove(path: &Path, text: Option<&str>) -> io::Result<()> {
    let Some(text) = text else {
        return std::fs::remove_file(path);
    };
    let is_new = !path.exists();
    Replacement::write_or_create(path, text)?.commit()?;
    if is_new {
        // nginx may run as somebody else. There is nothing secret in it.
        std::fs::set_permissions(path, Permissions::from_mode(0o644))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn wanted(address: Address, weight: u32, standing: ServiceState) -> MemberShare {
        MemberShare {
            member: "m".into(),
            name: "m".into(),
            address,
            weight,
            standing,
        }
    }

    fn ip(text: &str) -> Address {
        Address::Ip(text.parse().unwrap())
    }

    fn folder(name: &str) -> PathBuf {
        let name = format!("evenkeel-nginx-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn settings(folder: &Path, check: &[&str]) -> SteerNginx {
        SteerNginx {
            file: folder.join("up.conf"),
            check: check.iter().map(|word| (*word).to_owned()).collect(),
            timeout: Duration::from_secs(20),
            ..SteerNginx::default()
        }
    }

    #[test]
    fn members_are_servers_with_weights_or_down() {
        let nginx = SteerNginx {
            parameters: " max_fails=2 ".into(),
            ..SteerNginx::default()
        };
        let all = [
            wanted(ip("10.0.0.1:80"), 256, ServiceState::Serving),
            wanted(ip("[2001:db8::1]:80"), 0, ServiceState::Draining),
            wanted(
                Address::Unix("/run/app.sock".into()),
                3,
                ServiceState::Serving,
            ),
            wanted(Address::Unix("/run/a;b".into()), 3, ServiceState::Serving),
            wanted(Address::Unix("@abstract".into()), 3, ServiceState::Serving),
        ];
        assert_eq!(
            text("edge", "web", &nginx, &all),
            "# Written by evenkeel: [steer.edge], group web. Other changes are lost.\n\
             server 10.0.0.1:80 weight=256 max_fails=2;\n\
             server [2001:db8::1]:80 down max_fails=2; # draining\n\
             server unix:/run/app.sock weight=3 max_fails=2;\n"
        );
        let notes: Vec<_> = list_members(&all)
            .iter()
            .map(|row| row.note.is_some())
            .collect();
        assert_eq!(notes, [false, false, false, true, true]);
    }

    #[tokio::test]
    async fn a_file_that_fails_the_check_is_put_back() {
        let folder = folder("check");
        let file = folder.join("up.conf");
        let all = |weight| [wanted(ip("10.0.0.1:80"), weight, ServiceState::Serving)];
        // The check finds the new file in its place.
        let script = "grep -q weight=1 \"$0\" || { echo bad weight >&2; exit 1; }";
        let path = file.display().to_string();
        let nginx = settings(&folder, &["sh", "-c", script, &path]);
        let bad = text("a", "g", &nginx, &all(2));
        let error = apply_file(&nginx, &bad).await.unwrap_err().to_string();
        assert!(error.contains("bad weight"), "{error}");
        assert!(!file.exists());
        let good = text("a", "g", &nginx, &all(1));
        assert_eq!(
            apply_file(&nginx, &good).await.unwrap(),
            FileWriteResult::Changed
        );
        assert_eq!(
            apply_file(&nginx, &good).await.unwrap(),
            FileWriteResult::Same
        );
        assert!(apply_file(&nginx, &bad).await.is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), good);
        let none = text("a", "g", &nginx, &[]);
        assert!(matches!(
            apply_file(&nginx, &none).await,
            Err(NginxError::Nobody(_))
        ));
        let names = fs::read_dir(&folder).unwrap().count();
        assert_eq!(names, 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[tokio::test]
    async fn nobody_else_gets_the_signal() {
        let folder = folder("signal");
        let file = folder.join("pid");
        let mut nginx = settings(&folder, &[]);
        nginx.pid_file = Some(file.clone());
        for (text, wanted) in [
            ("", "has no process id"),
            ("1", "has no process id"),
            ("-5", "has no process id"),
            ("999999999", "process 999999999"),
            (&std::process::id().to_string(), "is not nginx"),
        ] {
            fs::write(&file, text).unwrap();
            let error = run_reload(&nginx).await.unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        fs::remove_file(&file).unwrap();
        assert!(run_reload(&nginx).await.is_err());
        fs::remove_dir_all(folder).unwrap();
    }

    proptest! {
        /// No member can say anything but its own line.
        #[test]
        fn a_line_is_a_server(paths in prop::collection::vec("\\PC{0,20}", 0..6)) {
            let nginx = SteerNginx::default();
            let all: Vec<MemberShare> = paths
                .iter()
                .map(|path| wanted(Address::Unix(path.as_str().into()), 1, ServiceState::Serving))
                .collect();
            for line in text("n", "g", &nginx, &all).lines().skip(1) {
                prop_assert!(line.starts_with("server unix:/"));
                prop_assert_eq!(line.matches([';', '{', '}', '#', ' ']).count(), 3);
            }
        }
    }
}
