//! Apache httpd as people run it, a parent and its children, with our module.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use arm::page::{self, Reader, Sample};

use crate::built;
use crate::folder::Folder;
use crate::libarm;
use crate::process::{Signal, are_installed, parent_program, signal};
use crate::server;
use crate::wait_until;

/// Ways in which httpd spreads its work over processes and threads.
pub const MPMS: [&str; 3] = ["event", "worker", "prefork"];

/// Text that httpd logs when it begins to serve, at its start and after a restart.
const BEGUN: &str = "configured -- resuming";

/// Returns true if httpd, and the tools that build a module for it, are installed.
pub fn can_run() -> bool {
    are_installed(&["apache2", "apxs", "cc", "make"])
}

/// A server, ended when dropped.
///
/// It serves `/files/…` from `docs`, and in these `.shtml` with includes. `/broken` is a
/// 503, and what is not found is answered with `/files/lost`.
pub struct Httpd {
    address: SocketAddr,
    folder: Folder,
    process: Child,
}

impl Httpd {
    /// Starts it with more lines of configuration.
    pub fn start(mpm: &str, lines: &str) -> Self {
        let folder = Folder::new();
        let pages = folder.make_folder("pages");
        Self::start_in(folder, &pages, mpm, lines)
    }

    /// Starts httpd with its pages in another folder: that of an agent.
    pub fn start_with_pages(pages: &Path, mpm: &str, lines: &str) -> Self {
        Self::start_in(Folder::new(), pages, mpm, lines)
    }

    /// Starts it where the library finds no place for its page.
    pub fn start_without_pages(mpm: &str) -> Self {
        let folder = Folder::new();
        let pages = folder.join("no/such/folder");
        Self::start_in(folder, &pages, mpm, "")
    }

    fn start_in(folder: Folder, pages: &Path, mpm: &str, lines: &str) -> Self {
        let address = server::address();
        configure(&folder, address, mpm, lines);
        folder.write("docs/files/lost", "lost");
        folder.write("docs/files/name", "name");
        let output = File::create(folder.join("output.log")).expect("a file");
        let process = httpd(&folder)
            .arg("-DFOREGROUND")
            .env(page::DIR_VARIABLE, pages)
            .stderr(output)
            .spawn()
            .expect("httpd starts");
        let mut httpd = Self {
            address,
            folder,
            process,
        };
        // It listens before it has read all of its configuration.
        wait_until(&format!("httpd serves on {address}"), || {
            if let Some(status) = httpd.process.try_wait().expect("its state") {
                let output = httpd.folder.text("output.log");
                panic!("httpd ended with {status}: {output}{}", httpd.log());
            }
            httpd.log().contains(BEGUN)
        });
        httpd
    }

    /// Returns httpd's complaint about a configuration that it does not accept.
    pub fn complaint_about(lines: &str) -> String {
        let folder = Folder::new();
        let pages = folder.make_folder("pages");
        configure(&folder, server::address(), "event", lines);
        let output = httpd(&folder)
            .arg("-DFOREGROUND")
            .env(page::DIR_VARIABLE, pages)
            .output()
            .expect("httpd runs");
        assert!(!output.status.success(), "it accepts {lines}");
        let complaint = String::from_utf8_lossy(&output.stderr);
        format!("{complaint}{}", folder.text("error.log"))
    }

    /// Returns the address at which httpd listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts a document at `/files/NAME`.
    pub fn put_document(&self, name: &str, content: impl AsRef<[u8]>) {
        self.folder.write(&format!("docs/files/{name}"), content);
    }

    /// Returns httpd's page, as an agent has it.
    pub fn page(&self) -> Reader {
        let mut pages = self.pages();
        assert_eq!(pages.len(), 1);
        pages.remove(0)
    }

    /// The pages of its applications.
    pub fn pages(&self) -> Vec<Reader> {
        let pages = page::find_pages(&self.folder.join("pages")).expect("a folder");
        let pages = pages.iter().map(|page| Reader::open(page));
        pages.map(|page| page.expect("a page")).collect()
    }

    /// Returns httpd's error log.
    pub fn log(&self) -> String {
        self.folder.text("error.log")
    }

    /// The process that starts those that serve.
    pub fn parent(&self) -> u32 {
        self.process.id()
    }

    /// The processes that serve.
    pub fn children(&self) -> Vec<u32> {
        let parent = self.process.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(children).expect("its children");
        let children = children.split_whitespace().map(str::parse);
        children.map(|child| child.expect("a process")).collect()
    }

    /// Has it read its configuration again, and finish what it has begun.
    pub fn restart_gracefully(&self) {
        let before = self.log().matches(BEGUN).count();
        signal(self.process.id(), Signal::USR1);
        wait_until("httpd has restarted", || {
            self.log().matches(BEGUN).count() > before
        });
    }

    /// Ends it, as an administrator does.
    pub fn stop_process(&mut self) {
        signal(self.process.id(), Signal::TERM);
        self.process.wait().expect("it ends");
    }
}

impl Drop for Httpd {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            self.stop_process();
        }
    }
}

/// Takes samples until one is as it should be.
pub fn eventually_sampled(
    what: &str,
    page: &mut Reader,
    mut is_so: impl FnMut(&Sample) -> bool,
) -> Sample {
    let mut sample = page.sample(page::monotonic_nanos()).expect("a sample");
    wait_until(what, || {
        sample = page.sample(page::monotonic_nanos()).expect("a sample");
        is_so(&sample)
    });
    sample
}

fn httpd(folder: &Folder) -> Command {
    let mut httpd = parent_program("apache2");
    httpd.stdin(Stdio::null()).stdout(Stdio::null());
    httpd.arg("-f").arg(folder.join("server.conf"));
    httpd
}

fn configure(folder: &Folder, address: SocketAddr, mpm: &str, lines: &str) {
    for name in ["docs", "docs/files"] {
        folder.make_folder(name);
    }
    let root = folder.path().display();
    let Built { library, module } = module_and_library();
    let (library, module) = (library.display(), module.display());
    let modules = [
        &format!("mpm_{mpm}"),
        "authz_core",
        "mime",
        "include",
        "rewrite",
        "remoteip",
    ];
    let modules: String = modules
        .iter()
        .map(|module| {
            format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n")
        })
        .collect();
    let sizes = match mpm {
        "prefork" => "StartServers 2\nMinSpareServers 1\nMaxSpareServers 8\nMaxRequestWorkers 8",
        _ => {
            "ServerLimit 2\nStartServers 2\nThreadsPerChild 8\nMaxRequestWorkers 16\n\
             MinSpareThreads 4\nMaxSpareThreads 16"
        }
    };
    folder.write(
        "server.conf",
        format!(
            r#"
{modules}
LoadFile {library}
LoadModule evenkeel_module {module}
{sizes}
ServerRoot {root}
ServerName apache.example
User nobody
Group nogroup
Listen {address}
PidFile {root}/apache.pid
Mutex file:{root}
ErrorLog {root}/error.log
TypesConfig /dev/null
DocumentRoot {root}/docs
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 60
Timeout 60
ErrorDocument 404 /files/lost
RewriteEngine On
RewriteRule ^/broken$ - [R=503]
AddType text/html .shtml
AddOutputFilter INCLUDES .shtml
<Directory {root}>
    Require all granted
    Options +Includes
</Directory>
{lines}
"#
        ),
    );
}

/// Files that are built for these tests.
struct Built {
    library: PathBuf,
    module: PathBuf,
}

/// Our module, which is built; it needs [`libarm::folder`]'s library.
pub fn build_module() -> &'static Path {
    &module_and_library().module
}

fn module_and_library() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let libraries = libarm::folder();
        let folder = built::build_once("mod_evenkeel", |folder| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../modules/apache");
            let made = Command::new("make")
                .arg("-C")
                .arg(source)
                .arg(format!("BUILD={}", folder.display()))
                .arg(format!("LIBARM={}", libraries.display()))
                .output()
                .expect("make runs");
            let complaint = String::from_utf8_lossy(&made.stderr);
            assert!(made.status.success(), "{complaint}");
            assert!(!complaint.contains("warning"), "{complaint}");
        });
        Built {
            library: libraries.join("libarm.so"),
            module: folder.join("mod_evenkeel.so"),
        }
    })
}
