//! Writing of the configuration by the running balancer, and what it takes.

use std::io;
use std::path::Path;

use evenkeel_net::replacement::Replacement;
use nix::unistd::{User, geteuid};

/// Returns why the configuration in `file` cannot be changed by the API, and what to do; `None` if it can be.
pub fn obstacle(file: &Path) -> Option<String> {
    let error = Replacement::check_path(file).err()?;
    let remedy = remedy(file, &error);
    let remedy = remedy.trim_end_matches('.');
    Some(format!("{}: {error}. {remedy}", file.display()))
}

/// Advice on how `file` can be replaced, where `error` was in the way: whole sentences.
pub(crate) fn remedy(file: &Path, error: &io::Error) -> String {
    let real = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let folder = real.parent().unwrap_or(Path::new("/")).display();
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "The process may write nothing in {folder}. As a service of systemd, it needs \
             `ReadWritePaths={folder}` in the unit (`systemctl edit evenkeel`), and a restart"
        ),
        io::ErrorKind::PermissionDenied => {
            let user = geteuid();
            let name = User::from_uid(user).ok().flatten();
            let name = name.map_or_else(|| user.to_string(), |user| user.name);
            // What systemd says to its services. It may keep them from writing there, too.
            let of_service = match std::env::var_os("INVOCATION_ID") {
                Some(_) => " For a service of systemd, see Changes by the console in service.md",
                None => "",
            };
            format!(
                "The process must own the file and its folder: run `chown {name}: {folder} {}` as root.{of_service}",
                real.display()
            )
        }
        _ => format!("The process must be able to make a file in {folder}, and to rename it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_its_remedy() {
        let file = Path::new("/etc/passwd");
        let remedy = |kind: io::ErrorKind| remedy(file, &kind.into());
        let read_only = remedy(io::ErrorKind::ReadOnlyFilesystem);
        assert!(read_only.contains("`ReadWritePaths=/etc`"), "{read_only}");
        let denied = remedy(io::ErrorKind::PermissionDenied);
        assert!(denied.contains(": /etc /etc/passwd` as root"), "{denied}");
        assert!(
            !denied.contains("chown 0:"),
            "a name and no number: {denied}"
        );
        let other = remedy(io::ErrorKind::StorageFull);
        assert!(other.contains("make a file in /etc"), "{other}");
        let missing = obstacle(Path::new("/no/such/file")).unwrap();
        assert!(
            missing.starts_with("/no/such/file: No such file"),
            "{missing}"
        );
    }
}
