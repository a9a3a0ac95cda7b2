//! `[process]`: user and group of the balancer's process, and its rights to files.

use crate::schema::field::Texts;
use crate::schema::key::{describe_keys, section};
use crate::schema::reference::TableDoc;
use crate::schema::report::Report;
use crate::schema::table::Table;

section! {
    /// User, group and file rights of the process. Names are looked up when the process starts, so that you can
    /// check a configuration on a machine without the user.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Process {}
    keys PROCESS {
        /// User under which the process runs if you start it as root: a name or a number. The process keeps
        /// only the rights of root needed later: listening on ports below 1024 and, with `source = "client"`,
        /// using clients' addresses. If you leave the key out, the process runs as the user who started it. A
        /// change needs a restart.
        user: Option<String> [Text(NAME)] = None; r#""evenkeel""#,
        /// Group under which the process runs: a name or a number. If you leave the key out, the process gets
        /// the primary group of `user` and the other groups of this user. A change needs a
        /// restart.
        group: Option<String> [Text(NAME)] = None; r#""evenkeel""#,
        /// With `user` set, limits by the kernel (Landlock) which files the process may use. The process may
        /// read the system's folders and the folders of files named in the configuration, and write to the
        /// folders of logs, state and certificates. See [service.md](service.md#files). Set `false` to turn
        /// the limits off. A change needs a restart.
        landlock: bool = true; "false",
    }
}

const NAME: Texts = (
    "the name or number of a user or group: 1 to 64 visible ASCII characters without `:` and `/`",
    |text| {
        let is_part = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b':' | b'/');
        (1..=64).contains(&text.len()) && text.bytes().all(is_part)
    },
);

/// Reads `[process]` of the file, if it is there.
pub(crate) fn read(top: &mut Table<'_>, report: &mut Report<'_>) -> Process {
    let mut process = Process::default();
    if let Some(mut table) = top.read_table("process", report) {
        table.read(PROCESS, &mut process, report);
        if process.user.is_none() && process.group.is_some() {
            table.report_warning("`group` has no effect without `user`", report);
        }
        table.report_unread(report);
    }
    process
}

/// Reference of the table.
pub(crate) fn describe_table() -> TableDoc {
    let doc = "User, group and file rights of the process: see \
               [service.md](service.md#users-and-rights).";
    TableDoc::new(
        "[process]",
        doc,
        [describe_keys(PROCESS, Process::default())],
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::parse;

    #[test]
    fn users_and_groups_have_names_or_numbers() {
        let text = "[process]\nuser = \"_www-data\"\ngroup = \"33\"\nlandlock = false\n";
        let process = parse("x", text).unwrap().process;
        assert_eq!(process.user.as_deref(), Some("_www-data"));
        assert_eq!(process.group.as_deref(), Some("33"));
        assert!(!process.landlock);
        assert_eq!(parse("x", "").unwrap().process, Process::default());
        let long = "x".repeat(65);
        for bad in ["", "a b", "a:b", "../x", &long] {
            let text = format!("[process]\nuser = \"{bad}\"\n");
            let error = parse("x", &text).unwrap_err().to_string();
            assert!(error.contains("process.user"), "{error}");
        }
    }

    #[test]
    fn a_group_without_a_user_means_nothing() {
        let warnings = parse("x", "[process]\ngroup = \"a\"\n").unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    #[test]
    fn the_files_that_are_written_are_known() {
        let text = "[access_log]\noutput = \"/l/access.log\"\n[admin]\naudit_log = \"audit.log\"\n\
                    [acme]\nfolder = \"/a/acme\"\nagree_to_terms = true\n\
                    [rule.x]\nlisten = [\"unix:/r/x.sock\", \"unix:@x\", \"127.0.0.1:1\"]\nmembers = [\"a:1\"]\n";
        let config = parse("/c/evenkeel.toml", text).unwrap();
        let written: Vec<_> = config.written_files().collect();
        let expected = [
            ("access_log.output", "/l/access.log"),
            ("admin.audit_log", "/c/audit.log"),
            ("rule.listen", "/r/x.sock"),
        ];
        assert_eq!(written, expected.map(|(key, path)| (key, Path::new(path))));
    }
}
