//! Files that are replaced as a whole, so that whoever reads one finds the old text or the new one: the new file is written beside
//! the old one, and takes its place in one step.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::geteuid;

/// A text that is to take the place of a file. Dropped, it is removed.
#[derive(Debug)]
pub struct Replacement {
    new: PathBuf,
    target: PathBuf,
}

impl Replacement {
    /// Writes `text` beside the file at `path`, or where a symbolic link there leads to, with the mode and
    /// owner of that file.
    ///
    /// # Errors
    ///
    /// There is no such file, or the new one cannot be written.
    pub fn write(path: &Path, text: &str) -> io::Result<Self> {
        let target = path.canonicalize()?;
        let old = fs::metadata(&target)?;
        Self::write_beside(target, Some(&old), text)
    }

    /// Looks whether the file at `path` could be replaced; makes nothing.
    ///
    /// # Errors
    ///
    /// Reason why the file could not be replaced.
    pub fn check_path(path: &Path) -> io::Result<()> {
        let target = path.canonicalize()?;
        let folder = target.parent().unwrap_or(Path::new("/"));
        access(folder, Access::WRITE_OK | Access::EXEC_OK)?;
        let (owner, user) = (fs::metadata(&target)?.uid(), geteuid());
        if !user.is_root() && owner != user.as_raw() {
            // The new file cannot be given to the owner of the old one.
            return Err(rustix::io::Errno::PERM.into());
        }
        Ok(())
    }

    /// Writes `text` as [`write`](Self::write) does; where there is no file, only the owner of the new one
    /// may read it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_or_create(path: &Path, text: &str) -> io::Result<Self> {
        match path.canonicalize() {
            Ok(_) => Self::write(path, text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::write_beside(path.to_owned(), None, text)
            }
            Err(error) => Err(error),
        }
    }

    fn write_beside(target: PathBuf, old: Option<&Metadata>, text: &str) -> io::Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let new = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
        // A process of this number may have ended at a bad moment.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // It may hold secrets.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let prepared = Replacement { new, target };
        if let Some(old) = old {
            let own = file.metadata()?;
            let mut mode = old.mode() & 0o7777;
            if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
                match fchown(&file, Some(old.uid()), Some(old.gid())) {
                    // The owner is in no such group: the group that the file gets instead gets no rights.
                    Err(error)
                        if error.kind() == io::ErrorKind::PermissionDenied
                            && own.uid() == old.uid() =>
                    {
                        mode &= !0o2070;
                    }
                    changed => changed?,
                }
            }
            file.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        Ok(prepared)
    }

    /// Puts the new file in the place of the old one.
    ///
    /// # Errors
    ///
    /// The file cannot be replaced. The old file is still there.
    pub fn commit(self) -> io::Result<()> {
        fs::rename(&self.new, &self.target)?;
        // The file is in its place: that a power failure may still undo it is no reason to go back.
        if let Some(folder) = self.target.parent() {
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // After a commit there is nothing of that name.
        let _ = fs::remove_file(&self.new);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("evenkeel-written-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_at_once_and_keeps_its_mode() {
        let folder = folder("mode");
        let path = folder.join("evenkeel.toml");
        fs::write(&path, "1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let prepared = Replacement::write(&path, "2").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
        prepared.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(names(&folder), ["evenkeel.toml"]);
        drop(Replacement::write(&path, "3").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "2");
        assert_eq!(names(&folder), ["evenkeel.toml"]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// The test that is a process of its own, as `nobody`.
    const INNER: &str = "replacement::tests::n18_inner";
    const FOLDER: &str = "EVENKEEL_TEST_REPLACEMENT";

    #[test]
    fn n18_a_group_that_cannot_be_given_is_left_and_gets_no_rights() {
        let folder = folder("group");
        if fs::metadata(&folder).unwrap().uid() != 0 {
            eprintln!("SKIPPED: only root has files of others made");
            return;
        }
        let all =
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let (program, path) = (folder.join("program"), folder.join("evenkeel.toml"));
        // Where everybody may start it.
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        fs::write(&path, "1").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        all(&folder);
        let closed = folder.join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "").unwrap();
        all(&closed);
        std::os::unix::fs::chown(&path, Some(65534), Some(0)).unwrap();
        std::os::unix::fs::chown(&folder, Some(65534), Some(0)).unwrap();
        let script = "exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"";
        let output = std::process::Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&program)
            .args(["--exact", INNER, "--ignored", "--nocapture"])
            .env(FOLDER, &folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{why}"
        );
        let about = fs::metadata(&path).unwrap();
        assert_eq!((about.uid(), about.gid()), (65534, 65534));
        assert_eq!(about.mode() & 0o7777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "2");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[ignore = "is started by the test above"]
    fn n18_inner() {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        let path = folder.join("evenkeel.toml");
        Replacement::check_path(&path).unwrap();
        // Of root's, in a folder of its own; and in a folder of root's.
        let (theirs, outside) = (folder.join("program"), folder.join("closed/file"));
        for path in [theirs, outside] {
            let found = Replacement::check_path(&path).unwrap_err();
            assert_eq!(found.kind(), io::ErrorKind::PermissionDenied);
            let done = Replacement::write(&path, "2").unwrap_err();
            assert_eq!(found.raw_os_error(), done.raw_os_error());
        }
        Replacement::write(&path, "2").unwrap().commit().unwrap();
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        let folder = folder("link");
        let real = folder.join("real");
        fs::create_dir(&real).unwrap();
        fs::write(real.join("file"), "1").unwrap();
        let link = folder.join("evenkeel.toml");
        symlink("real/file", &link).unwrap();
        Replacement::write(&link, "2").unwrap().commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(real.join("file")).unwrap(), "2");
        assert_eq!(names(&real), ["file"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_not_there_is_not_written() {
        let folder = folder("none");
        let path = folder.join("evenkeel.toml");
        assert!(Replacement::write(&path, "1").is_err());
        assert!(names(&folder).is_empty());
        let created = folder.join("created");
        let prepared = Replacement::write_or_create(&created, "1").unwrap();
        prepared.commit().unwrap();
        assert_eq!(fs::metadata(&created).unwrap().mode() & 0o7777, 0o600);
        fs::remove_file(&created).unwrap();
        // A rest of a process that is gone is no obstacle.
        fs::write(&path, "1").unwrap();
        let rest = format!(".evenkeel.toml.{}.new", std::process::id());
        fs::write(folder.join(rest), "half").unwrap();
        Replacement::write(&path, "2").unwrap().commit().unwrap();
        assert_eq!(names(&folder), ["evenkeel.toml"]);
        fs::remove_dir_all(folder).unwrap();
    }
}
