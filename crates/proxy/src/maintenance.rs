//! Rules in maintenance: who is not served, and the page.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;

use bytes::Bytes;
use evenkeel_manager::config::{FileName, Problem, Rule};

/// Longest page in bytes. It is written as a whole.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the page of a rule, if it has one.
pub(crate) fn page(rule: &Rule) -> Result<Option<Bytes>, Box<Problem>> {
    let Some(name) = &rule.maintenance.page else {
        return Ok(None);
    };
    match read(name) {
        Ok(page) => Ok(Some(page.into())),
        Err(error) => {
            let path = name.path.display();
            Err(Box::new(name.place.problem(format!("{path}: {error}"))))
        }
    }
}

fn read(name: &FileName) -> io::Result<Vec<u8>> {
    let file = File::open(&name.path)?;
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
