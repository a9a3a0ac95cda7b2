//! Rules in maintenance: who is not served, and the page.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use bytes::Bytes;
use evenkeel_manager::config::{Problem, Rule, kept};

/// Longest page in bytes. It is written as a whole.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the page of a rule, if it has one.
pub(crate) fn page(rule: &Rule) -> Result<Option<Bytes>, Box<Problem>> {
    let Some(name) = &rule.maintenance.page else {
        return Ok(None);
    };
    let problem = |error: &io::Error| {
        let path = name.path.display();
        Box::new(name.place.problem(format!("{path}: {error}")))
    };
    let page = kept::load(
        |source| source.read(&name.path, read),
        |error| problem(error).to_string(),
    );
    match page {
        Ok(page) => Ok(Some(Bytes::copy_from_slice(&page))),
        Err(error) => Err(problem(&error)),
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut page = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut page)?;
    match page.len() as u64 {
        ..=MAX_BYTES => Ok(page),
        _ => {
            let message = format!("a page has {MAX_BYTES} bytes at most");
            Err(io::Error::other(message))
        }
    }
}

/// Whether a client of the rule is not served now.
#[inline]
pub(crate) fn is_for(rule: &Rule, client: Option<IpAddr>) -> bool {
    let maintenance = &rule.maintenance;
    let except = maintenance.except.as_ref();
    maintenance.on
        && !except.is_some_and(|networks| client.is_some_and(|client| networks.contains(client)))
}
