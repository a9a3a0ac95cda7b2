//! Unix sockets to listen on: opened where nobody else listens, and their files removed again.

use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Socket, Type};

use crate::inherited;
use crate::listen::BACKLOG;
use crate::stream::unix_address;

/// The file of a Unix socket that this process listens on: removed when this is dropped, if it is
/// still the same one. An abstract socket has none.
#[derive(Debug)]
pub struct SocketFile {
    /// The file, and which one it is; none that is not ours to remove.
    file: Option<(PathBuf, (u64, u64))>,
    /// True if another process listens on the socket, which removes the file.
    is_handed_over: AtomicBool,
}

impl SocketFile {
    fn new(file: Option<(PathBuf, (u64, u64))>) -> Self {
        let is_handed_over = AtomicBool::new(false);
        SocketFile {
            file,
            is_handed_over,
        }
    }

    /// True if this process removes the file.
    pub fn is_ours(&self) -> bool {
        self.file.is_some()
    }

    /// Leaves the file to another process that listens on the same socket, or takes it back.
    pub fn hand_over(&self, given: bool) {
        self.is_handed_over.store(given, Ordering::Relaxed);
    }

    /// Changes who may connect.
    ///
    /// # Errors
    ///
    /// Error of the system.
    pub fn set_mode(&self, mode: Option<u32>) -> io::Result<()> {
        match (&self.file, mode) {
            (Some((path, _)), Some(mode)) => {
                fs::set_permissions(path, Permissions::from_mode(mode))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some((path, known)) = &self.file
            && !self.is_handed_over.load(Ordering::Relaxed)
            && identity(path).is_ok_and(|now| now == *known)
        {
            // Who comes next finds out that nobody listens.
            let _ = fs::remove_file(path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Listens at `path`, or in the abstract namespace behind `@`: `count` handles of one socket, as several
/// sockets cannot share a path. The handles do not block, and come in the type of TCP listeners, which are
/// files that can be listened on. `mode` are the rights of the socket's file, in place of those that the
/// process's mask leaves.
///
/// A file that a process has left behind is replaced. A socket that this process has [inherited](inherited)
/// is used as it is.
///
/// # Errors
///
/// Error of the system; somebody listens already, or there is a file that is no socket.
pub fn bind_path(
    path: &str,
    count: usize,
    mode: Option<u32>,
) -> io::Result<(Vec<TcpListener>, SocketFile)> {
    let is_abstract = path.starts_with('@');
    let mut inherited = inherited::process_table().take_sockets(&inherited::unix_name(path));
    if let Some(handed) = inherited.pop() {
        let file = match is_abstract || handed.name.is_kept {
            true => None,
            false => Some((path.into(), identity(path.as_ref())?)),
        };
        let file = SocketFile::new(file);
        file.set_mode(mode)?;
        return Ok((handles(handed.socket.into(), count)?, file));
    }
    check_free(path)?;
    if !is_abstract {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.bind(&unix_address(path)?)?;
    let file = match is_abstract {
        true => SocketFile::new(None),
        false => SocketFile::new(Some((path.into(), identity(path.as_ref())?))),
    };
    file.set_mode(mode)?;
    // Nobody can connect before the rights are those that are wanted.
    socket.listen(BACKLOG)?;
    Ok((handles(socket.into(), count)?, file))
}

/// `count` handles of a socket.
fn handles(first: TcpListener, count: usize) -> io::Result<Vec<TcpListener>> {
    let others = (1..count).map(|_| first.try_clone());
    let mut sockets = others.collect::<io::Result<Vec<_>>>()?;
    sockets.push(first);
    Ok(sockets)
}

/// Fails if somebody else listens there already, or if there is a file that is no socket.
///
/// # Errors
///
/// The same, or that it cannot be found out.
pub fn check_free(path: &str) -> io::Result<()> {
    if inherited::process_table().has_name(&inherited::unix_name(path)) {
        return Ok(());
    }
    if !path.starts_with('@') {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(file) if !file.file_type().is_socket() => {
                let message = "the path names an existing file that is not a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
            }
            Ok(_) => {}
        }
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    match socket.connect(&unix_address(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Err(io::Error::from_raw_os_error(
            rustix::io::Errno::ADDRINUSE.raw_os_error(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn path(name: &str) -> String {
        let name = format!("evenkeel-{name}-{}", std::process::id());
        std::env::temp_dir().join(name).to_str().unwrap().into()
    }

    #[test]
    fn a_stale_file_is_replaced_and_what_is_used_is_not() {
        let path = path("listen");
        let (sockets, file) = bind_path(&path, 2, Some(0o600)).unwrap();
        assert_eq!(sockets.len(), 2);
        let mode = fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        let error = bind_path(&path, 1, None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // A process that is killed leaves its file.
        drop(sockets);
        std::mem::forget(file);
        assert!(fs::exists(&path).unwrap());
        let (_sockets, file) = bind_path(&path, 1, None).unwrap();
        file.set_mode(Some(0o666)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        // That of somebody else stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "mine").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        assert_eq!(
            bind_path(&path, 1, None).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        fs::remove_file(&path).unwrap();
        let (_sockets, file) = bind_path(&path, 1, None).unwrap();
        drop(file);
        assert!(!fs::exists(&path).unwrap());
    }

    #[test]
    fn abstract_names_have_no_file() {
        let name = format!("@evenkeel-abstract-listen-{}", std::process::id());
        let (sockets, _file) = bind_path(&name, 1, Some(0o600)).unwrap();
        assert_eq!(
            check_free(&name).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(sockets);
        check_free(&name).unwrap();
    }
}
