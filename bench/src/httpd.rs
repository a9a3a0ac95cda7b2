//! Apache httpd as the programs here measure it, plain or with our module.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::server::Server;

/// `libarm.so` and `mod_evenkeel.so`.
pub struct Built {
    library: PathBuf,
    module: PathBuf,
}

impl Built {
    /// Builds both, unless they are to be taken as they lie in `target/dist`.
    ///
    /// # Errors
    ///
    /// Returns an error if the build fails.
    pub fn new(as_built: bool) -> io::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()?;
        let dist = root.join("target/dist");
        let module = dist.join("mod_evenkeel");
        if !as_built {
            let mut library = Command::new("cargo");
            library.args([
                "build",
                "--quiet",
                "--profile",
                "dist",
                "--package",
                "evenkeel-arm",
            ]);
            succeed(library.current_dir(&root))?;
            let mut made = Command::new("make");
            made.arg("-C").arg(root.join("modules/apache"));
            made.arg(format!("BUILD={}", module.display()));
            made.arg(format!("LIBARM={}", dist.display()));
            succeed(made.stdout(Stdio::null()))?;
        }
        Ok(Self {
            library: dist.join("libarm.so"),
            module: module.join("mod_evenkeel.so"),
        })
    }

    /// The lines that load them.
    pub fn load_lines(&self) -> String {
        format!(
            "LoadFile {}\nLoadModule evenkeel_module {}",
            self.library.display(),
            self.module.display()
        )
    }
}

/// An httpd that serves `/small`.
pub struct Httpd<'a> {
    /// Names its part of the folder; `ServerName` is `NAME.example`.
    pub name: &'a str,
    /// Address of the server.
    pub address: SocketAddr,
    /// Multi-processing module: event, worker or prefork.
    pub mpm: &'a str,
    /// Further lines of configuration.
    pub lines: &'a str,
    /// Folder of the ARM library's pages.
    pub pages: &'a Path,
}

impl Httpd<'_> {
    /// Starts it on processor `cpu`.
    ///
    /// # Errors
    ///
    /// Returns an error if httpd cannot be configured, started, or reached.
    pub fn start(&self, folder: &Folder, cpu: usize) -> io::Result<Server> {
        let config = self.configure(&folder.0)?;
        let mut command = Command::new("/usr/sbin/apache2");
        command.arg("-DFOREGROUND").arg("-f").arg(config);
        command.env("EVENKEEL_ARM_DIR", self.pages);
        let output = folder.0.join(format!("{}.out", self.name));
        command.stderr(fs::File::create(&output)?);
        // At its end it sends a signal to its whole group.
        command.process_group(0);
        let mut server = Server::start(command, cpu, libc::SIGTERM)?;
        server.wait_for(&[self.address]).map_err(|error| {
            let said = fs::read_to_string(output).unwrap_or_default();
            io::Error::other(format!("httpd {error}: {said}"))
        })?;
        Ok(server)
    }

    fn configure(&self, folder: &Path) -> io::Result<PathBuf> {
        let Httpd {
            name,
            address,
            mpm,
            lines,
            ..
        } = self;
        let root = folder.join(name);
        fs::create_dir(&root)?;
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        fs::write(
            root.join("small"),
            "A small document, as small as bench's back-end\n",
        )?;
        // A fixed number of processes, so that none ends and takes its CPU time along.
        let sizes = if *mpm == "prefork" {
            "StartServers 16\nMinSpareServers 1\nMaxSpareServers 64\nMaxRequestWorkers 64"
        } else {
            "ServerLimit 1\nStartServers 1\nThreadsPerChild 32\nMaxRequestWorkers 32\n\
             MinSpareThreads 1\nMaxSpareThreads 32"
        };
        let config = root.join("server.conf");
        let root = root.display();
        let modules = "/usr/lib/apache2/modules";
        fs::write(
            &config,
            format!(
                "LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so\n\
                 LoadModule authz_core_module {modules}/mod_authz_core.so\n\
                 {lines}\n{sizes}\n\
                 ServerRoot {root}\nServerName {name}.example\nUser nobody\nGroup nogroup\n\
                 Listen {address}\nPidFile {root}/pid\nMutex file:{root}\n\
                 ErrorLog {root}/error.log\nDocumentRoot {root}\n\
                 KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\n\
                 <Directory {root}>\nRequire all granted\n</Directory>\n"
            ),
        )?;
        Ok(config)
    }
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    let program = command.get_program();
    Err(io::Error::other(format!("{program:?} ended with {status}")))
}

/// A temporary folder, gone when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be made.
    pub fn new(name: &str) -> io::Result<Self> {
        Self::make(&std::env::temp_dir(), name)
    }

    /// Makes one in memory, where no disk takes part.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be made.
    pub fn in_memory(name: &str) -> io::Result<Self> {
        Self::make(Path::new("/dev/shm"), name)
    }

    fn make(place: &Path, name: &str) -> io::Result<Self> {
        let folder = place.join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(Self(folder))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
